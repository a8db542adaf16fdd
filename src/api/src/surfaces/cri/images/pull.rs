//! PullImage. A fetch may take minutes, so each has a thread of its own, and ends when its call does: a kubelet cancels
//! what it no longer wants. What a cancelled fetch brought is used by the next one or collected; none of it is visible.

use std::sync::Arc;

use gantry_engine::{Cancellation, Engine, FetchCredentials, Options};
use gantry_model::ImageRef;
use gantry_model::id::shown;
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::info;

use crate::live_settings::LiveSettings;
use crate::pulls::{ProgressLog, run_fetch};
use crate::status;

/// Maximum number of pulls at a time; further ones wait.
const MAX_PULLS: usize = 16;

/// The pulls of a server.
pub(super) struct Pulls {
    settings: LiveSettings,
    running: Arc<Semaphore>,
}

/// Cancels the fetch of a call that is dropped.
struct CancelOnDrop(Cancellation);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Pulls {
    /// No pulls yet. Each uses the settings at its time.
    pub(super) fn new(settings: LiveSettings) -> Self {
        Self { settings, running: Arc::new(Semaphore::new(MAX_PULLS)) }
    }

    /// Fetches an image, and returns its id.
    ///
    /// # Errors
    /// The status of the fetch's error, such as `NOT_FOUND`, `PERMISSION_DENIED` or `UNAVAILABLE`, `INVALID_ARGUMENT`
    /// if the reference is not one of a registry, and `RESOURCE_EXHAUSTED` if no thread can be started.
    pub(super) async fn pull(
        &self,
        reference: ImageRef,
        credentials: Option<FetchCredentials>,
    ) -> Result<String, Status> {
        let (options, cancellation) = (self.settings.current().options.clone(), Cancellation::default());
        let _guard = CancelOnDrop(cancellation.clone());
        run_fetch(&self.running, move || fetch(options, &reference, credentials, cancellation)).await
    }
}

fn fetch(
    options: Options,
    reference: &ImageRef,
    credentials: Option<FetchCredentials>,
    cancellation: Cancellation,
) -> Result<String, Status> {
    let engine = Engine::open(options).map_err(|error| status::from_error(&error))?;
    let Some(name) = engine.full_reference(reference) else {
        // Files of the host, and images that are in the store already.
        let text = shown(&reference.to_string());
        return Err(Status::invalid_argument(format!("'{text}' names no image of a registry")));
    };
    let fetched = engine.pull_image(&name, credentials, cancellation, &ProgressLog);
    let fetched = fetched.map_err(|error| status::from_error(&error))?;
    info!(image = %fetched.image.id, "fetched {name}");
    Ok(fetched.image.id.to_string())
}
