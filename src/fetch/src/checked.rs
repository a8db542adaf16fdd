//! The stream of a layer under watch: counted and hashed while it is read, in the thread that reads it, so that
//! what is unpacked is exactly what the descriptor names, or not kept.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::FetchError;
use crate::progress::{Note, Progress};
use crate::registry::RegistryError;
use crate::source::{Descriptor, Hasher, Mismatch, SourceError};
use crate::unpack::{UnpackError, Unpacked};

/// Bytes between two notes of progress.
const NOTE_EVERY: u64 = 256 << 10;

/// What is read on after a layer that cannot be unpacked, to find out whether its bytes are the right ones at all.
const DIAGNOSIS: u64 = 16 << 20;

/// What all layers of one fetch share.
pub(crate) struct Watch<'a> {
    pub(crate) progress: &'a dyn Progress,
    /// Raised when a layer has failed: the others need not go on.
    pub(crate) cancelled: AtomicBool,
    /// Bytes read from the source.
    pub(crate) read: AtomicU64,
}

/// See the module.
pub(crate) struct Checked<'a> {
    inner: Box<dyn Read + Send + 'a>,
    descriptor: &'a Descriptor,
    watch: &'a Watch<'a>,
    hash: Hasher,
    done: u64,
    noted: u64,
    /// Why a read failed, with its type; the reader above sees an [`std::io::Error`] only.
    failure: Option<FetchError>,
}

impl<'a> Checked<'a> {
    pub(crate) fn new(inner: Box<dyn Read + Send + 'a>, descriptor: &'a Descriptor, watch: &'a Watch<'a>) -> Self {
        let hash = Hasher::new(descriptor.digest.algorithm());
        Self { inner, descriptor, watch, hash, done: 0, noted: 0, failure: None }
    }

    /// What became of a layer, given what the unpacker made of the stream. Bytes that it left unread belong to the
    /// blob too; and when it failed, wrong bytes are a better reason than whatever they looked like.
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
                let near = self.descriptor.size.saturating_sub(self.done) <= DIAGNOSIS;
                let read = near && std::io::copy(&mut self, &mut std::io::sink()).is_ok();
                match self.failure.take() {
                    Some(failure @ FetchError::LayerMismatch { .. }) => return Err(failure),
                    // Without the rest nothing is known about the bytes; the unpacker's reason stands.
                    Some(_) => return Err(FetchError::Layer { layer, source }),
                    None => {}
                }
                match self.mismatch().filter(|_| read) {
                    Some(wrong) => Err(FetchError::LayerMismatch { layer, source: Box::new(wrong) }),
                    None => Err(FetchError::Layer { layer, source }),
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
            source => FetchError::LayerSource { layer, source: Box::new(source) },
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
        if self.watch.cancelled.load(Ordering::Relaxed) {
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
        if self.done - self.noted >= NOTE_EVERY || (n == 0 && self.done > self.noted) {
            self.noted = self.done;
            self.watch.progress.notify(Note::Bytes { layer: self.descriptor.digest.clone(), done: self.done });
        }
        Ok(n)
    }
}
