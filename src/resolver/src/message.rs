//! Handling of one query: a pure function of its bytes and the known names (RFC 1035, RFC 6891, RFC 9619).
//!
//! Replies about pods are authoritative with a short [`TTL`]. Negative replies have no SOA record, so they are not
//! cached (RFC 2308 section 5).

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::names::{ClientNames, DOMAIN, NameLookup};

/// Maximum length of a query in bytes.
pub(crate) const MAX_QUERY: usize = 1232;
/// Maximum length of a datagram sent (DNS flag day 2020: it fits the MTU of every common link).
pub(crate) const MAX_DATAGRAM: usize = 1232;
/// The length of a datagram that every client accepts (RFC 1035 section 4.2.1).
const MIN_DATAGRAM: usize = 512;
/// Maximum length of a message over TCP.
pub(crate) const MAX_MESSAGE: usize = u16::MAX as usize;
/// The length of a message's header in bytes.
pub(crate) const HEADER: usize = 12;
/// Maximum number of additional records of a query, which may have OPT, TSIG and SIG(0).
const MAX_ADDITIONAL: u16 = 4;
/// Time to live of records about pods, in seconds.
const TTL: u32 = 3;

/// The transport of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// UDP.
    Udp,
    /// TCP.
    Tcp,
}

/// How to handle a query.
#[derive(Debug)]
pub(crate) enum QueryAction {
    /// Ignore it: it is no query, or a reply to it could start a loop.
    Drop,
    /// Send this reply.
    Reply(Vec<u8>),
    /// Forward it to the servers of the host.
    Forward(ForwardedQuery),
}

/// A query to be forwarded to the servers of the host.
#[derive(Debug)]
pub(crate) struct ForwardedQuery {
    request: Message,
    /// The same question in a new message, whose ID is still zero.
    pub(crate) packet: Vec<u8>,
    /// The end of the question in `packet`.
    pub(crate) question: usize,
    /// Maximum length of the reply.
    pub(crate) limit: usize,
}

/// A query and its context.
pub(crate) struct PodQuery<'a> {
    /// The message as received.
    pub(crate) packet: &'a [u8],
    /// The transport.
    pub(crate) transport: Transport,
    /// The names for the client.
    pub(crate) names: ClientNames<'a>,
    /// Whether it may be forwarded. Queries from this host may not: one could be our own, looping through a local
    /// server.
    pub(crate) forward: bool,
    /// A counter that rotates the addresses of a reply.
    pub(crate) turn: usize,
}

impl PodQuery<'_> {
    /// Decides how to handle the query.
    pub(crate) fn decide(&self) -> QueryAction {
        let Some(header) = self.packet.first_chunk::<HEADER>() else { return QueryAction::Drop };
        // Replies and oversized messages get no reply.
        if header[2] & 0x80 != 0 || self.packet.len() > MAX_QUERY {
            return QueryAction::Drop;
        }
        let counts = [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        // Checked before parsing: the parser allocates by the announced counts.
        let strange = counts[0] != 1 || counts[1] != 0 || counts[2] != 0 || counts[3] > MAX_ADDITIONAL;
        let opcode = (header[2] >> 3) & 0xf;
        if opcode != 0 {
            return header_only_reply(header, ResponseCode::NotImp);
        }
        if strange {
            return header_only_reply(header, ResponseCode::FormErr);
        }
        match Message::from_vec(self.packet) {
            Ok(request) => self.decide_parsed(request),
            Err(_) => header_only_reply(header, ResponseCode::FormErr),
        }
    }

    fn decide_parsed(&self, request: Message) -> QueryAction {
        let [query] = request.queries.as_slice() else { return QueryAction::Drop };
        let limit = self.limit(&request);
        if request.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return reply_with_code(&request, ResponseCode::BADVERS);
        }
        let kind = query.query_type();
        // ANY and zone transfers serve amplification attacks (RFC 8482 section 4).
        let zone_wide = matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR | RecordType::OPT);
        if query.query_class() != DNSClass::IN || zone_wide {
            return reply_with_code(&request, ResponseCode::Refused);
        }
        match self.names.look_up(query.name()) {
            NameLookup::Pod(addresses) => reply(&request, self.records(query, addresses), ResponseCode::NoError, limit),
            NameLookup::Domain => reply(&request, Vec::new(), ResponseCode::NoError, limit),
            NameLookup::NoSuchPod => reply(&request, Vec::new(), ResponseCode::NXDomain, limit),
            NameLookup::Foreign => match self.pointer(query) {
                Some((records, code)) => reply(&request, records, code, limit),
                None => self.forward(request, limit),
            },
        }
    }

    /// The addresses of the requested type, rotated by one for each query.
    fn records(&self, query: &Query, addresses: &[IpAddr]) -> Vec<Record> {
        let data = addresses.iter().filter_map(|address| match (query.query_type(), address) {
            (RecordType::A, IpAddr::V4(address)) => Some(RData::A(A(*address))),
            (RecordType::AAAA, IpAddr::V6(address)) => Some(RData::AAAA(AAAA(*address))),
            _ => None,
        });
        let mut records: Vec<Record> = data.map(|data| Record::from_rdata(query.name().clone(), TTL, data)).collect();
        if !records.is_empty() {
            let first = self.turn % records.len();
            records.rotate_left(first);
        }
        records
    }

    /// The reply to a query for the name of an address in the client's networks, which no other server knows.
    fn pointer(&self, query: &Query) -> Option<(Vec<Record>, ResponseCode)> {
        let address = arpa_address(query.name())?;
        let Some(label) = self.names.name_of(address) else {
            return self.names.covers(address).then_some((Vec::new(), ResponseCode::NXDomain));
        };
        if query.query_type() != RecordType::PTR {
            return Some((Vec::new(), ResponseCode::NoError));
        }
        let name = Name::from_ascii(format!("{label}.{DOMAIN}.")).ok()?;
        let record = Record::from_rdata(query.name().clone(), TTL, RData::PTR(PTR(name)));
        Some((vec![record], ResponseCode::NoError))
    }

    fn forward(&self, request: Message, limit: usize) -> QueryAction {
        if !self.forward || !request.metadata.recursion_desired {
            return reply_with_code(&request, ResponseCode::Refused);
        }
        let mut asked = Message::new(0, MessageType::Query, OpCode::Query);
        asked.metadata.recursion_desired = true;
        asked.metadata.checking_disabled = request.metadata.checking_disabled;
        asked.metadata.authentic_data = request.metadata.authentic_data;
        asked.add_queries(request.queries.iter().cloned());
        let question = match asked.to_vec() {
            Ok(written) => written.len(),
            Err(_) => return reply_with_code(&request, ResponseCode::FormErr),
        };
        // EDNS options are hop-by-hop; only the payload size is passed on (RFC 6891 section 6.1.1).
        asked.edns = request.edns.as_ref().map(edns);
        match asked.to_vec() {
            Ok(packet) => QueryAction::Forward(ForwardedQuery { request, packet, question, limit }),
            Err(_) => reply_with_code(&request, ResponseCode::FormErr),
        }
    }

    fn limit(&self, request: &Message) -> usize {
        match (self.transport, &request.edns) {
            (Transport::Tcp, _) => MAX_MESSAGE,
            (Transport::Udp, None) => MIN_DATAGRAM,
            (Transport::Udp, Some(edns)) => usize::from(edns.max_payload()).clamp(MIN_DATAGRAM, MAX_DATAGRAM),
        }
    }
}

