//! Which callers may call which methods: the roles of Talos.
//!
//! | caller | roles |
//! |---|---|
//! | root, over a unix socket | `os:admin` |
//! | a member of the group `gantry`, over a unix socket | `os:reader` |
//! | the holder of a certificate | those that its subject has as organizations |
//! | others | none |

use std::fmt;

use tonic::Status;

use crate::peer::{ADMINISTRATORS, Caller, Peer};

/// A role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Lists, statistics and logs; no contents of files.
    Reader,
    /// The calls of readers, starting, stopping and restarting, and the contents of logs (`files::access`).
    Operator,
    /// Everything.
    Admin,
    /// Snapshots of etcd, which gantryd does not serve.
    EtcdBackup,
}

impl Role {
    const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Reader, Self::EtcdBackup];

    /// The name, as in certificates.
    fn name(self) -> &'static str {
        match self {
            Self::Reader => "os:reader",
            Self::Operator => "os:operator",
            Self::Admin => ADMINISTRATORS,
            Self::EtcdBackup => "os:etcd:backup",
        }
    }
}

/// The roles of a caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Roles(Vec<Role>);

impl Roles {
    /// The roles of a caller.
    pub(super) fn of_caller(caller: &Caller) -> Self {
        Self(match (caller.peer, &caller.certificate) {
            (Peer::Root, _) => vec![Role::Admin],
            (Peer::User { member: true, .. }, _) => vec![Role::Reader],
            (Peer::Certificate { .. }, Some(certificate)) => {
                let has = |role: &Role| certificate.subject.organizations.iter().any(|one| one == role.name());
                Role::ALL.into_iter().filter(has).collect()
            }
            (Peer::User { member: false, .. } | Peer::Network | Peer::Certificate { .. }, _) => Vec::new(),
        })
    }

    /// Whether one of the roles permits the method (`package.Service/Method`).
    fn permit(&self, method: &str) -> bool {
        self.0.iter().any(|role| permitted_roles(method).contains(role))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|role| role.name()).collect();
        f.write_str(&names.join(","))
    }
}

/// The roles that permit a method. A method without a rule needs an administrator, as in Talos.
fn permitted_roles(method: &str) -> &'static [Role] {
    let (service, name) = method.split_once('/').unwrap_or((method, ""));
    match (service, name) {
        // Health and reflection.
        (service, _) if service.starts_with("grpc.") => &Role::ALL,
        (
            "machine.MachineService",
            "CPUInfo" | "Containers" | "DiskStats" | "DiskUsage" | "Dmesg" | "Events" | "Hostname" | "ImageList"
            | "List" | "LoadAvg" | "Logs" | "LogsContainers" | "Memory" | "Mounts" | "NetworkDeviceStats" | "Processes"
            | "ServiceList" | "Stats" | "SystemStat" | "Version",
        )
        | ("os.OSService", "Containers" | "Dmesg" | "Memory" | "Processes" | "Stats")
        | ("cluster.ClusterService", "HealthCheck")
        | ("health.Health", "Check" | "Ready" | "Watch")
        | ("inspect.InspectService", "ControllerRuntimeDependencies")
        | ("network.NetworkService", "Interfaces" | "Routes")
        | ("resource.ResourceService", "Get" | "List" | "Watch")
        | ("storage.StorageService", "Disks")
        | ("time.TimeService", "Time" | "TimeCheck") => &[Role::Admin, Role::Operator, Role::Reader],
        (
            "machine.MachineService",
            "Copy" | "ImagePull" | "Read" | "Reboot" | "Restart" | "ServiceRestart" | "ServiceStart" | "ServiceStop"
            | "Shutdown",
        )
        | ("os.OSService", "Restart") => &[Role::Admin, Role::Operator],
        ("machine.MachineService", "EtcdSnapshot") => &[Role::Admin, Role::Operator, Role::EtcdBackup],
        _ => &[Role::Admin],
    }
}

