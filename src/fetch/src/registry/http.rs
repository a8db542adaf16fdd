//! One HTTP exchange: trusted roots, deadlines, and redirects followed by rules of our own.
//!
//! Credentials go to the origin (scheme, host, port) they were meant for and to nobody else: the first redirect
//! that leaves it drops them, and no later one brings them back. https never becomes http. Nobody can send us to
//! a link-local address, neither by its number nor by a name that resolves to it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::{CertificateError, Error as TlsError};
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RANGE};
use ureq::http::{self, Response, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Body, Timeout};

use gantry_model::id::shown;

use super::error::RegistryError;
use super::url::{Url, is_metadata};
use crate::settings::{Insecure, Timeouts};

/// Redirects followed for one request.
const MAX_REDIRECTS: usize = 10;

/// Most bytes of an answer's headers.
const MAX_HEADERS: usize = 64 << 10;

/// Nobody on this machine needs longer to answer a TLS greeting; one who does speaks plain http.
const LOOPBACK_CONNECT: Duration = Duration::from_secs(5);

/// Where a distribution keeps the certificates it trusts.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Where podman and docker keep further ones, by host.
const HOST_ROOTS: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/// The connections of one fetch.
pub(crate) struct Http {
    /// The registry's own host: the only one whose certificate may go unchecked, or that may be link-local.
    registry: String,
    insecure: Insecure,
    timeouts: Timeouts,
    agents: Mutex<Agents>,
}

#[derive(Default)]
struct Agents {
    /// By host and port: each may have roots of its own.
    by_place: HashMap<String, Agent>,
    system_roots: Option<Arc<Vec<Certificate<'static>>>>,
    stopped: bool,
}

/// What is sent.
pub(crate) struct Request<'a> {
    pub(crate) url: Url,
    pub(crate) method: Method<'a>,
    pub(crate) accept: Option<&'a str>,
    /// The first byte wanted, where it is not the first there is.
    pub(crate) from: u64,
    /// The value of the `Authorization` header for the origin of `url`.
    pub(crate) authorization: Option<&'a str>,
    /// What is asked for, in the words of an error message.
    pub(crate) what: &'a str,
}

/// What is done.
pub(crate) enum Method<'a> {
    Get,
    /// A form; not redirected.
    Post(&'a str),
}

/// What came back: never a redirect, any other status.
pub(crate) struct Answer {
    /// Who answered, after redirects.
    pub(crate) url: Url,
    pub(crate) response: Response<Body>,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

impl Http {
    pub(crate) fn new(registry: &Url, insecure: Insecure, timeouts: Timeouts) -> Self {
        Self { registry: registry.host.clone(), insecure, timeouts, agents: Mutex::default() }
    }

