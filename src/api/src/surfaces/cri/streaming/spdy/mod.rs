//! SPDY/3.1 as clients of Kubernetes speak it (moby/spdystream): streams without flow control. The server sends no
//! headers, so its header blocks are empty.

mod dictionary;
mod frames;
mod headers;
mod session;

pub(super) use self::frames::{RST_CANCEL, RST_REFUSED, encode_data, encode_goaway, encode_rst_stream};
pub(super) use self::session::{SpdyError, SpdyEvent, SpdyReader};
