//! The cost of a pod on the default network. Times are printed (`--nocapture`) and not asserted: the machine may be
//! busy, and the RTNL lock is shared by all network namespaces. So the CPU time is printed too.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::lab::{Lab, OWNER, attachment, within};
use crate::config::builtin;
use crate::config::{NetworkConfig, Source};
use crate::ipam::{Owner, Store};
use crate::native::{Ends, add, sysctl};
use crate::netlink::Socket;
use crate::netlink::address::Address;
use crate::netlink::link::Change;
use crate::netlink::link::create::{LinkKind, NewLink, Peer};
use crate::netlink::sysctl::Sysctl;
use crate::test_support::Net;

const PODS: u32 = 60;

fn show(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    println!("{what:44} p50 {:6} us, p90 {:6} us, most {:6} us", at(50), at(90), at(100));
}

/// CPU time of this thread, in user and kernel mode.
fn on_cpu() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

fn default() -> NetworkConfig {
    NetworkConfig::parse(builtin::ALL[0].1, Source::BuiltIn).unwrap()
}

#[test]
fn a_pod_on_the_default_network() {
    let mut lab = Lab::new();
    let network = default();
    let (mut opened, mut added, mut worked, mut deleted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut pods = Vec::new();
    for number in 0..PODS {
        let pod = Net::new();
        let at = attachment(&pod, number);
        let leases = lab.leases();
        let begun = Instant::now();
        let mut ends = Ends {
            host: Socket::open_in(&lab.host.namespace).unwrap(),
            pod: Socket::open_in(&pod.namespace).unwrap(),
            host_namespace: &lab.host.namespace,
            pod_namespace: &pod.namespace,
            leases: leases.as_fd(),
            owner: OWNER,
        };
        opened.push(begun.elapsed());
        let (begun, before) = (Instant::now(), on_cpu());
        add(&network, &at, &mut ends).unwrap();
        if number == 0 {
            println!("the first pod, with the bridge: {} us", begun.elapsed().as_micros());
        } else {
            added.push(begun.elapsed());
            worked.push(on_cpu().saturating_sub(before));
        }
        pods.push((pod, at));
    }
    for (pod, at) in &pods {
        let begun = Instant::now();
        lab.del(&network, at, Some(pod));
        deleted.push(begun.elapsed());
    }
    show("sockets opened in both namespaces", &mut opened);
    show("native::add on an existing bridge", &mut added);
    show("  of that on the processor", &mut worked);
    show("native::del, the namespace still there", &mut deleted);
}

/// The time of each step.
#[test]
fn the_steps_of_an_add() {
    let lab = Lab::new();
    let network = default();
    let first = Net::new();
    lab.add(&network, &first, &attachment(&first, 0));
    let mut costs: Vec<(&str, Vec<Duration>)> = Vec::new();
    let mut price = |what: &'static str, work: &mut dyn FnMut()| {
        let at = costs.iter().position(|(of, _)| *of == what).unwrap_or_else(|| {
            costs.push((what, Vec::new()));
            costs.len() - 1
        });
        let begun = Instant::now();
        work();
        costs[at].1.push(begun.elapsed());
    };
    let mut host = Socket::open_in(&lab.host.namespace).unwrap();
    let leases = lab.leases();
    let Some(crate::config::Ipam::HostLocal(ranges)) = network.plugins[0].ipam.clone() else { panic!("no ranges") };
    for number in 1..PODS {
        let mut pod = Net::new();
        let mut given = Vec::new();
        price("leases opened", &mut || drop(Store::open(leases.as_fd(), "default", Duration::from_secs(9)).unwrap()));
        let store = Store::open(leases.as_fd(), "default", Duration::from_secs(9)).unwrap();
        let owner = Owner::new(&format!("pod-{number}"), "eth0").unwrap();
        price("addresses given", &mut || given = store.allocate(&owner, &ranges.ranges, &[]).unwrap());
        price("switches of the host looked at", &mut || {
            lab.host.namespace.enter(|| sysctl::ensure(Sysctl::ForwardV4, "1")).unwrap();
        });
        price("switch of the bridge looked at", &mut || {
            let switch = Sysctl::RouteLocalnet("gantry0");
            lab.host.namespace.enter(|| sysctl::ensure(switch, "1")).unwrap();
        });
        let mut bridge = 0;
        price("bridge found", &mut || bridge = host.link("gantry0").unwrap().unwrap().index);
        price("its addresses listed", &mut || drop(host.addresses(Some(bridge)).unwrap()));
        let name = format!("veth{number}");
        let with = Change { namespace: Some(pod.fd()), ..Change::default() };
        let kind = LinkKind::Veth(Peer { name: "eth0", with });
        let with = Change { master: Some(bridge), ..Change::default() };
        price("veth pair created", &mut || host.create_link(&NewLink { name: &name, kind, with }).unwrap());
        let mut index = 0;
        price("index of the host end", &mut || index = host.index(&name).unwrap().unwrap());
        let up = Change { up: Some(true), link_local: Some(false), alias: Some("pod/eth0"), ..Change::default() };
        price("host's end up", &mut || host.change_link(index, &up).unwrap());
        price("five switches of the pod", &mut || {
            within(&pod, || {
                for switch in [Sysctl::AcceptRa("eth0"), Sysctl::AcceptDad("eth0"), Sysctl::DisableV6("eth0")] {
                    sysctl::ensure(switch, "0").unwrap();
                }
                sysctl::ensure(Sysctl::ArpNotify("eth0"), "1").unwrap();
                sysctl::ensure(Sysctl::NdiscNotify("eth0"), "1").unwrap();
            });
        });
        let inner = pod.index("eth0");
        price("pod's end up", &mut || {
            pod.socket.change_link(inner, &Change { up: Some(true), ..Change::default() }).unwrap();
        });
        for one in &given {
            let what = if one.address.is_ipv4() { "IPv4 address" } else { "IPv6 address" };
            price(what, &mut || pod.socket.add_address(inner, &Address::new(one.address)).unwrap());
        }
        drop(pod);
    }
    for (what, times) in &mut costs {
        show(what, times);
    }
}
