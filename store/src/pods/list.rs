//! Reading one pod, some, or all.

use std::collections::BTreeSet;

use gantry_host::stamp::FileStamp;
use gantry_model::query::PodQuery;
use gantry_model::{PhaseName, PodId};
use rusqlite::{Connection, OptionalExtension as _, Row, params_from_iter};

use super::condition::{Condition, PodWhere, texts};
use super::row::Columns;
use super::{PodRow, row};
use crate::{Store, StoreError};

impl Store {
    /// A pod by its whole id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pod(&self, id: PodId) -> Result<Option<PodRow>, StoreError> {
        self.read("read the pod", |tx| load(tx, id).map_err(StoreError::sql("read the pod")))
    }

    /// The requested pods, by the time of their creation, then by id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods(&self, query: &PodQuery) -> Result<Vec<Box<PodRow>>, StoreError> {
        self.pods_showing(query, &mut |_, _| {})
    }

    /// The same; passes each row to `show` as soon as it was read, in the order of ids and still without its apps,
    /// together with the stamp that [`Self::record_journals`] recorded for it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods_showing(
        &self,
        query: &PodQuery,
        show: &mut dyn FnMut(&PodRow, Option<FileStamp>),
    ) -> Result<Vec<Box<PodRow>>, StoreError> {
        const DOING: &str = "list the pods";
        let condition = Condition::of_query(query);
        let mut pods = self.read(DOING, |tx| list(tx, &condition, show).map_err(StoreError::sql(DOING)))?;
        pods.sort_unstable_by_key(|pod| (pod.created, pod.id));
        Ok(pods)
    }

    /// Passes each of the requested pods without its apps to `take`, in the order of ids.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods_without_apps(&self, query: &PodQuery, take: &mut dyn FnMut(Box<PodRow>)) -> Result<(), StoreError> {
        const DOING: &str = "list the pods";
        let condition = Condition::of_query(query);
        self.read(DOING, |tx| take_pods(tx, &condition, &mut |pod, _| take(pod)).map_err(StoreError::sql(DOING)))
    }

    /// The number of pods in each phase that has any; pods being deleted count as [`PhaseName::Garbage`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn count_pods(&self) -> Result<Vec<(PhaseName, u64)>, StoreError> {
        const DOING: &str = "count the pods";
        self.read(DOING, |tx| {
            let mut statement =
                tx.prepare_cached("SELECT phase, count(*) FROM pod GROUP BY phase").map_err(StoreError::sql(DOING))?;
            let count = |row: &Row<'_>| {
                let mut columns = Columns::new(row);
                Ok((columns.named(PhaseName::from_word)?, columns.get()?))
            };
            let rows = statement.query_map([], count).map_err(StoreError::sql(DOING))?;
            rows.collect::<rusqlite::Result<_>>().map_err(StoreError::sql(DOING))
        })
    }

    /// Reads all fields of the pods' rows, including those that lists only copy.
    ///
    /// # Errors
    /// [`StoreError`] when a value is damaged.
    pub(crate) fn read_pods(&self) -> Result<(), StoreError> {
        self.pods(&PodQuery::default())?.iter().try_for_each(|pod| pod.networks.read().map(drop))
    }

    /// The pods for which any of the filters holds (all, where there is none), by id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods_where(&self, filters: &[PodWhere<'_>]) -> Result<Vec<Box<PodRow>>, StoreError> {
        const DOING: &str = "list the pods";
        self.read(DOING, |tx| {
            any(tx, filters).and_then(|of| list(tx, &of, &mut |_, _| {})).map_err(StoreError::sql(DOING))
        })
    }
}

/// One condition for all filters; where there are several, on the ids for which any of them holds.
fn any(conn: &Connection, filters: &[PodWhere<'_>]) -> rusqlite::Result<Condition> {
    let several = match filters {
        [] => return Ok(Condition::default()),
        [only] => return Ok(Condition::of_filter(only)),
        several => several,
    };
    let mut ids: BTreeSet<PodId> = BTreeSet::new();
    for one in several {
        let condition = Condition::of_filter(one);
        if condition.is_all() {
            return Ok(condition);
        }
        let mut statement = conn.prepare_cached(&format!("SELECT pod.id FROM pod {}", condition.clause()))?;
        for id in statement.query_map(params_from_iter(&condition.values), |found| row::Columns::new(found).parsed())? {
            ids.insert(id?);
        }
    }
    Ok(Condition::of_ids(&ids))
}

pub(super) fn load(conn: &Connection, id: PodId) -> rusqlite::Result<Option<PodRow>> {
    let id = id.to_string();
    let mut statement = conn.prepare_cached(&format!("SELECT {} FROM pod WHERE id = ?1", row::POD))?;
    let Some(mut pod) = statement.query_row([&id], row::pod).optional()? else { return Ok(None) };
    let query = format!("SELECT {} FROM app WHERE pod = ?1 ORDER BY position", row::APP);
    pod.apps = conn.prepare_cached(&query)?.query_map([&id], row::app)?.collect::<rusqlite::Result<_>>()?;
    Ok(Some(pod))
}

/// The statement for the pods themselves.
pub(crate) fn text(condition: &Condition) -> String {
    format!("SELECT {} FROM pod {} ORDER BY pod.id", row::POD, condition.clause())
}

const OF_THESE: &str = "WHERE app.pod IN (SELECT value FROM json_each(?))";

fn take_pods(
    conn: &Connection,
    condition: &Condition,
    take: &mut dyn FnMut(Box<PodRow>, Option<FileStamp>),
) -> rusqlite::Result<()> {
    let mut statement = conn.prepare_cached(&text(condition))?;
    let mut rows = statement.query(params_from_iter(&condition.values))?;
    while let Some(found) = rows.next()? {
        // Boxed: a row is large, and a list moves it many times.
        let pod = Box::new(row::pod(found)?);
        let stamp = row::journal_stamp(found, &pod)?;
        take(pod, stamp);
    }
    Ok(())
}

/// Two statements, whatever the number of pods: the pods, and the apps of those pods. Both come in the order of the
/// primary key, which costs SQLite neither a sort nor a look-up per row, and are merged.
fn list(
    conn: &Connection,
    condition: &Condition,
    show: &mut dyn FnMut(&PodRow, Option<FileStamp>),
) -> rusqlite::Result<Vec<Box<PodRow>>> {
    let mut pods = Vec::new();
    take_pods(conn, condition, &mut |pod, stamp| {
        show(&pod, stamp);
        pods.push(pod);
    })?;
    let (of_these, values) =
        if condition.is_all() { ("", vec![]) } else { (OF_THESE, vec![texts(pods.iter().map(|pod| &pod.id))]) };
    let mut statement =
        conn.prepare_cached(&format!("SELECT {} FROM app {of_these} ORDER BY app.pod, app.position", row::APP))?;
    let mut rows = statement.query(params_from_iter(values))?;
    // The bytes of ids sort as their texts do, so each list is walked once.
    let mut place = 0;
    while let Some(found) = rows.next()? {
        let id: PodId = row::Columns::new(found).parsed()?;
        while pods.get(place).is_some_and(|pod| pod.id < id) {
            place += 1;
        }
        if let Some(pod) = pods.get_mut(place).filter(|pod| pod.id == id) {
            // Most pods have one app; a push into an empty vector would reserve four, 1.3 KB.
            if pod.apps.is_empty() {
                pod.apps.reserve_exact(1);
            }
            pod.apps.push(row::app(found)?);
        }
    }
    Ok(pods)
}
