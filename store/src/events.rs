//! The history of events: which events a step writes (pure), and writing, reading and trimming them.
//!
//! Numbers come from `state.next_seq`, in the transaction of the step itself. So they increase by one in commit order,
//! whichever process writes, and a step that is rolled back leaves no gap.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use gantry_model::{
    AppName, AppOutcome, AppState, Edge, EventKind, EventRecord, EventSubject, NewEvent, PodId, PodPrefix, Timestamp,
};
use rusqlite::{OptionalExtension as _, Transaction, params};

use crate::PodRow;
use crate::db::Sync;
use crate::pods::{FORMER_NAME, Step, has_name, row};
use crate::{AppRow, NetworkSummary, Networks, Store, StoreError};

/// How many events [`Store::trim_events`] usually keeps.
pub const EVENTS_KEPT: u64 = 100_000;

/// The number of events deleted in one transaction.
const TRIM_CHUNK: usize = 5_000;

/// The kinds of events whose time is that of their writing, for SQL. (Prepared is written late only for a pod that ran
/// before its row said so, which takes a `run` killed at that very moment.)
const PUNCTUAL: &str =
    "'pod-prepared', 'pod-prepare-aborted', 'pod-garbage-collected', 'image-imported', 'image-removed'";

/// The time of an event is read a moment before its number is given: two writers may differ in both by so many
/// nanoseconds.
const SKEW: i64 = 1_000_000_000;

/// The key of an event's data with the time of what it reports, if it was written much later: the end of a pod that was
/// noticed late.
const HAPPENED: &str = "happened";

/// An event written within this time was noticed at once.
const NOTICED_AT_ONCE: Duration = Duration::from_secs(1);

/// The plus makes SQLite use the index of times; it would scan the history from its beginning otherwise.
pub(crate) const FIRST_SINCE: &str = "SELECT min(+seq) FROM event WHERE at >= ?1";

/// The events of one step of a pod: of its apps first when it ends, after it otherwise. An app's start and its end are
/// reported once per attempt; a late writer that finds both at once reports both. `removed` are the apps whose rows are
/// deleted.
pub(crate) fn of_step(
    pod: &PodRow,
    asked: &Step<'_>,
    apps: &[(&AppRow, AppState)],
    removed: &[&AppRow],
    now: Timestamp,
) -> Result<Vec<NewEvent>, StoreError> {
    let mut events: Vec<NewEvent> = apps.iter().flat_map(|(app, to)| of_app(pod.id, app, to, now)).collect();
    events.extend(removed.iter().filter_map(|app| of_removed_app(pod.id, app, now)));
    let mut of_pod = asked.edge.and_then(|edge| of_edge(pod, edge, now));
    if let (Some(event), Some(networks)) = (&mut of_pod, asked.got()) {
        event.data.insert("networks".to_owned(), listed(networks)?);
    }
    if let (Some(event), Some(failure)) = (&mut of_pod, asked.failure()) {
        event.data.insert("reason".to_owned(), failure.to_owned());
    }
    if let (Some(event), Some(at)) = (&mut of_pod, asked.restart_at()) {
        event.data.insert("restart_at".to_owned(), at.rfc3339().to_string());
    }
    match asked.edge {
        Some(Edge::Ended { .. }) => events.extend(of_pod),
        // At its start, the pod's event precedes its apps'.
        _ => events.splice(0..0, of_pod).for_each(drop),
    }
    Ok(events)
}

/// Networks in rkt's format: `default:ip4=172.16.28.2,other:ip6=fd00::2`; of several addresses of a kind the first.
fn listed(networks: &Networks) -> Result<String, StoreError> {
    let one = |NetworkSummary { name, ip4, ip6, ports: _ }: NetworkSummary<'_>| {
        let ip4 = ip4.map(|address| format!("ip4={address}"));
        let addresses: Vec<String> = ip4.into_iter().chain(ip6.map(|address| format!("ip6={address}"))).collect();
        format!("{name}{}{}", if addresses.is_empty() { "" } else { ":" }, addresses.join(";"))
    };
    Ok(networks.summaries()?.into_iter().map(one).collect::<Vec<_>>().join(","))
}

