//! The pod of a sandbox. What a pod cannot have is refused.
//!
//! In other runtimes, the user, groups, capabilities and profiles of a sandbox apply to its first process. Here that
//! process is gantry's own, and they have no effect. `overhead` and `resources` are only information: the kubelet
//! writes the limits of the pod's cgroup.

use std::path::Path;

use gantry_model::id::hex;
use gantry_model::namespaces::{IpcMode, UtsMode};
use gantry_model::net::{Dns, DnsSpec, PortSpec, PortTarget, Protocol};
use gantry_model::user_namespace::{IdMappings, IdRange, UserNamespaceMode};
use gantry_model::{Kind, NetMode, PodName, PodNamespace, PodSpec};
use gantry_proto::cri::v1::{
    DnsConfig, IdMapping, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata, PortMapping, Protocol as PortProtocol, SeLinuxOption, UserNamespace,
};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::super::containers::{from_error_with_fields, with_fields};
use super::SandboxRequest;
use super::record::SandboxRecord;
use crate::request::check_text;
use crate::status::invalid_field;

/// Exists while the kernel enforces or logs SELinux' policy.
const SELINUX: &str = "/sys/fs/selinux/enforce";
/// Bytes of the readable beginning of a name that is too long for a pod.
const NAME_START: usize = 80;

/// The specification and the name of the pod.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED`, with the field and the reason.
pub(super) fn pod_spec(request: SandboxRequest) -> Result<(PodSpec, PodName), Status> {
    let SandboxRequest { config, runtime_handler } = request;
    if !runtime_handler.is_empty() {
        return Err(invalid_field("runtime_handler", "there is only the default handler, whose name is empty"));
    }
    let PodSandboxConfig {
        metadata,
        hostname,
        log_directory,
        dns_config,
        port_mappings,
        labels,
        annotations,
        linux,
        windows,
    } = config;
    if windows.is_some() {
        return Err(unsupported("config.windows", "this is a Linux host"));
    }
    let metadata = metadata.ok_or_else(|| invalid_field("config.metadata", "it is missing"))?;
    check_metadata(&metadata)?;
    let name = pod_name(&metadata)?;
    let LinuxPodSandboxConfig { cgroup_parent, security_context, sysctls, overhead: _, resources: _ } =
        linux.unwrap_or_default();
    let context = security_context.unwrap_or_default();
    let namespaces = namespaces(&context)?;
    let userns = user_namespace(&namespaces)?;
    let on_host = namespaces.network() == NamespaceMode::Node;
    let ports = if on_host { Vec::new() } else { ports(port_mappings)? };
    let parsed = |text: &str| text.parse().map_err(|error| invalid("config.linux.sysctls", &error));
    let spec = PodSpec {
        sandbox: true,
        namespace: Some(PodNamespace::KUBERNETES),
        privileged: context.privileged,
        net: on_host.then_some(NetMode::Host),
        ports,
        dns: dns(dns_config)?,
        // The host's network comes with the host's name.
        hostname: (!hostname.is_empty() && !on_host).then_some(hostname),
        ipc: if namespaces.ipc() == NamespaceMode::Node { IpcMode::Host } else { IpcMode::Pod },
        uts: if on_host { UtsMode::Host } else { UtsMode::Pod },
        userns,
        sysctls: sysctls.into_iter().map(|(key, value)| Ok((parsed(&key)?, value))).collect::<Result<_, Status>>()?,
        cgroup_parent: optional("config.linux.cgroup_parent", &cgroup_parent)?,
        log_dir: optional("config.log_directory", &log_directory)?,
        user_annotations: SandboxRecord { metadata, namespaces }.annotations(annotations)?,
        user_labels: labels.into_iter().collect(),
        ..PodSpec::default()
    };
    spec.validate().map_err(|error| from_error_with_fields(&error))?;
    Ok((spec, name))
}

