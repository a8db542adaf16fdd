//! A veth pair with one end on the host and the other in the pod.
//!
//! The name of the host end is unique to this interface of this pod, and its alias contains both in full, so that its
//! pod can be determined. The rate limit is set before the host end comes up: to change the queue of an interface that
//! is up, the kernel waits for an RCU grace period. The host end comes up last, together with its alias and bridge port
//! settings.
//!
//! Nothing is read back: each rtnetlink request waits for the RTNL lock of all network namespaces, which others hold
//! for tens of milliseconds. So gantry chooses names, hardware addresses and MTU itself.

use std::os::fd::AsFd;

use gantry_model::ErrorKind;
use gantry_model::error::Kind as _;
use rustix::io::Errno;

use super::bandwidth::bucket;
use super::error::NativeError;
use super::pod_interface::{PodInterface, set_down};
use crate::config::RateLimit;
use crate::netlink::link::Change;
use crate::netlink::link::create::{LinkKind, NewLink, Peer};
use crate::netlink::link::port::Port;
use crate::netlink::{Mac, Namespace, Setup, Socket};
use crate::plugin::{Attachment, Interface};

/// The name of the host end: `gt`, the first twelve digits of the pod's UUID, and the number of the interface (`eth0`:
/// 0) as a digit to base 36. For other container ids and interface names it is `gth` and a digest of both.
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

/// FNV-1a of the texts, which contain no slash.
fn digest(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([b'/']));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The alias of the host end.
fn host_alias(attachment: &Attachment) -> String {
    format!("{}/{}", attachment.container_id, attachment.interface)
}

/// Settings of the host end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HostEnd {
    /// The index of the bridge that it is a port of; `None` for ptp.
    pub(super) master: Option<u32>,
    /// Settings of the bridge port.
    pub(super) port: Port,
    /// The MTU of both ends.
    pub(super) mtu: u32,
    /// Limit of the traffic that the pod receives.
    pub(super) limit: Option<RateLimit>,
    /// The interface group.
    pub(super) group: Option<u32>,
}

/// A veth pair that was created.
#[derive(Debug)]
pub(super) struct VethPair {
    /// The name of the host end.
    pub(super) host_name: String,
    /// The index of the host end.
    pub(super) host_index: u32,
    host_mac: Mac,
    host_mtu: u32,
    pod_mtu: u32,
}

impl VethPair {
    /// The host end and the pod end in the format of CNI.
    pub(super) fn result_interfaces(&self, attachment: &Attachment, interface: &PodInterface) -> [Interface; 2] {
        let one = |name: &str, mac: Option<Mac>, mtu| Interface {
            name: name.to_owned(),
            mac: mac.map(|mac| mac.to_string()).unwrap_or_default(),
            mtu: Some(mtu),
            ..Interface::default()
        };
        let sandbox = attachment.netns.clone().unwrap_or_default();
        let pod_end = Interface { sandbox, ..one(&attachment.interface, interface.mac, self.pod_mtu) };
        [one(&self.host_name, Some(self.host_mac), self.host_mtu), pod_end]
    }
}

/// Creates both ends, the pod end in the pod's namespace under its final name. Both stay down.
///
/// The host end of the pod's former run is deleted before, if it still exists: the kernel deletes it some time after
/// that run, or when the last process has left its namespace.
pub(super) fn create(
    host: &mut Socket,
    pod: &Namespace,
    attachment: &Attachment,
    host_end: &HostEnd,
    interface: &PodInterface,
) -> Result<VethPair, NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    // A bridge without an explicit hardware address takes the lowest one of its ports. This one is the highest.
    let mut mac = Mac::from_id(&format!("{} outside", host_alias(attachment)));
    mac.0[0] = 0xfe;
    let host_mtu = host_end.mtu;
    let pod_mtu = interface.mtu.unwrap_or(host_mtu);
    let with = Change { namespace: Some(pod.as_fd()), mtu: Some(pod_mtu), ..interface.change() };
    let kind = LinkKind::Veth(Peer { name: &attachment.interface, with });
    let (master, group) = (host_end.master, host_end.group);
    let with = Change { master, mtu: Some(host_mtu), mac: Some(mac), group, ..Change::default() };
    let new = NewLink { name: &name, kind, with };
    match host.create_link(&new) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            delete_host_end(host, attachment)?;
            host.create_link(&new)?;
        }
        result => result?,
    }
    match host.index(&name)? {
        Some(host_index) => Ok(VethPair { host_name: name, host_index, host_mac: mac, host_mtu, pod_mtu }),
        None => Err(NativeError::vanished(&name)),
    }
}

/// Sets the host end up.
pub(super) fn set_up(
    host: &mut Socket,
    attachment: &Attachment,
    host_end: &HostEnd,
    pair: &VethPair,
    setup: Setup<'_>,
) -> Result<(), NativeError> {
    if let Some(limit) = host_end.limit {
        host.limit_rate(pair.host_index, &bucket(limit))?;
    }
    let alias = host_alias(attachment);
    // A bridge port needs no address. The host end of a ptp network needs one to resolve the pod's address from.
    let link_local = host_end.master.map(|_| false);
    let port = host_end.master.and(Some(host_end.port)).filter(|port| *port != Port::default());
    let change = Change { up: Some(true), alias: Some(&alias), link_local, port, ..setup.change };
    host.set_up(pair.host_index, &Setup { change, ..setup })?;
    Ok(())
}

/// Disables the bridge port of the host end, if it exists; where the bridge cannot do that, sets the host end down.
pub(super) fn disable_port(host: &mut Socket, attachment: &Attachment) -> Result<(), NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    let Some(index) = host.index(&name)? else { return Ok(()) };
    match host.disable_port(index) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.errno(), Some(Errno::NODEV | Errno::NETDOWN)) => Ok(()),
        // It is not a port any more, or the spanning tree protocol decides on its state.
        Err(_) => set_down(host, index),
    }
}

/// Sets the host end down, if it exists: the host's routes to the pod are deleted with that.
pub(super) fn set_host_end_down(host: &mut Socket, attachment: &Attachment) -> Result<(), NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    host.index(&name)?.map_or(Ok(()), |index| set_down(host, index))
}

/// Deletes the host end, if it exists and belongs to this pod.
pub(super) fn delete_host_end(host: &mut Socket, attachment: &Attachment) -> Result<(), NativeError> {
    let name = host_interface(&attachment.container_id, &attachment.interface);
    let Some(link) = host.link(&name)? else { return Ok(()) };
    // Without an alias it is from an ADD that was killed.
    let is_own = link.kind.as_deref() == Some("veth") && link.alias.is_none_or(|has| has == host_alias(attachment));
    if is_own {
        host.delete_link(link.index)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_unique() {
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
