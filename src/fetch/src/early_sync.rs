//! Writes unpacked files to the disk while the rest is unpacked.
//!
//! The kernel would begin half a minute later, or when a tenth of the memory is dirty. Without this, the sync of a
//! commit writes everything when nothing else is left to do. This is for speed only: the commit syncs again, and
//! reports the errors of both.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use gantry_store::Trees;

/// Bytes read from the source after which the files are synced. An image with less has one sync.
const INTERVAL: u64 = 48 << 20;

/// The number of bytes read by all layers, which says when to sync.
pub(crate) struct Meter {
    read: AtomicU64,
    due: SyncSender<()>,
}

impl Meter {
    /// Creates a meter and the receiver for [`sync`], which returns once the meter is dropped.
    pub(crate) fn new() -> (Self, Receiver<()>) {
        // One sync that is due suffices, however much is read during another one.
        let (due, syncs) = sync_channel(1);
        (Self { read: AtomicU64::new(0), due }, syncs)
    }

    fn count(&self, length: usize) {
        let length = length as u64;
        let before = self.read.fetch_add(length, Ordering::Relaxed);
        if before / INTERVAL != (before + length) / INTERVAL {
            let _due_already = self.due.try_send(());
        }
    }
}

/// A stream of a layer that is counted.
pub(crate) struct Metered<'a, R> {
    pub(crate) inner: &'a mut R,
    pub(crate) meter: &'a Meter,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.meter.count(read);
        Ok(read)
    }
}

/// Writes the files of all layers to the disk whenever that is due.
pub(crate) fn sync(trees: &Trees, due: &Receiver<()>) {
    while due.recv().is_ok() {
        trees.sync_early();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_are_due_once_an_interval() {
        let (meter, due) = Meter::new();
        let (chunk, mut buffer) = (1 << 20, vec![0; 1 << 20]);
        let mut read = |chunks| {
            for _ in 0..chunks {
                let mut source = std::io::repeat(1);
                assert_eq!(Metered { inner: &mut source, meter: &meter }.read(&mut buffer).unwrap(), chunk);
            }
        };
        let interval = INTERVAL / chunk as u64;
        read(interval - 1);
        assert!(due.try_recv().is_err());
        read(1);
        assert!(due.try_recv().is_ok() && due.try_recv().is_err());
        read(3 * interval);
        assert!(due.try_recv().is_ok() && due.try_recv().is_err(), "one that is due suffices");
        drop(meter);
        assert!(due.recv().is_err(), "it ends with the meter");
    }
}
