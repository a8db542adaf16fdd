//! Cancels a fetch from another thread, also while it waits for a registry.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A switch that a fetch and its caller share. Once raised, the fetch fails soon, and so does every later one with it.
#[derive(Clone, Default)]
pub struct Cancellation(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    raised: bool,
    /// End what is under way; one per client of a registry.
    actions: Vec<Box<dyn Fn() + Send>>,
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellation").field("raised", &self.is_raised()).finish()
    }
}

impl Cancellation {
    /// Cancels the fetch.
    pub fn raise(&self) {
        let actions = {
            let mut state = self.lock();
            state.raised = true;
            std::mem::take(&mut state.actions)
        };
        actions.iter().for_each(|action| action());
    }

    /// Whether the fetch is cancelled.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.lock().raised
    }

    /// Runs an action when it is raised, or at once if it is already.
    pub(crate) fn on_raise(&self, action: impl Fn() + Send + 'static) {
        let mut state = self.lock();
        if !state.raised {
            state.actions.push(Box::new(action));
            return;
        }
        drop(state);
        action();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn actions_run_once_before_and_after() {
        let (cancellation, count) = (Cancellation::default(), Arc::new(AtomicUsize::new(0)));
        for expected in [0, 2] {
            let count = Arc::clone(&count);
            assert_eq!(cancellation.is_raised(), expected > 0);
            cancellation.on_raise(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
            cancellation.raise();
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
