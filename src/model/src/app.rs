//! The state machine of an app within its pod.
//!
//! ```text
//! Waiting -started-> Started -exited-> Exited -started-> Started …     an app that was created with its pod
//! Creating -created-> Created -started-> Started -exited-> Exited …    an app that was added to a running pod
//! Creating, Waiting, Created, Exited -removed-> (gone)
//! ```
//!
//! * **Waiting**: its pod is not started yet.
//! * **Creating**: a row that protects the image; a process is adding the app to a running pod, or has died doing so.
//! * **Created**: its root, mounts and cgroup exist, and its program was found; nothing runs.
//! * **Started**, **Exited**: see `attempt`, the number of the start. An app that exited can be started again.
//!
//! States are read from the supervisor's journal, possibly several steps at once: [`AppState::precedes`] has the order.

use crate::Timestamp;

/// How the main process of an app ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppOutcome {
    /// It called exit with this code (0 to 255).
    Exited(u8),
    /// A signal (its number) ended it.
    Signaled(u8),
    /// Unknown: the supervisor or the host died first.
    Lost,
}

/// The end of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AppEnd {
    /// How its main process ended.
    pub how: AppOutcome,
    /// Whether the kernel killed a process of the app because a memory limit was reached.
    pub oom: bool,
    /// When the supervisor saw it end.
    pub at: Timestamp,
    /// When its restart policy starts it again. `None`: it does not, or the app was stopped before that time.
    pub restart_at: Option<Timestamp>,
}

impl AppOutcome {
    /// The code a shell would show: the code itself, or 128 + n for signal n; 137 (SIGKILL) when it is unknown.
    #[must_use]
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Exited(code) => i32::from(code),
            Self::Signaled(signal) => 128 + i32::from(signal),
            Self::Lost => 137,
        }
    }

    /// Whether it ended as it should: exit code 0.
    #[must_use]
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }
}

/// The state of an app. `attempt` counts its starts from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AppState {
    /// Not started yet (its pod is being prepared, is prepared, or is starting).
    Waiting,
    /// Being added to a running pod.
    Creating,
    /// Added to a running pod, and never started.
    Created,
    /// Its main process runs.
    Started {
        /// When it was started.
        at: Timestamp,
        /// Its main process, in the host's PID namespace.
        pid: u32,
        /// The number of the start, from 0.
        attempt: u32,
    },
    /// Its main process has ended.
    Exited {
        /// When it was started; `None` when it never was.
        started: Option<Timestamp>,
        /// How and when it ended.
        end: AppEnd,
        /// The number of the start, from 0.
        attempt: u32,
    },
}

