//! Credential files of podman and docker: `auth.json` (containers-auth.json(5)) and `config.json`.
//!
//! The first file with credentials for the registry wins. Within a file: a helper for the host (`credHelpers`), then
//! the entry whose key is the longest prefix of `host/repository` (`auths`), then the default helper (`credsStore`). No
//! message quotes a file's content, which may be a password.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use gantry_host::file::{is_absent, read_stream};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::credential_helper::{error_text, run_helper};

/// Maximum length of a credential file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Credentials. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// User name and password.
    Basic {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A refresh token (`identitytoken`), exchanged at the token server.
    Identity(String),
    /// A token (`registrytoken`) that is sent unchanged.
    Bearer(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

/// Credentials and their source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredCredentials {
    /// The credentials.
    pub credentials: Credentials,
    /// The file, and the helper it names.
    pub place: String,
}

/// A credential file or a helper cannot be used: what was attempted on which file, the kind, and the cause.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct AuthFileError {
    pub(crate) message: String,
    pub(crate) kind: ErrorKind,
    pub(crate) source: Option<std::io::Error>,
}

impl AuthFileError {
    /// For `map_err`: `attempt`, as in "read the credentials in", failed on the file.
    pub(crate) fn io(attempt: &str, path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |error| Self {
            message: format!("cannot {attempt} {}", path.display()),
            kind: ErrorKind::of_io(&error),
            source: Some(error),
        }
    }

    fn too_large(path: &Path) -> Self {
        let message = format!("the credential file {} is larger than 1 MiB", path.display());
        Self { message, kind: ErrorKind::Exhausted, source: None }
    }

    /// The file is malformed: near this line, or in a value.
    pub(crate) fn malformed(path: &Path, line: Option<usize>) -> Self {
        let place = line.map(|line| format!(" near line {line}")).unwrap_or_default();
        let message = format!(
            "the credential file {} is malformed{place}; mend it, or move it away and log in again",
            path.display()
        );
        Self { message, kind: ErrorKind::Invalid, source: None }
    }

    /// The helper `name`, which the file names, failed. `why` is escaped.
    pub(crate) fn helper(path: &Path, name: &str, why: &str) -> Self {
        let message = format!(
            "the credential helper docker-credential-{}, named in {}, failed: {why}",
            shown(name),
            path.display()
        );
        Self { message, kind: ErrorKind::Unavailable, source: None }
    }
}

impl Kind for AuthFileError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: Option<BTreeMap<String, AuthEntry>>,
    #[serde(default, rename = "credHelpers")]
    helpers: Option<BTreeMap<String, String>>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Deserialize, Default)]
struct AuthEntry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default, rename = "identitytoken")]
    identity: Option<String>,
    #[serde(default, rename = "registrytoken")]
    registry: Option<String>,
}

