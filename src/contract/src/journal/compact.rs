//! Shortens a journal without changing what reconciling makes of it.
//!
//! Kept are the lines of:
//!
//! * the pod: the start reply, its failure, its end, and the first, the last and the newest ones of every other kind;
//! * each app: its creation, its newest attempts, the last fact of each kind, and its first failure, on which the exit
//!   code of the pod depends;
//! * each former app: its removal, until its name is used again. Its row may not be deleted yet.
//!
//! So a row that is behind the journal reaches the same state as without the compaction. It misses the events of
//! attempts that are no longer in the journal; only a host without gantryd and without any command has such rows.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{Discriminant, discriminant};
use std::ops::Range;

use super::{Fact, Record};
use crate::ProcessExit;

/// The lines of one app, or those that concern the pod as a whole.
#[derive(Default)]
struct Subject {
    /// The creation or the removal of the app.
    head: Option<usize>,
    /// The lines after it, and whether each is a start.
    lines: Vec<(usize, bool)>,
    /// The last line of each kind.
    last: BTreeMap<Kind, usize>,
    /// The attempts whose next exit was requested.
    stopping: BTreeSet<u32>,
    /// The position in `lines` of the first exit that was a failure.
    failure: Option<usize>,
}

/// A kind of fact, in the order in which the kinds were first seen.
type Kind = usize;

impl Subject {
    fn push(&mut self, line: usize, kind: Kind, fact: &Fact) {
        match fact {
            Fact::AppStopping { attempt, unhealthy: false, .. } => drop(self.stopping.insert(*attempt)),
            Fact::AppExited { attempt, how, restart_at, .. } => {
                let was_requested = self.stopping.remove(attempt);
                if *how != ProcessExit::Code(0) && !was_requested && restart_at.is_none() {
                    self.failure.get_or_insert(self.lines.len());
                }
            }
            // It does not decide whether an exit is a failure.
            _ => {}
        }
        self.lines.push((line, matches!(fact, Fact::AppStarted(_))));
        self.last.insert(kind, line);
    }

    /// The newest lines, from the start of an attempt on: the facts before an exit decide whether it is a failure.
    fn newest(&self, max: usize) -> &[(usize, bool)] {
        let newest = self.lines.get(self.lines.len().saturating_sub(max)..).unwrap_or_default();
        let start = newest.iter().position(|(_, is_start)| *is_start).filter(|_| newest.len() < self.lines.len());
        newest.get(start.unwrap_or(0)..).unwrap_or_default()
    }

    /// The lines of the attempt that ended with the first failure.
    fn failed_attempt(&self) -> &[(usize, bool)] {
        let Some(failure) = self.failure else { return &[] };
        let is_start = |line: &(usize, bool)| line.1;
        let begin = self.lines[..failure].iter().rposition(is_start).unwrap_or(0);
        let length = self.lines[failure..].iter().position(is_start);
        &self.lines[begin..length.map_or(self.lines.len(), |length| failure + length)]
    }

    fn kept(&self, max: usize) -> impl Iterator<Item = usize> {
        let failed = self.failed_attempt();
        // An attempt may be as long as the journal: its changes of health, for example.
        let failed = failed.iter().take(max).chain(failed.iter().rev().take(max));
        let lines = failed.chain(self.newest(max)).map(|(line, _)| *line);
        lines.chain(self.head).chain(self.last.values().copied())
    }
}

