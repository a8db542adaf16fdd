//! The nodes that a call names in its metadata. talosctl names a node in every call, and a Talos node would forward the
//! call to it. gantryd answers for its own names and addresses, and refuses each other node by an entry of the reply.
//!
//! | metadata | reply |
//! |---|---|
//! | neither, or `proxyfrom` | one message, without metadata |
//! | `nodes`, repeated | one message per node, with its `metadata.hostname`; errors are in `metadata.error`, and the status is OK |
//! | `node`, once | one message, without metadata; errors are the status |

use std::net::IpAddr;

use gantry_model::id::shown;
use gantry_proto::talos::common::Metadata;
use gantry_proto::talos::google::rpc;
use gantry_proto::talos::{common, machine, network, resource, storage, time};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::own_names::OwnNames;
use crate::client_fault::ClientFault;

/// Maximum nodes of a call.
const MAX_NODES: usize = 256;
/// Maximum bytes of a unary reply: old clients accept 4 MiB.
const MAX_REPLY: usize = (4 << 20) - (64 << 10);
/// The text of Talos for a node that a call cannot be forwarded to.
const NOT_FORWARDED: &str = "no request forwarding";

/// A message that carries the name of the node that sent it.
pub(super) trait NodeMessage: prost::Message + Default + Clone {
    /// Sets the metadata.
    fn set_metadata(&mut self, metadata: Metadata);
}

macro_rules! node_messages {
    ($($message:ty),* $(,)?) => {
        $(impl NodeMessage for $message {
            fn set_metadata(&mut self, metadata: Metadata) {
                self.metadata = Some(metadata);
            }
        })*
    };
}

node_messages!(
    common::Data,
    machine::Container,
    machine::CpUsInfo,
    machine::DiskStats,
    machine::DiskUsageInfo,
    machine::Event,
    machine::FileInfo,
    machine::Hostname,
    machine::ImageListResponse,
    machine::ImagePull,
    machine::LoadAvg,
    machine::LogsContainer,
    machine::Memory,
    machine::Mounts,
    machine::NetworkDeviceStats,
    machine::Process,
    machine::Reboot,
    machine::Restart,
    machine::ServiceList,
    machine::ServiceRestart,
    machine::ServiceStart,
    machine::ServiceStop,
    machine::Shutdown,
    machine::Stats,
    machine::SystemStat,
    machine::Version,
    network::Interfaces,
    network::Routes,
    resource::Get,
    resource::ListResponse,
    resource::WatchResponse,
    storage::DisksResponse,
    time::Time,
);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Targets {
    /// The call names no node, or one of this node's names in `node`.
    This,
    /// The nodes of `nodes`.
    Named(Vec<Target>),
}

/// A node that a call names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    name: String,
    is_this_node: bool,
}

impl Targets {
    /// Whether the call names nodes, so that [`Self::parse`] may block.
    pub(super) fn are_named(metadata: &MetadataMap) -> bool {
        !metadata.contains_key("proxyfrom") && ["node", "nodes"].iter().any(|key| metadata.contains_key(*key))
    }

    /// Reads the metadata of a call.
    ///
    /// # Errors
    /// `INTERNAL`, as in Talos, if a node has a port, `PERMISSION_DENIED` if `node` is another node, `INVALID_ARGUMENT`
    /// if `node` is given twice or there are too many nodes, and the kernel's error if this node's addresses are
    /// unknown.
    pub(super) fn parse(metadata: &MetadataMap, mut own: OwnNames) -> Result<Self, Status> {
        if !Self::are_named(metadata) {
            return Ok(Self::This);
        }
        // A name that is given twice gets one entry.
        let mut nodes: Vec<String> = Vec::new();
        for name in names(metadata, "nodes")? {
            if !nodes.contains(&name) {
                nodes.push(name);
            }
        }
        let mut single = names(metadata, "node")?;
        match (single.pop(), single.is_empty()) {
            (None, _) => {}
            (Some(node), true) if own.include(&node)? => return Ok(Self::This),
            (Some(_), true) => return Err(Self::not_forwarded()),
            (Some(_), false) => return Err(Status::invalid_argument("node metadata must be single-valued")),
        }
        if nodes.is_empty() {
            return Ok(Self::This);
        }
        let target = |name: String| Ok(Target { is_this_node: own.include(&name)?, name });
        Ok(Self::Named(nodes.into_iter().map(target).collect::<Result<_, Status>>()?))
    }

