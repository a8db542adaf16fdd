//! The rules of the bridge table: anti-spoofing for frames from pods, and a filter for frames to pods.
//!
//! The chain `antispoof` runs before the bridge learns from a frame or forwards it. Its sets are hash tables keyed by
//! the bridge port the frame came in through. It accepts the frames known to be valid and drops the rest; a frame too
//! short for a rule's loads matches no rule and is dropped by the last one.
//!
//! The chain `multicast_reports` keeps reports to multicast routers away from pods: a new pod reports its groups
//! twice, and a bridge without a querier floods the reports to every port, which takes 4 ms each with 500 pods. The
//! bridge and the host still receive them.

use super::expr::{Expr, Verdict};
use super::rules::{Chain, Rule, base, equal, rule, then};
use super::sets::Set;

/// `NF_BR_PRE_ROUTING`.
const PREROUTING: u32 = 0;
/// `NF_BR_FORWARD`.
const FORWARD: u32 = 2;
/// `NF_BR_PRI_FILTER_BRIDGED`: the priority `filter` of `nft`, before `br_netfilter`.
const FILTER: i32 = -200;

const META_PROTOCOL: u32 = 1;
const META_IIFNAME: u32 = 6;
const META_OIFNAME: u32 = 7;
const META_L4PROTO: u32 = 16;
const LINK_HEADER: u32 = 0;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

/// `ETH_P_*`.
const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
/// The first fields of ARP for IPv4 over Ethernet (RFC 826): hardware type, protocol type and both address lengths.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Server ports: RFC 2131 section 4.1, RFC 8415 section 7.2.
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
/// ICMPv6 types: RFC 4861 section 4.
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Offset of the target address in neighbour messages (RFC 4861 sections 4.3 and 4.4).
const TARGET: u32 = 8;
/// Offsets of the source address in IP headers.
const SOURCE4: u32 = 12;
const SOURCE6: u32 = 8;

/// The destinations of multicast membership reports, 224.0.0.22 (RFC 3376 section 4.2.14) and ff02::16 (RFC 3810
/// section 5.2.14), as hardware addresses.
const REPORT_GROUPS: [[u8; 6]; 2] = [[0x01, 0x00, 0x5e, 0x00, 0x00, 0x16], [0x33, 0x33, 0x00, 0x00, 0x00, 0x16]];

pub(super) fn chains() -> Vec<Chain> {
    let from_pods = [ethernet(), arp(), ipv4(), icmp(), ipv6(), rest()].concat();
    vec![
        base("antispoof", "filter", PREROUTING, FILTER, from_pods),
        base("multicast_reports", "filter", FORWARD, FILTER, REPORT_GROUPS.iter().map(report).collect()),
    ]
}

/// Compares the address first: the rule runs for every frame and every port it goes out of.
fn report(to: &[u8; 6]) -> Rule {
    let pod = Expr::Lookup { set: Set::PodPorts.name().to_owned(), from: 0, to: None, inverted: false };
    let pod = vec![Expr::Meta { key: META_OIFNAME, to: 0 }, pod];
    rule("a report to multicast routers", [vec![load(LINK_HEADER, 0, 6, 0), equal(0, to)], pod, drop()])
}

fn load(base: u32, offset: u32, length: u32, to: u8) -> Expr {
    Expr::Payload { base, offset, length, to }
}

fn unequal(value: &[u8]) -> Expr {
    Expr::Compare { from: 0, equal: false, value: value.to_vec() }
}

fn protocol(number: [u8; 2]) -> Vec<Expr> {
    vec![Expr::Meta { key: META_PROTOCOL, to: 0 }, equal(0, &number)]
}

/// Matches frames whose bytes at this offset, together with the bridge port, are in the set (or not, if `inverted`).
fn found(set: Set, inverted: bool, [base, offset, length]: [u32; 3]) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: set.name().to_owned(), from: 0, to: None, inverted };
    vec![Expr::Meta { key: META_IIFNAME, to: 0 }, load(base, offset, length, 4), lookup]
}

/// Matches if the IPv6 address at this offset is link-local (`fe80::/10`, RFC 4291 section 2.5.6), or is not.
fn link_local(equal: bool, base: u32, offset: u32) -> Vec<Expr> {
    let mask = Expr::Mask { register: 0, mask: vec![0xff, 0xc0] };
    vec![load(base, offset, 2, 0), mask, Expr::Compare { from: 0, equal, value: vec![0xfe, 0x80] }]
}

