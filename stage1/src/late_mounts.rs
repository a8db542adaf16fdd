//! Mounts volumes in the app's own mount namespace, after libcontainer has made the app's process and before that
//! process executes the program.
//!
//! | mount | why late |
//! |---|---|
//! | with propagation | libcontainer makes every mount that it copies a slave |
//! | over `/dev`, `/sys` and below `/sys`, of a privileged app | libcontainer mounts there first |
//! | inside one of these | it would be covered |
//!
//! A volume's mount stays in the peer group of the host's mount from the moment it is cloned. The supervisor keeps such
//! a mount in its tree ([`crate::jail`]), so that later starts of the app find it there. Unmounting a shared mount
//! would also unmount the host's mounts below it, so it is made private first. The end of a mount namespace does not
//! propagate.
//!
//! The maker ([`crate::maker`]) enters the namespace only to make these mounts. It has the supervisor's rights and is
//! invisible to apps. Each target is opened beneath the app's root without following links, as in [`crate::mounts`].

use std::os::fd::{AsFd as _, OwnedFd};

use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::mount_options::Propagation;
use gantry_model::spec::is_provided_unless_privileged;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;

use crate::failure::{Attempt, Result, failure};
use crate::mounts::{is_directory, is_inside, move_to, open_beneath, open_mount, open_target, path_inside, replaced};
use crate::sys;
use crate::user_namespace::UserNamespace;
use crate::volumes::AppMount;

/// The mounts that are made late, outer ones first.
pub(crate) struct LateMounts(Vec<LateMount>);

struct LateMount {
    /// What is mounted; attached nowhere.
    tree: OwnedFd,
    target: String,
    is_dir: bool,
}

/// Decides which of the mounts, outer ones first, are made late. A mount inside one that is shared with the host would
/// appear on the host: it is refused.
pub(crate) fn mark(mounts: &mut [AppMount]) -> Result<()> {
    for at in 0..mounts.len() {
        let (outer, rest) = mounts.split_at_mut(at);
        let Some(mount) = rest.first_mut() else { return Ok(()) };
        if outer.iter().any(|outer| outer.propagation == Propagation::Shared && is_inside(mount, outer)) {
            let why = "it is inside a volume that is mounted rshared, and would appear on the host";
            let what = format!("cannot mount at '{}': {why}", shown(&mount.target));
            return Err(failure(ErrorKind::Invalid, what));
        }
        let is_over_own = is_provided_unless_privileged(&mount.target);
        let is_in_late = outer.iter().any(|outer| outer.is_late && is_inside(mount, outer));
        mount.is_late = mount.propagation.propagates() || is_over_own || is_in_late;
    }
    Ok(())
}

impl LateMounts {
    /// Opens what is mounted, and makes the missing mount points. `root` is the app's, with the other mounts.
    pub(crate) fn prepare(root: &OwnedFd, mounts: &[AppMount], user: Option<&UserNamespace>) -> Result<Self> {
        let mut late: Vec<LateMount> = Vec::new();
        for mount in mounts.iter().filter(|mount| mount.is_late) {
            let what = || format!("cannot mount at '{}'", shown(&mount.target));
            let tree = open_mount(mount, user)?;
            let is_dir = is_directory(&tree).attempt(what)?;
            match late.iter().rev().find_map(|outer| Some((outer, path_inside(&mount.target, &outer.target)?))) {
                Some((outer, rest)) => drop(open_target(&outer.tree, rest, is_dir).attempt(what)?),
                // The mount points there are those of the kernel's own file systems.
                None if is_provided_unless_privileged(&mount.target) => {}
                None => drop(open_target(root, &mount.target, is_dir).attempt(what)?),
            }
            late.push(LateMount { tree, target: mount.target.clone(), is_dir });
        }
        Ok(Self(late))
    }

    /// Mounts them in the mount namespace of this process, whose root is the app's.
    pub(crate) fn attach(self, process: Pid) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let what = || "cannot enter the app's mount namespace";
        let open = |path: &str| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).attempt(what);
        let own = open("/proc/self/ns/mnt")?;
        let apps = open(&format!("/proc/{}/ns/mnt", process.as_raw_nonzero()))?;
        sys::setns(apps.as_fd(), libc::CLONE_NEWNS).attempt(what)?;
        let attached = self.attach_here();
        sys::setns(own.as_fd(), libc::CLONE_NEWNS).attempt(|| "cannot leave the app's mount namespace")?;
        attached
    }

    fn attach_here(&self) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty()).attempt(|| "cannot open the app's root")?;
        for LateMount { tree, target, is_dir } in &self.0 {
            let what = || format!("cannot mount at '{}'", shown(target));
            let kind = if *is_dir { OFlags::DIRECTORY } else { OFlags::empty() };
            let place = open_beneath(&root, target, OFlags::PATH | kind).attempt(what)?;
            if !move_to(&root, tree, &place, target).attempt(what)? {
                return Err(replaced(target));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(target: &str, propagation: Propagation) -> AppMount {
        let (target, source, options) = (target.to_owned(), String::new(), Vec::new());
        AppMount { target, kind: "bind", source, options, propagation, has_ids_of_pod: true, is_late: false }
    }

    #[test]
    fn mounts_libcontainer_would_cover_are_late() {
        let mut mounts = vec![
            mount("/a", Propagation::Private),
            mount("/s", Propagation::Slave),
            mount("/dev", Propagation::Private),
            mount("/sys/fs/bpf", Propagation::Shared),
            mount("/s/b", Propagation::Private),
            mount("/s/b/c", Propagation::Private),
            mount("/sysfoo", Propagation::Private),
            mount("/dev/log", Propagation::Private),
        ];
        mark(&mut mounts).unwrap();
        let late: Vec<&str> = mounts.iter().filter(|mount| mount.is_late).map(|mount| &*mount.target).collect();
        assert_eq!(late, ["/s", "/dev", "/sys/fs/bpf", "/s/b", "/s/b/c", "/dev/log"]);
        let mut nested = vec![mount("/s", Propagation::Shared), mount("/s/b", Propagation::Private)];
        assert!(mark(&mut nested).is_err());
    }
}
