//! Tests of judging answers. Asking is tested with the server.

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
fn what_is_an_answer() {
    let (asked, question, reply) = pair();
    let with = |at: usize, byte: u8| {
        let mut reply = reply.clone();
        reply[at] = byte;
        judge(&asked, question, &reply)
    };
    assert_eq!(judge(&asked, question, &reply), Judgement::Answer);
    assert_eq!(judge(&asked, question, &asked), Judgement::Stray, "a question is no answer");
    assert_eq!(judge(&asked, question, &reply[..question - 1]), Judgement::Stray);
    assert_eq!(judge(&asked, question, &[]), Judgement::Stray);
    // Either half of the identity; an update; no question, two; another name, type, class.
    for (at, byte) in [(0, 0xff), (1, 0xff), (2, 0xa8), (5, 0), (5, 2), (13, b'x'), (26, 28), (28, 3)] {
        assert_eq!(with(at, byte), Judgement::Stray, "{at}");
    }
    assert_eq!(with(13, b'E'), Judgement::Answer, "names are the same in any case");
    assert_eq!(with(2, reply[2] | 2), Judgement::Cut);
    for (code, want) in [
        (ResponseCode::FormErr, Judgement::Unable),
        (ResponseCode::ServFail, Judgement::Unable),
        (ResponseCode::NXDomain, Judgement::Answer),
        (ResponseCode::NotImp, Judgement::Unable),
        (ResponseCode::Refused, Judgement::Unable),
    ] {
        assert_eq!(with(3, code.low()), want, "{code}");
    }
    let bare = [&asked[..2], &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(judge(&asked, question, &bare), Judgement::Unable, "it could not even read it");
}

proptest! {
    #[test]
    fn random_bytes_are_no_answer(mut came in prop::collection::vec(any::<u8>(), 0..600), like: bool) {
        let (asked, question, reply) = pair();
        if like && came.len() > 2 {
            came[..2].copy_from_slice(&asked[..2]);
        }
        let judgement = judge(&asked, question, &came);
        prop_assert!(matches!(judgement, Judgement::Stray | Judgement::Unable) || came.starts_with(&reply[..2]));
        // Nor does a question of any other shape do harm.
        let _ = judge(&came, question.min(came.len() + 9), &reply);
        let _ = judge(&[], 0, &came);
    }
}
