//! Resolves the names of registries, token servers and proxies.

use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::url::is_metadata;

/// Resolves names, and rejects addresses that a hostile name may resolve to.
#[derive(Debug)]
pub(crate) struct Guard {
    /// Link-local addresses are accepted.
    pub(crate) exempt: bool,
    /// The proxy resolves the name.
    pub(crate) by_proxy: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the name resolves to a link-local address")]
pub(crate) struct LinkLocal;

#[derive(Debug, thiserror::Error)]
#[error("the name cannot be looked up")]
pub(crate) struct LookupFailed(#[source] pub(crate) std::io::Error);

/// Marks an error of a name's lookup, so that it is not taken for one of the connection.
pub(crate) fn resolve_failure(error: ureq::Error) -> ureq::Error {
    match error {
        ureq::Error::Io(source) => ureq::Error::Other(Box::new(LookupFailed(source))),
        other => other,
    }
}

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        if self.by_proxy {
            return Ok(self.empty());
        }
        let found = DefaultResolver::default().resolve(uri, config, timeout).map_err(resolve_failure)?;
        if !self.exempt && found.iter().any(|address| is_metadata(address.ip())) {
            return Err(ureq::Error::Other(Box::new(LinkLocal)));
        }
        Ok(found)
    }
}
