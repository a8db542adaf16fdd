//! Stopping an app without a thread that waits: the caller waits for a descriptor, perhaps of many apps at once.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_model::quantity::milliseconds;
use gantry_model::{AppName, AppState, ErrorKind, Kind as _, PodId};

use crate::error::need_root;
use crate::pods::control::{Connection, ControlError, unexpected};
use crate::{Engine, EngineError, PodError};

/// The time that the end of the pod may take that ends with its last app.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// An app that was asked to stop. Dropping it does not take back the request.
#[derive(Debug)]
pub struct AppStop {
    id: PodId,
    connection: Connection,
}

impl AsFd for AppStop {
    /// Readable when the app has exited, or the request has failed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Engine {
    /// Asks an app to stop: its stop signal, and SIGKILL after the grace period. A further request can only shorten the
    /// grace. `None`: it does not run, nor will it be restarted.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn begin_app_stop(&self, id: PodId, app: &AppName, grace: Duration) -> Result<Option<AppStop>, EngineError> {
        need_root("stop an app").map_err(EngineError::from_cause)?;
        match self.app_of_running_pod(id, app)? {
            AppState::Waiting | AppState::Creating | AppState::Created => return Ok(None),
            AppState::Exited { end, .. } if end.restart_at.is_none() => return Ok(None),
            AppState::Started { .. } | AppState::Exited { .. } => {}
        }
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, Some(app));
        let connection = self.connect(id).map_err(EngineError::from_cause)?;
        let request = Request::StopApp { app: app.to_string(), grace_ms: milliseconds(grace) };
        connection.send(&request, &[]).map_err(EngineError::from_cause)?;
        Ok(Some(AppStop { id, connection }))
    }

    /// Reads the result of a stop, once it is readable, and records the exit.
    ///
    /// # Errors
    /// [`EngineError`]; of the kind `Busy` while the app is being started or removed; `Unavailable` when the stop has
    /// no result yet.
    pub fn finish_app_stop(&self, stop: AppStop) -> Result<(), EngineError> {
        let AppStop { id, connection } = stop;
        match connection.receive(Duration::ZERO) {
            Ok((Reply::Done, _)) => match self.reconcile_pod(id) {
                Ok(_) | Err(PodError::NotFound(_)) => Ok(()),
                Err(error) => Err(EngineError::from_cause(error)),
            },
            Ok((other, _)) => Err(EngineError::from_cause(unexpected(id, &other))),
            // The app may have been the last of its pod, whose supervisor then ends.
            Err(error @ ControlError::Closed(_)) => match self.wait(id, Some(END_TIMEOUT)) {
                Ok(Some(_)) | Err(PodError::NotFound(_)) => Ok(()),
                Ok(None) | Err(_) => Err(EngineError::from_cause(error)),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(EngineError::from_cause(error)),
        }
    }
}
