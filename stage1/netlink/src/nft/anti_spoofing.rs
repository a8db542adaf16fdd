//! The rules of the table for bridges: what may come out of a pod, and what does not go into each.
//!
//! One chain is for every pod the same, before the bridge learns from a frame or switches it. What is asked of a frame is found in
//! hash tables by the port it came in through. Of a pod's frames those go on that are known to be good: one too short to be
//! judged ends no rule, and is dropped by the last.
//!
//! The other keeps from pods what is for multicast routers: a pod that comes says twice which groups it is in, and a bridge
//! without a querier gives that to every other, 4 ms each beside 500. The bridge itself, and the host, hear it.

use super::expr::{Expr, Verdict};
use super::rules::{Chain, Rule, base, equal, rule, then};
use super::sets::Set;

/// `NF_BR_PRE_ROUTING`.
const PREROUTING: u32 = 0;
/// `NF_BR_FORWARD`.
const FORWARD: u32 = 2;
/// `NF_BR_PRI_FILTER_BRIDGED`: what `nft` calls filter, before `br_netfilter`.
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
/// RFC 826: how ARP for IPv4 over Ethernet begins: kind of hardware, protocol, how long the addresses of both are.
const ARP_OF_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// Ports of servers: RFC 2131 section 4.1, RFC 8415 section 7.2.
const DHCP_SERVER: u16 = 67;
const DHCPV6_SERVER: u16 = 547;
/// Types of ICMPv6: RFC 4861 section 4.
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Where a neighbour's message names the address it is about (RFC 4861 sections 4.3 and 4.4).
const TARGET: u32 = 8;
/// Where the headers of IP have the source.
const SOURCE4: u32 = 12;
const SOURCE6: u32 = 8;

/// Where members of groups report themselves to multicast routers: 224.0.0.22 (RFC 3376 section 4.2.14) and ff02::16 (RFC 3810
/// section 5.2.14), as hardware addresses.
const ROUTERS: [[u8; 6]; 2] = [[0x01, 0x00, 0x5e, 0x00, 0x00, 0x16], [0x33, 0x33, 0x00, 0x00, 0x00, 0x16]];

pub(super) fn chains() -> Vec<Chain> {
    let from_pods = [ethernet(), arp(), ipv4(), icmp(), ipv6(), rest()].concat();
    vec![
        base("antispoof", "filter", PREROUTING, FILTER, from_pods),
        base("multicast_reports", "filter", FORWARD, FILTER, ROUTERS.iter().map(report).collect()),
    ]
}

/// The address is looked at first: this is asked of every frame, for every port that it goes out of.
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

/// Bytes at this place, with the port before them, are in the set: they are this pod's. Or they are not.
fn found(set: Set, inverted: bool, [base, offset, length]: [u32; 3]) -> Vec<Expr> {
    let lookup = Expr::Lookup { set: set.name().to_owned(), from: 0, to: None, inverted };
    vec![Expr::Meta { key: META_IIFNAME, to: 0 }, load(base, offset, length, 4), lookup]
}

/// The IPv6 address at this place is a link-local one (`fe80::/10`, RFC 4291 section 2.5.6). Or it is not.
fn link_local(equal: bool, base: u32, offset: u32) -> Vec<Expr> {
    let mask = Expr::Mask { register: 0, mask: vec![0xff, 0xc0] };
    vec![load(base, offset, 2, 0), mask, Expr::Compare { from: 0, equal, value: vec![0xfe, 0x80] }]
}

/// What a neighbour's message is about is neither a link-local address nor one of the pod's.
fn about_another() -> Vec<Expr> {
    let other = found(Set::PodAddresses6, true, [TRANSPORT_HEADER, TARGET, 16]);
    [link_local(false, TRANSPORT_HEADER, TARGET), other].concat()
}

/// From `::`.
fn from_none() -> Vec<Expr> {
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

/// The type is read where it stands in the frame: of one with a VLAN's tag it is the tag's, wherever the kernel keeps that.
fn ethernet() -> Vec<Rule> {
    let unguarded = Expr::Lookup { set: Set::PodPorts.name().to_owned(), from: 0, to: None, inverted: true };
    let unguarded = vec![Expr::Meta { key: META_IIFNAME, to: 0 }, unguarded];
    let other = vec![load(LINK_HEADER, 12, 2, 0), unequal(&ARP), unequal(&IPV4), unequal(&IPV6)];
    vec![
        rule("not from a pod", [unguarded, accept()]),
        rule("another's hardware address", [found(Set::PodMacs, true, [LINK_HEADER, 6, 6]), drop()]),
        rule("neither ARP nor IP, or of a VLAN", [other, drop()]),
    ]
}

/// Who asks whether an address is free (RFC 5227 section 1.1) has none yet.
fn arp() -> Vec<Rule> {
    let own = || {
        let arp_of_ipv4 = vec![load(NETWORK_HEADER, 0, 6, 0), equal(0, &ARP_OF_IPV4)];
        [protocol(ARP), arp_of_ipv4, found(Set::PodMacs, false, [NETWORK_HEADER, 8, 6])].concat()
    };
    let none = vec![load(NETWORK_HEADER, 14, 4, 0), equal(0, &[0; 4])];
    vec![
        rule("ARP from its address", [own(), found(Set::PodAddresses4, false, [NETWORK_HEADER, 14, 4]), accept()]),
        rule("ARP: is an address free", [own(), none, accept()]),
    ]
}

fn ipv4() -> Vec<Rule> {
    vec![
        rule("a DHCP server", [protocol(IPV4), transport(UDP), from_port(DHCP_SERVER), drop()]),
        rule(
            "from its address",
            [protocol(IPV4), found(Set::PodAddresses4, false, [NETWORK_HEADER, SOURCE4, 4]), accept()],
        ),
    ]
}

/// Who finds out from `::` whether an address is free, or seems to, keeps others from it.
fn icmp() -> Vec<Rule> {
    vec![
        rule("a router's advertisement", [icmpv6(ROUTER_ADVERTISEMENT), drop()]),
        rule("a router's redirection", [icmpv6(REDIRECT), drop()]),
        rule("it says it is another", [icmpv6(NEIGHBOUR_ADVERTISEMENT), about_another(), drop()]),
        rule("it claims another's address", [icmpv6(NEIGHBOUR_SOLICITATION), from_none(), about_another(), drop()]),
    ]
}

/// From `::` a pod finds out whether an address is free, and joins groups for that: both are ICMPv6.
fn ipv6() -> Vec<Rule> {
    vec![
        rule("a DHCP server", [protocol(IPV6), transport(UDP), from_port(DHCPV6_SERVER), drop()]),
        rule(
            "from its address",
            [protocol(IPV6), found(Set::PodAddresses6, false, [NETWORK_HEADER, SOURCE6, 16]), accept()],
        ),
        rule("from its link-local address", [protocol(IPV6), link_local(true, NETWORK_HEADER, SOURCE6), accept()]),
        rule("from no address", [protocol(IPV6), transport(ICMPV6), from_none(), accept()]),
    ]
}

fn rest() -> Vec<Rule> {
    vec![rule("all else from a pod", [drop()])]
}
