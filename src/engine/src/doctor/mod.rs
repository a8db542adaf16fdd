//! `doctor`: whether the host has what pods need, and whether rows, locks, directories, cgroups and logs agree. Like
//! every command, it reconciles rows, deletes leftovers of killed commands, and removes ended pods of `run --rm`.

pub(crate) mod certificates;
mod networks;
pub(crate) mod pods;
pub(crate) mod store;

use std::path::Path;
use std::time::Duration;

use gantry_model::error::chain;
use gantry_model::query::PodQuery;
use gantry_store::{Depth, Finding, RESERVE_MIN_ROOM, Severity};
use rustix::fs::{Mode, OFlags, ResolveFlags, StatVfs, StatVfsMountFlags};

use crate::host::process;
use crate::host::process::Deadline;
use crate::host::stage1;
use crate::info::controllers;
use crate::{Engine, PodError};

/// The delays after which an apparent problem of networks is checked again before it is reported.
const RECHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(2)];

/// Controllers without which a limit cannot be set.
const CONTROLLERS: [&str; 3] = ["memory", "cpu", "pids"];

impl Engine {
    /// Checks everything; with `deep`, also every blob, every file of the layers, every page of the database and the
    /// end of every log.
    ///
    /// # Errors
    /// [`PodError`] when a check cannot be made. Problems are findings, not errors.
    pub fn doctor(&self, deep: bool) -> Result<Vec<Finding>, PodError> {
        let mut findings = Vec::new();
        self.check_host(&mut findings);
        let rows = self.store.pods(&PodQuery::default())?;
        self.sweep_orphans_if_any(&rows);
        self.check_pods(rows, deep, &mut findings)?;
        if let Some(why) = self.unwritten() {
            let what = format!("what was found of pods cannot be written down: {why}");
            fail(&mut findings, what, "free space, or mount the file system writable");
        }
        self.check_space(&mut findings);
        self.check_networks_of_pods(&mut findings);
        self.check_configured_networks(&mut findings);
        if let Err(error) = self.check_store(deep, &mut findings) {
            fail(&mut findings, chain(&error), "run 'gantry doctor' again when the cause is gone");
        }
        // After the pods were reconciled, so that it does not report ends that were merely not recorded yet.
        findings.extend(self.store.check(if deep { Depth::Deep } else { Depth::Quick }));
        Ok(findings)
    }

    pub(crate) fn check_host(&self, findings: &mut Vec<Finding>) {
        if !rustix::process::geteuid().is_root() {
            fail(findings, "not running as root", "run gantry as root: pods need it");
        }
        self.check_stage1(findings);
        check_kernel(findings);
        self.check_controllers(findings);
    }

    fn check_stage1(&self, findings: &mut Vec<Finding>) {
        let program = match self.stage1() {
            Ok(program) => program,
            Err(places) => {
                let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
                let what = format!("there is no gantry-stage1 in {}", places.join(" or "));
                return fail(findings, what, "install it there, or name it in $GANTRY_STAGE1");
            }
        };
        let ours = format!("contract {}", gantry_contract::VERSION);
        let hint = "install gantry and gantry-stage1 of one version";
        match stage1::version_of(&program) {
            Ok(said) if said.ends_with(&ours) => {}
            Ok(said) => fail(findings, format!("{} is '{said}', this gantry speaks {ours}", program.display()), hint),
            Err(error) => fail(findings, format!("{} does not tell its version: {error}", program.display()), hint),
        }
    }

    fn check_controllers(&self, findings: &mut Vec<Finding>) {
        let hierarchies = match self.hierarchies() {
            Ok(hierarchies) => hierarchies,
            Err(error) => return fail(findings, chain(&error), "free descriptors or memory of the host"),
        };
        let known = controllers(hierarchies);
        if hierarchies.is_empty() {
            fail(findings, "no cgroup hierarchy is mounted", "mount cgroup2 on /sys/fs/cgroup");
            return;
        }
        if let Err(missing) = self.check_cgroup_manager(&self.options().cgroup_parent) {
            fail(findings, missing, "or set cgroup-manager = \"cgroupfs\" in the configuration");
        }
        for controller in CONTROLLERS.iter().filter(|name| !known.iter().any(|known| known == *name)) {
            let hint = "enable it in the kernel's configuration or command line; pods run, but not with such limits";
            warn(findings, format!("the cgroup controller '{controller}' is not there"), hint);
        }
    }

    /// Whether the file system of the data directory is writable and has space.
    fn check_space(&self, findings: &mut Vec<Finding>) {
        // Elsewhere, a file system that cannot be examined is an error of its own.
        if let Ok(file_system) = rustix::fs::statvfs(self.store.layout().root()) {
            report_space(self.store.layout().root(), &file_system, findings);
        }
    }

