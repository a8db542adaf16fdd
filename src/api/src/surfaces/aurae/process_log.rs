//! The lines of a process as messages.

use gantry_engine::LineRef;
use gantry_proto::aurae::observe::LogItem;
use tonic::Status;

use crate::logs::LogEncoder;

/// Maximum bytes of a message's text. A longer line continues in the next message.
const MAX_LINE: usize = 64 << 10;

/// The process of a request.
///
/// # Errors
/// `NOT_FOUND` if the number cannot be that of a process.
pub(super) fn process_id(number: i64) -> Result<u32, Status> {
    u32::try_from(number)
        .ok()
        .filter(|pid| *pid > 0)
        .ok_or_else(|| Status::not_found(format!("process {number} is not the main process of an app")))
}

/// Makes a message of each line of one stream.
#[derive(Debug)]
pub(super) struct ItemEncoder {
    stderr: bool,
    /// The line that is not complete yet.
    line: Vec<u8>,
    channel: String,
    seconds: i64,
    done: Vec<LogItem>,
}

impl ItemEncoder {
    /// For the lines of stderr, or of stdout.
    pub(super) fn new(stderr: bool) -> Self {
        Self { stderr, line: Vec::new(), channel: String::new(), seconds: 0, done: Vec::new() }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.line).into_owned();
        self.line.clear();
        self.done.push(LogItem { channel: self.channel.clone(), line, timestamp: self.seconds });
    }
}

impl LogEncoder for ItemEncoder {
    type Message = LogItem;

    fn add(&mut self, line: LineRef<'_>) {
        if self.channel.is_empty() {
            self.channel = format!("{}::{}", line.app, if self.stderr { "stderr" } else { "stdout" });
        }
        self.seconds = line.at.seconds();
        self.line.extend_from_slice(line.text);
        if !line.piece || self.line.len() >= MAX_LINE {
            self.end_line();
        }
    }

    fn finish(&mut self) {
        if !self.line.is_empty() {
            self.end_line();
        }
    }

    fn take_messages(&mut self) -> Vec<LogItem> {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::{AppName, Timestamp};

    #[test]
    fn pieces_are_joined_to_lines() {
        let app: AppName = "a".parse().unwrap();
        let at = Timestamp(7_000_000_001);
        let line = |text, piece| LineRef { app: &app, at, stderr: true, piece, partial: piece, text };
        let mut encoder = ItemEncoder::new(true);
        encoder.add(line(b"a\xff", true));
        assert_eq!(encoder.take_messages(), []);
        encoder.add(line(b"b", false));
        encoder.add(line(b"", false));
        encoder.add(line(&[b'x'; MAX_LINE], true));
        encoder.add(line(b"end", true));
        encoder.finish();
        let items = encoder.take_messages();
        let texts: Vec<&str> = items.iter().map(|item| item.line.as_str()).collect();
        assert_eq!((texts.len(), texts[0], texts[1], texts[2].len(), texts[3]), (4, "a\u{fffd}b", "", MAX_LINE, "end"));
        assert!(items.iter().all(|item| item.channel == "a::stderr" && item.timestamp == 7));
    }

    #[test]
    fn numbers_that_are_no_process_are_not_found() {
        assert_eq!(process_id(1).unwrap(), 1);
        for number in [0, -1, i64::MIN, 1 << 32] {
            assert_eq!(process_id(number).unwrap_err().code(), tonic::Code::NotFound, "{number}");
        }
    }
}
