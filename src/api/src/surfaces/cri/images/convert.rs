//! Requests and responses of images, field by field.

use std::collections::{BTreeSet, HashMap};

use base64::Engine as _;
use gantry_engine::{Credentials, FetchCredentials, ImageView, repository_of};
use gantry_model::{ImageId, ImageRef};
use gantry_proto::cri::v1::{AuthConfig, Image, ImageSpec, Int64Value};
use serde_json::{Value, json};
use tonic::Status;

use crate::request::check_text;
use crate::status::invalid_field;

/// Reads the reference of a request. Annotations and handlers are of runtimes with several stores.
///
/// # Errors
/// `INVALID_ARGUMENT` if there is none or it is malformed.
pub(in super::super) fn reference(image: Option<ImageSpec>) -> Result<ImageRef, Status> {
    let text = image.map(|spec| spec.image).unwrap_or_default();
    check_text("image", &text)?;
    text.parse().map_err(|error| invalid_field("image", &format!("{error}")))
}

/// Reads the credentials of a request; `None` if all fields are empty.
///
/// # Errors
/// `INVALID_ARGUMENT` if `auth` is not `user:password` in base64.
pub(super) fn credentials(auth: AuthConfig) -> Result<Option<FetchCredentials>, Status> {
    let AuthConfig { username, password, auth, server_address, identity_token, registry_token } = auth;
    let credentials = if !username.is_empty() {
        Credentials::Basic { user: username, password }
    } else if !identity_token.is_empty() {
        Credentials::Identity(identity_token)
    } else if !registry_token.is_empty() {
        Credentials::Bearer(registry_token)
    } else if !auth.is_empty() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok();
        let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
        let pair = text.as_deref().and_then(|text| text.split_once(':'));
        // The value is a password and is not shown.
        let (user, password) = pair.ok_or_else(|| invalid_field("auth.auth", "it must be USER:PASSWORD in base64"))?;
        // Some versions of Docker pad the password with NUL bytes.
        Credentials::Basic { user: user.to_owned(), password: password.trim_end_matches('\0').to_owned() }
    } else {
        return Ok(None);
    };
    Ok(Some(FetchCredentials { host: server_host(&server_address), credentials }))
}

/// The host of a server address: `https://index.docker.io/v1/`, or a host with or without a path.
fn server_host(address: &str) -> Option<String> {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    rest.split('/').next().filter(|host| !host.is_empty()).map(str::to_owned)
}

/// The image as a kubelet sees it.
pub(super) fn image(view: &ImageView) -> Image {
    let (uid, username) = user(view);
    let (repo_tags, repo_digests) = names(&view.row.names, &view.row.id);
    Image {
        id: view.row.id.to_string(),
        repo_tags,
        repo_digests,
        // A size of zero means that the image does not exist.
        size: view.row.size.max(1),
        uid,
        username,
        // The kubelet names images by their ids.
        spec: None,
        // No sandbox needs an image.
        pinned: false,
    }
}

/// The names with tags, and those with digests. A repository without a digest, as of an image that another program
/// fetched, has that of the image.
fn names(names: &[String], id: &ImageId) -> (Vec<String>, Vec<String>) {
    let (digests, tags): (Vec<String>, Vec<String>) = names.iter().cloned().partition(|name| name.contains('@'));
    let mut all: BTreeSet<String> = digests.iter().cloned().collect();
    let known: BTreeSet<&str> = digests.iter().map(|name| repository_of(name)).collect();
    for repository in tags.iter().map(|name| repository_of(name)).filter(|name| !known.contains(name)) {
        all.insert(format!("{repository}@{id}"));
    }
    (tags, all.into_iter().collect())
}

/// The user of the configuration, a number or a name, without its group.
fn user(view: &ImageView) -> (Option<Int64Value>, String) {
    let user = view.config.as_ref().and_then(|config| config.user.as_deref()).unwrap_or_default();
    let user = user.split(':').next().unwrap_or_default();
    match user.parse::<u32>() {
        Ok(uid) => (Some(Int64Value { value: uid.into() }), String::new()),
        Err(_) => (None, user.to_owned()),
    }
}

/// What crictl shows of an image: the names are containerd's. `config` is the configuration as fetched.
pub(super) fn info(view: &ImageView, config: Option<&[u8]>) -> HashMap<String, String> {
    let chain = view.row.layers.last().map(|layer| layer.chain.to_string()).unwrap_or_default();
    let config: Value = config.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
    HashMap::from([("info".to_owned(), json!({ "chainID": chain, "imageSpec": config }).to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_in_order() {
        let basic = |user: &str, password: &str| Credentials::Basic { user: user.into(), password: password.into() };
        let auth = AuthConfig { auth: "dTpwOnEA".into(), ..AuthConfig::default() };
        let token = AuthConfig { registry_token: "r".into(), ..auth.clone() };
        let identity = AuthConfig { identity_token: "i".into(), ..token.clone() };
        let user = AuthConfig { username: "a".into(), password: "b".into(), ..identity.clone() };
        for (config, want) in [
            (AuthConfig::default(), None),
            (auth, Some(basic("u", "p:q"))),
            (token, Some(Credentials::Bearer("r".into()))),
            (identity, Some(Credentials::Identity("i".into()))),
            (user, Some(basic("a", "b"))),
        ] {
            assert_eq!(credentials(config).unwrap().map(|found| found.credentials), want);
        }
        for auth in ["x", "dQ==", "/w=="] {
            let config = AuthConfig { auth: auth.to_owned(), ..AuthConfig::default() };
            assert_eq!(credentials(config).unwrap_err().code(), tonic::Code::InvalidArgument, "{auth}");
        }
    }

    #[test]
    fn server_addresses_are_reduced_to_hosts() {
        for (address, want) in [
            ("", None),
            ("https://index.docker.io/v1/", Some("index.docker.io")),
            ("reg.example:5000", Some("reg.example:5000")),
            ("reg.example/team", Some("reg.example")),
            ("https://", None),
        ] {
            assert_eq!(server_host(address).as_deref(), want, "{address}");
        }
    }

    #[test]
    fn every_repository_has_a_digest() {
        let hex = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let id: ImageId = hex("a").parse().unwrap();
        let digest = format!("b/x@{}", hex("b"));
        let given = ["a:5000/x:1".to_owned(), "b/x:1".to_owned(), "b/x:2".to_owned(), digest.clone()];
        let (tags, digests) = names(&given, &id);
        assert_eq!(tags, given[..3]);
        assert_eq!(digests, [format!("a:5000/x@{id}"), digest]);
    }
}
