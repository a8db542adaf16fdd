//! Requests of hostile clients: any bytes are decoded, and any message is read or refused.

use std::path::Path;

use gantry_model::Timestamp;
use gantry_proto::talos::machine::{
    DiskUsageRequest, EventsRequest, ImagePullRequest, ListRequest, LogsRequest, RestartRequest,
};
use gantry_proto::talos::resource::WatchRequest;
use proptest::collection::vec;
use proptest::prelude::*;
use prost::Message;

use super::events::EventSelection;
use super::files::{FileAccess, FileScope, ListSelection, UsageSelection};
use super::images::PullReference;
use super::logs::LogSelection;
use super::names::Namespace;
use super::resources::WatchSelection;

/// Reads the message as each request that has a parser.
fn read_as_every_request(bytes: &[u8]) {
    let access = || FileAccess::new(Path::new("/nonexistent"), FileScope::PodLogs);
    let _read_or_refused = (
        LogsRequest::decode(bytes).map(|request| LogSelection::parse(request, Timestamp(0)).is_ok()),
        EventsRequest::decode(bytes).map(|request| EventSelection::parse(request).is_ok()),
        ListRequest::decode(bytes).map(|request| ListSelection::parse(access(), request).is_ok()),
        DiskUsageRequest::decode(bytes).map(|request| UsageSelection::parse(access(), request).is_ok()),
        WatchRequest::decode(bytes).map(|request| WatchSelection::parse(request).is_ok()),
        ImagePullRequest::decode(bytes).map(|request| PullReference::parse(&request).is_ok()),
        RestartRequest::decode(bytes).map(|request| Namespace::parse(&request.namespace, request.driver).is_ok()),
    );
}

/// A field of a message: its number, and a value of a wire type.
fn field() -> impl Strategy<Value = Vec<u8>> {
    let texts = prop_oneof![
        "[a-z0-9.:/-]{0,30}",
        any::<String>(),
        Just("taloscontainers".to_owned()),
        Just("k8s.io".to_owned()),
        Just("9m4e2mr0ui3e8a215n4g".to_owned()),
    ];
    let length_delimited = (1..8u8, texts).prop_map(|(number, text)| {
        let mut bytes = vec![number << 3 | 2];
        prost::encoding::encode_varint(text.len() as u64, &mut bytes);
        bytes.extend_from_slice(text.as_bytes());
        bytes
    });
    let integer = (1..8u8, any::<u64>()).prop_map(|(number, value)| {
        let mut bytes = vec![number << 3];
        prost::encoding::encode_varint(value, &mut bytes);
        bytes
    });
    prop_oneof![length_delimited, integer]
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        read_as_every_request(&bytes);
    }

    #[test]
    fn any_fields_are_read_or_refused(fields in vec(field(), 0..6)) {
        read_as_every_request(&fields.concat());
    }
}
