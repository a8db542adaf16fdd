//! Messages survive building and parsing, in the kernel's layout; and no bytes make the parser panic.

use proptest::prelude::*;

use super::read::Ack;
use super::*;

fn all(mut datagram: &[u8]) -> Result<Vec<Message<'_>>, Malformed> {
    let mut found = Vec::new();
    while let Some(message) = next_message(&mut datagram)? {
        found.push(message);
    }
    Ok(found)
}

#[test]
fn the_layout_matches_the_kernel() {
    let mut batch = Batch::new();
    batch.push(16, F_ACK, &[1, 2, 3], |m| {
        m.u8(1, 7).text(2, "lo").nested(3, |m| {
            m.bytes(4, &[1, 2]);
        });
    });
    let bytes = batch.finish(9, 0).unwrap();
    let mut want = Vec::new();
    want.extend_from_slice(&48u32.to_ne_bytes());
    for value in [16u16, F_ACK | F_REQUEST] {
        want.extend_from_slice(&value.to_ne_bytes());
    }
    want.extend_from_slice(&9u32.to_ne_bytes());
    want.extend_from_slice(&[0; 4]);
    want.extend_from_slice(&[1, 2, 3, 0]);
    for (length, kind, payload) in
        [(5u16, 1u16, &[7, 0, 0, 0][..]), (7, 2, b"lo\0\0"), (12, 0x8003, &[]), (6, 4, &[1, 2, 0, 0])]
    {
        want.extend_from_slice(&length.to_ne_bytes());
        want.extend_from_slice(&kind.to_ne_bytes());
        want.extend_from_slice(payload);
    }
    assert_eq!(bytes, want);
}

#[test]
fn batch_messages_are_numbered_and_terminated() {
    let mut batch = Batch::new();
    for kind in 20..23 {
        batch.push(kind, 0, &[], |_| {});
    }
    assert_eq!(batch.count(), 3);
    let bytes = batch.finish(u32::MAX, F_ACK).unwrap();
    let seen: Vec<_> = all(&bytes).unwrap().iter().map(|m| (m.kind, m.number, m.flags)).collect();
    assert_eq!(seen, [(20, u32::MAX, F_REQUEST), (21, 0, F_REQUEST), (22, 1, F_REQUEST | F_ACK)]);
}

#[test]
fn oversized_payloads_are_rejected() {
    let mut batch = Batch::new();
    batch.push(1, 0, &[], |m| {
        m.bytes(1, &vec![0; 65_532]);
    });
    assert!(batch.finish(0, 0).is_err());
    let mut batch = Batch::new();
    batch.push(1, 0, &[], |m| {
        m.nested(1, |m| {
            m.bytes(2, &vec![0; 65_000]).bytes(3, &vec![0; 1000]);
        });
    });
    assert!(batch.finish(0, 0).is_err());
}

/// An acknowledgement as the kernel writes one.
fn error(code: i32, flags: u16, quoted: &[u8], text: Option<&str>) -> Vec<u8> {
    let mut batch = Batch::new();
    let mut fixed = code.to_ne_bytes().to_vec();
    fixed.extend_from_slice(&u32::try_from(HEADER + quoted.len()).unwrap().to_ne_bytes());
    fixed.extend_from_slice(&[0; HEADER - 4]);
    fixed.extend_from_slice(quoted);
    batch.push(NLMSG_ERROR, flags, &fixed, |m| {
        if let Some(text) = text {
            m.text(NLMSGERR_ATTR_MSG, text).u32(NLMSGERR_ATTR_OFFS, 24);
        }
    });
    batch.finish(1, 0).unwrap()
}

#[test]
fn acknowledgements_carry_a_text() {
    let cases = [
        (error(0, 0, &[], None), Ack::default()),
        (error(-17, 0, &[9; 32], None), Ack { errno: 17, ..Ack::default() }),
        (error(-22, F_ACK_TLVS, &[9; 30], Some("no")), Ack { errno: 22, text: Some("no"), offset: Some(24) }),
        (error(-22, F_ACK_TLVS | F_CAPPED, &[], Some("no")), Ack { errno: 22, text: Some("no"), offset: Some(24) }),
        (error(i32::MIN, 0, &[], None), Ack { errno: i32::MAX, ..Ack::default() }),
    ];
    for (bytes, want) in &cases {
        assert_eq!(all(bytes).unwrap()[0].ack().unwrap(), *want);
    }
    assert!(all(&error(1, 0, &[], None)).unwrap()[0].ack().is_err());
}