    /// Sends a request and follows redirects.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Answer, RegistryError> {
        let mut url = request.url.clone();
        let mut authorization = request.authorization;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.exchange(&url, request, authorization)?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Answer { url, response });
            }
            let next = self.redirected(&url, request, &response)?;
            if !next.same_origin(&url) {
                authorization = None;
            }
            url = next;
        }
        Err(RegistryError::Redirect {
            from: request.url.place(),
            to: url.place(),
            why: "there are more than 10 redirects in a row",
        })
    }

    fn redirected(&self, from: &Url, request: &Request<'_>, answer: &Response<Body>) -> Result<Url, RegistryError> {
        let refuse = |to: String, why| RegistryError::Redirect { from: from.place(), to, why };
        let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| refuse("nowhere".to_owned(), "it does not say where to"))?;
        // Only the part before a query may be shown.
        let visible =
            || shown(location.split(['?', '#']).next().unwrap_or_default().rsplit('@').next().unwrap_or_default());
        let to = from.join(location).map_err(|why| refuse(visible(), why))?;
        if matches!(request.method, Method::Post(_)) {
            return Err(refuse(to.place(), "a request with credentials in its body is not redirected"));
        }
        if from.https && !to.https {
            return Err(refuse(to.place(), "it leads from https to http"));
        }
        if !to.https && !to.is_loopback() && !self.insecure.http {
            return Err(refuse(to.place(), "plain http is not allowed there"));
        }
        Ok(to)
    }

    fn exchange(&self, url: &Url, what: &Request<'_>, auth: Option<&str>) -> Result<Response<Body>, RegistryError> {
        let at_home = url.host == self.registry;
        if !at_home && url.address().is_some_and(is_metadata) {
            return Err(RegistryError::LinkLocal { host: url.place() });
        }
        let agent = self.agent(url)?;
        let failed = |error| self.failure(url, what.what, error);
        let mut builder = match what.method {
            Method::Get => http::Request::get(url.wire()),
            Method::Post(_) => {
                http::Request::post(url.wire()).header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            }
        };
        if let Some(accept) = what.accept {
            builder = builder.header(ACCEPT, accept);
        }
        if what.from > 0 {
            builder = builder.header(RANGE, format!("bytes={}-", what.from));
        }
        if let Some(auth) = auth {
            builder = builder.header(AUTHORIZATION, auth);
        }
        match what.method {
            Method::Get => agent.run(builder.body(()).map_err(|e| failed(e.into()))?),
            Method::Post(form) => agent.run(builder.body(form).map_err(|e| failed(e.into()))?),
        }
        .map_err(failed)
    }

    /// Ends every exchange in flight; later ones fail at once.
    pub(crate) fn stop(&self) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.stopped = true;
        for agent in agents.by_place.values() {
            agent.clone().shutdown();
        }
    }

    fn agent(&self, url: &Url) -> Result<Agent, RegistryError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents.stopped {
            return Err(RegistryError::Cancelled);
        }
        let key = url.to_string();
        if let Some(agent) = agents.by_place.get(&key) {
            return Ok(agent.clone());
        }
        let roots = if url.https { self.roots(url, &mut agents.system_roots)? } else { Vec::new() };
        let agent = self.make_agent(url, &roots);
        agents.by_place.insert(key, agent.clone());
        Ok(agent)
    }

    fn make_agent(&self, url: &Url, roots: &[Certificate<'static>]) -> Agent {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(roots))
            .disable_verification(self.insecure.tls && url.host == self.registry)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let silence = Some(self.timeouts.no_progress);
        let loopback = url.is_loopback();
        let connect = if loopback { self.timeouts.connect.min(LOOPBACK_CONNECT) } else { self.timeouts.connect };
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(MAX_HEADERS)
            .user_agent(concat!("gantry/", env!("CARGO_PKG_VERSION")))
            // A blob must come as it is: its digest covers the bytes that are stored.
            .accept_encoding("identity")
            .timeout_resolve(Some(self.timeouts.connect))
            .timeout_connect(Some(connect))
            .timeout_send_request(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .tls_config(tls);
        if loopback {
            // A proxy elsewhere cannot reach our loopback, whatever the environment says.
            builder = builder.proxy(None);
        }
        let guard = Guard { exempt: url.host == self.registry };
        Agent::with_parts(builder.build(), DefaultConnector::default(), guard)
    }

    /// The certificates trusted for a host: the system's and those laid down for it alone.
    fn roots(
        &self,
        url: &Url,
        system: &mut Option<Arc<Vec<Certificate<'static>>>>,
    ) -> Result<Vec<Certificate<'static>>, RegistryError> {
        if self.insecure.tls && url.host == self.registry {
            return Ok(Vec::new());
        }
        let shared = match system {
            Some(roots) => Arc::clone(roots),
            None => Arc::clone(system.insert(Arc::new(system_roots()?))),
        };
        let mut roots = shared.to_vec();
        for base in HOST_ROOTS {
            for name in [url.place(), format!("{}:{}", url.host, url.port)] {
                add_directory(&Path::new(base).join(name), &mut roots)?;
            }
        }
        Ok(roots)
    }

    /// What a failure of ureq means.
    pub(crate) fn failure(&self, url: &Url, what: &str, error: ureq::Error) -> RegistryError {
        let host = url.place();
        match error {
            ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve) => {
                RegistryError::Unreachable { host, source: Box::new(error) }
            }
            ureq::Error::Timeout(_) => {
                RegistryError::Stalled { host, what: what.to_owned(), after: self.timeouts.no_progress }
            }
            ureq::Error::Other(ref inner) if inner.is::<LinkLocal>() => RegistryError::LinkLocal { host },
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => {
                RegistryError::Answer { host, what: what.to_owned(), why: shown(&error.to_string()) }
            }
            // A URL may hold a signature, and these two show it.
            ureq::Error::BadUri(_) | ureq::Error::RequireHttpsOnly(_) => {
                RegistryError::Answer { host, what: what.to_owned(), why: "its URL is malformed".to_owned() }
            }
            ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
                RegistryError::Request { host, source: Box::new(error) }
            }
            error if tls_error(&error).is_some() || matches!(error, ureq::Error::Tls(_) | ureq::Error::Pem(_)) => {
                let hint = tls_hint(tls_error(&error));
                RegistryError::Tls { host, hint, source: Box::new(error) }
            }
            error => RegistryError::Unreachable { host, source: Box::new(error) },
        }
    }

    /// What a failure to read an answer's body means.
    pub(crate) fn read_failure(&self, url: &Url, what: &str, error: std::io::Error) -> RegistryError {
        match ureq::Error::from(error) {
            ureq::Error::Io(source) if source.kind() == std::io::ErrorKind::TimedOut => {
                RegistryError::Stalled { host: url.place(), what: what.to_owned(), after: self.timeouts.no_progress }
            }
            ureq::Error::Io(source) => RegistryError::Broken { host: url.place(), what: what.to_owned(), source },
            // Chunks that break off are a connection that broke off.
            ureq::Error::Protocol(inner) => RegistryError::Broken {
                host: url.place(),
                what: what.to_owned(),
                source: std::io::Error::new(std::io::ErrorKind::UnexpectedEof, inner),
            },
            error => self.failure(url, what, error),
        }
    }
}

