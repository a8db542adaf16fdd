//! What is done with one query: a pure function of its bytes and of the names there are (RFC 1035, RFC 6891, RFC 9619).
//!
//! Answers about pods are authoritative and are valid for a moment only ([`TTL`]). That there is no such name, or no such
//! record, is said without a SOA record, so that nobody keeps it (RFC 2308 section 5).

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::names::{DOMAIN, Found, Zone};

/// The biggest query that is looked at, in bytes.
pub(crate) const MOST_QUERY: usize = 1232;
/// The biggest datagram that is sent (DNS flag day 2020: it fits every link of today).
pub(crate) const MOST_DATAGRAM: usize = 1232;
/// What everybody takes (RFC 1035 section 4.2.1).
const LEAST_DATAGRAM: usize = 512;
/// The biggest message over TCP.
pub(crate) const MOST_MESSAGE: usize = u16::MAX as usize;
/// The header of a message, in bytes.
pub(crate) const HEADER: usize = 12;
/// The most additional records of a query: OPT and TSIG or SIG(0) are what there may be.
const MOST_ADDITIONAL: u16 = 4;
/// How long an address of a pod may be kept, in seconds.
const TTL: u32 = 3;

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// In a datagram.
    Udp,
    /// On a connection.
    Tcp,
}

/// What is to be done with a query.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing: it is no query, or an answer to it could begin a ping-pong.
    Drop,
    /// Answer this.
    Reply(Vec<u8>),
    /// Ask the servers of the host.
    Forward(Forward),
}

/// A query for the servers of the host.
#[derive(Debug)]
pub(crate) struct Forward {
    request: Message,
    /// The same question, written anew, with no identity yet.
    pub(crate) packet: Vec<u8>,
    /// The end of the question in it.
    pub(crate) question: usize,
    /// The most bytes of the answer.
    pub(crate) limit: usize,
}

/// A query, and what is to be known of who asks.
pub(crate) struct Asked<'a> {
    /// The message as it came.
    pub(crate) packet: &'a [u8],
    /// How it came.
    pub(crate) transport: Transport,
    /// What is known in the asker's network.
    pub(crate) zone: &'a Zone,
    /// Whether it may be forwarded: not if it comes from this host, for that could be one of our own that came back.
    pub(crate) forward: bool,
    /// Which of several addresses comes first; counts up.
    pub(crate) turn: usize,
}

impl Asked<'_> {
    /// What is to be done with it.
    pub(crate) fn step(&self) -> Step {
        let Some(header) = self.packet.first_chunk::<HEADER>() else { return Step::Drop };
        // An answer is not answered; and more than that a big one cannot be.
        if header[2] & 0x80 != 0 || self.packet.len() > MOST_QUERY {
            return Step::Drop;
        }
        let counts = [4, 6, 8, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        // Before it is parsed, for the parser takes memory for what is announced.
        let strange = counts[0] != 1 || counts[1] != 0 || counts[2] != 0 || counts[3] > MOST_ADDITIONAL;
        let opcode = (header[2] >> 3) & 0xf;
        if opcode != 0 {
            return bare(header, ResponseCode::NotImp);
        }
        if strange {
            return bare(header, ResponseCode::FormErr);
        }
        match Message::from_vec(self.packet) {
            Ok(request) => self.of(request),
            Err(_) => bare(header, ResponseCode::FormErr),
        }
    }

    fn of(&self, request: Message) -> Step {
        let [query] = request.queries.as_slice() else { return Step::Drop };
        let limit = self.limit(&request);
        if request.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return refuse(&request, ResponseCode::BADVERS);
        }
        let kind = query.query_type();
        // ANY, and what is for copying zones, is much work for whoever wants to do harm (RFC 8482 section 4).
        let zone_wide = matches!(kind, RecordType::ANY | RecordType::AXFR | RecordType::IXFR | RecordType::OPT);
        if query.query_class() != DNSClass::IN || zone_wide {
            return refuse(&request, ResponseCode::Refused);
        }
        match self.zone.find(query.name()) {
            Found::Pod(addresses) => reply(&request, self.records(query, addresses), ResponseCode::NoError, limit),
            Found::Domain => reply(&request, Vec::new(), ResponseCode::NoError, limit),
            Found::Missing => reply(&request, Vec::new(), ResponseCode::NXDomain, limit),
            Found::Foreign => match self.pointer(query) {
                Some((records, code)) => reply(&request, records, code, limit),
                None => self.forward(request, limit),
            },
        }
    }

    /// The addresses of a name that are asked for, another one first each time.
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

    /// What is said of a question for the name of an address in the asker's network: nobody else knows these.
    fn pointer(&self, query: &Query) -> Option<(Vec<Record>, ResponseCode)> {
        let address = whole_address(query.name())?;
        let Some(label) = self.zone.name_of(address) else {
            return self.zone.covers(address).then_some((Vec::new(), ResponseCode::NXDomain));
        };
        if query.query_type() != RecordType::PTR {
            return Some((Vec::new(), ResponseCode::NoError));
        }
        let name = Name::from_ascii(format!("{label}.{DOMAIN}.")).ok()?;
        let record = Record::from_rdata(query.name().clone(), TTL, RData::PTR(PTR(name)));
        Some((vec![record], ResponseCode::NoError))
    }

    fn forward(&self, request: Message, limit: usize) -> Step {
        if !self.forward || !request.metadata.recursion_desired {
            return refuse(&request, ResponseCode::Refused);
        }
        let mut asked = Message::new(0, MessageType::Query, OpCode::Query);
        asked.metadata.recursion_desired = true;
        asked.metadata.checking_disabled = request.metadata.checking_disabled;
        asked.metadata.authentic_data = request.metadata.authentic_data;
        asked.add_queries(request.queries.iter().cloned());
        let question = match asked.to_vec() {
            Ok(written) => written.len(),
            Err(_) => return refuse(&request, ResponseCode::FormErr),
        };
        // Options are between two neighbours; only what the answer has to fit is handed on (RFC 6891 section 6.1.1).
        asked.edns = request.edns.as_ref().map(edns);
        match asked.to_vec() {
            Ok(packet) => Step::Forward(Forward { request, packet, question, limit }),
            Err(_) => refuse(&request, ResponseCode::FormErr),
        }
    }

    fn limit(&self, request: &Message) -> usize {
        match (self.transport, &request.edns) {
            (Transport::Tcp, _) => MOST_MESSAGE,
            (Transport::Udp, None) => LEAST_DATAGRAM,
            (Transport::Udp, Some(edns)) => usize::from(edns.max_payload()).clamp(LEAST_DATAGRAM, MOST_DATAGRAM),
        }
    }
}

