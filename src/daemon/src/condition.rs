//! The condition of the database at the start: logs it, and serves read-only if the database cannot be written.

use std::os::fd::AsFd as _;

use gantry_engine::{Condition, Keeping, Options, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tracing::{error, warn};

use crate::signals::Signals;

/// Between two attempts to open the database for writing.
const RETRY: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Logs repairs and damage of the database.
pub(crate) fn log_condition(keeping: &Keeping) {
    let lines = keeping.condition.lines();
    for (n, line) in lines.iter().enumerate() {
        // First the problem, then its consequences.
        if n == 0 { error!("{line}") } else { warn!("{line}") }
    }
    keeping.found.lines().iter().for_each(|line| warn!("{line}"));
    if let Some(Record { at, .. }) = &keeping.restored_before {
        let when = at.rfc3339();
        warn!("the database was restored at {}; 'gantry doctor' says from what", when.as_str());
    }
}

/// Waits until a signal ends it. The database cannot be written, so no pod is reconciled and no garbage collected.
///
/// # Errors
/// The database can be written again, for example because the disk is no longer full: the service manager then starts
/// gantryd again, which checks and reconciles everything in the usual order. A damaged database stays read-only.
pub(crate) fn serve_read_only(signals: &Signals, condition: &Condition, options: &Options) -> anyhow::Result<()> {
    loop {
        let requests = signals.take_requests();
        if requests.end {
            return Ok(());
        }
        if requests.reload {
            // The configuration concerns the keeper, which does not run. Repeat the reason.
            condition.lines().iter().for_each(|line| error!("{line}"));
        }
        match poll(&mut [PollFd::new(&signals.as_fd(), PollFlags::IN)], Some(&RETRY)) {
            // The cause was logged at the start; only a success is news.
            Ok(0) if gantry_engine::can_be_kept(options) => {
                anyhow::bail!("the database can be written again: gantryd ends, to be started again");
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
}
