//! A registry as a [`Source`] (OCI distribution specification 1.1, "Pull"; the Docker registry HTTP API V2).
//!
//! [`Registry`] is a client of one repository. Below it: [`http`] (one exchange, redirects), [`auth`] (tokens),
//! [`blob`] (a stream that resumes after a broken connection), [`retry`] (when to retry). It works in the caller's
//! thread; several threads may share a `Registry`.

mod auth;
mod blob;
mod certificates;
mod challenge;
pub(crate) mod endpoints;
mod error;
mod forward;
mod http;
mod login;
mod pace;
mod proxy;
mod resolve;
mod retry;
mod url;

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use gantry_host::file::read_stream;
use gantry_model::RegistryRef;
use gantry_model::id::Algorithm;

use self::auth::Auth;
use self::blob::BlobReader;
use self::endpoints::Endpoint;
use self::error::login_advice;
pub use self::error::{MAX_RETRY_AFTER, RegistryError};
use self::http::{Http, HttpResponse, Method, Request};
pub use self::login::check_login;
use self::proxy::ProxySettings;
use self::retry::{Attempts, Cancel};
use self::url::HttpUrl;
use crate::manifest;
use crate::progress::{Note, Progress};
use crate::settings::{Config, Insecure, Timeouts};
use crate::source::{Descriptor, MAX_DOCUMENT, RootDocument, Source, SourceError, digest_of};

/// A client of one repository of a registry.
pub struct Registry<'a> {
    reference: RegistryRef,
    /// The path of the API.
    root: String,
    /// The registry that is mirrored, if the mirror serves several.
    namespace: Option<String>,
    /// The https address of the registry.
    secure: HttpUrl,
    /// The address in use; determined once.
    origin: Mutex<Option<HttpUrl>>,
    http: Arc<Http>,
    auth: Auth,
    insecure: Insecure,
    timeouts: Timeouts,
    /// Whether a failed request for the manifest is repeated; not where another endpoint can be asked instead.
    retries: bool,
    cancel: Arc<Cancel>,
    progress: &'a dyn Progress,
}

impl<'a> Registry<'a> {
    /// Creates a client for the repository of `reference`, without its mirrors. Nothing is sent yet.
    ///
    /// # Errors
    /// [`RegistryError`] if the host is malformed.
    pub fn new(reference: &RegistryRef, config: &Config, progress: &'a dyn Progress) -> Result<Self, RegistryError> {
        Self::at(&Endpoint::of(reference, config.insecure), config, progress)
    }

    /// Creates a client for an endpoint of a repository.
    pub(crate) fn at(endpoint: &Endpoint, config: &Config, progress: &'a dyn Progress) -> Result<Self, RegistryError> {
        let (reference, insecure) = (&endpoint.reference, endpoint.insecure);
        // Docker Hub's name is not its address.
        let host = if reference.host == "docker.io" { "registry-1.docker.io" } else { &reference.host };
        let secure = HttpUrl::from_host(host, true).ok_or_else(|| {
            RegistryError::bad_response(&gantry_model::id::shown(host), "anything", "it is not a host name")
        })?;
        let http = Arc::new(Http::new(host, &secure, endpoint, config, ProxySettings::read(std::env::var)));
        let cancel = Arc::new(Cancel::default());
        if let Some(cancellation) = &config.cancellation {
            let (http, cancel) = (Arc::downgrade(&http), Arc::downgrade(&cancel));
            cancellation.on_raise(move || {
                if let Some(cancel) = cancel.upgrade() {
                    cancel.raise();
                }
                if let Some(http) = http.upgrade() {
                    http.stop();
                }
            });
        }
        let auth = Auth::new(&reference.host, &reference.repository, config.auth_files.clone(), insecure);
        let given = config.credentials.as_ref().filter(|given| match &given.host {
            Some(host) => endpoints::is_same_registry(host, &reference.host),
            None => !endpoint.is_mirror,
        });
        Ok(Self {
            reference: reference.clone(),
            root: endpoint.root.clone(),
            namespace: endpoint.namespace.clone(),
            http,
            secure,
            origin: Mutex::new(endpoint.origin.clone()),
            auth: match given {
                Some(given) => auth.with_request(given.credentials.clone()),
                None => auth,
            },
            insecure,
            timeouts: config.timeouts,
            retries: true,
            cancel,
            progress,
        })
    }

