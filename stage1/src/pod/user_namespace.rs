//! The pod's own user namespace.
//!
//! It is made before the pod's other namespaces, which belong to it: root of the pod has its capabilities over them,
//! and over nothing of the host. PID 1 and the processes of the apps are in it. The supervisor is not: it enters the
//! pod's network, IPC and UTS namespaces only, and keeps its rights over the pod's cgroups, logs and mounts.
//! The process of an app joins it by a descriptor, as execs do.
//!
//! # Files
//!
//! Layers, writable layers and volumes have plain ids on disk, 0 to 65535, whatever the ids of a pod are; so pods share
//! layers and volumes, and a pod may be started again with other ids. The mounts that apps see are idmapped
//! (`MOUNT_ATTR_IDMAP`): id 0 on disk is the host's id of the pod's root there.
//!
//! | mount | ids |
//! |---|---|
//! | `/trees`, `/mapped` (the pod directory a second time) | idmapped: the layers of the overlays of the apps' roots |
//! | the overlay | of its layers: overlayfs cannot be idmapped itself, its layers can be (Linux 5.19) |
//! | volumes | a clone for the app is idmapped; the supervisor fills volumes through the plain mount |
//! | `/shm`, tmpfs of apps | file systems of the pod, whose owners are the host's ids |
//! | `/dev` | a file system of the host, with the host's ids of the app's owners ([`crate::files::dev`]) |
//!
//! On an idmapped mount the supervisor cannot make files: the host's root has no id there (EOVERFLOW). It makes them
//! as root of the pod ([`UserNamespace::as_root`]), and mounts the overlay so, since overlayfs changes its writable
//! layer with the ids of the process that mounted it. A step that forgets this fails; it never leaves a file with wrong
//! ids.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use gantry_contract::plan::{self, Net, Plan};
use gantry_model::ErrorKind;
use gantry_model::namespaces::{IpcMode, PidMode};
use gantry_model::spec::PodFlavor;
use gantry_model::systemd::SystemdMode;
use gantry_model::user_namespace::{DEFAULT_ID_COUNT, IdMappings, IdRange};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{OpenTreeFlags, open_tree};
use rustix::process::{Pid, Signal};

use crate::app::user::Ids;
use crate::failure::{Attempt, Result, failure};
use crate::pod::jail;
use crate::sys::{self, SingleThreaded};

/// The pod's user namespace, and the namespaces made with it.
#[derive(Debug)]
pub(crate) struct UserNamespace {
    /// The ids of the host that the pod's are.
    pub(crate) ids: IdMappings,
    /// The user namespace.
    pub(crate) file: OwnedFd,
    network: OwnedFd,
    ipc: OwnedFd,
    uts: OwnedFd,
}

/// A directory on a mount that is attached nowhere and has the ids of the pod.
pub(crate) struct MappedDir {
    dir: OwnedFd,
    _mount: OwnedFd,
}

impl MappedDir {
    /// The directory.
    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }
}

/// While it exists, this process makes files as root of the pod.
pub(crate) struct AsPodRoot {
    /// The signal that this process gets when its parent dies. The kernel clears it at each change of the file-system
    /// ids.
    death_signal: Option<Signal>,
    parent: Option<Pid>,
}

impl AsPodRoot {
    fn restore_death_signal(&self) {
        let _only_fails_for_a_wrong_signal = rustix::process::set_parent_process_death_signal(self.death_signal);
        // A parent that died in between sends no signal.
        if self.death_signal.is_some() && rustix::process::getppid() != self.parent {
            sys::exit_now(1);
        }
    }
}

impl Drop for AsPodRoot {
    fn drop(&mut self) {
        // The host's ids are always valid. Changing them back to 0 also restores the effective capabilities.
        let _cannot_fail = sys::set_file_ids(0, 0);
        self.restore_death_signal();
    }
}

