//! Authentication with a registry: anonymous until a challenge arrives, then a token of its token server, or user and
//! password.
//!
//! The registry names its token server (the Docker token specification), which receives the credentials stored for the
//! registry, as with docker and podman: a registry trusted with a password is trusted to name the server that checks
//! it. The server must be reached over https (over http only from loopback to loopback, or where plain http is
//! allowed), and a redirect to another origin drops the credentials ([`super::http`]).

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use gantry_host::file::{read_stream, read_truncated};
use gantry_model::id::shown;
use serde::Deserialize;
use url::form_urlencoded;

use super::challenge::{self, Challenge};
use super::error::{REQUEST, RegistryError, login_advice};
use super::http::{Http, HttpResponse, Method, Request};
use super::url::HttpUrl;
use crate::auth_file::{self, Credentials};
use crate::settings::Insecure;

/// Maximum length of a token server's reply in bytes.
const MAX_TOKEN: u64 = 1 << 20;

/// The error for credentials that are checked by a login.
pub(crate) const NOT_ACCEPTED: &str = "the user name or the password is not accepted";

/// Maximum number of further repositories for which a registry may demand a token.
const MAX_SCOPES: usize = 8;

/// The authorization for one repository of one registry.
pub(crate) struct Auth {
    /// The host under which credentials are stored: as in the reference.
    host: String,
    repository: String,
    files: Vec<PathBuf>,
    /// Credentials of the caller; no file is read.
    given: Option<Credentials>,
    /// Whether the given ones are those of a login.
    is_login: bool,
    insecure: Insecure,
    /// Locked while a token is fetched, so that parallel downloads with a stale token fetch one new token.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    generation: u64,
    header: Option<String>,
    credentials: Option<String>,
}

/// The current `Authorization` header and its generation.
pub(crate) struct CurrentAuthorization {
    pub(crate) generation: u64,
    pub(crate) header: Option<String>,
    /// The source of the credentials; `None` for an anonymous token.
    pub(crate) credentials: Option<String>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

impl Auth {
    pub(crate) fn new(host: &str, repository: &str, files: Vec<PathBuf>, insecure: Insecure) -> Self {
        let (host, repository) = (host.to_owned(), repository.to_owned());
        Self { host, repository, files, given: None, is_login: false, insecure, state: Mutex::default() }
    }

    /// Authorization for a registry as a whole, with these credentials only.
    pub(crate) fn with_credentials(host: &str, credentials: Credentials, insecure: Insecure) -> Self {
        Self { given: Some(credentials), is_login: true, ..Self::new(host, "", Vec::new(), insecure) }
    }

    /// The same with the credentials of a request in place of those of the files.
    pub(crate) fn with_request(self, credentials: Credentials) -> Self {
        Self { given: Some(credentials), ..self }
    }

    /// The credentials and their source.
    fn credentials(&self) -> Result<(Option<Credentials>, Option<String>), RegistryError> {
        if self.given.is_some() {
            return Ok((self.given.clone(), (!self.is_login).then(|| REQUEST.to_owned())));
        }
        let found = auth_file::find(&self.files, &self.host, &self.repository)?;
        Ok(found.map(|found| (found.credentials, found.place)).unzip())
    }

    pub(crate) fn standing(&self) -> CurrentAuthorization {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        CurrentAuthorization {
            generation: state.generation,
            header: state.header.clone(),
            credentials: state.credentials.clone(),
        }
    }

