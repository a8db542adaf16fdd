//! Foregrounds: clients that receive the apps' output live.
//!
//! Each foreground is the write end of a pipe. Output that does not fit into the pipe is buffered (at most one read's
//! worth). While anything is buffered, the supervisor does not read from the apps of the foreground, so their writes
//! block as they would on a pipe to the client itself. A foreground that disconnects does not affect the apps.
//!
//! A foreground has all apps of the pod, or one. That of one app ends when the app has exited, and neither delays nor
//! sees the other apps.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::output::{HEADER_LEN, Header, Kind, MAX_PAYLOAD};
use gantry_model::ErrorKind;
use rustix::event::PollFlags;
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::failure::{Attempt, Result, failure};
use crate::output::logs::Stream;
use crate::table::{Table, Token};

/// Maximum number of foregrounds of a pod as a whole, and of each app.
const MAX_FOREGROUNDS: usize = 16;

/// The pod's foregrounds.
#[derive(Default)]
pub(crate) struct Foregrounds {
    all: Table<Foreground>,
}

/// One client.
pub(crate) struct Foreground {
    pipe: OwnedFd,
    /// The number of the app whose output it gets; `None`: it gets that of all.
    app: Option<u16>,
    /// Whether the end frame was sent: nothing follows.
    has_end: bool,
    /// Output that did not fit into the pipe.
    backlog: Vec<u8>,
}

impl Foregrounds {
    /// Adds the client that reads the output of this app, or of all, from this pipe.
    pub(crate) fn add(&mut self, pipe: OwnedFd, app: Option<u16>) -> Result<()> {
        let what = || "cannot use the pipe for the output";
        // A client must not make this process write to a file of the host; and writes to a file may block.
        if FileType::from_raw_mode(rustix::fs::fstat(&pipe).attempt(what)?.st_mode) != FileType::Fifo {
            return Err(failure(ErrorKind::Invalid, "output can be sent only to a pipe"));
        }
        if self.all.values().filter(|foreground| foreground.app == app).count() >= MAX_FOREGROUNDS {
            let why = format!("the output is sent to {MAX_FOREGROUNDS} clients already, which is the limit");
            return Err(failure(ErrorKind::Busy, why));
        }
        rustix::io::ioctl_fionbio(&pipe, true).attempt(what)?;
        self.all.insert(Foreground { pipe, app, has_end: false, backlog: Vec::new() });
        Ok(())
    }

    /// Whether any foreground has a backlog.
    pub(crate) fn are_blocked(&self) -> bool {
        self.all.values().any(|foreground| !foreground.backlog.is_empty())
    }

    /// Whether a foreground of this app has a backlog, so that none of its output can be sent.
    pub(crate) fn blocks_app(&self, app: u16) -> bool {
        self.all.values().any(|foreground| foreground.gets(app) && !foreground.backlog.is_empty())
    }

    /// Whether a foreground of the whole pod has a backlog, so that no notification can be sent.
    pub(crate) fn blocks_notifications(&self) -> bool {
        self.all.values().any(|foreground| foreground.app.is_none() && !foreground.backlog.is_empty())
    }

    /// The apps that have foregrounds of their own which were not ended.
    pub(crate) fn apps(&self) -> impl Iterator<Item = u16> {
        self.all.values().filter(|foreground| !foreground.has_end).filter_map(|foreground| foreground.app)
    }

    /// Ends the foregrounds that get only the output of this app. Their pipes close when all of it was written.
    pub(crate) fn end_app(&mut self, app: u16) {
        let head = Header { kind: Kind::End, app: 0, len: 0 }.encode();
        self.all.retain(|foreground| {
            if foreground.app != Some(app) || foreground.has_end {
                return true;
            }
            foreground.has_end = true;
            foreground.send(&head, &[]) && !foreground.backlog.is_empty()
        });
    }

    /// Sends output of app number `app`.
    pub(crate) fn send(&mut self, app: u16, stream: Stream, bytes: &[u8]) {
        let kind = match stream {
            Stream::Stdout => Kind::Stdout,
            Stream::Stderr => Kind::Stderr,
        };
        for payload in bytes.chunks(MAX_PAYLOAD) {
            self.frame(kind, app, payload, |foreground| foreground.gets(app));
        }
    }

    /// Sends a notification of app number `app`.
    pub(crate) fn send_notification(&mut self, app: u16, text: &[u8]) {
        self.frame(Kind::Notification, app, text, |foreground| foreground.app.is_none());
    }

    /// Sends the end frame. The pipes close when the pod may be removed ([`Self::close`]), or when this process exits.
    pub(crate) fn end(&mut self) {
        self.frame(Kind::End, 0, &[], |foreground| !foreground.has_end);
    }

    /// Sends a frame to the foregrounds that are to get it.
    fn frame(&mut self, kind: Kind, app: u16, payload: &[u8], gets_it: impl Fn(&Foreground) -> bool) {
        // It does not overflow: the payload is bounded above.
        let len = u32::try_from(payload.len()).unwrap_or(0);
        let header = Header { kind, app, len }.encode();
        self.all.retain(|foreground| !gets_it(foreground) || foreground.send(&header, payload));
    }

    /// Drops all foregrounds. Output that was not sent is lost to them; they detect this by the missing end frame.
    pub(crate) fn close(&mut self) {
        self.all.clear();
    }

    /// The events to poll for: room in the pipes that are full. poll(2) reports the loss of a reader (POLLERR) unasked.
    pub(crate) fn watched(&self) -> impl Iterator<Item = (Token<Foreground>, BorrowedFd<'_>, PollFlags)> {
        self.all.iter().map(|(token, foreground)| {
            let events = if foreground.backlog.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            (token, foreground.pipe.as_fd(), events)
        })
    }

