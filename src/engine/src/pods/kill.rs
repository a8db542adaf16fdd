//! `kill`: a signal to the main process of an app, or of every app.

use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_model::{AppName, ErrorKind, Kind, Phase, PhaseName, PodId};
use thiserror::Error;

use crate::error::need_root;
use crate::pods::control::{ControlError, unexpected};
use crate::pods::exec::{ExecError, select_app};
use crate::{Engine, PodError};

/// The time limit for the end of a supervisor that no longer accepts requests.
const ENDING_TIMEOUT: Duration = Duration::from_secs(5);

/// A signal could not be sent.
#[derive(Debug, Error)]
pub enum KillError {
    /// The number is not that of a signal.
    #[error("{0} is not a signal: expected 1 to 64")]
    Signal(u8),
    /// The pod does not run.
    #[error("pod {id} is {phase}: only a running pod's apps can be sent a signal")]
    NotRunning {
        /// The pod.
        id: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// The pod has no app of this name.
    #[error(transparent)]
    App(ExecError),
    /// The supervisor failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for KillError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Signal(_) => ErrorKind::Invalid,
            Self::NotRunning { .. } => ErrorKind::Refused,
            Self::App(error) => error.kind(),
            Self::Control(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

impl Engine {
    /// Sends a signal to the main process of one app, or of every app.
    ///
    /// # Errors
    /// [`KillError`].
    pub fn kill(&self, id: PodId, app: Option<&AppName>, signal: u8) -> Result<(), KillError> {
        need_root("send a signal to a pod")?;
        if !(1..=64).contains(&signal) {
            return Err(KillError::Signal(signal));
        }
        let row = self.reconcile_pod(id)?;
        if !matches!(row.phase, Phase::Running { .. }) {
            return Err(KillError::NotRunning { id, phase: row.phase.name() });
        }
        let app = app.map(|app| select_app(&row, Some(app))).transpose().map_err(KillError::App)?;
        let request = Request::Kill { signal, app: app.map(|app| app.to_string()) };
        match self.ask(id, &request) {
            Ok((Reply::Done, _)) => Ok(()),
            Ok((other, _)) => Err(unexpected(id, &other).into()),
            // A supervisor that no longer accepts requests is about to end.
            Err(error @ (ControlError::Connect { .. } | ControlError::Closed(_) | ControlError::Io { .. })) => {
                match self.wait(id, Some(ENDING_TIMEOUT)) {
                    Ok(Some(view)) => Err(KillError::NotRunning { id, phase: view.row.phase.name() }),
                    Err(error @ PodError::NotFound(_)) => Err(error.into()),
                    Ok(None) | Err(_) => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}
