//! The journal: an append-only file with one JSON line per fact, each written with a single `write`.
//!
//! A reader takes the complete lines and ignores a torn last one (left by a crash of the host; a `kill -9` does not
//! tear a single `write`). Reconciling updates the database from the journal. A list reads only the journals that have
//! changed since an earlier list found all of their facts in the database.
//!
//! The supervisor replaces a journal that has grown long by a shorter one of the same meaning ([`compact`]), under the
//! same name. A reader that has the former file open reads it as it was at that moment.

mod compact;

use std::collections::BTreeMap;

pub use compact::compact;
use gantry_model::{HealthState, OomLevel, OomVictim};
use serde::{Deserialize, Serialize};

use crate::{Failure, ProcessExit, start};

/// One fact.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The time, in nanoseconds since the epoch.
    pub at: i64,
    /// The fact.
    pub fact: Fact,
}

/// Why a pod is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopReason {
    /// A client asked for it.
    Stop,
    /// A client asked for it, without a grace (an older supervisor).
    Kill,
    /// An app has failed.
    AppFailed,
    /// The supervisor got a signal.
    SupervisorSignal,
    /// The pod's PID 1 was killed.
    #[serde(rename = "pid-1-killed")]
    InitKilled,
    /// The word of a reason that this version does not know.
    #[serde(untagged)]
    Other(String),
}

/// A fact of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fact {
    /// The pod runs.
    Ready(start::Ready),
    /// Starting it failed; nothing ran.
    Failed(Failure),
    /// It is being stopped.
    Stopping {
        /// Why.
        reason: StopReason,
    },
    /// An app was added to the running pod.
    AppCreated {
        /// Its name.
        app: String,
    },
    /// The program of an app was executed, other than at the start of the pod.
    AppStarted(start::Started),
    /// An app has sent `READY=1` (sd_notify(3)) for the first time since this start.
    AppReady {
        /// Its name.
        app: String,
        /// The number of the start.
        attempt: u32,
    },
    /// An app was asked to stop: its next exit is no failure, unless it is stopped, or killed, because it is unhealthy.
    AppStopping {
        /// Its name.
        app: String,
        /// The number of the start.
        attempt: u32,
        /// Whether its health check demanded it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unhealthy: bool,
    },
    /// An app was removed from the running pod. Its name may be used again.
    AppRemoved {
        /// Its name.
        app: String,
    },
    /// An app's main process ended.
    AppExited {
        /// Its name.
        app: String,
        /// The number of the start.
        attempt: u32,
        /// The end of the app.
        how: ProcessExit,
        /// Whether the kernel killed one of its processes for lack of memory.
        oom: bool,
        /// When its restart policy starts it again, in nanoseconds since the epoch. `None`: it does not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        restart_at: Option<i64>,
    },
    /// The processes of an app, or of every running app, were frozen on request.
    Paused {
        /// The app; `None`: the pod.
        app: Option<String>,
    },
    /// The processes of an app, or of every app, were thawed.
    Resumed {
        /// The app; `None`: the pod.
        app: Option<String>,
    },
    /// The limits of an app or of the pod were changed ([`crate::limits`] has them).
    LimitsUpdated {
        /// The app; `None`: the pod.
        app: Option<String>,
        /// The number of the start of the app that runs; `None`: it does not run, or the pod was changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        /// The number of the change, from 1, of the app or of the pod, also across restarts; 0 of older supervisors.
        #[serde(default)]
        number: u32,
        /// The limits that are new, by name ([`gantry_model::spec::Limits::changes_to`]).
        #[serde(default)]
        changes: BTreeMap<String, String>,
    },
    /// The health of an app has changed. Of an app that changes all the time, some changes are not recorded.
    HealthChanged {
        /// Its name.
        app: String,
        /// The number of the start.
        attempt: u32,
        /// The number of the change, from 1, also across restarts of the app.
        number: u32,
        /// The new state.
        health: HealthState,
        /// The number of failures in a row.
        #[serde(default)]
        failures: u32,
        /// The beginning of the output of the last probe; empty when the app was started.
        #[serde(default)]
        output: String,
    },
    /// The OOM killer killed processes of an app.
    AppOomKilled {
        /// Its name.
        app: String,
        /// The number of the start.
        attempt: u32,
        /// The number of processes that were killed.
        kills: u64,
        /// The number over all starts of the app, these included.
        total: u64,
        /// The limit that was reached.
        level: OomLevel,
        /// Whether the main process is among them.
        main: bool,
        /// The last process that was killed; `None`: the kernel log does not name it, or cannot be read.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        victim: Option<OomVictim>,
    },
    /// Log bytes were dropped because the log file could not be written.
    LogDropped {
        /// The app.
        app: String,
        /// Bytes since the last such record.
        bytes: u64,
        /// The cause.
        why: String,
    },
    /// All apps have ended and their output is in the logs. The last record.
    Ended,
    /// A fact of a newer supervisor that this reader does not know.
    #[serde(other, skip_serializing)]
    Unknown,
}

