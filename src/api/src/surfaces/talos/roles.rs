//! Which peers may call which methods: the roles of Talos. Over the unix socket, root is an administrator, and members
//! of the group `gantry` are readers.

use tonic::Status;

use crate::peer::Peer;

/// A role, from the least to the most powerful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// `os:reader`: lists, statistics and logs; no contents of files.
    Reader,
    /// `os:operator`: starts, stops and restarts, too.
    Operator,
    /// `os:admin`: everything.
    Admin,
}

impl Role {
    /// The role of a peer; `None`: it has none.
    fn of_peer(peer: Peer) -> Option<Self> {
        match peer {
            Peer::Root => Some(Self::Admin),
            Peer::User { member: true, .. } => Some(Self::Reader),
            Peer::User { member: false, .. } | Peer::Network => None,
        }
    }

    /// The role that a method (`package.Service/Method`) needs. A method without a rule needs the highest, as in Talos.
    fn needed_for(method: &str) -> Self {
        const READER: [&str; 29] = [
            "CPUInfo",
            "Containers",
            "DiskStats",
            "DiskUsage",
            "Dmesg",
            "Events",
            "Hostname",
            "ImageList",
            "List",
            "LoadAvg",
            "Logs",
            "LogsContainers",
            "Memory",
            "Mounts",
            "NetworkDeviceStats",
            "Processes",
            "ServiceList",
            "Stats",
            "SystemStat",
            "Version",
            "Interfaces",
            "Routes",
            "Time",
            "TimeCheck",
            "Check",
            "Ready",
            "Watch",
            "Disks",
            "Get",
        ];
        const OPERATOR: [&str; 7] =
            ["Restart", "ServiceRestart", "ServiceStart", "ServiceStop", "Reboot", "Shutdown", "ImagePull"];
        let (service, name) = method.split_once('/').unwrap_or((method, ""));
        if service.starts_with("grpc.") {
            return Self::Reader;
        }
        match name {
            name if READER.contains(&name) => Self::Reader,
            name if OPERATOR.contains(&name) => Self::Operator,
            _ => Self::Admin,
        }
    }
}

/// Whether the peer is an administrator.
pub(super) fn is_administrator(peer: Peer) -> bool {
    Role::of_peer(peer) == Some(Role::Admin)
}

/// Whether the peer may call the method.
///
/// # Errors
/// PERMISSION_DENIED with Talos' text.
pub(super) fn authorize(peer: Peer, method: &str) -> Result<(), Status> {
    match Role::of_peer(peer) {
        Some(role) if role >= Role::needed_for(method) => Ok(()),
        _ => Err(Status::permission_denied("not authorized")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_read_and_root_does_everything() {
        let reader = Peer::User { uid: 7, member: true };
        let rows = [
            ("machine.MachineService/Containers", true),
            ("os.OSService/Stats", true),
            ("grpc.health.v1.Health/Check", true),
            ("machine.MachineService/Restart", false),
            ("machine.MachineService/Read", false),
            ("machine.MachineService/Copy", false),
            ("machine.MachineService/Bootstrap", false),
            ("machine.MachineService/FromTheFuture", false),
        ];
        for (method, allowed) in rows {
            assert_eq!(authorize(reader, method).is_ok(), allowed, "{method}");
            assert!(authorize(Peer::Root, method).is_ok(), "{method}");
            for peer in [Peer::Network, Peer::User { uid: 7, member: false }] {
                assert_eq!(authorize(peer, method).unwrap_err().message(), "not authorized");
            }
        }
    }
}
