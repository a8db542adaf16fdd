//! Reading logs by pieces, for callers that do something else in between. (PLACEHOLDER bodies.)

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use gantry_model::{AppName, PodId, Timestamp};

use crate::{LogQuery, LogsError, Observer};

/// Where one reader of a pod's logs stands. `Send`.
#[derive(Debug)]
pub struct LogReader {
    #[expect(dead_code, reason = "placeholder")]
    id: PodId,
}

/// What there is after a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulled {
    /// There is more at once.
    More,
    /// Nothing more now. Wait until a directory of [`LogReader::dirs`] changes, the supervisor ends, or this long at most.
    Dry,
    /// The pod was not started yet. Wait for its start: an event.
    Waiting,
    /// All was given out, and nothing more will come.
    End,
}

/// A line, or a piece of one, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct LineRef<'a> {
    /// Which app.
    pub app: &'a AppName,
    /// When the supervisor read it.
    pub at: Timestamp,
    /// Whether it came from stderr.
    pub stderr: bool,
    /// Whether the line goes on in the next one of the same app and stream.
    pub piece: bool,
    /// Whether it ended without a newline, or `piece`.
    pub partial: bool,
    /// The bytes as written, without the newline.
    pub text: &'a [u8],
}

impl LogReader {
    /// The directories in which something changes when there is more.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

impl Observer {
    /// A reader of the logs of a pod, standing where the query says.
    ///
    /// # Errors
    /// [`LogsError`], also when there is no such pod or app.
    pub fn open_logs(&self, id: PodId, query: &LogQuery) -> Result<LogReader, LogsError> {
        let _ = query;
        Ok(LogReader { id })
    }

    /// Gives lines to the sink until it has had about `most` bytes of text, or there are no more.
    ///
    /// # Errors
    /// [`LogsError`].
    pub fn pull_logs(
        &self,
        reader: &mut LogReader,
        most: usize,
        sink: &mut dyn FnMut(LineRef<'_>),
    ) -> Result<Pulled, LogsError> {
        let _ = (reader, most, sink);
        Ok(Pulled::End)
    }

    /// A descriptor that becomes readable when the pod's supervisor ends; `None` when none runs.
    #[must_use]
    pub fn supervisor_of(&self, reader: &LogReader) -> Option<OwnedFd> {
        let _ = reader;
        None
    }
}
