//! What was made, in the words of CNI.

use super::addresses::Given;
use crate::netlink::link::Link;
use crate::plugin::{Address, Attachment, Interface};

/// An interface on the host.
pub(super) fn at_host(link: &Link) -> Interface {
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Interface { name: link.name.clone(), mac, mtu: Some(link.mtu), ..Interface::default() }
}

/// An interface in the pod.
pub(super) fn at_pod(link: &Link, attachment: &Attachment) -> Interface {
    Interface { sandbox: attachment.netns.clone().unwrap_or_default(), ..at_host(link) }
}

/// The pod's addresses; its interface is the one of this index.
pub(super) fn ips(given: &Given, interface: usize) -> Vec<Address> {
    let one = |ip: &crate::config::StaticAddress| Address {
        address: ip.address,
        gateway: ip.gateway,
        interface: Some(interface),
    };
    given.ips.iter().map(one).collect()
}