/// Whether a failure says that the peer does not speak TLS (rather than that its certificate is bad).
pub(crate) fn is_no_tls(error: &RegistryError) -> bool {
    match error {
        RegistryError::Tls { source, .. } => matches!(tls_error(source), Some(TlsError::InvalidMessage(_))),
        RegistryError::Unreachable { source, .. } => match &**source {
            ureq::Error::Timeout(Timeout::Connect) => true,
            ureq::Error::Io(io) => matches!(
                io.kind(),
                std::io::ErrorKind::UnexpectedEof
                    | std::io::ErrorKind::ConnectionReset
                    | std::io::ErrorKind::ConnectionAborted
                    | std::io::ErrorKind::BrokenPipe
            ),
            _ => false,
        },
        RegistryError::Stalled { .. } => true,
        _ => false,
    }
}

/// Whether nobody listens on the port at all.
pub(crate) fn is_refused(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable { source, .. }
        if matches!(&**source, ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused))
}

fn tls_error(error: &ureq::Error) -> Option<&TlsError> {
    match error {
        ureq::Error::Rustls(inner) => Some(inner),
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref(),
        _ => None,
    }
}

fn tls_hint(error: Option<&TlsError>) -> &'static str {
    use CertificateError as Bad;
    match error {
        Some(TlsError::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. })) => {
            "its certificate has expired, or this host's clock is wrong"
        }
        Some(TlsError::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. })) => {
            "its certificate is not valid yet, or this host's clock is wrong"
        }
        Some(TlsError::InvalidCertificate(Bad::UnknownIssuer)) => {
            "its certificate is signed by nobody this host trusts; put the signer's certificate into \
             /etc/containers/certs.d/HOST/ca.crt if it should be"
        }
        Some(TlsError::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. })) => {
            "its certificate is for another name"
        }
        Some(TlsError::InvalidCertificate(_)) => {
            "its certificate is refused; a server's certificate must be signed by an authority (it may not be one \
             itself), whose own certificate may be put into /etc/containers/certs.d/HOST/ca.crt"
        }
        Some(TlsError::InvalidMessage(_)) => "it does not speak TLS on this port",
        _ => "the handshake failed",
    }
}

