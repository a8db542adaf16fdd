//! Schedules: what gantryd keeps running or starts at certain times, and the pods of each.
//!
//! A change of a schedule is durable before it is acknowledged. The row comes first, its pods follow: the engine
//! compares both and starts, stops or removes pods. A pod is inserted in the transaction that begins its run, which
//! compares the revision and the number of runs. So of several processes that see the same run due, one starts it.
//! The event of a change is written in the transaction of the change.

use std::collections::BTreeMap;

use gantry_model::schedule::Timer;
use gantry_model::{EventKind, NewEvent, PhaseName, PodId, ScheduleName, Timestamp};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use crate::db::Sync;
use crate::pods::FAILURE;
use crate::pods::row::Columns;
use crate::{Store, StoreError, events};

/// A schedule to be enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSchedule {
    /// Its name.
    pub name: ScheduleName,
    /// The manifest of its pods, as JSON.
    pub manifest: String,
    /// When its pods are started; `None`: one pod runs always.
    pub timer: Option<Timer>,
    /// A comment of the user.
    pub comment: String,
}

/// A schedule as the store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRow {
    /// Its name.
    pub name: ScheduleName,
    /// The number of changes of what is run.
    pub revision: u64,
    /// Whether its pods are started.
    pub enabled: bool,
    /// When it was enabled last.
    pub enabled_at: Timestamp,
    /// The manifest of its pods, as JSON.
    pub manifest: String,
    /// When its pods are started; `None`: one pod runs always.
    pub timer: Option<Timer>,
    /// A comment of the user.
    pub comment: String,
    /// The number of pods created so far.
    pub runs: u64,
    /// When the last one was created.
    pub last_run: Option<Timestamp>,
    /// All runs that were due until then were started or skipped.
    pub handled_at: Timestamp,
    /// The boot whose run was started or skipped.
    pub handled_boot: Option<String>,
    /// Starts that failed in a row.
    pub failures: u32,
    /// The reason of the last one.
    pub failure: Option<String>,
    /// The time before which no other start is tried.
    pub retry_at: Option<Timestamp>,
}

/// A run of a schedule, of which a pod is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleRun {
    /// The schedule.
    pub name: ScheduleName,
    /// Its revision.
    pub revision: u64,
    /// Its number of runs before this one.
    pub runs: u64,
    /// The time of the run.
    pub at: Timestamp,
    /// The boot whose run it is.
    pub boot: Option<String>,
    /// The pod that began it, and whose start was interrupted: another pod takes its place.
    pub interrupted: Option<PodId>,
}

/// The schedule of a pod to be inserted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodSchedule {
    /// The pod begins this run.
    Run(ScheduleRun),
    /// The pod has begun a run that the database has lost.
    Lost {
        /// The schedule.
        name: ScheduleName,
        /// Its revision.
        revision: u64,
    },
}

/// A pod of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulePod {
    /// The pod.
    pub id: PodId,
    /// The name of the schedule, which may have been destroyed.
    pub schedule: ScheduleName,
    /// The revision of the schedule for which it was created.
    pub revision: u64,
    /// Its phase; garbage that is being deleted is [`PhaseName::Garbage`].
    pub phase: PhaseName,
    /// When it was created.
    pub created: Timestamp,
    /// When gantryd starts it again.
    pub restart_at: Option<Timestamp>,
    /// Whether its start has failed.
    pub has_failed: bool,
}

const COLUMNS: &str = "name, revision, enabled, enabled_at, manifest, timer, comment, runs, last_run, handled_at, \
    handled_boot, failures, failure, retry_at";

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<ScheduleRow> {
    let mut columns = Columns::new(row);
    Ok(ScheduleRow {
        name: columns.parsed()?,
        revision: columns.get()?,
        enabled: columns.get()?,
        enabled_at: Timestamp(columns.get()?),
        manifest: columns.get()?,
        timer: match columns.get::<Option<String>>()? {
            None => None,
            Some(text) => serde_json::from_str(&text).map(Some).map_err(|error| columns.invalid(error))?,
        },
        comment: columns.get()?,
        runs: columns.get()?,
        last_run: columns.get::<Option<i64>>()?.map(Timestamp),
        handled_at: Timestamp(columns.get()?),
        handled_boot: columns.get()?,
        failures: columns.get()?,
        failure: columns.get()?,
        retry_at: columns.get::<Option<i64>>()?.map(Timestamp),
    })
}