    /// Answers the challenge of a 401. `seen` is the generation that was refused; if another thread has renewed since,
    /// its result is used.
    pub(crate) fn renew(
        &self,
        http: &Http,
        origin: &HttpUrl,
        refused: &HttpResponse,
        seen: u64,
    ) -> Result<(), RegistryError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.generation != seen {
            return Ok(());
        }
        let refuse = |why: &str| RegistryError::challenge(&origin.authority(), why);
        let headers: Vec<&str> = refused
            .response
            .headers()
            .get_all("www-authenticate")
            .iter()
            .map(|value| value.to_str().map_err(|_| refuse("the WWW-Authenticate header is not text")))
            .collect::<Result<_, _>>()?;
        let challenge = challenge::parse(&headers).map_err(refuse)?;
        let (credentials, place) = self.credentials()?;
        let header = match (challenge, &credentials) {
            (Challenge::Basic, Some(Credentials::Basic { user, password })) => basic(user, password),
            (Challenge::Basic, _) => return Err(self.denied(origin, 401, place.as_deref())),
            (Challenge::Bearer { .. }, Some(Credentials::Bearer(token))) => bearer(token)
                .ok_or_else(|| RegistryError::token(&origin.authority(), "the token on file is malformed"))?,
            (Challenge::Bearer { realm, service, scope }, _) => {
                let realm = self.realm(origin, &realm)?;
                let scopes = self.scopes(scope);
                let answer = self.token(http, &realm, service.as_deref(), &scopes, credentials.as_ref())?;
                self.read_token(http, &realm, answer, place.as_deref())?
            }
        };
        *state = State { generation: seen + 1, header: Some(header), credentials: place };
        Ok(())
    }

    fn denied(&self, origin: &HttpUrl, status: u16, place: Option<&str>) -> RegistryError {
        let (what, advice) = match self.is_login {
            true => ("the login", NOT_ACCEPTED.to_owned()),
            false => (self.repository.as_str(), login_advice(place, &self.host)),
        };
        RegistryError::denied(&origin.authority(), what, status, &advice, "")
    }

    fn realm(&self, origin: &HttpUrl, text: &str) -> Result<HttpUrl, RegistryError> {
        let refuse =
            |why: &str| RegistryError::challenge(&origin.authority(), &format!("its token server is refused: {why}"));
        let realm = HttpUrl::parse(text).map_err(refuse)?;
        let local = origin.is_loopback() && realm.is_loopback();
        if !realm.is_https() && !local && !self.insecure.http {
            return Err(refuse("it is not reached by https"));
        }
        Ok(realm)
    }

    /// The scopes to request: pulling this repository, and pulling others if the registry demands it. Other actions are
    /// never requested, whatever a registry demands.
    fn scopes(&self, demanded: Option<String>) -> Vec<String> {
        if self.repository.is_empty() {
            return Vec::new();
        }
        let own = format!("repository:{}:pull", self.repository);
        let further = demanded.as_deref().unwrap_or_default().split_ascii_whitespace();
        let mut scopes = vec![own];
        for scope in further.filter_map(pull_scope).take(MAX_SCOPES) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    fn token(
        &self,
        http: &Http,
        realm: &HttpUrl,
        service: Option<&str>,
        scopes: &[String],
        credentials: Option<&Credentials>,
    ) -> Result<HttpResponse, RegistryError> {
        let mut query: Vec<(&str, &str)> = service.map(|service| ("service", service)).into_iter().collect();
        let joined = scopes.join(" ");
        let what = "a token";
        match credentials {
            Some(Credentials::Identity(refresh)) => {
                // OAuth 2 (RFC 6749 section 6), in the form of the Docker registry's oauth2 specification.
                query.extend([("grant_type", "refresh_token"), ("refresh_token", refresh), ("client_id", "gantry")]);
                query.push(("scope", &joined));
                let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(&query).finish();
                let request = Request {
                    url: realm.clone(),
                    method: Method::Post(&form),
                    accept: None,
                    from: 0,
                    authorization: None,
                    what,
                };
                http.send(&request)
            }
            _ => {
                query.extend(scopes.iter().map(|scope| ("scope", scope.as_str())));
                let header = match credentials {
                    Some(Credentials::Basic { user, password }) => Some(basic(user, password)),
                    _ => None,
                };
                let url = realm.with_query(&query);
                let authorization = header.as_deref();
                http.send(&Request { url, method: Method::Get, accept: None, from: 0, authorization, what })
            }
        }
    }

    fn read_token(
        &self,
        http: &Http,
        realm: &HttpUrl,
        answer: HttpResponse,
        place: Option<&str>,
    ) -> Result<String, RegistryError> {
        let refuse = |why: &str| RegistryError::token(&realm.authority(), why);
        match answer.status() {
            200 => {}
            status @ (400 | 401 | 403) => return Err(self.denied(realm, status, place)),
            status => {
                return Err(RegistryError::Status {
                    host: realm.authority(),
                    what: "a token".to_owned(),
                    status,
                    message: String::new(),
                    retry_after: super::asked_wait(&answer),
                });
            }
        }
        let bytes = read_stream(answer.document("a token"), MAX_TOKEN).map_err(|error| match error.kind() {
            std::io::ErrorKind::FileTooLarge => refuse("its answer is larger than 1 MiB"),
            _ => http.read_failure(realm, "a token", error),
        })?;
        // The parser's message is omitted: it may quote the token.
        let parsed: TokenAnswer = serde_json::from_slice(&bytes).map_err(|_| refuse("its answer is not JSON"))?;
        let token = parsed.token.or(parsed.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| refuse("its answer has none"))?;
        bearer(&token).ok_or_else(|| refuse("it is malformed"))
    }
}

/// The scope for pulling, if a demanded scope (`repository:NAME:ACTION[,ACTION…]`, the Docker token specification)
/// includes pulling.
fn pull_scope(scope: &str) -> Option<String> {
    let (kind, rest) = scope.split_once(':')?;
    // A name may begin with a host and its port.
    let (name, actions) = rest.rsplit_once(':')?;
    let plain = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-' | b'/' | b':');
    let named = (1..=512).contains(&name.len()) && name.bytes().all(plain);
    let pulls = actions.split(',').any(|action| action == "pull");
    (kind == "repository" && named && pulls).then(|| format!("repository:{name}:pull"))
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}")))
}

