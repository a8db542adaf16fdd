//! A network namespace for a test: held by a child process that ends when its standard input does, so that not even a
//! killed test leaves one behind.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gantry_model::{ErrorKind, Kind};
use rustix::process::Pid;

use crate::Namespace;
use crate::rtnetlink::Socket;
use crate::rtnetlink::link::create::{Bridge, LinkKind, NewLink, Peer};
use crate::rtnetlink::link::{Change, Link};

/// A network namespace of the test and a socket in it.
pub(crate) struct Net {
    child: Child,
    pub(crate) namespace: Namespace,
    pub(crate) socket: Socket,
}

impl Net {
    pub(crate) fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests make network namespaces, and must be run as root");
        ["unshare", "nsenter", "ip"].into_iter().for_each(needs);
        let mut child = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.as_mut().unwrap(), child.stdout.as_mut().unwrap());
        stdin.write_all(b"there\n").unwrap();
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "there\n", "unshare --net failed");
        let namespace = Namespace::from_process(Pid::from_child(&child)).unwrap();
        assert!(!namespace.is(&Namespace::own().unwrap()).unwrap(), "the host's namespace is no place for tests");
        let socket = Socket::open_in(&namespace).unwrap();
        Self { child, namespace, socket }
    }

    /// The PID of the process that holds the namespace.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// The output of `ip -j` in the namespace.
    pub(crate) fn ip(&self, args: &[&str]) -> serde_json::Value {
        let path = format!("--net=/proc/{}/ns/net", self.id());
        let out = Command::new("nsenter").args([&path, "--", "ip", "-j"]).args(args).output();
        let out = out.unwrap();
        assert!(out.status.success(), "ip {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    pub(crate) fn index(&mut self, name: &str) -> u32 {
        self.get(name).index
    }

    pub(crate) fn get(&mut self, name: &str) -> Link {
        self.socket.link(name).unwrap().unwrap_or_else(|| panic!("no interface {name}"))
    }

    pub(crate) fn up(&mut self, name: &str) -> u32 {
        let index = self.index(name);
        self.socket.change_link(index, &Change { up: Some(true), ..Change::default() }).unwrap();
        index
    }

    pub(crate) fn bridge(&mut self, name: &str) -> u32 {
        let with = Change { up: Some(true), ..Change::default() };
        self.socket.create_link(&NewLink { name, kind: LinkKind::Bridge(Bridge::default()), with }).unwrap();
        self.index(name)
    }

    /// A veth pair from a bridge in the namespace to `eth0` of a pod, both ends up.
    pub(crate) fn plug(&mut self, name: &str, bridge: u32, pod: &mut Net) {
        self.socket.create_link(&cable(name, bridge, pod.fd(), "eth0")).unwrap();
        pod.up("eth0");
    }
}

pub(crate) fn cable<'a>(name: &'a str, bridge: u32, pod: BorrowedFd<'a>, inside: &'a str) -> NewLink<'a> {
    let up = Change { up: Some(true), ..Change::default() };
    let peer = Peer { name: inside, with: Change { namespace: Some(pod), ..Change::default() } };
    NewLink { name, kind: LinkKind::Veth(peer), with: Change { master: Some(bridge), ..up } }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _reaped = self.child.wait();
    }
}

/// Fails with a hint if a program that a test needs is missing.
pub(crate) fn needs(program: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    assert!(there, "there is no '{program}' on PATH; install what the tests need with `./dev setup tests`");
}

/// Whether an operation failed because the kernel lacks a feature; then reports the skip. Fails if another program
/// can use the feature.
pub(crate) fn lacks<T, E: Kind>(feature: Feature, result: &std::result::Result<T, E>) -> bool {
    match result {
        // An unknown queueing discipline is ENOENT.
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NotFound) => skipped(feature),
        _ => false,
    }
}

/// Reports that a test, or a part of it, is skipped because the kernel lacks a feature.
pub(crate) fn skipped(feature: Feature) -> bool {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let (name, probe) = match feature {
        Feature::Macvlan => ("macvlan", "ip link add up0 type bridge && ip link add probe link up0 type macvlan"),
        Feature::Ipvlan => ("ipvlan", "ip link add up0 type bridge && ip link add probe link up0 type ipvlan"),
        Feature::TokenBuckets => ("token buckets", "tc qdisc add dev lo root tbf rate 1mbit burst 10k latency 1ms"),
        Feature::Sctp => ("SCTP", "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)'"),
    };
    let probed = Command::new("unshare").args(["--net", "--", "sh", "-c", probe]).output().unwrap();
    assert!(!probed.status.success(), "the kernel has {name}, and the test was about to be skipped for the lack of it");
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    // println! is captured for tests that pass.
    let _ = writeln!(std::io::stderr(), "skipped ({count}): kernel has no {name}");
    true
}

/// An optional kernel feature.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Feature {
    Macvlan,
    Ipvlan,
    TokenBuckets,
    Sctp,
}

/// Binds a socket to an address that an earlier socket of this process may have had: a child that another test forked
/// keeps a copy of every descriptor until execve().
pub(crate) fn bound<S>(mut bind: impl FnMut() -> io::Result<S>) -> S {
    let mut socket = None;
    until("the address to be free", || match bind() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => false,
        other => {
            socket = Some(other.unwrap());
            true
        }
    });
    socket.unwrap()
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut fact: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !fact() {
        assert!(Instant::now() < deadline, "timed out waiting for: {what}");
        std::thread::yield_now();
    }
}
