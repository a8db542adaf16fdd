//! The order of allocation: in turn through the ranges of a set, starting after the last allocated address.

use std::net::IpAddr;

use crate::address::{from_bits, to_bits};
use crate::config::Range;

/// The addresses of a set, each once: after `last` to the end of its range, the other ranges, and up to `last` itself.
/// Without `last`, or if the set does not contain it, from the beginning.
pub(super) fn in_turn(set: &[Range], last: Option<IpAddr>) -> impl Iterator<Item = (usize, IpAddr)> + '_ {
    let at = last.and_then(|last| set.iter().position(|range| range.contains(last)).zip(Some(last)));
    let (first, after) = match at {
        Some((index, last)) => (index, Some(last)),
        None => (0, None),
    };
    let head = set.get(first).into_iter().flat_map(move |range| {
        let from = after.map_or(to_bits(range.start), |last| to_bits(last).saturating_add(1));
        addresses(range, from, to_bits(range.end)).map(move |address| (first, address))
    });
    let others = (first + 1..set.len()).chain(0..first).flat_map(move |index| {
        let range = set.get(index).into_iter();
        range.flat_map(move |range| {
            addresses(range, to_bits(range.start), to_bits(range.end)).map(move |it| (index, it))
        })
    });
    let tail = set.get(first).zip(after).into_iter().flat_map(move |(range, last)| {
        addresses(range, to_bits(range.start), to_bits(last)).map(move |address| (first, address))
    });
    head.chain(others).chain(tail).filter(move |(_, address)| !set.iter().any(|range| range.gateway == *address))
}

fn addresses(range: &Range, from: u128, to: u128) -> impl Iterator<Item = IpAddr> + use<> {
    let family = range.subnet.family();
    // If the last allocated address was the end of the range, `from` is past `to`: an empty range.
    let end = to.saturating_add(1);
    (from..end).map(move |bits| from_bits(bits, family))
}

/// The ranges for messages.
pub(super) fn shown(set: &[Range]) -> String {
    set.iter().map(|range| format!("{}-{}", range.start, range.end)).collect::<Vec<_>>().join(", ")
}

/// The properties of the ranges that determine their addresses.
pub(super) fn identity(set: &[Range]) -> String {
    let one = |range: &Range| format!("{} {} {} {}\n", range.subnet, range.start, range.end, range.gateway);
    set.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(&str, &str, &str)]) -> Vec<Range> {
        let one = |(subnet, start, end): &(&str, &str, &str)| {
            Range::new(subnet.parse().unwrap(), start.parse().ok(), end.parse().ok(), None).unwrap()
        };
        ranges.iter().map(one).collect()
    }

    fn order(set: &[Range], last: Option<&str>) -> Vec<String> {
        in_turn(set, last.map(|last| last.parse().unwrap())).map(|(_, address)| address.to_string()).collect()
    }

    #[test]
    fn addresses_are_allocated_in_turn_without_the_gateway() {
        let set = set(&[("10.0.0.0/29", "", ""), ("10.0.1.0/24", "10.0.1.7", "10.0.1.8")]);
        let all = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.1.7", "10.0.1.8"];
        assert_eq!(order(&set, None), all);
        assert_eq!(order(&set, Some("10.9.0.0")), all);
        let turned = |by: usize| all.iter().cycle().skip(by).take(7).copied().collect::<Vec<_>>();
        assert_eq!(order(&set, Some("10.0.0.3")), turned(2));
        assert_eq!(order(&set, Some("10.0.0.6")), turned(5));
        assert_eq!(order(&set, Some("10.0.1.7")), turned(6));
        assert_eq!(order(&set, Some("10.0.1.8")), turned(0));
    }

    #[test]
    fn the_last_address_does_not_overflow() {
        let top = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe";
        let set = set(&[("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff0/124", top, "")]);
        assert_eq!(order(&set, None)[0], top);
    }
}
