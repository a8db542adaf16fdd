//! The record of limits that were changed while the pod ran ([`gantry_contract::limits`]).

use std::io::ErrorKind;
use std::os::fd::AsFd;

use gantry_contract::files;
use gantry_contract::limits::{MAX_RECORD, UpdatedLimits};
use gantry_contract::plan::Plan;
use gantry_host::file::read_stream;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Attempt, Result};

/// The new record before it replaces the old one.
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
    Ok(Some(serde_json::from_slice(&read_stream(std::fs::File::from(file), MAX_RECORD)?)?))
}

/// Changes the record in the pod directory. A kill leaves the old record, or the new one, and perhaps a temporary file,
/// which the next change replaces.
pub(crate) fn change(dir: impl AsFd + Copy, change: impl FnOnce(&mut UpdatedLimits)) -> Result<()> {
    let what = || "cannot record the new limits";
    let mut limits = match read(dir, files::LIMITS) {
        Ok(limits) => limits.unwrap_or_default(),
        // A damaged record is replaced; one that cannot be read now may hold the limits of other apps.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
            tracing::warn!("the damaged {} is replaced: {error}", files::LIMITS);
            UpdatedLimits::default()
        }
        Err(error) => return Err(error).attempt(what),
    };
    change(&mut limits);
    let text = serde_json::to_vec(&limits).map_err(std::io::Error::from).attempt(what)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::openat(dir, TEMPORARY, flags, Mode::RUSR | Mode::WUSR).attempt(what)?;
    let written = std::io::Write::write_all(&mut std::fs::File::from(file), &text)
        .and_then(|()| Ok(rustix::fs::renameat(dir, TEMPORARY, dir, files::LIMITS)?));
    if written.is_err() {
        let _replaced_by_the_next_change = rustix::fs::unlinkat(dir, TEMPORARY, AtFlags::empty());
    }
    written.attempt(what)
}

/// Drops an app that was removed from the record: another app may get its name.
pub(crate) fn forget(dir: impl AsFd + Copy, app: &str) {
    let is_recorded = |limits: UpdatedLimits| limits.apps.contains_key(app);
    if read(dir, files::LIMITS).ok().flatten().is_some_and(is_recorded)
        && let Err(why) = change(dir, |limits| drop(limits.apps.remove(app)))
    {
        tracing::warn!("{}", why.message);
    }
}
