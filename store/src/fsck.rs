//! Checks the consistency of the store. Read-only. Other processes may be writing, so a finding is verified a second
//! time before it is reported.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use gantry_model::id::shown;
use gantry_model::query::PodQuery;
use gantry_model::{Digest, ErrorKind, Kind, Phase, PodId};

use crate::constraints;
use crate::db::ignore_checks;
use crate::pods::row::Columns;
use crate::sweep::{ROW_TIMEOUT, list_names};
use crate::{BlobError, Layout, PodRow, PodState, Store, StoreError};

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// Left over: costs space, harms nothing.
    Warning,
    /// A part is missing or damaged.
    Error,
}

/// An inconsistency.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The finding.
    pub what: String,
    /// The severity.
    pub severity: Severity,
    /// The remedy.
    pub hint: String,
}

/// Blobs are manifests and configurations; a larger file is not a blob.
const MAX_BLOB: u64 = 64 << 20;

const REFETCH: &str = "fetch the image again, or remove it";
const RESTORE: &str = "restart gantryd, which restores the newest good one of its backups, and fetch what is missing";
const REPEAT_HINT: &str = "run 'gantry doctor' again when the cause is gone";
const MAKE_AGAIN: &str = "make it again with mode 0700";
const MOVE_AWAY: &str = "move it away, and make the directory again with mode 0700";
const SWEEP: &str = "run 'gantry gc' and 'gantry image gc'";

/// What a check reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The database, and whether rows and files agree.
    Quick,
    /// Also every page of the database, every blob and every file of the layers.
    Deep,
}

impl Store {
    /// Checks the database, and that rows and files agree. Damage, also of parts that cannot be examined, is a finding.
    #[must_use]
    pub fn check(&self, depth: Depth) -> Vec<Finding> {
        let parts = [
            Checker::check_database,
            Checker::check_sequence,
            Checker::check_permissions,
            Checker::check_layers,
            Checker::check_blobs,
            Checker::check_pods,
            Checker::check_volumes,
            Checker::check_temporaries,
        ];
        let mut checker = Checker { store: self, depth, findings: Vec::new() };
        for part in parts {
            match part(&mut checker) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    checker.error(format!("a part of the store cannot be read: {}", chain(&error)), RESTORE);
                }
                // `check_permissions` reports missing files, for the other parts, too.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    checker.error(format!("a part of the store cannot be looked at: {}", chain(&error)), REPEAT_HINT);
                }
                Ok(()) => {}
            }
        }
        checker.findings
    }
}

/// An error and its cause.
fn chain(error: &StoreError) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    format!("{error}: {cause}")
}

/// A check in progress.
struct Checker<'a> {
    store: &'a Store,
    depth: Depth,
    findings: Vec<Finding>,
}

