//! Reading files that others wrote: regular files only, up to a limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Reads a whole file of at most `limit` bytes. A FIFO or a device in its place does not block and is an error.
///
/// # Errors
/// The error of open(2) or read(2); [`io::ErrorKind::InvalidData`] if it is not a regular file;
/// [`io::ErrorKind::FileTooLarge`] if it is longer.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a regular file"));
    }
    read_stream(file, limit)
}

/// Reads a stream to its end, at most `limit` bytes.
///
/// # Errors
/// The error of the stream; [`io::ErrorKind::FileTooLarge`] if it is longer.
pub fn read_stream(stream: impl io::Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_up_to_the_limit() {
        assert_eq!(read_stream(&b"abc"[..], 3).unwrap(), b"abc");
        assert_eq!(read_stream(&b"abcd"[..], 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_bounded(Path::new("/dev/zero"), 3).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_bounded(Path::new("/nonexistent"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