impl UserNamespace {
    /// Makes the namespace with the ids of the plan, if it has some, and namespaces for the network, IPC and UTS.
    pub(crate) fn make(thread: SingleThreaded, plan: &Plan) -> Result<Option<Self>> {
        let Some(ids) = plan.user_ids else { return Ok(None) };
        if plan.net == Net::Host || plan.ipc == IpcMode::Host || plan.flavor == PodFlavor::Host {
            let why = "a pod with a user namespace of its own cannot use the host's network, IPC namespace or files";
            return Err(failure(ErrorKind::Invalid, why));
        }
        Self::make_with(thread, ids).map(Some)
    }

    /// Checks that this host can run pods with a user namespace whose files are in this directory: makes a namespace,
    /// and maps a mount of the directory that is attached nowhere.
    pub(crate) fn check_host(directory: &str) -> Result<()> {
        let what = || format!("cannot open {directory}");
        let thread = SingleThreaded::check().attempt(|| "cannot make a user namespace")?;
        let namespace = Self::make_with(thread, IdMappings::same(IdRange { host: 1, length: DEFAULT_ID_COUNT }))?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::open(directory, flags, Mode::empty()).attempt(what)?;
        namespace.open_mapped(&dir, directory).map(drop)
    }

    fn make_with(thread: SingleThreaded, ids: IdMappings) -> Result<Self> {
        jail::require_kernel((5, 19), "a pod with a user namespace needs 5.19 or newer")?;
        let what = || "cannot make the pod's user namespace";
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).attempt(what)?;
        let write_end = writer.as_raw_fd();
        let namespaces = libc::CLONE_NEWUSER | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
        // It holds the namespaces until they are open here.
        let holder = sys::fork(thread, namespaces, |process| {
            let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            process.close(&[write_end]);
            let _ended = rustix::io::read(&reader, &mut [0u8; 1]);
            sys::exit_now(0)
        });
        let holder = holder.attempt(
            || "cannot make the pod's user namespace (see /proc/sys/user/max_user_namespaces, or leave out --userns)",
        )?;
        let opened = write_maps(holder, ids).and_then(|()| Self::open(holder, ids));
        drop(writer);
        let _reaped = rustix::process::waitpid(Some(holder), rustix::process::WaitOptions::empty());
        opened
    }

    fn open(holder: Pid, ids: IdMappings) -> Result<Self> {
        let open = |name: &str| {
            let path = format!("/proc/{}/ns/{name}", holder.as_raw_nonzero());
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .attempt(|| format!("cannot open the pod's {name} namespace"))
        };
        Ok(Self { ids, file: open("user")?, network: open("net")?, ipc: open("ipc")?, uts: open("uts")? })
    }

    /// Enters the pod's network namespace.
    pub(crate) fn enter_network(&self) -> io::Result<()> {
        sys::setns(self.network.as_fd(), libc::CLONE_NEWNET)
    }

    /// Enters the pod's namespaces for IPC and UTS among these flags.
    pub(crate) fn enter(&self, namespaces: libc::c_int) -> io::Result<()> {
        for (flag, file) in [(libc::CLONE_NEWIPC, &self.ipc), (libc::CLONE_NEWUTS, &self.uts)] {
            if namespaces & flag != 0 {
                sys::setns(file.as_fd(), flag)?;
            }
        }
        Ok(())
    }

    /// Makes this process root of the pod. It loses every right outside of the namespace, and cannot leave it.
    pub(crate) fn join(&self) -> io::Result<()> {
        sys::setns(self.file.as_fd(), libc::CLONE_NEWUSER)?;
        sys::set_ids(0, 0, &[])
    }

    /// Makes this process make files as root of the pod. It keeps its rights.
    pub(crate) fn as_root(&self) -> Result<AsPodRoot> {
        let what = || "cannot make files as root of the pod";
        let sets = rustix::thread::capabilities(None).attempt(what)?;
        let death_signal = rustix::process::parent_process_death_signal().attempt(what)?;
        let guard = AsPodRoot { death_signal, parent: rustix::process::getppid() };
        sys::set_file_ids(self.ids.uids.host, self.ids.gids.host).attempt(what)?;
        guard.restore_death_signal();
        // The change has removed those that concern files from the effective set (capabilities(7)).
        rustix::thread::set_capabilities(None, sets).attempt(what)?;
        Ok(guard)
    }

    /// Refuses an app that the namespace would not confine.
    pub(crate) fn check_app(app: &plan::App) -> Result<()> {
        let options = &app.options;
        let refused = [
            (options.privileged, "--privileged"),
            (options.pid == PidMode::Host, "--pid=host"),
            (options.systemd == SystemdMode::Always, "systemd"),
        ];
        match refused.into_iter().find(|(is_set, _)| *is_set) {
            None => Ok(()),
            Some((_, name)) => {
                let why = "cannot be combined with a user namespace of the pod's own";
                let remedy = if name == "systemd" { "; --systemd=false runs it like any program" } else { "" };
                Err(failure(ErrorKind::Invalid, format!("{name} {why}{remedy}")))
            }
        }
    }

    /// Checks that the pod has the ids of a process.
    pub(crate) fn check(&self, ids: &Ids) -> Result<()> {
        self.host_uid(ids.uid)?;
        ids.groups.iter().try_for_each(|gid| self.host_gid(*gid).map(drop))
    }

    /// The id on the host of a user of the pod.
    pub(crate) fn host_uid(&self, uid: u32) -> Result<u32> {
        self.ids.uids.to_host(uid).ok_or_else(|| unmapped("user", uid, self.ids.uids))
    }

    /// The id on the host of a group of the pod.
    pub(crate) fn host_gid(&self, gid: u32) -> Result<u32> {
        self.ids.gids.to_host(gid).ok_or_else(|| unmapped("group", gid, self.ids.gids))
    }

    /// Gives the files of a detached mount, and of those below it, the ids of the pod.
    pub(crate) fn map_mount(&self, tree: &OwnedFd, shown: &str) -> Result<()> {
        sys::map_ids_of_mount(tree.as_fd(), self.file.as_fd()).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL | libc::EPERM) => {
                let kind = file_system(tree);
                let why = format!("{kind} at {shown}, or a file system mounted below it, cannot be idmapped");
                let remedy = "a pod with --userns needs file systems that can, such as ext4, xfs and btrfs";
                failure(ErrorKind::Unavailable, format!("the pod cannot have a user namespace: {why}; {remedy}"))
            }
            _ => failure(ErrorKind::of_io(&error), format!("cannot map the ids of {shown}: {error}")),
        })
    }

    /// Opens a directory through a mount that has the ids of the pod.
    pub(crate) fn open_mapped(&self, dir: &OwnedFd, shown: &str) -> Result<MappedDir> {
        let what = || format!("cannot open {shown} with the ids of the pod");
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let mount = open_tree(dir, "", flags).attempt(what)?;
        self.map_mount(&mount, shown)?;
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let dir = rustix::fs::openat(&mount, ".", flags, Mode::empty()).attempt(what)?;
        Ok(MappedDir { dir, _mount: mount })
    }
}

