//! Finds the process that uses a port of the host, for error messages. It reads `/proc`, so it needs no right that a
//! supervisor lacks.
//!
//! `/proc/net/tcp` and the like (proc_pid_net(5)) list sockets with their inode numbers, and a process's descriptors
//! (`/proc/PID/fd`) give the inodes of its sockets. The lists contain neither TCP sockets that are bound but neither
//! listening nor connected, nor, on this kernel's interface, SCTP sockets. Then the process remains unknown.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use gantry_model::id::shown;
use gantry_model::net::Protocol;

/// State of a listening TCP socket (`TCP_LISTEN` of net/tcp_states.h).
const LISTEN: &str = "0A";

/// Returns `process 4711 (nginx)`, in the network namespace of the calling thread; `None` if it is unknown.
pub(super) fn find_port_user(address: IpAddr, port: u16, protocol: Protocol) -> Option<String> {
    let files = match protocol {
        Protocol::Tcp => ["tcp", "tcp6"],
        Protocol::Udp => ["udp", "udp6"],
        Protocol::Sctp => return None,
    };
    let read = |file: &&str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let mut sockets: Vec<ProcSocket> = files.iter().flat_map(|file| parse(&read(file))).collect();
    sockets.retain(|socket| socket.port == port && overlap(socket.address, address));
    // Prefer a listening socket to one of its connections.
    sockets.sort_by_key(|socket| !socket.listens);
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
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).into())
        }
        _ => None,
    }
}

/// Whether sockets on both addresses conflict. `::` includes IPv4, unless the socket is IPv6-only.
fn overlap(one: IpAddr, other: IpAddr) -> bool {
    one == other || one.is_unspecified() || other.is_unspecified()
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
    use super::*;
    use proptest::prelude::*;

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

    #[test]
    fn this_process_is_found() {
        for address in ["127.0.0.1", "::1"] {
            let address: IpAddr = address.parse().unwrap();
            let Ok(listener) = std::net::TcpListener::bind((address, 0)) else { continue };
            let port = listener.local_addr().unwrap().port();
            let found = find_port_user(address, port, Protocol::Tcp).unwrap();
            assert!(found.starts_with(&format!("process {} (", std::process::id())), "{found}");
            let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            assert_eq!(find_port_user(any, port, Protocol::Tcp), Some(found));
            assert_eq!(find_port_user(address, port, Protocol::Udp), None);
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "[0-9A-F: \n]{0,200}", any in "\\PC{0,80}") {
            let _ = (parse(&text), parse(&any));
        }
    }
}
