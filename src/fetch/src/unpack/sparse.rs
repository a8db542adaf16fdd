//! Sparse files: the offsets of stored bytes in the file (GNU tar manual, "Storing Sparse Files"), and the zeros of
//! other files that become holes. Pure.

use super::error::UnpackError;
use super::pax::decimal;

/// A checked map: spans in order, not overlapping, within the file, holding exactly the stored bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseMap {
    /// Length of the file with its holes.
    pub real_size: u64,
    /// Offset and length of each stored span.
    pub spans: Vec<(u64, u64)>,
}

impl SparseMap {
    /// Checks a map against the file's length and the number of bytes stored.
    pub(crate) fn checked(real_size: u64, spans: Vec<(u64, u64)>, stored: u64) -> Result<Self, UnpackError> {
        let (mut end, mut sum) = (0u64, 0u64);
        for &(offset, length) in &spans {
            let next = offset.checked_add(length).filter(|&next| offset >= end && next <= real_size);
            end = next.ok_or(UnpackError::Format { why: "a sparse map's spans overlap or leave the file" })?;
            // Cannot overflow: spans do not overlap, so the sum is at most the last end.
            sum += length;
        }
        if sum != stored {
            return Err(UnpackError::Format { why: "a sparse map places another number of bytes than are stored" });
        }
        Ok(Self { real_size, spans })
    }
}

/// Zeros become holes in pieces of a file that end at multiples of this. Shorter holes would save little and cost
/// extents.
pub(crate) const HOLE_UNIT: u64 = 64 << 10;

/// The number of zeros with which `bytes`, which are at this offset of a file, begin, in whole pieces between multiples
/// of [`HOLE_UNIT`].
pub(crate) fn leading_zeros(bytes: &[u8], offset: u64) -> usize {
    pieces(bytes, offset).take_while(|piece| is_zero(piece)).map(<[u8]>::len).sum()
}

/// The number of bytes before the first piece of zeros. The first piece has other bytes.
pub(crate) fn data_length(bytes: &[u8], offset: u64) -> usize {
    pieces(bytes, offset).take_while(|piece| !is_zero(piece)).map(<[u8]>::len).sum()
}

fn pieces(bytes: &[u8], offset: u64) -> impl Iterator<Item = &[u8]> {
    let [first, unit] = [HOLE_UNIT - offset % HOLE_UNIT, HOLE_UNIT].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let (first, rest) = bytes.split_at(first.min(bytes.len()));
    std::iter::once(first).chain(rest.chunks(unit)).filter(|piece| !piece.is_empty())
}

/// Most pieces of ordinary files differ from zeros in their first word.
fn is_zero(piece: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    piece.chunks(ZEROS.len()).all(|block| *block == ZEROS[..block.len()])
}

/// Refuses a map of more than `most` spans.
pub(crate) fn check_count(count: usize, most: usize) -> Result<(), UnpackError> {
    if count > most {
        return Err(UnpackError::TooMuch { what: "spans in a sparse file", most: most as u64 });
    }
    Ok(())
}

/// Offsets and lengths in turn, as pairs.
pub(crate) fn pairs(numbers: &[u64]) -> Result<Vec<(u64, u64)>, UnpackError> {
    if !numbers.len().is_multiple_of(2) {
        return Err(UnpackError::Format { why: "a sparse map has an offset without a length" });
    }
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

/// The map of format 1.0: a count, then that many offsets and lengths, one decimal number a line.
pub(crate) struct Lines {
    most: usize,
    want: Option<usize>,
    numbers: Vec<u64>,
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, want: None, numbers: Vec::new(), partial: Vec::new() }
    }

    /// Reads one block; returns the numbers once all are read (the rest of that block is padding).
    pub(crate) fn push(&mut self, block: &[u8]) -> Result<Option<Vec<u64>>, UnpackError> {
        for &byte in block {
            if byte != b'\n' {
                if self.partial.len() >= 20 {
                    return Err(UnpackError::Format { why: "a sparse map's line is no number" });
                }
                self.partial.push(byte);
                continue;
            }
            let number =
                decimal(&self.partial).ok_or(UnpackError::Format { why: "a sparse map's line is no number" })?;
            self.partial.clear();
            match self.want {
                None => {
                    let count = usize::try_from(number).unwrap_or(usize::MAX);
                    check_count(count, self.most)?;
                    self.want = Some(count * 2);
                }
                Some(_) => self.numbers.push(number),
            }
            if self.want == Some(self.numbers.len()) {
                return Ok(Some(std::mem::take(&mut self.numbers)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sparse_maps_are_validated() {
        type Case<'c> = (u64, &'c [(u64, u64)], u64, bool);
        let cases: [Case<'_>; 8] = [
            (100, &[(0, 10), (50, 10)], 20, true),
            (100, &[(100, 0)], 0, true),
            (100, &[(0, 10), (5, 10)], 20, false),
            (100, &[(95, 10)], 10, false),
            (100, &[(50, 1), (0, 1)], 2, false),
            (100, &[(0, 10)], 11, false),
            (u64::MAX, &[(u64::MAX, 1)], 1, false),
            (100, &[], 0, true),
        ];
        for (real, spans, stored, ok) in cases {
            assert_eq!(SparseMap::checked(real, spans.to_vec(), stored).is_ok(), ok, "{spans:?}");
        }
    }

    #[test]
    fn runs_of_zeros_are_found() {
        let unit = usize::try_from(HOLE_UNIT).unwrap();
        let mut bytes = vec![0; 4 * unit];
        assert_eq!(leading_zeros(&bytes, 0), 4 * unit);
        assert_eq!(leading_zeros(&bytes, 100), 4 * unit);
        bytes[2 * unit + 5] = 1;
        assert_eq!((leading_zeros(&bytes, 0), data_length(&bytes[2 * unit..], 0)), (2 * unit, unit));
        // The pieces are those of the file, not of the buffer.
        let offset = HOLE_UNIT - 10;
        assert_eq!(leading_zeros(&bytes, offset), 10 + unit);
        let at = offset + 10 + HOLE_UNIT;
        assert_eq!(data_length(&bytes[10 + unit..], at), unit);
        assert_eq!((leading_zeros(&[], 7), data_length(&[], 7)), (0, 0));
    }

    #[test]
    fn map_lines_are_parsed() {
        let mut lines = Lines::new(10);
        assert_eq!(lines.push(b"2\n0\n5").unwrap(), None);
        assert_eq!(lines.push(b"12\n1024\n7\n\0\0\0").unwrap(), Some(vec![0, 512, 1024, 7]));
        assert!(Lines::new(1).push(b"2\n").is_err());
        assert!(Lines::new(1).push(b"-1\n").is_err());
        assert_eq!(Lines::new(1).push(b"0\n").unwrap(), Some(vec![]));
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>, real: u64, spans: Vec<(u64, u64)>, stored: u64) {
            let _ = Lines::new(100).push(&bytes);
            let _ = SparseMap::checked(real, spans, stored);
        }
    }
}
