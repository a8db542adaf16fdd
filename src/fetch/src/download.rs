//! The download of an image from the endpoints of its repository, one after the other: the mirrors that the host's
//! configuration names, and last the registry itself ([`endpoints`]).
//!
//! An endpoint that is unreachable, lacks the image, or sends other bytes than the digests say is skipped. Layers that
//! it served are verified and stay, so the next endpoint is asked only for those that are missing.

use gantry_model::error::chain;
use gantry_model::id::shown;
use gantry_model::{Digest, RegistryRef};

use crate::cancellation::Cancellation;
use crate::error::FetchError;
use crate::import::{MAX_RESTARTS, NameOrigin, Naming, import};
use crate::progress::Note;
use crate::pull::{Context, Fetched};
use crate::registry::endpoints::{Endpoint, endpoints};
use crate::registry::{Registry, RegistryError};
use crate::source::Source as _;

impl Context<'_> {
    pub(crate) fn download(&self, reference: &RegistryRef, name: &str) -> Result<Fetched, FetchError> {
        self.progress.notify(Note::Resolving { name: name.to_owned() });
        let mut all = endpoints(reference, self.config).map_err(failed(name))?;
        // A mirror of content alone cannot tell which content a tag has.
        if reference.digest.is_none() && all.iter().any(|endpoint| endpoint.pulls && !endpoint.resolves) {
            let resolving: Vec<_> = all.iter().filter(|endpoint| endpoint.resolves).cloned().collect();
            let digest = self.first(&resolving, name, |endpoint, is_last| self.resolve(endpoint, is_last, name))?;
            all.iter_mut().for_each(|endpoint| endpoint.reference.digest = Some(digest.clone()));
        }
        all.retain(|endpoint| endpoint.pulls);
        let names_digests = self.config.name_digests && reference.digest.is_none();
        let digests_of = names_digests.then(|| reference.full_repository());
        let (names, invalid) = (vec![name.to_owned()], Vec::new());
        let naming = Naming { names, invalid, digests_of, origin: NameOrigin::Registry };
        self.first(&all, name, |endpoint, is_last| self.download_from(endpoint, is_last, &naming, name))
    }

    /// The result of the first endpoint that succeeds.
    fn first<T>(
        &self,
        endpoints: &[Endpoint],
        name: &str,
        attempt: impl Fn(&Endpoint, bool) -> Result<T, FetchError>,
    ) -> Result<T, FetchError> {
        let mut mirrors = Vec::new();
        for (at, endpoint) in endpoints.iter().enumerate() {
            let is_last = at + 1 == endpoints.len();
            match attempt(endpoint, is_last) {
                Err(error) if self.is_cancelled() => return Err(error),
                Err(error) if !is_last && error.is_of_endpoint() => {
                    let (mirror, why) = (endpoint.shown(), chain(&error));
                    mirrors.push(format!("{mirror}: {why}"));
                    self.progress.notify(Note::MirrorFailed { mirror, why });
                }
                Err(error) if !mirrors.is_empty() => {
                    return Err(FetchError::Mirrors { name: shown(name), mirrors, source: Box::new(error) });
                }
                outcome => return outcome,
            }
        }
        Err(FetchError::no_endpoint(name))
    }

    fn is_cancelled(&self) -> bool {
        self.config.cancellation.as_ref().is_some_and(Cancellation::is_raised)
    }

    /// The digest of a tag.
    fn resolve(&self, endpoint: &Endpoint, is_last: bool, name: &str) -> Result<Digest, FetchError> {
        Ok(self.client(endpoint, is_last, name)?.root().map_err(FetchError::source(name))?.digest)
    }

    fn download_from(
        &self,
        endpoint: &Endpoint,
        is_last: bool,
        naming: &Naming,
        name: &str,
    ) -> Result<Fetched, FetchError> {
        let mut tries = 1;
        loop {
            // Created anew for each attempt: a failed fetch cancels its source.
            let registry = self.client(endpoint, is_last, name)?;
            match import(self.store, self.config, &registry, naming, self.progress) {
                Ok((image, downloaded)) => return Ok(Fetched { image, name: name.to_owned(), downloaded }),
                Err(error) if tries < MAX_RESTARTS && error.is_layer_gone() => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn client(&self, endpoint: &Endpoint, is_last: bool, name: &str) -> Result<Registry<'_>, FetchError> {
        let client = Registry::at(endpoint, self.config, self.progress).map_err(failed(name))?;
        Ok(if is_last { client } else { client.without_retries() })
    }
}

/// For `map_err`.
fn failed(name: &str) -> impl Fn(RegistryError) -> FetchError {
    move |error| FetchError::source(name)(error.into())
}
