//! One HTTP exchange: trusted roots, timeouts, and redirects.
//!
//! Credentials are sent only to the origin (scheme, host, port) they are meant for: the first redirect to another
//! origin drops them for good. https is never downgraded to http. Redirects to link-local addresses fail, by number and
//! by name.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustls::Error as TlsError;
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, PROXY_AUTHORIZATION, RANGE};
use ureq::http::{self, Response, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body, BodyReader, ProxyProtocol, Timeout};

use gantry_model::id::shown;

use super::certificates::{self, HostCertificates, tls_error, tls_hint};
use super::endpoints::{Endpoint, TlsFiles};
use super::error::RegistryError;
use super::forward::ForwardConnector;
use super::proxy::{Proxy, ProxySettings};
use super::resolve::{Guard, LinkLocal, LookupFailed};
use super::url::{HttpUrl, is_metadata};
use crate::settings::{Config, Insecure, Timeouts};

/// Maximum number of redirects of one request.
const MAX_REDIRECTS: usize = 10;

/// Maximum length of a response's headers in bytes.
const MAX_HEADERS: usize = 64 << 10;

/// Timeout of a document as a whole; without it, a peer that sends single bytes slowly could hold the fetch.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Connect timeout for loopback. A local server that does not answer a TLS handshake in this time speaks plain http.
const LOOPBACK_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The connections of one fetch.
pub(crate) struct Http {
    /// The registry's own host: the only one whose certificate may go unchecked, or that may be link-local.
    registry: String,
    /// The registry's own address over https.
    secure: HttpUrl,
    /// The registry as the image reference names it, which is the name of its directory of certificates.
    name: String,
    /// The address for which [`Http::headers`] and [`Http::tls`] are.
    origin: HttpUrl,
    headers: Vec<(String, String)>,
    tls: TlsFiles,
    insecure: Insecure,
    timeouts: Timeouts,
    certificate_dirs: Vec<PathBuf>,
    proxies: ProxySettings,
    agents: Mutex<Agents>,
}

/// The HTTP client for one origin.
struct Peer {
    agent: Agent,
    /// The file of the client certificate that is offered.
    client: Option<PathBuf>,
    proxy: Option<Proxy>,
}

impl Peer {
    /// The credentials for a proxy that receives the requests themselves rather than a CONNECT.
    fn proxy_authorization(&self, url: &HttpUrl) -> Option<String> {
        let (user, password) = self.proxy.as_ref().filter(|_| !url.is_https())?.credentials.as_ref()?;
        Some(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"))))
    }
}

#[derive(Default)]
struct Agents {
    /// By scheme, host and port: each may have its own roots.
    by_place: HashMap<String, Arc<Peer>>,
    system_roots: Option<Arc<Vec<Certificate<'static>>>>,
    stopped: bool,
}

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) url: HttpUrl,
    pub(crate) method: Method<'a>,
    pub(crate) accept: Option<&'a str>,
    /// The offset of the first requested byte.
    pub(crate) from: u64,
    /// The value of the `Authorization` header for the origin of `url`.
    pub(crate) authorization: Option<&'a str>,
    /// The requested object, for error messages.
    pub(crate) what: &'a str,
}

/// The method of a request.
pub(crate) enum Method<'a> {
    Get,
    /// A form; not redirected.
    Post(&'a str),
}

/// A response that is not a redirect.
pub(crate) struct HttpResponse {
    /// The URL after redirects.
    pub(crate) url: HttpUrl,
    pub(crate) response: Response<Body>,
}

impl HttpResponse {
    pub(crate) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The body of a small response, which must be complete within [`DOCUMENT_TIMEOUT`].
    pub(crate) fn document(self, what: &str) -> DocumentReader<BodyReader<'static>> {
        let (host, what) = (self.url.authority(), what.to_owned());
        let body = self.response.into_body().into_with_config().limit(u64::MAX).reader();
        DocumentReader { body, host, what, begun: Instant::now(), timeout: DOCUMENT_TIMEOUT }
    }
}