/// UNIMPLEMENTED: a field, and why it has no effect.
pub(in super::super) fn unsupported(field: &str, why: &str) -> Status {
    Status::unimplemented(format!("{field} is not supported: {why}"))
}

fn invalid(field: &str, error: &(impl std::error::Error + Kind)) -> Status {
    invalid_field(field, &with_fields(&error.to_string()))
}

/// A field that is empty if it is not set.
fn optional<T>(field: &str, text: &str) -> Result<Option<T>, Status>
where
    T: std::str::FromStr<Err: std::error::Error + Kind>,
{
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| invalid(field, &error))
}

fn check_metadata(metadata: &PodSandboxMetadata) -> Result<(), Status> {
    let PodSandboxMetadata { name, uid, namespace, attempt: _ } = metadata;
    for (field, text) in
        [("config.metadata.name", name), ("config.metadata.uid", uid), ("config.metadata.namespace", namespace)]
    {
        if text.is_empty() {
            return Err(invalid_field(field, "it is empty"));
        }
        if text.contains('\0') {
            return Err(invalid_field(field, "it has a NUL character"));
        }
        check_text(field, text)?;
    }
    Ok(())
}

/// `NAME_NAMESPACE_UID_ATTEMPT`. If that cannot be the name of a pod, or could be that of other metadata, its end is a
/// digest.
fn pod_name(metadata: &PodSandboxMetadata) -> Result<PodName, Status> {
    let PodSandboxMetadata { name, uid, namespace, attempt } = metadata;
    let parts = [name, namespace, uid];
    let plain = format!("{name}_{namespace}_{uid}_{attempt}");
    if !parts.iter().any(|part| part.contains('_'))
        && let Ok(name) = plain.parse()
    {
        return Ok(name);
    }
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.update(attempt.to_be_bytes());
    let digest = hex(&hash.finalize()[..16]);
    let start: String = plain.chars().filter(char::is_ascii_alphanumeric).take(NAME_START).collect();
    let name = if start.is_empty() { format!("sandbox-{digest}") } else { format!("{start}-{digest}") };
    // Never fails: it has letters, digits and a dash, at most 113.
    name.parse().map_err(|error| invalid("config.metadata", &error))
}

/// Checks the namespaces.
fn namespaces(context: &LinuxSandboxSecurityContext) -> Result<NamespaceOption, Status> {
    check_selinux(context.selinux_options.as_ref())?;
    let options = context.namespace_options.clone().unwrap_or_default();
    let field = |name: &str| format!("config.linux.security_context.namespace_options.{name}");
    for (name, value, allowed) in [
        ("network", options.network, &[NamespaceMode::Pod, NamespaceMode::Node][..]),
        ("pid", options.pid, &[NamespaceMode::Pod, NamespaceMode::Container, NamespaceMode::Node][..]),
        ("ipc", options.ipc, &[NamespaceMode::Pod, NamespaceMode::Node][..]),
    ] {
        if !NamespaceMode::try_from(value).is_ok_and(|mode| allowed.contains(&mode)) {
            let names: Vec<_> = allowed.iter().map(NamespaceMode::as_str_name).collect();
            return Err(invalid_field(&field(name), &format!("a sandbox has one of {}", names.join(", "))));
        }
    }
    if !options.target_id.is_empty() {
        return Err(invalid_field(&field("target_id"), "a sandbox joins no container"));
    }
    Ok(options)
}

/// The user namespace: one range of ids each for users and groups, or the host's.
fn user_namespace(options: &NamespaceOption) -> Result<UserNamespaceMode, Status> {
    let Some(UserNamespace { mode, uids, gids }) = &options.userns_options else { return Ok(UserNamespaceMode::Host) };
    let field = |name: &str| format!("config.linux.security_context.namespace_options.userns_options{name}");
    match NamespaceMode::try_from(*mode) {
        Ok(NamespaceMode::Node) if uids.is_empty() && gids.is_empty() => Ok(UserNamespaceMode::Host),
        Ok(NamespaceMode::Pod) => {
            let (uids, gids) = (id_range(&field(".uids"), uids)?, id_range(&field(".gids"), gids)?);
            Ok(UserNamespaceMode::Mapped(IdMappings { uids, gids }))
        }
        Ok(NamespaceMode::Node | NamespaceMode::Container | NamespaceMode::Target) | Err(_) => {
            Err(invalid_field(&field(""), "expected POD, or NODE without mappings"))
        }
    }
}

