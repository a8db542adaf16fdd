//! Conversion of pod and app rows from and to the types of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use gantry_host::stamp::FileStamp;
use gantry_model::restart::{PodRestart, StopRequest};
use gantry_model::{
    AppEnd, AppId, AppLogPath, AppName, AppOutcome, AppState, BootId, FormerPhase, Generation, ImageId, Phase,
    PhaseName, PodEnd, PodId, Process, Readiness, Timestamp, VolumeName, id::shown,
};
use rusqlite::types::{FromSql, Type};
use rusqlite::{Connection, Row, params};

use super::{AppRow, Networks, NewApp, PodRow, journal, readiness};

/// The columns of a pod, in the order in which [`pod`] reads them.
pub(crate) const POD: &str = "pod.id, pod.generation, pod.created, pod.net, pod.networks, pod.hostname, pod.name, \
    pod.namespace, pod.sandbox, pod.paused, pod.cgroup, pod.log_dir, pod.limit_changes, pod.user_annotations, pod.user_labels, pod.restart_at, pod.restart_tries, \
    pod.restart_count, pod.restart_failure, pod.stop_requested, pod.restart_held, pod.prepared_at, pod.phase, pod.aborted_at, \
    pod.started_at, pod.supervisor_pid, pod.supervisor_start, pod.supervisor_boot, pod.ended_at, pod.exit_code, pod.failed_app, pod.reason, \
    pod.marked_at, pod.was, pod.deleting_at, pod.journal";

/// The place of the stamp of the journal in [`POD`].
const JOURNAL: usize = 35;
/// `stop_requested` of a pod that was stopped until the host is started again.
pub(super) const STOPPED_UNTIL_BOOT: u8 = 2;

/// The columns of an app, in the order in which [`app`] reads them, after the pod's id.
pub(crate) const APP: &str = "app.pod, app.name, app.image, app.image_name, app.annotations, app.state, app.attempt, \
    app.started_at, app.pid, app.ended_at, app.exit_code, app.signal, app.oom, app.restart_at, app.added_at, \
    app.paused, app.readiness, app.health, app.health_number, app.app_id, app.labels, app.oom_kills, app.oom_level, \
    app.oom_victim, app.oom_victim_pid, app.restart, app.log_path, app.limit_changes";

/// The columns of a row, read from left to right.
pub(crate) struct Columns<'a, 'b> {
    row: &'a Row<'b>,
    next: usize,
}

impl<'a, 'b> Columns<'a, 'b> {
    pub(crate) fn new(row: &'a Row<'b>) -> Self {
        Self { row, next: 0 }
    }

