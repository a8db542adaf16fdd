//! The schema of the database, as a list of migration steps. `user_version` is the format: the number of steps applied.
//!
//! * Append only. `fixtures/vN.sql` is a database of each released format, and a test compares its schema with the one
//!   that the first N steps make. Format 1 is the first release.
//! * All missing steps run in one transaction: a `kill -9` leaves the old format.
//! * Before the first step, the database is backed up to `backups/` (`backup.rs`).
//! * Opening a database of a newer format fails. An unknown row of kind `incompatible` in `feature` has the same effect
//!   without a new format.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::{StoreError, constraints};

/// The mark of gantry's databases in the SQLite header (`application_id`): "gant".
pub(crate) const APPLICATION_ID: i32 = 0x6761_6e74;

/// The features this program knows.
pub(crate) const FEATURES: [&str; 0] = [];

/// The steps. Append only.
pub(crate) const STEPS: &[&str] = &[V1];

/// Format 1. constraints.rs has the constraints on its rows that the types of columns cannot express.
const V1: &str = "
CREATE TABLE feature (
    name TEXT PRIMARY KEY,
    kind TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One row. `next_seq` is the number of the next event; `trimmed` is the highest number that was trimmed away;
-- `durable_commits` counts the commits that were synced before they were acknowledged (`high_water.rs`).
CREATE TABLE state (
    one INTEGER PRIMARY KEY,
    boot TEXT NOT NULL,
    next_seq INTEGER NOT NULL,
    trimmed INTEGER NOT NULL DEFAULT 0,
    durable_commits INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    boot TEXT NOT NULL,
    kind TEXT NOT NULL,
    at INTEGER NOT NULL,
    subject TEXT NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE INDEX event_at ON event (at);

-- Committed layers. A parent outlives its children; children may come first within one transaction.
CREATE TABLE layer (
    chain TEXT PRIMARY KEY,
    diff_id TEXT NOT NULL,
    parent TEXT REFERENCES layer (chain) DEFERRABLE INITIALLY DEFERRED,
    size INTEGER NOT NULL,
    entries INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX layer_parent ON layer (parent);

CREATE TABLE image (
    id TEXT PRIMARY KEY,
    config TEXT NOT NULL,
    format TEXT NOT NULL,
    size INTEGER NOT NULL,
    imported INTEGER NOT NULL,
    last_used INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX image_imported ON image (imported);

-- Bottom first: position 0 is the lowest.
CREATE TABLE image_layer (
    image TEXT NOT NULL REFERENCES image (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    chain TEXT NOT NULL REFERENCES layer (chain),
    blob TEXT NOT NULL,
    PRIMARY KEY (image, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX image_layer_chain ON image_layer (chain);

CREATE TABLE image_name (
    name TEXT PRIMARY KEY,
    image TEXT NOT NULL REFERENCES image (id) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;
CREATE INDEX image_name_image ON image_name (image);

CREATE TABLE pod (
    id TEXT PRIMARY KEY,
    generation INTEGER NOT NULL,
    phase TEXT NOT NULL,
    created INTEGER NOT NULL,
    net TEXT NOT NULL,
    hostname TEXT NOT NULL,
    user_annotations TEXT NOT NULL,
    user_labels TEXT NOT NULL,
    prepared_at INTEGER,
    aborted_at INTEGER,
    started_at INTEGER,
    supervisor_pid INTEGER,
    supervisor_start INTEGER,
    supervisor_boot TEXT,
    ended_at INTEGER,
    exit_code INTEGER,
    failed_app TEXT,
    reason TEXT,
    marked_at INTEGER,
    was TEXT,
    -- Garbage whose deletion has begun.
    deleting_at INTEGER,
    -- What the pod got of its networks when it was started (`pods/networks.rs`). NULL: nothing, or not started.
    networks TEXT,
    -- A pod that may have no apps and runs until it is stopped.
    sandbox INTEGER NOT NULL DEFAULT 0,
    -- A name given by the user. One pod at a time has it: a pod that could not be started or is being removed has none.
    name TEXT,
    -- Whether its apps are frozen on request, and none is started.
    paused INTEGER NOT NULL DEFAULT 0,
    -- The path of its cgroup below the root of each hierarchy, which does not follow the configuration.
    cgroup TEXT NOT NULL,
    -- When gantryd starts the pod again, its tries without a healthy run, its starts since the last one on request,
    -- and why the last start failed.
    restart_at INTEGER,
    restart_tries INTEGER NOT NULL DEFAULT 0,
    restart_count INTEGER NOT NULL DEFAULT 0,
    restart_failure TEXT,
    -- The names of apps that were stopped on request before the pod ended, with commas. NULL: none.
    restart_held TEXT,
    -- Whether it was requested to stop since its last start.
    stop_requested INTEGER NOT NULL DEFAULT 0,
    -- By which the Talos node API groups pods; 'system' is that of gantryd.
    namespace TEXT NOT NULL DEFAULT 'taloscontainers',
    -- The directory of log files at chosen paths. NULL: every log is in the pod directory.
    log_dir TEXT,
    -- The number of the last change of its limits in the journal.
    limit_changes INTEGER NOT NULL DEFAULT 0,
    -- The stamp of the journal whose facts are all in the rows, and the generation for which this is so
    -- (`pods/journal.rs`). A migration that adds facts of journals to rows sets it to NULL.
    journal BLOB
) STRICT, WITHOUT ROWID;
CREATE INDEX pod_created ON pod (created, id);
CREATE INDEX pod_phase ON pod (phase);
CREATE INDEX pod_restart ON pod (restart_at) WHERE restart_at IS NOT NULL;
CREATE INDEX pod_deleting ON pod (deleting_at) WHERE deleting_at IS NOT NULL;
CREATE UNIQUE INDEX pod_name ON pod (name) WHERE name IS NOT NULL;

-- The reference to the image is what protects it: it cannot be removed while this row is there. Apps of host pods have
-- no image.
CREATE TABLE app (
    pod TEXT NOT NULL REFERENCES pod (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    image TEXT REFERENCES image (id),
    image_name TEXT NOT NULL,
    annotations TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER,
    started_at INTEGER,
    pid INTEGER,
    ended_at INTEGER,
    exit_code INTEGER,
    signal INTEGER,
    oom INTEGER,
    -- When the app was added to a running pod.
    added_at INTEGER,
    -- NULL: the app does not report its readiness.
    readiness TEXT,
    -- Whether its processes are frozen on request.
    paused INTEGER NOT NULL DEFAULT 0,
    -- The health of the last start, and the number of its change in the journal. NULL: no health check.
    health TEXT,
    health_number INTEGER NOT NULL DEFAULT 0,
    -- Its own id, by which other APIs name it.
    app_id TEXT NOT NULL UNIQUE,
    labels TEXT NOT NULL DEFAULT '{}',
    -- When the restart policy starts an app again that has ended.
    restart_at INTEGER,
    -- Processes that the OOM killer has killed, over all starts, and the limit that was reached by the last one.
    oom_kills INTEGER NOT NULL DEFAULT 0,
    oom_level TEXT,
    oom_victim TEXT,
    oom_victim_pid INTEGER,
    -- Its restart policy, as the flag has it.
    restart TEXT NOT NULL DEFAULT 'no',
    -- The chosen path of its log file, below the pod's log_dir. NULL: it is in the pod directory.
    log_path TEXT,
    -- The number of the last change of its limits in the journal.
    limit_changes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (pod, position),
    UNIQUE (pod, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX app_image ON app (image);
CREATE INDEX app_name ON app (name);

-- Volumes that outlive pods (`volumes.rs`). `deleting`: its removal has begun.
CREATE TABLE volume (
    name TEXT PRIMARY KEY,
    created INTEGER NOT NULL,
    labels TEXT NOT NULL,
    deleting INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- What keeps a volume: it cannot be removed while this row is there.
CREATE TABLE pod_volume (
    pod TEXT NOT NULL REFERENCES pod (id) ON DELETE CASCADE,
    volume TEXT NOT NULL REFERENCES volume (name),
    -- The app of a running pod that was added with it, and with which the row goes; empty: the pod was created with it.
    app TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (pod, volume, app)
) STRICT, WITHOUT ROWID;
CREATE INDEX pod_volume_volume ON pod_volume (volume);

-- Images that are volumes of an app: what keeps them, besides the app's own image.
CREATE TABLE pod_image (
    pod TEXT NOT NULL REFERENCES pod (id) ON DELETE CASCADE,
    image TEXT NOT NULL REFERENCES image (id),
    app TEXT NOT NULL,
    PRIMARY KEY (pod, image, app)
) STRICT, WITHOUT ROWID;
CREATE INDEX pod_image_image ON pod_image (image);

-- Pods that gantryd keeps running (`timer` is NULL) or starts at certain times (`schedules.rs`).
CREATE TABLE schedule (
    name TEXT PRIMARY KEY,
    -- Raised by each change of what is run. Pods of other revisions are removed.
    revision INTEGER NOT NULL,
    enabled INTEGER NOT NULL,
    enabled_at INTEGER NOT NULL,
    manifest TEXT NOT NULL,
    timer TEXT,
    comment TEXT NOT NULL,
    -- Pods created so far, and the time of the last one.
    runs INTEGER NOT NULL DEFAULT 0,
    last_run INTEGER,
    -- All runs that were due until then were started or skipped, and so was the one of this boot.
    handled_at INTEGER NOT NULL,
    handled_boot TEXT,
    -- Starts that failed in a row, the reason of the last one, and the time before which there is no other one.
    failures INTEGER NOT NULL DEFAULT 0,
    failure TEXT,
    retry_at INTEGER
) STRICT, WITHOUT ROWID;

-- The pods of schedules, also of those that were destroyed. The row is inserted with the pod.
CREATE TABLE schedule_pod (
    pod TEXT PRIMARY KEY REFERENCES pod (id) ON DELETE CASCADE,
    schedule TEXT NOT NULL,
    revision INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_pod_schedule ON schedule_pod (schedule);
";

/// The number of steps applied to a database.
pub(crate) fn version(conn: &Connection) -> rusqlite::Result<usize> {
    conn.query_row("PRAGMA user_version", [], |row| row.get::<_, u32>(0)).map(|version| version as usize)
}

/// Migrates a database to the last of `steps`. Before the first one, `back_up` is called with the current format,
/// unless the database is empty. The caller holds the lock on the data directory, and has refused newer formats.
pub(crate) fn migrate(
    conn: &Connection,
    steps: &[&str],
    back_up: impl FnOnce(usize) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let sql = || StoreError::sql("migrate the database");
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate).map_err(sql())?;
    let from = version(&tx).map_err(sql())?;
    if from > 0 {
        back_up(from)?;
    }
    for step in steps.iter().skip(from) {
        tx.execute_batch(step).map_err(sql())?;
    }
    tx.execute_batch(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {}", steps.len()))
        .map_err(sql())?;
    if let Some(line) = constraints::violations(&tx).map_err(sql())?.into_iter().next() {
        return Err(StoreError::damaged("migrate the database", line));
    }
    tx.commit().map_err(sql())
}
