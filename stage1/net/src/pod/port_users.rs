//! Finds the pod or process that uses a port of the host, for error messages.
//!
//! A pod's ports are in its record, and its supervisor holds them as long as it lives. Other users are found in
//! `/proc`, which needs no right that a supervisor lacks: `/proc/net/tcp` and the like (proc_pid_net(5)) list sockets
//! with their inode numbers, and a process's descriptors (`/proc/PID/fd`) give the inodes of its sockets. The lists
//! contain neither TCP sockets that are bound but neither listening nor connected, nor, on this kernel's interface,
//! SCTP sockets. Then the process remains unknown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use gantry_contract::network::Host;
use gantry_model::id::shown;
use gantry_model::net::Protocol;

use super::error::Result;
use super::ports;
use super::record::{Record, Records, boot};
use super::select::Families;
use crate::nft::HostPort;

/// State of a listening TCP socket (`TCP_LISTEN` of net/tcp_states.h).
const LISTEN: &str = "0A";

/// Returns the live pod that holds a port which prevents others from using this one.
pub(super) fn find_pod(host: &Host, port: HostPort) -> Result<Option<String>> {
    let (records, now) = (Records::open(host)?, boot()?);
    for record in records.valid()? {
        // The record of a pod whose supervisor was killed remains, but the kernel has closed the sockets.
        if record.boot == now && holds(&record, port) && records.lock_dead(&record.pod)?.is_none() {
            return Ok(Some(record.pod));
        }
    }
    Ok(None)
}

fn holds(record: &Record, port: HostPort) -> bool {
    record.attached.iter().any(|network| {
        let families = Families::from_addresses(network.addresses.iter().map(|it| it.address));
        network.ports.iter().any(|held| ports::is_held(port, held, families))
    })
}

/// Returns `process 4711 (nginx)`, in the network namespace of the calling thread; `None` if it is unknown.
pub(super) fn find_process(port: HostPort) -> Option<String> {
    let files = match port.protocol {
        Protocol::Tcp => ["tcp", "tcp6"],
        Protocol::Udp => ["udp", "udp6"],
        Protocol::Sctp => return None,
    };
    let read = |file: &&str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let mut sockets: Vec<ProcSocket> = files.iter().flat_map(|file| parse(&read(file))).collect();
    sockets.retain(|socket| socket.port == port.port && prevents(socket.address, port.address));
    // Prefer a socket of the family to one of IPv6 that may include IPv4, and a listening socket to its connections.
    sockets.sort_by_key(|socket| (socket.address.is_ipv4() != port.address.is_ipv4(), !socket.listens));
    sockets.iter().find_map(|socket| process_with(socket.inode))
}

/// A line of such a file.
#[derive(Debug, PartialEq, Eq)]
struct ProcSocket {
    address: IpAddr,
    port: u16,
    listens: bool,
    inode: u64,
}

/// The sockets in a file; the header is skipped.
fn parse(text: &str) -> Vec<ProcSocket> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (address, port) = fields.get(1)?.split_once(':')?;
        let inode = fields.get(9)?.parse().ok().filter(|inode| *inode != 0)?;
        let port = u16::from_str_radix(port, 16).ok()?;
        Some(ProcSocket { address: self::address(address)?, port, listens: *fields.get(3)? == LISTEN, inode })
    };
    text.lines().filter_map(line).collect()
}

/// An address as the kernel prints it: words of 32 bits in the order of the machine.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?].concat();
            // An IPv6 socket on an address of IPv4 has it in mapped form (RFC 4291, section 2.5.5.2).
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).to_canonical())
        }
        _ => None,
    }
}