    /// Makes the first failure to get the manifest final.
    pub(crate) fn without_retries(mut self) -> Self {
        self.retries = false;
        self
    }

    /// The address of the registry: https, unless plain http is allowed and the registry does not speak https.
    fn origin(&self) -> Result<HttpUrl, RegistryError> {
        let mut origin = self.origin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(origin) = &*origin {
            return Ok(origin.clone());
        }
        let may_be_plain = self.insecure.http || self.secure.is_loopback();
        let found = if may_be_plain { self.probe()? } else { self.secure.clone() };
        Ok(origin.insert(found).clone())
    }

    fn probe(&self) -> Result<HttpUrl, RegistryError> {
        let url = self.secure.with_path("/v2/");
        let what = "its version";
        let probe = Request { url, method: Method::Get, accept: None, from: 0, authorization: None, what };
        // Without a port in the reference, https and http each have their default port.
        let host = if self.secure.port() == 443 { self.secure.host().to_owned() } else { self.secure.authority() };
        match self.http.send(&probe) {
            Err(error) if http::is_no_tls(&error) || (http::is_refused(&error) && self.secure.port() == 443) => {
                match HttpUrl::from_host(&host, false) {
                    Some(plain) if self.may_fall_back(&error, &plain)? => Ok(plain),
                    _ => Err(error),
                }
            }
            // A failed redirect is irrelevant here: the registry speaks https.
            Ok(_) | Err(RegistryError::Redirect { .. }) => Ok(self.secure.clone()),
            Err(error) => Err(error),
        }
    }

    /// Whether `plain` may be tried after the https probe failed with `error`. A proxy that refuses or stalls the
    /// tunnel proves nothing about the registry, so the plain requests must then take the same proxy.
    fn may_fall_back(&self, error: &RegistryError, plain: &HttpUrl) -> Result<bool, RegistryError> {
        match error {
            RegistryError::ProxyRefused { .. } | RegistryError::Stalled { .. } | RegistryError::Tls { .. } => {
                self.http.keeps_proxy(&self.secure, plain)
            }
            _ => Ok(true),
        }
    }

    /// Requests `path` below the repository with the current authorization; answers one challenge.
    fn get(&self, path: &str, accept: Option<&str>, from: u64, what: &str) -> Result<HttpResponse, RegistryError> {
        let origin = self.origin()?;
        let mut url = origin.with_path(&format!("{}/{}/{path}", self.root, self.reference.repository));
        if let Some(namespace) = &self.namespace {
            url = url.with_query(&[("ns", namespace)]);
        }
        let mut renewed = false;
        loop {
            let standing = self.auth.standing();
            let authorization = standing.header.as_deref();
            let request = Request { url: url.clone(), method: Method::Get, accept, from, authorization, what };
            let answer = self.http.send(&request)?;
            if answer.status() == 401 && answer.url.is_same_origin(&origin) && !renewed {
                self.auth.renew(&self.http, &origin, &answer, standing.generation)?;
                renewed = true;
                continue;
            }
            return self.accepted(answer, what, standing.credentials);
        }
    }

    /// Turns an error response into the error. `credentials` is the source of the credentials that were sent.
    fn accepted(
        &self,
        answer: HttpResponse,
        what: &str,
        credentials: Option<String>,
    ) -> Result<HttpResponse, RegistryError> {
        let (status, host) = (answer.status(), answer.url.authority());
        match status {
            200 | 206 => Ok(answer),
            404 => Err(RegistryError::not_found(&host, what, &auth::message_of(answer))),
            401 | 403 => {
                let advice = login_advice(credentials.as_deref(), &self.reference.host);
                Err(RegistryError::denied(&host, what, status, &advice, &auth::message_of(answer)))
            }
            _ => {
                let (what, retry_after) = (what.to_owned(), asked_wait(&answer));
                Err(RegistryError::Status { host, what, status, message: auth::message_of(answer), retry_after })
            }
        }
    }

