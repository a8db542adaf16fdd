//! The image configuration (OCI image specification, config.md; Docker's v1.2 image JSON is the same document), parsed
//! and checked for the engine.

use std::collections::BTreeMap;

use gantry_model::health::HealthSettings;
use gantry_model::id::shown;
use gantry_model::signal;
use gantry_model::{Digest, ErrorKind, Kind};
use serde::Deserialize;
use thiserror::Error;

pub use crate::platform::Platform;
pub use crate::settings::{Config, Insecure, Timeouts};

/// Maximum number of layers of an image. The kernel accepts a little over a hundred and twenty lower directories in one
/// overlay mount's option page, and images beyond this do not exist in practice.
pub const MAX_LAYERS: usize = 128;

/// Maximum number of volumes of an image. Each becomes a mount and a directory of every pod that runs it.
pub const MAX_VOLUMES: usize = 200;

/// The execution settings of an image. Nothing here is trusted: the engine validates users, paths and signals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    /// The fixed beginning of the command; may be empty.
    pub entrypoint: Vec<String>,
    /// The default arguments, or the whole command if there is no entry point; may be empty.
    pub cmd: Vec<String>,
    /// The environment in the order of the document; entries without `=` are omitted, as in Docker.
    pub env: Vec<(String, String)>,
    /// `user`, `uid`, `user:group` or `uid:gid`, as written; none means root.
    pub user: Option<String>,
    /// The working directory, as written; none means `/`.
    pub working_dir: Option<String>,
    /// The signal that asks the app to end.
    pub stop_signal: Option<u8>,
    /// Paths that are volumes, sorted.
    pub volumes: Vec<String>,
    /// Ports such as `80/tcp`, sorted.
    pub exposed_ports: Vec<String>,
    /// The health check (docker's `HEALTHCHECK`, which the OCI specification does not have).
    pub health: HealthSettings,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The digests of the unpacked layers, bottom first; at most [`MAX_LAYERS`].
    pub diff_ids: Vec<Digest>,
    /// Operating system; empty if the document names none.
    pub os: String,
    /// Architecture; empty if the document names none.
    pub architecture: String,
    /// Variant of the architecture.
    pub variant: Option<String>,
}

impl ImageConfig {
    /// The platform that the image declares; `None` if it declares none.
    #[must_use]
    pub fn platform(&self) -> Option<Platform> {
        let said = !self.os.is_empty() && !self.architecture.is_empty();
        said.then(|| Platform {
            os: self.os.clone(),
            architecture: self.architecture.clone(),
            variant: self.variant.clone(),
        })
    }
}

/// A document is not an image configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// It is not JSON of the right shape.
    #[error("the image configuration does not follow its specification: {0}")]
    Json(String),
    /// A value is out of its range.
    #[error("the image configuration is refused: {0}")]
    Value(String),
    /// More layers than [`MAX_LAYERS`].
    #[error("the image has {0} layers; gantry takes at most {MAX_LAYERS}, because they are mounted as one overlay")]
    TooManyLayers(usize),
    /// More volumes than [`MAX_VOLUMES`].
    #[error("the image declares {0} volumes; gantry takes at most {MAX_VOLUMES}")]
    TooManyVolumes(usize),
}

impl Kind for ConfigError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Json(_) => ErrorKind::Damaged,
            Self::Value(_) => ErrorKind::Invalid,
            Self::TooManyLayers(_) | Self::TooManyVolumes(_) => ErrorKind::Exhausted,
        }
    }
}

/// The JSON of the document. oci-spec's `ImageConfiguration` is stricter than Docker, which omits `diff_ids` in an
/// image without layers, and `os` and `architecture` in old images.
#[derive(Deserialize)]
struct ImageConfigJson {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    variant: Option<String>,
    #[serde(default, deserialize_with = "run_configuration")]
    config: RunConfiguration,
    rootfs: RootFsJson,
}

