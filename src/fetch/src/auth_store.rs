//! Writes the credential files that [`crate::auth_file`] reads, in the format of podman, docker and skopeo.
//!
//! A file is replaced atomically (temporary file in the same directory, sync, rename), with mode 0600; all other
//! content is preserved. If the file names a credential helper for a registry, the credentials go to the helper and not
//! to the file.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use gantry_host::file::sync_path;
use gantry_host::lock::LockMode;
use serde_json::{Map, Value, json};

use crate::auth_file::{AuthFileError, canonical_host, read_auth_file, same_host};
use crate::credential_helper::{error_text, run_helper};

/// Timeout of waiting for another writer of the same file.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a failed change of the file attempted, for errors.
const WRITE: &str = "write the credentials to";

/// Stores user name and password for the registry `host`. Returns the place where they were stored.
///
/// # Errors
/// [`AuthFileError`].
pub fn save_login(path: &Path, host: &str, user: &str, password: &str) -> Result<String, AuthFileError> {
    let _lock = lock_directory(path)?;
    let mut file: Map<String, Value> = read_auth_file(path)?.unwrap_or_default();
    if let Some(helper) = helper_for(&file, host) {
        let key = server_key(host);
        let input = json!({ "ServerURL": key, "Username": user, "Secret": password }).to_string();
        ask_helper(path, &helper, "store", &input)?;
        return Ok(format!("docker-credential-{}", gantry_model::id::shown(&helper)));
    }
    let auths = auths_of(&mut file, path)?;
    auths.retain(|key, _| !same_host(key, host) || key.contains('/') && !key.contains("://"));
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    auths.insert(canonical_host(host).to_owned(), json!({ "auth": auth }));
    write(path, &file)?;
    Ok(path.display().to_string())
}

/// Removes the credentials for the registry `host`, or for every registry. False if there were none.
///
/// # Errors
/// [`AuthFileError`].
pub fn remove_login(path: &Path, host: Option<&str>) -> Result<bool, AuthFileError> {
    if !path.exists() {
        return Ok(false);
    }
    let _lock = lock_directory(path)?;
    let mut file: Map<String, Value> = read_auth_file(path)?.unwrap_or_default();
    let mut removed = false;
    if let Some(host) = host
        && let Some(helper) = helper_for(&file, host)
    {
        removed = ask_helper(path, &helper, "erase", server_key(host))?;
    }
    let auths = auths_of(&mut file, path)?;
    let before = auths.len();
    auths.retain(|key, _| host.is_some_and(|host| !same_host(key, host)));
    if auths.len() != before {
        write(path, &file)?;
        removed = true;
    }
    Ok(removed)
}

/// The key under which helpers store the credentials of a registry.
fn server_key(host: &str) -> &str {
    if canonical_host(host) == "docker.io" { "https://index.docker.io/v1/" } else { host }
}

fn helper_for(file: &Map<String, Value>, host: &str) -> Option<String> {
    let helpers = file.get("credHelpers").and_then(Value::as_object);
    let own = helpers.and_then(|helpers| helpers.iter().find(|(key, _)| same_host(key, host)).map(|(_, name)| name));
    own.or(file.get("credsStore")).and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// Runs a helper; returns false if it reports that it has no such credentials.
fn ask_helper(path: &Path, name: &str, verb: &'static str, input: &str) -> Result<bool, AuthFileError> {
    let failed = |why: &str| AuthFileError::helper(path, name, why);
    let (success, output) = run_helper(name, verb, input).map_err(|why| failed(&why))?;
    if success {
        return Ok(true);
    }
    if String::from_utf8_lossy(&output).contains("credentials not found") {
        return Ok(false);
    }
    Err(failed(&format!("'{verb}' ended with an error{}", error_text(&output))))
}

fn auths_of<'a>(file: &'a mut Map<String, Value>, path: &Path) -> Result<&'a mut Map<String, Value>, AuthFileError> {
    let auths = file.entry("auths").or_insert_with(|| json!({}));
    if auths.is_null() {
        *auths = json!({});
    }
    auths.as_object_mut().ok_or_else(|| AuthFileError::malformed(path, None))
}

fn directory_of(path: &Path) -> PathBuf {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Creates the directory if it is missing, and excludes other writers.
fn lock_directory(path: &Path) -> Result<File, AuthFileError> {
    let failed = AuthFileError::io(WRITE, path);
    let dir = directory_of(path);
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(&failed)?;
    let lock = File::open(&dir).map_err(&failed)?;
    match gantry_host::lock::lock_within(&lock, LockMode::Exclusive, LOCK_TIMEOUT, |_| Ok(())) {
        Ok(true) => Ok(lock),
        Ok(false) => Err(failed(rustix::io::Errno::AGAIN.into())),
        Err(error) => Err(failed(error)),
    }
}

fn write(path: &Path, file: &Map<String, Value>) -> Result<(), AuthFileError> {
    // Keep a symbolic link to the file.
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let failed = AuthFileError::io(WRITE, &path);
    let text = serde_json::to_string_pretty(file).map_err(|error| failed(error.into()))?;
    let dir = directory_of(&path);
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = dir.join(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        // A killed process with the same pid may have left this file.
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")?;
        out.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        sync_path(&dir)
    })();
    if written.is_err() {
        // Report the first failure.
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::auth_file::{Credentials, find};

    fn found(path: &Path, host: &str) -> Option<String> {
        match find(&[path.to_owned()], host, "x").unwrap()?.credentials {
            Credentials::Basic { user, password } => Some(format!("{user}:{password}")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn changing_a_login_keeps_other_entries() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/auth.json");
        let other = r#"{"auths":{"other.example":{"auth":"YTpi"},"https://index.docker.io/v1/":{"auth":"b2xkOm9sZA=="},
            "reg.example/team":{"auth":"dDp0"}},"credHelpers":{"h.example":"x"},"unknown":[1]}"#;
        assert_eq!(save_login(&path, "reg.example", "u", "p:w").unwrap(), path.display().to_string());
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        std::fs::write(&path, other).unwrap();
        save_login(&path, "reg.example", "u", "p:w").unwrap();
        save_login(&path, "docker.io", "hub", "h").unwrap();
        assert_eq!(found(&path, "reg.example").as_deref(), Some("u:p:w"));
        assert_eq!(found(&path, "docker.io").as_deref(), Some("hub:h"));
        let now: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((&now["unknown"], &now["credHelpers"]["h.example"]), (&json!([1]), &json!("x")));
        assert_eq!(now["auths"].as_object().unwrap().len(), 4, "{now}");
        assert!(remove_login(&path, Some("reg.example")).unwrap());
        assert!(!remove_login(&path, Some("reg.example")).unwrap());
        assert_eq!((found(&path, "reg.example"), found(&path, "other.example").as_deref()), (None, Some("a:b")));
        assert!(remove_login(&path, None).unwrap());
        assert_eq!(found(&path, "other.example"), None);
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a temporary file was left");
    }

    #[test]
    fn a_damaged_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("auth.json");
        for text in ["{", "[]", r#"{"auths":[]}"#] {
            std::fs::write(&path, text).unwrap();
            assert!(save_login(&path, "h.example", "u", "p").is_err(), "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
