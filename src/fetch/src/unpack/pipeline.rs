//! Unpacking a layer with three threads: one reads and decompresses, one hashes, the caller's writes files. They share
//! the same 1 MiB buffers through short bounded channels, so memory is bounded and nothing is copied.
//!
//! A thread that stops (an error, a limit) drops its end of a channel; the others notice at their next buffer. All
//! threads are joined before the call returns. The source needs timeouts of its own: a read that hangs delays the join.

use std::io::Read;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, ScopedJoinHandle};

use gantry_model::{Digest, id::Algorithm};
use sha2::{Digest as _, Sha256};

use super::entries::Stream;
use super::error::UnpackError;
use super::inflate::{Compression, Inflater};
use crate::caps::{Caps, ImageBytes};

/// Length of one buffer in bytes: large enough for few system calls and wake-ups, small enough for the cache.
const BUFFER: usize = 1 << 20;
/// Number of buffers in flight to one reader.
const DEPTH: usize = 4;

type Buffer = Arc<Vec<u8>>;

/// Runs `consume` on the decompressed stream; returns its result and the digest of the whole stream, up to the last
/// byte.
pub(crate) fn run<T>(
    source: &mut (dyn Read + Send),
    media: Compression,
    (caps, image_bytes): (&Caps, &ImageBytes),
    consume: impl FnOnce(&mut Chunks) -> Result<T, UnpackError>,
) -> Result<(T, Digest), UnpackError> {
    thread::scope(|scope| {
        let (data_in, data_out) = sync_channel(DEPTH);
        let (hash_in, hash_out) = sync_channel(DEPTH);
        let (spent_in, spent_out) = channel();
        let spent = spent_in.clone();
        let start = |name: &str| thread::Builder::new().name(name.to_owned());
        let hasher =
            start("layer-hash").spawn_scoped(scope, move || hash(&hash_out, &spent)).map_err(UnpackError::Read)?;
        let pump = start("layer-inflate")
            .spawn_scoped(scope, move || {
                pump(source, media, (caps, image_bytes), &Sides { data_in, hash_in, spent_out })
            })
            .map_err(UnpackError::Read)?;
        let mut chunks = Chunks { source: data_out, spent: spent_in, current: None, at: 0 };
        let outcome = consume(&mut chunks).and_then(|value| chunks.drain().map(|()| value));
        drop(chunks);
        joined(pump);
        let digest = joined(hasher);
        Ok((outcome?, digest))
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

struct Sides {
    data_in: SyncSender<Result<Buffer, UnpackError>>,
    hash_in: SyncSender<Buffer>,
    spent_out: Receiver<Vec<u8>>,
}

/// Decompresses until the end, an error, or until all receivers are gone.
fn pump(source: &mut (dyn Read + Send), media: Compression, (caps, image_bytes): (&Caps, &ImageBytes), sides: &Sides) {
    let failed = |error| {
        // The writer may have failed first; then its error is reported.
        let _gone = sides.data_in.send(Err(error));
    };
    let mut inflater = match Inflater::new(source, media, caps) {
        Ok(inflater) => inflater,
        Err(error) => return failed(error),
    };
    loop {
        let mut buffer = sides.spent_out.try_recv().unwrap_or_default();
        buffer.resize(BUFFER, 0);
        let filled = inflater.fill(&mut buffer);
        match filled.and_then(|n| image_bytes.count(n as u64).map(|()| n)) {
            Ok(0) => return,
            Ok(n) => buffer.truncate(n),
            Err(error) => return failed(error),
        }
        let (last, buffer) = (buffer.len() < BUFFER, Arc::new(buffer));
        let sent = sides.hash_in.send(Arc::clone(&buffer)).is_ok() && sides.data_in.send(Ok(buffer)).is_ok();
        if last || !sent {
            return;
        }
    }
}

#[expect(clippy::expect_used, reason = "SHA-256 has 32 bytes, and that is what a sha256 digest takes")]
fn hash(buffers: &Receiver<Buffer>, spent: &Sender<Vec<u8>>) -> Digest {
    let mut hash = Sha256::new();
    while let Ok(buffer) = buffers.recv() {
        hash.update(buffer.as_slice());
        recycle(buffer, spent);
    }
    Digest::from_hash(Algorithm::Sha256, &hash.finalize()).expect("a sha256 digest has 32 bytes")
}

/// Returns a buffer for reuse if this was its last user.
fn recycle(buffer: Buffer, spent: &Sender<Vec<u8>>) {
    if let Some(memory) = Arc::into_inner(buffer) {
        // After the end of the stream there is no receiver, and the buffer is freed.
        let _gone = spent.send(memory);
    }
}

/// The writer's end: the decompressed stream as slices of its buffers.
pub(crate) struct Chunks {
    source: Receiver<Result<Buffer, UnpackError>>,
    spent: Sender<Vec<u8>>,
    current: Option<Buffer>,
    at: usize,
}

impl Chunks {
    /// Reads the bytes after the end of the archive. Programs pad archives; the padding is ignored but part of the
    /// digest.
    fn drain(&mut self) -> Result<(), UnpackError> {
        self.skip(u64::MAX).map(|_| ())
    }
}

impl Stream for Chunks {
    fn fill(&mut self) -> Result<&[u8], UnpackError> {
        if self.current.as_ref().is_none_or(|buffer| self.at >= buffer.len()) {
            if let Some(buffer) = self.current.take() {
                recycle(buffer, &self.spent);
            }
            self.at = 0;
            match self.source.recv() {
                Ok(buffer) => self.current = Some(buffer?),
                Err(_) => return Ok(&[]),
            }
        }
        Ok(self.current.as_ref().map_or(&[], |buffer| &buffer[self.at..]))
    }

    fn consume(&mut self, n: usize) {
        self.at += n;
    }
}