/// A body with a timeout of its own. Its error is a [`RegistryError`] inside an [`std::io::Error`].
pub(crate) struct DocumentReader<R> {
    body: R,
    host: String,
    what: String,
    begun: Instant,
    timeout: Duration,
}

impl<R: Read> Read for DocumentReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.begun.elapsed() > self.timeout {
            let (host, what, after) = (self.host.clone(), self.what.clone(), self.timeout);
            return Err(std::io::Error::other(RegistryError::Stalled { host, what, after }));
        }
        self.body.read(buffer)
    }
}

impl Http {
    /// `name` is the registry as the image reference or the configuration of mirrors names it, `registry` its address
    /// over https; `proxies` are the settings of the environment.
    pub(crate) fn new(
        name: &str,
        registry: &HttpUrl,
        endpoint: &Endpoint,
        config: &Config,
        proxies: ProxySettings,
    ) -> Self {
        let connect = endpoint.connect_timeout.unwrap_or(config.timeouts.connect);
        Self {
            origin: endpoint.origin.clone().unwrap_or_else(|| registry.clone()),
            headers: endpoint.headers.clone(),
            tls: endpoint.tls.clone(),
            registry: registry.host().to_owned(),
            secure: registry.clone(),
            name: name.to_owned(),
            insecure: endpoint.insecure,
            timeouts: Timeouts { connect, ..config.timeouts },
            certificate_dirs: config.certificate_dirs.clone(),
            proxies,
            agents: Mutex::default(),
        }
    }

