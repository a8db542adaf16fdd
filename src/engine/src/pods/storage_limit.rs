//! `--storage-limit`: the space of an app's writable layer and its logs, limited by a project quota.
//!
//! The directories `apps/APP` and `logs/APP` of the pod get a project of their own before the supervisor fills them.
//! The file `storage-limits` of the pod directory has a line `APP PROJECT` for each, written and synced first, after an
//! empty line.
//!
//! | killed | leaves | removed by |
//! |---|---|---|
//! | after the record was written | a record of a project without directory and limit | the removal of the pod |
//! | after the directories got their project | also directories that are charged to it | the same |
//! | after the limit was set | everything | the same |
//! | after the limit was removed, before the directories | directories that are charged to a project without limit | the same |
//!
//! The removal of a pod removes the limits of its record first and then its directory with the record, so no limit
//! outlives the record. Projects are chosen at random among [`PROJECTS`]; one that has a limit or usage is in use, also
//! by another data directory on the same file system.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gantry_contract::{files, plan};
use gantry_host::file::sync_path;
use gantry_host::project::{self, ProjectUsage};
use gantry_host::random;
use gantry_model::stats::StorageUsage;
use gantry_model::{AppName, ErrorKind};
use rustix::fs::{CWD, Mode};
use rustix::io::Errno;

use crate::pods::pod_dir;
use crate::{Engine, EngineError, PodError};

/// The project ids that gantry uses: far from those of docker, podman (from 1) and the kubelet (from 1048577).
const PROJECTS: Range<u32> = 0x6700_0000..0x6800_0000;
/// Attempts to find a project that is not in use.
const MAX_CHOICES: usize = 100;
/// The record.
const RECORD: &str = "storage-limits";
/// A line has up to 80 bytes.
const MAX_RECORD: u64 = 1 << 20;

impl Engine {
    /// Fails if one of the apps has a storage limit and the data directory is not on a file system with project quotas.
    pub(crate) fn check_storage_limits<'a>(
        &self,
        apps: impl Iterator<Item = &'a gantry_model::AppSpec>,
    ) -> Result<(), EngineError> {
        for app in apps.filter(|app| app.options.storage_limit.is_some()) {
            let root = self.store.layout().root();
            let checked = project::open_directory(root).and_then(|root| project::usage(root, PROJECTS.start));
            checked.map_err(|error| {
                let text = format!(
                    "--storage-limit of app '{}' needs project quotas on the file system of {}: mount it with the \
                     option prjquota (xfs; ext4 after 'tune2fs -O project,quota DEVICE')",
                    app.name,
                    root.display()
                );
                EngineError::new(ErrorKind::Refused, text).caused_by(error)
            })?;
        }
        Ok(())
    }
}

/// Limits the apps of a new pod, whose directories exist and are empty.
pub(crate) fn limit_apps(dir: &Path, apps: &[plan::App]) -> Result<(), PodError> {
    apps.iter().try_for_each(|app| limit_app(dir, app))
}

/// Limits an app that has a storage limit, before its directories are filled.
pub(crate) fn limit_app(dir: &Path, app: &plan::App) -> Result<(), PodError> {
    const DOING: &str = "set the storage limit of";
    let Some(limit) = app.options.storage_limit else { return Ok(()) };
    let failed = |path: &Path| PodError::io(DOING, path.to_owned());
    let top = project::open_directory(dir).map_err(failed(dir))?;
    let project = choose_project(&top).map_err(failed(dir))?;
    let record = dir.join(RECORD);
    append_line(&record, &app.name, project).map_err(failed(&record))?;
    for parent in [files::APPS, files::LOGS] {
        let path = dir.join(parent).join(&app.name);
        // The modes with which the supervisor makes them.
        let mode = Mode::from_raw_mode(if parent == files::APPS { 0o755 } else { 0o700 });
        match rustix::fs::mkdirat(CWD, &path, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(&path)(errno.into())),
        }
        project::open_directory(&path).and_then(|app| project::assign(app, project)).map_err(failed(&path))?;
    }
    project::set_limit(&top, project, Some(limit)).map_err(failed(dir))
}

/// Fails if the file system no longer enforces the limit of one of these apps: it was mounted without quotas.
pub(crate) fn check_limits(dir: &Path, apps: &[plan::App]) -> Result<(), PodError> {
    let lost = || io::Error::other("the file system does not enforce them: mount it with the option prjquota");
    for app in apps.iter().filter(|app| app.options.storage_limit.is_some()) {
        let usage = find_project(dir, &app.name).and_then(|project| project.map_or(Ok(None), |it| it.usage()));
        usage.ok().flatten().ok_or_else(lost).map_err(PodError::io("apply the storage limits of", dir.to_owned()))?;
    }
    Ok(())
}

