//! Kills by the OOM killer, with an event for each report.

use std::collections::BTreeMap;

use gantry_model::{AppName, EventKind, NewEvent, OomLevel, OomVictim, PodId, Timestamp};

use super::AppRow;
use super::row::Columns;

/// The processes of an app that the OOM killer has killed, as recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OomRecord {
    /// Their number, over all starts of the app.
    pub kills: u64,
    /// The limit that was reached when the last one was killed.
    pub level: Option<OomLevel>,
    /// The last one, if the kernel log named it.
    pub victim: Option<OomVictim>,
}

/// The OOM killer killed processes of an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OomReport {
    /// The app.
    pub app: AppName,
    /// When.
    pub at: Timestamp,
    /// The number of the start of the app.
    pub attempt: u32,
    /// The number of processes that were killed.
    pub kills: u64,
    /// The number of processes that were killed over all starts of the app, these included.
    pub total: u64,
    /// The limit that was reached.
    pub level: OomLevel,
    /// Whether the main process is among them.
    pub main: bool,
    /// The last process that was killed, if the kernel log named it.
    pub victim: Option<OomVictim>,
}

impl OomReport {
    pub(super) fn to_event(&self, pod: PodId, app: &AppRow) -> NewEvent {
        let mut data = BTreeMap::from([
            ("attempt".to_owned(), self.attempt.to_string()),
            ("kills".to_owned(), self.kills.to_string()),
            ("level".to_owned(), self.level.as_str().to_owned()),
            ("process".to_owned(), if self.main { "main" } else { "child" }.to_owned()),
        ]);
        data.extend(app.image.as_ref().map(|image| ("image_id".to_owned(), image.to_string())));
        if let Some(OomVictim { name, pid }) = &self.victim {
            data.extend([("victim".to_owned(), name.clone()), ("victim_pid".to_owned(), pid.to_string())]);
        }
        NewEvent { kind: EventKind::AppOom, at: self.at, id: pod.to_string(), name: self.app.to_string(), data }
    }
}

/// Reads the columns `oom_kills`, `oom_level`, `oom_victim` and `oom_victim_pid`.
pub(super) fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<OomRecord> {
    let kills = columns.get()?;
    let level = columns.text_option()?.and_then(OomLevel::from_name);
    let (name, pid) = (columns.get::<Option<String>>()?, columns.get::<Option<u32>>()?);
    let victim = name.zip(pid).map(|(name, pid)| OomVictim { name, pid });
    Ok(OomRecord { kills, level, victim })
}