/// A shorter journal of the same meaning, with about `max_facts` newest facts of each app. Lines that are no records
/// are left out.
#[must_use]
pub fn compact(journal: &[u8], max_facts: usize) -> Vec<u8> {
    let (mut lines, mut end) = (Vec::<Range<usize>>::new(), 0);
    let mut kinds: Vec<Discriminant<Fact>> = Vec::new();
    let mut apps: BTreeMap<String, Subject> = BTreeMap::new();
    let (mut pod, mut always) = (Subject::default(), BTreeSet::new());
    for text in journal.split_inclusive(|&byte| byte == b'\n') {
        let range = end..end + text.len();
        end = range.end;
        let Some(Record { fact, .. }) = text.strip_suffix(b"\n").and_then(|text| serde_json::from_slice(text).ok())
        else {
            continue;
        };
        let line = lines.len();
        lines.push(range);
        let this = discriminant(&fact);
        let kind = kinds.iter().position(|kind| *kind == this).unwrap_or_else(|| {
            always.insert(line);
            kinds.push(this);
            kinds.len() - 1
        });
        match (&fact, fact.app()) {
            (Fact::AppCreated { .. } | Fact::AppRemoved { .. }, Some(app)) => {
                apps.insert(app.to_owned(), Subject { head: Some(line), ..Subject::default() });
            }
            (_, Some(app)) => match apps.get_mut(app) {
                Some(subject) => subject.push(line, kind, &fact),
                None => apps.entry(app.to_owned()).or_default().push(line, kind, &fact),
            },
            (Fact::Ready(_) | Fact::Failed(_) | Fact::Ended, None) => drop(always.insert(line)),
            (_, None) => pod.push(line, kind, &fact),
        }
    }
    let kept: BTreeSet<usize> = apps.values().chain([&pod]).flat_map(|subject| subject.kept(max_facts)).collect();
    let kept = kept.union(&always).filter_map(|line| journal.get(lines.get(*line)?.clone()));
    kept.flatten().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::super::{line, parse};
    use super::*;
    use crate::start::Started;

    const MAX_FACTS: usize = 12;

    fn journal(facts: impl IntoIterator<Item = Fact>) -> Vec<u8> {
        let records = facts.into_iter().zip(0..).map(|(fact, at)| Record { at, fact });
        records.flat_map(|record| line(&record).unwrap()).collect()
    }

    fn attempt(app: &str, attempt: u32, code: u8) -> [Fact; 2] {
        let started = Started { app: app.into(), attempt, pid: 7, at: 1 };
        let how = ProcessExit::Code(code);
        [Fact::AppStarted(started), Fact::AppExited { app: app.into(), attempt, how, oom: false, restart_at: None }]
    }

    #[test]
    fn long_journals_become_short_and_stay_so() {
        let loops = (0..5000).flat_map(|n| attempt("a", n, u8::from(n == 17)));
        let former = (0..5000).flat_map(|n| {
            let [started, exited] = attempt("b", 0, 1);
            let created = Fact::AppCreated { app: "b".into() };
            [created, started, exited, Fact::AppRemoved { app: if n % 2 == 0 { "b" } else { "c" }.into() }]
        });
        let long = journal(loops.chain(former).chain([Fact::Ended]));
        let short = compact(&long, MAX_FACTS);
        let parsed = parse(&short);
        assert!(parsed.records.len() < 40, "{}", parsed.records.len());
        assert_eq!(parsed.records.last().map(|record| &record.fact), Some(&Fact::Ended));
        let attempts: Vec<u32> = parsed
            .records
            .iter()
            .filter_map(|record| match &record.fact {
                Fact::AppStarted(started) if started.app == "a" => Some(started.attempt),
                _ => None,
            })
            .collect();
        assert_eq!(attempts, [0, 17, 4994, 4995, 4996, 4997, 4998, 4999]);
        assert_eq!(compact(&short, MAX_FACTS), short, "idempotent");
    }

    #[test]
    fn damaged_lines_and_unknown_facts() {
        let mut bytes = b"nonsense\n{\"at\":6,\"fact\":\"from-the-future\"}\n".to_vec();
        bytes.extend(journal([Fact::Ended]));
        bytes.extend_from_slice(b"{\"at\":7,\"fa");
        let facts: Vec<Fact> = parse(&compact(&bytes, 1)).records.into_iter().map(|record| record.fact).collect();
        assert_eq!(facts, [Fact::Unknown, Fact::Ended]);
    }
}
