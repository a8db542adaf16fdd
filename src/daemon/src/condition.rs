//! What state the database was found in: saying so, and waiting where nothing can be kept.

use std::os::fd::AsFd as _;

use gantry_engine::{Condition, Keeping, Record};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tracing::{error, warn};

use crate::signals::Signals;

/// Says what was done to the database, or is wrong with it.
pub(crate) fn say(keeping: &Keeping) {
    let lines = keeping.condition.lines();
    for (n, line) in lines.iter().enumerate() {
        // What happened, then what came of it.
        if n == 0 { error!("{line}") } else { warn!("{line}") }
    }
    keeping.found.lines().iter().for_each(|line| warn!("{line}"));
    if let Some(Record { at, .. }) = &keeping.restored_before {
        let when = at.rfc3339();
        warn!("the database was restored at {}; 'gantry doctor' says from what", when.as_str());
    }
}

/// Keeps nothing, until a signal ends it: nothing can be written, so no pod is settled and no garbage collected.
pub(crate) fn only_serve(signals: &Signals, condition: &Condition) -> anyhow::Result<()> {
    loop {
        let asked = signals.take();
        if asked.end {
            return Ok(());
        }
        if asked.reload {
            // What a configuration says is for a keeper; and the first thing to be known is still this.
            condition.lines().iter().for_each(|line| error!("{line}"));
        }
        match poll(&mut [PollFd::new(&signals.as_fd(), PollFlags::IN)], None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
}