/// Whether the method changes something, here or on a Talos node.
pub(super) fn is_mutating(method: &str) -> bool {
    let (service, name) = method.split_once('/').unwrap_or((method, ""));
    matches!(
        (service, name),
        (
            "machine.MachineService",
            "ApplyConfiguration"
                | "Bootstrap"
                | "EtcdForfeitLeadership"
                | "EtcdLeaveCluster"
                | "ImagePull"
                | "Reboot"
                | "Recover"
                | "Reset"
                | "Restart"
                | "Rollback"
                | "ServiceRestart"
                | "ServiceStart"
                | "ServiceStop"
                | "Shutdown"
                | "Upgrade"
        ) | ("os.OSService", "Restart")
            | ("securityapi.SecurityService", "Certificate" | "WriteFile")
    )
}

/// Whether the peer is an administrator.
pub(super) fn is_administrator(peer: Peer) -> bool {
    match peer {
        Peer::Root => true,
        Peer::Certificate { administrator, .. } => administrator,
        Peer::User { .. } | Peer::Network => false,
    }
}

/// Whether the caller may call the method.
///
/// # Errors
/// `PERMISSION_DENIED` with Talos' text.
pub(super) fn authorize(caller: &Caller, method: &str) -> Result<(), Status> {
    match Roles::of_caller(caller).permit(method) {
        true => Ok(()),
        false => Err(Status::permission_denied("not authorized")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use gantry_engine::pki::CertificateSubject;

    use super::*;
    use crate::handshake::ClientCertificate;
    use crate::stream::Origin;

    const READER: [bool; 8] = [true, true, true, false, false, false, false, false];
    const OPERATOR: [bool; 8] = [true, true, true, true, true, true, true, false];
    const METHODS: [&str; 8] = [
        "machine.MachineService/Containers",
        "os.OSService/Stats",
        "grpc.health.v1.Health/Check",
        "machine.MachineService/Restart",
        "machine.MachineService/Reboot",
        "machine.MachineService/Read",
        "machine.MachineService/Copy",
        "machine.MachineService/FromTheFuture",
    ];

    fn holder(organizations: &[&str]) -> Caller {
        let organizations = organizations.iter().map(ToString::to_string).collect();
        let subject = CertificateSubject { organizations, ..CertificateSubject::default() };
        let certificate = ClientCertificate { subject, origin: Origin::User(Some(1)), hash: 7 };
        Caller { peer: Peer::Certificate { hash: 7, administrator: false }, certificate: Some(Arc::new(certificate)) }
    }

    #[test]
    fn roles_permit_methods() {
        let user = |member| Caller::from(Peer::User { uid: 7, member });
        let health_only = [false, false, true, false, false, false, false, false];
        let rows = [
            (Peer::Root.into(), [true; 8]),
            (user(true), READER),
            (user(false), [false; 8]),
            (Peer::Network.into(), [false; 8]),
            (Peer::Certificate { hash: 7, administrator: false }.into(), [false; 8]),
            (holder(&["os:admin"]), [true; 8]),
            (holder(&["os:operator"]), OPERATOR),
            (holder(&["os:reader"]), READER),
            (holder(&["os:reader", "x", "os:operator"]), OPERATOR),
            (holder(&["os:etcd:backup"]), health_only),
            (holder(&["os:impersonator", "os:Admin", "admin", ""]), [false; 8]),
            (holder(&[]), [false; 8]),
        ];
        for (caller, wanted) in rows {
            for (method, wanted) in METHODS.into_iter().zip(wanted) {
                let result = authorize(&caller, method);
                assert_eq!(result.is_ok(), wanted, "{caller:?} {method}");
                assert!(wanted || result.unwrap_err().message() == "not authorized");
            }
        }
        assert_eq!(Roles::of_caller(&holder(&["os:reader", "os:admin"])).to_string(), "os:admin,os:reader");
    }
}
