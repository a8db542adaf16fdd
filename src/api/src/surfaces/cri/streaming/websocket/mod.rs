//! WebSocket (RFC 6455) on the server's side: the handshake's key, and messages of any size in constant memory.

mod frames;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(super) use self::frames::{
    CLOSE_NORMAL, CLOSE_PROTOCOL_ERROR, CLOSE_TOO_BIG, MessageReader, Opcode, WebSocketEvent, encode_close,
    encode_frame,
};

/// The GUID of RFC 6455, 1.3.
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// `Sec-WebSocket-Accept` for a `Sec-WebSocket-Key`.
pub(super) fn accept_key(key: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    STANDARD.encode(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 6455, 1.3.
    #[test]
    fn keys_are_accepted() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