/// The range of ids of a mapping. [`PodSpec::validate`] checks the ids of the host.
fn id_range(field: &str, mappings: &[IdMapping]) -> Result<IdRange, Status> {
    match mappings {
        [IdMapping { host_id, container_id: 0, length }] => Ok(IdRange { host: *host_id, length: *length }),
        [_] => Err(invalid_field(field, "the mapping does not begin with id 0 of the pod")),
        _ => Err(invalid_field(field, "expected exactly one mapping")),
    }
}

/// Refuses labels of SELinux; they mean nothing on a host without it.
///
/// # Errors
/// `UNIMPLEMENTED`, with the field.
pub(in super::super) fn check_selinux(options: Option<&SeLinuxOption>) -> Result<(), Status> {
    let has_labels = options.is_some_and(|options| *options != SeLinuxOption::default());
    if has_labels && Path::new(SELINUX).exists() {
        return Err(unsupported("config.linux.security_context.selinux_options", "gantry sets no labels"));
    }
    Ok(())
}

/// The resolver's configuration; without one the host's.
fn dns(config: Option<DnsConfig>) -> Result<DnsSpec, Status> {
    let config = config.unwrap_or_default();
    if config == DnsConfig::default() {
        return Ok(DnsSpec::Host);
    }
    let DnsConfig { servers, searches, options } = config;
    let server = |text: &String| text.parse().map_err(|error| invalid("config.dns_config.servers", &error));
    let servers = servers.iter().map(server).collect::<Result<_, _>>()?;
    Ok(DnsSpec::Given(Dns { servers, search: searches, options, domain: None }))
}

/// The ports of the host. A mapping without one only documents the port of the pod.
fn ports(mappings: Vec<PortMapping>) -> Result<Vec<PortSpec>, Status> {
    mappings.into_iter().filter(|mapping| mapping.host_port != 0).map(port).collect()
}

