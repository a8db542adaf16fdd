//! Tests of query handling.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{DB, WEB, ip, network, pod, query, texts};
use crate::names::{Gateways, gateways};

/// The names of a network with a `web` (both families), a `db` (IPv4 only), and both together as `all`.
fn names() -> Gateways {
    gateways(&[
        pod(WEB, "web", &["all"], vec![network("n", &["10.1.0.2/24 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"])]),
        pod(DB, "db", &["all"], vec![network("n", &["10.1.0.3/24 via 10.1.0.1"])]),
    ])
}

fn step(packet: &[u8], transport: Transport, turn: usize) -> QueryAction {
    let gateways = names();
    let names = gateways.names_for(ip("10.1.0.1"), ip("10.1.0.2")).unwrap();
    PodQuery { packet, transport, names, forward: true, turn }.decide()
}

fn answer(step: QueryAction) -> Message {
    match step {
        QueryAction::Reply(reply) => Message::from_vec(&reply).unwrap(),
        other => panic!("no reply: {other:?}"),
    }
}

fn asked(name: &str, kind: RecordType) -> Message {
    answer(step(&query(name, kind, None).to_vec().unwrap(), Transport::Udp, 0))
}

#[test]
fn known_names_are_answered() {
    use RecordType as T;
    use ResponseCode as R;
    let back = format!("web.{DOMAIN}.");
    let six = "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.d.f.ip6.arpa.";
    for (name, kind, code, want) in [
        ("web.", T::A, R::NoError, &["10.1.0.2"][..]),
        ("Web.Gantry.Internal.", T::A, R::NoError, &["10.1.0.2"]),
        ("web.", T::AAAA, R::NoError, &["fd00:1::2"]),
        ("db.", T::AAAA, R::NoError, &[]),
        ("db.", T::MX, R::NoError, &[]),
        ("db.", T::HTTPS, R::NoError, &[]),
        ("db.", T::SOA, R::NoError, &[]),
        ("all.", T::A, R::NoError, &["10.1.0.2", "10.1.0.3"]),
        (&format!("{DB}."), T::A, R::NoError, &["10.1.0.3"]),
        ("gantry.internal.", T::A, R::NoError, &[]),
        ("nobody.gantry.internal.", T::A, R::NXDomain, &[]),
        ("2.0.1.10.in-addr.arpa.", T::PTR, R::NoError, &[&back]),
        (six, T::PTR, R::NoError, &[&back]),
        ("2.0.1.10.in-addr.arpa.", T::A, R::NoError, &[]),
        ("77.0.1.10.in-addr.arpa.", T::PTR, R::NXDomain, &[]),
    ] {
        let reply = asked(name, kind);
        assert_eq!(
            (reply.metadata.response_code, texts(&reply)),
            (code, want.iter().map(ToString::to_string).collect())
        );
        let head = reply.metadata;
        assert!(head.authoritative && head.recursion_available && head.recursion_desired && !head.truncation, "{name}");
        assert_eq!((head.id, head.message_type, reply.edns.is_some()), (0x1234, MessageType::Response, false));
        assert_eq!(reply.queries, query(name, kind, None).queries, "in the letters of the question");
        assert!(reply.answers.iter().all(|record| record.ttl <= 5));
    }
}

#[test]
fn addresses_are_rotated() {
    let packet = query("all.", RecordType::A, None).to_vec().unwrap();
    let pod_keys = [0, 1, 2, usize::MAX].map(|turn| texts(&answer(step(&packet, Transport::Udp, turn)))[0].clone());
    assert_eq!(pod_keys, ["10.1.0.2", "10.1.0.3", "10.1.0.2", "10.1.0.3"]);
}