    /// The next column as SQLite's value.
    pub(crate) fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        self.next += 1;
        self.row.get(self.next - 1)
    }

    /// The next column as text, which lives as long as the row does.
    pub(crate) fn text(&mut self) -> rusqlite::Result<&'a str> {
        self.next += 1;
        Ok(self.row.get_ref(self.next - 1)?.as_str()?)
    }

    /// The same for a column that may be NULL.
    pub(crate) fn text_option(&mut self) -> rusqlite::Result<Option<&'a str>> {
        self.next += 1;
        Ok(self.row.get_ref(self.next - 1)?.as_str_or_null()?)
    }

    /// The next column as a type that is parsed from text.
    pub(crate) fn parsed<T>(&mut self) -> rusqlite::Result<T>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        let text = self.text()?;
        text.parse().map_err(|error| self.invalid(error))
    }

    /// The same for a column that may be NULL.
    pub(crate) fn parsed_option<T>(&mut self) -> rusqlite::Result<Option<T>>
    where
        T: FromStr<Err: std::error::Error + Send + Sync + 'static>,
    {
        match self.text_option()? {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|error| self.invalid(error)),
        }
    }

    /// The next column as one of a fixed set of words.
    pub(crate) fn named<T>(&mut self, known: impl FnOnce(&str) -> Option<T>) -> rusqlite::Result<T> {
        let text = self.text()?;
        known(text).ok_or_else(|| self.invalid(format!("'{}' is not a word gantry writes here", shown(text))))
    }

    /// The next column as names of apps with commas between them; none where it is NULL.
    fn names(&mut self) -> rusqlite::Result<BTreeSet<AppName>> {
        let Some(text) = self.text_option()? else { return Ok(BTreeSet::new()) };
        text.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|error| self.invalid(error))
    }

    /// The next column as a JSON object of strings.
    pub(crate) fn map(&mut self) -> rusqlite::Result<BTreeMap<String, String>> {
        match self.text()? {
            "{}" => Ok(BTreeMap::new()),
            text => serde_json::from_str(text).map_err(|error| self.invalid(error)),
        }
    }

    /// The next column as a pod's network attachments; empty where it is NULL, as for most pods.
    fn networks(&mut self) -> rusqlite::Result<Networks> {
        match self.text_option()? {
            None => Ok(Networks::default()),
            Some(text) => Networks::from_text(text).map_err(|error| self.invalid(error)),
        }
    }

    /// The next column as a time, or NULL.
    pub(crate) fn time(&mut self) -> rusqlite::Result<Option<Timestamp>> {
        Ok(self.get::<Option<i64>>()?.map(Timestamp))
    }

    /// The next column as the readiness of an app, or NULL.
    fn readiness(&mut self) -> rusqlite::Result<Option<Readiness>> {
        let name = self.text_option()?;
        let read = |name| {
            let unknown = || self.invalid(format!("'{}' is no readiness of an app", shown(name)));
            Readiness::from_name(name).ok_or_else(unknown)
        };
        name.map(read).transpose()
    }

    /// The column just read has an invalid value.
    pub(crate) fn invalid(&self, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> rusqlite::Error {
        rusqlite::Error::FromSqlConversionFailure(self.next - 1, Type::Text, why.into())
    }

    /// A value that the constraints guarantee beside the one just read.
    fn present<T>(&self, value: Option<T>) -> rusqlite::Result<T> {
        value.ok_or_else(|| self.invalid("a column that belongs to this state is NULL"))
    }
}