/// Finds the credentials for a repository; `None` if no file has any. `host` is as in the reference.
///
/// # Errors
/// [`AuthFileError`]: a file exists and cannot be used. Missing files are skipped.
pub fn find(files: &[PathBuf], host: &str, repository: &str) -> Result<Option<StoredCredentials>, AuthFileError> {
    for path in files {
        let Some(file) = read_auth_file::<File>(path)? else { continue };
        if let Some(found) = file_credentials(path, &file, host, repository)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Finds a source of credentials for any registry: a file, or a helper that it names.
///
/// # Errors
/// [`AuthFileError`]: a file exists and it or a helper cannot be used. Missing files are skipped.
pub fn find_any(files: &[PathBuf]) -> Result<Option<String>, AuthFileError> {
    for path in files {
        let Some(file) = read_auth_file::<File>(path)? else { continue };
        for entry in file.auths.iter().flatten().map(|(_, entry)| entry) {
            if entry_credentials(path, entry)?.is_some() {
                return Ok(Some(path.display().to_string()));
            }
        }
        for (key, name) in file.helpers.iter().flatten() {
            if let Some(found) = helper_credentials(path, name, key)? {
                return Ok(Some(found.place));
            }
        }
        if let Some(name) = file.store.as_deref().filter(|name| !name.is_empty())
            && has_logins(path, name)?
        {
            return Ok(Some(helper_place(path, name)));
        }
    }
    Ok(None)
}

/// Reads a credential file of at most [`MAX_FILE`] bytes; `None` if it does not exist or is empty.
pub(crate) fn read_auth_file<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, AuthFileError> {
    let failed = AuthFileError::io("read the credentials in", path);
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let bytes = read_stream(file, MAX_FILE).map_err(|error| match error.kind() {
        std::io::ErrorKind::FileTooLarge => AuthFileError::too_large(path),
        _ => failed(error),
    })?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(None);
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| AuthFileError::malformed(path, Some(error.line())))
}

fn file_credentials(
    path: &Path,
    file: &File,
    host: &str,
    repository: &str,
) -> Result<Option<StoredCredentials>, AuthFileError> {
    let helper = file.helpers.iter().flatten().find(|(key, _)| same_host(key, host));
    if let Some((key, name)) = helper {
        return helper_credentials(path, name, key);
    }
    let wanted = format!("{}/{repository}", canonical_host(host));
    let prefix = |key: &str| {
        let key = canonical_key(key);
        let rest = wanted.strip_prefix(key.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then_some(key.len())
    };
    let entries = file.auths.iter().flatten();
    let mut fitting: Vec<(usize, &AuthEntry)> = entries.filter_map(|(key, e)| Some((prefix(key)?, e))).collect();
    fitting.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    for (_, entry) in fitting {
        if let Some(credentials) = entry_credentials(path, entry)? {
            return Ok(Some(StoredCredentials { credentials, place: path.display().to_string() }));
        }
    }
    match &file.store {
        Some(name) if !name.is_empty() => {
            let key = if canonical_host(host) == "docker.io" { "https://index.docker.io/v1/" } else { host };
            helper_credentials(path, name, key)
        }
        _ => Ok(None),
    }
}

/// The credentials of a helper for `key`.
fn helper_credentials(path: &Path, name: &str, key: &str) -> Result<Option<StoredCredentials>, AuthFileError> {
    let found = ask(path, name, key)?;
    Ok(found.map(|credentials| StoredCredentials { credentials, place: helper_place(path, name) }))
}

fn helper_place(path: &Path, name: &str) -> String {
    format!("docker-credential-{}, which {} names,", shown(name), path.display())
}

fn entry_credentials(path: &Path, entry: &AuthEntry) -> Result<Option<Credentials>, AuthFileError> {
    let full = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    if let Some(token) = full(&entry.identity) {
        return Ok(Some(Credentials::Identity(token)));
    }
    if let Some(token) = full(&entry.registry) {
        return Ok(Some(Credentials::Bearer(token)));
    }
    if let Some(auth) = full(&entry.auth) {
        let decoded = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = text.as_deref().and_then(|text| text.split_once(':'));
        let (user, password) = pair.ok_or_else(|| AuthFileError::malformed(path, None))?;
        // Some versions of Docker pad the password with NUL bytes.
        let password = password.trim_end_matches('\0').to_owned();
        return Ok(Some(Credentials::Basic { user: user.to_owned(), password }));
    }
    let pair = full(&entry.username).zip(full(&entry.password));
    Ok(pair.map(|(user, password)| Credentials::Basic { user, password }))
}

/// The canonical name of Docker Hub's hosts.
pub(crate) fn canonical_host(host: &str) -> &str {
    if matches!(host, "index.docker.io" | "registry-1.docker.io" | "registry.hub.docker.com") {
        "docker.io"
    } else {
        host
    }
}

/// A key of `auths` as `host[/path]`. Old keys are URLs with the API version as the path.
fn canonical_key(key: &str) -> String {
    let bare = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://"));
    let text = match bare {
        // Only the host of a URL counts.
        Some(url) => url.split('/').next().unwrap_or_default(),
        None => key.trim_end_matches('/'),
    };
    let (host, path) = text.split_once('/').map_or((text, None), |(host, path)| (host, Some(path)));
    match path {
        Some("v1" | "v2") | None => canonical_host(host).to_owned(),
        Some(path) => format!("{}/{path}", canonical_host(host)),
    }
}

pub(crate) fn same_host(key: &str, host: &str) -> bool {
    canonical_key(key) == canonical_host(host)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// Runs a credential helper's "get" (docker-credential-helpers): the key on stdin, JSON on stdout.
fn ask(path: &Path, name: &str, key: &str) -> Result<Option<Credentials>, AuthFileError> {
    let failed = |why: &str| AuthFileError::helper(path, name, why);
    let (success, output) = run_helper(name, "get", key).map_err(|why| failed(&why))?;
    if !success {
        let text = String::from_utf8_lossy(&output);
        if text.contains("credentials not found") {
            return Ok(None);
        }
        return Err(failed(&format!("it ended with an error{}", error_text(&output))));
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&output).map_err(|_| failed("its answer is not JSON with Username and Secret"))?;
    Ok(match answer.username.as_str() {
        "<token>" => Some(Credentials::Identity(answer.secret)),
        _ if answer.secret.is_empty() => None,
        _ => Some(Credentials::Basic { user: answer.username, password: answer.secret }),
    })
}

/// Runs a credential helper's "list" (docker-credential-helpers) to find out whether it has any login.
fn has_logins(path: &Path, name: &str) -> Result<bool, AuthFileError> {
    let failed = |why: &str| AuthFileError::helper(path, name, why);
    let (success, output) = run_helper(name, "list", "").map_err(|why| failed(&why))?;
    if !success {
        return Err(failed(&format!("'list' ended with an error{}", error_text(&output))));
    }
    let logins: Option<BTreeMap<String, serde_json::Value>> =
        serde_json::from_slice(&output).map_err(|_| failed("its answer to 'list' is not a JSON object"))?;
    Ok(logins.is_some_and(|logins| !logins.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(json: &str, host: &str, repository: &str) -> Option<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), json).unwrap();
        match find(&[PathBuf::from("/nonexistent/auth.json"), file.path().to_owned()], host, repository)
            .unwrap()?
            .credentials
        {
            Credentials::Basic { user, password } => Some(format!("{user}:{password}")),
            Credentials::Identity(token) => Some(format!("identity {token}")),
            Credentials::Bearer(token) => Some(format!("bearer {token}")),
        }
    }

    #[test]
    fn the_longest_prefix_wins() {
        let auth = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let json = format!(
            r#"{{"auths":{{"reg.example":{{"auth":"{}"}},"reg.example/team":{{"auth":"{}"}},"reg.example:5000":{{"auth":"{}"}},
            "https://index.docker.io/v1/":{{"username":"hub","password":"h"}},"https://old.example/v1/":{{"auth":"{}"}},
            "empty.example":{{}},"id.example":{{"identitytoken":"t"}},"raw.example":{{"registrytoken":"r"}}}}}}"#,
            auth("host:a:b"),
            auth("team:t"),
            auth("port:p"),
            auth("old:o"),
        );
        for (host, repository, want) in [
            ("reg.example", "x", Some("host:a:b")),
            ("reg.example", "team/x", Some("team:t")),
            ("reg.example", "teammate/x", Some("host:a:b")),
            ("reg.example:5000", "team/x", Some("port:p")),
            ("docker.io", "library/x", Some("hub:h")),
            ("old.example", "x", Some("old:o")),
            ("empty.example", "x", None),
            ("id.example", "x", Some("identity t")),
            ("raw.example", "x", Some("bearer r")),
            ("eg.example", "x", None),
            ("reg.example.evil", "x", None),
        ] {
            assert_eq!(found(&json, host, repository).as_deref(), want, "{host}/{repository}");
        }
    }

    #[test]
    fn logins_of_every_form_are_found() {
        for (json, has_login) in [
            ("", false),
            ("{}", false),
            (r#"{"auths":{},"credHelpers":{},"credsStore":""}"#, false),
            (r#"{"auths":{"reg.example":{}}}"#, false),
            (r#"{"auths":{"reg.example":{},"other.example/team":{"auth":"YTpi"}}}"#, true),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), json).unwrap();
            let place = find_any(&[PathBuf::from("/nonexistent/auth.json"), file.path().to_owned()]).unwrap();
            assert_eq!(place, has_login.then(|| file.path().display().to_string()), "{json}");
        }
        for json in [r#"{"credsStore":"a b"}"#, r#"{"credHelpers":{"reg.example":"a b"}}"#] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), json).unwrap();
            let error = find_any(&[file.path().to_owned()]).unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("helper"), "{json}: {error}");
        }
    }

    #[test]
    fn errors_name_malformed_files_without_quoting_them() {
        for json in [r#"{"auths":{"h":"hunter2"}}"#, "hunter2", r#"{"auths":{"h":{"auth":"hunter2"}}}"#] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), json).unwrap();
            let error = find(&[file.path().to_owned()], "h", "x").unwrap_err();
            let text = format!("{error} {error:?}");
            assert!(text.contains(&file.path().display().to_string()) && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn helpers_with_invalid_names_are_not_run() {
        for name in ["../../bin/sh", "a b", ""] {
            let json = format!(r#"{{"credHelpers":{{"h":"{name}"}}}}"#);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), json).unwrap();
            let error = find(&[file.path().to_owned()], "h", "x").unwrap_err();
            assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("helper"), "{name}: {error}");
        }
    }

    proptest! {
        #[test]
        fn keys_never_panic(key: String, host: String) {
            let _ = (canonical_key(&key), same_host(&key, &host));
        }
    }
}