fn find(conn: &Connection, name: &ScheduleName) -> rusqlite::Result<Option<ScheduleRow>> {
    let mut one = conn.prepare_cached(&format!("SELECT {COLUMNS} FROM schedule WHERE name = ?1"))?;
    one.query_row([name.as_str()], row_of).optional()
}

/// An event of a schedule.
fn event(kind: EventKind, name: &ScheduleName, revision: u64, more: Vec<(&str, String)>) -> NewEvent {
    let mut data: BTreeMap<_, _> = more.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    data.insert("revision".to_owned(), revision.to_string());
    NewEvent { kind, at: crate::now(), id: name.to_string(), name: name.to_string(), data }
}

/// Begins a run of a schedule with this pod, or an interrupted one again; false if the schedule has been changed, or
/// the run was begun.
pub(crate) fn begin_run(tx: &Transaction<'_>, pod: &str, run: &ScheduleRun) -> rusqlite::Result<bool> {
    let begun = tx
        .prepare_cached(
            "UPDATE schedule SET runs = runs + ?6, last_run = ?4, handled_at = ?4,
                handled_boot = coalesce(?5, handled_boot)
                WHERE name = ?1 AND revision = ?2 AND runs = ?3 AND enabled = 1",
        )?
        .execute(params![run.name.as_str(), run.revision, run.runs, run.at.0, run.boot, run.interrupted.is_none()])?;
    if begun == 0 || !give_up_interrupted(tx, run)? {
        return Ok(false);
    }
    link(tx, pod, &run.name, run.revision)?;
    Ok(true)
}

/// Makes the interrupted pod of a run one of a former revision, which is removed; false if another process was faster.
fn give_up_interrupted(tx: &Transaction<'_>, run: &ScheduleRun) -> rusqlite::Result<bool> {
    let Some(pod) = run.interrupted else { return Ok(true) };
    let changed = tx
        .prepare_cached(
            "UPDATE schedule_pod SET revision = 0 WHERE pod = ?1 AND schedule = ?2 AND revision = ?3
                AND EXISTS (SELECT 1 FROM pod WHERE id = ?1 AND phase IN ('aborted-prepare', 'prepared'))",
        )?
        .execute(params![pod.to_string(), run.name.as_str(), run.revision])?;
    Ok(changed > 0)
}

/// Records a run that was lost with the database, with the pod that was created for it. If the schedule has been
/// changed, the pod is one of a former revision.
pub(crate) fn recover_run(
    tx: &Transaction<'_>,
    pod: &str,
    created: Timestamp,
    name: &ScheduleName,
    revision: u64,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE schedule SET runs = runs + 1, last_run = max(coalesce(last_run, ?3), ?3),
            handled_at = max(handled_at, ?3) WHERE name = ?1 AND revision = ?2",
    )?
    .execute(params![name.as_str(), revision, created.0])?;
    link(tx, pod, name, revision)
}

fn link(tx: &Transaction<'_>, pod: &str, name: &ScheduleName, revision: u64) -> rusqlite::Result<()> {
    tx.prepare_cached("INSERT INTO schedule_pod (pod, schedule, revision) VALUES (?1, ?2, ?3)")?
        .execute(params![pod, name.as_str(), revision])
        .map(drop)
}