impl AppState {
    /// The names of all states.
    pub const NAMES: [&'static str; 5] = ["waiting", "creating", "created", "running", "exited"];

    /// The word for tables and JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Started { .. } => "running",
            Self::Exited { .. } => "exited",
        }
    }

    /// Whether it has exited and is about to be started again by its restart policy.
    #[must_use]
    pub fn is_restarting(&self) -> bool {
        matches!(self, Self::Exited { end, .. } if end.restart_at.is_some())
    }

    /// The number of its last start; `None` when it was never started.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::Waiting | Self::Creating | Self::Created => None,
            Self::Started { attempt, .. } | Self::Exited { attempt, .. } => Some(*attempt),
        }
    }

    /// The number of its next start; `None` while it runs, is being added, or waits for its pod, and after the last
    /// number.
    #[must_use]
    pub fn next_attempt(&self) -> Option<u32> {
        match self {
            Self::Waiting | Self::Creating | Self::Started { .. } => None,
            Self::Created => Some(0),
            Self::Exited { attempt, .. } => attempt.checked_add(1),
        }
    }

    /// Whether its main process runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        matches!(self, Self::Started { .. })
    }

    /// Whether an app in this state can be removed from a running pod.
    #[must_use]
    pub fn can_be_removed(&self) -> bool {
        match self {
            Self::Waiting | Self::Creating | Self::Created | Self::Exited { .. } => true,
            Self::Started { .. } => false,
        }
    }

    /// Whether `next` is a later state of the same app. Steps in between may have been missed.
    #[must_use]
    pub fn precedes(&self, next: &Self) -> bool {
        self.order() < next.order()
    }

    /// The place in the life of an app.
    fn order(&self) -> (u8, u32, u8) {
        match self {
            Self::Waiting | Self::Creating => (0, 0, 0),
            Self::Created => (1, 0, 0),
            Self::Started { attempt, .. } => (2, *attempt, 0),
            // A restart that was planned may be cancelled.
            Self::Exited { attempt, end, .. } => (2, *attempt, if end.restart_at.is_some() { 1 } else { 2 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn started(attempt: u32) -> AppState {
        AppState::Started { at: Timestamp(1), pid: 7, attempt }
    }

    fn exited(attempt: u32) -> AppState {
        let end = AppEnd { how: AppOutcome::Exited(0), oom: false, at: Timestamp(2), restart_at: None };
        AppState::Exited { started: Some(Timestamp(1)), end, attempt }
    }

    fn to_be_restarted(attempt: u32) -> AppState {
        let end = AppEnd { how: AppOutcome::Exited(1), oom: false, at: Timestamp(2), restart_at: Some(Timestamp(3)) };
        AppState::Exited { started: Some(Timestamp(1)), end, attempt }
    }

    fn any_state() -> impl Strategy<Value = AppState> {
        prop_oneof![
            Just(AppState::Waiting),
            Just(AppState::Creating),
            Just(AppState::Created),
            any::<u32>().prop_map(started),
            any::<u32>().prop_map(exited),
            any::<u32>().prop_map(to_be_restarted),
        ]
    }

    /// The graph as text: a changed edge shows up as a changed picture in review.
    #[test]
    fn the_graph_of_an_app() {
        let states = [AppState::Waiting, AppState::Creating, AppState::Created, started(0), exited(0), started(1)];
        assert_eq!(states[..5].iter().map(AppState::name).collect::<Vec<_>>(), AppState::NAMES);
        let drawn: Vec<String> = states
            .iter()
            .map(|from| {
                let later: Vec<&str> = states.iter().filter(|to| from.precedes(to)).map(AppState::name).collect();
                let removed = if from.can_be_removed() { ", (gone)" } else { "" };
                format!("{} {:?} -> {}{removed}", from.name(), from.next_attempt(), later.join(", "))
            })
            .collect();
        let want = "waiting None -> created, running, exited, running, (gone)
creating None -> created, running, exited, running, (gone)
created Some(0) -> running, exited, running, (gone)
running None -> exited, running
exited Some(1) -> running, (gone)
running None -> ";
        assert_eq!(drawn.join("\n"), want);
    }

    #[test]
    fn a_planned_restart_can_be_cancelled() {
        assert!(to_be_restarted(0).precedes(&exited(0)) && to_be_restarted(0).precedes(&started(1)));
        assert!(!exited(0).precedes(&to_be_restarted(0)));
    }

    proptest! {
        /// In any sequence of states that are taken only when they are later, no attempt is started or ends twice,
        /// numbers never decrease, and an app that runs is not removed.
        #[test]
        fn no_life_goes_back(states in proptest::collection::vec(any_state(), 0..40)) {
            let mut now = AppState::Creating;
            let mut lived = vec![now];
            for next in states {
                prop_assert!(!(now.precedes(&next) && next.precedes(&now)));
                if now.precedes(&next) {
                    prop_assert!(now.attempt() <= next.attempt());
                    prop_assert!(!lived.contains(&next));
                    now = next;
                    lived.push(now);
                }
                prop_assert_eq!(now.is_running(), !now.can_be_removed());
                prop_assert!(now.next_attempt().is_none_or(|attempt| now.precedes(&started(attempt))));
            }
        }
    }
}
