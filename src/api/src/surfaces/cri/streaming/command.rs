//! The parts that exec and attach share: bytes of the client to the program, and bytes of a program to the client.

use std::io;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use super::channels::{ChannelReader, ChannelWriter, ClientInput, OutputChannel};
use super::pipe::AsyncPipe;

/// Bytes of a read from a program.
const READ: usize = 32 << 10;
/// How long the output of an exited program must be silent to count as ended, if a process that it left behind holds
/// the pipe open.
const QUIET: Duration = Duration::from_millis(500);
/// If such a process writes without a pause, reading stops after more bytes than any pipe holds, so that the program's
/// own output has been read ...
const MAX_PIPE: usize = 1 << 20;
/// ... and this time has passed.
const MAX_DRAIN: Duration = Duration::from_secs(10);

/// The stdin of a program, and the terminal that has a size.
pub(super) struct ProgramInput {
    /// `None`: what the client sends is discarded.
    pub(super) stdin: Option<std::sync::Arc<AsyncPipe>>,
    /// `None`: sizes are discarded.
    pub(super) terminal: Option<std::sync::Arc<AsyncPipe>>,
}

/// Passes on what the client sends, until it has gone. Nothing is read from it while the program does not read.
pub(super) async fn feed(reader: &mut ChannelReader, mut input: ProgramInput) {
    loop {
        match reader.next().await {
            Ok(Some(ClientInput::Stdin(bytes))) => {
                let Some(stdin) = &input.stdin else { continue };
                let written = tokio::select! {
                    written = stdin.write_all(&bytes) => written,
                    () = reader.wire().gone() => return,
                };
                if let Err(error) = written {
                    debug!("the program reads no more of its stdin: {error}");
                    input.stdin = None;
                }
            }
            // The end of a terminal's input is a character, which the client sends.
            Ok(Some(ClientInput::StdinEnd)) => input.stdin = None,
            Ok(Some(ClientInput::Resize(size))) => {
                if let Some(terminal) = &input.terminal
                    && let Err(error) = terminal.resize(size)
                {
                    debug!("cannot change the size of the terminal: {error}");
                }
            }
            Ok(None) => return,
            Err(error) => {
                debug!("the client of a session has gone: {}", gantry_model::error::messages(&error).join(": "));
                return;
            }
        }
    }
}

/// Sends a program's output to the client until its end. `exited` becomes true when the program has exited. Nothing is
/// read from the program while the client does not read.
///
/// # Errors
/// The client has gone, or the output cannot be read.
pub(super) async fn pump(
    source: &AsyncPipe,
    writer: &ChannelWriter,
    channel: OutputChannel,
    mut exited: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut buffer = vec![0; READ];
    let mut drain = None;
    loop {
        let count = match &mut drain {
            None => tokio::select! {
                biased;
                count = source.read(&mut buffer) => count?,
                // An error means that the session is ending.
                _exited_or_ending = exited.wait_for(|exited| *exited) => {
                    drain = Some(Drain { began: Instant::now(), bytes: 0 });
                    continue;
                }
            },
            Some(drain) => drain.read(source, &mut buffer).await?,
        };
        let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        writer.output(channel, bytes).await?;
    }
    writer.end_output(channel).await
}

/// Reading the output of a program that has exited.
struct Drain {
    began: Instant,
    bytes: usize,
}

impl Drain {
    /// Reads more; 0: the output has ended, or belongs to a process that the program left behind.
    async fn read(&mut self, source: &AsyncPipe, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes > MAX_PIPE && self.began.elapsed() > MAX_DRAIN {
            return Ok(0);
        }
        let count = match tokio::time::timeout(QUIET, source.read(buffer)).await {
            Ok(count) => count?,
            Err(_) => 0,
        };
        self.bytes += count;
        Ok(count)
    }
}
