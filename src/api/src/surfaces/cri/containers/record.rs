//! The parts of a container's configuration that an app has no fields for. They are annotations of the app, which
//! replies leave out.

use std::collections::{BTreeMap, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_engine::{AppRow, CONTAINER_NAME, CONTAINER_START_ERROR};
use gantry_proto::cri::v1::{ContainerConfig, ContainerMetadata, ImageSpec};
use prost::Message as _;
use tonic::Status;

use crate::status::invalid_field;

/// The prefix of the annotations.
const PREFIX: &str = "gantry/container-";
const ATTEMPT: &str = "gantry/container-attempt";
/// The configuration that ContainerStatus repeats: protobuf in base64, without [`hidden`] fields.
const CONFIG: &str = "gantry/container-config";
/// When StartContainer failed: nanoseconds since the epoch.
pub(super) const START_ERROR_TIME: &str = "gantry/container-start-error-time";

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ContainerRecord {
    /// The metadata.
    pub(super) metadata: ContainerMetadata,
    /// The configuration as requested, without [`hidden`] fields.
    pub(super) config: ContainerConfig,
    /// Why it could not be started.
    pub(super) start_error: Option<String>,
}

impl ContainerRecord {
    /// The record of a new container.
    pub(super) fn new(metadata: ContainerMetadata, config: &ContainerConfig) -> Self {
        Self { metadata, config: hidden(config.clone()), start_error: None }
    }

    /// Reads the record of an app; `None`: the app was not made through the CRI.
    pub(super) fn of(app: &AppRow) -> Option<Self> {
        Self::read(&app.annotations)
    }

    fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let metadata = metadata(annotations)?;
        let config = STANDARD.decode(annotations.get(CONFIG)?).ok()?;
        let config = ContainerConfig::decode(config.as_slice()).ok()?;
        Some(Self { metadata, config, start_error: annotations.get(CONTAINER_START_ERROR).cloned() })
    }

    /// The annotations of the app: those of the request, and the record.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the request has an annotation of the record.
    pub(super) fn annotations(&self, given: HashMap<String, String>) -> Result<BTreeMap<String, String>, Status> {
        let mut all: BTreeMap<String, String> = given.into_iter().collect();
        if let Some(key) = all.keys().find(|key| key.starts_with(PREFIX)) {
            return Err(invalid_field("config.annotations", &format!("gantry keeps {key} itself")));
        }
        all.insert(CONTAINER_NAME.to_owned(), self.metadata.name.clone());
        all.insert(ATTEMPT.to_owned(), self.metadata.attempt.to_string());
        let (key, value) = self.config_annotation();
        all.insert(key.to_owned(), value);
        if let Some(error) = &self.start_error {
            all.insert(CONTAINER_START_ERROR.to_owned(), error.clone());
        }
        Ok(all)
    }

    /// The annotation that has the configuration.
    pub(super) fn config_annotation(&self) -> (&'static str, String) {
        (CONFIG, STANDARD.encode(self.config.encode_to_vec()))
    }
}

/// The part of a configuration that lists show: they decode no more of it.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfiguredImage {
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
}

/// The image as requested; `None`: the app was not made through the CRI.
pub(super) fn image(app: &AppRow) -> Option<ImageSpec> {
    let config = STANDARD.decode(app.annotations.get(CONFIG)?).ok()?;
    Some(ConfiguredImage::decode(config.as_slice()).ok()?.image.unwrap_or_default())
}

/// The metadata in the annotations of an app; `None`: the app was not made through the CRI.
pub(super) fn metadata(annotations: &BTreeMap<String, String>) -> Option<ContainerMetadata> {
    let name = annotations.get(CONTAINER_NAME)?.clone();
    Some(ContainerMetadata { name, attempt: annotations.get(ATTEMPT)?.parse().ok()? })
}

/// A configuration without what the app's row has, and without what may be secret.
fn hidden(mut config: ContainerConfig) -> ContainerConfig {
    config.metadata = None;
    config.labels.clear();
    config.annotations.clear();
    config.command.clear();
    config.args.clear();
    config.envs.clear();
    config
}

/// The annotations as they were requested.
pub(super) fn requested_annotations(app: &AppRow) -> HashMap<String, String> {
    let given = app.annotations.iter().filter(|(key, _)| !key.starts_with(PREFIX));
    given.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_proto::cri::v1::{KeyValue, Mount};

    #[test]
    fn records_survive_annotations() {
        let metadata = ContainerMetadata { name: "web".into(), attempt: 3 };
        let mount = Mount { container_path: "/a".into(), host_path: "/b".into(), ..Mount::default() };
        let image = ImageSpec { image: "sha256:1".into(), ..ImageSpec::default() };
        let config = ContainerConfig {
            image: Some(image.clone()),
            mounts: vec![mount],
            envs: vec![KeyValue { key: "TOKEN".into(), value: b"secret".to_vec() }],
            log_path: "web/3.log".into(),
            ..ContainerConfig::default()
        };
        let mut record = ContainerRecord::new(metadata, &config);
        record.start_error = Some("exec format error".into());
        let all = record.annotations(HashMap::from([("a/b".into(), "c\n".into())])).unwrap();
        assert_eq!(ContainerRecord::read(&all), Some(record.clone()));
        let listed = STANDARD.decode(&all[CONFIG]).unwrap();
        assert_eq!(ConfiguredImage::decode(listed.as_slice()).unwrap().image, Some(image));
        assert!(record.config.envs.is_empty() && record.config.mounts == config.mounts);
        assert_eq!(all.get("a/b").map(String::as_str), Some("c\n"));
        assert!(record.annotations(HashMap::from([(CONFIG.into(), String::new())])).is_err());
        assert_eq!(ContainerRecord::read(&BTreeMap::new()), None);
    }
}