/// The header for a token; `None` if the token contains characters that end a header.
fn bearer(token: &str) -> Option<String> {
    let fits = token.len() <= 64 << 10 && token.bytes().all(|c| c.is_ascii_graphic());
    fits.then(|| format!("Bearer {token}"))
}

/// The message in a registry's error body (OCI distribution specification, "Error Codes"), escaped; empty if there is
/// none.
pub(crate) fn message_of(answer: HttpResponse) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    // A truncated body explains nothing; the status does.
    let Ok(bytes) = read_truncated(answer.document("an error message"), 4096) else { return String::new() };
    let errors = serde_json::from_slice::<Errors>(&bytes).map(|errors| errors.errors).unwrap_or_default();
    match errors.first() {
        Some(One { code, message }) if message.is_empty() => shown(code),
        Some(One { code, message }) => format!("{}: {}", shown(code), shown(message)),
        // The reply of Go's server to plain http on its TLS port.
        None if bytes.starts_with(b"Client sent an HTTP request to an HTTPS server") => {
            "it speaks TLS on this port".to_owned()
        }
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pull_access_is_requested() {
        let auth = Auth::new("h", "a/b", Vec::new(), Insecure::default());
        for (demanded, want) in [
            (None, vec!["repository:a/b:pull"]),
            (Some("repository:a/b:pull"), vec!["repository:a/b:pull"]),
            (Some("repository:base:pull"), vec!["repository:a/b:pull", "repository:base:pull"]),
            (Some("repository:a/b:pull,push"), vec!["repository:a/b:pull"]),
            (Some("repository:a/b:push repository:x:pull"), vec!["repository:a/b:pull", "repository:x:pull"]),
            (Some("repository:a/b:push"), vec!["repository:a/b:pull"]),
            (Some("repository:x:push,pull repository:x:pull"), vec!["repository:a/b:pull", "repository:x:pull"]),
            (Some("repository:h:5000/x:pull"), vec!["repository:a/b:pull", "repository:h:5000/x:pull"]),
            (Some("repository:x y:pull"), vec!["repository:a/b:pull"]),
            (Some("repository:x&scope=y:pull"), vec!["repository:a/b:pull"]),
            (Some("repository::pull repository:x:delete"), vec!["repository:a/b:pull"]),
            (Some("registry:catalog:*"), vec!["repository:a/b:pull"]),
        ] {
            assert_eq!(auth.scopes(demanded.map(str::to_owned)), want, "{demanded:?}");
        }
    }

    #[test]
    fn tokens_with_control_characters_are_rejected() {
        assert!(bearer("a\r\nHost: evil").is_none() && bearer("ab.c").is_some());
    }
}