/// Whether a socket on one address may prevent gantry from binding to another. `::` includes IPv4 unless the socket is
/// IPv6-only, which the lists do not say.
fn prevents(socket: IpAddr, wanted: IpAddr) -> bool {
    ports::overlap(socket, wanted) || (wanted.is_ipv4() && socket == IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

fn process_with(inode: u64) -> Option<String> {
    let socket = format!("socket:[{inode}]");
    let has = |dir: &Path| {
        let fds = std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        fds.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.as_os_str() == socket.as_str()))
    };
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        has(&entry.path()).then(|| match std::fs::read_to_string(entry.path().join("comm")) {
            Ok(name) => format!("process {pid} ({})", shown(name.trim_end())),
            Err(_) => format!("process {pid}"),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use gantry_host::lock::{LockMode, try_lock};
    use gantry_model::net::{PodAddress, PodNetwork, PodPort};
    use proptest::prelude::*;

    use super::*;
    use crate::nft::State;
    use crate::test_support::Net;

    const FILE: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 100 0
   2: 0100007F:1F91 0100007F:C351 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000
   3: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 0:0 0:0 0  0 0 9 2 0
";

    #[test]
    fn kernel_socket_tables_are_parsed() {
        let listed = |address: &str, port, listens, inode| ProcSocket {
            address: address.parse().unwrap(),
            port,
            listens,
            inode,
        };
        let want = [
            listed("127.0.0.1", 8080, true, 4711),
            listed("127.0.0.1", 8080, false, 4712),
            listed("::1", 53, false, 9),
        ];
        assert_eq!(parse(FILE), want);
    }

    fn tcp(address: IpAddr, port: u16) -> HostPort {
        HostPort { address, protocol: Protocol::Tcp, port }
    }

    #[test]
    fn this_process_is_found() {
        // Its own namespace: no program of the host has the port.
        let mut net = Net::new();
        net.up("lo");
        let checked = net.namespace.enter(|| {
            check_own_listeners();
            Ok(())
        });
        checked.unwrap();
    }

    fn check_own_listeners() {
        for address in ["127.0.0.1", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let Ok(listener) = std::net::TcpListener::bind((address, 0)) else { continue };
            let port = tcp(address, listener.local_addr().unwrap().port());
            let found = find_process(port).unwrap();
            assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
            let (v4, v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
            let (any, other) = if address.is_ipv4() { (v4, v6) } else { (v6, v4) };
            assert_eq!(find_process(HostPort { address: any, ..port }), Some(found));
            assert_eq!(find_process(HostPort { address: other, ..port }), None, "the other family is free");
            assert_eq!(find_process(HostPort { protocol: Protocol::Udp, ..port }), None);
        }
    }

    #[test]
    fn sockets_prevent_those_they_overlap() {
        for (socket, wanted, expected) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "0.0.0.0", true),
            ("0.0.0.0", "192.0.2.7", true),
            ("127.0.0.1", "192.0.2.7", false),
            ("::", "0.0.0.0", true),
            ("::", "127.0.0.1", true),
            ("::1", "0.0.0.0", false),
            ("127.0.0.1", "::", false),
            ("0.0.0.0", "::", false),
            ("2001:db8::7", "::", true),
        ] {
            let overlaps = prevents(socket.parse().unwrap(), wanted.parse().unwrap());
            assert_eq!(overlaps, expected, "{socket} and {wanted}");
        }
        assert_eq!(address("0000000000000000FFFF00000100007F"), Some(Ipv4Addr::LOCALHOST.into()), "mapped");
    }

    #[test]
    fn only_live_pods_hold_ports() {
        let temp = tempfile::tempdir().unwrap();
        let host = crate::pod::state::tests::host(temp.path());
        let dir = Path::new(&host.pods_dir).join("pod");
        std::fs::create_dir_all(&dir).unwrap();
        let dir = crate::config::files::open_dir(&dir).unwrap();
        let port = PodPort { host_ip: None, host_port: 8080, pod_port: 80, count: 1, protocol: Protocol::Tcp };
        let address = PodAddress { address: Ipv4Addr::new(10, 1, 0, 2).into(), prefix: 24, gateway: None };
        let attached = PodNetwork { addresses: vec![address], ports: vec![port], ..PodNetwork::default() };
        let mut record = Record::new("pod", &host, boot().unwrap(), Vec::new());
        record.write(dir.as_fd()).unwrap();
        record.append_result(dir.as_fd(), &State::new(), vec![attached]).unwrap();
        let find = |address: &str| find_pod(&host, tcp(address.parse().unwrap(), 8080)).unwrap();
        assert_eq!(find("0.0.0.0"), None, "its supervisor is dead");
        assert!(try_lock(&dir, LockMode::Exclusive).unwrap());
        assert_eq!(find("0.0.0.0").as_deref(), Some("pod"));
        assert_eq!(find("127.0.0.1").as_deref(), Some("pod"));
        assert_eq!(find("::"), None, "it has no IPv6 address");
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "[0-9A-F: \n]{0,200}", any in "\\PC{0,80}") {
            let _ = (parse(&text), parse(&any));
        }
    }
}
