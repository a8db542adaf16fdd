//! Written messages are read back unchanged, without a kernel; and no payload makes a reader panic.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use crate::address::Cidr;
use crate::message::{Batch, Message, next_message};
use crate::rtnetlink::address::{Address, Scope};
use crate::rtnetlink::route::{Route, RouteKind};
use crate::rtnetlink::{address, link, route, traffic};

fn prefix() -> impl Strategy<Value = Cidr> {
    let four = (any::<[u8; 4]>(), 0..=32u8).prop_map(|(address, length)| Cidr::new(address, length).unwrap());
    let six = (any::<[u8; 16]>(), 0..=128u8).prop_map(|(address, length)| Cidr::new(address, length).unwrap());
    prop_oneof![four, six]
}

fn address_like(other: IpAddr) -> BoxedStrategy<Option<IpAddr>> {
    if other.is_ipv4() {
        proptest::option::of(any::<[u8; 4]>().prop_map(IpAddr::from)).boxed()
    } else {
        proptest::option::of(any::<[u8; 16]>().prop_map(IpAddr::from)).boxed()
    }
}

fn some_route() -> impl Strategy<Value = Route> {
    let numbers = proptest::array::uniform4(proptest::option::of(any::<u32>()));
    prefix().prop_flat_map(move |to| {
        (address_like(to.address()), address_like(to.address()), numbers.clone(), any::<(bool, u8, u8, u32)>())
            .prop_map(move |(gateway, source, [device, mtu, advmss, priority], (on_link, scope, kind, table))| Route {
                to: to.network(),
                gateway,
                device,
                source,
                scope: Some(Scope::from(scope)),
                on_link,
                mtu,
                advmss,
                priority,
                table: Some(table),
                // 1, 2, 6, 7 and 8 have names.
                kind: if kind == 1 { RouteKind::Unicast } else { RouteKind::Other(kind.max(9)) },
            })
    })
}

fn message(kind: u16, fixed: &[u8], attributes: impl FnOnce(&mut Batch)) -> Vec<u8> {
    let mut batch = Batch::new();
    batch.push(kind, 0, fixed, attributes);
    batch.finish(1, 0).unwrap()
}

fn read(mut bytes: &[u8]) -> Message<'_> {
    next_message(&mut bytes).unwrap().unwrap()
}

proptest! {
    #[test]
    fn routes_round_trip(route in some_route()) {
        let bytes = message(24, &route.head(route.effective_scope()), |m| route.write(m));
        prop_assert_eq!(route::parse(&read(&bytes)).unwrap(), Some(route));
    }

    #[test]
    fn addresses_round_trip(
        prefix in prefix(), scope in any::<u8>(), broadcast in proptest::option::of(any::<u32>()), flags in any::<(bool, bool)>(),
    ) {
        let v4 = prefix.is_ipv4();
        let broadcast = broadcast.filter(|_| v4).map(Ipv4Addr::from_bits);
        let address = Address {
            broadcast,
            scope: Scope::from(scope),
            no_dad: flags.0 || v4,
            no_prefix_route: flags.1,
            ..Address::new(prefix)
        };
        let bytes = message(20, &address.head(7), |m| {
            address.write(m);
            m.u32(8, address.flags());
            if let Some(broadcast) = broadcast {
                m.bytes(4, &broadcast.octets());
            }
        });
        let own = address::parse(&read(&bytes)).unwrap().unwrap();
        prop_assert_eq!((own.index, own.address), (7, address));
    }

    #[test]
    fn hostile_payloads_do_no_harm(
        fixed in proptest::collection::vec(any::<u8>(), 0..24),
        attributes in proptest::collection::vec((0..40u16, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        for kind in [16, 20, 24, 28, 36] {
            let bytes = message(kind, &fixed, |m| {
                for (kind, payload) in &attributes {
                    m.bytes(*kind, payload);
                }
                m.raw(&rest);
            });
            let message = read(&bytes);
            let _ = (link::parse(&message), address::parse(&message), route::parse(&message));
            let _ = traffic::parse(&message);
        }
    }
}
