//! A message that is encoded already. An event for a thousand listeners is encoded once, a line of a log is copied
//! once, from the file's block into the message, and a long list is encoded outside the threads that serve the
//! connections.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// The bytes of a message. They must be of the type that the method returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

impl Encoded {
    /// Encodes a message.
    #[must_use]
    pub fn from_message(message: &impl Message) -> Self {
        Self(message.encode_to_vec().into())
    }
}

impl Message for Encoded {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        // A server never reads its own answers; a field is skipped as an unknown one would be.
        prost::encoding::skip_field(wire_type, tag, buf, ctx)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0 = Bytes::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rkt::v1alpha::GetLogsResponse;

    #[test]
    fn encoded_messages_are_passed_through() {
        let message = GetLogsResponse { lines: vec!["a".into(), "ü".into()] };
        let encoded = Encoded(message.encode_to_vec().into());
        assert_eq!(encoded.encode_to_vec(), message.encode_to_vec());
        assert_eq!(GetLogsResponse::decode(encoded.encode_to_vec().as_slice()), Ok(message));
        assert_eq!(Encoded::decode(&[0x0a, 1, b'x'][..]), Ok(Encoded::default()));
    }
}
