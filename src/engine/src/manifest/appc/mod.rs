//! appc manifests (schema 0.8.11), which rkt's clients read: their JSON, and the rules for names.
//!
//! * [`write`]: converts a pod or an image to its manifest.
//! * [`read`]: converts a pod manifest given by a user to gantry's own.
//!
//! Written manifests omit what appc cannot express: variables whose names appc does not allow, limits on processes, an
//! empty set of capabilities. Annotations whose names are not identifiers become `userAnnotations`.

pub(crate) mod read;
pub(crate) mod write;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The supported version of appc.
pub const VERSION: &str = "0.8.11";
/// The kind of a pod manifest.
pub(crate) const POD: &str = "PodManifest";
/// The kind of an image manifest.
pub(crate) const IMAGE: &str = "ImageManifest";

/// Names of isolators.
pub(crate) mod isolator {
    pub(crate) const MEMORY: &str = "resource/memory";
    pub(crate) const CPU: &str = "resource/cpu";
    pub(crate) const CPU_SHARES: &str = "os/linux/cpu-shares";
    pub(crate) const OOM_SCORE_ADJ: &str = "os/linux/oom-score-adj";
    pub(crate) const NO_NEW_PRIVILEGES: &str = "os/linux/no-new-privileges";
    pub(crate) const RETAIN_CAPABILITIES: &str = "os/linux/capabilities-retain-set";
    pub(crate) const REMOVE_CAPABILITIES: &str = "os/linux/capabilities-remove-set";
    pub(crate) const RETAIN_CALLS: &str = "os/linux/seccomp-retain-set";
    pub(crate) const REMOVE_CALLS: &str = "os/linux/seccomp-remove-set";
    /// In a set of system calls to remove: none at all (rkt's wildcard).
    pub(crate) const NO_CALLS: &str = "@appc.io/empty";
}

/// Whether a manifest contains the values of environment variables, which may be passwords.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Secrets {
    /// With the values.
    Shown,
    /// With empty values; the names stay.
    Hidden,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PodManifest {
    pub(crate) ac_version: String,
    pub(crate) ac_kind: String,
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) apps: Vec<RuntimeApp>,
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) volumes: Vec<Volume>,
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) isolators: Vec<Isolator>,
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) annotations: Vec<Pair>,
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) ports: Vec<ExposedPort>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user_annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user_labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageManifest {
    pub(crate) ac_kind: String,
    pub(crate) ac_version: String,
    pub(crate) name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) labels: Vec<Pair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<App>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) annotations: Vec<Pair>,
}

/// An annotation, a label, or a variable of the environment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pair {
    pub(crate) name: String,
    pub(crate) value: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RuntimeApp {
    pub(crate) name: String,
    pub(crate) image: RuntimeImage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) app: Option<App>,
    #[serde(default, rename = "readOnlyRootFS", skip_serializing_if = "std::ops::Not::not")]
    pub(crate) read_only_root: bool,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) mounts: Vec<Mount>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) annotations: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct RuntimeImage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) labels: Vec<Pair>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct App {
    #[serde(default, deserialize_with = "or_null")]
    pub(crate) exec: Vec<String>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) event_handlers: Vec<serde_json::Value>,
    pub(crate) user: String,
    pub(crate) group: String,
    #[serde(
        default,
        rename = "supplementaryGIDs",
        deserialize_with = "or_null",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub(crate) supplementary_gids: Vec<u32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) working_directory: String,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) environment: Vec<Pair>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) mount_points: Vec<MountPoint>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<Port>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "Vec::is_empty")]
    pub(crate) isolators: Vec<Isolator>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user_annotations: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_null", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) user_labels: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct MountPoint {
    pub(crate) name: String,
    pub(crate) path: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) read_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Mount {
    pub(crate) volume: String,
    pub(crate) path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) app_volume: Option<serde_json::Value>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) read_only: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) recursive: Option<bool>,
    /// Octal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gid: Option<u32>,
}

/// A port of an app.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Port {
    pub(crate) name: String,
    pub(crate) protocol: String,
    pub(crate) port: u16,
    #[serde(default = "one")]
    pub(crate) count: u16,
    #[serde(default)]
    pub(crate) socket_activated: bool,
}

fn one() -> u16 {
    1
}

/// A published port.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExposedPort {
    pub(crate) name: String,
    pub(crate) host_port: u16,
    #[serde(default, rename = "hostIP", skip_serializing_if = "Option::is_none")]
    pub(crate) host_ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pod_port: Option<Port>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Isolator {
    pub(crate) name: String,
    pub(crate) value: serde_json::Value,
}

/// Go writes an empty list as `null`.
fn or_null<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a text is an ACIdentifier: lower-case letters, digits and `-._~/`, the first and the last a letter or digit.
pub(crate) fn is_identifier(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let edge = |c: Option<&u8>| c.is_some_and(|&c| inner(c));
    let bytes = text.as_bytes();
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|&c| inner(c) || b"-._~/".contains(&c))
}

/// A text as an ACIdentifier, by appc's own rule (`SanitizeACIdentifier`): `127.0.0.1:5000/app` is
/// `127.0.0.1_5000/app`. `None` if no character remains.
pub(crate) fn identifier(text: &str) -> Option<String> {
    let lower = text.to_lowercase();
    let fit = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() || "-._~/".contains(c) { c } else { '_' };
    let text: String = lower.chars().map(fit).collect();
    let trimmed = text.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// Whether this can be the name of an environment variable: a letter or `_`, then letters, digits and `_.-`.
pub(crate) fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_')
        && bytes.all(|c| c.is_ascii_alphanumeric() || b"_.-".contains(&c))
}

#[cfg(test)]
pub(crate) mod tests;
