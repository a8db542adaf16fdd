//! Interfaces and addresses in the format of a CNI result.

use super::addresses::Assignment;
use crate::netlink::link::Link;
use crate::plugin::{Address, Attachment, Interface};

/// An interface on the host.
pub(super) fn host_side(link: &Link) -> Interface {
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Interface { name: link.name.clone(), mac, mtu: Some(link.mtu), ..Interface::default() }
}

/// An interface in the pod.
pub(super) fn pod_side(link: &Link, attachment: &Attachment) -> Interface {
    Interface { sandbox: attachment.netns.clone().unwrap_or_default(), ..host_side(link) }
}

/// The pod's addresses; `interface` is the index of its interface in the result.
pub(super) fn result_ips(assignment: &Assignment, interface: usize) -> Vec<Address> {
    let one = |ip: &crate::config::StaticAddress| Address {
        address: ip.address,
        gateway: ip.gateway,
        interface: Some(interface),
    };
    assignment.ips.iter().map(one).collect()
}
