//! Checks of the database: damage, backups, earlier restores.

use std::path::Path;

use gantry_model::{ErrorKind, Kind};
use gantry_store::{Finding, Layout, PodState, Record, StoreError, Verdict};

use crate::doctor::{fail, warn};
use crate::pods::gc::LOST_PODS_RETENTION;
use crate::pods::transition::ready_record;
use crate::recovery::startup;
use crate::{Engine, OpenError, Options, PodError};

const START: &str = "start gantryd, which restores the newest good backup";
const NO_BACKUP: &str = "there is no good backup: put one into the folder 'backups', or move gantry.db away, and start \
    gantryd again: without a database it makes a new one from the directories of the pods";

/// `doctor` failed.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A check cannot be made.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for ExamineError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Open(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// `doctor`, also of a database that is damaged or served read-only: reports that, and the backups.
///
/// # Errors
/// [`ExamineError`] when a check cannot be made. Problems are findings, not errors.
pub fn examine(options: Options, deep: bool) -> Result<Vec<Finding>, ExamineError> {
    let layout = Layout::new(&options.dir);
    let examined = Engine::open_to_read(options).map_err(ExamineError::from).and_then(|engine| {
        let findings = engine.doctor(deep)?;
        Ok(findings)
    });
    match examined {
        Err(error) if error.kind() == ErrorKind::Damaged => {
            let mut findings = Vec::new();
            let good = check_backups(&layout, true, &mut findings).map_err(PodError::from)?;
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            let hint = if good { START } else { NO_BACKUP };
            fail(&mut findings, format!("the database is damaged: {error}{cause}"), hint);
            check_records(&layout, &mut findings).map_err(PodError::from)?;
            Ok(findings)
        }
        other => other,
    }
}

impl Engine {
    /// Findings about the database itself. Its backups are read if `deep`, or if the database is served read-only.
    pub(crate) fn check_store(&self, deep: bool, findings: &mut Vec<Finding>) -> Result<(), PodError> {
        let layout = self.store.layout();
        match std::fs::read_to_string(layout.read_only()) {
            Ok(why) => {
                let good = check_backups(layout, true, findings)?;
                let why = match why.trim() {
                    // gantryd gives a reason.
                    "" => format!("there is an empty file {}", layout.read_only().display()),
                    why => gantry_model::id::shown(why),
                };
                let what = format!("nothing can be changed: {why}");
                fail(findings, what, if good { START } else { NO_BACKUP });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if deep {
                    check_backups(layout, false, findings)?;
                }
            }
            Err(error) => return Err(PodError::io("read", layout.read_only())(error)),
        }
        check_records(layout, findings)?;
        self.check_unknown_pods(findings)
    }

    /// Running pods without a row: their images were lost with the database.
    fn check_unknown_pods(&self, findings: &mut Vec<Finding>) -> Result<(), PodError> {
        for id in self.store.pod_dirs()? {
            if self.store.pod(id)?.is_some() || !matches!(self.store.try_lock_pod(id)?, PodState::Held) {
                continue;
            }
            // A pod in preparation has no journal yet.
            if self.journal(id).is_ok_and(|journal| ready_record(&journal).is_some()) && self.store.pod(id)?.is_none() {
                let hint =
                    "gantryd takes it over when it starts and its image is here; SIGTERM to its supervisor ends it";
                fail(findings, format!("pod {id} runs and is not on record"), hint);
            }
        }
        Ok(())
    }
}

/// Reads all backups; returns whether one is good. Good ones are reported only if `wanted`.
fn check_backups(layout: &Layout, wanted: bool, findings: &mut Vec<Finding>) -> Result<bool, StoreError> {
    let mut good = false;
    for backup in gantry_store::backups(layout)? {
        let (path, at) = (backup.path.display(), backup.at.rfc3339());
        match backup.examine() {
            Verdict::Good { .. } => {
                if wanted {
                    warn(findings, format!("a good backup, made {}: {path}", at.as_str()), "");
                }
                good = true;
            }
            // Rotated away in the meantime.
            Verdict::Bad { .. } if !backup.path.exists() => {}
            Verdict::Bad { why } => {
                let why = gantry_model::id::shown(&why);
                warn(findings, format!("backup {path}, made {}, cannot be restored: {why}", at.as_str()), "delete it");
            }
        }
    }
    Ok(good)
}

fn check_records(layout: &Layout, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    if let Some(record) = Record::load(layout)? {
        let hint = format!(
            "look whether a pod or an image is missing ('gantry list', 'gantry image list'); then delete {}",
            layout.restored().display()
        );
        warn(findings, startup::restored(&record), &hint);
    }
    for path in gantry_store::lost_pods(layout)? {
        let hint = format!(
            "its logs are in 'logs', its files in 'apps' and 'volumes'; 'gantry gc' deletes it {} days after it was moved \
             there",
            LOST_PODS_RETENTION.as_secs() / 86_400
        );
        warn(findings, format!("the pod in {} lost its place in the database", named(&path)), &hint);
    }
    Ok(())
}

fn named(path: &Path) -> String {
    gantry_model::id::shown(&path.to_string_lossy())
}
