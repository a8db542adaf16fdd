//! `fetch`: fetches an image into the store.

use std::io::Read;

use gantry_fetch::{FetchError, Fetched, Progress, PullPolicy};
use gantry_model::ImageRef;

use crate::Engine;

impl Engine {
    /// Fetches an image into the store, or finds it in the store, as the policy says. `stdin` is read for the reference
    /// `-`.
    ///
    /// # Errors
    /// [`FetchError`]; nothing half-fetched is visible then.
    pub fn fetch(
        &self,
        reference: &ImageRef,
        policy: PullPolicy,
        stdin: Option<&mut dyn Read>,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        gantry_fetch::fetch(&self.store, &self.options.fetch, reference, policy, stdin, progress)
    }
}
