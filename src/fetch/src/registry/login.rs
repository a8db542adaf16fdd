//! Checks a user name and password with a registry.

use gantry_model::RegistryRef;

use super::auth::{self, Auth};
use super::http::{Method, Request};
use super::{Registry, RegistryError};
use crate::auth_file::Credentials;
use crate::progress::Progress;
use crate::settings::Config;

const LOGIN: &str = "the login";

/// Checks `credentials` with the registry `host`. False if the registry demands none, so that they are unchecked.
///
/// # Errors
/// [`RegistryError`]: it cannot be reached, or it does not accept them.
pub fn check_login(
    host: &str,
    credentials: Credentials,
    config: &Config,
    progress: &dyn Progress,
) -> Result<bool, RegistryError> {
    let reference = RegistryRef { host: host.to_owned(), repository: String::new(), tag: None, digest: None };
    let mut registry = Registry::new(&reference, config, progress)?;
    registry.auth = Auth::with_credentials(host, credentials, config.insecure);
    registry.retried(|| check_once(&registry))
}

/// Requests the root of the API, which every registry with authentication protects.
fn check_once(registry: &Registry<'_>) -> Result<bool, RegistryError> {
    let origin = registry.origin()?;
    let url = origin.with_path("/v2/");
    let mut asked = false;
    loop {
        let standing = registry.auth.standing();
        let authorization = standing.header.as_deref();
        let request =
            Request { url: url.clone(), method: Method::Get, accept: None, from: 0, authorization, what: LOGIN };
        let answer = registry.http.send(&request)?;
        let (status, host) = (answer.status(), answer.url.authority());
        match status {
            200 => return Ok(asked),
            401 if !asked && answer.url.is_same_origin(&origin) => {
                registry.auth.renew(&registry.http, &origin, &answer, standing.generation)?;
                asked = true;
            }
            401 | 403 => {
                return Err(RegistryError::denied(&host, LOGIN, status, auth::NOT_ACCEPTED, &auth::message_of(answer)));
            }
            404 => {
                let why = "it does not speak the registry API (404 for /v2/)";
                return Err(RegistryError::bad_response(&host, LOGIN, why));
            }
            _ => {
                let retry_after = super::asked_wait(&answer);
                return Err(RegistryError::Status {
                    host,
                    what: LOGIN.to_owned(),
                    status,
                    message: auth::message_of(answer),
                    retry_after,
                });
            }
        }
    }
}
