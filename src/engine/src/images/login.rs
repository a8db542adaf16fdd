//! `login` and `logout`: checks credentials with a registry and stores them where podman, docker and gantry read them.
//! Needs neither a store nor root.

use std::path::{Path, PathBuf};

use gantry_fetch::auth_file::{AuthFileError, Credentials};
use gantry_fetch::registry::{RegistryError, check_login};
use gantry_fetch::{Config, Progress, auth_file, auth_store};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};
use thiserror::Error;

/// A login could not be checked, stored or removed.
#[derive(Debug, Error)]
pub enum LoginError {
    /// The registry did not accept it.
    #[error("cannot log in to {}", shown(.host))]
    Registry {
        /// The registry.
        host: String,
        /// Why.
        #[source]
        source: Box<RegistryError>,
    },
    /// The credential file or its helper.
    #[error(transparent)]
    File(#[from] AuthFileError),
    /// There is no login to remove.
    #[error("not logged in to {}", shown(.host))]
    NotLoggedIn {
        /// The registry.
        host: String,
    },
    /// The name holds more than a host.
    #[error("'{}' is not a registry such as registry.example:5000", shown(.0))]
    Host(String),
}

impl Kind for LoginError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Registry { source, .. } => source.kind(),
            Self::File(error) => error.kind(),
            Self::NotLoggedIn { .. } => ErrorKind::NotFound,
            Self::Host(_) => ErrorKind::Invalid,
        }
    }
}

/// A stored login.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedIn {
    /// The registry.
    pub host: String,
    /// The file, or the helper, that has the credentials.
    pub place: String,
    /// Whether the registry checked the credentials (some registries need none).
    pub checked: bool,
}

/// The registry that a text such as `https://registry.example/` means.
///
/// # Errors
/// [`LoginError::Host`].
pub fn registry_host(text: &str) -> Result<String, LoginError> {
    let bare = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let bare = bare.strip_suffix("/v1/").or_else(|| bare.strip_suffix("/v2/")).unwrap_or(bare).trim_end_matches('/');
    // The reference grammar says what a host is.
    match format!("oci://{bare}/x").parse() {
        Ok(gantry_model::ImageRef::Registry(reference))
            if reference.repository.ends_with('x') && !bare.contains('/') =>
        {
            Ok(reference.host)
        }
        _ if bare == "docker.io" || bare == "index.docker.io" => Ok("docker.io".to_owned()),
        _ => Err(LoginError::Host(text.to_owned())),
    }
}

/// Checks user name and password at the registry, then files them in `path` (the default place when there is none).
///
/// # Errors
/// [`LoginError`]; then nothing was filed.
pub fn log_in(
    config: &Config,
    host: &str,
    (user, password): (&str, &str),
    path: Option<&Path>,
    progress: &dyn Progress,
) -> Result<LoggedIn, LoginError> {
    let credentials = Credentials::Basic { user: user.to_owned(), password: password.to_owned() };
    let checked = check_login(host, credentials, config, progress)
        .map_err(|source| LoginError::Registry { host: host.to_owned(), source: Box::new(source) })?;
    let path = path.map_or_else(Config::login_file, Path::to_owned);
    let place = auth_store::save_login(&path, host, user, password)?;
    Ok(LoggedIn { host: host.to_owned(), place, checked })
}

/// Removes the login for `host`, or all logins of the file. Returns a place that still has one for `host`, or for any
/// registry: credential helpers keep theirs when all are removed, and pulls read other files too.
///
/// # Errors
/// [`LoginError`].
pub fn log_out(config: &Config, host: Option<&str>, path: Option<&Path>) -> Result<Option<String>, LoginError> {
    let file = path.map_or_else(Config::login_file, Path::to_owned);
    let removed = auth_store::remove_login(&file, host)?;
    let others: Vec<PathBuf> = if path.is_some() { vec![file] } else { config.auth_files.clone() };
    let Some(host) = host else { return auth_file::find_any(&others).map_err(LoginError::from) };
    let left = auth_file::find(&others, host, "")?.map(|found| found.place);
    if removed || left.is_some() { Ok(left) } else { Err(LoginError::NotLoggedIn { host: host.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, want) in [
            ("registry.example:5000", Some("registry.example:5000")),
            ("https://registry.example/", Some("registry.example")),
            ("https://index.docker.io/v1/", Some("docker.io")),
            ("docker.io", Some("docker.io")),
            ("localhost", Some("localhost")),
            ("[::1]:5000", Some("[::1]:5000")),
            ("registry", None),
            ("registry.example/team", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(registry_host(text).ok().as_deref(), want, "{text}");
        }
    }
}
