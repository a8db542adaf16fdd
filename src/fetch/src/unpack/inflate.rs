//! Decompression: gzip (RFC 1952), zstd (RFC 8878) or none, as the media type says or the first bytes show.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;

use super::error::UnpackError;
use crate::caps::Caps;

/// Maximum zstd window (2^27 bytes, 128 MiB): the format recommends that decoders support 8 MiB, and `--ultra -22` uses
/// 2^27. More would let a small stream allocate gigabytes.
const MAX_WINDOW_LOG: u32 = 27;
/// Bytes requested from the source at once.
const READ_AHEAD: usize = 256 << 10;

/// The compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Detected by the first bytes.
    #[default]
    Auto,
    /// gzip, of one or more members; only zeros may follow the last one.
    Gzip,
    /// zstd, of one or more frames.
    Zstd,
    /// Not compressed.
    Plain,
}

/// Records whether the source failed.
struct Watched<R> {
    inner: R,
    has_failed: Rc<Cell<bool>>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).inspect_err(|error| self.has_failed.set(error.kind() != io::ErrorKind::Interrupted))
    }
}

type Input<R> = BufReader<Chain<Cursor<Vec<u8>>, Watched<R>>>;

enum Decoder<R: Read> {
    Plain(Input<R>),
    Gzip(Box<Members<Input<R>>>),
    Zstd(Box<zstd::stream::read::Decoder<'static, Input<R>>>),
}

/// A decompressed stream that enforces the limits of [`Caps`].
pub(crate) struct Inflater<R: Read> {
    decoder: Decoder<R>,
    source_has_failed: Rc<Cell<bool>>,
    most: u64,
    out: u64,
}

impl<R: Read> Inflater<R> {
    pub(crate) fn new(source: R, media: Compression, caps: &Caps) -> Result<Self, UnpackError> {
        let source_has_failed = Rc::new(Cell::new(false));
        let mut source = Watched { inner: source, has_failed: Rc::clone(&source_has_failed) };
        let mut head = Vec::new();
        (&mut source).take(4).read_to_end(&mut head).map_err(UnpackError::Read)?;
        let media = if media == Compression::Auto { detected(&head) } else { media };
        let input = BufReader::with_capacity(READ_AHEAD, Cursor::new(head).chain(source));
        let decoder = match media {
            Compression::Gzip => Decoder::Gzip(Box::new(Members { member: Some(GzDecoder::new(input)) })),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input).map_err(UnpackError::Read)?;
                decoder.window_log_max(MAX_WINDOW_LOG).map_err(UnpackError::Read)?;
                Decoder::Zstd(Box::new(decoder))
            }
            Compression::Plain | Compression::Auto => Decoder::Plain(input),
        };
        Ok(Self { decoder, source_has_failed, most: caps.max_layer_bytes, out: 0 })
    }

    /// Fills `buffer` as far as the stream goes; a shorter result means the end.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, UnpackError> {
        let mut have = 0;
        while have < buffer.len() {
            match self.step(&mut buffer[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if self.source_has_failed.get() => return Err(UnpackError::Read(error)),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(UnpackError::Truncated { at: "in its compressed data" });
                }
                Err(error) => return Err(UnpackError::Corrupt { why: error.to_string() }),
            }
        }
        self.out += have as u64;
        if self.out > self.most {
            return Err(UnpackError::TooMuch { what: "bytes after decompression", most: self.most });
        }
        Ok(have)
    }

    fn step(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::Plain(input) => input.read(buffer),
            Decoder::Gzip(members) => members.read(buffer),
            Decoder::Zstd(decoder) => decoder.read(buffer),
        }
    }
}

fn detected(head: &[u8]) -> Compression {
    match head {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        // A frame, or a skippable frame before one.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
        _ => Compression::Plain,
    }
}

/// Why a stream that begins with these bytes is no tar archive. `reader` is the command that reads it from its input.
pub(crate) fn explain_no_archive(head: &[u8], reader: &str) -> String {
    match compressor(head) {
        _ if head.is_empty() => "it is empty".to_owned(),
        Some(by) => format!("it is compressed with {by}: decompress it first: '{by} -dc FILE | {reader}'"),
        None => "it is not a tar archive".to_owned(),
    }
}

/// The program that compressed a stream which begins with these bytes.
fn compressor(head: &[u8]) -> Option<&'static str> {
    match (detected(head), head) {
        (Compression::Gzip, _) => Some("gzip"),
        (Compression::Zstd, _) => Some("zstd"),
        (_, [0xfd, b'7', b'z', b'X', b'Z', 0, ..]) => Some("xz"),
        (_, [b'B', b'Z', b'h', ..]) => Some("bzip2"),
        _ => None,
    }
}

/// The members of a gzip stream. Only zeros may follow the last one.
struct Members<R: BufRead> {
    /// `None` once the stream has ended.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let slot = &mut self.member;
        loop {
            let Some(member) = slot else { return Ok(0) };
            let n = member.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                return Ok(n);
            }
            let more = member.get_mut().fill_buf()?.first().copied();
            match (more, slot.take()) {
                (Some(0x1f), Some(member)) => *slot = Some(GzDecoder::new(member.into_inner())),
                (Some(_), Some(member)) => only_zeros(member.into_inner())?,
                _ => {}
            }
        }
    }
}

fn only_zeros(mut rest: impl BufRead) -> io::Result<()> {
    loop {
        let bytes = rest.fill_buf()?;
        let n = bytes.len();
        if n == 0 {
            return Ok(());
        }
        if bytes.iter().any(|&byte| byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "there is garbage behind the gzip stream"));
        }
        rest.consume(n);
    }
}
