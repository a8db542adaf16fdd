//! The state machine of a pod: one enum with the data each phase owns, and one pure function, [`step`].
//!
//! ```text
//! Embryo -prepare-> Preparing -prepared-> Prepared -started-> Running -ended-> Exited -marked-> Garbage
//! Embryo, Preparing -aborted-> AbortedPrepare -marked-> Garbage       Prepared -discarded-> Garbage
//! Garbage -deleting-> Garbage, being deleted -swept-> (gone)
//! Exited -restart-> Starting -started-> Running       Starting -start-failed-> Exited
//! ```
//!
//! * **Embryo**: an id, a row, and a locked, empty pod directory. Left by a killed process; removed by reconcile.
//! * **Preparing**: a process creates the pod directory and holds its lock. A free lock means that it died: aborted.
//! * **Prepared**: complete on disk, durable if `prepare` reported success; nothing runs.
//! * **Running**: a supervisor holds the lock. A free lock means that the pod has ended: its journal has the outcome.
//! * **Exited**: nothing runs; logs, upper directories and the journal remain until garbage collection.
//! * **Starting**: an exited pod is started again; a process that does so, or its supervisor, holds the lock. A free
//!   lock means that it died: exited as before, unless the journal says that the pod became ready.
//! * **Garbage**: marked for deletion, and still complete. Once its deletion has begun it is called `deleting`, also if
//!   the process that began it was killed.
//!
//! No clock and no I/O. `store` makes a step durable as a compare-and-set on the row's generation.

use thiserror::Error;

use crate::{AppName, BootId, Timestamp};

/// A process that cannot be mistaken for another one that got its number later.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Process {
    /// Number in the host's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_ticks: u64,
    /// The boot in which both mean something.
    pub boot: BootId,
}

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodEnd {
    /// 0, or the exit code of the first app that failed.
    pub exit_code: i32,
    /// The first app that failed.
    pub failed_app: Option<AppName>,
    /// The reason, for display (`all apps ended`, `the supervisor was killed` …).
    pub reason: String,
}

/// The phase of a pod before it became garbage.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FormerPhase {
    /// It was never complete.
    Aborted,
    /// It was prepared and never run.
    Prepared,
    /// It ran, from (when known) to, and ended so.
    Exited {
        /// When it was started.
        started: Timestamp,
        /// When it ended.
        at: Timestamp,
        /// How.
        end: PodEnd,
    },
}

/// The phase of a pod, with the data that belongs to this phase alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A row, nothing on disk.
    Embryo,
    /// The pod directory is being made.
    Preparing,
    /// Its preparer failed or died.
    AbortedPrepare {
        /// When that was seen.
        at: Timestamp,
    },
    /// Ready to run.
    Prepared {
        /// Since when.
        at: Timestamp,
    },
    /// A supervisor runs it.
    Running {
        /// Since when.
        since: Timestamp,
        /// The supervisor, which holds the lock on the pod directory.
        supervisor: Process,
    },
    /// It has ended.
    Exited {
        /// When it was started.
        started: Timestamp,
        /// When it ended.
        at: Timestamp,
        /// How.
        end: PodEnd,
    },
    /// It has ended, and is started again.
    Starting {
        /// When its last run was started.
        started: Timestamp,
        /// When that run ended.
        at: Timestamp,
        /// How.
        end: PodEnd,
    },
    /// It is to be deleted.
    Garbage {
        /// When that was decided.
        marked: Timestamp,
        /// Its phase before.
        was: FormerPhase,
        /// Since when it is being deleted: parts of it may be gone.
        deleting: Option<Timestamp>,
    },
}