/// Resolves names as ever, and refuses what a hostile name may resolve to.
#[derive(Debug)]
struct Guard {
    exempt: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the name resolves to a link-local address")]
struct LinkLocal;

impl Resolver for Guard {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        if !self.exempt && found.iter().any(|address| is_metadata(address.ip())) {
            return Err(ureq::Error::Other(Box::new(LinkLocal)));
        }
        Ok(found)
    }
}

fn system_roots() -> Result<Vec<Certificate<'static>>, RegistryError> {
    let mut files: Vec<PathBuf> = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).into_iter().collect();
    files.extend(SYSTEM_ROOTS.map(PathBuf::from));
    for file in files {
        let mut roots = Vec::new();
        if add_file(&file, &mut roots)? {
            return Ok(roots);
        }
    }
    // No bundle: every TLS connection will fail with "signed by nobody this host trusts", which is the truth.
    Ok(Vec::new())
}

fn add_directory(dir: &Path, roots: &mut Vec<Certificate<'static>>) -> Result<(), RegistryError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(source) => return Err(RegistryError::Certificates { path: dir.display().to_string(), source }),
    };
    for entry in entries {
        let path =
            entry.map_err(|source| RegistryError::Certificates { path: dir.display().to_string(), source })?.path();
        if path.extension().is_some_and(|extension| extension == "crt") {
            add_file(&path, roots)?;
        }
    }
    Ok(())
}

/// Adds the certificates of a PEM file; false when there is no such file. Other items in it are skipped.
fn add_file(path: &Path, roots: &mut Vec<Certificate<'static>>) -> Result<bool, RegistryError> {
    let pem = match std::fs::read(path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(RegistryError::Certificates { path: path.display().to_string(), source }),
    };
    for item in ureq::tls::parse_pem(&pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => roots.push(certificate.to_owned()),
            Ok(_) => {}
            Err(_) => {
                let source = std::io::Error::new(std::io::ErrorKind::InvalidData, "it is not PEM");
                return Err(RegistryError::Certificates { path: path.display().to_string(), source });
            }
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(from: &str, location: &str, method: Method<'_>, insecure: bool) -> Result<String, String> {
        let from = Url::parse(from).unwrap();
        let http = Http::new(&from, Insecure { http: insecure, tls: false }, Timeouts::default());
        let request =
            Request { url: from.clone(), method, accept: None, from: 0, authorization: Some("secret"), what: "x" };
        let answer = Response::builder().header(LOCATION, location).body(Body::builder().data("")).unwrap();
        http.redirected(&from, &request, &answer).map(|url| url.wire()).map_err(|error| error.to_string())
    }

    #[test]
    fn where_a_redirect_may_lead() {
        let (tls, local) = ("https://reg.example/v2/", "http://127.0.0.1:5000/v2/");
        for (from, location, insecure, want) in [
            (tls, "https://cdn.example/x?sig=1", false, Some("https://cdn.example/x?sig=1")),
            (tls, "http://reg.example/x", true, None),
            (tls, "http://127.0.0.1/x", true, None),
            (local, "https://cdn.example/x", false, Some("https://cdn.example/x")),
            (local, "http://127.0.0.1:6000/x", false, Some("http://127.0.0.1:6000/x")),
            (local, "http://cdn.example/x", false, None),
            (local, "http://cdn.example/x", true, Some("http://cdn.example/x")),
        ] {
            assert_eq!(redirect(from, location, Method::Get, insecure).ok().as_deref(), want, "{from} {location}");
        }
        assert!(redirect(tls, "https://reg.example/x", Method::Post("a=b"), false).is_err(), "a form is not sent on");
    }

    #[test]
    fn a_refused_redirect_shows_neither_user_nor_signature() {
        for location in ["http://u:hunter2@h/x", "ftp://h/x?sig=hunter2", "http://h/x?sig=hunter2#hunter2"] {
            let error = redirect("https://reg.example/", location, Method::Get, false).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
