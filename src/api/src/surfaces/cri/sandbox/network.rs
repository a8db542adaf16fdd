//! The settings for the CNI plugins of a sandbox's network: the pod's names, its bandwidth limits, its resolver.

use std::collections::HashMap;

use gantry_engine::{Bandwidth, KubernetesNetworking, SandboxNetwork};
use gantry_model::id::shown;
use gantry_model::net::DnsSpec;
use gantry_proto::cri::v1::{PodSandboxConfig, PodSandboxMetadata};
use tonic::Status;
use tracing::warn;

use super::quantity::parse_quantity;
use crate::status::invalid_field;

/// The annotations that Kubernetes has for limits of a pod's traffic, in bits per second.
const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// The rates that Kubernetes allows: 1k to 1P bits per second.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;

/// The settings for the plugins of a sandbox; `dns` is that of its pod.
///
/// # Errors
/// `INVALID_ARGUMENT`, with the field and the reason.
pub(super) fn settings(config: &PodSandboxConfig, dns: &DnsSpec) -> Result<KubernetesNetworking, Status> {
    let PodSandboxMetadata { name, uid, namespace, attempt: _ } = config.metadata.clone().unwrap_or_default();
    for (field, text) in [("name", &name), ("uid", &uid), ("namespace", &namespace)] {
        // The separator of CNI_ARGS.
        if text.contains(';') {
            return Err(invalid_field(&format!("config.metadata.{field}"), "it contains ';'"));
        }
    }
    let args = [("K8S_POD_NAMESPACE", namespace), ("K8S_POD_NAME", name), ("K8S_POD_UID", uid)];
    let limits = Bandwidth { ingress: rate(&config.annotations, INGRESS)?, egress: rate(&config.annotations, EGRESS)? };
    let dns = match dns {
        DnsSpec::Given(dns) => Some(dns.clone()),
        // The pod has the settings of the host, or of its network.
        _ => None,
    };
    let args = args.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Ok(KubernetesNetworking { network: None, args, bandwidth: limits, dns })
}

fn rate(annotations: &HashMap<String, String>, key: &str) -> Result<Option<u64>, Status> {
    let Some(text) = annotations.get(key) else { return Ok(None) };
    let rate = parse_quantity(text).filter(|rate| RATES.contains(rate));
    rate.map(Some).ok_or_else(|| {
        let problem = format!("{key}: '{}' is not a rate of 1k to 1P bits per second, such as 10M", shown(text));
        invalid_field("config.annotations", &problem)
    })
}

/// Logs the settings that no plugin of the network implements. They are not an error, as in other runtimes: the
/// cluster's agent may implement them without a plugin.
pub(super) fn warn_of_ignored(network: &SandboxNetwork, settings: &KubernetesNetworking, has_ports: bool, pod: &str) {
    for (is_wanted, capability, what) in [
        (has_ports, "portMappings", "the host ports"),
        (settings.bandwidth != Bandwidth::default(), "bandwidth", "the bandwidth limits"),
    ] {
        if is_wanted && network.declares(capability) == Some(false) {
            let source = network.source().unwrap_or("the built-in network");
            warn!(
                "{source} has no plugin with the capability {capability}: gantry does not apply {what} of sandbox {pod}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(annotations: &[(&str, &str)]) -> PodSandboxConfig {
        let metadata =
            PodSandboxMetadata { name: "web".into(), uid: "u-1".into(), namespace: "prod".into(), attempt: 0 };
        let annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        PodSandboxConfig { metadata: Some(metadata), annotations, ..PodSandboxConfig::default() }
    }

    #[test]
    fn limits_are_read_from_annotations() {
        let found = settings(&config(&[(INGRESS, "10M"), (EGRESS, "1Gi")]), &DnsSpec::Host).unwrap();
        assert_eq!(found.bandwidth, Bandwidth { ingress: Some(10_000_000), egress: Some(1 << 30) });
        assert_eq!(found.args[0], ("K8S_POD_NAMESPACE".to_owned(), "prod".to_owned()));
        for bad in ["", "fast", "1", "-1M", "2P", "1e30"] {
            let error = settings(&config(&[(EGRESS, bad)]), &DnsSpec::Host).unwrap_err();
            assert!(error.message().contains(EGRESS), "{bad}: {error}");
        }
    }
}