fn port(mapping: PortMapping) -> Result<PortSpec, Status> {
    let PortMapping { protocol, container_port, host_port, host_ip } = mapping;
    let number = |field: &str, port: i32| {
        let number = u16::try_from(port).ok().filter(|port| *port > 0);
        number.ok_or_else(|| invalid_field(&format!("config.port_mappings.{field}"), "expected 1 to 65535"))
    };
    let protocol = match PortProtocol::try_from(protocol) {
        Ok(PortProtocol::Tcp) => Protocol::Tcp,
        Ok(PortProtocol::Udp) => Protocol::Udp,
        Ok(PortProtocol::Sctp) => Protocol::Sctp,
        Err(_) => return Err(invalid_field("config.port_mappings.protocol", "expected TCP, UDP or SCTP")),
    };
    let host_ip = match host_ip.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| invalid_field("config.port_mappings.host_ip", "it is not an address"))?),
    };
    Ok(PortSpec {
        to: PortTarget::Numbered { port: number("container_port", container_port)?, count: 1, protocol },
        host_ip,
        host_port: number("host_port", host_port)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str, namespace: &str, uid: &str) -> PodSandboxMetadata {
        PodSandboxMetadata { name: name.into(), namespace: namespace.into(), uid: uid.into(), attempt: 1 }
    }

    #[test]
    fn names_of_sandboxes_are_unique() {
        assert_eq!(pod_name(&metadata("web", "default", "7-8")).unwrap().as_str(), "web_default_7-8_1");
        let names = [
            metadata("a_b", "c", "d"),
            metadata("a", "b_c", "d"),
            metadata("a", "b", "c_d"),
            metadata(&"x".repeat(253), "n", "u"),
            metadata(&"x".repeat(253), "n", "v"),
            metadata("ü", "", ""),
        ]
        .map(|metadata| pod_name(&metadata).unwrap().to_string());
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }

    #[test]
    fn incomplete_metadata_is_refused_by_field() {
        assert!(check_metadata(&metadata("web", "default", "7-8")).is_ok());
        for (bad, field) in [
            (metadata("", "default", "7-8"), "config.metadata.name: "),
            (metadata("web\0", "default", "7-8"), "config.metadata.name: "),
            (metadata("web", "", "7-8"), "config.metadata.namespace: "),
            (metadata("web", "default", ""), "config.metadata.uid: "),
        ] {
            let refused = check_metadata(&bad).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            assert!(refused.message().starts_with(field), "{refused}");
        }
    }

    #[test]
    fn modes_that_pods_lack_are_refused() {
        let context = |options| LinuxSandboxSecurityContext {
            namespace_options: Some(options),
            ..LinuxSandboxSecurityContext::default()
        };
        let modes = |network: NamespaceMode, pid: NamespaceMode, ipc: NamespaceMode| NamespaceOption {
            network: network.into(),
            pid: pid.into(),
            ipc: ipc.into(),
            ..NamespaceOption::default()
        };
        use NamespaceMode::{Container, Node, Pod, Target};
        for good in [modes(Pod, Pod, Pod), modes(Node, Node, Node), modes(Pod, Container, Pod)] {
            assert!(namespaces(&context(good)).is_ok());
        }
        for bad in [modes(Container, Pod, Pod), modes(Pod, Target, Pod), modes(Pod, Pod, Container)] {
            assert!(namespaces(&context(bad)).is_err());
        }
    }

    #[test]
    fn user_namespaces_have_one_mapping_of_each_kind() {
        use NamespaceMode::{Container, Node, Pod, Target};
        let map = |container_id| IdMapping { host_id: 1000, container_id, length: 100_000 };
        let parsed = |mode: NamespaceMode, uids: Vec<IdMapping>, gids: Vec<IdMapping>| {
            let options = Some(UserNamespace { mode: mode.into(), uids, gids });
            user_namespace(&NamespaceOption { userns_options: options, ..NamespaceOption::default() }).ok()
        };
        let range = IdRange { host: 1000, length: 100_000 };
        let one = || vec![map(0)];
        assert_eq!(parsed(Pod, one(), one()), Some(UserNamespaceMode::Mapped(IdMappings::same(range))));
        assert_eq!(parsed(Node, Vec::new(), Vec::new()), Some(UserNamespaceMode::Host));
        for (mode, uids, gids) in [
            (Pod, Vec::new(), Vec::new()),
            (Pod, one(), Vec::new()),
            (Pod, one(), vec![map(0), map(1)]),
            (Pod, vec![map(1)], one()),
            (Node, one(), one()),
            (Container, one(), one()),
            (Target, Vec::new(), Vec::new()),
        ] {
            assert_eq!(parsed(mode, uids, gids), None, "{mode:?}");
        }
        assert_eq!(user_namespace(&NamespaceOption::default()).unwrap(), UserNamespaceMode::Host);
    }

    #[test]
    fn ports_of_the_host_are_published() {
        let mapping = |host_port, container_port| PortMapping { host_port, container_port, ..PortMapping::default() };
        assert_eq!(ports(vec![mapping(0, 80)]).unwrap(), []);
        assert_eq!(ports(vec![mapping(8080, 80)]).unwrap()[0].host_port, 8080);
        for bad in [mapping(70_000, 80), mapping(80, 0), mapping(-1, 80)] {
            assert!(ports(vec![bad]).is_err());
        }
    }
}
