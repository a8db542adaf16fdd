//! The network of the sandboxes that a kubelet runs.
//!
//! | `sandbox-network` | network of sandboxes |
//! |---|---|
//! | `auto` | the first configuration in `sandbox-config-dir`; without one the network `default` in the pod CIDR |
//! | `cni` | the first configuration in `sandbox-config-dir` |
//! | any other | that network, whatever the directory holds |
//!
//! The directory is read whenever the network is needed: some system calls, no plugin. So a configuration counts as
//! soon as an agent of the cluster has written it, and no longer than it exists.

use std::collections::BTreeSet;
use std::str::FromStr;

use gantry_contract::network::{GivenNetwork, KubernetesNetworking};
use gantry_contract::plan as out;
use gantry_model::id::shown;
use gantry_model::net::NetworkRequest;
use gantry_model::spec::SpecError;
use gantry_model::{ErrorKind, Kind as _, NetMode, PodId};
use gantry_net::config::{NetworkConfig, PodCidrError, PodCidrs, Source};

use crate::{Engine, EngineError};

/// The setting `sandbox-network`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SandboxNetworkChoice {
    /// `auto`.
    #[default]
    Automatic,
    /// `cni`.
    Cni,
    /// These networks.
    Named(NetMode),
}

impl FromStr for SandboxNetworkChoice {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" => Ok(Self::Automatic),
            "cni" => Ok(Self::Cni),
            named => named.parse().map(Self::Named),
        }
    }
}

/// The network that the next sandbox gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxNetwork {
    pub(crate) net: NetMode,
    pub(crate) given: Option<GivenNetwork>,
    capabilities: BTreeSet<String>,
}

impl SandboxNetwork {
    /// Whether a plugin of the network declares this capability (CNI conventions). `None`: the network is one of the
    /// configuration, whose plugins are not known here.
    #[must_use]
    pub fn declares(&self, capability: &str) -> Option<bool> {
        self.given.as_ref().map(|_| self.capabilities.contains(capability))
    }

    /// The file of the network's configuration, if it has one.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.given.as_ref()?.source.as_deref()
    }

    fn of(network: NetworkConfig) -> Self {
        let declared = network.plugins.iter().flat_map(|plugin| &plugin.capabilities);
        let capabilities = declared.filter(|(_, declared)| **declared).map(|(name, _)| name.clone()).collect();
        let NetworkConfig { name, source, text, .. } = network;
        let source = match source {
            Source::BuiltIn => None,
            Source::File(path) => Some(path.to_string_lossy().into_owned()),
        };
        Self {
            net: NetMode::Networks(vec![NetworkRequest { name: name.clone(), args: Vec::new() }]),
            given: Some(GivenNetwork { name, source, text }),
            capabilities,
        }
    }
}

/// The network of a new sandbox, and what its plugins are told.
#[derive(Debug, Clone)]
pub(crate) struct SandboxNetworking {
    pub(crate) network: SandboxNetwork,
    pub(crate) settings: KubernetesNetworking,
}

/// The argument with the id of the sandbox (containerd and CRI-O).
const SANDBOX_ID: &str = "K8S_POD_INFRA_CONTAINER_ID";

impl SandboxNetworking {
    /// Completes the networks of the plan of this pod.
    pub(crate) fn apply(&self, id: PodId, net: &mut out::Net) {
        let out::Net::Networks(networks) = net else { return };
        let mut settings = KubernetesNetworking { network: self.network.given.clone(), ..self.settings.clone() };
        settings.args.push((SANDBOX_ID.to_owned(), id.to_string()));
        // No plugin knows the arguments of all others.
        settings.args.push(("IgnoreUnknown".to_owned(), "1".to_owned()));
        networks.kubernetes = Some(Box::new(settings));
    }
}