/// Matches neighbour messages whose target is neither link-local nor an address of the pod.
fn foreign_target() -> Vec<Expr> {
    let other = found(Set::PodAddresses6, true, [TRANSPORT_HEADER, TARGET, 16]);
    [link_local(false, TRANSPORT_HEADER, TARGET), other].concat()
}

/// Matches the source `::`.
fn from_unspecified() -> Vec<Expr> {
    vec![load(NETWORK_HEADER, SOURCE6, 16, 0), equal(0, &[0; 16])]
}

fn transport(number: u8) -> Vec<Expr> {
    vec![Expr::Meta { key: META_L4PROTO, to: 0 }, equal(0, &[number])]
}

fn from_port(port: u16) -> Vec<Expr> {
    vec![load(TRANSPORT_HEADER, 0, 2, 0), equal(0, &port.to_be_bytes())]
}

fn icmpv6(kind: u8) -> Vec<Expr> {
    [protocol(IPV6), transport(ICMPV6), vec![load(TRANSPORT_HEADER, 0, 1, 0), equal(0, &[kind])]].concat()
}

fn drop() -> Vec<Expr> {
    then(Verdict::Drop)
}

fn accept() -> Vec<Expr> {
    then(Verdict::Accept)
}

/// Reads the EtherType from the frame: for a tagged frame it is that of the tag, even if the kernel stripped it to
/// metadata.
fn ethernet() -> Vec<Rule> {
    let other_port = Expr::Lookup { set: Set::PodPorts.name().to_owned(), from: 0, to: None, inverted: true };
    let other_port = vec![Expr::Meta { key: META_IIFNAME, to: 0 }, other_port];
    let other = vec![load(LINK_HEADER, 12, 2, 0), unequal(&ARP), unequal(&IPV4), unequal(&IPV6)];
    vec![
        rule("not from a pod", [other_port, accept()]),
        rule("drop spoofed hardware addresses", [found(Set::PodMacs, true, [LINK_HEADER, 6, 6]), drop()]),
        rule("drop other protocols and VLAN tags", [other, drop()]),
    ]
}

/// The sender of an ARP probe has no address yet (RFC 5227 section 1.1).
fn arp() -> Vec<Rule> {
    let own = || {
        let arp_of_ipv4 = vec![load(NETWORK_HEADER, 0, 6, 0), equal(0, &ARP_OF_IPV4)];
        [protocol(ARP), arp_of_ipv4, found(Set::PodMacs, false, [NETWORK_HEADER, 8, 6])].concat()
    };
    let none = vec![load(NETWORK_HEADER, 14, 4, 0), equal(0, &[0; 4])];
    vec![
        rule(
            "ARP from the pod's address",
            [own(), found(Set::PodAddresses4, false, [NETWORK_HEADER, 14, 4]), accept()],
        ),
        rule("ARP probe", [own(), none, accept()]),
    ]
}

fn ipv4() -> Vec<Rule> {
    vec![
        rule("drop DHCP server replies", [protocol(IPV4), transport(UDP), from_port(DHCP_SERVER), drop()]),
        rule(
            "from the pod's address",
            [protocol(IPV4), found(Set::PodAddresses4, false, [NETWORK_HEADER, SOURCE4, 4]), accept()],
        ),
    ]
}

/// A forged duplicate address detection from `::` would keep other hosts from using their address.
fn icmp() -> Vec<Rule> {
    vec![
        rule("drop router advertisements", [icmpv6(ROUTER_ADVERTISEMENT), drop()]),
        rule("drop redirects", [icmpv6(REDIRECT), drop()]),
        rule("drop spoofed neighbour advertisements", [icmpv6(NEIGHBOUR_ADVERTISEMENT), foreign_target(), drop()]),
        rule(
            "drop spoofed duplicate address detection",
            [icmpv6(NEIGHBOUR_SOLICITATION), from_unspecified(), foreign_target(), drop()],
        ),
    ]
}

/// Duplicate address detection and joining its groups use the source `::`, and are ICMPv6.
fn ipv6() -> Vec<Rule> {
    vec![
        rule("drop DHCP server replies", [protocol(IPV6), transport(UDP), from_port(DHCPV6_SERVER), drop()]),
        rule(
            "from the pod's address",
            [protocol(IPV6), found(Set::PodAddresses6, false, [NETWORK_HEADER, SOURCE6, 16]), accept()],
        ),
        rule("from a link-local address", [protocol(IPV6), link_local(true, NETWORK_HEADER, SOURCE6), accept()]),
        rule("ICMPv6 from the unspecified address", [protocol(IPV6), transport(ICMPV6), from_unspecified(), accept()]),
    ]
}

fn rest() -> Vec<Rule> {
    vec![rule("drop everything else from pods", [drop()])]
}