    /// Sends a request and follows redirects.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<HttpResponse, RegistryError> {
        let mut url = request.url.clone();
        let mut authorization = request.authorization;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.exchange(&url, request, authorization)?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(HttpResponse { url, response });
            }
            let next = self.redirected(&url, request, &response)?;
            if !next.is_same_origin(&url) {
                authorization = None;
            }
            url = next;
        }
        Err(RegistryError::Redirect {
            from: request.url.authority(),
            to: url.authority(),
            why: "there are more than 10 redirects in a row",
        })
    }

    fn redirected(
        &self,
        from: &HttpUrl,
        request: &Request<'_>,
        answer: &Response<Body>,
    ) -> Result<HttpUrl, RegistryError> {
        let refuse = |to: String, why| RegistryError::Redirect { from: from.authority(), to, why };
        let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| refuse("nowhere".to_owned(), "it does not say where to"))?;
        // A query may hold a signature and is not shown.
        let visible =
            || shown(location.split(['?', '#']).next().unwrap_or_default().rsplit('@').next().unwrap_or_default());
        let to = from.join(location).map_err(|why| refuse(visible(), why))?;
        if matches!(request.method, Method::Post(_)) {
            return Err(refuse(to.authority(), "a request with credentials in its body is not redirected"));
        }
        if from.is_https() && !to.is_https() {
            return Err(refuse(to.authority(), "it leads from https to http"));
        }
        if !to.is_https() && !to.is_loopback() && !self.insecure.http {
            return Err(refuse(to.authority(), "plain http is not allowed there"));
        }
        Ok(to)
    }

    fn exchange(&self, url: &HttpUrl, what: &Request<'_>, auth: Option<&str>) -> Result<Response<Body>, RegistryError> {
        let at_home = url.host() == self.registry;
        if !at_home && url.address().is_some_and(is_metadata) {
            return Err(RegistryError::link_local(&url.authority()));
        }
        let peer = self.peer(url)?;
        let failed = |error| self.peer_failure(&peer, url, what.what, error);
        let mut builder = match what.method {
            Method::Get => http::Request::get(url.as_str()),
            Method::Post(_) => {
                http::Request::post(url.as_str()).header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            }
        };
        if let Some(accept) = what.accept {
            builder = builder.header(ACCEPT, accept);
        }
        if what.from > 0 {
            builder = builder.header(RANGE, format!("bytes={}-", what.from));
        }
        if url.is_same_origin(&self.origin) {
            builder = self.headers.iter().fold(builder, |builder, (name, value)| builder.header(name, value));
        }
        if let Some(auth) = auth {
            builder = builder.header(AUTHORIZATION, auth);
        }
        if let Some(auth) = peer.proxy_authorization(url) {
            builder = builder.header(PROXY_AUTHORIZATION, auth);
        }
        let response = match what.method {
            Method::Get => peer.agent.run(builder.body(()).map_err(|e| failed(e.into()))?),
            Method::Post(form) => peer.agent.run(builder.body(form).map_err(|e| failed(e.into()))?),
        }
        .map_err(failed)?;
        match &peer.proxy {
            Some(proxy) if response.status() == 407 => Err(proxy_refusal(
                proxy,
                url,
                "it wants a user name and password, or others than these (407)".to_owned(),
            )),
            _ => Ok(response),
        }
    }

    /// Whether requests to `plain` take the proxy that requests to `secure` take, if those take one.
    pub(crate) fn keeps_proxy(&self, secure: &HttpUrl, plain: &HttpUrl) -> Result<bool, RegistryError> {
        let Some(proxy) = self.proxies.proxy_for(secure)? else { return Ok(true) };
        Ok(self.proxies.proxy_for(plain)?.is_some_and(|other| other.url == proxy.url))
    }

    /// Aborts every exchange in flight; later ones fail at once.
    pub(crate) fn stop(&self) {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        agents.stopped = true;
        for peer in agents.by_place.values() {
            peer.agent.clone().shutdown();
        }
    }

    fn peer(&self, url: &HttpUrl) -> Result<Arc<Peer>, RegistryError> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents.stopped {
            return Err(RegistryError::Cancelled);
        }
        let key = url.to_string();
        if let Some(peer) = agents.by_place.get(&key) {
            return Ok(Arc::clone(peer));
        }
        let proxy = self.proxies.proxy_for(url)?;
        let certificates = self.certificates(url, proxy.as_ref(), &mut agents.system_roots)?;
        let agent = self.make_agent(url, &certificates, proxy.as_ref())?;
        let client = certificates.client.map(|(_, path)| path);
        let peer = Arc::new(Peer { agent, client, proxy });
        agents.by_place.insert(key, Arc::clone(&peer));
        Ok(peer)
    }

    fn make_agent(
        &self,
        url: &HttpUrl,
        certificates: &HostCertificates,
        proxy: Option<&Proxy>,
    ) -> Result<Agent, RegistryError> {
        // An https proxy is always verified against the system's roots.
        let plain_through_proxy = proxy.filter(|_| !url.is_https());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates.roots))
            .client_cert(certificates.client.as_ref().map(|(client, _)| client.clone()))
            .disable_verification(self.insecure.tls && url.host() == self.registry && plain_through_proxy.is_none())
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let silence = Some(self.timeouts.no_progress);
        let loopback = url.is_loopback();
        let connect =
            if loopback { self.timeouts.connect.min(LOOPBACK_CONNECT_TIMEOUT) } else { self.timeouts.connect };
        let mut builder = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(MAX_HEADERS)
            .user_agent(concat!("gantry/", env!("CARGO_PKG_VERSION")))
            // Blobs must not be re-encoded: the digest covers the bytes that are stored.
            .accept_encoding("identity")
            .timeout_resolve(Some(self.timeouts.connect))
            .timeout_connect(Some(connect))
            .timeout_send_request(silence)
            .timeout_recv_response(silence)
            .timeout_per_read(silence)
            .timeout_per_write(silence)
            .tls_config(tls)
            .proxy(None);
        if let Some(proxy) = plain_through_proxy {
            let unusable = |_| RegistryError::proxy_setting(proxy.variable, "it is not a URL");
            let connector = ForwardConnector {
                proxy: proxy.url.as_str().parse::<Uri>().map_err(unusable)?,
                origin: url.to_string(),
            };
            // A connection carries one request: each request must be rewritten to the absolute form.
            let config = builder.max_idle_connections(0).max_idle_connections_per_host(0).build();
            return Ok(Agent::with_parts(config, connector, Guard { exempt: true, by_proxy: true }));
        }
        if let Some(proxy) = proxy {
            builder = builder.proxy(Some(connect_proxy(proxy)?));
        }
        // A proxy may have any address, and it resolves the target's name itself.
        let guard = Guard { exempt: url.host() == self.registry || proxy.is_some(), by_proxy: false };
        Ok(Agent::with_parts(builder.build(), DefaultConnector::default(), guard))
    }

    /// The name of the directory with certificates for a host: the registry's as it is written in the image reference,
    /// as in containers-certs.d(5); for other hosts (redirects, token servers) the host, with the port unless that is
    /// the default.
    fn certificate_dir_name(&self, url: &HttpUrl) -> String {
        if url.is_same_origin(&self.secure) { self.name.clone() } else { url.authority() }
    }

    /// The certificates trusted for a host (the system's and those configured for it), and the client certificate for
    /// it. A plain-http host has none; an https proxy for it is verified against the system's.
    fn certificates(
        &self,
        url: &HttpUrl,
        proxy: Option<&Proxy>,
        system: &mut Option<Arc<Vec<Certificate<'static>>>>,
    ) -> Result<HostCertificates, RegistryError> {
        let https_proxy = proxy.filter(|proxy| proxy.url.is_https());
        if !url.is_https() && https_proxy.is_none() {
            return Ok(HostCertificates::default());
        }
        let mut found = if url.is_https() {
            certificates::read_host_certificates(&self.certificate_dirs, &self.certificate_dir_name(url))?
        } else {
            HostCertificates::default()
        };
        if url.is_https() && url.is_same_origin(&self.origin) {
            certificates::add_files(&mut found, &self.tls)?;
        }
        if let Some(proxy) = https_proxy.filter(|_| url.is_https()) {
            certificates::check_https_proxy(proxy, url, &found, self.insecure.tls && url.host() == self.registry)?;
        }
        let shared = match system {
            Some(roots) => Arc::clone(roots),
            None => Arc::clone(system.insert(Arc::new(certificates::system_roots()?))),
        };
        found.roots.extend(shared.iter().cloned());
        Ok(found)
    }

    /// Converts an error of ureq.
    pub(crate) fn failure(&self, url: &HttpUrl, what: &str, error: ureq::Error) -> RegistryError {
        match self.peer(url) {
            Ok(peer) => self.peer_failure(&peer, url, what, error),
            Err(cancelled) => cancelled,
        }
    }

    fn peer_failure(&self, peer: &Peer, url: &HttpUrl, what: &str, error: ureq::Error) -> RegistryError {
        let host = url.authority();
        let unreachable = |error| RegistryError::Unreachable {
            host: url.authority(),
            proxy: peer.proxy.as_ref().map(Proxy::origin),
            source: Box::new(error),
        };
        match error {
            ureq::Error::Timeout(Timeout::Resolve) => unresolved(peer, url, std::io::ErrorKind::TimedOut.into()),
            ureq::Error::Timeout(Timeout::Connect) => unreachable(error),
            ureq::Error::Timeout(_) => {
                RegistryError::Stalled { host, what: what.to_owned(), after: self.timeouts.no_progress }
            }
            ureq::Error::Other(inner) => match inner.downcast::<LinkLocal>() {
                Ok(_) => RegistryError::link_local(&host),
                Err(other) => match other.downcast::<LookupFailed>() {
                    Ok(failed) => unresolved(peer, url, failed.0),
                    Err(other) => unreachable(ureq::Error::Other(other)),
                },
            },
            ureq::Error::HostNotFound => unresolved(peer, url, std::io::Error::other("the name has no address")),
            ureq::Error::ConnectProxyFailed(why) => match &peer.proxy {
                Some(proxy) => proxy_refusal(proxy, url, shown(&why)),
                None => unreachable(ureq::Error::ConnectProxyFailed(why)),
            },
            ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => {
                RegistryError::bad_response(&host, what, shown(&error.to_string()))
            }
            // These two errors show the URL, which may hold a signature.
            ureq::Error::BadUri(_) | ureq::Error::RequireHttpsOnly(_) => {
                RegistryError::bad_response(&host, what, "its URL is malformed")
            }
            ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => RegistryError::request(&host, error),
            error if tls_error(&error).is_some() || matches!(error, ureq::Error::Tls(_) | ureq::Error::Pem(_)) => {
                let dir =
                    self.certificate_dirs.first().cloned().unwrap_or_default().join(self.certificate_dir_name(url));
                let hint = tls_hint(tls_error(&error), &dir, peer.client.as_deref());
                RegistryError::Tls { host, hint, source: Box::new(error) }
            }
            error => unreachable(error),
        }
    }

    /// Converts an error of reading a response's body.
    pub(crate) fn read_failure(&self, url: &HttpUrl, what: &str, error: std::io::Error) -> RegistryError {
        let error = match error.downcast::<RegistryError>() {
            Ok(error) => return error,
            Err(error) => error,
        };
        match ureq::Error::from(error) {
            ureq::Error::Io(source) if source.kind() == std::io::ErrorKind::TimedOut => RegistryError::Stalled {
                host: url.authority(),
                what: what.to_owned(),
                after: self.timeouts.no_progress,
            },
            ureq::Error::Io(source) => RegistryError::Broken { host: url.authority(), what: what.to_owned(), source },
            // A truncated chunked body is a broken connection.
            ureq::Error::Protocol(inner) => RegistryError::Broken {
                host: url.authority(),
                what: what.to_owned(),
                source: std::io::Error::new(std::io::ErrorKind::UnexpectedEof, inner),
            },
            error => self.failure(url, what, error),
        }
    }
}