/// An event of a pod. One that is being removed has lost its name, but its events keep it.
pub(crate) fn pod_event(pod: &PodRow, kind: EventKind, at: Timestamp, data: BTreeMap<String, String>) -> NewEvent {
    let id = pod.id.to_string();
    let former = || pod.user_annotations.get(FORMER_NAME).filter(|_| !has_name(&pod.phase)).cloned();
    let name = pod.name.as_ref().map(ToString::to_string).or_else(former).unwrap_or_else(|| id.clone());
    NewEvent { kind, at, id, name, data }
}

fn of_edge(pod: &PodRow, edge: &Edge, now: Timestamp) -> Option<NewEvent> {
    let mut data = BTreeMap::new();
    let (kind, at) = match edge {
        Edge::Prepared(at) => (EventKind::PodPrepared, *at),
        Edge::Aborted(at) => (EventKind::PodPrepareAborted, *at),
        Edge::Started { at, .. } => (EventKind::PodStarted, *at),
        Edge::Ended { at, end } => {
            data.insert("exit_code".to_owned(), end.exit_code.to_string());
            data.insert("reason".to_owned(), end.reason.clone());
            if let Some(app) = &end.failed_app {
                data.insert("failed_app".to_owned(), app.to_string());
            }
            (EventKind::PodExited, *at)
        }
        Edge::Swept => (EventKind::PodGarbageCollected, now),
        Edge::StartFailed => (EventKind::PodStartFailed, now),
        Edge::Restart => (EventKind::PodStarting, now),
        Edge::Prepare | Edge::Marked(_) | Edge::Discarded(_) | Edge::Deleting(_) => return None,
    };
    Some(pod_event(pod, kind, at, data))
}

/// An event of an app.
pub(crate) fn app_event(
    pod: PodId,
    app: &AppRow,
    kind: EventKind,
    at: Timestamp,
    attempt: Option<u32>,
    more: Vec<(&str, String)>,
) -> NewEvent {
    let mut data: BTreeMap<_, _> = more.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    data.extend(app.image.as_ref().map(|image| ("image_id".to_owned(), image.to_string())));
    data.extend(attempt.map(|attempt| ("attempt".to_owned(), attempt.to_string())));
    NewEvent { kind, at, id: pod.to_string(), name: app.name.to_string(), data }
}

/// The removal of an app; of one that was never created nothing was reported.
fn of_removed_app(pod: PodId, app: &AppRow, now: Timestamp) -> Option<NewEvent> {
    let attempt = match app.state {
        AppState::Waiting | AppState::Creating => return None,
        AppState::Created => None,
        AppState::Started { attempt, .. } | AppState::Exited { attempt, .. } => Some(attempt),
    };
    Some(app_event(pod, app, EventKind::AppRemoved, now, attempt, vec![("app_id", app.id.to_string())]))
}

fn of_app(pod: PodId, app: &AppRow, to: &AppState, now: Timestamp) -> Vec<NewEvent> {
    let told = |kind, at, attempt: u32, more| app_event(pod, app, kind, at, Some(attempt), more);
    let (start_known, end_known) = match app.state {
        AppState::Waiting | AppState::Creating | AppState::Created => (None, None),
        AppState::Started { attempt, .. } => (Some(attempt), None),
        AppState::Exited { attempt, .. } => (Some(attempt), Some(attempt)),
    };
    let mut events = Vec::new();
    if app.state == AppState::Creating && app.state.precedes(to) {
        let id = vec![("app_id", app.id.to_string())];
        events.push(app_event(pod, app, EventKind::AppCreated, now, None, id));
    }
    match *to {
        AppState::Waiting | AppState::Creating | AppState::Created => {}
        AppState::Started { at, attempt, .. } => {
            if start_known != Some(attempt) {
                events.push(told(EventKind::AppStarted, at, attempt, vec![]));
            }
        }
        AppState::Exited { started, end, attempt } => {
            if let Some(at) = started.filter(|_| start_known != Some(attempt)) {
                events.push(told(EventKind::AppStarted, at, attempt, vec![]));
            }
            if end_known != Some(attempt) {
                let mut more = vec![("exit_code", end.how.exit_code().to_string()), ("oom", end.oom.to_string())];
                match end.how {
                    AppOutcome::Exited(_) => {}
                    AppOutcome::Signaled(signal) => more.push(("signal", signal.to_string())),
                    AppOutcome::Lost => more.push(("lost", true.to_string())),
                }
                more.extend(end.restart_at.map(|at| ("restart_at", at.rfc3339().to_string())));
                events.push(told(EventKind::AppExited, end.at, attempt, more));
            }
        }
    }
    events
}