impl Engine {
    /// The network that the next sandbox gets. Reads configurations and starts no plugin.
    ///
    /// # Errors
    /// [`EngineError`]: which file is missing or cannot be used, and why.
    pub fn sandbox_network(&self) -> Result<SandboxNetwork, EngineError> {
        let options = &self.options.network;
        if let SandboxNetworkChoice::Named(net) = &options.sandbox {
            self.check_configured(net)?;
            return Ok(SandboxNetwork { net: net.clone(), given: None, capabilities: BTreeSet::new() });
        }
        let dir = options.sandbox_config_dir.as_path();
        let unusable = |error: gantry_net::pod::NetworkError| {
            EngineError::new(error.kind(), "the network of pods cannot be used").caused_by(error)
        };
        if let Some(network) = gantry_net::pod::first_network(&self.network_host(), dir).map_err(unusable)? {
            return Ok(SandboxNetwork::of(network));
        }
        let missing = |more: &str| {
            let text = format!("no network configuration (*.conf, *.conflist, *.json) in {}{more}", dir.display());
            EngineError::new(ErrorKind::Unavailable, text)
        };
        if options.sandbox == SandboxNetworkChoice::Cni {
            return Err(missing(""));
        }
        let cidrs = self.pod_cidrs()?.ok_or_else(|| missing(", and the node has no pod CIDR"))?;
        let network = cidrs.default_network().map_err(|error| {
            EngineError::new(error.kind(), format!("pod CIDR {cidrs} cannot be used")).caused_by(error)
        })?;
        Ok(SandboxNetwork::of(network))
    }

    /// The pod CIDRs of this node; `None`: it never had any.
    ///
    /// # Errors
    /// [`EngineError`]: the file cannot be read, or was changed.
    pub fn pod_cidrs(&self) -> Result<Option<PodCidrs>, EngineError> {
        let failed = |kind| EngineError::new(kind, "cannot read the pod CIDR of this node");
        let text = self.store.pod_cidr().map_err(|error| failed(error.kind()).caused_by(error))?;
        text.map(|text| text.parse())
            .transpose()
            .map_err(|error: PodCidrError| failed(ErrorKind::Damaged).caused_by(error))
    }

    /// Sets the pod CIDRs of this node, durably: one of IPv4, one of IPv6, or both with a comma between them. New
    /// sandboxes get addresses of them if no configuration exists; running ones keep theirs.
    ///
    /// # Errors
    /// [`EngineError`]: it is malformed (`Invalid`), or cannot be stored.
    pub fn set_pod_cidrs(&self, text: &str) -> Result<(), EngineError> {
        let doing = || format!("cannot set the pod CIDR '{}'", shown(text));
        let cidrs: PodCidrs =
            text.parse().map_err(|error: PodCidrError| EngineError::new(error.kind(), error.to_string()))?;
        if self.pod_cidrs().is_ok_and(|present| present.as_ref() == Some(&cidrs)) {
            return Ok(());
        }
        let stored = self.store.set_pod_cidr(&cidrs.to_string());
        stored.map_err(|error| EngineError::new(error.kind(), doing()).caused_by(error))
    }

    /// Detaches a pod that has ended from its networks. Does nothing if that is done, or if the pod is gone. For a
    /// caller that must know: the end of a pod does not depend on it, and `gc` tries again.
    ///
    /// # Errors
    /// [`EngineError`]: a plugin failed, or the pod runs. The call may be repeated.
    pub fn release_networks(&self, id: PodId) -> Result<(), EngineError> {
        if !self.has_network_record(id) {
            return Ok(());
        }
        let doing = || format!("cannot detach pod {id} from its networks");
        match self.lock_in_time(id).map_err(|error| EngineError::new(error.kind(), doing()).caused_by(error))? {
            gantry_store::PodState::Free(_lock) => self.network_down(id),
            gantry_store::PodState::Absent => Ok(()),
            gantry_store::PodState::Held => {
                Err(EngineError::new(ErrorKind::Busy, format!("{}: its supervisor has not ended", doing())))
            }
        }
    }
}
