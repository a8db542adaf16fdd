//! Restart: the stop signal, SIGKILL after the grace period, and the next start; the reply follows the start.

use std::time::Duration;

use gantry_engine::Engine;
use gantry_engine::model::{AppName, PodId};
use gantry_proto::talos::machine::RestartRequest;
use tonic::Status;

use super::names::{self, Namespace, Selection};
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::status;

/// The time between the stop signal and SIGKILL, as Talos has it.
const GRACE: Duration = Duration::from_secs(10);

/// Restarts an app, or the running apps of a pod.
///
/// # Errors
/// NOT_FOUND; FAILED_PRECONDITION: it does not run; the errors of the engine.
pub(super) async fn restart(
    context: &Context,
    writer: &Bridge<Engine>,
    peer: Peer,
    request: RestartRequest,
) -> Result<(), Status> {
    let (namespace, _) = Namespace::parse(&request.namespace, request.driver)?;
    if namespace == Namespace::System && request.id == names::DAEMON {
        return Err(Status::failed_precondition("gantryd does not restart itself: restart its service"));
    }
    let id = request.id.clone();
    let find = move |observer: &gantry_engine::Observer| {
        names::find(observer, &namespace, &id).and_then(|selection| running_apps(observer, selection, &id))
    };
    let (pod, apps) = context.reader.call(peer, Weight::Light, find).await?;
    let restart = move |engine: &Engine| {
        apps.iter().try_for_each(|app| engine.restart_app(pod, app, GRACE)).map_err(|error| status::from_error(&error))
    };
    writer.call(peer, Weight::Heavy, restart).await
}

/// The selected apps, each of which runs.
fn running_apps(
    observer: &gantry_engine::Observer,
    selection: Selection,
    id: &str,
) -> Result<(PodId, Vec<AppName>), Status> {
    let apps: Vec<AppName> = match selection.app {
        Some(app) => app.state.is_running().then_some(app.name).into_iter().collect(),
        None => {
            let prefix = selection.pod.into();
            let view = observer.pod(&prefix).map_err(|error| status::from_error(&error))?;
            view.row.apps.into_iter().filter(|app| app.state.is_running()).map(|app| app.name).collect()
        }
    };
    if apps.is_empty() {
        let id = gantry_engine::model::id::shown(id);
        return Err(Status::failed_precondition(format!("container \"{id}\" is not running")));
    }
    Ok((selection.pod, apps))
}
