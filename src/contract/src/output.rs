//! The live output of a pod's apps, sent to a foreground as frames through a pipe.
//!
//! The engine creates the pipe. The supervisor gets the write end at the start (`--output-fd N`) or later (with
//! [`crate::control::Request::Output`]). The supervisor reads no more from the apps than it can forward, so a slow
//! reader slows the apps down and loses nothing. [`Kind::End`] follows the last byte: without it, the stream was cut.

/// The length of an encoded [`Header`].
pub const HEADER_LEN: usize = 8;

/// The longest payload of a frame.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of an app's standard output or of its terminal.
    Stdout,
    /// Bytes of an app's standard error.
    Stderr,
    /// A notification of an app (sd_notify(3)): its known assignments, one per line. Only apps that notify send it.
    Notification,
    /// No payload: every app has ended and all of its output was forwarded.
    End,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The kind of its payload.
    pub kind: Kind,
    /// The app: its place in the plan, or the number of an app that was added later ([`crate::control::AppStatus`]).
    pub app: u16,
    /// The length of the payload.
    pub len: u32,
}

impl Header {
    /// The encoded header.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_LEN] {
        let kind = match self.kind {
            Kind::Stdout => 1,
            Kind::Stderr => 2,
            Kind::End => 3,
            Kind::Notification => 4,
        };
        let ([a, b], [c, d, e, f]) = (self.app.to_le_bytes(), self.len.to_le_bytes());
        [kind, 0, a, b, c, d, e, f]
    }

    /// The decoded header; `None` if the bytes are not a header.
    #[must_use]
    pub fn decode(bytes: [u8; HEADER_LEN]) -> Option<Self> {
        let [kind, 0, a, b, c, d, e, f] = bytes else { return None };
        let kind = match kind {
            1 => Kind::Stdout,
            2 => Kind::Stderr,
            3 => Kind::End,
            4 => Kind::Notification,
            _ => return None,
        };
        let (app, len) = (u16::from_le_bytes([a, b]), u32::from_le_bytes([c, d, e, f]));
        let fits = usize::try_from(len).is_ok_and(|len| len <= MAX_PAYLOAD);
        fits.then_some(Self { kind, app, len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn headers_round_trip(kind in 0..4usize, app: u16, len in 0..=MAX_PAYLOAD) {
            let header = Header { kind: [Kind::Stdout, Kind::Stderr, Kind::End, Kind::Notification][kind], app, len: len as u32 };
            proptest::prop_assert_eq!(Header::decode(header.encode()), Some(header));
        }

        #[test]
        fn invalid_headers_are_rejected(bytes: [u8; HEADER_LEN]) {
            if let Some(header) = Header::decode(bytes) {
                proptest::prop_assert_eq!(header.encode(), bytes);
                proptest::prop_assert!(header.len as usize <= MAX_PAYLOAD);
            }
        }
    }
}
