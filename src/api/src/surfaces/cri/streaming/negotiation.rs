//! The protocols of a session: how its connection is upgraded, and what is spoken on it.
//!
//! The client lists its protocols in the order of its preference; the first that the server knows is spoken.

use hyper::HeaderMap;
use hyper::header::{CONNECTION, HeaderName, UPGRADE};

/// The client's protocols over SPDY, and the one that was chosen.
pub(super) static STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The protocols that the server knows, after none of the client's was one of them.
pub(super) static ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The client's protocols over WebSocket, and the one that was chosen.
pub(super) static WEBSOCKET_PROTOCOL: HeaderName = HeaderName::from_static("sec-websocket-protocol");

/// The name of SPDY/3.1 in `Upgrade`.
pub(super) const SPDY: &str = "SPDY/3.1";

/// The protocol that a connection is upgraded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// SPDY/3.1.
    Spdy,
    /// WebSocket.
    WebSocket,
}

impl Upgrade {
    /// The upgrade that a request demands.
    pub(super) fn requested(headers: &HeaderMap) -> Option<Self> {
        if !list(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade")) {
            return None;
        }
        list(headers, &UPGRADE).find_map(|name| match name {
            name if name.eq_ignore_ascii_case(SPDY) => Some(Self::Spdy),
            name if name.eq_ignore_ascii_case("websocket") => Some(Self::WebSocket),
            _ => None,
        })
    }

    /// The header with the client's protocols.
    pub(super) fn protocol_header(self) -> &'static HeaderName {
        match self {
            Self::Spdy => &STREAM_PROTOCOL,
            Self::WebSocket => &WEBSOCKET_PROTOCOL,
        }
    }
}

/// The values of a header that is a list (RFC 9110, 5.6.1). Values that are not text are left out.
pub(super) fn list<'a>(headers: &'a HeaderMap, name: &'a HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|value| !value.is_empty())
}

/// A protocol of remote commands: exec and attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommandProtocol {
    /// Its name.
    pub(super) name: &'static str,
    /// Whether a terminal has a channel for its size.
    pub(super) has_resize: bool,
    /// Whether the error channel carries a Status; otherwise the text of an error.
    pub(super) has_status: bool,
    /// Whether the messages of a WebSocket are text, encoded in base64.
    pub(super) is_base64: bool,
}

const fn protocol(name: &'static str, has_resize: bool, has_status: bool, is_base64: bool) -> CommandProtocol {
    CommandProtocol { name, has_resize, has_status, is_base64 }
}

/// The protocols over SPDY. v5 differs only over WebSocket.
const SPDY_COMMANDS: [CommandProtocol; 4] = [
    protocol("v4.channel.k8s.io", true, true, false),
    protocol("v3.channel.k8s.io", true, false, false),
    protocol("v2.channel.k8s.io", false, false, false),
    protocol("channel.k8s.io", false, false, false),
];

/// The protocols over WebSocket. v5 has a message that closes a channel.
const WEBSOCKET_COMMANDS: [CommandProtocol; 5] = [
    protocol("v5.channel.k8s.io", true, true, false),
    protocol("v4.channel.k8s.io", true, true, false),
    protocol("v4.base64.channel.k8s.io", true, true, true),
    protocol("channel.k8s.io", false, false, false),
    protocol("base64.channel.k8s.io", false, false, true),
];

impl CommandProtocol {
    /// All protocols over this kind of connection.
    pub(super) fn all(upgrade: Upgrade) -> &'static [Self] {
        match upgrade {
            Upgrade::Spdy => &SPDY_COMMANDS,
            Upgrade::WebSocket => &WEBSOCKET_COMMANDS,
        }
    }
}

/// The name of port-forward over this kind of connection. Over WebSocket, SPDY is spoken in its messages.
pub(super) fn forward_protocol(upgrade: Upgrade) -> &'static str {
    match upgrade {
        Upgrade::Spdy => "portforward.k8s.io",
        Upgrade::WebSocket => "SPDY/3.1+portforward.k8s.io",
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&HeaderName, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_static(value))).fold(
            HeaderMap::new(),
            |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            },
        )
    }

    #[test]
    fn upgrades_are_recognized() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "SPDY/3.1", Some(Upgrade::Spdy)),
            ("keep-alive, upgrade", "h2c, WebSocket", Some(Upgrade::WebSocket)),
            ("close", "SPDY/3.1", None),
            ("Upgrade", "SPDY/2", None),
        ] {
            let headers = headers(&[(&CONNECTION, connection), (&UPGRADE, upgrade)]);
            assert_eq!(Upgrade::requested(&headers), expected);
        }
    }

    #[test]
    fn lists_may_be_in_one_header_or_several() {
        let several = headers(&[(&STREAM_PROTOCOL, "v5.channel.k8s.io"), (&STREAM_PROTOCOL, "a, b,,")]);
        assert_eq!(list(&several, &STREAM_PROTOCOL).collect::<Vec<_>>(), ["v5.channel.k8s.io", "a", "b"]);
    }
}
