//! How far the stop and the end of the pod have come.

use std::time::{Duration, Instant};

use gantry_model::ErrorKind;

use super::DRAIN_TIMEOUT;
use crate::failure::{Result, failure};

/// The stop of the pod, which may be skipped if the last app ends by itself, and its end.
#[derive(Default)]
pub(super) struct Shutdown {
    is_stopping: bool,
    /// Every process of the pod has ended; only its output is left.
    has_ended: bool,
    /// When the apps that are still running are killed.
    kill_at: Option<Instant>,
    /// When foregrounds that have not read all output are dropped; set when a client or signal stopped the pod.
    drop_foregrounds_at: Option<Instant>,
    /// When outputs are closed that have not ended although their writers were killed.
    close_outputs_at: Option<Instant>,
}

impl Shutdown {
    /// Whether the pod is being stopped.
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    /// Whether every process of the pod has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Fails unless the pod takes changes of its apps.
    pub(super) fn check_is_open(&self) -> Result<()> {
        match self.is_stopping || self.has_ended {
            true => Err(failure(ErrorKind::Refused, "the pod is being stopped")),
            false => Ok(()),
        }
    }

    /// Begins the stop; returns whether it had not begun.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.is_stopping, true)
    }

    /// Has the apps killed that still run after `grace`. A further call can only shorten the grace.
    pub(super) fn kill_after(&mut self, grace: Duration) {
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Has the foregrounds dropped that have not read all output [`DRAIN_TIMEOUT`] after the grace.
    pub(super) fn begin_foreground_timeout(&mut self) {
        self.drop_foregrounds_at = self.kill_at.map(|at| at + DRAIN_TIMEOUT);
    }

    /// Whether the apps are to be killed now.
    pub(super) fn take_due_kill(&mut self, now: Instant) -> bool {
        self.kill_at.take_if(|at| *at <= now).is_some()
    }

    /// Whether the foregrounds are to be dropped now.
    pub(super) fn take_due_foreground_timeout(&mut self, now: Instant) -> bool {
        self.drop_foregrounds_at.take_if(|at| *at <= now).is_some()
    }

    /// Every process of the pod has ended.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Begins the time in which the outputs must end, unless it has begun; returns its end.
    pub(super) fn begin_drain_timeout(&mut self) -> Instant {
        *self.close_outputs_at.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT)
    }

    /// Lets the outputs take any time: a foreground is slow.
    pub(super) fn clear_drain_timeout(&mut self) {
        self.close_outputs_at = None;
    }

    /// When the event loop has work.
    pub(super) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        let of_foregrounds = self.drop_foregrounds_at.filter(|_| self.has_ended);
        self.kill_at.into_iter().chain(of_foregrounds).chain(self.close_outputs_at)
    }
}
