//! Random numbers of the kernel.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// Random bytes, at most 256, which getrandom(2) returns in one piece.
///
/// # Errors
/// The kernel refuses, or returned fewer.
pub fn bytes<const LENGTH: usize>() -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if filled == LENGTH { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_differ() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert_eq!(bytes().unwrap(), [0u8; 0]);
    }
}