    /// The refusal of a call for another node.
    pub(super) fn not_forwarded() -> Status {
        Status::permission_denied(NOT_FORWARDED)
    }

    /// Whether the call is executed here.
    pub(super) fn include_this_node(&self) -> bool {
        match self {
            Self::This => true,
            Self::Named(targets) => targets.iter().any(|target| target.is_this_node),
        }
    }

    /// The messages of a unary reply. `result` is `None` if the call was not executed here.
    ///
    /// # Errors
    /// The error of a call that names no nodes.
    pub(super) fn replies<M: NodeMessage>(&self, result: Option<Result<M, Status>>) -> Result<Vec<M>, Status> {
        let refused = || Err(Self::not_forwarded());
        let targets = match self {
            Self::This => {
                let message = result.unwrap_or_else(refused)?;
                check_size(message.encoded_len())?;
                return Ok(vec![message]);
            }
            Self::Named(targets) => targets,
        };
        // A call may have many names of this node, and each gets a copy.
        let size = result.as_ref().and_then(|result| result.as_ref().ok()).map_or(0, prost::Message::encoded_len);
        let mut total = 0;
        let reply = |target: &Target| {
            let own = result.as_ref().filter(|_| target.is_this_node).map(Result::as_ref);
            match own {
                Some(Ok(message)) => {
                    total += size;
                    match check_size(total) {
                        Ok(()) => target.mark(message.clone()),
                        Err(status) => target.failure(&status),
                    }
                }
                Some(Err(status)) => target.failure(status),
                None => target.failure(&Self::not_forwarded()),
            }
        };
        Ok(targets.iter().map(reply).collect())
    }

    /// The name under which this node sends the messages of a stream; `None`: without metadata. A stream comes once,
    /// also if the call has several names of this node.
    pub(super) fn this_node(&self) -> Option<&Target> {
        match self {
            Self::This => None,
            Self::Named(targets) => targets.iter().find(|target| target.is_this_node),
        }
    }

    /// The messages of a stream for other nodes.
    pub(super) fn refusals<M: NodeMessage>(&self) -> Vec<M> {
        let Self::Named(targets) = self else { return Vec::new() };
        let others = targets.iter().filter(|target| !target.is_this_node);
        others.map(|target| target.failure(&Self::not_forwarded())).collect()
    }
}

impl Target {
    /// Adds the name of the node.
    pub(super) fn mark<M: NodeMessage>(&self, mut message: M) -> M {
        message.set_metadata(Metadata { hostname: self.name.clone(), ..Metadata::default() });
        message
    }

    /// A message that carries an error.
    pub(super) fn failure<M: NodeMessage>(&self, status: &Status) -> M {
        let mut message = M::default();
        message.set_metadata(Metadata {
            hostname: self.name.clone(),
            error: format!("rpc error: code = {} desc = {}", go_name(status.code()), status.message()),
            status: Some(rpc::Status {
                code: status.code().into(),
                message: status.message().to_owned(),
                details: Vec::new(),
            }),
        });
        message
    }
}

/// Refuses a reply that old clients could not receive.
fn check_size(bytes: usize) -> Result<(), Status> {
    if bytes <= MAX_REPLY {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!("the reply would have {bytes} bytes: clients accept {MAX_REPLY}")))
}

/// The values of a key, each a node without a port.
fn names(metadata: &MetadataMap, key: &str) -> Result<Vec<String>, Status> {
    let mut names = Vec::new();
    for value in metadata.get_all(key) {
        let invalid = || Status::invalid_argument(format!("the metadata '{key}' is not a name"));
        let name = value.to_str().map_err(|_| invalid())?.trim();
        if names.len() >= MAX_NODES {
            return Err(Status::invalid_argument(format!("a call may name {MAX_NODES} nodes")));
        }
        let has_port = name.parse::<IpAddr>().is_err() && name.contains(':');
        if has_port {
            let status = Status::internal(format!("invalid target {}", shown(name)));
            return Err(ClientFault::mark(status));
        }
        names.push(name.to_owned());
    }
    Ok(names)
}