/// An edge of the state machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Edge {
    /// The creation of the pod directory begins.
    Prepare,
    /// The pod directory is complete.
    Prepared(Timestamp),
    /// The preparer failed or was found dead.
    Aborted(Timestamp),
    /// The supervisor has reported ready.
    Started {
        /// When.
        at: Timestamp,
        /// Its process.
        supervisor: Process,
    },
    /// The supervisor is gone.
    Ended {
        /// When.
        at: Timestamp,
        /// How.
        end: PodEnd,
    },
    /// An exited pod is started again.
    Restart,
    /// It could not be started again, or the process that started it again was found dead.
    StartFailed,
    /// An ended or aborted pod is given up.
    Marked(Timestamp),
    /// A prepared pod is given up without having run.
    Discarded(Timestamp),
    /// Its deletion begins, or continues after the process that began it was killed.
    Deleting(Timestamp),
    /// All of it is deleted; the row goes with this edge.
    Swept,
}

/// The result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stepped {
    /// It is now in this phase.
    To(Phase),
    /// It is gone.
    Gone,
}

/// This edge does not leave this phase.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a pod that is {phase} cannot be {edge}")]
pub struct Refused {
    /// The name of the phase.
    pub phase: PhaseName,
    /// The name of the edge.
    pub edge: &'static str,
}

impl crate::Kind for Refused {
    fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Refused
    }
}

/// The one place that knows which edge leaves which phase.
///
/// # Errors
/// [`Refused`] when the edge does not leave the phase; losing a race looks like this too.
pub fn step(phase: &Phase, edge: Edge) -> Result<Stepped, Refused> {
    let refused = Refused { phase: phase.name(), edge: edge.name() };
    let to = match (phase, edge) {
        (Phase::Embryo, Edge::Prepare) => Phase::Preparing,
        (Phase::Preparing, Edge::Prepared(at)) => Phase::Prepared { at },
        (Phase::Embryo | Phase::Preparing, Edge::Aborted(at)) => Phase::AbortedPrepare { at },
        (Phase::Prepared { .. } | Phase::Starting { .. }, Edge::Started { at, supervisor }) => {
            Phase::Running { since: at, supervisor }
        }
        (Phase::Prepared { .. }, Edge::Discarded(marked)) => garbage(marked, FormerPhase::Prepared),
        (Phase::Running { since, .. }, Edge::Ended { at, end }) => Phase::Exited { started: *since, at, end },
        (Phase::Exited { started, at, end }, Edge::Restart) => {
            Phase::Starting { started: *started, at: *at, end: end.clone() }
        }
        (Phase::Starting { started, at, end }, Edge::StartFailed) => {
            Phase::Exited { started: *started, at: *at, end: end.clone() }
        }
        (Phase::AbortedPrepare { .. }, Edge::Marked(marked)) => garbage(marked, FormerPhase::Aborted),
        (Phase::Exited { started, at, end }, Edge::Marked(marked)) => {
            garbage(marked, FormerPhase::Exited { started: *started, at: *at, end: end.clone() })
        }
        // A deletion that is continued keeps its time.
        (Phase::Garbage { marked, was, deleting }, Edge::Deleting(at)) => {
            Phase::Garbage { marked: *marked, was: was.clone(), deleting: Some(deleting.unwrap_or(at)) }
        }
        (Phase::Garbage { deleting: Some(_), .. }, Edge::Swept) => return Ok(Stepped::Gone),
        _ => return Err(refused),
    };
    Ok(Stepped::To(to))
}

fn garbage(marked: Timestamp, was: FormerPhase) -> Phase {
    Phase::Garbage { marked, was, deleting: None }
}

/// The name of a phase. Garbage that is being deleted has a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "see the module")]
pub enum PhaseName {
    Embryo,
    Preparing,
    AbortedPrepare,
    Prepared,
    Running,
    Exited,
    Starting,
    Garbage,
    Deleting,
}

impl PhaseName {
    /// All names, in the order of a life.
    pub const ALL: [Self; 9] = [
        Self::Embryo,
        Self::Preparing,
        Self::AbortedPrepare,
        Self::Prepared,
        Self::Running,
        Self::Exited,
        Self::Starting,
        Self::Garbage,
        Self::Deleting,
    ];