fn write_maps(holder: Pid, ids: IdMappings) -> Result<()> {
    for (file, IdRange { host, length }) in [("uid_map", ids.uids), ("gid_map", ids.gids)] {
        let path = format!("/proc/{}/{file}", holder.as_raw_nonzero());
        std::fs::write(path, format!("0 {host} {length}\n"))
            .attempt(|| format!("cannot map the ids {host}:{length} of the host into the pod ({file})"))?;
    }
    Ok(())
}

fn unmapped(what: &str, id: u32, range: IdRange) -> gantry_contract::Failure {
    let why =
        format!("{what} {id} does not exist in the pod, whose user namespace has the ids 0 to {}", range.length - 1);
    failure(ErrorKind::Invalid, format!("{why}: choose another {what}, or a longer range with --userns"))
}

/// The type of the file system of an open file.
fn file_system(file: &OwnedFd) -> String {
    let Ok(stat) = rustix::fs::statx(file, "", rustix::fs::AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::MNT_ID) else {
        return "the file system".to_owned();
    };
    // A detached mount is in no mountinfo; another mount of its device is.
    let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let kind = mounts.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - ")?;
        let is_same = mount.split(' ').nth(2) == Some(&device);
        is_same.then(|| fs.split(' ').next().map(str::to_owned)).flatten()
    });
    kind.map_or_else(|| "the file system".to_owned(), |kind| format!("the {kind} file system"))
}