/// The execution settings: those of the specification, and docker's health check beside them.
#[derive(Default)]
struct RunConfiguration {
    config: oci_spec::image::Config,
    health: HealthSettings,
}

/// The keys of `Volumes` and `ExposedPorts` are what counts. The specification has empty objects as their values, and
/// oci-spec insists on them; Docker takes anything, and some tools write null.
fn run_configuration<'de, D: serde::Deserializer<'de>>(json: D) -> Result<RunConfiguration, D::Error> {
    let Some(mut config) = Option::<serde_json::Map<String, serde_json::Value>>::deserialize(json)? else {
        return Ok(RunConfiguration::default());
    };
    let health = config.remove("Healthcheck").map(crate::healthcheck::parse).unwrap_or_default();
    for member in ["Volumes", "ExposedPorts"] {
        let keys = config.get_mut(member).and_then(serde_json::Value::as_object_mut);
        for value in keys.into_iter().flat_map(|keys| keys.values_mut()) {
            *value = serde_json::Value::Object(serde_json::Map::new());
        }
    }
    let config = serde_json::from_value(config.into()).map_err(serde::de::Error::custom)?;
    Ok(RunConfiguration { config, health })
}

#[derive(Deserialize)]
struct RootFsJson {
    #[serde(rename = "type")]
    kind: String,
    diff_ids: Option<Vec<String>>,
}

/// Parses an image configuration.
///
/// # Errors
/// [`ConfigError`]: not such a document, a value no image can have, or too many layers.
pub fn parse(bytes: &[u8]) -> Result<ImageConfig, ConfigError> {
    let document: ImageConfigJson =
        serde_json::from_slice(bytes).map_err(|error| ConfigError::Json(crate::manifest::json_problem(&error)))?;
    let rootfs = document.rootfs;
    if rootfs.kind != "layers" {
        return Err(ConfigError::Value(format!("rootfs type '{}' is not 'layers'", shown(&rootfs.kind))));
    }
    let RunConfiguration { config: run, health } = document.config;
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let config = ImageConfig {
        entrypoint: run.entrypoint().clone().unwrap_or_default(),
        cmd: run.cmd().clone().unwrap_or_default(),
        env: parse_environment(run.env().as_deref().unwrap_or_default()),
        user: given(run.user()),
        working_dir: given(run.working_dir()),
        stop_signal: given(run.stop_signal()).map(|name| parse_signal(&name)).transpose()?,
        volumes: check_volumes(run.volumes().clone().unwrap_or_default())?,
        exposed_ports: sorted(run.exposed_ports().clone().unwrap_or_default()),
        health,
        labels: run.labels().clone().unwrap_or_default().into_iter().collect(),
        diff_ids: parse_diff_ids(&rootfs.diff_ids.unwrap_or_default())?,
        os: document.os,
        architecture: document.architecture,
        variant: given(&document.variant),
    };
    refuse_nul(&config)?;
    Ok(config)
}

fn parse_environment(lines: &[String]) -> Vec<(String, String)> {
    let pair = |line: &String| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    lines.iter().filter_map(pair).filter(|(name, _)| !name.is_empty()).collect()
}

/// Sorts the former keys of a map: oci-spec returns them in the order of their hashes.
fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

fn check_volumes(paths: Vec<String>) -> Result<Vec<String>, ConfigError> {
    match paths.len() {
        0..=MAX_VOLUMES => Ok(sorted(paths)),
        count => Err(ConfigError::TooManyVolumes(count)),
    }
}

fn parse_diff_ids(texts: &[String]) -> Result<Vec<Digest>, ConfigError> {
    if texts.len() > MAX_LAYERS {
        return Err(ConfigError::TooManyLayers(texts.len()));
    }
    let parse = |text: &String| text.parse().map_err(|e| ConfigError::Value(format!("in rootfs.diff_ids: {e}")));
    texts.iter().map(parse).collect()
}