/// Whether an error means that the peer does not speak TLS (rather than that its certificate is bad).
pub(crate) fn is_no_tls(error: &RegistryError) -> bool {
    match error {
        RegistryError::Tls { source, .. } => matches!(tls_error(source), Some(TlsError::InvalidMessage(_))),
        RegistryError::Unreachable { proxy: None, source, .. } => match &**source {
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
        // Proxies commonly allow CONNECT to port 443 only.
        RegistryError::Stalled { .. } | RegistryError::ProxyRefused { .. } => true,
        _ => false,
    }
}

/// Whether the connection was refused.
pub(crate) fn is_refused(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable { proxy: None, source, .. }
        if matches!(&**source, ureq::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused))
}

/// The proxy as ureq's type; ureq reaches https targets through it by CONNECT.
fn connect_proxy(proxy: &Proxy) -> Result<ureq::Proxy, RegistryError> {
    let protocol = if proxy.url.is_https() { ProxyProtocol::Https } else { ProxyProtocol::Http };
    let mut builder = ureq::Proxy::builder(protocol).host(proxy.url.host()).port(proxy.url.port());
    if let Some((user, password)) = &proxy.credentials {
        builder = builder.username(user).password(password);
    }
    let unusable = |_| RegistryError::proxy_setting(proxy.variable, "it is not a URL");
    builder.build().map_err(unusable)
}

