//! The chains of the tables and their rules. They are constant; only the elements of the sets change.

use super::anti_spoofing;
use super::expr::{Expr, Verdict};
use super::family::Family;
use super::sets::Set;
use super::state::INTERFACE_GROUP;

/// The netfilter hook of a base chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hook {
    /// `filter` or `nat`.
    pub(super) kind: &'static str,
    /// `NF_INET_*`.
    pub(super) number: u32,
    pub(super) priority: i32,
}

/// A chain with its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) name: &'static str,
    /// None for a chain that is only jumped to.
    pub(super) hook: Option<Hook>,
    pub(super) rules: Vec<Rule>,
}

/// A rule, with a comment shown by `nft list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) comment: &'static str,
    pub(super) expressions: Vec<Expr>,
}

const PREROUTING: u32 = 0;
pub(super) const FORWARD: u32 = 2;
const OUTPUT: u32 = 3;
const POSTROUTING: u32 = 4;
/// The priorities that `nft` calls raw, dstnat, filter and srcnat.
const RAW: i32 = -300;
const DSTNAT: i32 = -100;
const FILTER: i32 = 0;
const SRCNAT: i32 = 100;

pub(super) const META_IIFNAME: u32 = 6;
pub(super) const META_OIFNAME: u32 = 7;
const META_NFPROTO: u32 = 15;
const META_L4PROTO: u32 = 16;
const META_IIFGROUP: u32 = 21;
const META_OIFGROUP: u32 = 22;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
/// `ct state established,related`.
const ESTABLISHED_RELATED: u32 = 2 | 4;
/// `IPS_DST_NAT`.
const STATUS_DNAT: u32 = 1 << 5;
/// `RTN_LOCAL`.
const LOCAL: u32 = 2;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
pub(super) const NFPROTO_IPV4: u8 = 2;
pub(super) const NFPROTO_IPV6: u8 = 10;

/// An IP version, with the offsets of its header.
#[derive(Clone, Copy)]
struct Version {
    number: u8,
    source: u32,
    destination: u32,
    length: u32,
}

const V4: Version = Version { number: NFPROTO_IPV4, source: 12, destination: 16, length: 4 };
const V6: Version = Version { number: NFPROTO_IPV6, source: 8, destination: 24, length: 16 };
/// `::1`.
const LOOPBACK6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

impl Version {
    /// Matches packets of this version.
    fn only(self) -> Vec<Expr> {
        vec![Expr::Meta { key: META_NFPROTO, to: 0 }, equal(0, &[self.number])]
    }

    fn load(self, offset: u32, to: u8) -> Expr {
        Expr::Payload { base: NETWORK_HEADER, offset, length: self.length, to }
    }

    /// The first register after an address that starts in register 0.
    fn after(self) -> u8 {
        if self.number == NFPROTO_IPV4 { 1 } else { 4 }
    }

    /// Matches a loopback address at this offset: 127.0.0.0/8 (RFC 1122 section 3.2.1.3) or `::1` (RFC 4291 section
    /// 2.5.3).
    fn loopback(self, offset: u32) -> Vec<Expr> {
        let mut steps = self.only();
        if self.number == NFPROTO_IPV4 {
            steps.extend([Expr::Payload { base: NETWORK_HEADER, offset, length: 1, to: 0 }, equal(0, &[127])]);
        } else {
            steps.extend([self.load(offset, 0), equal(0, &LOOPBACK6)]);
        }
        steps
    }

    /// Matches destinations other than multicast: 224.0.0.0/4 (RFC 5771), `ff00::/8` (RFC 4291 section 2.7).
    fn not_multicast(self) -> Vec<Expr> {
        let unequal = |value: &[u8]| Expr::Compare { from: 0, equal: false, value: value.to_vec() };
        if self.number == NFPROTO_IPV4 {
            let mask = Expr::Mask { register: 0, mask: vec![0xf0, 0, 0, 0] };
            vec![self.load(self.destination, 0), mask, unequal(&[0xe0, 0, 0, 0])]
        } else {
            let load = Expr::Payload { base: NETWORK_HEADER, offset: self.destination, length: 1, to: 0 };
            vec![load, unequal(&[0xff])]
        }
    }
}

pub(super) fn equal(from: u8, value: &[u8]) -> Expr {
    Expr::Compare { from, equal: true, value: value.to_vec() }
}

fn within(set: Set) -> Expr {
    Expr::Lookup { set: set.name().to_owned(), from: 0, to: None, inverted: false }
}

fn without(set: Set) -> Expr {
    Expr::Lookup { set: set.name().to_owned(), from: 0, to: None, inverted: true }
}

/// Matches sources other than link-local addresses: `fe80::/10` (RFC 4291 section 2.5.6).
fn not_link_local() -> Vec<Expr> {
    let load = Expr::Payload { base: NETWORK_HEADER, offset: V6.source, length: 2, to: 0 };
    let mask = Expr::Mask { register: 0, mask: vec![0xff, 0xc0] };
    vec![load, mask, Expr::Compare { from: 0, equal: false, value: vec![0xfe, 0x80] }]
}