impl Forward {
    /// The identity of the query that came.
    pub(crate) fn id(&self) -> u16 {
        self.request.metadata.id
    }

    /// The answer when no server has one.
    pub(crate) fn failed(&self) -> Option<Vec<u8>> {
        respond(&self.request, ResponseCode::ServFail).to_vec().ok()
    }

    /// The answer when there is one that does not fit: come again on a connection.
    pub(crate) fn truncated(&self) -> Option<Vec<u8>> {
        let mut message = respond(&self.request, ResponseCode::NoError);
        message.metadata.truncation = true;
        message.to_vec().ok()
    }
}

/// An address, if all of it is in this name (RFC 1035 section 3.5, RFC 3596 section 2.5).
fn whole_address(name: &Name) -> Option<IpAddr> {
    let net = name.parse_arpa_name().ok()?;
    (net.prefix_len() == net.max_prefix_len()).then(|| net.addr())
}

/// An answer with no records: our side of what both can (RFC 6891 section 6.1.1).
fn respond(request: &Message, code: ResponseCode) -> Message {
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
    ours.set_max_payload(MOST_DATAGRAM as u16).set_version(0).set_dnssec_ok(theirs.flags().dnssec_ok);
    ours
}

fn refuse(request: &Message, code: ResponseCode) -> Step {
    respond(request, code).to_vec().map_or(Step::Drop, Step::Reply)
}

/// An answer about a pod, with as many records as fit; the mark of a cut answer where not all do.
fn reply(request: &Message, records: Vec<Record>, code: ResponseCode, limit: usize) -> Step {
    let mut message = respond(request, code);
    message.metadata.authoritative = true;
    message.answers = records;
    loop {
        match message.to_vec() {
            Ok(written) if written.len() <= limit => return Step::Reply(written),
            Ok(_) if !message.answers.is_empty() => {
                message.metadata.truncation = true;
                // By halves: a flood of questions with long answers must not cost much each.
                message.answers.truncate(message.answers.len() / 2);
            }
            _ => return Step::Drop,
        }
    }
}

/// An answer to what could not be parsed: a header alone, so that it is never longer than what came.
fn bare(header: &[u8; HEADER], code: ResponseCode) -> Step {
    let mut reply = [0; HEADER];
    reply[..2].copy_from_slice(&header[..2]);
    // QR, the operation as asked, RD as asked.
    reply[2] = 0x80 | (header[2] & 0x79);
    reply[3] = code.low();
    Step::Reply(reply.to_vec())
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
