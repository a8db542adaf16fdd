//! Concurrent and killed processes.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Pid;

use super::lab::{Lab, OWNER, attachment, dual};
use crate::native::{Ends, add, host_interface};
use crate::netlink::{Namespace, Socket};
use crate::plugin::Attachment;
use crate::test_support::{Net, until};

const HOST: &str = "GANTRY_NET_RACE_HOST";
const PODS: &str = "GANTRY_NET_RACE_PODS";
const LEASES: &str = "GANTRY_NET_RACE_LEASES";
const FIRST: &str = "GANTRY_NET_RACE_FIRST";

/// Run by the tests below in a process of its own; adds the requested pods. Otherwise it does nothing.
#[test]
fn child() {
    let Some(pods) = std::env::var_os(PODS) else { return };
    let of = |name: &str| std::env::var(name).unwrap();
    let namespace = |process: &str| Namespace::from_process(Pid::from_raw(process.parse().unwrap()).unwrap()).unwrap();
    let (host, leases) = (namespace(&of(HOST)), std::fs::File::open(of(LEASES)).unwrap());
    let network = dual("net", "br-net", 99);
    for (number, process) in (of(FIRST).parse::<u32>().unwrap()..).zip(pods.to_str().unwrap().split(',')) {
        let pod = namespace(process);
        let at = Attachment {
            container_id: super::lab::pod_id(number),
            netns: Some(format!("/proc/{process}/ns/net")),
            interface: "eth0".to_owned(),
            ..Attachment::default()
        };
        let mut ends = Ends {
            host: Socket::open_in(&host).unwrap(),
            pod: Socket::open_in(&pod).unwrap(),
            host_namespace: &host,
            pod_namespace: &pod,
            leases: leases.as_fd(),
            owner: OWNER,
        };
        let added = add(&network, &at, &mut ends).unwrap();
        assert_eq!(added.result.ips.len(), 2);
    }
}

fn start(lab: &Lab, leases: &Path, pods: &[Net], first: u32) -> Child {
    let ids: Vec<String> = pods.iter().map(|pod| pod.id().to_string()).collect();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "native::tests::race::child"])
        .env(HOST, lab.host.id().to_string())
        .env(LEASES, leases)
        .env(PODS, ids.join(","))
        .env(FIRST, first.to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn concurrent_adds_share_one_bridge() {
    const EACH: u32 = 5;
    let mut lab = Lab::new();
    let groups: Vec<Vec<Net>> = (0..3).map(|_| (0..EACH).map(|_| Net::new()).collect()).collect();
    let mut children: Vec<Child> = groups
        .iter()
        .zip((0..).step_by(EACH as usize))
        .map(|(pods, first)| start(&lab, lab.dir.path(), pods, first))
        .collect();
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    let leases = lab.leased(&dual("net", "br-net", 99));
    let addresses: BTreeSet<IpAddr> = leases.iter().map(|lease| lease.address).collect();
    assert_eq!((leases.len(), addresses.len()), (30, 30));
    let bridge = lab.host.index("br-net");
    assert_eq!(lab.host.socket.ports(bridge).unwrap().len(), 15);
}

/// After a killed ADD, DEL leaves only the bridge, which the next pod uses.
#[test]
fn del_removes_what_a_killed_add_left() {
    let mut lab = Lab::new();
    let network = dual("net", "br-net", 99);
    for round in 0..24u32 {
        let mut pods = vec![Net::new()];
        let mut child = start(&lab, lab.dir.path(), &pods, round);
        let name = host_interface(&super::lab::pod_id(round), "eth0");
        // Killed at one of the steps, or a little later.
        match round % 6 {
            0 => until("there are leases", || !lab.leased(&network).is_empty()),
            1 => until("there is a bridge", || lab.host.socket.index("br-net").unwrap().is_some()),
            2 => until("the veth pair exists", || lab.host.socket.index(&name).unwrap().is_some()),
            3 => until("the host end is up", || lab.host.socket.link(&name).unwrap().is_some_and(|link| link.is_up())),
            4 => until("the pod end exists", || pods[0].socket.index("eth0").unwrap().is_some()),
            _ => until("the pod's end is up", || pods[0].socket.link("eth0").unwrap().is_some_and(|link| link.is_up())),
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let at = attachment(&pods[0], round);
        // With a namespace that is kept alive, has ended, or is about to end.
        match round % 3 {
            0 => lab.del(&network, &at, None),
            1 => {
                pods.clear();
                lab.del(&network, &at, None);
            }
            _ => {
                lab.del(&network, &at, Some(&pods[0]));
                pods.clear();
            }
        }
        assert!(lab.leased(&network).is_empty());
        until("the host end is gone", || lab.host.socket.index(&name).unwrap().is_none());
        if round % 8 == 7 {
            lab.host.socket.delete_link_named("br-net").unwrap();
        }
    }
    let pod = Net::new();
    let added = lab.add(&network, &pod, &attachment(&pod, 77));
    assert_eq!(super::lab::talk(&pod, super::lab::address(&added, true), &lab.host).seen().to_string(), "10.99.0.1");
}

/// Garbage collection may delete a bridge without ports just when a pod starts.
#[test]
fn a_deleted_bridge_is_created_again() {
    let lab = Lab::new();
    let network = dual("net", "br-net", 99);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let mut sweeper = Socket::open_in(&lab.host.namespace).unwrap();
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let Some(bridge) = sweeper.link("br-net").unwrap() else { continue };
                if sweeper.ports(bridge.index).unwrap().is_empty() {
                    sweeper.delete_link(bridge.index).unwrap();
                }
            }
        });
        // While the bridge is deleted repeatedly, an ADD may fail, but with an error, and DEL removes the rest.
        let mut made = 0;
        for number in 0..10 {
            let pod = Net::new();
            let at = attachment(&pod, number);
            made += u32::from(lab.try_add(&network, &pod, &at).is_ok());
        }
        assert!(made > 0, "no pod got onto the bridge");
    });
}

/// Stops a thread when it is dropped.
struct Stop<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