#[test]
fn unknown_names_are_forwarded() {
    for name in ["example.com.", "nobody.", ".", "5.4.3.2.in-addr.arpa.", "1.10.in-addr.arpa.", "a.in-addr.arpa."] {
        let mut message = query(name, RecordType::A, Some(4000));
        message.metadata.checking_disabled = true;
        let packet = message.to_vec().unwrap();
        let QueryAction::Forward(forward) = step(&packet, Transport::Udp, 0) else { panic!("{name}") };
        let sent = Message::from_vec(&forward.packet).unwrap();
        assert_eq!((sent.queries, sent.metadata.id), (message.queries, 0), "{name}");
        assert!(sent.metadata.recursion_desired && sent.metadata.checking_disabled);
        assert_eq!((sent.edns.unwrap().max_payload(), forward.limit, forward.id()), (1232, 1232, 0x1234));
        assert_eq!(forward.packet[HEADER..forward.question], packet[HEADER..forward.question]);
        let failed = Message::from_vec(&forward.failed().unwrap()).unwrap();
        assert_eq!((failed.metadata.response_code, failed.metadata.id), (ResponseCode::ServFail, 0x1234));
        assert!(Message::from_vec(&forward.truncated().unwrap()).unwrap().metadata.truncation);
    }
}

#[test]
fn client_edns_options_are_not_forwarded() {
    use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
    let mut message = query("example.com.", RecordType::A, Some(1400));
    message.edns.as_mut().unwrap().options_mut().insert(EdnsOption::Unknown(10, vec![7; 8]));
    let QueryAction::Forward(forward) = step(&message.to_vec().unwrap(), Transport::Udp, 0) else { panic!() };
    let edns = Message::from_vec(&forward.packet).unwrap().edns.unwrap();
    assert!(edns.option(EdnsCode::Cookie).is_none());
}

#[test]
fn reply_size_follows_edns_and_transport() {
    for (payload, transport, want) in [
        (None, Transport::Udp, 512),
        (Some(0), Transport::Udp, 512),
        (Some(700), Transport::Udp, 700),
        (Some(1232), Transport::Udp, 1232),
        (Some(65535), Transport::Udp, 1232),
        (None, Transport::Tcp, 65535),
        (Some(512), Transport::Tcp, 65535),
    ] {
        let packet = query("example.com.", RecordType::A, payload).to_vec().unwrap();
        let QueryAction::Forward(forward) = step(&packet, transport, 0) else { panic!() };
        assert_eq!(forward.limit, want, "{payload:?} {transport:?}");
    }
}

#[test]
fn oversized_replies_are_truncated_and_flagged() {
    let many: Vec<_> = (2..250)
        .map(|n| pod(&n.to_string(), "many", &[], vec![network("n", &[&format!("10.1.0.{n}/24 via 10.1.0.1")])]))
        .collect();
    let gateways = gateways(&many);
    let names = gateways.names_for(ip("10.1.0.1"), ip("10.1.0.2")).unwrap();
    for (payload, transport, cut) in
        [(None, Transport::Udp, true), (Some(1232), Transport::Udp, true), (None, Transport::Tcp, false)]
    {
        let packet = query("many.", RecordType::A, payload).to_vec().unwrap();
        let step = PodQuery { packet: &packet, transport, names, forward: true, turn: 3 }.decide();
        let QueryAction::Reply(reply) = step else { panic!() };
        let message = Message::from_vec(&reply).unwrap();
        assert_eq!(message.metadata.truncation, cut);
        assert!(!message.answers.is_empty() && reply.len() <= usize::from(payload.unwrap_or(512)) || !cut);
        assert_eq!(message.edns.is_some(), payload.is_some());
    }
}

#[test]
fn unsupported_queries_are_refused() {
    let mut chaos = query("version.bind.", RecordType::TXT, None);
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut alone = query("example.com.", RecordType::A, None);
    alone.metadata.recursion_desired = false;
    let kinds = [RecordType::ANY, RecordType::AXFR, RecordType::IXFR];
    let wide = kinds.into_iter().flat_map(|kind| ["web.", "example.com."].map(|name| query(name, kind, None)));
    for message in wide.chain([chaos, alone]) {
        let packet = message.to_vec().unwrap();
        let reply = answer(step(&packet, Transport::Udp, 0));
        assert_eq!(reply.metadata.response_code, ResponseCode::Refused, "{message:?}");
        assert!(reply.to_vec().unwrap().len() <= packet.len());
    }
    let mut newer = query("web.", RecordType::A, Some(1232));
    newer.edns.as_mut().unwrap().set_version(1);
    let reply = answer(step(&newer.to_vec().unwrap(), Transport::Udp, 0));
    assert_eq!(reply.metadata.response_code.high(), ResponseCode::BADVERS.high());
    assert!(reply.answers.is_empty());
}