impl Store {
    /// Enables a schedule durably; false if it was enabled with the same content already, which changes nothing.
    /// Otherwise its revision is raised.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn enable_schedule(&self, new: &NewSchedule, now: Timestamp) -> Result<bool, StoreError> {
        const DOING: &str = "enable the schedule";
        let json = |timer: &Timer| {
            serde_json::to_string(timer).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
        };
        self.write(DOING, Sync::Now, |tx| {
            let enable = || -> rusqlite::Result<bool> {
                let before = find(tx, &new.name)?;
                let is_same = |row: &ScheduleRow| {
                    row.enabled
                        && (&row.manifest, &row.timer, &row.comment) == (&new.manifest, &new.timer, &new.comment)
                };
                if before.as_ref().is_some_and(is_same) {
                    return Ok(false);
                }
                let timer = new.timer.as_ref().map(json).transpose()?;
                // A pod of a destroyed schedule of this name must not pass for one of the new schedule.
                tx.prepare_cached(
                    "INSERT INTO schedule (name, revision, enabled, enabled_at, manifest, timer, comment, handled_at)
                        SELECT ?1, 1 + coalesce(max(revision), 0), 1, ?2, ?3, ?4, ?5, ?2
                            FROM schedule_pod WHERE schedule = ?1
                        ON CONFLICT (name) DO UPDATE SET revision = max(schedule.revision + 1, excluded.revision),
                            enabled = 1, enabled_at = ?2, manifest = ?3, timer = ?4, comment = ?5, handled_at = ?2,
                            handled_boot = NULL, failures = 0, failure = NULL, retry_at = NULL",
                )?
                .execute(params![new.name.as_str(), now.0, new.manifest, timer, new.comment])?;
                let revision = find(tx, &new.name)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?.revision;
                events::append(self, tx, &[event(EventKind::ScheduleEnabled, &new.name, revision, vec![])])?;
                Ok(true)
            };
            enable().map_err(StoreError::sql(DOING))
        })
    }

    /// Disables a schedule durably; false if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn disable_schedule(&self, name: &ScheduleName) -> Result<bool, StoreError> {
        const SQL: &str =
            "UPDATE schedule SET enabled = 0, failures = 0, failure = NULL, retry_at = NULL WHERE name = ?1";
        self.change_durably("disable the schedule", SQL, name, |before| {
            before.enabled.then_some(EventKind::ScheduleDisabled)
        })
    }

    /// Deletes the row of a schedule durably; false if there is none. Its pods stay.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn delete_schedule(&self, name: &ScheduleName) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM schedule WHERE name = ?1";
        self.change_durably("destroy the schedule", SQL, name, |_| Some(EventKind::ScheduleDestroyed))
    }

    /// Changes the row of a schedule durably, and writes the event of the change; false if there is no such row.
    fn change_durably(
        &self,
        doing: &'static str,
        sql: &str,
        name: &ScheduleName,
        kind: impl Fn(&ScheduleRow) -> Option<EventKind>,
    ) -> Result<bool, StoreError> {
        self.write(doing, Sync::Now, |tx| {
            let change = || -> rusqlite::Result<bool> {
                let Some(before) = find(tx, name)? else { return Ok(false) };
                tx.prepare_cached(sql)?.execute([name.as_str()])?;
                let event = kind(&before).map(|kind| event(kind, name, before.revision, vec![]));
                events::append(self, tx, event.as_slice())?;
                Ok(true)
            };
            change().map_err(StoreError::sql(doing))
        })
    }

    /// All schedules, by name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn schedules(&self) -> Result<Vec<ScheduleRow>, StoreError> {
        const DOING: &str = "read the schedules";
        self.read(DOING, |tx| {
            tx.prepare_cached(&format!("SELECT {COLUMNS} FROM schedule ORDER BY name"))
                .and_then(|mut all| all.query_map([], row_of)?.collect())
                .map_err(StoreError::sql(DOING))
        })
    }

    /// The schedule with this name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn schedule(&self, name: &ScheduleName) -> Result<Option<ScheduleRow>, StoreError> {
        const DOING: &str = "read the schedule";
        self.read(DOING, |tx| find(tx, name).map_err(StoreError::sql(DOING)))
    }

    /// The pods of a schedule, or of all schedules; the oldest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn schedule_pods(&self, name: Option<&ScheduleName>) -> Result<Vec<SchedulePod>, StoreError> {
        const DOING: &str = "read the pods of the schedules";
        self.read(DOING, |tx| {
            tx.prepare_cached(
                "SELECT pod.id, schedule, revision, phase, created, restart_at,
                    EXISTS (SELECT 1 FROM json_each(user_annotations) WHERE key = ?2)
                    FROM schedule_pod JOIN pod ON pod.id = schedule_pod.pod
                    WHERE ?1 IS NULL OR schedule = ?1 ORDER BY created, pod.id",
            )
            .and_then(|mut all| {
                let read = |row: &rusqlite::Row<'_>| {
                    let mut columns = Columns::new(row);
                    Ok(SchedulePod {
                        id: columns.parsed()?,
                        schedule: columns.parsed()?,
                        revision: columns.get()?,
                        phase: columns.named(PhaseName::from_word)?,
                        created: Timestamp(columns.get()?),
                        restart_at: columns.get::<Option<i64>>()?.map(Timestamp),
                        has_failed: columns.get()?,
                    })
                };
                all.query_map(params![name.map(ScheduleName::as_str), FAILURE], read)?.collect()
            })
            .map_err(StoreError::sql(DOING))
        })
    }

    /// Records that a run of this revision is skipped, because the pod of an earlier one has not ended: all that was
    /// due until `run.at` is handled.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn skip_schedule_run(&self, run: &ScheduleRun) -> Result<(), StoreError> {
        const DOING: &str = "skip a run of the schedule";
        self.write(DOING, Sync::Soon, |tx| {
            let skip = || match mark_handled(tx, run)? {
                true => {
                    let event = event(EventKind::ScheduleRunSkipped, &run.name, run.revision, vec![]);
                    events::append(self, tx, &[event])
                }
                false => Ok(()),
            };
            skip().map_err(StoreError::sql(DOING))
        })
    }

    /// Records, after the clock was set back, that runs were handled until `run.at` only: all later runs become due.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn bring_schedule_forward(&self, run: &ScheduleRun) -> Result<(), StoreError> {
        const DOING: &str = "correct the time of the schedule";
        self.write(DOING, Sync::Soon, |tx| mark_handled(tx, run).map(drop).map_err(StoreError::sql(DOING)))
    }

    /// Records that a start of this revision failed, or with `None` that it succeeded. A run of a timer whose start has
    /// failed is handled: it is not tried again before its next time.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_schedule_start(
        &self,
        run: &ScheduleRun,
        failure: Option<&str>,
        retry_at: Option<Timestamp>,
    ) -> Result<(), StoreError> {
        const DOING: &str = "record the start of the schedule";
        self.write(DOING, Sync::Soon, |tx| {
            let record = || -> rusqlite::Result<()> {
                let recorded = tx
                    .prepare_cached(
                        "UPDATE schedule SET failures = iif(?3 IS NULL, 0, failures + 1), failure = ?3, retry_at = ?4
                            WHERE name = ?1 AND revision = ?2 AND enabled = 1",
                    )?
                    .execute(params![run.name.as_str(), run.revision, failure, retry_at.map(|at| at.0)])?;
                let Some(failure) = failure else { return Ok(()) };
                mark_handled(tx, run)?;
                give_up_interrupted(tx, run)?;
                if recorded == 0 {
                    return Ok(());
                }
                let mut more = vec![("reason", failure.to_owned())];
                more.extend(retry_at.map(|at| ("retry_at", at.rfc3339().to_string())));
                events::append(self, tx, &[event(EventKind::ScheduleStartFailed, &run.name, run.revision, more)])
            };
            record().map_err(StoreError::sql(DOING))
        })
    }
}

/// Records that all that was due until `run.at` was started or skipped; false if the schedule has been changed, or the
/// run was begun.
fn mark_handled(tx: &Transaction<'_>, run: &ScheduleRun) -> rusqlite::Result<bool> {
    let marked = tx
        .prepare_cached(
            "UPDATE schedule SET handled_at = ?4, handled_boot = coalesce(?5, handled_boot)
                WHERE name = ?1 AND revision = ?2 AND runs = ?3",
        )?
        .execute(params![run.name.as_str(), run.revision, run.runs, run.at.0, run.boot])?;
    Ok(marked > 0)
}