/// A map as the text of a column.
pub(crate) fn map_text(map: &BTreeMap<String, String>) -> rusqlite::Result<String> {
    serde_json::to_string(map).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// Names of apps as the text of a column; NULL where there are none.
fn names_text(names: &BTreeSet<AppName>) -> Option<String> {
    let names: Vec<&str> = names.iter().map(AppName::as_str).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Reads a pod, without its apps.
pub(crate) fn pod(row: &Row<'_>) -> rusqlite::Result<PodRow> {
    let mut columns = Columns::new(row);
    let mut pod = PodRow {
        id: columns.parsed()?,
        generation: Generation(columns.get()?),
        created: Timestamp(columns.get()?),
        net: columns.parsed()?,
        networks: columns.networks()?,
        hostname: columns.get()?,
        name: columns.parsed_option()?,
        namespace: columns.parsed()?,
        sandbox: columns.get()?,
        paused: columns.get()?,
        cgroup: columns.get()?,
        log_dir: columns.parsed_option()?,
        limit_changes: columns.get()?,
        user_annotations: columns.map()?,
        user_labels: columns.map()?,
        restart: restart(&mut columns)?,
        prepared: columns.time()?,
        phase: Phase::Embryo,
        apps: Vec::new(),
    };
    pod.phase = phase(&mut columns, pod.prepared)?;
    Ok(pod)
}

/// Reads the recorded stamp of the journal of the pod that was read from this row.
pub(crate) fn journal_stamp(row: &Row<'_>, pod: &PodRow) -> rusqlite::Result<Option<FileStamp>> {
    // A damaged value is as good as none.
    Ok(row.get_ref(JOURNAL)?.as_blob().ok().and_then(|bytes| journal::decode(bytes, pod.generation)))
}

fn restart(columns: &mut Columns<'_, '_>) -> rusqlite::Result<PodRestart> {
    Ok(PodRestart {
        at: columns.time()?,
        tries: columns.get()?,
        count: columns.get()?,
        failure: columns.get()?,
        stop_request: stop_request(columns.get()?),
        held_apps: columns.names()?,
    })
}

/// The request to stop a pod, as its column has it.
fn stop_request_number(request: Option<StopRequest>) -> u8 {
    match request {
        None => 0,
        Some(StopRequest::UntilStarted) => 1,
        Some(StopRequest::UntilBoot) => STOPPED_UNTIL_BOOT,
    }
}

fn stop_request(number: i64) -> Option<StopRequest> {
    match number {
        0 => None,
        number if number == i64::from(STOPPED_UNTIL_BOOT) => Some(StopRequest::UntilBoot),
        // 1; a later version may have others.
        _ => Some(StopRequest::UntilStarted),
    }
}

fn phase(columns: &mut Columns<'_, '_>, prepared: Option<Timestamp>) -> rusqlite::Result<Phase> {
    let name = columns.named(PhaseName::from_word)?;
    let aborted = columns.time()?;
    let started = columns.time()?;
    Ok(match name {
        PhaseName::Embryo => Phase::Embryo,
        PhaseName::Preparing => Phase::Preparing,
        PhaseName::AbortedPrepare => Phase::AbortedPrepare { at: columns.present(aborted)? },
        PhaseName::Prepared => Phase::Prepared { at: columns.present(prepared)? },
        PhaseName::Running => {
            let since = columns.present(started)?;
            let supervisor = Process { pid: columns.get()?, start_ticks: columns.get()?, boot: BootId(columns.get()?) };
            Phase::Running { since, supervisor }
        }
        PhaseName::Exited => {
            columns.next += 3;
            let (at, end) = ended(columns)?;
            Phase::Exited { started: columns.present(started)?, at, end }
        }
        PhaseName::Starting => {
            columns.next += 3;
            let (at, end) = ended(columns)?;
            Phase::Starting { started: columns.present(started)?, at, end }
        }
        PhaseName::Garbage | PhaseName::Deleting => garbage(columns, started)?,
    })
}

fn ended(columns: &mut Columns<'_, '_>) -> rusqlite::Result<(Timestamp, PodEnd)> {
    let at = Timestamp(columns.get()?);
    let end = PodEnd { exit_code: columns.get()?, failed_app: columns.parsed_option()?, reason: columns.get()? };
    Ok((at, end))
}

fn garbage(columns: &mut Columns<'_, '_>, started: Option<Timestamp>) -> rusqlite::Result<Phase> {
    columns.next += 3;
    let mut last = Columns { row: columns.row, next: columns.next + 4 };
    let marked = Timestamp(last.get()?);
    let was = match last.text()? {
        "aborted" => FormerPhase::Aborted,
        "prepared" => FormerPhase::Prepared,
        "exited" => {
            let (at, end) = ended(columns)?;
            FormerPhase::Exited { started: columns.present(started)?, at, end }
        }
        other => return Err(last.invalid(format!("'{}' is not what a pod was", shown(other)))),
    };
    Ok(Phase::Garbage { marked, was, deleting: last.time()? })
}

/// Reads an app; its pod's id is the first column.
pub(crate) fn app(row: &Row<'_>) -> rusqlite::Result<AppRow> {
    /// The columns before those that only some apps have.
    const ADDED: usize = 14;
    let mut columns = Columns { row, next: 1 };
    let mut last = Columns { row, next: ADDED };
    Ok(AppRow {
        name: columns.parsed()?,
        image: columns.parsed_option()?,
        image_name: columns.get()?,
        annotations: columns.map()?,
        state: app_state(&mut columns)?,
        added: last.time()?,
        paused: last.get()?,
        readiness: last.readiness()?,
        health: super::health::read(&mut last)?,
        id: last.parsed()?,
        labels: last.map()?,
        oom: super::oom::read(&mut last)?,
        restart: last.parsed()?,
        log_path: last.parsed_option()?,
        limit_changes: last.get()?,
    })
}

fn app_state(columns: &mut Columns<'_, '_>) -> rusqlite::Result<AppState> {
    let name = columns.text()?;
    match name {
        "waiting" => return Ok(AppState::Waiting),
        "creating" => return Ok(AppState::Creating),
        "created" => return Ok(AppState::Created),
        _ => {}
    }
    let attempt = columns.get()?;
    let started = columns.time()?;
    match name {
        "running" => Ok(AppState::Started { at: columns.present(started)?, pid: columns.get()?, attempt }),
        "exited" => {
            columns.next += 1;
            let at = Timestamp(columns.get()?);
            let how = match (columns.get::<Option<u8>>()?, columns.get::<Option<u8>>()?) {
                (Some(code), None) => AppOutcome::Exited(code),
                (None, Some(signal)) => AppOutcome::Signaled(signal),
                (None, None) => AppOutcome::Lost,
                (Some(_), Some(_)) => return Err(columns.invalid("an app has both an exit code and a signal")),
            };
            Ok(AppState::Exited {
                started,
                end: AppEnd { how, oom: columns.get()?, at, restart_at: columns.time()? },
                attempt,
            })
        }
        other => Err(columns.invalid(format!("'{}' is not a state of an app", shown(other)))),
    }
}

/// The columns a phase owns; all others are NULL.
#[derive(Default)]
struct PhaseColumns<'a> {
    aborted: Option<i64>,
    started: Option<i64>,
    supervisor: Option<&'a Process>,
    ended: Option<(i64, &'a PodEnd)>,
    marked: Option<i64>,
    was: Option<&'static str>,
    deleting: Option<i64>,
}

impl<'a> PhaseColumns<'a> {
    fn from_phase(phase: &'a Phase) -> Self {
        let none = Self::default();
        match phase {
            // The time of the preparation is a column of the pod, not of a phase.
            Phase::Embryo | Phase::Preparing | Phase::Prepared { .. } => none,
            Phase::AbortedPrepare { at } => Self { aborted: Some(at.0), ..none },
            Phase::Running { since, supervisor } => {
                Self { started: Some(since.0), supervisor: Some(supervisor), ..none }
            }
            Phase::Exited { started, at, end } | Phase::Starting { started, at, end } => {
                Self { started: Some(started.0), ended: Some((at.0, end)), ..none }
            }
            Phase::Garbage { marked, was, deleting } => {
                let none = Self { marked: Some(marked.0), deleting: deleting.map(|at| at.0), ..none };
                match was {
                    FormerPhase::Aborted => Self { was: Some("aborted"), ..none },
                    FormerPhase::Prepared => Self { was: Some("prepared"), ..none },
                    FormerPhase::Exited { started, at, end } => {
                        Self { was: Some("exited"), started: Some(started.0), ended: Some((at.0, end)), ..none }
                    }
                }
            }
        }
    }
}

/// The value of the column `phase`; a pod being deleted is garbage.
pub(super) fn stored_name(phase: PhaseName) -> &'static str {
    match phase {
        PhaseName::Deleting => PhaseName::Garbage.as_str(),
        other => other.as_str(),
    }
}

const WRITE_PHASE: &str = "UPDATE pod SET generation = ?2, phase = ?3, prepared_at = ?4, aborted_at = ?5,
            started_at = ?6, supervisor_pid = ?7, supervisor_start = ?8, supervisor_boot = ?9, ended_at = ?10,
            exit_code = ?11, failed_app = ?12, reason = ?13, marked_at = ?14, was = ?15, deleting_at = ?16,
            name = CASE WHEN ?3 IN ('aborted-prepare', 'garbage') THEN NULL ELSE name END,
            paused = paused AND ?3 = 'running', restart_at = ?17, restart_tries = ?18, restart_count = ?19,
            restart_failure = ?20, stop_requested = ?21, restart_held = ?22 WHERE id = ?1";

const WRITE_APP: &str =
    "UPDATE app SET state = ?3, attempt = ?4, started_at = ?5, pid = ?6, ended_at = ?7, exit_code = ?8,
            signal = ?9, oom = ?10, paused = paused AND ?3 = 'running', readiness = ?11, restart_at = ?12
            WHERE pod = ?1 AND name = ?2";

/// Compiles the statements of [`write_phase`] and [`write_app`].
pub(crate) fn compile_writes(conn: &Connection) -> rusqlite::Result<()> {
    [WRITE_PHASE, WRITE_APP].iter().try_for_each(|text| conn.prepare_cached(text).map(drop))
}

/// Writes the phase and the generation of a pod, and the time of its preparation. A pod that could not be started or is
/// removed loses its name ([`super::has_name`]).
pub(crate) fn write_phase(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let columns = PhaseColumns::from_phase(&pod.phase);
    let (ended, end) = columns.ended.unzip();
    conn.prepare_cached(WRITE_PHASE)?
        .execute(params![
            pod.id.to_string(),
            pod.generation.0,
            stored_name(pod.phase.name()),
            pod.prepared.map(|at| at.0),
            columns.aborted,
            columns.started,
            columns.supervisor.map(|process| process.pid),
            columns.supervisor.map(|process| process.start_ticks),
            columns.supervisor.map(|process| &process.boot.0),
            ended,
            end.map(|end| end.exit_code),
            end.and_then(|end| end.failed_app.as_ref()).map(AppName::as_str),
            end.map(|end| &end.reason),
            columns.marked,
            columns.was,
            columns.deleting,
            pod.restart.at.map(|at| at.0),
            pod.restart.tries,
            pod.restart.count,
            pod.restart.failure,
            stop_request_number(pod.restart.stop_request),
            names_text(&pod.restart.held_apps),
        ])
        .map(drop)
}

/// Writes the annotations of a pod.
pub(crate) fn write_annotations(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let mut update = conn.prepare_cached("UPDATE pod SET user_annotations = ?2 WHERE id = ?1")?;
    update.execute(params![pod.id.to_string(), map_text(&pod.user_annotations)?]).map(drop)
}

/// Writes the network attachments of a pod.
pub(crate) fn write_networks(conn: &Connection, pod: PodId, got: &Networks) -> rusqlite::Result<()> {
    let mut update = conn.prepare_cached("UPDATE pod SET networks = ?2 WHERE id = ?1")?;
    update.execute(params![pod.to_string(), got.text()]).map(drop)
}

/// Adds the volumes to those that the pod, or an `app` that is added to it, keeps from being removed. Returns the first
/// one that does not exist.
pub(crate) fn refer_to_volumes(
    conn: &Connection,
    pod: &str,
    app: Option<&AppName>,
    volumes: &BTreeSet<VolumeName>,
) -> rusqlite::Result<Option<VolumeName>> {
    for name in volumes {
        // Not the number of inserted rows: the pod may have the volume already.
        let exists: bool = conn
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM volume WHERE name = ?1 AND deleting = 0)")?
            .query_row([name.as_str()], |row| row.get(0))?;
        if !exists {
            return Ok(Some(name.clone()));
        }
        conn.prepare_cached("INSERT INTO pod_volume (pod, volume, app) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING")?
            .execute([pod, name.as_str(), app.map_or("", AppName::as_str)])?;
    }
    Ok(None)
}

