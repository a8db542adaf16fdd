//! Dmesg: the records of the kernel log, from /dev/kmsg (Documentation/ABI/testing/dev-kmsg), one in each message.

use std::fs::File;
use std::io::{self, Read as _};
use std::sync::Arc;

use gantry_engine::now;
use gantry_model::Timestamp;
use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine::DmesgRequest;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::unix::AsyncFd;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use crate::context::Context;
use crate::dir_watch::readable;
use crate::quota::QuotaPermit;
use crate::status;

/// The kernel log.
const PATH: &str = "/dev/kmsg";
/// Maximum bytes of a record: the kernel's limit is 8 KiB.
const MAX_RECORD: usize = 16 << 10;
/// Messages that wait for a client.
const QUEUE: usize = 64;
/// The facilities of syslog(3), by their numbers.
const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];
/// The priorities of syslog(3), by their numbers.
const PRIORITIES: [&str; 8] = ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// Starts the stream: the records so far (none with `tail`), then, with `follow`, new ones.
///
/// # Errors
/// The log cannot be opened: a kernel without printk, or a container without the device.
pub(in super::super) fn stream(
    context: &Arc<Context>,
    permit: QuotaPermit,
    request: &DmesgRequest,
) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
    let DmesgRequest { follow, tail } = *request;
    let failed = |error: io::Error| Status::new(code_of(&error), format!("open {PATH}: {error}"));
    let file = open(tail).map_err(failed)?;
    let log = readable(file).map_err(failed)?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let reader = KernelLogReader { context: Arc::clone(context), log, boot: boot_time(), follow, sender };
    let task = async move {
        let _permit = permit;
        let sender = reader.sender.clone();
        if let Err(status) = reader.run().await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(ReceiverStream::new(receiver))
}

fn open(tail: bool) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(PATH, flags, Mode::empty())?;
    if tail {
        rustix::fs::seek(&file, SeekFrom::End(0))?;
    }
    Ok(file.into())
}

fn code_of(error: &io::Error) -> tonic::Code {
    match error.kind() {
        io::ErrorKind::NotFound => tonic::Code::NotFound,
        io::ErrorKind::PermissionDenied => tonic::Code::PermissionDenied,
        _ => tonic::Code::Unknown,
    }
}

/// The time at which the clock of the records (CLOCK_MONOTONIC) was 0.
fn boot_time() -> Timestamp {
    let monotonic = clock_gettime(ClockId::Monotonic);
    let since_boot = std::time::Duration::try_from(monotonic).unwrap_or_default();
    now().before(since_boot)
}

struct KernelLogReader {
    context: Arc<Context>,
    log: AsyncFd<File>,
    boot: Timestamp,
    follow: bool,
    sender: mpsc::Sender<Result<Data, Status>>,
}

impl KernelLogReader {
    async fn run(self) -> Result<(), Status> {
        // Ends a stream that does not follow although the kernel logs without pause.
        let end = now();
        let mut buffer = vec![0; MAX_RECORD];
        loop {
            let length = match self.log.get_ref().read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.follow => {
                    if !self.wait().await? {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The kernel has overwritten the next records.
                Err(error) if Errno::from_io_error(&error) == Some(Errno::PIPE) => continue,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Status::unknown(format!("read {PATH}: {error}"))),
            };
            let Some(record) = Record::parse(&buffer[..length]) else { continue };
            let at = self.boot.after(std::time::Duration::from_micros(record.microseconds));
            if !self.follow && at > end {
                return Ok(());
            }
            let data = Data { metadata: None, bytes: record.line(at).into_bytes() };
            tokio::select! {
                sent = self.sender.send(Ok(data)) => if sent.is_err() { return Ok(()) },
                () = self.context.drained() => return Err(status::draining()),
            }
        }
    }

    /// Waits for a record; `false` if the client has gone away.
    async fn wait(&self) -> Result<bool, Status> {
        tokio::select! {
            ready = self.log.readable() => match ready {
                Ok(mut ready) => {
                    ready.clear_ready();
                    Ok(true)
                }
                Err(error) => Err(Status::unknown(format!("poll {PATH}: {error}"))),
            },
            () = self.sender.closed() => Ok(false),
            () = self.context.drained() => Err(status::draining()),
        }
    }
}

/// A record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT`, with the lines of its dictionary.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    facility: usize,
    priority: usize,
    microseconds: u64,
    text: String,
}

impl Record {
    /// `None`: it is no record.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let (prefix, text) = text.split_once(';')?;
        let mut fields = prefix.split(',');
        let number: usize = fields.next()?.parse().ok()?;
        let microseconds = fields.nth(1)?.parse().ok()?;
        Some(Self { facility: number >> 3, priority: number & 7, microseconds, text: text.trim_end().to_owned() })
    }

    /// `kern:    info: [2026-01-02T03:04:05.000000006Z]: text`.
    fn line(&self, at: Timestamp) -> String {
        let facility = FACILITIES.get(self.facility).copied().unwrap_or("unknown");
        let priority = PRIORITIES.get(self.priority).copied().unwrap_or("unknown");
        format!("{facility}: {priority:>7}: [{}]: {}\n", at.rfc3339(), self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_become_lines() {
        let record = Record::parse(b"30,339,5140900,-;systemd[1]: x; y\n SUBSYSTEM=z\n").unwrap();
        assert_eq!((record.facility, record.priority, record.microseconds), (3, 6, 5_140_900));
        let line = record.line(Timestamp(0));
        assert!(line.starts_with("daemon:    info: [1970-01-01T00:00:00"), "{line}");
        assert!(line.ends_with("]: systemd[1]: x; y\n SUBSYSTEM=z\n"), "{line}");
        for bad in [&b""[..], b"6,1,2,-", b"x,1,2,-;t", b"6,1;t", b"6,1,x,-;t"] {
            assert_eq!(Record::parse(bad), None);
        }
    }

    proptest! {
        #[test]
        fn printed_records_are_parsed(
            facility in 0_usize..24,
            priority in 0_usize..8,
            microseconds: u64,
            more in "(,caller=T[0-9]{1,5})?",
            text in "[!-~][ -~]{0,40}",
        ) {
            let text = text.trim_end().to_owned();
            let printed = format!("{},7,{microseconds},-{more};{text}\n", facility << 3 | priority);
            let record = Record::parse(printed.as_bytes());
            prop_assert_eq!(record, Some(Record { facility, priority, microseconds, text }));
        }

        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            if let Some(record) = Record::parse(&bytes) {
                let _line = record.line(Timestamp(0));
            }
        }
    }
}