impl Fact {
    /// The app that it concerns; `None`: the pod.
    #[must_use]
    pub fn app(&self) -> Option<&str> {
        match self {
            Self::AppStarted(started) => Some(&started.app),
            Self::AppCreated { app }
            | Self::AppReady { app, .. }
            | Self::AppStopping { app, .. }
            | Self::AppRemoved { app }
            | Self::AppExited { app, .. }
            | Self::HealthChanged { app, .. }
            | Self::AppOomKilled { app, .. }
            | Self::LogDropped { app, .. } => Some(app),
            Self::Paused { app } | Self::Resumed { app } | Self::LimitsUpdated { app, .. } => app.as_deref(),
            Self::Ready(_) | Self::Failed(_) | Self::Stopping { .. } | Self::Ended | Self::Unknown => None,
        }
    }
}

/// One line, with its newline.
///
/// # Errors
/// Does not fail for records made of the types here; the error is part of serde's signature.
pub fn line(record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec(record)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// The records in a journal's bytes. A torn last line is ignored; a damaged line in the middle is counted.
#[must_use]
pub fn parse(bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed::default();
    match str::from_utf8(bytes) {
        // `from_str` need not validate each string again.
        Ok(text) => {
            let lines = text.split_inclusive('\n').map_while(|line| line.strip_suffix('\n'));
            lines.for_each(|line| parsed.push(serde_json::from_str(line)));
        }
        Err(_) => {
            let lines = bytes.split_inclusive(|&c| c == b'\n').map_while(|line| line.strip_suffix(b"\n"));
            lines.for_each(|line| parsed.push(serde_json::from_slice(line)));
        }
    }
    parsed
}

/// The result of [`parse`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The facts, in order.
    pub records: Vec<Record>,
    /// Lines that were no records.
    pub damaged: usize,
}

impl Parsed {
    fn push(&mut self, line: serde_json::Result<Record>) {
        match line {
            Ok(record) => self.records.push(record),
            Err(_) => self.damaged += 1,
        }
    }

    /// Adds the facts that were appended to the journal later.
    pub fn extend(&mut self, later: Self) {
        self.records.extend(later.records);
        self.damaged += later.damaged;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_tails_and_unknown_facts_are_skipped() {
        let record = |fact| Record { at: 5, fact };
        let mut bytes = line(&record(Fact::Stopping { reason: StopReason::Stop })).unwrap();
        bytes.extend_from_slice(b"{\"at\":6,\"fact\":\"from-the-future\"}\nnonsense\n");
        bytes.extend(line(&record(Fact::Ended)).unwrap());
        bytes.extend_from_slice(b"{\"at\":7,\"fa");
        let parsed = parse(&bytes);
        assert_eq!(parsed.damaged, 1);
        let facts: Vec<_> = parsed.records.iter().map(|r| &r.fact).collect();
        assert_eq!(facts, [&Fact::Stopping { reason: StopReason::Stop }, &Fact::Unknown, &Fact::Ended]);
        // A line that is not UTF-8 does not hide the others.
        bytes.splice(0..0, *b"{\"at\":4,\xff}\n");
        assert_eq!(parse(&bytes), Parsed { damaged: 2, ..parsed });
    }

    #[test]
    fn reasons_of_other_versions_are_kept() {
        use StopReason::{AppFailed, InitKilled, Kill, Other, Stop, SupervisorSignal};
        for (reason, word) in [
            (Stop, "stop"),
            (Kill, "kill"),
            (AppFailed, "app-failed"),
            (SupervisorSignal, "supervisor-signal"),
            (InitKilled, "pid-1-killed"),
            (Other("from-the-future".to_owned()), "from-the-future"),
        ] {
            let text = line(&Record { at: 2, fact: Fact::Stopping { reason: reason.clone() } }).unwrap();
            let want = format!(r#"{{"at":2,"fact":{{"stopping":{{"reason":"{word}"}}}}}}"#) + "\n";
            assert_eq!(String::from_utf8(text).unwrap(), want);
            assert_eq!(parse(want.as_bytes()).records[0].fact, Fact::Stopping { reason });
        }
    }

    proptest::proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        /// Readers parse only what was appended.
        #[test]
        fn journals_are_parsed_line_by_line(lines: Vec<(Option<i64>, Vec<u8>)>, at: proptest::sample::Index) {
            let text = |(time, noise): &(Option<i64>, Vec<u8>)| match time {
                Some(at) => line(&Record { at: *at, fact: Fact::Ended }).unwrap(),
                None => [noise.as_slice(), b"\n"].concat(),
            };
            let lines: Vec<_> = lines.iter().map(text).collect();
            let (first, later) = lines.split_at(at.index(lines.len() + 1));
            let mut parsed = parse(&first.concat());
            parsed.extend(parse(&later.concat()));
            proptest::prop_assert_eq!(parsed, parse(&lines.concat()));
        }
    }
}