    /// Compares leases, rules and interfaces with the pods' records.
    fn check_networks_of_pods(&self, findings: &mut Vec<Finding>) {
        let mut checked = self.check_networks();
        // A pod that starts or ends between two checks seems to lack a resource or to have leaked one. A real problem
        // persists.
        for pause in RECHECK_INTERVALS {
            let Ok(lines) = &mut checked else { break };
            if lines.is_empty() {
                break;
            }
            let _slept = process::readable(&[], Deadline::after(pause));
            match self.check_networks() {
                Ok(again) => lines.retain(|line| again.contains(line)),
                Err(error) => checked = Err(error),
            }
        }
        match checked {
            Ok(lines) => {
                for line in lines {
                    fail(
                        findings,
                        line,
                        "'gantry gc' removes what is too much, 'gantry network reload' puts rules back",
                    );
                }
            }
            Err(error) => fail(findings, chain(&error), "run 'gantry doctor' again when the cause is gone"),
        }
        match self.stray_networks() {
            Ok(lines) => lines.into_iter().for_each(|line| warn(findings, line, "")),
            Err(error) => warn(findings, chain(&error), "run 'gantry doctor' again when the cause is gone"),
        }
    }
}

/// Reports a file system on which nothing, or hardly anything, can be written.
fn report_space(dir: &Path, file_system: &StatVfs, findings: &mut Vec<Finding>) {
    let dir = dir.display();
    if file_system.f_flag.contains(StatVfsMountFlags::RDONLY) {
        let what = format!("the file system of {dir} is read-only: no pod can be created, changed or removed");
        return fail(findings, what, "mount it writable; the kernel's log says why if it was mounted so before");
    }
    let free = file_system.f_bavail.saturating_mul(file_system.f_frsize);
    // Some file systems count no inodes.
    let lack = match (free, file_system.f_files, file_system.f_favail) {
        (0, ..) => "has no space left: no pod can be created".to_owned(),
        (_, 1.., 0) => "has no inodes left: no pod can be created".to_owned(),
        (..RESERVE_MIN_ROOM, ..) => format!("has only {} KiB left: commands may fail for lack of space", free >> 10),
        _ => return,
    };
    let hint = "'gantry df' shows what gantry uses, 'gantry prune' removes what no running pod needs";
    warn(findings, format!("the file system of {dir} {lack}"), hint);
}

/// The required features of the kernel.
fn check_kernel(findings: &mut Vec<Finding>) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Err(errno) = rustix::fs::openat2(rustix::fs::CWD, "/", flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS) {
        fail(findings, format!("the kernel cannot do openat2: {errno}"), "use Linux 5.10 or newer");
    }
    if let Err(error) = process::open_pid(std::process::id()) {
        fail(findings, format!("the kernel cannot do pidfd_open: {error}"), "use Linux 5.10 or newer");
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let overlay = known.lines().any(|line| line.split_ascii_whitespace().last() == Some("overlay"));
    if !overlay && !Path::new("/sys/module/overlay").exists() {
        warn(findings, "the kernel does not have overlayfs loaded", "run 'modprobe overlay'");
    }
}

pub(crate) fn warn(findings: &mut Vec<Finding>, what: impl Into<String>, hint: &str) {
    findings.push(Finding { what: what.into(), severity: Severity::Warning, hint: hint.to_owned() });
}

pub(crate) fn fail(findings: &mut Vec<Finding>, what: impl Into<String>, hint: &str) {
    findings.push(Finding { what: what.into(), severity: Severity::Error, hint: hint.to_owned() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_space_is_reported() {
        let plenty = StatVfs {
            f_bsize: 4096,
            f_frsize: 4096,
            f_blocks: 1 << 20,
            f_bfree: 1 << 19,
            f_bavail: 1 << 19,
            f_files: 1000,
            f_ffree: 500,
            f_favail: 500,
            f_fsid: 0,
            f_flag: StatVfsMountFlags::empty(),
            f_namemax: 255,
        };
        for (file_system, severity, want) in [
            (StatVfs { f_bavail: 0, ..plenty }, Severity::Warning, "/d has no space left"),
            (StatVfs { f_bavail: 511, ..plenty }, Severity::Warning, "/d has only 2044 KiB left"),
            (StatVfs { f_favail: 0, ..plenty }, Severity::Warning, "/d has no inodes left"),
            (StatVfs { f_flag: StatVfsMountFlags::RDONLY, ..plenty }, Severity::Error, "/d is read-only"),
        ] {
            let mut findings = Vec::new();
            report_space(Path::new("/d"), &file_system, &mut findings);
            let [finding] = &findings[..] else { panic!("{want}: {findings:?}") };
            assert!(finding.severity == severity && finding.what.contains(want), "{want}: {finding:?}");
        }
        let mut findings = Vec::new();
        for file_system in [StatVfs { f_bavail: 512, ..plenty }, StatVfs { f_files: 0, f_favail: 0, ..plenty }] {
            report_space(Path::new("/d"), &file_system, &mut findings);
        }
        assert_eq!(findings, []);
    }
}