/// Inserts the row of a new app at this place among the apps of its pod. `added`: when it is added to the running pod,
/// in which it is being created; `None`: the pod is created with it. Returns the app's image if the store lacks it: the
/// message of the foreign key could not say which image it was.
pub(crate) fn insert_app(
    conn: &Connection,
    pod: &str,
    position: usize,
    app: &NewApp,
    added: Option<i64>,
) -> rusqlite::Result<Option<ImageId>> {
    let inserted = conn
        .prepare_cached(
            "INSERT INTO app (pod, position, name, image, image_name, annotations, state, added_at, app_id, labels,
                readiness, restart, log_path)
                SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, coalesce(?9, lower(hex(randomblob(32)))), ?10, ?11, ?12, ?13
                WHERE ?4 IS NULL OR EXISTS (SELECT 1 FROM image WHERE id = ?4)",
        )?
        .execute(params![
            pod,
            position,
            app.name.as_str(),
            app.image.as_ref().map(ToString::to_string),
            app.image_name,
            map_text(&app.annotations)?,
            if added.is_some() { "creating" } else { "waiting" },
            added,
            app.id.as_ref().map(AppId::as_str),
            map_text(&app.labels)?,
            readiness::initial(app),
            app.restart.to_string(),
            app.log_path.as_ref().map(AppLogPath::as_str)
        ])?;
    Ok(app.image.clone().filter(|_| inserted == 0))
}

