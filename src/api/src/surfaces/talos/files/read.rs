//! Read: the contents of a regular file.

use std::io::Read as _;

use gantry_proto::talos::common::Data;
use rustix::fs::FileType;
use tonic::Status;

use super::access::{FileAccess, open_to_read};
use super::{FileSender, Interrupted, status_of};

/// Bytes of a message.
const CHUNK: usize = 32 << 10;

/// Sends the contents that the file has when it is opened; all that can be read of a file of /proc, whose size is 0.
///
/// # Errors
/// `NOT_FOUND` or `PERMISSION_DENIED` if it cannot be opened, `FAILED_PRECONDITION` if it is no regular file, and the
/// kernel's error if it cannot be read.
pub(in super::super) fn read(access: &FileAccess, path: &str, sender: &FileSender<Data>) -> Result<(), Interrupted> {
    let file = access.open("stat", path)?;
    if FileType::from_raw_mode(file.stat.st_mode) != FileType::RegularFile {
        return Err(Status::failed_precondition("path must be a regular file").into());
    }
    let failed = |errno| status_of("read", path, errno);
    let contents = open_to_read(&file.handle, &file.stat).map_err(|errno| status_of("open", path, errno))?;
    let limit = u64::try_from(file.stat.st_size).ok().filter(|size| *size > 0).unwrap_or(u64::MAX);
    let mut contents = contents.take(limit);
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        sender.check()?;
        let room = (CHUNK - chunk.len()) as u64;
        let count = match contents.by_ref().take(room).read_to_end(&mut chunk) {
            Ok(count) => count,
            // A file that has no more data now, and would block.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            Err(error) => {
                return Err(failed(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)).into());
            }
        };
        let end = if count == 0 { chunk.len() } else { whole_characters(&chunk) };
        if end > 0 {
            let rest = chunk.split_off(end);
            sender.send(Data { metadata: None, bytes: std::mem::replace(&mut chunk, rest) })?;
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// The length of the beginning that splits no UTF-8 character; all of what is not UTF-8. Some clients decode each
/// message by itself.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_sent_on(bytes: Vec<u8>) {
            let end = whole_characters(&bytes);
            // The rest, which waits for the next bytes, is less than a character.
            prop_assert!(end <= bytes.len() && bytes.len() - end < 4);
        }

        #[test]
        fn pieces_of_text_are_text(text: String, at: prop::sample::Index) {
            let piece = &text.as_bytes()[..at.index(text.len() + 1)];
            prop_assert!(std::str::from_utf8(&piece[..whole_characters(piece)]).is_ok());
        }
    }

    #[test]
    fn characters_stay_whole() {
        let text = "aü€".as_bytes();
        assert_eq!((whole_characters(text), whole_characters(&text[..5]), whole_characters(&text[..2])), (6, 3, 1));
        assert_eq!(whole_characters(b"a\xff\xfe"), 3);
    }
}
