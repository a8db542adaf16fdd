//! Published ports are held by sockets of the pod's supervisor, so that no other process can use them, and a port that
//! is already in use is not taken over.
//!
//! The sockets are bound but do not listen: the kernel refuses connections that the tables do not redirect (`[::1]`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use gantry_model::ErrorKind;
use gantry_model::net::{PodPort, Protocol};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use super::error::{NetworkError, Result};
use super::port_users;
use super::select::Families;
use crate::address::IpFamily;
use crate::nft::HostPort;

/// The user of a port that is found neither in a pod's record nor in `/proc`.
const UNKNOWN_USER: &str = "another process of this host";

/// A socket that holds a port.
#[derive(Debug)]
pub(super) struct PortSocket {
    family: IpFamily,
    fd: OwnedFd,
}

impl From<PortSocket> for OwnedFd {
    fn from(socket: PortSocket) -> Self {
        socket.fd
    }
}

/// Holds the ports for these address families, in the network namespace of the calling thread, and adds the sockets to
/// `held`.
pub(super) fn hold(ports: &[PodPort], families: Families, held: &mut Vec<PortSocket>) -> Result<()> {
    for port in ports {
        for address in held_addresses(port, families) {
            for number in port.host_port..=port.host_port.saturating_add(port.count.saturating_sub(1)) {
                if let Some(fd) = bind(address, number, port)? {
                    held.push(PortSocket { family: IpFamily::of(address), fd });
                }
            }
        }
    }
    Ok(())
}

/// Picks a free host port for each port without one, the same number in every family, and holds it.
pub(super) fn pick(ports: &mut [PodPort], families: Families, held: &mut Vec<PortSocket>) -> Result<()> {
    for port in ports.iter_mut().filter(|port| port.host_port == 0) {
        let addresses = held_addresses(port, families);
        let mut picked = None;
        for _ in 0..MAX_PICKS {
            picked = try_pick(&addresses, port)?;
            if picked.is_some() {
                break;
            }
        }
        let (number, sockets) = picked.ok_or_else(|| no_free_port(port))?;
        port.host_port = number;
        held.extend(sockets);
    }
    Ok(())
}

/// The kernel picks a port for the first address. `None`: the port is in use on another address.
fn try_pick(addresses: &[IpAddr], port: &PodPort) -> Result<Option<(u16, Vec<PortSocket>)>> {
    let (mut number, mut sockets) = (0, Vec::new());
    for address in addresses {
        let fd = match bind(*address, number, port) {
            // The kernel found none.
            Err(NetworkError::PortTaken { .. }) if number == 0 => return Err(no_free_port(port)),
            Err(NetworkError::PortTaken { .. }) => return Ok(None),
            other => other?,
        };
        let Some(fd) = fd else { continue };
        if number == 0 {
            let name = rustix::net::getsockname(&fd).ok().and_then(|name| SocketAddr::try_from(name).ok());
            number = name.map_or(0, |name| name.port());
        }
        sockets.push(PortSocket { family: IpFamily::of(*address), fd });
    }
    Ok((number != 0).then_some((number, sockets)))
}

/// How often to pick a port, since it may be in use on another address.
const MAX_PICKS: u32 = 64;

/// Adjusts the held ports to the addresses that the pod got in the network that publishes them. `had`: the families for
/// which they were held. A network without ports changes nothing: one network publishes all ports of the pod.
pub(super) fn adjust(
    ports: &[PodPort],
    had: Families,
    has: Families,
    network: &str,
    held: &mut Vec<PortSocket>,
) -> Result<()> {
    if ports.is_empty() {
        return Ok(());
    }
    check_families(ports, has, network)?;
    held.retain(|socket| has.contains(socket.family));
    hold(ports, Families { v4: has.v4 && !had.v4, v6: has.v6 && !had.v6 }, held)
}

/// Fails for a port whose address family the pod has no address of.
pub(super) fn check_families(ports: &[PodPort], has: Families, network: &str) -> Result<()> {
    for port in ports {
        let missing = match port.host_ip {
            Some(address) => Some(IpFamily::of(address)).filter(|family| !has.contains(*family)),
            None => (has == Families::default()).then_some(IpFamily::V4),
        };
        if let Some(family) = missing {
            let message = format!(
                "cannot publish port {}: the pod has no {family} address in network '{network}'",
                shown(port, port.host_port)
            );
            return Err(NetworkError::new(ErrorKind::Invalid, message));
        }
    }
    Ok(())
}

/// The addresses on which a port is held.
fn held_addresses(port: &PodPort, families: Families) -> Vec<IpAddr> {
    match port.host_ip {
        Some(address) => Vec::from_iter(Some(address).filter(|address| families.contains(IpFamily::of(*address)))),
        None => Vec::from_iter(families.iter().map(unspecified)),
    }
}