/// Refers to the images that are volumes of an app. Returns one that does not exist.
pub(crate) fn refer_to_images(conn: &Connection, pod: &str, app: &NewApp) -> rusqlite::Result<Option<ImageId>> {
    for image in &app.volume_images {
        let inserted = conn
            .prepare_cached(
                "INSERT INTO pod_image (pod, image, app) SELECT ?1, ?2, ?3
                    WHERE EXISTS (SELECT 1 FROM image WHERE id = ?2)",
            )?
            .execute([pod, &image.to_string(), app.name.as_str()])?;
        if inserted == 0 {
            return Ok(Some(image.clone()));
        }
    }
    Ok(None)
}

/// Deletes the rows of apps, with the references to the volumes that they were added with.
pub(crate) fn delete_apps(conn: &Connection, pod: PodId, names: &[AppName]) -> rusqlite::Result<()> {
    let pod = pod.to_string();
    names.iter().try_for_each(|name| {
        let key = [pod.as_str(), name.as_str()];
        conn.prepare_cached("DELETE FROM pod_volume WHERE pod = ?1 AND app = ?2")?.execute(key)?;
        conn.prepare_cached("DELETE FROM pod_image WHERE pod = ?1 AND app = ?2")?.execute(key)?;
        conn.prepare_cached("DELETE FROM app WHERE pod = ?1 AND name = ?2")?.execute(key).map(drop)
    })
}