fn interface(key: u32, set: Set) -> Vec<Expr> {
    vec![Expr::Meta { key, to: 0 }, within(set)]
}

/// Matches connections with one of these bits set in a property.
fn connection(key: u32, bits: u32) -> Vec<Expr> {
    vec![
        Expr::Connection { key, to: 0 },
        Expr::Mask { register: 0, mask: bits.to_ne_bytes().to_vec() },
        Expr::Compare { from: 0, equal: false, value: vec![0; 4] },
    ]
}

pub(super) fn then(verdict: Verdict) -> Vec<Expr> {
    vec![Expr::Verdict(verdict)]
}

pub(super) fn rule<const N: usize>(comment: &'static str, parts: [Vec<Expr>; N]) -> Rule {
    Rule { comment, expressions: parts.concat() }
}

pub(super) fn base(name: &'static str, kind: &'static str, number: u32, priority: i32, rules: Vec<Rule>) -> Chain {
    Chain { name, hook: Some(Hook { kind, number, priority }), rules }
}

/// The chains of a table, each before those that jump to it.
pub(super) fn chains(family: Family) -> Vec<Chain> {
    match family {
        Family::Inet => routed(),
        Family::Bridge => anti_spoofing::chains(),
    }
}

fn routed() -> Vec<Chain> {
    let ports = Chain { name: "ports", hook: None, rules: ports() };
    vec![
        ports,
        base("antispoof", "filter", PREROUTING, RAW, antispoof()),
        base("prerouting", "nat", PREROUTING, DSTNAT, prerouting()),
        base("output", "nat", OUTPUT, DSTNAT, output()),
        base("forward", "filter", FORWARD, FILTER, forward()),
        base("postrouting", "nat", POSTROUTING, SRCNAT, postrouting()),
    ]
}

fn to_ports() -> Rule {
    let local = vec![Expr::DestinationType { to: 0 }, equal(0, &LOCAL.to_ne_bytes())];
    rule("packets to this host", [local, then(Verdict::Jump("ports".to_owned()))])
}

/// A port published on one address takes precedence over one published on all addresses.
fn ports() -> Vec<Rule> {
    let mut rules = Vec::new();
    for (family, on_address, on_every) in [(V4, Set::HostPorts4, Set::Ports4), (V6, Set::HostPorts6, Set::Ports6)] {
        for (set, bound) in [(on_address, true), (on_every, false)] {
            let mut steps = family.only();
            let mut next = 0;
            if bound {
                steps.push(family.load(family.destination, 0));
                next = family.after();
            }
            steps.push(Expr::Meta { key: META_L4PROTO, to: next });
            steps.push(Expr::Payload { base: TRANSPORT_HEADER, offset: 2, length: 2, to: next + 1 });
            steps.push(Expr::Lookup { set: set.name().to_owned(), from: 0, to: Some(0), inverted: false });
            steps.push(Expr::Dnat { family: family.number, address: 0, port: family.after() });
            rules.push(Rule { comment: "published ports", expressions: steps });
        }
    }
    rules
}

/// Drops loopback addresses that `route_localnet` on gantry's interfaces would let in (CVE-2020-8558), and packets
/// with a spoofed source from an interface of a single pod. The bridge table does the latter for bridge ports.
fn antispoof() -> Vec<Rule> {
    let ours = || interface(META_IIFNAME, Set::Interfaces);
    let alone = || {
        let twice = [0, 4].into_iter().map(|to| Expr::Meta { key: META_IIFNAME, to });
        [ours(), twice.chain([without(Set::Shared)]).collect()].concat()
    };
    let another = |family: Version, sources: Set| {
        let loads = vec![Expr::Meta { key: META_IIFNAME, to: 0 }, family.load(family.source, 4), without(sources)];
        [family.only(), loads].concat()
    };
    // `::` is the source of duplicate address detection and of joining its groups (RFC 4862 section 5.4, RFC 3590).
    let some = vec![V6.load(V6.source, 0), Expr::Compare { from: 0, equal: false, value: vec![0; 16] }];
    vec![
        rule("drop loopback sources from pods", [ours(), V4.loopback(V4.source), then(Verdict::Drop)]),
        rule("drop packets from pods to loopback", [ours(), V4.loopback(V4.destination), then(Verdict::Drop)]),
        rule("drop spoofed sources", [alone(), another(V4, Set::Sources4), then(Verdict::Drop)]),
        rule(
            "drop spoofed sources",
            [alone(), another(V6, Set::Sources6), some, not_link_local(), then(Verdict::Drop)],
        ),
    ]
}

