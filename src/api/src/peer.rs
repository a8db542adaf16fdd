//! Identifies the client of a connection by its kernel credentials or its certificate, and derives its limits and
//! access rights.
//!
//! | peer | share of connections and of streams | values of environment variables |
//! |---|---|---|
//! | TCP, any address | half, for all TCP clients together | hidden |
//! | certificate, over mutual TLS | an eighth per certificate, half for all together | hidden |
//! | other user, over a unix socket | an eighth per user, half for all together | shown to the group `gantry` |
//! | root, over a unix socket | unlimited | shown |
//!
//! So no user can block root or another user.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use gantry_model::id::shown;
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tonic::Extensions;
use tonic::codegen::http;

use crate::handshake::ClientCertificate;

/// The group whose members may read secrets (values of environment variables).
pub(crate) const GROUP: &str = "gantry";
/// The organization (O=) of administrators in the certificates of clients, as Talos has it.
pub(crate) const ADMINISTRATORS: &str = "os:admin";
/// Maximum size of the user and group databases; larger files are ignored.
const MAX_DATABASE: u64 = 4 << 20;

/// The sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Over TCP: any user of this host, or of any host that can reach the address.
    Network,
    /// The holder of a certificate, over mutual TLS.
    Certificate {
        /// A hash of the certificate.
        hash: u64,
        /// Whether [`ADMINISTRATORS`] is one of its organizations.
        administrator: bool,
    },
    /// A process of root, over a unix socket.
    Root,
    /// A process of another user, over a unix socket.
    User {
        /// Its effective user id when it connected.
        uid: u32,
        /// Whether it belongs to the group [`GROUP`].
        member: bool,
    },
}

impl Peer {
    /// The process that connected (SO_PEERCRED). If the kernel gives no credentials, the peer counts as a TCP client.
    pub(crate) fn of_unix(stream: &UnixStream) -> Self {
        match stream.peer_cred() {
            Ok(credentials) if credentials.uid() == 0 => Self::Root,
            Ok(credentials) => {
                let (uid, gid) = (credentials.uid(), credentials.gid());
                Self::User { uid, member: is_member(uid, gid) }
            }
            Err(_) => Self::Network,
        }
    }

    /// The client of a request.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().map_or(Self::Network, |connection: &ConnectionInfo| connection.peer)
    }

    /// Whether the client may see the values of environment variables.
    pub(crate) fn sees_secrets(self) -> bool {
        match self {
            Self::Network | Self::Certificate { .. } => false,
            Self::Root => true,
            Self::User { member, .. } => member,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network => f.write_str("tcp"),
            Self::Certificate { .. } => f.write_str("tls"),
            Self::Root => f.write_str("uid=0"),
            Self::User { uid, .. } => write!(f, "uid={uid}"),
        }
    }
}

/// The server's knowledge of a connection. Every request carries it in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionInfo {
    /// Its client.
    pub(crate) peer: Peer,
    /// The client's certificate, over mutual TLS.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Permits for the lists that it may request at a time.
    pub(crate) lists: Arc<Semaphore>,
}

/// The sender of a request, with its certificate.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The client.
    pub(crate) peer: Peer,
    /// Its certificate, over mutual TLS.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
}

impl Caller {
    /// The sender of a request, before its message is decoded.
    pub(crate) fn of_http(extensions: &http::Extensions) -> Self {
        match extensions.get::<ConnectionInfo>() {
            None => Self::from(Peer::Network),
            Some(connection) => Self { peer: connection.peer, certificate: connection.certificate.clone() },
        }
    }
}

impl From<Peer> for Caller {
    fn from(peer: Peer) -> Self {
        Self { peer, certificate: None }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.certificate {
            None => self.peer.fmt(f),
            Some(certificate) => {
                write!(f, "tls:{}@{}", shown(&certificate.subject.common_name), certificate.origin)
            }
        }
    }
}

fn is_member(uid: u32, gid: u32) -> bool {
    let read = |path: &str| {
        let fits = Path::new(path).metadata().is_ok_and(|found| found.len() <= MAX_DATABASE);
        if fits { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() }
    };
    is_member_in(&read("/etc/group"), &read("/etc/passwd"), uid, gid)
}

/// Whether the group is the user's current one, or lists the user as a member (group(5), passwd(5)).
fn is_member_in(groups: &str, users: &str, uid: u32, gid: u32) -> bool {
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix(GROUP)?.strip_prefix(':')) else { return false };
    let mut fields = group.split(':').skip(1);
    let (number, members) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    // Group 0 under another name would let in every process of a service that runs with it.
    match number.parse::<u32>() {
        Ok(0) | Err(_) => return false,
        Ok(number) if number == gid => return true,
        Ok(_) => {}
    }
    let mut names = users.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse::<u32>().ok()? == uid).then_some(name)
    });
    names.any(|name| !name.is_empty() && members.split(',').any(|member| member == name))
}

/// The id of a group, if the group exists.
pub(crate) fn group_id(name: &str) -> Option<u32> {
    let groups = std::fs::read_to_string("/etc/group").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    group.split(':').nth(1)?.parse().ok().filter(|&number| number != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n\nbroken\nbob:x:1001:50::/:\n";

    #[test]
    fn members_are_found_by_gid_and_name() {
        let rows = [
            ("gantry:x:50:ann,bob", 1000, 1000, true),
            ("gantry:x:50:ann,bob", 1001, 1001, true),
            ("gantry:x:50:ann,bob", 1002, 1002, false),
            ("gantry:x:50:", 1002, 50, true),
            ("gantry:x:50:annabel", 1000, 1000, false),
            ("gantryx:x:50:ann", 1000, 50, false),
            ("x:x:50:ann", 1000, 50, false),
            ("gantry:x:0:ann", 1000, 0, false),
            ("gantry:x::ann", 1000, 1000, false),
            ("gantry", 1000, 1000, false),
            ("", 1000, 0, false),
        ];
        for (group, uid, gid, want) in rows {
            let groups = format!("root:x:0:\n{group}\n");
            assert_eq!(is_member_in(&groups, USERS, uid, gid), want, "{group:?} {uid} {gid}");
        }
    }

    proptest! {
        #[test]
        fn group_parser_never_panics(groups: String, users: String, uid: u32) {
            let _ = is_member_in(&format!("gantry:{groups}"), &users, uid, uid);
        }
    }
}