#[test]
fn wrong_lengths_are_rejected() {
    for bytes in [&[3u8, 0, 1, 0][..], &[5, 0, 1, 0], &[8, 0, 1, 0, 1, 2, 3], &[4, 0, 1], &[0; 4]] {
        assert!(Attributes::parse(bytes).is_err(), "{bytes:?}");
    }
    for length in [0u32, 15, 17, u32::MAX] {
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&[0; 12]);
        assert!(all(&bytes).is_err(), "{length}");
    }
}

/// A tree of attributes.
#[derive(Debug, Clone, PartialEq)]
enum Tree {
    Leaf(u16, Vec<u8>),
    Node(u16, Vec<Tree>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let kind = 0..=TYPE_MASK;
    let leaf = (kind, proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(kind, bytes)| Tree::Leaf(kind, bytes));
    leaf.prop_recursive(4, 40, 5, |inner| {
        (0..=TYPE_MASK, proptest::collection::vec(inner, 0..5)).prop_map(|(kind, inner)| Tree::Node(kind, inner))
    })
}

fn build(batch: &mut Batch, tree: &Tree) {
    match tree {
        Tree::Leaf(kind, bytes) => {
            batch.bytes(*kind, bytes);
        }
        Tree::Node(kind, inner) => {
            batch.nested(*kind, |batch| inner.iter().for_each(|tree| build(batch, tree)));
        }
    }
}

fn same(attributes: Attributes<'_>, want: &[Tree]) -> bool {
    let found: Vec<_> = attributes.iter().collect();
    found.len() == want.len()
        && found.iter().zip(want).all(|(found, want)| match want {
            Tree::Leaf(kind, bytes) => found.kind == *kind && found.payload == bytes.as_slice(),
            Tree::Node(kind, inner) => found.kind == *kind && same(found.nested().unwrap(), inner),
        })
}

/// Reads everything that can be read.
fn read_all(bytes: &[u8], depth: u32) {
    if let Ok(messages) = all(bytes) {
        for message in messages {
            let _ = message.ack();
            let _ = message.split(message.payload.len() / 2);
        }
    }
    let Ok(attributes) = Attributes::parse(bytes) else { return };
    for attribute in attributes.iter() {
        let _ = (attribute.u8(), attribute.u16(), attribute.u32(), attribute.i32(), attribute.u64(), attribute.text());
        let _ = (attribute.be32(), attribute.u64());
        if depth > 0 {
            read_all(attribute.payload, depth - 1);
        }
    }
}

proptest! {
    #[test]
    fn messages_round_trip(
        messages in proptest::collection::vec((any::<u16>(), any::<u16>(), proptest::collection::vec(tree(), 0..4)), 1..4),
        fixed in proptest::collection::vec(any::<u8>(), 0..20),
        first in any::<u32>(),
    ) {
        let mut batch = Batch::new();
        for (kind, flags, trees) in &messages {
            batch.push(*kind, *flags, &fixed, |batch| trees.iter().for_each(|tree| build(batch, tree)));
        }
        let bytes = batch.finish(first, 0).unwrap();
        let read = all(&bytes).unwrap();
        prop_assert_eq!(read.len(), messages.len());
        for (index, (message, (kind, flags, trees))) in read.iter().zip(&messages).enumerate() {
            prop_assert_eq!((message.kind, message.flags), (*kind, *flags | F_REQUEST));
            prop_assert_eq!(message.number, first.wrapping_add(u32::try_from(index).unwrap()));
            let (head, attributes) = message.split(fixed.len()).unwrap();
            prop_assert_eq!(head, &fixed[..]);
            prop_assert!(same(attributes, trees));
        }
    }

    #[test]
    fn hostile_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes, 4);
    }

    #[test]
    fn damaged_messages_do_not_panic(tree in tree(), at in any::<usize>(), byte in any::<u8>(), cut in any::<usize>()) {
        let mut batch = Batch::new();
        batch.push(NLMSG_ERROR, F_ACK_TLVS, &[0; 20], |batch| build(batch, &tree));
        let mut bytes = batch.finish(1, 0).unwrap();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.truncate(cut % (bytes.len() + 1));
        read_all(&bytes, 4);
    }
}
