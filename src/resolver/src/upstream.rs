//! The servers of the host, from its resolv.conf (resolv.conf(5)).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_host::file::read_bounded;
use gantry_host::stamp::FileStamp;
use gantry_model::resolv_conf::{self, Directive};

/// The port of DNS.
pub(crate) const PORT: u16 = 53;
/// So many servers are used (`MAXNS` of resolv.conf(5)).
const MAX_SERVERS: usize = 3;
/// A longer file is none.
const MAX_FILE: u64 = 64 << 10;
/// The period in which a server that did not reply is tried after the others.
const AVOID_TIME: Duration = Duration::from_secs(30);

/// The name servers in a resolv.conf, in order, with the zones of link-local addresses.
fn parse_servers(text: &str) -> impl Iterator<Item = (IpAddr, Option<&str>)> {
    let server = |directive| match directive {
        Directive::NameServer { address, zone } => Some((address, zone)),
        Directive::Domain(_) | Directive::Search(_) | Directive::Options(_) => None,
    };
    resolv_conf::directives(text).filter_map(server).take(MAX_SERVERS)
}

/// The host's resolv.conf, read again when it has changed. Polled, because it is usually a symbolic link, and inotify
/// reports no changes of a link's target.
#[derive(Debug)]
pub(crate) struct HostFile {
    path: std::path::PathBuf,
    /// The stamp at the last read; the inner `None` is an absent file.
    seen: Option<Option<FileStamp>>,
}

impl HostFile {
    /// Reads nothing yet.
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: None }
    }

    /// The servers, when they may have changed since the last call.
    ///
    /// # Errors
    /// The file exists but cannot be read, or is no text; reported once for each change.
    pub(crate) fn news(&mut self) -> io::Result<Option<Vec<SocketAddr>>> {
        // Taken before the file is read: a change during the read shows the next time.
        let stamp = FileStamp::read(&self.path);
        if self.seen.as_ref() == Some(&stamp) {
            return Ok(None);
        }
        self.seen = Some(stamp);
        let text = read(&self.path)?;
        let servers: Vec<SocketAddr> = parse_servers(&text).filter_map(socket_address).collect();
        // Without a nameserver line the C library uses the local one.
        let local = || vec![SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))];
        Ok(Some(if servers.is_empty() { local() } else { servers }))
    }
}

/// The text of a file; empty if it does not exist.
fn read(path: &Path) -> io::Result<String> {
    match read_bounded(path, MAX_FILE) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The destination; none for a link-local address whose link does not exist.
fn socket_address((address, zone): (IpAddr, Option<&str>)) -> Option<SocketAddr> {
    match (address, zone) {
        (IpAddr::V6(address), Some(link)) => {
            Some(SocketAddrV6::new(address, PORT, 0, link.parse().ok().or_else(|| index_of(link))?).into())
        }
        (IpAddr::V6(Ipv6Addr::UNSPECIFIED), None) => Some((Ipv6Addr::LOCALHOST, PORT).into()),
        // 0.0.0.0 is this machine, as for the C library.
        (IpAddr::V4(Ipv4Addr::UNSPECIFIED), None) => Some((Ipv4Addr::LOCALHOST, PORT).into()),
        (address, None) => Some((address, PORT).into()),
        (IpAddr::V4(_), Some(_)) => None,
    }
}

fn index_of(link: &str) -> Option<u32> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    let socket: OwnedFd =
        rustix::net::socket_with(rustix::net::AddressFamily::INET6, rustix::net::SocketType::DGRAM, flags, None)
            .ok()?;
    rustix::net::netdevice::name_to_index(&socket, link).ok()
}

/// The servers that did not reply recently, with the time of the last failure.
#[derive(Debug, Default)]
pub(crate) struct UnresponsiveServers(HashMap<SocketAddr, Instant>);

impl UnresponsiveServers {
    /// Records that a server did not reply.
    pub(crate) fn insert(&mut self, server: SocketAddr, now: Instant) {
        self.0.retain(|_, since| now.saturating_duration_since(*since) < AVOID_TIME);
        self.0.insert(server, now);
    }

    /// Records that a server replied.
    pub(crate) fn remove(&mut self, server: SocketAddr) {
        self.0.remove(&server);
    }

    /// The servers in the order in which to try them: as configured, recently unresponsive ones last.
    pub(crate) fn order(&self, servers: &[SocketAddr], now: Instant) -> Vec<SocketAddr> {
        let silent =
            |server: &SocketAddr| self.0.get(server).is_some_and(|at| now.saturating_duration_since(*at) < AVOID_TIME);
        let mut order = servers.to_vec();
        order.sort_by_key(silent);
        order
    }
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
