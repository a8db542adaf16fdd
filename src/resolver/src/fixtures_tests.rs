//! Shared by the tests: pods, and queries as clients send them.

use std::net::IpAddr;

use gantry_model::net::{PodAddress, PodNetwork};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RData, RecordType};

use crate::names::Pod;

pub(crate) const WEB: &str = "11111111-1111-4111-8111-111111111111";
pub(crate) const DB: &str = "22222222-2222-4222-8222-222222222222";

/// An interface in a network: `ADDRESS/LENGTH via GATEWAY`, any number of them.
pub(crate) fn network(name: &str, addresses: &[&str]) -> PodNetwork {
    let address = |text: &&str| {
        let (address, gateway) = text.split_once(" via ").map_or((*text, None), |(a, g)| (a, Some(ip(g))));
        let (address, prefix) = address.split_once('/').unwrap();
        PodAddress { address: ip(address), prefix: prefix.parse().unwrap(), gateway }
    };
    PodNetwork { name: name.into(), addresses: addresses.iter().map(address).collect(), ..PodNetwork::default() }
}

pub(crate) fn pod(id: &str, hostname: &str, apps: &[&str], networks: Vec<PodNetwork>) -> Pod {
    let apps = apps.iter().map(ToString::to_string).collect();
    Pod { id: id.into(), hostname: hostname.into(), apps, networks }
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A query as stub resolvers send it, with EDNS if a payload size is given.
pub(crate) fn query(name: &str, kind: RecordType, payload: Option<u16>) -> Message {
    let mut message = Message::new(0x1234, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    if let Some(payload) = payload {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        message.set_edns(edns);
    }
    message
}

/// The addresses and names in an answer.
pub(crate) fn texts(message: &Message) -> Vec<String> {
    let text = |data: &RData| match data {
        RData::A(address) => address.to_string(),
        RData::AAAA(address) => address.to_string(),
        RData::PTR(name) => name.to_string(),
        other => format!("{other:?}"),
    };
    message.answers.iter().map(|record| text(&record.data)).collect()
}
