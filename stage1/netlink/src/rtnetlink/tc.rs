//! What all requests of traffic control share (rtnetlink(7), `struct tcmsg`): queueing disciplines and filters.

pub(super) const RTM_NEWQDISC: u16 = 36;
pub(super) const TCA_KIND: u16 = 1;
pub(super) const TCA_OPTIONS: u16 = 2;

/// The size of `struct tcmsg`.
pub(super) const TCMSG: usize = 20;

/// A `struct tcmsg` of any address family. `info` is the preference and EtherType of a filter, and 0 for a qdisc.
pub(super) fn tcmsg(index: u32, handle: u32, parent: u32, info: u32) -> [u8; TCMSG] {
    let mut message = [0; TCMSG];
    message[4..8].copy_from_slice(&index.to_ne_bytes());
    message[8..12].copy_from_slice(&handle.to_ne_bytes());
    message[12..16].copy_from_slice(&parent.to_ne_bytes());
    message[16..20].copy_from_slice(&info.to_ne_bytes());
    message
}