    /// Whether nothing of the pod runs or will run, unless a process starts it again.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Embryo | Self::Preparing | Self::Prepared | Self::Starting | Self::Running => false,
            Self::AbortedPrepare | Self::Exited | Self::Garbage | Self::Deleting => true,
        }
    }

    /// The phases that reconciling can change: those that are not final.
    pub fn unfinished() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|name| !name.is_final())
    }

    /// The stable word, as shown and asked for.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Embryo => "embryo",
            Self::Preparing => "preparing",
            Self::AbortedPrepare => "aborted-prepare",
            Self::Prepared => "prepared",
            Self::Running => "running",
            Self::Exited => "exited",
            Self::Starting => "starting",
            Self::Garbage => "garbage",
            Self::Deleting => "deleting",
        }
    }

    /// The name with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "embryo" => Self::Embryo,
            "preparing" => Self::Preparing,
            "aborted-prepare" => Self::AbortedPrepare,
            "prepared" => Self::Prepared,
            "running" => Self::Running,
            "exited" => Self::Exited,
            "starting" => Self::Starting,
            "garbage" => Self::Garbage,
            "deleting" => Self::Deleting,
            _ => return None,
        })
    }
}

impl std::fmt::Display for PhaseName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Phase {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> PhaseName {
        match self {
            Self::Embryo => PhaseName::Embryo,
            Self::Preparing => PhaseName::Preparing,
            Self::AbortedPrepare { .. } => PhaseName::AbortedPrepare,
            Self::Prepared { .. } => PhaseName::Prepared,
            Self::Running { .. } => PhaseName::Running,
            Self::Exited { .. } => PhaseName::Exited,
            Self::Starting { .. } => PhaseName::Starting,
            Self::Garbage { deleting: None, .. } => PhaseName::Garbage,
            Self::Garbage { deleting: Some(_), .. } => PhaseName::Deleting,
        }
    }

    /// Whether nothing of the pod runs or will run, unless a process starts it again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        self.name().is_final()
    }

    /// Whether the pod has ended or its preparation was aborted, and it was not marked as garbage since.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::AbortedPrepare { .. })
    }

    /// When it was last started, if it ever was.
    #[must_use]
    pub fn started_at(&self) -> Option<Timestamp> {
        match self {
            Self::Running { since, .. } => Some(*since),
            Self::Exited { started, .. }
            | Self::Starting { started, .. }
            | Self::Garbage { was: FormerPhase::Exited { started, .. }, .. } => Some(*started),
            _ => None,
        }
    }

    /// When and how it ended, if it ran and did.
    #[must_use]
    pub fn end(&self) -> Option<(Timestamp, &PodEnd)> {
        match self {
            Self::Exited { at, end, .. } | Self::Garbage { was: FormerPhase::Exited { at, end, .. }, .. } => {
                Some((*at, end))
            }
            _ => None,
        }
    }
}

impl Edge {
    /// The name, as in the drawing above.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Prepared(_) => "prepared",
            Self::Aborted(_) => "aborted",
            Self::Started { .. } => "started",
            Self::Restart => "restart",
            Self::StartFailed => "start-failed",
            Self::Ended { .. } => "ended",
            Self::Marked(_) => "marked",
            Self::Discarded(_) => "discarded",
            Self::Deleting(_) => "deleting",
            Self::Swept => "swept",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn supervisor() -> Process {
        Process { pid: 7, start_ticks: 9, boot: BootId("b".into()) }
    }

    fn end() -> PodEnd {
        PodEnd { exit_code: 3, failed_app: None, reason: "r".into() }
    }

    fn edges() -> Vec<Edge> {
        let t = Timestamp(1);
        vec![
            Edge::Prepare,
            Edge::Prepared(t),
            Edge::Aborted(t),
            Edge::Started { at: t, supervisor: supervisor() },
            Edge::Ended { at: t, end: end() },
            Edge::Restart,
            Edge::StartFailed,
            Edge::Marked(t),
            Edge::Discarded(t),
            Edge::Deleting(t),
            Edge::Swept,
        ]
    }

