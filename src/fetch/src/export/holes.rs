//! The holes of a file, as an exported layer has them.
//!
//! They are runs of zeros of 1 MiB and more, whether the file system stores them or not: file systems differ in the
//! holes that they report, and the same files must give the same archive on each. `SEEK_DATA` only saves reading.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::zeros::is_zero;

/// Holes begin and end at multiples of this, or at the end of the file.
const BLOCK: u64 = 4096;
/// Minimum length of a hole. Shorter runs of zeros are data, as readers without sparse files expect.
const MIN_HOLE: u64 = 1 << 20;
/// Maximum number of holes; readers limit the length of a file's map. The holes of larger files are longer, therefore.
const MAX_HOLES: u64 = 16 << 10;

/// Offsets and lengths of the data between the holes, the whole file if it has none. A hole at the end is marked by an
/// empty span there, as GNU tar does.
pub(super) fn data_spans(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let least = MIN_HOLE.max(size.div_ceil(MAX_HOLES).next_multiple_of(BLOCK));
    let mut blocks = Blocks { file, size, buffer: vec![0; 256 << 10] };
    let (mut spans, mut data) = (Vec::new(), 0);
    // Every run of this length has a whole block at a multiple of the length.
    let mut at = 0;
    while size >= least && at < size {
        let end = if blocks.is_zero(at)? { blocks.zeros_end(at)? } else { at };
        let mut start = at;
        while end > at && start > data && blocks.is_zero(start - BLOCK)? {
            start -= BLOCK;
        }
        if end - start >= least {
            spans.extend((start > data).then(|| (data, start - data)));
            data = end;
        }
        at = end.max(at + 1).next_multiple_of(least);
    }
    spans.push((data, size - data));
    Ok(spans)
}

struct Blocks<'f> {
    file: &'f File,
    size: u64,
    buffer: Vec<u8>,
}

impl Blocks<'_> {
    /// Whether the block at an offset has only zeros.
    fn is_zero(&mut self, at: u64) -> io::Result<bool> {
        let length = usize::try_from((self.size - at).min(BLOCK)).unwrap_or(0);
        let block = &mut self.buffer[..length];
        self.file.read_exact_at(block, at)?;
        Ok(is_zero(block))
    }

    /// The end of the run of blocks of zeros at an offset.
    fn zeros_end(&mut self, mut at: u64) -> io::Result<u64> {
        while at < self.size {
            at = match rustix::fs::seek(self.file, SeekFrom::Data(at)) {
                Err(Errno::NXIO) => return Ok(self.size),
                Ok(data) => at.max(data - data % BLOCK).min(self.size),
                // Without holes, everything is read.
                Err(_) => at,
            };
            let length = usize::try_from(self.size - at).unwrap_or(usize::MAX).min(self.buffer.len());
            let bytes = &mut self.buffer[..length];
            self.file.read_exact_at(bytes, at)?;
            let blocks = bytes.chunks(usize::try_from(BLOCK).unwrap_or(1));
            let zeros: usize = blocks.take_while(|block| is_zero(block)).map(<[u8]>::len).sum();
            at += zeros as u64;
            if zeros < length {
                break;
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn holes_follow_from_the_contents() {
        type Case<'c> = (u64, &'c [(u64, u64)], &'c [(u64, u64)]);
        // The length, what is not zero, and the spans.
        let cases: [Case<'_>; 9] = [
            (0, &[], &[(0, 0)]),
            (MIB - 1, &[], &[(0, MIB - 1)]),
            (MIB, &[], &[(MIB, 0)]),
            (3 * MIB + 5, &[], &[(3 * MIB + 5, 0)]),
            (4 * MIB, &[(0, 1)], &[(0, 4096), (4 * MIB, 0)]),
            (4 * MIB + 5, &[(4 * MIB + 4, 1)], &[(4 * MIB, 5)]),
            (2 * MIB, &[(0, 1), (MIB - 1, 1), (2 * MIB - 1, 1)], &[(0, 2 * MIB)]),
            (2 * MIB, &[(5000, 1), (MIB + 8192, 1)], &[(0, 8192), (MIB + 8192, MIB - 8192)]),
            (5 * MIB, &[(MIB / 2, MIB), (3 * MIB, 9)], &[(0, 3 * MIB / 2), (3 * MIB, 4096), (5 * MIB, 0)]),
        ];
        for (size, ones, want) in cases {
            let (sparse, dense) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            sparse.set_len(size).unwrap();
            dense.write_all_at(&vec![0; usize::try_from(size).unwrap()], 0).unwrap();
            for file in [&sparse, &dense] {
                for &(at, length) in ones {
                    file.write_all_at(&vec![1; usize::try_from(length).unwrap()], at).unwrap();
                }
                assert_eq!(data_spans(file, size).unwrap(), want, "{size} {ones:?}");
            }
        }
    }

    #[test]
    fn large_files_have_few_holes() {
        let (file, size) = (tempfile::tempfile().unwrap(), 64 << 30);
        file.set_len(size).unwrap();
        for at in (0..size).step_by(2 << 20).take(100) {
            file.write_all_at(b"x", at).unwrap();
        }
        let end = (99 << 21) + 4096;
        assert_eq!(data_spans(&file, size).unwrap(), [(0, end), (size, 0)], "its holes are 4 MiB at least");
    }
}