/// Writes events with the next numbers. The time of an event is that of its writing and never before that of the one
/// before it, whatever happens to the clock: a client that requests events since the time of the last one it has seen
/// misses none. [`HAPPENED`] has the time of the reported change, if that is earlier.
pub(crate) fn append(store: &Store, tx: &Transaction<'_>, events: &[NewEvent]) -> rusqlite::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let mut seq: u64 = tx.prepare_cached("SELECT next_seq FROM state")?.query_row([], |row| row.get(0))?;
    let last: Option<i64> = tx
        .prepare_cached("SELECT at FROM event ORDER BY seq DESC LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    let now = store.now();
    let at = last.map_or(now, |last| now.max(Timestamp(last)));
    let mut insert = tx.prepare_cached(
        "INSERT INTO event (seq, boot, kind, at, subject, name, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for event in events {
        let data = if now.since(event.at) < NOTICED_AT_ONCE {
            row::map_text(&event.data)?
        } else {
            let happened = (HAPPENED.to_owned(), event.at.rfc3339().to_string());
            row::map_text(&event.data.clone().into_iter().chain([happened]).collect())?
        };
        insert.execute(params![seq, store.boot.0, event.kind.as_str(), at.0, event.id, event.name, data])?;
        seq += 1;
    }
    tx.prepare_cached("UPDATE state SET next_seq = ?1")?.execute([seq]).map(drop)
}

impl Store {
    /// Writes an event that belongs to no change of a row.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_event(&self, event: &NewEvent) -> Result<(), StoreError> {
        const DOING: &str = "record an event";
        self.write(DOING, Sync::Now, |tx| append(self, tx, std::slice::from_ref(event)).map_err(StoreError::sql(DOING)))
    }

    /// At most `limit` events with numbers above `seq`, oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn events_after(&self, seq: u64, limit: usize) -> Result<Vec<EventRecord>, StoreError> {
        let sql = || StoreError::sql("read events");
        // SQLite's integers have a sign; there is nothing beyond the largest.
        let (seq, limit) = (seq.min(i64::MAX.unsigned_abs()), i64::try_from(limit).unwrap_or(i64::MAX));
        let mut statement = self
            .conn
            .prepare_cached(
                "SELECT seq, boot, kind, at, subject, name, data FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2",
            )
            .map_err(sql())?;
        let rows = statement.query_map(params![seq, limit], read).map_err(sql())?;
        rows.collect::<rusqlite::Result<_>>().map_err(sql())
    }

    /// The same, and the highest trimmed number if it is above `seq`: events are missing before these. Both come from
    /// one snapshot, so that no trimming comes in between.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn events_page(&self, seq: u64, limit: usize) -> Result<(Vec<EventRecord>, Option<u64>), StoreError> {
        self.read("read events", |_snapshot| {
            let trimmed = self.trimmed_seq()?;
            Ok((self.events_after(seq, limit)?, (trimmed > seq).then_some(trimmed)))
        })
    }

    /// The newest kept event of this kind with this subject: a pod's UUID or an image's id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_event(&self, kind: EventKind, subject: &str) -> Result<Option<EventRecord>, StoreError> {
        self.conn
            .prepare_cached(
                "SELECT seq, boot, kind, at, subject, name, data FROM event WHERE kind = ?1 AND subject = ?2
                    ORDER BY seq DESC LIMIT 1",
            )
            .and_then(|mut one| one.query_row(params![kind.as_str(), subject], read).optional())
            .map_err(StoreError::sql("read the last event"))
    }

    /// The names in the events of the removals of these pods, by UUID. Pods without a name are left out. Reads the
    /// history from its end to the oldest of these events.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn names_at_removal(&self, pods: &BTreeSet<String>) -> Result<HashMap<String, String>, StoreError> {
        let failed = || StoreError::sql("read the events of removals");
        let sql = "SELECT subject, name FROM event WHERE kind = ?1 ORDER BY seq DESC";
        let mut removals = self.conn.prepare_cached(sql).map_err(failed())?;
        let mut removals = removals.query([EventKind::PodGarbageCollected.as_str()]).map_err(failed())?;
        let (mut names, mut left) = (HashMap::new(), pods.len());
        while left > 0
            && let Some(row) = removals.next().map_err(failed())?
        {
            let (pod, name): (String, String) = (row.get(0).map_err(failed())?, row.get(1).map_err(failed())?);
            if pods.contains(&pod) {
                left -= 1;
                // The event of a pod without a name has its UUID.
                if pod != name {
                    names.insert(pod, name);
                }
            }
        }
        Ok(names)
    }

    /// The UUIDs of the pods, existing or removed, that have this name in a kept event, or whose UUID begins so.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods_in_events(&self, name: &str, prefix: Option<&PodPrefix>) -> Result<BTreeSet<String>, StoreError> {
        let sql = || StoreError::sql("look for a pod in the events");
        let is_of_pod = |kind: &&EventKind| kind.subject() == EventSubject::Pod;
        let kinds: Vec<_> =
            EventKind::ALL.iter().filter(is_of_pod).map(|kind| format!("'{}'", kind.as_str())).collect();
        let query = format!(
            "SELECT DISTINCT subject FROM event
                WHERE kind IN ({}) AND (name = ?1 OR substr(subject, 1, length(?2)) = ?2)",
            kinds.join(", ")
        );
        let mut statement = self.conn.prepare_cached(&query).map_err(sql())?;
        let rows = statement.query_map(params![name, prefix.map(PodPrefix::as_str)], |row| row.get(0)).map_err(sql())?;
        rows.collect::<rusqlite::Result<_>>().map_err(sql())
    }

    /// The number after which every kept event of `since` or later lies; a trimmed number if events of that time may be
    /// gone, so that [`Self::events_page`] reports the gap.
    ///
    /// Times rise with numbers ([`append`]), but not those that an older gantry wrote: the end of a pod, noticed hours
    /// later, had the time at which it happened. So the search is for the first number, and not for the first time. For
    /// the same reason the oldest kept event does not tell how young a trimmed one may be. The oldest one of a kind
    /// that is written when it happens ([`PUNCTUAL`]) does: events with smaller numbers were written before. Without
    /// such an event, any may be gone. After a restore even these have old times, if rows were made from directories;
    /// then the numbers tell when all before them was lost ([`trimmed_until`]).
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn seq_before(&self, since: Timestamp) -> Result<u64, StoreError> {
        let sql = || StoreError::sql("find the first event of that time");
        self.read("find the first event of that time", |tx| {
            let trimmed = self.trimmed_seq()?;
            if trimmed > 0 && trimmed_until(tx).map_err(sql())?.is_none_or(|until| since < until) {
                return Ok(trimmed - 1);
            }
            let first: Option<u64> = tx
                .prepare_cached(FIRST_SINCE)
                .and_then(|mut one| one.query_row([since.0], |row| row.get(0)))
                .map_err(sql())?;
            first.map_or_else(|| self.last_seq(), |first| Ok(first.saturating_sub(1)))
        })
    }

    /// The highest number given so far; 0 if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_seq(&self) -> Result<u64, StoreError> {
        self.state("SELECT next_seq - 1 FROM state")
    }

    /// The highest number that was trimmed away; 0 when none was. Events after a smaller number
    /// are incomplete.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn trimmed_seq(&self) -> Result<u64, StoreError> {
        self.state("SELECT trimmed FROM state")
    }

    fn state(&self, query: &str) -> Result<u64, StoreError> {
        let sql = || StoreError::sql("read the number of the last event");
        self.conn.prepare_cached(query).and_then(|mut one| one.query_row([], |row| row.get(0))).map_err(sql())
    }

    /// Deletes all events but the newest `keep` (usually [`EVENTS_KEPT`]); returns how many were deleted.
    ///
    /// Works in short transactions, so that no writer waits for long. Killed in between, it has deleted less; each
    /// deletion records what it has deleted.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn trim_events(&self, keep: u64) -> Result<usize, StoreError> {
        const DOING: &str = "trim the events";
        let newest_to_go: Option<u64> = self
            .conn
            .prepare_cached("SELECT seq FROM event ORDER BY seq DESC LIMIT 1 OFFSET ?1")
            .and_then(|mut one| one.query_row([keep.min(i64::MAX.unsigned_abs())], |row| row.get(0)).optional())
            .map_err(StoreError::sql(DOING))?;
        // More events may have come since: then the next trimming deletes the surplus.
        let Some(upto) = newest_to_go else { return Ok(0) };
        let mut deleted = 0;
        loop {
            let chunk = self.write(DOING, Sync::Soon, |tx| trim_chunk(tx, upto).map_err(StoreError::sql(DOING)))?;
            deleted += chunk;
            if chunk < TRIM_CHUNK {
                return Ok(deleted);
            }
        }
    }
}

