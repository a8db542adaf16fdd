//! The tables in network namespaces of the tests: as the kernel stores them, as `nft` lists them, and with packets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

mod anti_spoofing;
mod flows;
mod forward;
mod frame;
mod scale;
mod space;
mod state;
mod table;
mod traffic;
mod watch;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::{Access, AntiSpoofing, Confined, Forward, HostPort, Interface, Network, Protocol, State};
use crate::address::Prefix;
use crate::mac::Mac;

fn prefixes(texts: &[&str]) -> BTreeSet<Prefix> {
    texts.iter().map(|text| text.parse::<Prefix>().unwrap()).collect()
}

fn port(address: &str, protocol: Protocol, port: u16) -> HostPort {
    HostPort { address: address.parse::<IpAddr>().unwrap(), protocol, port }
}

fn to(address: &str, owner: &str) -> Forward {
    Forward { to: address.parse::<SocketAddr>().unwrap(), owner: owner.to_owned() }
}

/// Adds a network behind a bridge.
fn bridge(state: &mut State, network: &str, interface: &str, subnets: &[&str], access: Access) {
    let masquerade = access != Access::Restricted;
    state.networks.insert(network.to_owned(), Network { prefixes: prefixes(subnets), masquerade });
    let interface_of = Interface { network: network.to_owned(), addresses: BTreeSet::new(), access };
    state.interfaces.insert(interface.to_owned(), interface_of);
}

fn allowed_from(mac: [u8; 6], addresses: &[&str]) -> AntiSpoofing {
    AntiSpoofing { mac: Mac(mac), addresses: addresses.iter().map(|text| text.parse::<IpAddr>().unwrap()).collect() }
}

/// A state with every kind of entry.
fn sample() -> State {
    let mut state = State::new();
    bridge(&mut state, "default", "gantry0", &["10.1.0.0/16", "fd00:1::/64"], Access::Isolated);
    bridge(&mut state, "apart", "gantry1", &["10.2.0.0/24", "10.2.1.0/24", "fd00:2::/64"], Access::Restricted);
    bridge(&mut state, "open", "gantry2", &["10.3.0.0/16"], Access::Open);
    let addresses = ["10.3.0.7".parse().unwrap(), "fd00:3::7".parse().unwrap()].into();
    let own = Interface { network: "open".to_owned(), addresses, access: Access::Open };
    state.interfaces.insert("veth7".to_owned(), own);
    state.ports.insert(port("0.0.0.0", Protocol::Tcp, 8080), to("10.1.0.2:80", "pod-a"));
    state.ports.insert(port("0.0.0.0", Protocol::Udp, 8080), to("10.1.0.2:80", "pod-a"));
    state.ports.insert(port("0.0.0.0", Protocol::Sctp, 8080), to("10.1.0.2:80", "pod-a"));
    state.ports.insert(port("127.0.0.1", Protocol::Tcp, 8081), to("10.1.0.3:81", "pod-b"));
    state.ports.insert(port("::", Protocol::Tcp, 8080), to("[fd00:1::2]:80", "pod-a"));
    state.ports.insert(port("2001:db8::1", Protocol::Udp, 65535), to("[fd00:1::3]:1", "pod-b"));
    state.anti_spoofing.insert("gt0".to_owned(), allowed_from([2, 0, 0, 0, 0, 1], &["10.1.0.2", "fd00:1::2"]));
    state
        .anti_spoofing
        .insert("gt1".to_owned(), allowed_from([2, 0, 0, 0, 0, 2], &["10.1.0.3", "10.1.0.4", "fd00:1::3"]));
    state.anti_spoofing.insert("gt2".to_owned(), allowed_from([2, 0, 0, 0, 0, 3], &[]));
    state.confined = Confined { v4: true, v6: true };
    state
}
