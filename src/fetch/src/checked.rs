//! The verified stream of a layer: counted and hashed while the unpacker reads it, so that no other bytes than those of
//! the descriptor are unpacked and kept.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cancellation::Cancellation;
use crate::error::FetchError;
use crate::progress::{Note, Progress};
use crate::registry::RegistryError;
use crate::source::{Descriptor, Hasher, Mismatch, SourceError};
use crate::unpack::{UnpackError, Unpacked};

/// Bytes between two progress events.
const PROGRESS_INTERVAL: u64 = 256 << 10;

/// Maximum number of bytes read on after a failure to unpack, to find out whether the bytes match the digest at all.
const MAX_DIAGNOSIS: u64 = 16 << 20;

/// Shared by all layers of one fetch.
pub(crate) struct Watch<'a> {
    pub(crate) progress: &'a dyn Progress,
    /// Raised by the caller to cancel the fetch.
    pub(crate) cancellation: Option<&'a Cancellation>,
    /// Set when a layer has failed: the other layers stop.
    pub(crate) cancelled: AtomicBool,
    /// Number of bytes read from the source.
    pub(crate) read: AtomicU64,
}

impl Watch<'_> {
    /// Whether the fetch must stop: a layer has failed, or the caller has cancelled it.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.cancellation.is_some_and(Cancellation::is_raised)
    }
}

/// See the module.
pub(crate) struct Checked<'a> {
    inner: Box<dyn Read + Send + 'a>,
    descriptor: &'a Descriptor,
    watch: &'a Watch<'a>,
    hash: Hasher,
    done: u64,
    noted: u64,
    /// The typed cause of a failed read; the reader above sees an [`std::io::Error`] only.
    failure: Option<FetchError>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(inner: Box<dyn Read + Send + 'a>, descriptor: &'a Descriptor, watch: &'a Watch<'a>) -> Self {
        let hash = Hasher::new(descriptor.digest.algorithm());
        Self { inner, descriptor, watch, hash, done: 0, noted: 0, failure: None }
    }

    /// The result for a layer, given that of the unpacker. Unread bytes belong to the blob too. If unpacking failed
    /// because the bytes are wrong, the mismatch is reported rather than the error of the unpacker.
    pub(crate) fn conclude(mut self, result: Result<Unpacked, UnpackError>) -> Result<Unpacked, FetchError> {
        let layer = self.descriptor.digest.clone();
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match result {
            Ok(unpacked) => {
                let copied = std::io::copy(&mut self, &mut std::io::sink());
                if let Some(failure) = self.failure.take() {
                    return Err(failure);
                }
                copied.map_err(|error| self.source_failure(error))?;
                match self.mismatch() {
                    Some(wrong) => Err(FetchError::LayerMismatch { layer, source: Box::new(wrong) }),
                    None => Ok(unpacked),
                }
            }
            Err(source) => {
                let near = self.descriptor.size.saturating_sub(self.done) <= MAX_DIAGNOSIS;
                let read = near && std::io::copy(&mut self, &mut std::io::sink()).is_ok();
                match self.failure.take() {
                    Some(failure @ FetchError::LayerMismatch { .. }) => return Err(failure),
                    // Without the rest of the bytes, the unpacker's error is the best explanation.
                    Some(_) => {
                        return Err(FetchError::failed(format!("cannot unpack layer {}", layer.short()), source));
                    }
                    None => {}
                }
                match self.mismatch().filter(|_| read) {
                    Some(wrong) => Err(FetchError::LayerMismatch { layer, source: Box::new(wrong) }),
                    None => Err(FetchError::failed(format!("cannot unpack layer {}", layer.short()), source)),
                }
            }
        }
    }

    fn mismatch(self) -> Option<Mismatch> {
        let got = self.hash.finish();
        let want = self.descriptor.digest.clone();
        (got != want).then_some(Mismatch::Digest { want, got })
    }

    fn source_failure(&self, error: std::io::Error) -> FetchError {
        let layer = self.descriptor.digest.clone();
        let source = match error.downcast::<RegistryError>() {
            Ok(registry) => SourceError::Registry(registry),
            Err(source) => SourceError::Io { what: format!("layer {layer}"), source },
        };
        match source {
            SourceError::Registry(RegistryError::Cancelled) => FetchError::Cancelled { layer },
            source => FetchError::layer_source(&layer, source),
        }
    }

    fn fail(&mut self, failure: FetchError) -> std::io::Error {
        self.failure = Some(failure);
        std::io::Error::other("the layer's stream failed")
    }

    fn wrong_size(&self, got: u64) -> FetchError {
        let digest = self.descriptor.digest.clone();
        let source = Mismatch::Size { digest: digest.clone(), got, want: self.descriptor.size };
        FetchError::LayerMismatch { layer: digest, source: Box::new(source) }
    }
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.watch.is_cancelled() {
            let layer = self.descriptor.digest.clone();
            return Err(self.fail(FetchError::Cancelled { layer }));
        }
        let n = match self.inner.read(buffer) {
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let failure = self.source_failure(error);
                return Err(self.fail(failure));
            }
        };
        self.done += n as u64;
        if self.done > self.descriptor.size || (n == 0 && self.done < self.descriptor.size) {
            let failure = self.wrong_size(self.done);
            return Err(self.fail(failure));
        }
        self.hash.update(&buffer[..n]);
        self.watch.read.fetch_add(n as u64, Ordering::Relaxed);
        if self.done - self.noted >= PROGRESS_INTERVAL || (n == 0 && self.done > self.noted) {
            self.noted = self.done;
            self.watch.progress.notify(Note::Bytes { layer: self.descriptor.digest.clone(), done: self.done });
        }
        Ok(n)
    }
}