/// Deletes the oldest events, at most [`TRIM_CHUNK`] and none above `upto`; returns how many.
fn trim_chunk(tx: &Transaction<'_>, upto: u64) -> rusqlite::Result<usize> {
    let last: Option<u64> = tx
        .prepare_cached("SELECT max(seq) FROM (SELECT seq FROM event WHERE seq <= ?1 ORDER BY seq LIMIT ?2)")?
        .query_row(params![upto, TRIM_CHUNK], |row| row.get(0))?;
    let Some(last) = last else { return Ok(0) };
    tx.execute("UPDATE state SET trimmed = ?1", [last])?;
    tx.execute("DELETE FROM event WHERE seq <= ?1", [last])
}

/// All trimmed events are older than this; `None` when it is unknown.
///
/// A restore counts as trimmed all numbers below the microseconds of its moment (see the `restore` module), and events
/// lost with the damaged database may have happened until then. Numbers that never began anew are so small that the
/// moment is in 1970.
fn trimmed_until(tx: &Transaction<'_>) -> rusqlite::Result<Option<Timestamp>> {
    let (restored, until): (i64, Option<i64>) = tx
        .prepare_cached(&format!(
            "SELECT (SELECT trimmed FROM state), max(at) FROM event
                WHERE seq <= (SELECT seq FROM event WHERE kind IN ({PUNCTUAL}) ORDER BY seq LIMIT 1)"
        ))?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(until.map(|at| Timestamp(at.max(restored.saturating_mul(1_000)).saturating_add(SKEW))))
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<EventRecord> {
    let mut columns = row::Columns::new(row);
    let (seq, boot) = (columns.get()?, columns.get()?);
    let kind = columns.named(EventKind::from_name)?;
    let at = Timestamp(columns.get()?);
    Ok(EventRecord {
        seq,
        boot,
        event: NewEvent { kind, at, id: columns.get()?, name: columns.get()?, data: columns.map()? },
    })
}

/// The rows of the apps with these names.
pub(crate) fn removed<'a>(rows: &'a [AppRow], names: &[AppName]) -> Vec<&'a AppRow> {
    rows.iter().filter(|app| names.contains(&app.name)).collect()
}

/// Pairs each change of an app with the app's row.
pub(crate) fn matched<'a>(
    rows: &'a [AppRow],
    changes: &[(AppName, AppState)],
) -> Result<Vec<(&'a AppRow, AppState)>, AppName> {
    let find = |name: &AppName| rows.iter().find(|app| app.name == *name).ok_or_else(|| name.clone());
    changes.iter().map(|(name, to)| find(name).map(|app| (app, *to))).collect()
}
