//! Waiting for a pod to end, or to run. Woken by the kernel when a supervisor ends; a pod that nobody has started yet is
//! looked at again and again.

use std::os::fd::AsFd as _;
use std::time::Duration;

use gantry_model::{Phase, PodId};

use crate::look::PodView;
use crate::process::{self, Deadline};
use crate::{Engine, PodError};

/// How often a pod without a supervisor is looked at.
const LOOK: Duration = Duration::from_millis(20);

impl Engine {
    /// Waits until nothing of the pod will run again. `None`: the deadline passed.
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone by then.
    pub fn wait(&self, id: PodId, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        self.wait_until(id, Deadline::maybe(deadline), |phase| phase.is_final())
    }

    /// Waits until the pod runs, or never will. `None`: the deadline passed.
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone by then.
    pub fn wait_ready(&self, id: PodId, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        let ready = |phase: &Phase| matches!(phase, Phase::Running { .. }) || phase.is_final();
        self.wait_until(id, Deadline::maybe(deadline), ready)
    }

    pub(crate) fn wait_until(
        &self,
        id: PodId,
        deadline: Deadline,
        reached: impl Fn(&Phase) -> bool,
    ) -> Result<Option<PodView>, PodError> {
        loop {
            let view = self.status(id)?;
            if reached(&view.row.phase) {
                return Ok(Some(view));
            }
            if deadline.passed() {
                return Ok(None);
            }
            match view.supervisor().and_then(|supervisor| process::open(supervisor, self.store.boot())) {
                Some(fd) => {
                    process::readable(&[fd.as_fd()], deadline)
                        .map_err(PodError::io("wait for the supervisor of", &view.dir))?;
                }
                None => {
                    process::readable(&[], deadline.at_most(LOOK)).map_err(PodError::io("wait for", &view.dir))?;
                }
            }
        }
    }
}
