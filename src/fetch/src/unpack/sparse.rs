//! Sparse files: the offsets of stored bytes in the file (GNU tar manual, "Storing Sparse Files"). Pure.

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
