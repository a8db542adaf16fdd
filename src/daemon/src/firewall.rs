//! Our nftables stay as running pods need them: a thread that hears of every change somebody else makes to our tables
//! (`nft flush ruleset`, a reload of another firewall), and has them put back when something was taken away.
//!
//! What belongs there is known to `gantry-stage1` alone, and only it changes them; so its changes are not looked at. A
//! change is answered when no other has come for a moment ([`QUIET`]), for who takes one part away mostly takes more;
//! but never later than [`LATEST`], and not more often than once in [`BREATH`], for two who undo each other's work for
//! ever should not do so at full speed.
//!
//! At the start, when the keeper has settled what it found, everything is put in place once, and what belongs to no pod is
//! swept. Where the kernel does not tell of changes the tables are put in place every [`UNSEEN`] instead.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gantry_engine::{Engine, FirewallChange, FirewallMonitor, Options};
use gantry_model::query::PodQuery;
use tracing::{error, info, warn};

/// How long it is slept at most: nothing else tells that it is to end.
const LOOK: Duration = Duration::from_millis(500);
/// How long nothing must have happened before the tables are put back,
const QUIET: Duration = Duration::from_millis(100);
/// and how long it may be put off by that.
const LATEST: Duration = Duration::from_millis(500);
/// At least this long between two times.
const BREATH: Duration = Duration::from_secs(1);
/// How often the tables are put in place where changes are not seen, and whatever failed is tried again at the latest.
const UNSEEN: Duration = Duration::from_secs(30);

/// The thread. It ends when this is dropped.
pub(crate) struct Firewall {
    options: Arc<Mutex<Options>>,
    ended: Arc<AtomicBool>,
}

impl Firewall {
    /// Starts it.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(options: &Options) -> io::Result<Self> {
        let firewall = Self { options: Arc::new(Mutex::new(options.clone())), ended: Arc::default() };
        let theirs = Self { options: Arc::clone(&firewall.options), ended: Arc::clone(&firewall.ended) };
        std::thread::Builder::new().name("firewall".to_owned()).spawn(move || theirs.run())?;
        Ok(firewall)
    }

    /// Goes by these options from now on.
    pub(crate) fn reload(&self, options: &Options) {
        options.clone_into(&mut self.options.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn engine(&self) -> anyhow::Result<Engine> {
        let options = self.options.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Engine::open(options)?)
    }

    fn run(&self) {
        let mut ears = Ears::default();
        let mut due = Due::at(Instant::now());
        while !self.ended.load(Ordering::Relaxed) {
            if due.is_now(Instant::now()) {
                // First, so that what is changed after that is heard of.
                ears.open(self);
                self.put_back(&mut due);
            }
            match ears.listen(due.wait(Instant::now())) {
                Some(change) => due.note(&change, Instant::now()),
                None if ears.monitor.is_none() => due.within(UNSEEN),
                None => {}
            }
        }
    }

    /// Has the tables put in place, and what belongs to nobody swept the first time.
    fn put_back(&self, due: &mut Due) {
        let done = self.engine().and_then(|engine| {
            engine.reload_networks()?;
            if !due.begun {
                engine.sweep_networks(false)?.iter().for_each(|line| info!("swept: {line}"));
            }
            Ok(engine)
        });
        let now = Instant::now();
        match done {
            Ok(engine) => {
                say(&due.by, &engine);
                due.done(now);
            }
            Err(error) => due.failed(now, &error),
        }
    }
}

impl Drop for Firewall {
    /// Seen within the time of one look. A `gantry-stage1` that is at work when the process ends goes with it; the next start
    /// does all of it again.
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Who changed what we put back, if pods needed it.
fn say(by: &BTreeSet<String>, engine: &Engine) {
    if by.is_empty() {
        return;
    }
    let running = engine.store().pods(&PodQuery::in_phases(&["running"])).unwrap_or_default();
    let pods = running.iter().filter(|row| !row.networks.is_empty()).count();
    if pods > 0 {
        let by = by.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        warn!("nftables were changed by {by}: the rules of {pods} pods were put back");
    }
}

/// What the kernel tells of our tables.
#[derive(Default)]
struct Ears {
    monitor: Option<FirewallMonitor>,
    /// That it tells nothing was said.
    said: bool,
}

impl Ears {
    /// Begins to listen, unless it does, and where it can be. That it cannot is said once.
    fn open(&mut self, firewall: &Firewall) {
        if self.monitor.is_some() {
            return;
        }
        let opened = firewall.engine().and_then(|engine| Ok(engine.watch_firewall()?));
        match opened {
            Ok(monitor) => (self.monitor, self.said) = (Some(monitor), false),
            Err(error) => self.lost(&error),
        }
    }

