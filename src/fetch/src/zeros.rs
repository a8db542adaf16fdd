//! The zeros of files, which become holes. Pure.

/// Zeros of an unpacked file become holes in pieces that end at multiples of this. Shorter holes would save little and
/// cost extents.
pub(crate) const HOLE_UNIT: u64 = 64 << 10;

/// The beginning of a buffer: pieces of zeros alone, or pieces that have other bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Bytes.
    pub(crate) length: usize,
    /// Whether they are zeros.
    pub(crate) is_zero: bool,
}

/// The run with which `bytes` begin, which are at this offset of a file, in whole pieces between multiples of
/// [`HOLE_UNIT`].
pub(crate) fn first_run(bytes: &[u8], offset: u64) -> Run {
    let [first, unit] = [HOLE_UNIT - offset % HOLE_UNIT, HOLE_UNIT].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let (first, rest) = bytes.split_at(first.min(bytes.len()));
    let begins_with_zeros = !first.is_empty() && is_zero(first);
    let alike = rest.chunks(unit).take_while(|piece| is_zero(piece) == begins_with_zeros).map(<[u8]>::len);
    Run { length: first.len() + alike.sum::<usize>(), is_zero: begins_with_zeros }
}

/// Whether all bytes are zeros. Most pieces of ordinary files differ from zeros in their first word.
pub(crate) fn is_zero(piece: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    piece.chunks(ZEROS.len()).all(|block| *block == ZEROS[..block.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_zeros_are_found() {
        let zeros = |length| Run { length, is_zero: true };
        let data = |length| Run { length, is_zero: false };
        let unit = usize::try_from(HOLE_UNIT).unwrap();
        let mut bytes = vec![0; 4 * unit];
        assert_eq!(first_run(&bytes, 0), zeros(4 * unit));
        assert_eq!(first_run(&bytes, 100), zeros(4 * unit));
        bytes[2 * unit + 5] = 1;
        assert_eq!(first_run(&bytes, 0), zeros(2 * unit));
        assert_eq!(first_run(&bytes[2 * unit..], 0), data(unit));
        // The pieces are those of the file, not of the buffer.
        let offset = HOLE_UNIT - 10;
        assert_eq!(first_run(&bytes, offset), zeros(10 + unit));
        assert_eq!(first_run(&bytes[10 + unit..], offset + 10 + HOLE_UNIT), data(unit));
        assert_eq!(first_run(&[], 7), data(0));
    }

    #[test]
    fn a_single_other_byte_is_found() {
        for length in [0, 1, 4095, 4096, 4097, 10_000] {
            let mut bytes = vec![0; length];
            assert!(is_zero(&bytes), "{length}");
            if let Some(last) = bytes.last_mut() {
                *last = 1;
                assert!(!is_zero(&bytes), "{length}");
            }
        }
    }
}