/// The name of a code in the texts of grpc-go.
fn go_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::Hostname;
    use proptest::prelude::*;
    use tonic::metadata::MetadataKey;

    fn targets(pairs: &[(&'static str, &str)]) -> Result<Targets, Status> {
        let mut metadata = MetadataMap::new();
        for (key, value) in pairs {
            metadata.append(*key, value.parse().unwrap());
        }
        Targets::parse(&metadata, OwnNames::default())
    }

    fn hostname(name: &str) -> Hostname {
        Hostname { metadata: None, hostname: name.to_owned() }
    }

    #[test]
    fn calls_without_nodes_are_answered_plainly() {
        for pairs in [&[][..], &[("node", "127.0.0.1")], &[("proxyfrom", "x"), ("nodes", "192.0.2.1")]] {
            let targets = targets(pairs).unwrap();
            assert_eq!(targets.replies(Some(Ok(hostname("h")))).unwrap(), [hostname("h")]);
            let failed = targets.replies::<Hostname>(Some(Err(Status::not_found("x")))).unwrap_err();
            assert_eq!(failed.code(), Code::NotFound);
        }
    }

    #[test]
    fn named_nodes_get_an_entry_each() {
        let targets = targets(&[("nodes", "127.0.0.1"), ("nodes", "192.0.2.1"), ("nodes", "localhost")]).unwrap();
        assert!(targets.include_this_node());
        let replies = targets.replies(Some(Ok(hostname("h")))).unwrap();
        let metadata: Vec<Metadata> = replies.into_iter().filter_map(|reply| reply.metadata).collect();
        assert_eq!(
            metadata.iter().map(|one| &one.hostname[..]).collect::<Vec<_>>(),
            ["127.0.0.1", "192.0.2.1", "localhost"]
        );
        assert_eq!(metadata[1].error, "rpc error: code = PermissionDenied desc = no request forwarding");
        assert_eq!(metadata[1].status.as_ref().map(|status| status.code), Some(7));
        assert_eq!((&metadata[0].error[..], &metadata[2].error[..]), ("", ""));
        assert_eq!(targets.refusals::<Hostname>().len(), 1);
    }

    #[test]
    fn replies_stay_below_the_limit_of_clients() {
        let large = hostname(&"h".repeat(MAX_REPLY / 2));
        let names = [("nodes", "127.0.0.1"), ("nodes", "127.0.0.2"), ("nodes", "localhost")];
        let replies = targets(&names).unwrap().replies(Some(Ok(large.clone()))).unwrap();
        let failed = replies.iter().filter(|reply| reply.hostname.is_empty()).count();
        assert_eq!((replies.len(), failed), (3, 2));
        assert_eq!(targets(&[]).unwrap().replies(Some(Ok(large))).unwrap().len(), 1);
        let larger = hostname(&"h".repeat(MAX_REPLY + 1));
        assert_eq!(targets(&[]).unwrap().replies(Some(Ok(larger))).unwrap_err().code(), Code::ResourceExhausted);
    }

    #[test]
    fn calls_for_other_nodes_are_not_executed() {
        let named = targets(&[("nodes", "192.0.2.1")]).unwrap();
        assert!(!named.include_this_node());
        assert_eq!(named.replies::<Hostname>(None).unwrap().len(), 1);
        let codes = [
            (&[("node", "192.0.2.1")][..], Code::PermissionDenied),
            (&[("node", "127.0.0.1"), ("node", "127.0.0.1")], Code::InvalidArgument),
            (&[("nodes", "127.0.0.1:50000")], Code::Internal),
        ];
        for (pairs, code) in codes {
            assert_eq!(targets(pairs).unwrap_err().code(), code, "{pairs:?}");
        }
    }

    proptest! {
        #[test]
        fn decoder_never_panics(key in "nodes|node|proxyfrom", values in proptest::collection::vec("[ -~]{0,40}", 0..6)) {
            let mut metadata = MetadataMap::new();
            for value in &values {
                metadata.append(MetadataKey::from_bytes(key.as_bytes()).unwrap(), value.parse().unwrap());
            }
            if let Ok(targets) = Targets::parse(&metadata, OwnNames::default()) {
                // Each node has one entry, whether the call was executed or not.
                let names: std::collections::BTreeSet<&str> = values.iter().map(|value| value.trim()).collect();
                let replies = targets.replies(targets.include_this_node().then(|| Ok(Hostname::default())));
                let wanted = if key == "nodes" && !values.is_empty() { names.len() } else { 1 };
                prop_assert_eq!(replies.unwrap().len(), wanted);
            }
        }
    }
}
