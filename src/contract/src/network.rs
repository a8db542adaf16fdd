//! How networks are set up on this host, and the requests to `gantry-stage1 network`.
//!
//! A supervisor attaches its pod to networks before it creates the apps and detaches it after they have ended. The
//! pod's resources on the host (leases, rules, interfaces, state of plugins) are recorded in [`crate::files::NETWORK`]
//! of the pod directory before they are created, and struck out after they are removed, so that they can be removed
//! after the supervisor has died. For that, and for everything that concerns the networks of the host, the engine runs
//! `gantry-stage1 network`: one [`Request`] as JSON on stdin until end of file, one line with a [`Reply`] on stdout.

use std::net::IpAddr;

use gantry_model::PodNetwork;
use gantry_model::net::Dns;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::plan::Networks;

/// The network settings of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The directory of this gantry's leases and of the results of plugins, absolute: `DIR/net`. It is created if it
    /// does not exist.
    pub state_dir: String,
    /// The directory of the pod directories, absolute.
    pub pods_dir: String,
    /// Directories of network configurations; the first configuration of a name counts.
    pub config_dirs: Vec<String>,
    /// Directories of plugins.
    pub plugin_dirs: Vec<String>,
    /// The name of gantry's nftables tables.
    pub table: String,
    /// Run the plugins for every network of a file, also for those that gantry can create itself.
    #[serde(default)]
    pub use_plugins: bool,
    /// The timeout of one plugin, in milliseconds.
    pub plugin_limit_ms: u64,
    /// Pods query the resolver on the address of their bridge first.
    #[serde(default)]
    pub resolver: bool,
}

/// A network's configuration in the plan of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenNetwork {
    /// The network's name.
    pub name: String,
    /// The file that it was read from; `None`: it is derived from a built-in one.
    pub source: Option<String>,
    /// The configuration.
    pub text: String,
}

/// What a Kubernetes pod tells the plugins of its networks. A capability that a network does not declare is ignored, as
/// in other runtimes: its agent may implement it without the plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct KubernetesNetworking {
    /// The configuration of its network, which counts in place of those in the directories.
    #[serde(default)]
    pub network: Option<GivenNetwork>,
    /// `CNI_ARGS`, in order.
    pub args: Vec<(String, String)>,
    /// The capability `bandwidth`.
    #[serde(default)]
    pub bandwidth: Bandwidth,
    /// The capability `dns`.
    #[serde(default)]
    pub dns: Option<Dns>,
}

/// The limits of a pod's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Of the traffic that the pod receives, in bits per second.
    pub ingress: Option<u64>,
    /// Of the traffic that the pod sends, in bits per second.
    pub egress: Option<u64>,
}

/// A request to `gantry-stage1 network`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The network settings of this host.
    pub host: Host,
    /// The operation.
    pub what: NetworkOperation,
}

/// An operation on networks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkOperation {
    /// Detach a dead pod: delete all resources in its [`crate::files::NETWORK`]. The caller holds the pod's lock.
    /// Idempotent. Answered by `Done`.
    Down {
        /// The pod's UUID.
        pod: String,
    },
    /// As `Down`, but forget the attachments that plugins fail to delete, whatever resources of the pod the plugins may
    /// still have. Answered by `Abandoned`.
    Abandon {
        /// The pod's UUID.
        pod: String,
    },
    /// Check that a pod can be attached to these networks as they are configured now, without any change. Answered by
    /// `Done`.
    Choose(Networks),
    /// Replace the contents of the tables by the needs of the pods that are up, and repair their interfaces. Answered
    /// by `Findings`: the defects that only the user can repair.
    Reload,
    /// Remove resources that belong to no pod: leases, cached results of plugins (with CNI GC), interfaces, tables.
    /// With `dry_run` it only reports. Answered by `Swept`.
    Sweep {
        /// Change nothing.
        dry_run: bool,
    },
    /// Report what deleted installations left in the host's network namespace, for `doctor`. Answered by `Findings`.
    Strays,
    /// Report state that no pod accounts for, and missing state that pods need, for `doctor`. Answered by `Findings`.
    Check,
}

/// The reply of `gantry-stage1 network`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// Done.
    Done,
    /// The resources that were removed, or would be, one line each.
    Swept(Vec<String>),
    /// Done, except for what plugins failed to delete, one line each.
    Abandoned(Vec<String>),
    /// Findings, one line each.
    Findings(Vec<String>),
    /// It could not be done.
    Failed(Failure),
}

/// A configured network of this host.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Network {
    /// Its name; of an invalid file, if it can be determined.
    pub name: Option<String>,
    /// Its origin: `built in` or a path.
    pub source: String,
    /// The types of its plugins, in order.
    pub plugins: Vec<String>,
    /// Whether gantry implements its plugins natively.
    pub built_in: bool,
    /// The versions of the CNI specification that its configuration names.
    pub cni_versions: Vec<String>,
    /// The bridge or the master interface on the host.
    pub interface: Option<String>,
    /// Its subnets, as `ADDRESS/LENGTH`.
    pub subnets: Vec<String>,
    /// The gateways, which the resolver listens on when the bridge has them.
    pub gateways: Vec<IpAddr>,
    /// The configuration that is used in its place, if it is not used.
    pub shadowed_by: Option<String>,
    /// Why it is unusable.
    pub problem: Option<String>,
    /// Notes on harmless oddities of its configuration.
    pub notes: Vec<String>,
    /// Pods with an interface in it.
    pub pods: Vec<Member>,
    /// The configuration as it is written; only where one network is inspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A pod of a network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Member {
    /// The pod's UUID.
    pub pod: String,
    /// Its attachment.
    pub attached: PodNetwork,
}
