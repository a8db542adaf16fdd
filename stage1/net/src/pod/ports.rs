//! Ports of the host that lead to a pod are held by sockets of its supervisor: nobody else can listen there, and who does
//! already is not robbed of it.
//!
//! They are bound and never listened on: what the tables do not lead away (`[::1]`) is refused, and not kept waiting.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use gantry_contract::plan::{Port, Protocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::error::{NetworkError, Result};
use super::listeners;
use super::select::Families;
use crate::nft::HostPort;

/// What uses a port where neither a pod's record nor `/proc` tells.
const UNKNOWN_USER: &str = "another process of this host";

/// A port that is held.
#[derive(Debug)]
pub(super) struct Socket {
    ipv4: bool,
    fd: OwnedFd,
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}

/// Holds these ports in the calling thread's network namespace, for those families; and adds them to what is held.
pub(super) fn hold(ports: &[Port], families: Families, held: &mut Vec<Socket>) -> Result<()> {
    for port in ports {
        for address in addresses(port, families) {
            for number in port.host_port..=port.host_port.saturating_add(port.count.saturating_sub(1)) {
                if let Some(fd) = bind(address, number, port)? {
                    held.push(Socket { ipv4: address.is_ipv4(), fd });
                }
            }
        }
    }
    Ok(())
}

/// Picks a free port of the host for each of these that has none, and holds it: the same number in every family.
pub(super) fn pick(ports: &mut [Port], families: Families, held: &mut Vec<Socket>) -> Result<()> {
    for port in ports.iter_mut().filter(|port| port.host_port == 0) {
        let addresses = addresses(port, families);
        let mut picked = None;
        for _ in 0..PICKS {
            picked = try_pick(&addresses, port)?;
            if picked.is_some() {
                break;
            }
        }
        let (number, sockets) = picked.ok_or_else(|| NetworkError::NoFreePort { port: shown(port, 0) })?;
        port.host_port = number;
        held.extend(sockets);
    }
    Ok(())
}

/// The kernel picks for the first address; `None`: that port is in use on another one.
fn try_pick(addresses: &[IpAddr], port: &Port) -> Result<Option<(u16, Vec<Socket>)>> {
    let (mut number, mut sockets) = (0, Vec::new());
    for address in addresses {
        let fd = match bind(*address, number, port) {
            Err(NetworkError::PortTaken { .. }) if number != 0 => return Ok(None),
            other => other?,
        };
        let Some(fd) = fd else { continue };
        if number == 0 {
            let name = rustix::net::getsockname(&fd).ok().and_then(|name| SocketAddr::try_from(name).ok());
            number = name.map_or(0, |name| name.port());
        }
        sockets.push(Socket { ipv4: address.is_ipv4(), fd });
    }
    Ok((number != 0).then_some((number, sockets)))
}

/// How often a port is picked that another address may have in use.
const PICKS: u32 = 64;

/// Makes what is held fit the addresses the pod has in the end: `had` is what was held for.
pub(super) fn settle(
    ports: &[Port],
    had: Families,
    has: Families,
    network: &str,
    held: &mut Vec<Socket>,
) -> Result<()> {
    fit(ports, has, network)?;
    held.retain(|socket| if socket.ipv4 { has.v4 } else { has.v6 });
    hold(ports, Families { v4: has.v4 && !had.v4, v6: has.v6 && !had.v6 }, held)
}

/// Fails for a port on an address of a family that the pod has none of.
pub(super) fn fit(ports: &[Port], has: Families, network: &str) -> Result<()> {
    for port in ports {
        let missing = match port.host_ip {
            Some(address) if address.is_ipv4() && !has.v4 => Some(4),
            Some(address) if address.is_ipv6() && !has.v6 => Some(6),
            None if has == Families::default() => Some(4),
            _ => None,
        };
        if let Some(family) = missing {
            return Err(NetworkError::NoFamily {
                port: shown(port, port.host_port),
                family,
                network: network.to_owned(),
            });
        }
    }
    Ok(())
}

/// The addresses a port is held on.
fn addresses(port: &Port, families: Families) -> Vec<IpAddr> {
    let every = [(families.v4, Ipv4Addr::UNSPECIFIED.into()), (families.v6, Ipv6Addr::UNSPECIFIED.into())];
    let every = every.into_iter().filter(|(wanted, _)| *wanted).map(|(_, address)| address);
    match port.host_ip {
        Some(address) => every.filter(|it: &IpAddr| it.is_ipv4() == address.is_ipv4()).map(|_| address).collect(),
        None => every.collect(),
    }
}

/// None: there is nothing to hold, as this host has no IPv6.
fn bind(address: IpAddr, number: u16, port: &Port) -> Result<Option<OwnedFd>> {
    let bound = match try_bind(address, number, port.protocol, false) {
        Err(Errno::AFNOSUPPORT) if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => return Ok(None),
        // Connections of an earlier server that are over are in the way of who does not say that they are no matter.
        Err(Errno::ADDRINUSE) if port.protocol != Protocol::Udp => try_bind(address, number, port.protocol, true),
        other => other,
    };
    bound.map(Some).map_err(|errno| refused(errno, address, number, port))
}

fn try_bind(address: IpAddr, number: u16, protocol: Protocol, reuse: bool) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (kind, protocol) = match protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        Protocol::Sctp => (SocketType::STREAM, ipproto::SCTP),
    };
    let fd = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol))?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    if protocol == ipproto::UDP {
        // Nobody reads what comes: let little of it be kept.
        sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    }
    sockopt::set_socket_reuseaddr(&fd, reuse)?;
    rustix::net::bind(&fd, &SocketAddr::new(address, number))?;
    if reuse {
        // For ourselves only: nobody is to bind beside us.
        sockopt::set_socket_reuseaddr(&fd, false)?;
    }
    Ok(fd)
}

fn refused(errno: Errno, address: IpAddr, number: u16, port: &Port) -> NetworkError {
    let port_shown = shown(port, number);
    match errno {
        Errno::ADDRINUSE => {
            let by = listeners::user_of(address, number, port.protocol).unwrap_or_else(|| UNKNOWN_USER.to_owned());
            NetworkError::PortTaken { port: port_shown, by }
        }
        Errno::ADDRNOTAVAIL => NetworkError::NotHostAddress { port: port_shown, address },
        Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT if port.protocol == Protocol::Sctp => {
            NetworkError::NoSctp { port: port_shown }
        }
        errno => NetworkError::Port { port: port_shown, source: errno.into() },
    }
}

pub(super) fn shown(port: &Port, number: u16) -> String {
    let address = port.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    HostPort { address, protocol: port.protocol.into(), port: number }.to_string()
}
