//! The record of limits that were changed while the pod ran ([`gantry_contract::limits`]).

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::AsFd;

use gantry_contract::files;
use gantry_contract::limits::{MAX_RECORD, UpdatedLimits};
use gantry_contract::plan::Plan;
use gantry_host::file::{exchange, read_stream};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Attempt, Result};

/// The new record before it replaces the old one; afterwards the older record, if the names were exchanged.
const TEMPORARY: &str = "limits.json.new";

/// Replaces the limits in the plan by those that were changed. A record that a power cut damaged is ignored.
pub(crate) fn load(plan: &mut Plan) {
    match read(CWD, &format!("{}/{}", plan.pod_dir, files::LIMITS)) {
        Ok(Some(limits)) => limits.apply(plan),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!("the pod starts with the limits of its plan: cannot read {}: {error}", files::LIMITS)
        }
    }
}

fn read(dir: impl AsFd, path: &str) -> std::io::Result<Option<UpdatedLimits>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::openat(dir, path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        other => other?,
    };
    Ok(Some(serde_json::from_slice(&read_stream(File::from(file), MAX_RECORD)?)?))
}

/// What a power cut may leave of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// For a pod that gantryd starts again with these limits. On ext4: the old record or the new one. On other file
    /// systems, also a damaged one until the engine has synced it.
    OldOrNew,
    /// An older record, the new one, none, or a damaged one, which is ignored. Does not wait for the disk
    /// ([`gantry_host::file::exchange`]).
    Any,
}

/// Whether there is no record, or it is damaged.
pub(crate) fn is_lost(dir: impl AsFd) -> bool {
    match read(dir, files::LIMITS) {
        Ok(limits) => limits.is_none(),
        Err(error) => is_damaged(&error),
    }
}

fn is_damaged(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof)
}

/// Changes the record in the pod directory. A kill leaves the old record or the new one. A temporary file may remain,
/// and does after an exchange; the next change overwrites it.
pub(crate) fn change(
    dir: impl AsFd + Copy,
    durability: Durability,
    change: impl FnOnce(&mut UpdatedLimits),
) -> Result<()> {
    let what = || "cannot record the new limits";
    let mut limits = match read(dir, files::LIMITS) {
        Ok(limits) => limits.unwrap_or_default(),
        // A damaged record is replaced; one that cannot be read now may hold the limits of other apps.
        Err(error) if is_damaged(&error) => {
            tracing::warn!("the damaged {} is replaced: {error}", files::LIMITS);
            UpdatedLimits::default()
        }
        Err(error) => return Err(error).attempt(what),
    };
    change(&mut limits);
    let text = serde_json::to_vec(&limits).map_err(std::io::Error::from).attempt(what)?;
    let replaced = replace(dir, durability, &text);
    if replaced.is_err() {
        let _replaced_by_the_next_change = rustix::fs::unlinkat(dir, TEMPORARY, AtFlags::empty());
    }
    replaced.attempt(what)
}

/// Replaces the record by way of the temporary file.
fn replace(dir: impl AsFd + Copy, durability: Durability, text: &[u8]) -> std::io::Result<()> {
    let mut flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    // ext4 writes a truncated file to the disk when it is closed, and before a rename replaces another one by it.
    if durability == Durability::OldOrNew {
        flags |= OFlags::TRUNC;
    }
    let mut file = File::from(rustix::fs::openat(dir, TEMPORARY, flags, Mode::RUSR | Mode::WUSR)?);
    file.write_all(text)?;
    // The older record may be longer.
    file.set_len(text.len() as u64)?;
    match durability {
        Durability::OldOrNew => Ok(rustix::fs::renameat(dir, TEMPORARY, dir, files::LIMITS)?),
        Durability::Any => exchange(dir, TEMPORARY, files::LIMITS),
    }
}

/// Drops an app that was removed from the record: another app may get its name.
pub(crate) fn forget(dir: impl AsFd + Copy, durability: Durability, app: &str) {
    let is_recorded = |limits: UpdatedLimits| limits.apps.contains_key(app);
    if read(dir, files::LIMITS).ok().flatten().is_some_and(is_recorded)
        && let Err(why) = change(dir, durability, |limits| drop(limits.apps.remove(app)))
    {
        tracing::warn!("{}", why.message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::spec::Limits;

    fn apps(limits: &UpdatedLimits) -> Vec<&str> {
        limits.apps.keys().map(String::as_str).collect()
    }

    #[test]
    fn changes_replace_the_record() {
        for durability in [Durability::OldOrNew, Durability::Any] {
            let temp = tempfile::tempdir().unwrap();
            let dir = File::open(temp.path()).unwrap();
            let current = || read(&dir, files::LIMITS).unwrap().unwrap();
            assert!(read(&dir, files::LIMITS).unwrap().is_none());
            // Longer than any record: what a killed supervisor left.
            std::fs::write(temp.path().join(TEMPORARY), "x".repeat(5000)).unwrap();
            for app in ["first", "second", "third"] {
                change(&dir, durability, |limits| drop(limits.apps.insert(app.into(), Limits::default()))).unwrap();
            }
            assert_eq!(apps(&current()), ["first", "second", "third"], "{durability:?}");
            // Shorter than the records before.
            forget(&dir, durability, "second");
            forget(&dir, durability, "first");
            assert_eq!(apps(&current()), ["third"], "{durability:?}");
            assert_eq!(temp.path().join(TEMPORARY).exists(), durability == Durability::Any);
            std::fs::write(temp.path().join(files::LIMITS), "{damaged").unwrap();
            change(&dir, durability, |limits| limits.pod = Some(Limits::default())).unwrap();
            assert!(current().pod.is_some() && current().apps.is_empty(), "{durability:?}");
        }
    }
}
