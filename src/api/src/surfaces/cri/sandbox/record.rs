//! The parts of a sandbox's configuration that a pod has no fields for. They are annotations of the pod, which replies
//! leave out.

use std::collections::{BTreeMap, HashMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_engine::{PodRow, SANDBOX_NAME};
use gantry_proto::cri::v1::{
    IdMapping, LinuxContainerResources, NamespaceMode, NamespaceOption, PodSandboxMetadata,
    UpdatePodSandboxResourcesRequest, UserNamespace,
};
use prost::Message as _;
use tonic::Status;

use crate::status::invalid_field;

/// The prefix of the annotations.
const PREFIX: &str = "gantry/sandbox-";
const UID: &str = "gantry/sandbox-uid";
const NAMESPACE: &str = "gantry/sandbox-namespace";
const ATTEMPT: &str = "gantry/sandbox-attempt";
const NETWORK: &str = "gantry/sandbox-network";
const PID: &str = "gantry/sandbox-pid";
const IPC: &str = "gantry/sandbox-ipc";
/// `NODE`, or `POD UID:LENGTH GID:LENGTH`; absent if the request had no options for it.
const USER: &str = "gantry/sandbox-user";
/// The resources of the last UpdatePodSandboxResources: protobuf in base64.
const RESOURCES: &str = "gantry/sandbox-resources";

/// See the module.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SandboxRecord {
    /// The metadata.
    pub(super) metadata: PodSandboxMetadata,
    /// The namespaces as requested.
    pub(super) namespaces: NamespaceOption,
}

impl SandboxRecord {
    /// Reads the record of a pod; `None`: it was not made through the CRI.
    pub(super) fn of(row: &PodRow) -> Option<Self> {
        Self::read(&row.user_annotations).filter(|_| row.sandbox)
    }

    fn read(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key: &str| annotations.get(key).cloned();
        let mode = |key: &str| text(key).and_then(|name| NamespaceMode::from_str_name(&name)).unwrap_or_default();
        let metadata = PodSandboxMetadata {
            name: text(SANDBOX_NAME)?,
            uid: text(UID)?,
            namespace: text(NAMESPACE)?,
            attempt: text(ATTEMPT)?.parse().ok()?,
        };
        let namespaces = NamespaceOption {
            network: mode(NETWORK).into(),
            pid: mode(PID).into(),
            ipc: mode(IPC).into(),
            userns_options: annotations.get(USER).and_then(|text| parse_user(text)),
            ..NamespaceOption::default()
        };
        Some(Self { metadata, namespaces })
    }

    /// The annotations of the pod: those of the request, and the record.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the request has an annotation of the record.
    pub(super) fn annotations(&self, given: HashMap<String, String>) -> Result<BTreeMap<String, String>, Status> {
        let mut all: BTreeMap<String, String> = given.into_iter().collect();
        if let Some(key) = all.keys().find(|key| key.starts_with(PREFIX)) {
            return Err(invalid_field("config.annotations", &format!("gantry keeps {key} itself")));
        }
        let Self { metadata, namespaces } = self;
        for (key, value) in [
            (SANDBOX_NAME, metadata.name.clone()),
            (UID, metadata.uid.clone()),
            (NAMESPACE, metadata.namespace.clone()),
            (ATTEMPT, metadata.attempt.to_string()),
            (NETWORK, namespaces.network().as_str_name().to_owned()),
            (PID, namespaces.pid().as_str_name().to_owned()),
            (IPC, namespaces.ipc().as_str_name().to_owned()),
        ] {
            all.insert(key.to_owned(), value);
        }
        if let Some(user) = &namespaces.userns_options {
            all.insert(USER.to_owned(), user_text(user));
        }
        Ok(all)
    }
}

/// The user namespace as text. A sandbox has at most one mapping of each kind, from id 0.
fn user_text(user: &UserNamespace) -> String {
    let ranges = [&user.uids, &user.gids].into_iter().flatten();
    let ranges: String = ranges.map(|range| format!(" {}:{}", range.host_id, range.length)).collect();
    format!("{}{ranges}", user.mode().as_str_name())
}

fn parse_user(text: &str) -> Option<UserNamespace> {
    let mut words = text.split(' ');
    let mode = NamespaceMode::from_str_name(words.next()?)?.into();
    let mappings: Vec<IdMapping> = words
        .map(|word| {
            let (host_id, length) = word.split_once(':')?;
            Some(IdMapping { host_id: host_id.parse().ok()?, container_id: 0, length: length.parse().ok()? })
        })
        .collect::<Option<_>>()?;
    match mappings[..] {
        [] => Some(UserNamespace { mode, uids: Vec::new(), gids: Vec::new() }),
        [uids, gids] => Some(UserNamespace { mode, uids: vec![uids], gids: vec![gids] }),
        _ => None,
    }
}

/// The annotations as they were requested.
pub(super) fn requested_annotations(row: &PodRow) -> HashMap<String, String> {
    let own = |key: &str| key.starts_with(PREFIX);
    let given = row.user_annotations.iter().filter(|(key, _)| !own(key));
    given.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The annotation that has the resources of a sandbox.
pub(super) fn resources_annotation(request: UpdatePodSandboxResourcesRequest) -> (&'static str, String) {
    let recorded = UpdatePodSandboxResourcesRequest { pod_sandbox_id: String::new(), ..request };
    (RESOURCES, STANDARD.encode(recorded.encode_to_vec()))
}

/// The resources of the last UpdatePodSandboxResources; `None`: there was none.
pub(super) fn resources(row: &PodRow) -> Option<LinuxContainerResources> {
    let bytes = STANDARD.decode(row.user_annotations.get(RESOURCES)?).ok()?;
    UpdatePodSandboxResourcesRequest::decode(bytes.as_slice()).ok()?.resources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_annotations() {
        let metadata =
            PodSandboxMetadata { name: "web".into(), uid: "u-1".into(), namespace: String::new(), attempt: 2 };
        let namespaces = NamespaceOption {
            network: NamespaceMode::Node.into(),
            pid: NamespaceMode::Container.into(),
            userns_options: parse_user("POD 1000:100000 2000:70000"),
            ..NamespaceOption::default()
        };
        assert!(namespaces.userns_options.is_some());
        let record = SandboxRecord { metadata, namespaces };
        let all = record.annotations(HashMap::from([("a/b".into(), "c\n".into())])).unwrap();
        assert_eq!(SandboxRecord::read(&all), Some(record.clone()));
        assert_eq!(all.get("a/b").map(String::as_str), Some("c\n"));
        assert!(record.annotations(HashMap::from([(UID.into(), String::new())])).is_err());
        assert_eq!(SandboxRecord::read(&BTreeMap::new()), None);
    }
}
