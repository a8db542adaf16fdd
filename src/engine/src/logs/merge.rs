//! Merges several logs by time.

use gantry_model::{PodId, Timestamp};

use crate::LogsError;
use crate::logs::reader::LineRef;
use crate::logs::source::{AppLog, BLOCK, FIRST_BLOCK};

/// The logs, and the bounds of their lines.
#[derive(Debug)]
pub(crate) struct Merge {
    pub(crate) id: PodId,
    pub(crate) logs: Vec<AppLog>,
    /// Lines of the other stream are skipped.
    pub(crate) stderr: Option<bool>,
    /// Lines that are older, or have no time, are skipped.
    pub(crate) since: Option<Timestamp>,
    /// Lines that are not older are skipped.
    pub(crate) until: Option<Timestamp>,
}

/// The merge key of a log: the time of its current line, then its index.
type Turn = (Option<Timestamp>, usize);

/// The block size of each of several logs, so that many need little more memory than one.
pub(crate) fn block_for(logs: usize) -> usize {
    (BLOCK / logs.max(1)).max(FIRST_BLOCK)
}

impl Merge {
    /// Passes every available line to the sink (the number of its log; the line, if it is wanted; its size in the
    /// file), until the sink has enough. Returns whether it has.
    ///
    /// # Errors
    /// A log could not be read.
    pub(crate) fn merge_until(
        &mut self,
        mut sink: impl FnMut(usize, Option<LineRef<'_>>, usize) -> bool,
    ) -> Result<bool, LogsError> {
        self.logs.iter_mut().for_each(AppLog::wake);
        loop {
            self.show()?;
            let Some((first, rival)) = self.first() else { return Ok(false) };
            let (since, until, stderr) = (self.since, self.until, self.stderr);
            let wanted = |at: Option<Timestamp>, line: &LineRef<'_>| {
                since.is_none_or(|since| at >= Some(since))
                    && until.is_none_or(|until| at < Some(until))
                    && stderr.is_none_or(|stderr| line.stderr == stderr)
            };
            let log = &mut self.logs[first];
            // While this log has the earliest line, the others need not be compared.
            while let Some(at) = log.shown().filter(|at| rival.is_none_or(|rival| (*at, first) < rival)) {
                let enough = log
                    .line()
                    .is_some_and(|(line, size)| !sink(first, Some(line).filter(|line| wanted(at, line)), size));
                log.pass();
                if enough {
                    return Ok(true);
                }
            }
        }
    }

    /// Makes every log parse its next line, if it has one.
    fn show(&mut self) -> Result<(), LogsError> {
        let id = self.id;
        loop {
            let mut read = false;
            for log in self.logs.iter_mut().filter(|log| log.shown().is_none() && !log.is_drained()) {
                read |= log.poll().map_err(|source| LogsError::Read { id, app: log.app.clone(), source })?;
            }
            if !read {
                return Ok(());
            }
            // A line already read may be younger than a new line of a log that had none before.
            self.logs.iter_mut().filter(|log| log.shown().is_none()).for_each(AppLog::wake);
        }
    }

    /// The log with the earliest line, and the second earliest with its log; of equals, the one before.
    fn first(&self) -> Option<(usize, Option<Turn>)> {
        let (mut best, mut rival): (Option<Turn>, Option<Turn>) = (None, None);
        for (i, log) in self.logs.iter().enumerate() {
            let Some(shown) = log.shown().map(|at| (at, i)) else { continue };
            if best.is_none_or(|best| shown < best) {
                (best, rival) = (Some(shown), best);
            } else if rival.is_none_or(|rival| shown < rival) {
                rival = Some(shown);
            }
        }
        best.map(|(_, first)| (first, rival))
    }
}