    fn phases() -> Vec<Phase> {
        let t = Timestamp(1);
        vec![
            Phase::Embryo,
            Phase::Preparing,
            Phase::AbortedPrepare { at: t },
            Phase::Prepared { at: t },
            Phase::Running { since: t, supervisor: supervisor() },
            Phase::Exited { started: t, at: t, end: end() },
            Phase::Starting { started: t, at: t, end: end() },
            garbage(t, FormerPhase::Prepared),
            Phase::Garbage { marked: t, was: FormerPhase::Prepared, deleting: Some(Timestamp(0)) },
        ]
    }

    /// The graph as text: a changed edge shows up as a changed picture in review.
    #[test]
    fn phase_graph_is_as_drawn() {
        let mut drawn = Vec::new();
        for phase in phases() {
            for edge in edges() {
                let name = edge.name();
                match step(&phase, edge) {
                    Ok(Stepped::To(to)) => drawn.push(format!("{} -{name}-> {}", phase.name(), to.name())),
                    Ok(Stepped::Gone) => drawn.push(format!("{} -{name}-> (gone)", phase.name())),
                    Err(_) => {}
                }
            }
        }
        let want = "embryo -prepare-> preparing
embryo -aborted-> aborted-prepare
preparing -prepared-> prepared
preparing -aborted-> aborted-prepare
aborted-prepare -marked-> garbage
prepared -started-> running
prepared -discarded-> garbage
running -ended-> exited
exited -restart-> starting
exited -marked-> garbage
starting -started-> running
starting -start-failed-> exited
garbage -deleting-> deleting
deleting -deleting-> deleting
deleting -swept-> (gone)";
        assert_eq!(drawn.join("\n"), want);
        assert_eq!(phases().iter().map(Phase::name).collect::<Vec<_>>(), PhaseName::ALL);
        for name in PhaseName::ALL {
            assert_eq!(PhaseName::from_word(name.as_str()), Some(name));
        }
        assert_eq!(PhaseName::from_word("no-phase"), None);
    }

    #[test]
    fn repeated_deletion_keeps_the_first_timestamp() {
        let mut phase = garbage(Timestamp(1), FormerPhase::Aborted);
        for at in [2, 3] {
            let Ok(Stepped::To(next)) = step(&phase, Edge::Deleting(Timestamp(at))) else { panic!("{phase:?}") };
            assert_eq!(
                next,
                Phase::Garbage { marked: Timestamp(1), was: FormerPhase::Aborted, deleting: Some(Timestamp(2)) }
            );
            phase = next;
        }
    }

    proptest! {
        /// Whatever the order of the edges: a pod runs again only after it has ended and was started again, a failed
        /// start keeps the former end, and nothing is gone before it is garbage that is being deleted.
        #[test]
        fn a_pod_runs_once_per_start(walk in proptest::collection::vec(0usize..11, 0..60)) {
            let mut phase = Phase::Embryo;
            let (mut starts, mut requests) = (0, 0);
            for i in walk {
                let edge = edges().swap_remove(i);
                let before = phase.clone();
                match step(&phase, edge.clone()) {
                    Ok(Stepped::To(next)) => {
                        starts += u32::from(matches!(next, Phase::Running { .. }));
                        requests += u32::from(matches!(next, Phase::Prepared { .. } | Phase::Starting { .. }));
                        let runs_or_will = !next.is_final();
                        prop_assert!(!before.is_final() || !runs_or_will || edge == Edge::Restart);
                        if matches!(before, Phase::Starting { .. }) && next.is_final() {
                            prop_assert_eq!(before.end(), None);
                            prop_assert_eq!(next.started_at(), before.started_at());
                        }
                        phase = next;
                    }
                    Ok(Stepped::Gone) => {
                        prop_assert_eq!(phase.name(), PhaseName::Deleting);
                        break;
                    }
                    Err(_) => {}
                }
                prop_assert!(starts <= requests);
            }
        }
    }
}
