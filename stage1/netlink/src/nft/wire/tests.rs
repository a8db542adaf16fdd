//! Written messages can be read, and no bytes make the reader panic.

#![allow(clippy::unwrap_used, reason = "tests may panic")]

use proptest::prelude::*;

use super::*;
use crate::message::next_message;
use crate::nft::expr::{Expr, Verdict};
use crate::nft::rules::chains;

/// A rule's expressions, through their attributes.
fn round_trip(expressions: &[Expr]) -> Option<Vec<Expr>> {
    let mut batch = Batch::new();
    batch.push(message::NEWRULE, 0, &fixed(Family::Inet.number(), 0), |batch| {
        expr::write(batch, NFTA_RULE_EXPRESSIONS, expressions)
    });
    let bytes = batch.finish(1, 0).unwrap();
    let message = next_message(&mut bytes.as_slice()).unwrap().unwrap();
    let (_, attributes) = message.split(FIXED).unwrap();
    expr::read(attributes.get(NFTA_RULE_EXPRESSIONS).unwrap().nested().unwrap())
}

#[test]
fn rules_round_trip() {
    for chain in Family::ALL.into_iter().flat_map(chains) {
        for rule in &chain.rules {
            assert_eq!(round_trip(&rule.expressions).as_ref(), Some(&rule.expressions), "{}", rule.comment);
        }
    }
}

fn expression() -> impl Strategy<Value = Expr> {
    let register = 0_u8..16;
    let value = || prop::collection::vec(any::<u8>(), 1..64);
    let verdict = prop_oneof![
        Just(Verdict::Accept),
        Just(Verdict::Drop),
        Just(Verdict::Return),
        "[a-z]{1,20}".prop_map(Verdict::Jump),
    ];
    prop_oneof![
        (any::<u32>(), register.clone()).prop_map(|(key, to)| Expr::Meta { key, to }),
        (any::<u32>(), register.clone()).prop_map(|(key, to)| Expr::Connection { key, to }),
        (any::<u32>(), any::<u32>(), any::<u32>(), register.clone())
            .prop_map(|(base, offset, length, to)| Expr::Payload { base, offset, length, to }),
        (register.clone(), any::<bool>(), value()).prop_map(|(from, equal, value)| Expr::Compare {
            from,
            equal,
            value
        }),
        (register.clone(), value()).prop_map(|(register, mask)| Expr::Mask { register, mask }),
        ("[a-z0-9]{1,30}", register.clone(), prop::option::of(register.clone()), any::<bool>())
            .prop_map(|(set, from, to, inverted)| Expr::Lookup { set, from, to, inverted }),
        register.clone().prop_map(|to| Expr::DestinationType { to }),
        verdict.prop_map(Expr::Verdict),
        (any::<u8>(), register.clone(), register).prop_map(|(family, address, port)| Expr::Dnat {
            family,
            address,
            port
        }),
        Just(Expr::Masquerade),
    ]
}

fn set() -> impl Strategy<Value = Set> {
    prop::sample::select(Set::ALL.to_vec())
}

/// An element with valid lengths and random contents.
fn element() -> impl Strategy<Value = Element> {
    (set(), prop::collection::vec(any::<u8>(), 100), "[ -~]{0,100}").prop_map(|(set, bytes, comment)| {
        let (mut key, rest) = bytes.split_at(length(set.key()));
        let (mut end, rest) = rest.split_at(if set.is_interval() { key.len() } else { 0 });
        if set.is_interval() && key > end {
            (key, end) = (end, key);
        }
        let data = set.is_map().then(|| rest[..length(set.data())].to_vec());
        let end = set.is_interval().then(|| end.to_vec());
        Element { set, key: key.to_vec(), end, data, comment }
    })
}

/// The elements of a transaction that adds one, as the reader receives them.
fn incoming(element: &Element) -> Vec<Incoming> {
    let mut transaction = Transaction::new("t", Some(7), 7);
    transaction.add([element], true);
    let (batch, labels) = transaction.finish();
    let bytes = batch.finish(1, 0).unwrap();
    assert_eq!(labels.len(), 1);
    let mut rest = bytes.as_slice();
    let begin = next_message(&mut rest).unwrap().unwrap();
    assert_eq!((begin.kind, begin.number), (BATCH_BEGIN, 1));
    let message = next_message(&mut rest).unwrap().unwrap();
    assert_eq!((message.kind, message.number, message.flags & F_ACK), (message::NEWSETELEM, 2, F_ACK));
    assert_eq!(next_message(&mut rest).unwrap().unwrap().kind, BATCH_END);
    read_elements(element.set, &message).unwrap()
}

proptest! {
    #[test]
    fn expressions_round_trip(all in prop::collection::vec(expression(), 0..20)) {
        prop_assert_eq!(round_trip(&all), Some(all));
    }

    #[test]
    fn elements_round_trip(element in element()) {
        let read = incoming(&element);
        let read = if element.set.is_interval() && !element.set.is_ranges() {
            join(read)
        } else {
            read.into_iter().map(|one| one.element).collect()
        };
        prop_assert_eq!(read, vec![element]);
    }

    #[test]
    fn adjacent_ranges_stay_separate(mut bounds in prop::collection::btree_set(any::<u32>(), 2..20), last in any::<bool>()) {
        bounds.extend(last.then_some(u32::MAX));
        let bounds: Vec<u32> = bounds.into_iter().collect();
        let mut all: Vec<Element> = bounds.windows(2).filter(|pair| pair[0] < pair[1] - 1 || pair[1] == u32::MAX).map(|pair| Element {
            set: Set::Masquerade4,
            key: pair[0].to_be_bytes().to_vec(),
            end: Some(if pair[1] == u32::MAX { pair[1] } else { pair[1] - 1 }.to_be_bytes().to_vec()),
            data: None,
            comment: "n".to_owned(),
        }).collect();
        let read = join(all.iter().rev().flat_map(incoming).collect());
        all.sort();
        prop_assert_eq!(read, all);
    }

    #[test]
    fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), set in set()) {
        let message = Message { kind: message::NEWSETELEM, flags: 0, number: 1, payload: &bytes };
        if let Ok(read) = read_elements(set, &message) {
            let all = join(read).into_iter().collect();
            let _ = crate::nft::sets::elements(&crate::nft::sets::state_from_elements(&all));
        }
        if let Ok(attributes) = Attributes::parse(&bytes) {
            let _ = expr::read(attributes);
            attributes.iter().for_each(|attribute| drop(comment(Some(attribute))));
        }
    }

    /// Ours, with one byte changed, or cut.
    #[test]
    fn damaged_messages_never_panic(element in element(), all in prop::collection::vec(expression(), 1..5), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut transaction = Transaction::new("t", None, 7);
        transaction.add([&element], false);
        let rule = Rule { comment: "c", expressions: all };
        transaction.add_rule(Family::Inet, "c", &rule);
        let mut bytes = transaction.finish().0.finish(1, 0).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let mut rest = if cut { &bytes[..at] } else { bytes.as_slice() };
        while let Ok(Some(message)) = next_message(&mut rest) {
            let _ = read_elements(element.set, &message).map(|read| {
                let all = join(read).into_iter().collect();
                crate::nft::sets::state_from_elements(&all)
            });
            let Ok((_, attributes)) = message.split(FIXED) else { continue };
            let list = attributes.get(NFTA_RULE_EXPRESSIONS).and_then(|list| list.nested().ok());
            let _ = list.map(expr::read);
        }
    }
}