#[test]
fn looped_queries_are_not_forwarded() {
    for (name, code) in [("example.com.", ResponseCode::Refused), ("web.", ResponseCode::NoError)] {
        let packet = query(name, RecordType::A, None).to_vec().unwrap();
        let gateways = names();
        let names = gateways.names_for(ip("10.1.0.1"), ip("10.1.0.2")).unwrap();
        let step = PodQuery { packet: &packet, transport: Transport::Udp, names, forward: false, turn: 0 }.decide();
        assert_eq!(answer(step).metadata.response_code, code);
    }
}

#[test]
fn malformed_queries_are_dropped_or_rejected() {
    let good = query("web.", RecordType::A, None).to_vec().unwrap();
    let with = |at: usize, byte: u8| {
        let mut packet = good.clone();
        packet[at] = byte;
        packet
    };
    let long = [good.clone(), vec![0; MAX_QUERY]].concat();
    for packet in [&good[..0], &good[..11], &with(2, 0x81), &long] {
        assert!(matches!(step(packet, Transport::Udp, 0), QueryAction::Drop), "{packet:?}");
    }
    let format = ResponseCode::FormErr;
    for (packet, code) in [
        // No question, two, 65535; an answer, an authority, many additional records; a question that is cut; a pointer
        // to itself.
        (with(5, 0), format),
        (with(5, 2), format),
        (with(4, 0xff), format),
        (with(7, 1), format),
        (with(9, 1), format),
        (with(10, 0xff), format),
        (good[..good.len() - 1].to_vec(), format),
        ([&good[..HEADER], &[0xc0, 0x0c, 0, 1, 0, 1]].concat(), format),
        // Status, notify, update.
        (with(2, 0x11), ResponseCode::NotImp),
        (with(2, 0x21), ResponseCode::NotImp),
        (with(2, 0x29), ResponseCode::NotImp),
    ] {
        let QueryAction::Reply(reply) = step(&packet, Transport::Udp, 0) else { panic!("{packet:?}") };
        assert_eq!((reply.len(), reply[3]), (HEADER, code.low()), "{packet:?}");
        assert_eq!((&reply[..2], reply[2] & 0x80), (&packet[..2], 0x80));
        assert_eq!(reply[2] & 0x78, packet[2] & 0x78, "the operation that was asked for");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_packets_never_panic(packet in prop::collection::vec(any::<u8>(), 0..1400), tcp: bool) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        check(&packet, transport);
    }

    #[test]
    fn mutated_queries_never_panic(
        label in "[a-zA-Z0-9_.-]{0,40}",
        kind: u16,
        payload in prop::option::of(any::<u16>()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        more in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let name = Name::from_ascii(format!("{label}.{DOMAIN}.")).unwrap_or_else(|_| Name::root());
        let mut packet = query(&name.to_string(), RecordType::from(kind), payload).to_vec().unwrap();
        for (at, byte) in changes {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        packet.truncate(cut.index(packet.len() * 4));
        packet.extend(more);
        check(&packet, Transport::Udp);
    }
}

/// A reply to any input is a reply to that input, and over UDP not much longer apart from records of pods.
fn check(packet: &[u8], transport: Transport) {
    match step(packet, transport, 1) {
        QueryAction::Drop => {}
        QueryAction::Reply(reply) => {
            assert_eq!((&reply[..2], reply[2] & 0x80), (&packet[..2], 0x80));
            assert!(reply.len() <= 512 || transport == Transport::Tcp, "{packet:?}");
            assert!(Message::from_vec(&reply).is_ok(), "{packet:?}");
        }
        QueryAction::Forward(forward) => {
            assert!(forward.question <= forward.packet.len());
            assert!(Message::from_vec(&forward.packet).is_ok(), "{packet:?}");
        }
    }
}