/// Writes the state of an app.
pub(crate) fn write_app(conn: &Connection, pod: &str, app: &AppRow) -> rusqlite::Result<()> {
    let (mut attempt, mut started, mut pid, mut end) = (None, None, None, None);
    match app.state {
        AppState::Waiting | AppState::Creating | AppState::Created => {}
        AppState::Started { at, pid: number, attempt: n } => {
            (attempt, started, pid) = (Some(n), Some(at.0), Some(number));
        }
        AppState::Exited { started: at, end: how, attempt: n } => {
            (attempt, started, end) = (Some(n), at.map(|at| at.0), Some(how));
        }
    }
    let (code, signal) = match end.map(|end| end.how) {
        Some(AppOutcome::Exited(code)) => (Some(code), None),
        Some(AppOutcome::Signaled(signal)) => (None, Some(signal)),
        Some(AppOutcome::Lost) | None => (None, None),
    };
    conn.prepare_cached(WRITE_APP)?
        .execute(params![
            pod,
            app.name.as_str(),
            app.state.name(),
            attempt,
            started,
            pid,
            end.map(|end| end.at.0),
            code,
            signal,
            end.map(|end| end.oom),
            app.readiness.map(Readiness::as_str),
            end.and_then(|end| end.restart_at).map(|at| at.0),
        ])
        .map(drop)
}
