//! The changes of pods that Restart and the calls about services make, on a thread of the bridge.

use std::time::Duration;

use gantry_engine::{Engine, Stopped};
use gantry_model::{AppName, PodId};
use tonic::Status;
use tracing::warn;

use crate::bridge::Weight;
use crate::kubernetes::{self, StopRight};
use crate::status;
use crate::supervisors::Supervisors;

/// The time between the stop signal and SIGKILL, as Talos has it.
const GRACE: Duration = Duration::from_secs(10);

/// A change of a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PodChange {
    /// Starts a pod that has exited, or that was prepared.
    Start(PodId),
    /// Stops it, with the grace period of its apps.
    Stop(PodId),
    /// Restarts an app of a running pod, or starts it if it has exited.
    RestartApp(PodId, AppName),
    /// The same for apps of a pod that is restarted as a whole, which resumes it if it is paused.
    RestartPod(PodId, Vec<AppName>),
    /// Stops the sandbox of a kubelet, and releases its networks.
    StopSandbox(PodId),
    /// Stops a container of it.
    StopContainer(PodId, AppName),
}

impl PodChange {
    /// Its weight on the bridge.
    pub(super) fn weight(&self) -> Weight {
        match self {
            Self::Start(_) => Weight::Start,
            // A restart begins with the grace period, too.
            Self::Stop(_)
            | Self::RestartApp(..)
            | Self::RestartPod(..)
            | Self::StopSandbox(_)
            | Self::StopContainer(..) => Weight::Stop,
        }
    }

    /// Makes the change; returns when it is done.
    ///
    /// # Errors
    /// The engine's errors.
    pub(super) fn apply(self, engine: &Engine, supervisors: &Supervisors) -> Result<(), Status> {
        match self {
            Self::Start(pod) => {
                let started = engine.start_again(pod).map_err(|error| status::from_error(&error))?;
                // `None`: it already runs; the process that started it reaps its supervisor.
                started.into_iter().for_each(|running| supervisors.keep(running));
                Ok(())
            }
            Self::Stop(pod) => stop(engine, pod),
            Self::RestartApp(pod, app) => {
                engine.restart_app(pod, &app, GRACE).map_err(|error| status::from_error(&error))
            }
            Self::RestartPod(pod, apps) => apps
                .iter()
                .try_for_each(|app| engine.resume_to_restart(pod, app, GRACE))
                .map_err(|error| status::from_error(&error)),
            Self::StopSandbox(pod) => kubernetes::stop_sandbox(engine, &StopRight::take(pod)?),
            Self::StopContainer(pod, app) => {
                engine.stop_app(pod, &app, GRACE).map_err(|error| status::from_error(&error))
            }
        }
    }
}

/// Stops a pod, with SIGKILL after its grace period. Does nothing if it has ended.
fn stop(engine: &Engine, pod: PodId) -> Result<(), Status> {
    let grace = engine.stop_grace(pod, None);
    let Stopped { unwritten, .. } = engine.stop(pod, grace).map_err(|error| status::from_error(&error))?;
    if let Some(why) = unwritten {
        warn!("the end of pod {pod} is not recorded: {why}");
    }
    Ok(())
}