fn proxy_refusal(proxy: &Proxy, url: &HttpUrl, why: String) -> RegistryError {
    RegistryError::ProxyRefused { host: url.authority(), proxy: proxy.origin(), why }
}

/// The error for a name that cannot be resolved: the proxy's, if there is one.
fn unresolved(peer: &Peer, url: &HttpUrl, source: std::io::Error) -> RegistryError {
    let name = match &peer.proxy {
        Some(proxy) => format!("the name of the proxy {}", proxy.origin()),
        None => format!("the host name {}", url.host()),
    };
    RegistryError::Unresolved { name, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(name: &str, registry: &HttpUrl, config: &Config) -> Http {
        let (host, repository) = (name.to_owned(), "app".to_owned());
        let reference = gantry_model::RegistryRef { host, repository, tag: None, digest: None };
        Http::new(name, registry, &Endpoint::of(&reference, config.insecure), config, ProxySettings::default())
    }

    fn redirect(from: &str, location: &str, method: Method<'_>, insecure: bool) -> Result<String, String> {
        let from = HttpUrl::parse(from).unwrap();
        let config = Config { insecure: Insecure { http: insecure, tls: false }, ..Config::default() };
        let http = http(&from.authority(), &from, &config);
        let request =
            Request { url: from.clone(), method, accept: None, from: 0, authorization: Some("secret"), what: "x" };
        let answer = Response::builder().header(LOCATION, location).body(Body::builder().data("")).unwrap();
        http.redirected(&from, &request, &answer).map(|url| url.as_str().to_owned()).map_err(|error| error.to_string())
    }

    #[test]
    fn redirect_targets_are_validated() {
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
    fn endless_documents_end_at_their_own_timeout() {
        let url = HttpUrl::parse("https://reg.example/").unwrap();
        let (host, what, timeout) = (url.authority(), "a token".to_owned(), Duration::ZERO);
        let mut endless = DocumentReader { body: std::io::repeat(b'x'), host, what, begun: Instant::now(), timeout };
        let error = std::io::copy(&mut endless, &mut std::io::sink()).unwrap_err();
        let failure = http("reg.example", &url, &Config::default()).read_failure(&url, "a token", error);
        assert!(matches!(&failure, RegistryError::Stalled { after: Duration::ZERO, .. }), "{failure:?}");
    }

    #[test]
    fn https_proxies_are_verified_by_system_roots() {
        let registry = HttpUrl::parse("http://reg.example/").unwrap();
        let http = http("reg.example", &registry, &Config::default());
        for (proxy, roots) in [("https://proxy.example/", 1), ("http://proxy.example/", 0)] {
            let proxy = Proxy { url: HttpUrl::parse(proxy).unwrap(), credentials: None, variable: "HTTP_PROXY" };
            let mut system = Some(Arc::new(vec![Certificate::from_der(b"root")]));
            let found = http.certificates(&registry, Some(&proxy), &mut system).unwrap();
            assert_eq!(found.roots.len(), roots, "{}", proxy.url);
        }
    }

    /// As podman does (containers-certs.d(5)): the directory is named like the registry in the image reference.
    #[test]
    fn certificates_come_from_the_directory_of_the_registry() {
        let dir = tempfile::tempdir().unwrap();
        let all = ["reg.example", "reg.example:443", "REG.example", "reg.example:5000", "cdn.example"];
        let config = Config { certificate_dirs: vec![dir.path().to_owned()], ..Config::default() };
        for (name, asked, want) in [
            ("reg.example", "https://reg.example/", "reg.example"),
            ("reg.example:443", "https://reg.example/", "reg.example:443"),
            ("REG.example", "https://reg.example/", "REG.example"),
            ("reg.example:5000", "https://reg.example:5000/", "reg.example:5000"),
            ("reg.example:443", "https://CDN.example:443/", "cdn.example"),
            ("reg.example:5000", "https://reg.example/", "reg.example"),
        ] {
            let registry = HttpUrl::from_host(name, true).unwrap();
            let http = http(name, &registry, &config);
            let used = |file: &str| {
                let path = dir.path().join(file);
                std::fs::create_dir(&path).unwrap();
                // It is read, and refused because its certificate is missing.
                std::fs::write(path.join("a.key"), "").unwrap();
                let mut system = Some(Arc::new(Vec::new()));
                let read = http.certificates(&HttpUrl::parse(asked).unwrap(), None, &mut system).is_err();
                std::fs::remove_dir_all(path).unwrap();
                read
            };
            let found: Vec<_> = all.into_iter().filter(|file| used(file)).collect();
            assert_eq!(found, [want], "{name} {asked}");
        }
    }

    #[test]
    fn redirect_errors_hide_secrets() {
        for location in ["http://u:hunter2@h/x", "ftp://h/x?sig=hunter2", "http://h/x?sig=hunter2#hunter2"] {
            let error = redirect("https://reg.example/", location, Method::Get, false).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
    }
}