/// The address that stands for every one of the family.
fn unspecified(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// Whether the sockets that hold a port for these families prevent others from holding `wanted`.
pub(super) fn is_held(wanted: HostPort, port: &PodPort, families: Families) -> bool {
    let numbers = port.host_port..=port.host_port.saturating_add(port.count.saturating_sub(1));
    port.protocol == wanted.protocol
        && numbers.contains(&wanted.port)
        && held_addresses(port, families).into_iter().any(|address| overlap(address, wanted.address))
}

/// Whether sockets on both addresses conflict. Those of gantry on `::` do not include IPv4.
pub(super) fn overlap(one: IpAddr, other: IpAddr) -> bool {
    IpFamily::of(one) == IpFamily::of(other) && (one == other || one.is_unspecified() || other.is_unspecified())
}

/// `None`: the host has no IPv6, so there is nothing to hold.
fn bind(address: IpAddr, number: u16, port: &PodPort) -> Result<Option<OwnedFd>> {
    let bound = match try_bind(address, number, port.protocol, false) {
        Err(Errno::AFNOSUPPORT) if address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => return Ok(None),
        // Without SO_REUSEADDR, connections in TIME-WAIT of an earlier server conflict.
        Err(Errno::ADDRINUSE) if port.protocol != Protocol::Udp => try_bind(address, number, port.protocol, true),
        other => other,
    };
    bound.map(Some).map_err(|errno| bind_error(errno, address, number, port))
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
        // Received datagrams are never read: keep the buffer small.
        sockopt::set_socket_recv_buffer_size(&fd, 1)?;
    }
    sockopt::set_socket_reuseaddr(&fd, reuse)?;
    rustix::net::bind(&fd, &SocketAddr::new(address, number))?;
    if reuse {
        // Reset, so that no other process can bind to the same port.
        sockopt::set_socket_reuseaddr(&fd, false)?;
    }
    Ok(fd)
}

fn bind_error(errno: Errno, address: IpAddr, number: u16, port: &PodPort) -> NetworkError {
    let port_shown = shown(port, number);
    match errno {
        Errno::ADDRINUSE => {
            let taken = HostPort { address, protocol: port.protocol, port: number };
            let by = port_users::find_process(taken).unwrap_or_else(|| UNKNOWN_USER.to_owned());
            NetworkError::PortTaken { port: taken, by }
        }
        Errno::ADDRNOTAVAIL => {
            let message = format!("cannot publish port {port_shown}: {address} is not an address of this host");
            NetworkError::new(ErrorKind::Invalid, message)
        }
        Errno::PROTONOSUPPORT | Errno::SOCKTNOSUPPORT if port.protocol == Protocol::Sctp => {
            let message = format!("cannot publish port {port_shown}: the kernel has no SCTP (module sctp)");
            NetworkError::new(ErrorKind::Unavailable, message)
        }
        errno => NetworkError::io(format!("hold port {port_shown} of the host"))(errno),
    }
}

fn no_free_port(port: &PodPort) -> NetworkError {
    let message =
        format!("no free port of the host was found to publish {}: name one with HOSTPORT:PODPORT", shown(port, 0));
    NetworkError::new(ErrorKind::Exhausted, message)
}

/// Address, number and protocol of a host port.
fn shown(port: &PodPort, number: u16) -> String {
    let address = port.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
    HostPort { address, protocol: port.protocol, port: number }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_port_prevents_overlapping_ones() {
        let held = |host_ip: Option<&str>, protocol, families| {
            let host_ip = host_ip.map(|address| address.parse().unwrap());
            let port = PodPort { host_ip, host_port: 8080, pod_port: 80, count: 2, protocol };
            move |address: &str, number| {
                let address = address.parse().unwrap();
                is_held(HostPort { address, protocol: Protocol::Tcp, port: number }, &port, families)
            }
        };
        let (v4, both) = (Families { v4: true, v6: false }, Families { v4: true, v6: true });
        let everywhere = held(None, Protocol::Tcp, both);
        assert!(everywhere("0.0.0.0", 8080) && everywhere("127.0.0.1", 8081) && everywhere("2001:db8::7", 8080));
        assert!(!everywhere("0.0.0.0", 8079) && !everywhere("0.0.0.0", 8082));
        assert!(!held(None, Protocol::Udp, both)("0.0.0.0", 8080));
        assert!(!held(None, Protocol::Tcp, v4)("::", 8080));
        let loopback = held(Some("127.0.0.1"), Protocol::Tcp, both);
        assert!(loopback("0.0.0.0", 8080) && loopback("127.0.0.1", 8080));
        assert!(!loopback("192.0.2.7", 8080) && !loopback("::", 8080));
    }

    #[test]
    fn networks_without_ports_release_no_port() {
        let (v4, v6) = (Families { v4: true, v6: false }, Families { v4: false, v6: true });
        let both = Families { v4: true, v6: true };
        let mut ports = [PodPort { host_ip: None, host_port: 0, pod_port: 80, count: 1, protocol: Protocol::Tcp }];
        let mut held = Vec::new();
        pick(&mut ports, both, &mut held).unwrap();
        for has in [v4, v6, Families::default()] {
            adjust(&[], Families::default(), has, "other", &mut held).unwrap();
            assert_eq!(held.len(), 2, "{has:?}");
        }
        adjust(&ports, both, v4, "publisher", &mut held).unwrap();
        assert_eq!(held.iter().map(|socket| socket.family).collect::<Vec<_>>(), [IpFamily::V4]);
    }
}