    /// Runs `once` until it succeeds, fails permanently, or the attempts are used up.
    fn retried<T>(&self, mut once: impl FnMut() -> Result<T, RegistryError>) -> Result<T, RegistryError> {
        let mut attempts = Attempts::default();
        loop {
            match once() {
                Ok(value) => return Ok(value),
                Err(error) => self.pause(&mut attempts, error)?,
            }
        }
    }

    /// After a failure: reports it and waits for the next attempt; or returns the failure.
    fn pause(&self, attempts: &mut Attempts, error: RegistryError) -> Result<(), RegistryError> {
        if self.cancel.is_raised() {
            return Err(RegistryError::Cancelled);
        }
        let why = error.to_string();
        let after = attempts.next(error, &self.timeouts)?;
        self.progress.notify(Note::Retrying { why, after });
        self.cancel.wait(after)
    }

    /// Reads a document of at most `most` bytes; a longer one fails with `too_long`, made from the host.
    fn read(
        &self,
        answer: HttpResponse,
        most: u64,
        what: &str,
        too_long: impl FnOnce(&str) -> RegistryError,
    ) -> Result<Vec<u8>, RegistryError> {
        let url = answer.url.clone();
        read_stream(answer.document(what), most).map_err(|error| match error.kind() {
            std::io::ErrorKind::FileTooLarge => too_long(&url.authority()),
            _ => self.http.read_failure(&url, what, error),
        })
    }

    fn root_once(&self) -> Result<RootDocument, RegistryError> {
        let named = match (&self.reference.digest, &self.reference.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        };
        let what = format!("manifest {}", self.reference);
        let answer = self.get(&format!("manifests/{named}"), Some(manifest::ACCEPT), 0, &what)?;
        let (place, media_type) = (answer.url.authority(), answer.header("content-type").unwrap_or_default());
        let media_type = manifest::bare_media_type(media_type);
        let claimed = answer.header("docker-content-digest").and_then(|text| text.parse().ok());
        let bytes =
            self.read(answer, MAX_DOCUMENT, &what, |host| RegistryError::too_large(host, &what, MAX_DOCUMENT))?;
        let wanted = self.reference.digest.clone().or(claimed);
        let algorithm = wanted.as_ref().map_or(Algorithm::Sha256, gantry_model::Digest::algorithm);
        let digest = digest_of(algorithm, &bytes);
        match wanted {
            Some(wanted) if wanted != digest => {
                let why = format!("the digest of what came is {digest}, not {wanted}");
                Err(RegistryError::bad_response(&place, &what, why))
            }
            _ => Ok(RootDocument { media_type, bytes, digest }),
        }
    }

    fn document_once(&self, d: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let known = manifest::is_manifest(&d.media_type) || manifest::is_index(&d.media_type);
        let (path, accept) = if known { ("manifests", Some(d.media_type.as_str())) } else { ("blobs", None) };
        let what = format!("document {}", d.digest.short());
        let answer = self.get(&format!("{path}/{}", d.digest), accept, 0, &what)?;
        let host = answer.url.authority();
        let bytes = self.read(answer, d.size, &what, |host| RegistryError::too_long(host, &d.digest, d.size))?;
        let got = bytes.len() as u64;
        if got < d.size {
            return Err(RegistryError::TooShort { host, digest: d.digest.clone(), got, want: d.size });
        }
        Ok(bytes)
    }
}

impl Source for Registry<'_> {
    fn root(&self) -> Result<RootDocument, SourceError> {
        Ok(if self.retries { self.retried(|| self.root_once())? } else { self.root_once()? })
    }

    fn document(&self, d: &Descriptor) -> Result<Vec<u8>, SourceError> {
        if d.size > MAX_DOCUMENT {
            return Err(SourceError::TooLarge { what: format!("document {}", d.digest), most: MAX_DOCUMENT });
        }
        Ok(self.retried(|| self.document_once(d))?)
    }

    fn open(&self, d: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError> {
        Ok(Box::new(BlobReader::open(self, &d.digest, d.size, offset)?))
    }

    fn cancel(&self) {
        self.cancel.raise();
        self.http.stop();
    }
}

/// The delay that a response requests.
fn asked_wait(answer: &HttpResponse) -> Option<Duration> {
    retry::retry_after(answer.header("retry-after")?, SystemTime::now())
}