/// Nothing that reaches execve or a mount may hold a NUL byte: it would be cut there.
fn refuse_nul(config: &ImageConfig) -> Result<(), ConfigError> {
    let texts = config.entrypoint.iter().chain(&config.cmd).chain(&config.user).chain(&config.working_dir);
    let texts = texts.chain(&config.volumes).chain(config.env.iter().flat_map(|(name, value)| [name, value]));
    match texts.into_iter().find(|text| text.contains('\0')) {
        Some(text) => Err(ConfigError::Value(format!("'{}' contains a NUL byte", shown(text)))),
        None => Ok(()),
    }
}

/// A signal as images write it.
fn parse_signal(text: &str) -> Result<u8, ConfigError> {
    signal::parse(text).map_err(|_| ConfigError::Value(format!("the stop signal '{}' is not a signal", shown(text))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_field_is_parsed() {
        let text = format!(
            r#"{{"os":"linux","architecture":"arm64","variant":"v8","config":{{"Entrypoint":["/a"],"Cmd":null,
            "Env":["A=1=2","B=","odd"],"User":"","WorkingDir":"/w","StopSignal":"SIGQUIT","Volumes":{{"/v":{{}}}},
            "ExposedPorts":{{"80/tcp":{{}}}},"Labels":{{"x":"y"}}}},"rootfs":{{"type":"layers","diff_ids":["{ID}"]}}}}"#
        );
        let config = parse(text.as_bytes()).unwrap();
        assert_eq!(config.env, [("A".into(), "1=2".into()), ("B".into(), String::new())]);
        assert_eq!((config.user, config.working_dir, config.stop_signal), (None, Some("/w".into()), Some(3)));
        assert_eq!((config.entrypoint, config.cmd), (vec!["/a".to_owned()], Vec::new()));
        assert_eq!((config.volumes, config.exposed_ports), (vec!["/v".to_owned()], vec!["80/tcp".to_owned()]));
        assert_eq!(config.diff_ids, [ID.parse().unwrap()]);
    }

    #[test]
    fn stop_signals_are_parsed() {
        for (text, want) in [
            ("SIGTERM", Some(15)),
            ("term", Some(15)),
            ("9", Some(9)),
            ("RTMIN+3", Some(37)),
            ("SIGRTMAX-14", Some(50)),
        ] {
            assert_eq!(parse_signal(text).ok(), want, "{text}");
        }
        for bad in ["0", "65", "SIG", "-9", "RTMIN+99", "RTMAX-64", "256", "SIGNOPE", "RTMIN+300"] {
            assert!(parse_signal(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn invalid_configurations_are_rejected() {
        let many =
            format!(r#"{{"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#, vec![format!("\"{ID}\""); 129].join(","));
        let volumes = |count: usize| {
            let all: Vec<String> = (0..count).map(|i| format!("\"/v{i}\":{{}}")).collect();
            format!(r#"{{"config":{{"Volumes":{{{}}}}},"rootfs":{{"type":"layers"}}}}"#, all.join(","))
        };
        let too_many = volumes(MAX_VOLUMES + 1);
        assert_eq!(parse(volumes(MAX_VOLUMES).as_bytes()).unwrap().volumes.len(), MAX_VOLUMES);
        let rows = [
            "{}",
            "[]",
            r#"{"rootfs":{"type":"tree","diff_ids":[]}}"#,
            r#"{"rootfs":{"type":"layers","diff_ids":["md5:00"]}}"#,
            r#"{"config":{"User":"a\u0000b"},"rootfs":{"type":"layers"}}"#,
            r#"{"config":{"Env":["A=\u0000"]},"rootfs":{"type":"layers"}}"#,
            many.as_str(),
            too_many.as_str(),
        ];
        for bad in rows {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let deep = "[".repeat(100_000);
        assert!(parse(deep.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>, name: String) {
            let _ = (parse(&bytes), parse_signal(&name));
        }
    }
}
