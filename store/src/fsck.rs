//! Checks the consistency of the store. Read-only. Other processes may be writing, so a finding is verified a second
//! time before it is reported.

use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use gantry_model::id::shown;
use gantry_model::query::PodQuery;
use gantry_model::{Digest, ErrorKind, Kind, Phase, PodId};

use crate::constraints;
use crate::db::ignore_checks;
use crate::pods::row::Columns;
use crate::sweep::{ROW_TIMEOUT, list_names};
use crate::{BlobError, Layout, PodState, Store, StoreError};

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
const SWEEP: &str = "run 'gantry gc' and 'gantry image gc'";

impl Store {
    /// Checks the database, and that rows and files agree; with `deep`, every page of the database, every blob and
    /// every file of the layers.
    ///
    /// # Errors
    /// None so far: damage, also of parts that cannot be examined, is a finding.
    pub fn check(&self, deep: bool) -> Result<Vec<Finding>, StoreError> {
        type Part = fn(&Store, bool, &mut Report) -> Result<(), StoreError>;
        let parts: [Part; 8] = [
            Self::check_database,
            Self::check_sequence,
            Self::check_permissions,
            Self::check_layers,
            Self::check_blobs,
            Self::check_pods,
            Self::check_volumes,
            Self::check_temporaries,
        ];
        let mut report = Report::default();
        for part in parts {
            match part(self, deep, &mut report) {
                Err(error) if error.kind() == ErrorKind::Damaged => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                    report.error(format!("a part of the store cannot be read: {error}: {cause}"), RESTORE);
                }
                Err(error) => {
                    // `check_permissions` reports missing files, for the other parts, too.
                    if error.kind() != ErrorKind::NotFound {
                        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                        report.error(format!("a part of the store cannot be looked at: {error}: {cause}"), REPEAT_HINT);
                    }
                }
                Ok(()) => {}
            }
        }
        Ok(report.findings)
    }

    fn check_database(&self, deep: bool, report: &mut Report) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the database");
        // Malformed JSON fails the CHECK constraints of older databases with an error that ends the check. The rows are
        // found below.
        ignore_checks(&self.conn).map_err(sql())?;
        let query = if deep { "PRAGMA integrity_check(20)" } else { "PRAGMA quick_check(20)" };
        let mut check = self.conn.prepare(query).map_err(sql())?;
        let mut rows = check.query([]).map_err(sql())?;
        while let Some(row) = rows.next().map_err(sql())? {
            let line: String = row.get(0).map_err(sql())?;
            if line != "ok" {
                report.error(format!("the database is damaged: {}", shown(&line)), RESTORE);
            }
        }
        for line in constraints::violations(&self.conn).map_err(sql())? {
            report.error(line, RESTORE);
        }
        let mut check = self.conn.prepare("PRAGMA foreign_key_check").map_err(sql())?;
        let mut rows = check.query([]).map_err(sql())?;
        while let Some(row) = rows.next().map_err(sql())? {
            let table: String = row.get(0).map_err(sql())?;
            let parent: String = row.get(2).map_err(sql())?;
            let what =
                format!("a row of table '{}' refers to one of '{}' that is not there", shown(&table), shown(&parent));
            report.error(what, RESTORE);
        }
        Ok(())
    }

    /// Numbers rise by one within a boot and lie between the last trimmed number and the next one.
    fn check_sequence(&self, _deep: bool, report: &mut Report) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the events");
        let mut gaps = self
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
            report.error(format!("the events between {before} and {seq} are missing"), RESTORE);
        }
        let states: u32 = self.conn.query_row("SELECT count(*) FROM state", [], |row| row.get(0)).map_err(sql())?;
        let outside: u32 = self
            .conn
            .query_row("SELECT count(*) FROM event, state WHERE seq >= next_seq OR seq <= trimmed", [], |row| {
                row.get(0)
            })
            .map_err(sql())?;
        if states != 1 || outside > 0 {
            report.error("the number of the next event is wrong".to_owned(), RESTORE);
        }
        Ok(())
    }

    fn check_permissions(&self, _deep: bool, report: &mut Report) -> Result<(), StoreError> {
        let layout = &self.layout;
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
                    report.error(format!("{} is missing", path.display()), "make it again with mode 0700");
                    continue;
                }
                Err(error) => return Err(StoreError::io("examine", path)(error)),
            };
            if found.is_dir() != is_dir || found.is_symlink() {
                report.error(format!("{} is of the wrong type", path.display()), RESTORE);
            } else if found.mode() & 0o077 != 0 {
                let what =
                    format!("{} has mode {:04o}, so that others can get in", path.display(), found.mode() & 0o7777);
                report.error(what, "run 'chmod go=' on it if what it contains can be trusted");
            } else if found.uid() != user {
                report.error(format!("{} belongs to user {}", path.display(), found.uid()), "run 'chown' on it");
            }
        }
        Ok(())
    }

    fn check_layers(&self, deep: bool, report: &mut Report) -> Result<(), StoreError> {
        let sql = || StoreError::sql("check the layers");
        let chains: Vec<Digest> = self
            .conn
            .prepare("SELECT chain FROM layer ORDER BY chain")
            .and_then(|mut all| all.query_map([], |row| Columns::new(row).parsed())?.collect())
            .map_err(sql())?;
        for chain in &chains {
            // Second check: the row may have been deleted with the tree.
            if !self.layout.tree_dir(chain).is_dir() && self.tree_names()?.contains(&Layout::tree_name(chain)) {
                report.error(format!("the directory of layer {chain} is missing"), REFETCH);
            } else if deep && let Some(why) = self.check_layer(chain)? {
                report.error(format!("layer {chain} is damaged: {why}"), REFETCH);
            } else if self.is_damaged(chain) {
                report.error(format!("layer {chain} was found damaged"), REFETCH);
            }
        }
        let known = self.tree_names()?;
        for name in list_names(&self.layout.trees_dir())?.into_iter().filter(|name| !known.contains(name)) {
            // Held: it is being committed or collected right now.
            if crate::trees::layer_of_replaced(&name).is_none()
                && !crate::trees::is_locked(&self.layout, &name)?
                && self.layout.trees_dir().join(&name).exists()
                && !self.tree_names()?.contains(&name)
            {
                report.warning(format!("directory '{}' in 'trees' belongs to no layer", shown(&name)));
            }
        }
        Ok(())
    }

    fn check_blobs(&self, deep: bool, report: &mut Report) -> Result<(), StoreError> {
        for text in self.needed_blobs()? {
            let Ok(digest) = text.parse::<Digest>() else {
                report.error(format!("an image refers to '{}', which is no digest", shown(&text)), RESTORE);
                continue;
            };
            if !self.has_blob(&digest)? {
                if self.needed_blobs()?.contains(&text) {
                    report.error(format!("blob {digest} is missing"), REFETCH);
                }
            } else if deep {
                match self.blob(&digest, MAX_BLOB) {
                    Ok(_) => {}
                    Err(BlobError::Store(error)) => return Err(error),
                    Err(error) => report.error(error.to_string(), REFETCH),
                }
            }
        }
        Ok(())
    }

    fn check_pods(&self, _deep: bool, report: &mut Report) -> Result<(), StoreError> {
        for pod in self.pods(&PodQuery::default())? {
            let needs_dir = matches!(
                pod.phase,
                Phase::Prepared { .. } | Phase::Running { .. } | Phase::Exited { .. } | Phase::Starting { .. }
            );
            if needs_dir && !self.layout.pod_dir(&pod.id).is_dir() {
                let now = self.pod(pod.id)?;
                if now.is_some_and(|now| now.phase == pod.phase) {
                    let what = format!("pod {} is {} and has no directory", pod.id, pod.phase.name());
                    report.error(what, &format!("'gantry rm {}' removes it, and so does 'gantry gc' in time", pod.id));
                }
            }
        }
        let deadline = Instant::now() + ROW_TIMEOUT;
        for name in list_names(&self.layout.pods_dir())? {
            match name.parse::<PodId>() {
                Ok(id) => {
                    if self.pod(id)?.is_none() && self.lacks_row(id, deadline)? {
                        report.warning(format!("the directory of pod {id} has no row"));
                    }
                }
                Err(_) => report
                    .error(format!("'{}' in 'pods' is no pod", shown(&name)), "gantry did not make it: move it away"),
            }
        }
        Ok(())
    }

    /// Whether a pod has a directory and, until the deadline, no row. The directory comes first, so a free lock means
    /// that its creator is dead, and a held one that the row may be on its way.
    fn lacks_row(&self, id: PodId, deadline: Instant) -> Result<bool, StoreError> {
        match self.try_lock_pod(id)? {
            PodState::Absent => Ok(false),
            PodState::Free(_lock) => Ok(self.pod(id)?.is_none()),
            PodState::Held => self.is_held_without_row(id, deadline),
        }
    }

    fn check_volumes(&self, _deep: bool, report: &mut Report) -> Result<(), StoreError> {
        for volume in self.volumes()? {
            // Second check: it may have been removed in the meantime.
            if !self.layout.volume_data(&volume.name).is_dir() && self.volume(&volume.name)?.is_some() {
                let what = format!("the directory of volume '{}' is missing", volume.name);
                report.error(what, "put it back from a backup, or remove the volume with 'gantry volume rm'");
            }
        }
        let mut unfinished = self.unfinished_volumes()?;
        if !unfinished.is_empty() {
            // The second check: a creation or removal that was in progress has finished.
            let _lock = self.lock_volumes()?;
            unfinished = self.unfinished_volumes()?;
        }
        for name in unfinished {
            report.warning(format!("the directory of volume '{}' and the database do not agree", shown(&name)));
        }
        Ok(())
    }

    fn check_temporaries(&self, _deep: bool, report: &mut Report) -> Result<(), StoreError> {
        for path in crate::tmp::left(&self.layout)? {
            report.warning(format!("{} was left by a process that died", path.display()));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Report {
    findings: Vec<Finding>,
}

impl Report {
    fn error(&mut self, what: String, hint: &str) {
        self.findings.push(Finding { what, severity: Severity::Error, hint: hint.to_owned() });
    }

    fn warning(&mut self, what: String) {
        self.findings.push(Finding { what, severity: Severity::Warning, hint: SWEEP.to_owned() });
    }
}