impl Checker<'_> {
    fn check_database(&mut self) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the database");
        // Malformed JSON fails the CHECK constraints of older databases with an error that ends the check. The rows are
        // found below.
        ignore_checks(&self.store.conn).map_err(sql())?;
        let query = if self.depth == Depth::Deep { "PRAGMA integrity_check(20)" } else { "PRAGMA quick_check(20)" };
        let mut check = self.store.conn.prepare(query).map_err(sql())?;
        let mut rows = check.query([]).map_err(sql())?;
        while let Some(row) = rows.next().map_err(sql())? {
            let line: String = row.get(0).map_err(sql())?;
            if line != "ok" {
                self.error(format!("the database is damaged: {}", shown(&line)), RESTORE);
            }
        }
        for line in constraints::violations(&self.store.conn).map_err(sql())? {
            self.error(line, RESTORE);
        }
        let mut check = self.store.conn.prepare("PRAGMA foreign_key_check").map_err(sql())?;
        let mut rows = check.query([]).map_err(sql())?;
        while let Some(row) = rows.next().map_err(sql())? {
            let table: String = row.get(0).map_err(sql())?;
            let parent: String = row.get(2).map_err(sql())?;
            let what =
                format!("a row of table '{}' refers to one of '{}' that is not there", shown(&table), shown(&parent));
            self.error(what, RESTORE);
        }
        Ok(())
    }

    /// Numbers rise by one within a boot and lie between the last trimmed number and the next one.
    fn check_sequence(&mut self) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the events");
        let mut gaps = self
            .store
            .conn
            .prepare(
                "SELECT before, seq FROM (SELECT seq, boot, lag(seq) OVER (ORDER BY seq) AS before,
                    lag(boot) OVER (ORDER BY seq) AS boot_before FROM event)
                    WHERE boot = boot_before AND seq <> before + 1 LIMIT 20",
            )
            .map_err(sql())?;
        let mut rows = gaps.query([]).map_err(sql())?;
        while let Some(row) = rows.next().map_err(sql())? {
            let (before, seq): (i64, i64) = (row.get(0).map_err(sql())?, row.get(1).map_err(sql())?);
            self.error(format!("the events between {before} and {seq} are missing"), RESTORE);
        }
        let states: u32 =
            self.store.conn.query_row("SELECT count(*) FROM state", [], |row| row.get(0)).map_err(sql())?;
        let outside: u32 = self
            .store
            .conn
            .query_row("SELECT count(*) FROM event, state WHERE seq >= next_seq OR seq <= trimmed", [], |row| {
                row.get(0)
            })
            .map_err(sql())?;
        if states != 1 || outside > 0 {
            self.error("the number of the next event is wrong".to_owned(), RESTORE);
        }
        Ok(())
    }

    fn check_permissions(&mut self) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let user = rustix::process::geteuid().as_raw();
        let dirs = [
            layout.root().to_owned(),
            layout.backups_dir(),
            layout.pods_dir(),
            layout.trees_dir(),
            layout.blobs_dir(),
            layout.tmp_dir(),
            layout.locks_dir(),
        ];
        for (path, is_dir) in dirs.iter().map(|dir| (dir, true)).chain([(&layout.db(), false)]) {
            let found = match path.symlink_metadata() {
                Ok(found) => found,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    self.error(format!("{} is missing", path.display()), MAKE_AGAIN);
                    continue;
                }
                Err(error) => return Err(StoreError::io("examine", path)(error)),
            };
            if found.is_dir() != is_dir || found.is_symlink() {
                let hint = if is_dir { MOVE_AWAY } else { RESTORE };
                self.error(format!("{} is of the wrong type", path.display()), hint);
            } else if found.mode() & 0o077 != 0 {
                let what =
                    format!("{} has mode {:04o}, so that others can get in", path.display(), found.mode() & 0o7777);
                self.error(what, "run 'chmod go=' on it if what it contains can be trusted");
            } else if found.uid() != user {
                self.error(format!("{} belongs to user {}", path.display(), found.uid()), "run 'chown' on it");
            }
        }
        Ok(())
    }

    fn check_layers(&mut self) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the layers");
        let chains: Vec<Digest> = self
            .store
            .conn
            .prepare("SELECT chain FROM layer ORDER BY chain")
            .and_then(|mut all| all.query_map([], |row| Columns::new(row).parsed())?.collect())
            .map_err(sql())?;
        for chain in &chains {
            // Second check: the row may have been deleted with the tree.
            if !self.store.layout.tree_dir(chain).is_dir()
                && self.store.tree_names()?.contains(&Layout::tree_name(chain))
            {
                self.error(format!("the directory of layer {chain} is missing"), REFETCH);
            } else if self.depth == Depth::Deep
                && let Some(why) = self.store.check_layer(chain)?
            {
                self.error(format!("layer {chain} is damaged: {why}"), REFETCH);
            } else if self.store.is_damaged(chain) {
                self.error(format!("layer {chain} was found damaged"), REFETCH);
            }
        }
        let known = self.store.tree_names()?;
        for name in list_names(&self.store.layout.trees_dir())?.into_iter().filter(|name| !known.contains(name)) {
            // Held: it is being committed or collected right now.
            if crate::trees::layer_of_replaced(&name).is_none()
                && !crate::trees::is_locked(&self.store.layout, &name)?
                && self.store.layout.trees_dir().join(&name).exists()
                && !self.store.tree_names()?.contains(&name)
            {
                self.warning(format!("directory '{}' in 'trees' belongs to no layer", shown(&name)));
            }
        }
        Ok(())
    }

    fn check_blobs(&mut self) -> Result<(), StoreError> {
        for text in self.store.needed_blobs()? {
            let Ok(digest) = text.parse::<Digest>() else {
                self.error(format!("an image refers to '{}', which is no digest", shown(&text)), RESTORE);
                continue;
            };
            if !self.store.has_blob(&digest)? {
                if self.store.needed_blobs()?.contains(&text) {
                    self.error(format!("blob {digest} is missing"), REFETCH);
                }
            } else if self.depth == Depth::Deep {
                match self.store.blob(&digest, MAX_BLOB) {
                    Ok(_) => {}
                    Err(BlobError::Store(error)) => return Err(error),
                    Err(error) => self.error(error.to_string(), REFETCH),
                }
            }
        }
        Ok(())
    }

    fn check_pods(&mut self) -> Result<(), StoreError> {
        for pod in self.store.pods(&PodQuery::default())? {
            let needs_dir = matches!(
                pod.phase,
                Phase::Prepared { .. } | Phase::Running { .. } | Phase::Exited { .. } | Phase::Starting { .. }
            );
            if needs_dir {
                self.check_pod_dir(&pod)?;
            }
        }
        let deadline = Instant::now() + ROW_TIMEOUT;
        for name in list_names(&self.store.layout.pods_dir())? {
            match name.parse::<PodId>() {
                Ok(id) if self.store.pod(id)?.is_some() => {}
                Ok(id) if self.entry_of(id).is_some_and(|entry| !entry.is_dir()) => self.error_no_pod(&name),
                Ok(id) => {
                    if self.lacks_row(id, deadline)? {
                        self.warning(format!("the directory of pod {id} has no row"));
                    }
                }
                Err(_) => self.error_no_pod(&name),
            }
        }
        Ok(())
    }

    /// What has the name of a pod's directory.
    fn entry_of(&self, id: PodId) -> Option<Metadata> {
        self.store.layout.pod_dir(&id).symlink_metadata().ok()
    }

    fn error_no_pod(&mut self, name: &str) {
        self.error(format!("'{}' in 'pods' is no pod", shown(name)), "gantry did not make it: move it away");
    }

    /// A pod that needs a directory has one.
    fn check_pod_dir(&mut self, pod: &PodRow) -> Result<(), StoreError> {
        let (id, phase) = (pod.id, pod.phase.name());
        let entry = self.entry_of(id);
        if entry.as_ref().is_some_and(Metadata::is_dir) || self.store.pod(id)?.is_none_or(|now| now.phase != pod.phase)
        {
            return Ok(());
        }
        let what = match entry {
            Some(_) => format!("pod {id} is {phase}, and {} is no directory", self.store.layout.pod_dir(&id).display()),
            None => format!("pod {id} is {phase} and has no directory"),
        };
        let hint = match (&pod.phase, entry.is_some()) {
            (Phase::Running { .. }, _) => {
                format!("put it back, or stop and remove the pod with 'gantry rm --force {id}'")
            }
            (_, true) => format!("put the directory back, or remove the pod and this entry with 'gantry rm {id}'"),
            (_, false) => format!("'gantry rm {id}' removes it, and so does 'gantry gc' in time"),
        };
        self.error(what, &hint);
        Ok(())
    }

    /// Whether a pod has a directory and, until the deadline, no row. The directory comes first, so a free lock means
    /// that its creator is dead, and a held one that the row may be on its way.
    fn lacks_row(&self, id: PodId, deadline: Instant) -> Result<bool, StoreError> {
        match self.store.try_lock_pod(id)? {
            PodState::Absent => Ok(false),
            PodState::Free(_lock) => Ok(self.store.pod(id)?.is_none()),
            PodState::Held => self.store.is_held_without_row(id, deadline),
        }
    }

    fn check_volumes(&mut self) -> Result<(), StoreError> {
        for volume in self.store.volumes()? {
            // Second check: it may have been removed in the meantime.
            if !self.store.layout.volume_data(&volume.name).is_dir() && self.store.volume(&volume.name)?.is_some() {
                let what = format!("the directory of volume '{}' is missing", volume.name);
                self.error(what, "put it back from a backup, or remove the volume with 'gantry volume rm'");
            }
        }
        let mut unfinished = self.store.unfinished_volumes()?;
        if !unfinished.is_empty() {
            // The second check: a creation or removal that was in progress has finished.
            let _lock = self.store.lock_volumes()?;
            unfinished = self.store.unfinished_volumes()?;
        }
        for name in unfinished {
            self.warning(format!("the directory of volume '{}' and the database do not agree", shown(&name)));
        }
        Ok(())
    }

    fn check_temporaries(&mut self) -> Result<(), StoreError> {
        for path in crate::tmp::left(&self.store.layout)? {
            self.warning(format!("{} was left by a process that died", path.display()));
        }
        Ok(())
    }

    fn error(&mut self, what: String, hint: &str) {
        self.findings.push(Finding { what, severity: Severity::Error, hint: hint.to_owned() });
    }

    fn warning(&mut self, what: String) {
        self.findings.push(Finding { what, severity: Severity::Warning, hint: SWEEP.to_owned() });
    }
}
