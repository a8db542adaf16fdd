//! The history: which events a step writes (pure), and writing, reading and trimming them.
//!
//! Numbers come from `state.next_seq`, in the transaction of the step itself. So they rise by one in the order in
//! which steps were committed, whoever writes, and a step that was rolled back leaves no gap.

use std::collections::BTreeMap;

use gantry_model::{AppName, AppState, BootId, Edge, Event, EventKind, HowEnded, NewEvent, PodId, Timestamp};
use rusqlite::{Transaction, params};

use crate::db::Sync;
use crate::pods::row;
use crate::{AppRow, Store, StoreError};

/// How many events [`Store::trim_events`] is usually asked to keep.
pub const EVENTS_KEPT: u64 = 100_000;

/// The events of one step of a pod: of its apps first when it ends, after it otherwise. An app's start and its end are
/// told once per attempt; who looks late and finds both at once tells both.
pub(crate) fn of_step(pod: PodId, edge: Option<&Edge>, apps: &[(&AppRow, AppState)], now: Timestamp) -> Vec<NewEvent> {
    let mut events: Vec<NewEvent> = apps.iter().flat_map(|(app, to)| of_app(pod, app, to)).collect();
    let of_pod = edge.and_then(|edge| of_edge(pod, edge, now));
    match edge {
        Some(Edge::Ended { .. }) => events.extend(of_pod),
        _ => events.splice(0..0, of_pod).for_each(drop),
    }
    events
}

fn of_edge(pod: PodId, edge: &Edge, now: Timestamp) -> Option<NewEvent> {
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
        Edge::Prepare | Edge::Marked(_) | Edge::Discarded(_) | Edge::Deleting(_) => return None,
    };
    Some(NewEvent { kind, at, id: pod.to_string(), name: pod.to_string(), data })
}

fn of_app(pod: PodId, app: &AppRow, to: &AppState) -> Vec<NewEvent> {
    let told = |kind, at, attempt: u32, more: Vec<(&str, String)>| {
        let mut data: BTreeMap<_, _> = more.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        data.insert("image_id".to_owned(), app.image.to_string());
        data.insert("attempt".to_owned(), attempt.to_string());
        NewEvent { kind, at, id: pod.to_string(), name: app.name.to_string(), data }
    };
    let (start_known, end_known) = match app.state {
        AppState::Waiting => (None, None),
        AppState::Started { attempt, .. } => (Some(attempt), None),
        AppState::Exited { attempt, .. } => (Some(attempt), Some(attempt)),
    };
    let mut events = Vec::new();
    match *to {
        AppState::Waiting => {}
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
                    HowEnded::Exited(_) => {}
                    HowEnded::Signaled(signal) => more.push(("signal", signal.to_string())),
                    HowEnded::Lost => more.push(("lost", true.to_string())),
                }
                events.push(told(EventKind::AppExited, end.at, attempt, more));
            }
        }
    }
    events
}

/// Writes events with the next numbers.
pub(crate) fn append(tx: &Transaction<'_>, boot: &BootId, events: &[NewEvent]) -> rusqlite::Result<()> {
    if events.is_empty() {
        return Ok(());
    }
    let mut seq: u64 = tx.prepare_cached("SELECT next_seq FROM state")?.query_row([], |row| row.get(0))?;
    let mut insert = tx.prepare_cached(
        "INSERT INTO event (seq, boot, kind, at, subject, name, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?;
    for event in events {
        let data = row::map_text(&event.data)?;
        insert.execute(params![seq, boot.0, event.kind.as_str(), event.at.0, event.id, event.name, data])?;
        seq += 1;
    }
    tx.prepare_cached("UPDATE state SET next_seq = ?1")?.execute([seq]).map(drop)
}

impl Store {
    /// At most `limit` events with numbers above `seq`, oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn events_after(&self, seq: u64, limit: usize) -> Result<Vec<Event>, StoreError> {
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

    /// The highest number that was given; 0 when none was.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn last_seq(&self) -> Result<u64, StoreError> {
        self.state("SELECT next_seq - 1 FROM state")
    }

    /// The highest number that was trimmed away; 0 when none was. Who asks for events after a smaller number
    /// misses some.
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

    /// Deletes all events but the newest `keep` (usually [`EVENTS_KEPT`]); tells how many were deleted.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn trim_events(&self, keep: u64) -> Result<usize, StoreError> {
        let sql = || StoreError::sql("trim the events");
        let keep = keep.min(i64::MAX.unsigned_abs());
        let newest_to_go = "SELECT seq FROM event ORDER BY seq DESC LIMIT 1 OFFSET ?1";
        let find = |conn: &rusqlite::Connection| {
            use rusqlite::OptionalExtension as _;
            conn.prepare_cached(newest_to_go)?.query_row([keep], |row| row.get::<_, u64>(0)).optional()
        };
        if find(&self.conn).map_err(sql())?.is_none() {
            return Ok(0);
        }
        self.write("trim the events", Sync::Soon, |tx| {
            let Some(upto) = find(tx).map_err(sql())? else { return Ok(0) };
            tx.execute("UPDATE state SET trimmed = ?1", [upto]).map_err(sql())?;
            tx.execute("DELETE FROM event WHERE seq <= ?1", [upto]).map_err(sql())
        })
    }
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Event> {
    let mut columns = row::Columns::new(row);
    let (seq, boot) = (columns.get()?, columns.get()?);
    let kind = columns.named(EventKind::from_name)?;
    let at = Timestamp(columns.get()?);
    Ok(Event {
        seq,
        boot,
        event: NewEvent { kind, at, id: columns.get()?, name: columns.get()?, data: columns.map()? },
    })
}

/// What the row of an app becomes by a list of changes: each change with the row it is for.
pub(crate) fn matched<'a>(
    rows: &'a [AppRow],
    changes: &[(AppName, AppState)],
) -> Result<Vec<(&'a AppRow, AppState)>, AppName> {
    let find = |name: &AppName| rows.iter().find(|app| app.name == *name).ok_or_else(|| name.clone());
    changes.iter().map(|(name, to)| find(name).map(|app| (app, *to))).collect()
}