/// A packet from outside to a loopback address is forged. Routing drops it, but only after DNAT would have changed the
/// destination, so it must not reach `ports`.
fn prerouting() -> Vec<Rule> {
    let comment = "ports on loopback are closed to the outside";
    vec![
        rule(comment, [V4.loopback(V4.destination), then(Verdict::Return)]),
        rule(comment, [V6.loopback(V6.destination), then(Verdict::Return)]),
        to_ports(),
    ]
}

/// The kernel does not route a reply to `::1` that arrives through an interface. Without DNAT the connection reaches
/// a local listener, or is refused immediately instead of timing out.
fn output() -> Vec<Rule> {
    vec![rule("replies to ::1 cannot be routed", [V6.loopback(V6.destination), then(Verdict::Return)]), to_ports()]
}

/// Drops only packets from or to gantry's interfaces. `accept` ends this chain only, not those of other tables.
fn forward() -> Vec<Rule> {
    let own = |family: Version, sources: Set, pairs: Set| {
        let mut steps = family.only();
        let source = |to| family.load(family.source, to);
        steps.extend([Expr::Meta { key: META_IIFNAME, to: 0 }, source(4), within(sources)]);
        steps.extend([source(0), family.load(family.destination, family.after()), within(pairs)]);
        steps
    };
    let shared = [META_IIFNAME, META_OIFNAME].into_iter().zip([0, 4]).map(|(key, to)| Expr::Meta { key, to });
    let shared = shared.chain([within(Set::Shared)]).collect();
    let entered = |family: Version, hidden: Set| {
        let mut steps = family.only();
        steps.extend([family.load(family.destination, 0), within(hidden)]);
        steps.extend(interface(META_OIFNAME, Set::Interfaces));
        steps.push(Expr::Meta { key: META_IIFNAME, to: 0 });
        steps.push(without(Set::Interfaces));
        steps
    };
    let (from, to) = (|set| interface(META_IIFNAME, set), |set| interface(META_OIFNAME, set));
    let accept = || then(Verdict::Accept);
    let drop = || then(Verdict::Drop);
    vec![
        rule("established connections", [connection(CT_STATE, ESTABLISHED_RELATED), accept()]),
        rule("published ports", [connection(CT_STATUS, STATUS_DNAT), accept()]),
        rule("same network", [shared, accept()]),
        rule("same network", [own(V4, Set::Sources4, Set::Within4), accept()]),
        rule("same network", [own(V6, Set::Sources6, Set::Within6), accept()]),
        rule("restricted network", [from(Set::Restricted), drop()]),
        rule("restricted network", [to(Set::Restricted), drop()]),
        rule("isolated network", [from(Set::Isolated), to(Set::Interfaces), drop()]),
        rule("isolated network", [from(Set::Interfaces), to(Set::Isolated), drop()]),
        rule("masqueraded networks are closed to the outside", [entered(V4, Set::Masquerade4), drop()]),
        rule("masqueraded networks are closed to the outside", [entered(V6, Set::Masquerade6), drop()]),
        rule("forward for pods only", [confined(), drop()]),
    ]
}

/// Matches packets of an IP version that is forwarded for pods only, if neither interface belongs to a gantry instance.
fn confined() -> Vec<Expr> {
    let mut steps = vec![Expr::Meta { key: META_NFPROTO, to: 0 }, within(Set::Confined)];
    for (name, group) in [(META_IIFNAME, META_IIFGROUP), (META_OIFNAME, META_OIFGROUP)] {
        let other = Expr::Compare { from: 0, equal: false, value: INTERFACE_GROUP.to_ne_bytes().to_vec() };
        steps.extend([Expr::Meta { key: name, to: 0 }, without(Set::Interfaces)]);
        steps.extend([Expr::Meta { key: group, to: 0 }, other]);
    }
    steps
}

fn postrouting() -> Vec<Rule> {
    let ours = || interface(META_OIFNAME, Set::Interfaces);
    let dnat = || connection(CT_STATUS, STATUS_DNAT);
    let mut rules = vec![
        rule("masquerade loopback sources", [V4.loopback(V4.source), ours(), vec![Expr::Masquerade]]),
        rule(
            "masquerade clients of restricted networks",
            [dnat(), interface(META_OIFNAME, Set::Restricted), vec![Expr::Masquerade]],
        ),
    ];
    for (family, pairs, sources) in [(V4, Set::Within4, Set::Masquerade4), (V6, Set::Within6, Set::Masquerade6)] {
        let same = || {
            let second = family.load(family.destination, family.after());
            [family.only(), vec![family.load(family.source, 0), second, within(pairs)]].concat()
        };
        let wanted = [family.only(), vec![family.load(family.source, 0), within(sources)]].concat();
        rules.push(rule("masquerade hairpin connections", [dnat(), same(), vec![Expr::Masquerade]]));
        rules.push(rule("same network", [same(), then(Verdict::Return)]));
        rules.push(rule("masquerade outgoing connections", [wanted, family.not_multicast(), vec![Expr::Masquerade]]));
    }
    rules
}