/// Removes the limits of a pod that does not run; with `app`, of a removed app only. Without a record, one system call.
pub(crate) fn release(dir: &Path, app: Option<&AppName>) -> Result<(), PodError> {
    let failed = || PodError::io("remove the storage limits of", dir.to_owned());
    let projects = read_record(dir).map_err(failed())?;
    if projects.is_empty() {
        return Ok(());
    }
    let top = project::open_directory(dir).map_err(failed())?;
    let selected = projects.iter().filter(|(name, _)| app.is_none_or(|app| app.as_str() == name));
    selected.into_iter().try_for_each(|(_, project)| remove_limit(&top, *project)).map_err(failed())
}

fn remove_limit(dir: &OwnedFd, project: u32) -> io::Result<()> {
    let removed = project::set_limit(dir, project, None);
    // Mounted without quotas, the file system enforces no limit, and the pod must be removable.
    if project::usage(dir, project).is_err() { Ok(()) } else { removed }
}

/// The project of an app with a storage limit, and a directory of its file system.
#[derive(Debug)]
pub(crate) struct AppProject {
    dir: OwnedFd,
    project: u32,
}

/// The project of an app of the pod with this directory. Without a record, one system call.
pub(crate) fn find_project(dir: &Path, app: &str) -> io::Result<Option<AppProject>> {
    // The last line is that of the app that exists.
    let project = read_record(dir)?.into_iter().rev().find(|(name, _)| name == app);
    project.map(|(_, project)| Ok(AppProject { dir: project::open_directory(dir)?, project })).transpose()
}

impl AppProject {
    /// The usage and the limit; `None`: the limit was removed.
    pub(crate) fn usage(&self) -> io::Result<Option<StorageUsage>> {
        let ProjectUsage { bytes, inodes, limit } = project::usage(&self.dir, self.project)?;
        Ok(limit.map(|limit| StorageUsage { bytes, inodes, limit }))
    }
}

/// A project without limit and usage.
fn choose_project(dir: &OwnedFd) -> io::Result<u32> {
    for _ in 0..MAX_CHOICES {
        let project = PROJECTS.start + u32::from_ne_bytes(random::bytes()?) % (PROJECTS.end - PROJECTS.start);
        if project::usage(dir, project)? == ProjectUsage::default() {
            return Ok(project);
        }
    }
    Err(io::Error::other("no project id is free"))
}

fn append_line(record: &Path, app: &str, project: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(record)?;
    // After a line that a kill may have cut short.
    file.write_all(format!("\n{app} {project}\n").as_bytes())?;
    file.sync_all()?;
    // Its name, too.
    record.parent().map_or(Ok(()), sync_path)
}

/// Apps and projects. An app that was removed and added again has several lines. An incomplete line, of a process that
/// was killed, has no project yet.
fn read_record(dir: &Path) -> io::Result<Vec<(String, u32)>> {
    let bytes = match pod_dir::read(&dir.join(RECORD), MAX_RECORD) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    Ok(parse_record(&String::from_utf8_lossy(&bytes)))
}

fn parse_record(text: &str) -> Vec<(String, u32)> {
    let parse = |line: &str| {
        let (app, project) = line.strip_suffix('\n')?.split_once(' ')?;
        let project = project.parse().ok().filter(|project| PROJECTS.contains(project))?;
        Some((app.to_owned(), project))
    };
    text.split_inclusive('\n').filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed() {
        let first = PROJECTS.start;
        // Projects of other programs are never touched, and a cut line is not another project.
        let text = format!("a {first}\nb 5\nbroken\na {}\nc {first}", first + 1);
        assert_eq!(parse_record(&text), [("a".to_owned(), first), ("a".to_owned(), first + 1)]);
    }

    #[test]
    fn lines_are_appended_after_a_cut_line() {
        let dir = tempfile::tempdir().unwrap();
        let record = dir.path().join(RECORD);
        let first = PROJECTS.start;
        append_line(&record, "a", first).unwrap();
        OpenOptions::new().append(true).open(&record).unwrap().write_all(b"b 17").unwrap();
        append_line(&record, "c", first + 1).unwrap();
        assert_eq!(read_record(dir.path()).unwrap(), [("a".to_owned(), first), ("c".to_owned(), first + 1)]);
    }
}
