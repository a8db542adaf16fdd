//! A minimum throughput: a peer that sends a byte every few seconds never runs into the timeout of a read, but would
//! hold a fetch, and others that wait for its layer, without end.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use super::error::RegistryError;

/// Bytes that must arrive in [`WINDOW`].
const MIN_BYTES: u64 = 64 << 10;
/// Time spent on reading after which the bytes are counted. What the reader does meanwhile does not count.
const WINDOW: Duration = Duration::from_secs(60);

/// The bytes and the time of one window.
#[derive(Debug, Default)]
struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Adds one read. Returns the time of the window if too little came in it.
    fn add(&mut self, bytes: usize, took: Duration) -> Option<Duration> {
        self.waited += took;
        self.bytes += bytes as u64;
        if self.waited < WINDOW {
            return None;
        }
        let window = std::mem::take(self);
        (window.bytes < MIN_BYTES).then_some(window.waited)
    }
}

/// A body that fails when it comes too slowly. Its error is a [`RegistryError`] inside an [`io::Error`].
pub(super) struct PacedReader<R> {
    inner: R,
    host: String,
    what: String,
    pace: Pace,
}

impl<R: Read> PacedReader<R> {
    pub(super) fn new(inner: R, host: String, what: String) -> Self {
        Self { inner, host, what, pace: Pace::default() }
    }
}

impl<R: Read> Read for PacedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let count = self.inner.read(buffer)?;
        match self.pace.add(count, begun.elapsed()) {
            // The end is no lack of bytes.
            Some(after) if count > 0 => {
                let (host, what) = (self.host.clone(), self.what.clone());
                Err(io::Error::other(RegistryError::Slow { host, what, after, most: MIN_BYTES }))
            }
            _ => Ok(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_bodies_are_told_from_paused_readers() {
        let second = Duration::from_secs(1);
        let mut slow = Pace::default();
        let stalled: Vec<_> = (1..=120).filter(|_| slow.add(1, second).is_some()).collect();
        assert_eq!(stalled, [60, 120]);
        let mut enough = Pace::default();
        assert!((0..600).all(|_| enough.add(1100, second).is_none()));
        // Each read returns at once, whatever happens between two of them.
        let mut paused = Pace::default();
        assert!((0..600).all(|_| paused.add(1, Duration::ZERO).is_none()));
        let mut late = Pace::default();
        assert!(late.add(0, WINDOW - second).is_none());
        assert_eq!(late.add(1, second), Some(WINDOW));
    }

    #[test]
    fn slow_reads_fail_with_a_transient_error() {
        let pace = Pace { waited: WINDOW, bytes: 0 };
        let mut body = PacedReader { inner: &b"xx"[..], host: "h".into(), what: "blob 1".into(), pace };
        let error = body.read(&mut [0]).unwrap_err().downcast::<RegistryError>().unwrap();
        assert!(error.is_transient() && error.to_string().contains("h sent less than 64 KiB"), "{error}");
        assert_eq!(body.read(&mut [0; 9]).unwrap(), 1, "the next window begins");
    }
}
