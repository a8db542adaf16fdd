//! Compares both functions with loops over bytes: lengths around each change of the method, and overlaps.

use super::*;

/// The lengths around every change of method, and some in between.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=5 * VECTOR).chain(LONG - 2 * VECTOR..=LONG + 2 * VECTOR).chain([500, 4096, 4097, 70_001])
}

/// Bytes that differ from their neighbours.
fn numbered(length: usize) -> Vec<u8> {
    (0..length).map(|n| u8::try_from(n % 251).unwrap()).collect()
}

#[test]
fn memcpy_copies_no_other_bytes() {
    for (length, shift) in lengths().flat_map(|length| [0, 1, 7, 15].map(|shift| (length, shift))) {
        let from = numbered(length + shift);
        let mut to = vec![0xff; length + 32];
        // SAFETY: both are long enough and do not overlap.
        let returned = unsafe { memcpy(to[16..].as_mut_ptr(), from[shift..].as_ptr(), length) };
        assert_eq!(returned.addr(), to[16..].as_ptr().addr());
        let is_equal = to[16..].iter().zip(&from[shift..]).all(|(to, from)| to == from);
        assert!(is_equal, "{length} bytes, shifted by {shift}");
        assert!(to[..16].iter().chain(&to[16 + length..]).all(|byte| *byte == 0xff), "beyond {length} bytes");
    }
}

#[test]
fn memmove_copies_bytes_that_overlap() {
    for length in lengths() {
        for distance in [0, 1, 3, 8, 15, 16, 17, 40, 64, 300, length / 2, length] {
            for (from, to) in [(32, 32 + distance), (32 + distance, 32)] {
                let mut bytes = numbered(length + distance + 64);
                let original = numbered(length + distance + 64);
                let expected = |at: usize| original[if (to..to + length).contains(&at) { at - to + from } else { at }];
                let start = bytes.as_mut_ptr();
                // SAFETY: both are within the vector.
                let returned = unsafe { memmove(start.add(to), start.add(from), length) };
                assert_eq!(returned.addr(), start.addr() + to);
                let is_moved = bytes.iter().enumerate().all(|(at, byte)| *byte == expected(at));
                assert!(is_moved, "{length} bytes from {from} to {to}");
            }
        }
    }
}
