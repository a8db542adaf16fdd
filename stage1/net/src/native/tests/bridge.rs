//! Pods on a bridge.

use std::net::IpAddr;

use super::lab::{Lab, address, attachment, dual, talk};
use crate::netlink::tests::support::Net;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn pods_reach_each_other_and_the_host() {
    let lab = Lab::new();
    let network = dual("net", "br-net", 61);
    let (one, two) = (Net::new(), Net::new());
    let first = lab.add(&network, &one, &attachment(&one, 1));
    let second = lab.add(&network, &two, &attachment(&two, 2));
    lab.apply(&[&first, &second]);
    for v4 in [true, false] {
        let (a, b) = (address(&first, v4), address(&second, v4));
        assert_eq!(talk(&one, a, &two).seen(), b);
        assert_eq!(talk(&two, b, &one).seen(), a);
        let gateway = ip(if v4 { "10.61.0.1" } else { "fd00:61::1" });
        assert_eq!(talk(&lab.host, gateway, &two).seen(), b);
        assert_eq!(talk(&one, a, &lab.host).seen(), gateway);
    }
}
