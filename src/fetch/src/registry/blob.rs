//! A blob as one stream that survives broken connections: it resumes with a `Range` request.
//!
//! The descriptor's size decides, not `Content-Length`: more bytes are an error, fewer are a broken connection.

use std::io::Read;

use gantry_model::Digest;
use ureq::BodyReader;

use super::Registry;
use super::error::RegistryError;
use super::http::HttpResponse;
use super::pace::PacedReader;
use super::retry::{Attempts, MIN_PROGRESS};
use super::url::HttpUrl;

/// The stream; errors come as [`std::io::Error`] around a [`RegistryError`].
pub(crate) struct BlobReader<'a> {
    registry: &'a Registry<'a>,
    digest: Digest,
    size: u64,
    offset: u64,
    /// The offset of the last failure; see [`MIN_PROGRESS`].
    failed_at: u64,
    attempts: Attempts,
    open: Option<Open>,
}

struct Open {
    url: HttpUrl,
    body: PacedReader<BodyReader<'static>>,
}

impl<'a> BlobReader<'a> {
    /// Requests the blob from `offset` on. The body has started when this returns.
    pub(crate) fn open(
        registry: &'a Registry<'a>,
        digest: &Digest,
        size: u64,
        offset: u64,
    ) -> Result<Self, RegistryError> {
        let (digest, attempts) = (digest.clone(), Attempts::default());
        let mut reader = Self { registry, digest, size, offset, failed_at: offset, attempts, open: None };
        while reader.open.is_none() && reader.offset < size {
            if let Err(error) = reader.connect() {
                reader.failed(error)?;
            }
        }
        Ok(reader)
    }

    fn what(&self) -> String {
        format!("blob {}", self.digest.short())
    }

    fn connect(&mut self) -> Result<(), RegistryError> {
        let answer = self.registry.get(&format!("blobs/{}", self.digest), None, self.offset, &self.what())?;
        let skip = self.check_answer(&answer)?;
        let url = answer.url;
        let body = answer.response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut body = PacedReader::new(body, url.authority(), self.what());
        if skip > 0 {
            let skipped = std::io::copy(&mut (&mut body).take(skip), &mut std::io::sink());
            let skipped = skipped.map_err(|error| self.registry.http.read_failure(&url, &self.what(), error))?;
            if skipped < skip {
                return Err(self.too_short(&url, skipped));
            }
        }
        self.open = Some(Open { url, body });
        Ok(())
    }

    /// Checks the range of a response; returns the number of bytes to skip.
    fn check_answer(&self, answer: &HttpResponse) -> Result<u64, RegistryError> {
        let host = answer.url.authority();
        let refuse = |why: String| RegistryError::bad_response(&host, &self.what(), why);
        let length = answer.header("content-length").and_then(|text| text.parse::<u64>().ok());
        match answer.status() {
            200 if length.is_some_and(|length| length > self.size) => Err(self.too_long(&answer.url)),
            200 => Ok(self.offset),
            206 if self.offset > 0 => {
                let range = answer.header("content-range").and_then(content_range);
                let (first, total) = range.ok_or_else(|| refuse("a part without a readable range".to_owned()))?;
                if first != self.offset {
                    return Err(refuse(format!("the part begins at byte {first} instead of {}", self.offset)));
                }
                match total {
                    Some(total) if total > self.size => Err(self.too_long(&answer.url)),
                    Some(total) if total < self.size => Err(refuse(format!("the whole has only {total} bytes"))),
                    _ => Ok(0),
                }
            }
            206 => Err(refuse("a part came although the whole was asked for".to_owned())),
            status => Err(refuse(format!("status {status} has no content"))),
        }
    }

    fn too_long(&self, url: &HttpUrl) -> RegistryError {
        RegistryError::too_long(&url.authority(), &self.digest, self.size)
    }

    fn too_short(&self, url: &HttpUrl, got: u64) -> RegistryError {
        RegistryError::TooShort { host: url.authority(), digest: self.digest.clone(), got, want: self.size }
    }

    /// After a failure: waits for the next attempt, or gives up.
    fn failed(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        self.open = None;
        if self.offset - self.failed_at >= MIN_PROGRESS {
            self.attempts.reset();
        }
        self.failed_at = self.offset;
        self.registry.pause(&mut self.attempts, error)
    }

    fn step(&mut self, buffer: &mut [u8]) -> Result<usize, RegistryError> {
        loop {
            if self.registry.cancel.is_raised() {
                return Err(RegistryError::Cancelled);
            }
            let left = self.size - self.offset;
            if left == 0 {
                return self.end().map(|()| 0);
            }
            let Some(open) = &mut self.open else {
                if let Err(error) = self.connect() {
                    self.failed(error)?;
                }
                continue;
            };
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match open.body.read(&mut buffer[..most]) {
                Ok(0) => {
                    let url = open.url.clone();
                    self.failed(self.too_short(&url, self.offset))?;
                }
                Ok(n) => {
                    self.offset += n as u64;
                    return Ok(n);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let url = open.url.clone();
                    self.failed(self.registry.http.read_failure(&url, &self.what(), error))?;
                }
            }
        }
    }

    /// All bytes have been received. One more is an error; a failure to deliver nothing is not.
    fn end(&mut self) -> Result<(), RegistryError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        match open.body.read(&mut [0]) {
            Ok(1..) => Err(self.too_long(&open.url)),
            Ok(0) | Err(_) => Ok(()),
        }
    }
}

impl Read for BlobReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if buffer.is_empty() { Ok(0) } else { self.step(buffer).map_err(std::io::Error::other) }
    }
}

/// `bytes FIRST-LAST/TOTAL` with `*` for an unknown total (RFC 9110 section 14.4): the first byte and the total.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let number = |text: &str| text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    let total = if total == "*" { None } else { Some(number(total)?) };
    (first <= last && total.is_none_or(|total| last < total)).then_some((first, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_headers_are_parsed() {
        for (text, want) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 5-9/*", Some((5, None))),
            ("bytes 9-5/10", None),
            ("bytes 5-10/10", None),
            ("bytes */10", None),
            ("bytes +5-9/10", None),
            ("items 5-9/10", None),
            ("", None),
        ] {
            assert_eq!(content_range(text), want, "{text}");
        }
    }
}
