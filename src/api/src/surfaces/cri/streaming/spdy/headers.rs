//! Header blocks: name/value pairs in one zlib stream for the life of a connection (SPDY Protocol, 2.6.10).

use flate2::{Decompress, FlushDecompress, Status};
use thiserror::Error;

use super::dictionary::DICTIONARY;

/// Maximum bytes of a header block after decompression.
const MAX_BLOCK: usize = 16 << 10;
/// Maximum pairs in a block.
const MAX_PAIRS: u32 = 64;

/// The headers of a stream. Names are lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Headers(Vec<(String, String)>);

impl Headers {
    /// The value of a header.
    pub(in super::super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A header block is invalid. The connection cannot continue: later blocks depend on this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(in super::super) enum HeaderError {
    /// It is not compressed correctly.
    #[error("a header block is not compressed correctly")]
    Compression,
    /// It is too large.
    #[error("a header block has more than {MAX_BLOCK} bytes or {MAX_PAIRS} headers")]
    TooLarge,
    /// Its lengths are wrong, or a text is not UTF-8.
    #[error("a header block is malformed")]
    Malformed,
}

/// Decompresses the header blocks of a connection.
#[derive(Debug)]
pub(super) struct HeaderReader {
    inflate: Decompress,
}

impl HeaderReader {
    /// For a new connection.
    pub(super) fn new() -> Self {
        Self { inflate: Decompress::new(true) }
    }

    /// Reads the next block.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        let plain = self.decompress(block)?;
        parse(&plain)
    }

    fn decompress(&mut self, mut block: &[u8]) -> Result<Vec<u8>, HeaderError> {
        let mut plain = vec![0; MAX_BLOCK + 1];
        let mut length = 0;
        loop {
            let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
            let result = self.inflate.decompress(block, &mut plain[length..], FlushDecompress::Sync);
            let consumed = usize::try_from(self.inflate.total_in() - read).unwrap_or(usize::MAX);
            block = block.get(consumed..).ok_or(HeaderError::Compression)?;
            length += usize::try_from(self.inflate.total_out() - written).unwrap_or(usize::MAX);
            match result {
                Err(error) if error.needs_dictionary().is_some() => {
                    self.inflate.set_dictionary(&DICTIONARY).map_err(|_| HeaderError::Compression)?;
                }
                Err(_) => return Err(HeaderError::Compression),
                Ok(_) if length > MAX_BLOCK => return Err(HeaderError::TooLarge),
                Ok(_) if block.is_empty() => {
                    plain.truncate(length);
                    return Ok(plain);
                }
                // The stream may not end before its connection, and it must make progress.
                Ok(Status::StreamEnd | Status::BufError) => return Err(HeaderError::Compression),
                Ok(Status::Ok) => {}
            }
        }
    }
}

fn parse(mut block: &[u8]) -> Result<Headers, HeaderError> {
    let count = number(&mut block)?;
    if count > MAX_PAIRS {
        return Err(HeaderError::TooLarge);
    }
    let mut headers = Vec::new();
    for _ in 0..count {
        let name = text(&mut block)?.to_ascii_lowercase();
        headers.push((name, text(&mut block)?));
    }
    if block.is_empty() { Ok(Headers(headers)) } else { Err(HeaderError::Malformed) }
}

fn number(block: &mut &[u8]) -> Result<u32, HeaderError> {
    let (bytes, rest) = block.split_first_chunk().ok_or(HeaderError::Malformed)?;
    *block = rest;
    Ok(u32::from_be_bytes(*bytes))
}

fn text(block: &mut &[u8]) -> Result<String, HeaderError> {
    let length = usize::try_from(number(block)?).map_err(|_| HeaderError::Malformed)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(HeaderError::Malformed)?;
    *block = rest;
    String::from_utf8(bytes.to_vec()).map_err(|_| HeaderError::Malformed)
}

#[cfg(test)]
pub(super) mod tests {
    use flate2::{Compress, Compression, FlushCompress};

    use super::*;

    /// Compresses header blocks as clients do.
    pub(in super::super) struct HeaderWriter(Compress);

    impl HeaderWriter {
        pub(in super::super) fn new() -> Self {
            let mut deflate = Compress::new(Compression::default(), true);
            deflate.set_dictionary(&DICTIONARY).unwrap();
            Self(deflate)
        }

        pub(in super::super) fn compress(&mut self, plain: &[u8]) -> Vec<u8> {
            let mut out = Vec::with_capacity(plain.len() + 1024);
            self.0.compress_vec(plain, &mut out, FlushCompress::Sync).unwrap();
            out
        }

        pub(in super::super) fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
            let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
            for text in headers.iter().flat_map(|(name, value)| [name, value]) {
                plain.extend((text.len() as u32).to_be_bytes());
                plain.extend(text.as_bytes());
            }
            self.compress(&plain)
        }
    }

    #[test]
    fn blocks_of_a_connection_share_one_stream() {
        let (mut writer, mut reader) = (HeaderWriter::new(), HeaderReader::new());
        for (name, value) in [("streamtype", "error"), ("Port", "80"), ("requestid", "")] {
            let headers = reader.read(&writer.block(&[(name, value), ("host", "x")])).unwrap();
            assert_eq!((headers.get(&name.to_lowercase()), headers.get("host")), (Some(value), Some("x")));
        }
        assert_eq!(reader.read(&writer.block(&[])).unwrap(), Headers::default());
    }

    #[test]
    fn large_blocks_are_refused() {
        let read = |plain: &[u8]| HeaderReader::new().read(&HeaderWriter::new().compress(plain));
        assert_eq!(read(&vec![0; 64 << 20]), Err(HeaderError::TooLarge));
        assert_eq!(read(&(MAX_PAIRS + 1).to_be_bytes()), Err(HeaderError::TooLarge));
        assert_eq!(read(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, b'a']), Err(HeaderError::Malformed));
        assert_eq!(read(&[0, 0, 0, 0, 0]), Err(HeaderError::Malformed));
        assert_eq!(read(b""), Err(HeaderError::Malformed));
        assert_eq!(HeaderReader::new().read(b"no zlib"), Err(HeaderError::Compression));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_blocks_never_panic(plain: Vec<u8>, raw: Vec<u8>) {
            let _parsed = HeaderReader::new().read(&HeaderWriter::new().compress(&plain));
            let _inflated = HeaderReader::new().read(&raw);
        }
    }
}