    /// Writes more of a foreground's backlog; drops the foreground if its pipe has no reader any more.
    pub(crate) fn resume(&mut self, token: Token<Foreground>) {
        let Some(foreground) = self.all.get_mut(token) else { return };
        if foreground.has_gone() || !foreground.flush() || foreground.is_complete() {
            self.all.remove(token);
        }
    }
}

impl Foreground {
    /// Whether it gets the output of this app.
    fn gets(&self, app: u16) -> bool {
        !self.has_end && self.app.is_none_or(|wanted| wanted == app)
    }

    /// Whether it is that of one app and everything was written. The end of the pod closes the others.
    fn is_complete(&self) -> bool {
        self.has_end && self.app.is_some() && self.backlog.is_empty()
    }

    /// Returns `false` if the reader has gone.
    fn send(&mut self, header: &[u8; HEADER_LEN], payload: &[u8]) -> bool {
        if !self.backlog.is_empty() {
            self.backlog.extend_from_slice(header);
            self.backlog.extend_from_slice(payload);
            return true;
        }
        let written = match rustix::io::writev(&self.pipe, &[IoSlice::new(header), IoSlice::new(payload)]) {
            Ok(written) => written,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return false,
        };
        self.backlog.extend(header.iter().chain(payload).skip(written));
        true
    }

    /// Returns `false` if the reader has gone.
    fn flush(&mut self) -> bool {
        while !self.backlog.is_empty() {
            match rustix::io::write(&self.pipe, &self.backlog) {
                Ok(written) => drop(self.backlog.drain(..written)),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        // Most apps write little: free the memory.
        self.backlog = Vec::new();
        true
    }

    /// The kernel reports an error on a pipe without a reader.
    fn has_gone(&self) -> bool {
        use rustix::event::{PollFd, Timespec, poll};
        let mut fds = [PollFd::new(&self.pipe, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, Timespec, poll};
    use rustix::pipe::{PipeFlags, pipe_with};

    fn resume_all(foregrounds: &mut Foregrounds) {
        foregrounds.all.tokens().into_iter().for_each(|token| foregrounds.resume(token));
    }

    fn read_all(reader: &OwnedFd, foregrounds: &mut Foregrounds) -> Vec<u8> {
        let mut got = Vec::new();
        let mut chunk = [0; 7000];
        while foregrounds.are_blocked() {
            let count = rustix::io::read(reader, &mut chunk).unwrap();
            got.extend_from_slice(&chunk[..count]);
            resume_all(foregrounds);
        }
        got
    }

    #[test]
    fn a_slow_reader_gets_every_byte() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut foregrounds = Foregrounds::default();
        foregrounds.add(writer, None).unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        foregrounds.send(3, Stream::Stderr, &bytes);
        foregrounds.end();
        assert!(foregrounds.are_blocked());
        let mut got = read_all(&reader, &mut foregrounds);
        foregrounds.close();
        std::io::Read::read_to_end(&mut std::fs::File::from(reader), &mut got).unwrap();
        let mut payloads = Vec::new();
        let mut rest = &got[..];
        while let Some((head, tail)) = rest.split_first_chunk() {
            let header = Header::decode(*head).unwrap();
            if header.kind == Kind::End {
                assert!(tail.is_empty());
                break;
            }
            assert_eq!((header.kind, header.app), (Kind::Stderr, 3));
            let (payload, tail) = tail.split_at(header.len as usize);
            payloads.extend_from_slice(payload);
            rest = tail;
        }
        assert!(payloads == bytes);
    }

    #[test]
    fn a_closed_reader_does_not_block() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let also_writer = writer.try_clone().unwrap();
        let mut foregrounds = Foregrounds::default();
        foregrounds.add(writer, None).unwrap();
        foregrounds.send(0, Stream::Stdout, &[b'x'; 200_000]);
        assert!(foregrounds.are_blocked());
        drop(reader);
        // A program that another test executes at this moment has a copy of the reading end until then.
        let closed = &mut [PollFd::new(&also_writer, PollFlags::empty())];
        assert_eq!(poll(closed, Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap(), 1);
        resume_all(&mut foregrounds);
        assert!(!foregrounds.are_blocked());
        assert_eq!(foregrounds.watched().count(), 0);
    }

    #[test]
    fn a_foreground_of_one_app_delays_no_other() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut foregrounds = Foregrounds::default();
        foregrounds.add(writer, Some(1)).unwrap();
        foregrounds.send(0, Stream::Stdout, &[b'x'; 200_000]);
        foregrounds.send_notification(1, b"READY=1");
        assert!(!foregrounds.are_blocked());
        foregrounds.send(1, Stream::Stdout, &[b'y'; 100_000]);
        assert!(foregrounds.blocks_app(1) && !foregrounds.blocks_app(0) && !foregrounds.blocks_notifications());
        assert_eq!(foregrounds.apps().collect::<Vec<_>>(), [1]);
        foregrounds.end_app(0);
        foregrounds.end_app(1);
        assert_eq!(foregrounds.apps().count(), 0);
        let mut got = read_all(&reader, &mut foregrounds);
        // All was written, so it is closed.
        assert_eq!(foregrounds.watched().count(), 0);
        std::io::Read::read_to_end(&mut std::fs::File::from(reader), &mut got).unwrap();
        assert!(got.iter().filter(|byte| **byte == b'y').count() == 100_000);
        assert!(!got.contains(&b'x'));
        assert_eq!(got[got.len() - HEADER_LEN..], Header { kind: Kind::End, app: 0, len: 0 }.encode());
    }

    #[test]
    fn regular_files_are_rejected() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Foregrounds::default().add(file.into(), None).is_err());
    }
}
