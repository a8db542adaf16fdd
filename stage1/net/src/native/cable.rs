//! A pod's cable: a veth pair with one end on the host and the other in the pod.
//!
//! The host's end has a name that only this interface of this pod can have, and an alias that says both in full, so that it
//! can be told whose it is. It is limited before it comes up: to change the queue of an interface that is up waits for a
//! grace period of RCU. It comes up last, with its alias and as the port it is to be.
//!
//! Nothing is read back. Each question to rtnetlink waits for the lock of all changes in all network namespaces (RTNL),
//! which others hold for tens of milliseconds; so names, hardware addresses and MTU are ours to say.

use std::os::fd::AsFd;

use super::bandwidth::bucket;
use super::error::NativeError;
use super::inside::Inside;
use crate::config::RateLimit;
use crate::netlink::link::Change;
use crate::netlink::link::create::{LinkKind, NewLink, Peer};
use crate::netlink::link::port::Port;
use crate::netlink::{Mac, Namespace, Setup, Socket};
use crate::plugin::{Attachment, Interface};

/// What a cable of this kernel has if nothing is said (ETH_DATA_LEN). It is said, so as not to have to ask.
const MTU: u32 = 1500;

/// The name of the host's end: `gt`, the first twelve digits of the pod's UUID, and the number of the interface (`eth0`: 0) as
/// a digit to base 36. What is not a UUID, or another interface, has a digest in its place, behind `gth`.
#[must_use]
pub fn host_interface(container_id: &str, interface: &str) -> String {
    let digits: String = container_id.chars().filter(|c| *c != '-').take(12).collect();
    let plain = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let uuid = container_id.len() == 36 && digits.len() == 12 && digits.chars().all(plain);
    let number = interface.strip_prefix("eth").filter(|rest| !rest.starts_with('0') || rest.len() == 1);
    let number = number.and_then(|rest| rest.parse::<u32>().ok()).and_then(|number| char::from_digit(number, 36));
    match number {
        Some(number) if uuid => format!("gt{digits}{number}"),
        _ => format!("gth{:012x}", digest(&[container_id, interface]) & 0xffff_ffff_ffff),
    }
}

/// FNV-1a, of texts that have no slash.
fn digest(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([b'/']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// What the host's end says of itself.
fn alias(attachment: &Attachment) -> String {
    format!("{}/{}", attachment.container_id, attachment.interface)
}

/// How the host's end is to be.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outside {
    /// The bridge it is a port of, by index; `None`: it leads to one pod alone.
    pub(super) master: Option<u32>,
    /// What a port is to be besides.
    pub(super) port: Port,
    /// Of both ends.
    pub(super) mtu: Option<u32>,
    /// What the pod may receive.
    pub(super) limit: Option<RateLimit>,
    /// The group of interfaces that the host's end is in.
    pub(super) group: Option<u32>,
}

impl Outside {
    /// What the configuration says of either kind of network.
    pub(super) fn new(mtu: Option<u32>, limit: Option<RateLimit>) -> Self {
        Self { mtu, limit, ..Self::default() }
    }
}

/// A cable that was made.
#[derive(Debug)]
pub(super) struct Cable {
    /// The host's end.
    pub(super) name: String,
    /// Its index.
    pub(super) index: u32,
    mac: Mac,
    mtu: u32,
    /// The MTU of the pod's end.
    inside_mtu: u32,
}

impl Cable {
    /// Both ends in the words of CNI.
    pub(super) fn ends(&self, attachment: &Attachment, inside: &Inside) -> [Interface; 2] {
        let one = |name: &str, mac: Option<Mac>, mtu| Interface {
            name: name.to_owned(),
            mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: Some(mtu),
            ..Interface::default()
        };
        let sandbox = attachment.netns.clone().unwrap_or_default();
        let pod = Interface { sandbox, ..one(&attachment.interface, inside.mac, self.inside_mtu) };
        [one(&self.name, Some(self.mac), self.mtu), pod]
    }
}

/// Makes both ends, the pod's in its namespace under its final name, and leaves both down.
pub(super) fn make(
    host: &mut Socket,
    pod: &Namespace,
    attachment: &Attachment,
    outside: &Outside,
    inside: &Inside,
) -> Result<Cable, NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    // A bridge that was given no hardware address has the lowest of its ports'. This one is higher than any other.
    let mut mac = Mac::of_id(&format!("{} outside", alias(attachment)));
    mac.0[0] = 0xfe;
    let mtu = outside.mtu.unwrap_or(MTU);
    let inside_mtu = inside.mtu.unwrap_or(mtu);
    let with = Change { namespace: Some(pod.as_fd()), mtu: Some(inside_mtu), ..inside.change() };
    let kind = LinkKind::Veth(Peer { name: &attachment.interface, with });
    let with =
        Change { master: outside.master, mtu: Some(mtu), mac: Some(mac), group: outside.group, ..Change::default() };
    host.create_link(&NewLink { name: &name, kind, with })?;
    match host.index(&name)? {
        Some(index) => Ok(Cable { name, index, mac, mtu, inside_mtu }),
        None => Err(NativeError::Gone { name }),
    }
}

/// Sets the host's end up.
pub(super) fn raise(
    host: &mut Socket,
    attachment: &Attachment,
    outside: &Outside,
    cable: &Cable,
    setup: Setup<'_>,
) -> Result<(), NativeError> {
    if let Some(limit) = outside.limit {
        host.limit_rate(cable.index, &bucket(limit))?;
    }
    let alias = alias(attachment);
    // A port needs no address of its own; an end that leads to one pod needs one to ask for the pod's by.
    let link_local = outside.master.map(|_| false);
    let port = outside.master.and(Some(outside.port)).filter(|port| *port != Port::default());
    let change = Change { up: Some(true), alias: Some(&alias), link_local, port, ..setup.change };
    host.set_up(cable.index, &Setup { change, ..setup })?;
    Ok(())
}

/// Deletes the host's end, if it is still there and this pod's.
pub(super) fn delete(host: &mut Socket, attachment: &Attachment) -> Result<(), NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    let Some(link) = host.link(&name)? else { return Ok(()) };
    // One without an alias is of an ADD that was killed.
    let ours = link.kind.as_deref() == Some("veth") && link.alias.is_none_or(|has| has == alias(attachment));
    if ours {
        host.delete_link(link.index)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_interfaces_apart() {
        let pod = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";
        assert_eq!(host_interface(pod, "eth0"), "gt0a1b2c3d4e5f0");
        assert_eq!(host_interface(pod, "eth35"), "gt0a1b2c3d4e5fz");
        let others =
            [(pod, "eth36"), (pod, "eth00"), (pod, "net1"), ("pod-1", "eth0"), ("pod-1", "eth1"), ("pod-2", "eth0")];
        let mut names: Vec<String> = others.iter().map(|(pod, interface)| host_interface(pod, interface)).collect();
        assert!(names.iter().all(|name| name.len() == 15 && name.starts_with("gth")), "{names:?}");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), others.len());
    }
}
