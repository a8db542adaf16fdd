//! A message that is encoded already: what a thousand listeners get is encoded once, and a line of a log is copied
//! once, from the file's block into the message.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType};
use prost::{DecodeError, Message};

/// The bytes of some message. Whoever makes one answers for its being of the type that the method returns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoded(pub Bytes);

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
