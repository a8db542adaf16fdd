//! Tests of the classification of replies. Sending queries is tested with the server.

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use super::*;
use crate::fixtures::query;

/// A question, where it ends, and an answer to it.
fn pair() -> (Vec<u8>, usize, Vec<u8>) {
    let asked = query("example.com.", RecordType::A, None);
    let packet = asked.to_vec().unwrap();
    let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
    reply.add_queries(asked.queries.iter().cloned());
    (packet.clone(), packet.len(), reply.to_vec().unwrap())
}

#[test]
fn only_matching_replies_are_accepted() {
    let (asked, question, reply) = pair();
    let with = |at: usize, byte: u8| {
        let mut reply = reply.clone();
        reply[at] = byte;
        classify_reply(&asked, question, &reply)
    };
    assert_eq!(classify_reply(&asked, question, &reply), ReplyKind::Answer);
    assert_eq!(classify_reply(&asked, question, &asked), ReplyKind::Unrelated, "a question is no answer");
    assert_eq!(classify_reply(&asked, question, &reply[..question - 1]), ReplyKind::Unrelated);
    assert_eq!(classify_reply(&asked, question, &[]), ReplyKind::Unrelated);
    // Either half of the identity; an update; no question, two; another name, type, class.
    for (at, byte) in [(0, 0xff), (1, 0xff), (2, 0xa8), (5, 0), (5, 2), (13, b'x'), (26, 28), (28, 3)] {
        assert_eq!(with(at, byte), ReplyKind::Unrelated, "{at}");
    }
    assert_eq!(with(13, b'E'), ReplyKind::Answer, "names are the same in any case");
    assert_eq!(with(2, reply[2] | 2), ReplyKind::Truncated);
    for (code, want) in [
        (ResponseCode::FormErr, ReplyKind::Failure),
        (ResponseCode::ServFail, ReplyKind::Failure),
        (ResponseCode::NXDomain, ReplyKind::Answer),
        (ResponseCode::NotImp, ReplyKind::Failure),
        (ResponseCode::Refused, ReplyKind::Failure),
    ] {
        assert_eq!(with(3, code.low()), want, "{code}");
    }
    let bare = [&asked[..2], &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(classify_reply(&asked, question, &bare), ReplyKind::Failure, "it could not even read it");
}

proptest! {
    #[test]
    fn random_bytes_are_not_accepted_as_a_reply(mut came in prop::collection::vec(any::<u8>(), 0..600), like: bool) {
        let (asked, question, reply) = pair();
        if like && came.len() > 2 {
            came[..2].copy_from_slice(&asked[..2]);
        }
        let judgement = classify_reply(&asked, question, &came);
        prop_assert!(matches!(judgement, ReplyKind::Unrelated | ReplyKind::Failure) || came.starts_with(&reply[..2]));
        // Nor does a question of any other shape do harm.
        let _ = classify_reply(&came, question.min(came.len() + 9), &reply);
        let _ = classify_reply(&[], 0, &came);
    }
}