    /// The next change by somebody else, if there is one within this time.
    fn listen(&mut self, most: Duration) -> Option<FirewallChange> {
        let Some(monitor) = &mut self.monitor else {
            std::thread::sleep(most);
            return None;
        };
        match monitor.wait(most) {
            Ok(change) => change,
            Err(error) => {
                self.monitor = None;
                self.lost(&error.into());
                None
            }
        }
    }

    fn lost(&mut self, error: &anyhow::Error) {
        if !self.said {
            self.said = true;
            let every = UNSEEN.as_secs();
            warn!("cannot watch nftables: {error:#}; putting the rules in place every {every} s instead");
        }
    }
}

/// When the tables are to be put in place, and why.
#[derive(Debug, Default)]
struct Due {
    /// When; nothing is to be done if it is not said.
    at: Option<Instant>,
    /// The first change that was not answered.
    first: Option<Instant>,
    /// When it was done last, or tried.
    last: Option<Instant>,
    /// Who made the changes.
    by: BTreeSet<String>,
    /// How often it has failed since it was done.
    failures: u32,
    /// Whether it was done at all.
    begun: bool,
    /// What went wrong last.
    trouble: Option<String>,
}

impl Due {
    /// It is to be done then.
    fn at(when: Instant) -> Self {
        Self { at: Some(when), ..Self::default() }
    }

    /// Somebody else made a change.
    fn note(&mut self, change: &FirewallChange, now: Instant) {
        // What was only added does no pod harm that its owner did not intend.
        if !change.removed {
            return;
        }
        let first = *self.first.get_or_insert(now);
        let quiet = (now + QUIET).min(first + LATEST);
        self.at = Some(self.last.map_or(quiet, |last| quiet.max(last + BREATH)));
        // Many can be at it; who they are is for people to read.
        if self.by.len() < 8 {
            self.by.insert(change.by.as_ref().map_or_else(|| "somebody".to_owned(), |name| format!("'{name}'")));
        }
    }

    /// It is to be done so long after the last time, if nothing is said yet.
    fn within(&mut self, most: Duration) {
        self.at = self.at.or(self.last.map(|last| last + most));
    }

    fn is_now(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| now >= at)
    }

    /// How long there is nothing to do but to listen.
    fn wait(&self, now: Instant) -> Duration {
        self.at.map_or(LOOK, |at| at.saturating_duration_since(now).min(LOOK))
    }

    fn done(&mut self, now: Instant) {
        *self = Self { last: Some(now), begun: true, ..Self::default() };
    }

    /// Tried again after a second, two, four … What is wrong is said when it changes.
    fn failed(&mut self, now: Instant, error: &anyhow::Error) {
        let text = format!("{error:#}");
        if self.trouble.as_ref() != Some(&text) {
            error!("{text}; trying again");
            self.trouble = Some(text);
        }
        let pause = BREATH.saturating_mul(1 << self.failures.min(5)).min(UNSEEN);
        self.failures = self.failures.saturating_add(1);
        (self.at, self.last) = (Some(now + pause), Some(now));
    }
}

#[cfg(test)]
mod tests {
    use gantry_engine::FirewallPart;

    use super::*;

    fn change(removed: bool, by: Option<&str>) -> FirewallChange {
        FirewallChange { removed, part: FirewallPart::Table, by: by.map(str::to_owned) }
    }

    #[test]
    fn what_was_removed_is_put_back_when_it_is_quiet() {
        let (mut due, start) = (Due::default(), Instant::now());
        let ms = |n| start + Duration::from_millis(n);
        due.note(&change(false, Some("nft")), start);
        assert!(!due.is_now(ms(1000)) && due.wait(start) == LOOK, "something was added");
        due.note(&change(true, Some("nft")), start);
        assert!(!due.is_now(ms(99)) && due.is_now(ms(100)));
        assert_eq!(due.wait(ms(40)), Duration::from_millis(60));
        for n in 0..20 {
            due.note(&change(true, None), ms(n * 50));
        }
        assert!(!due.is_now(ms(499)) && due.is_now(ms(500)), "not put off for ever");
        assert_eq!(due.by, BTreeSet::from(["'nft'".to_owned(), "somebody".to_owned()]));
        due.done(ms(500));
        assert!(!due.is_now(ms(9999)) && due.by.is_empty());
        due.note(&change(true, Some("other")), ms(510));
        assert!(!due.is_now(ms(1499)) && due.is_now(ms(1500)), "not without a breath");
        assert!(LATEST + BREATH < Duration::from_secs(2), "it is back within two seconds");
    }

    #[test]
    fn what_failed_is_tried_again_less_and_less_often() {
        let (mut due, start) = (Due::at(Instant::now()), Instant::now());
        let pauses: Vec<u64> = (0..8)
            .map(|_| {
                due.failed(start, &anyhow::anyhow!("no"));
                due.at.unwrap().duration_since(start).as_secs()
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
        // A change does not wait for that.
        due.note(&change(true, None), start);
        assert!(due.is_now(start + BREATH));
        due.done(start);
        assert!(due.begun && due.at.is_none());
    }
}
