//! `fetch` and `image load`: bring images into the store.

use std::io::Read;

use gantry_fetch::{FetchError, Fetched, LocalImages, Progress, PullPolicy};
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

    /// Imports all images of an archive or layout, each when the iterator reaches it.
    ///
    /// # Errors
    /// [`FetchError`]: the archive or layout cannot be read. An item is an error if its image cannot be imported; the
    /// images before it are in the store.
    pub fn image_load<'a>(
        &'a self,
        images: LocalImages<'_>,
        progress: &'a dyn Progress,
    ) -> Result<impl Iterator<Item = Result<Fetched, FetchError>> + use<'a>, FetchError> {
        gantry_fetch::load(&self.store, &self.options.fetch, images, progress)
    }
}