impl ForwardedQuery {
    /// The ID of the client's query.
    pub(crate) fn id(&self) -> u16 {
        self.request.metadata.id
    }

    /// The reply if no server replies.
    pub(crate) fn failed(&self) -> Option<Vec<u8>> {
        empty_response(&self.request, ResponseCode::ServFail).to_vec().ok()
    }

    /// The reply if the server's does not fit: truncated, so that the client retries over TCP.
    pub(crate) fn truncated(&self) -> Option<Vec<u8>> {
        let mut message = empty_response(&self.request, ResponseCode::NoError);
        message.metadata.truncation = true;
        message.to_vec().ok()
    }
}

/// The address in a reverse name, if the name is complete (RFC 1035 section 3.5, RFC 3596 section 2.5).
fn arpa_address(name: &Name) -> Option<IpAddr> {
    let net = name.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// A reply without records, with gantry's EDNS parameters (RFC 6891 section 6.1.1).
fn empty_response(request: &Message, code: ResponseCode) -> Message {
    let mut message = Message::response(request.metadata.id, OpCode::Query);
    message.metadata = Metadata::response_from_request(&request.metadata);
    message.metadata.recursion_available = true;
    message.metadata.response_code = code;
    message.add_queries(request.queries.iter().cloned());
    message.edns = request.edns.as_ref().map(edns);
    message
}

fn edns(theirs: &Edns) -> Edns {
    let mut ours = Edns::new();
    ours.set_max_payload(MAX_DATAGRAM as u16).set_version(0).set_dnssec_ok(theirs.flags().dnssec_ok);
    ours
}

fn reply_with_code(request: &Message, code: ResponseCode) -> QueryAction {
    empty_response(request, code).to_vec().map_or(QueryAction::Drop, QueryAction::Reply)
}

/// An authoritative reply with as many records as fit, marked as truncated if not all do.
fn reply(request: &Message, records: Vec<Record>, code: ResponseCode, limit: usize) -> QueryAction {
    let mut message = empty_response(request, code);
    message.metadata.authoritative = true;
    message.answers = records;
    loop {
        match message.to_vec() {
            Ok(written) if written.len() <= limit => return QueryAction::Reply(written),
            Ok(_) if !message.answers.is_empty() => {
                message.metadata.truncation = true;
                // Halved, so that long replies stay cheap under a flood of queries.
                message.answers.truncate(message.answers.len() / 2);
            }
            _ => return QueryAction::Drop,
        }
    }
}

/// The reply to a message that cannot be parsed: a header alone, so that it is never longer than the message.
fn header_only_reply(header: &[u8; HEADER], code: ResponseCode) -> QueryAction {
    let mut reply = [0; HEADER];
    reply[..2].copy_from_slice(&header[..2]);
    // QR is set; the opcode and RD are copied.
    reply[2] = 0x80 | (header[2] & 0x79);
    reply[3] = code.low();
    QueryAction::Reply(reply.to_vec())
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
