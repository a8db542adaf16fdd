//! `login` and `logout`: checks credentials with a registry and stores them where podman, docker and gantry read them.
//! Needs neither a store nor root.

use std::path::{Path, PathBuf};

use gantry_fetch::auth_file::Credentials;
use gantry_fetch::registry::check_login;
use gantry_fetch::{Config, Progress, auth_file, auth_store};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind as _};

use crate::EngineError;

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

/// The host of a registry from a text such as `https://registry.example/`.
///
/// # Errors
/// The text is not the name of a registry.
pub fn registry_host(text: &str) -> Result<String, EngineError> {
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
        // Not a host.
        _ => {
            let text = format!("'{}' is not a registry such as registry.example:5000", shown(text));
            Err(EngineError::new(ErrorKind::Invalid, text))
        }
    }
}

/// Checks user name and password with the registry, then stores them in `path` (by default in the first file of
/// containers-auth.json(5)).
///
/// # Errors
/// [`EngineError`]; then nothing was stored.
pub fn log_in(
    config: &Config,
    host: &str,
    (user, password): (&str, &str),
    path: Option<&Path>,
    progress: &dyn Progress,
) -> Result<LoggedIn, EngineError> {
    let credentials = Credentials::Basic { user: user.to_owned(), password: password.to_owned() };
    let checked = check_login(host, credentials, config, progress).map_err(|source| {
        EngineError::new(source.kind(), format!("cannot log in to {}", shown(host))).caused_by(source)
    })?;
    let path = path.map_or_else(Config::login_file, Path::to_owned);
    let place = auth_store::save_login(&path, host, user, password).map_err(EngineError::from_cause)?;
    Ok(LoggedIn { host: host.to_owned(), place, checked })
}

/// Removes the login for `host`, or all logins of the file. Returns a place that still has one for `host`, or for any
/// registry: credential helpers keep theirs when all are removed, and pulls read other files too.
///
/// # Errors
/// [`EngineError`].
pub fn log_out(config: &Config, host: Option<&str>, path: Option<&Path>) -> Result<Option<String>, EngineError> {
    let file = path.map_or_else(Config::login_file, Path::to_owned);
    let removed = auth_store::remove_login(&file, host).map_err(EngineError::from_cause)?;
    let others: Vec<PathBuf> = if path.is_some() { vec![file] } else { config.auth_files.clone() };
    let Some(host) = host else { return auth_file::find_any(&others).map_err(EngineError::from_cause) };
    let left = auth_file::find(&others, host, "").map_err(EngineError::from_cause)?.map(|found| found.place);
    if removed || left.is_some() {
        return Ok(left);
    }
    Err(EngineError::new(ErrorKind::NotFound, format!("not logged in to {}", shown(host))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_hosts_are_normalized() {
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
