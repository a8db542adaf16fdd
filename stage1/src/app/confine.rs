//! The last steps before a process executes an app's program. Apps and execs share them, so that an exec never has more
//! rights than its app (rkt CVE-2019-10144, -10145, -10147).

use std::ffi::CString;
use std::io;

use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::ulimit::Ulimit;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::app::own_namespaces::AppNamespaces;
use crate::app::program;
use crate::app::refusal::Step;
use crate::app::ulimits;
use crate::app::user::Ids;
use crate::failure::{Result, failure};
use crate::pod::jail::HostFileSystem;
use crate::pod::user_namespace::UserNamespace;
use crate::seccomp::Filters;
use crate::sys::{self, Executable};

/// The capabilities that a process of an app with [`Confinement::needs_admin`] has until it is locked down, besides
/// those of its app: to load a filter without no_new_privs, and to drop both from the bounding set.
pub(crate) const ADMIN: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

/// Confines the processes of an app. Computed once per app.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    /// The capabilities of the bounding set, and of the other sets if the user is root.
    pub(crate) capabilities: CapabilitySet,
    /// The capabilities of other users, which they hold through the ambient set.
    pub(crate) ambient: CapabilitySet,
    /// The system call filters.
    pub(crate) filters: Option<std::rc::Rc<Filters>>,
    /// Whether execve may gain privileges.
    pub(crate) new_privileges: bool,
    /// The resource limits that the user gave.
    pub(crate) ulimits: std::rc::Rc<[Ulimit]>,
    /// The namespaces of the app.
    pub(crate) namespaces: AppNamespaces,
    /// The host's file system, for an app of a host pod.
    pub(crate) host: Option<std::rc::Rc<HostFileSystem>>,
    /// The pod's user namespace, if it has one of its own.
    pub(crate) user: Option<std::rc::Rc<UserNamespace>>,
}

impl Confinement {
    /// The capability sets of a process of this user. As with podman, a user other than root has only the ambient
    /// capabilities, which were added explicitly.
    pub(crate) fn sets(&self, uid: u32) -> CapabilitySets {
        let (own, inheritable) =
            if uid == 0 { (self.capabilities, CapabilitySet::empty()) } else { (self.ambient, self.ambient) };
        CapabilitySets { effective: own, permitted: own, inheritable }
    }

    /// The capability sets of a process of this user until it is locked down: with [`ADMIN`] if `is_admin`.
    fn initial_sets(&self, uid: u32, is_admin: bool) -> CapabilitySets {
        let added = if is_admin { ADMIN } else { CapabilitySet::empty() };
        let CapabilitySets { effective, permitted, inheritable } = self.sets(uid);
        CapabilitySets { effective: effective | added, permitted: permitted | added, inheritable }
    }

    /// Makes this process one of the app's user, with the capabilities of [`Self::sets`], and [`ADMIN`] if `is_admin`.
    ///
    /// The bounding set needs CAP_SETPCAP and the ids need CAP_SETUID, so the other capability sets come last.
    pub(crate) fn become_user(&self, ids: &Ids, is_admin: bool) -> Result<()> {
        self.try_become_user(ids, is_admin)
            .map_err(|error| failure(ErrorKind::Internal, format!("cannot become user {}: {error}", ids.uid)))
    }

    fn try_become_user(&self, ids: &Ids, is_admin: bool) -> io::Result<()> {
        let bounding = if is_admin { self.capabilities | ADMIN } else { self.capabilities };
        drop_bounding(!bounding)?;
        rustix::thread::set_keep_capabilities(true)?;
        sys::set_ids(ids.uid, ids.gid, &ids.groups)?;
        rustix::thread::set_keep_capabilities(false)?;
        rustix::thread::clear_ambient_capability_set()?;
        Ok(rustix::thread::set_capabilities(None, self.initial_sets(ids.uid, is_admin))?)
    }

    /// Raises the ambient set, through which a user other than root keeps capabilities across execve.
    fn raise_ambient(&self, uid: u32, is_admin: bool) -> io::Result<()> {
        if uid == 0 || self.ambient.is_empty() {
            return Ok(());
        }
        rustix::thread::set_capabilities(None, self.initial_sets(uid, is_admin))?;
        for capability in self.ambient.iter() {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(())
    }

    /// Whether CAP_SYS_ADMIN is needed to load the filter: without no_new_privs it is (seccomp(2)). It is dropped right
    /// after.
    pub(crate) fn needs_admin(&self) -> bool {
        self.filters.is_some() && self.new_privileges
    }
}

/// A program with its arguments and environment.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Environment.
    pub(crate) env: Vec<String>,
}

/// An app's environment, with HOME.
pub(crate) fn environment(env: &[String], ids: &Ids) -> Vec<String> {
    let mut env = env.to_vec();
    if !env.iter().any(|entry| entry.starts_with("HOME=")) {
        env.push(format!("HOME={}", ids.home));
    }
    env
}

/// Enters the working directory, which must be inside the root: for one outside, getcwd(2) returns a path without a
/// leading slash.
pub(crate) fn enter_dir(path: &str) -> Result<()> {
    rustix::process::chdir(path).map_err(|error| {
        failure(ErrorKind::Invalid, format!("cannot change to the directory '{}': {error}", shown(path)))
    })?;
    match std::env::current_dir() {
        Ok(dir) if dir.is_absolute() => Ok(()),
        _ => Err(failure(ErrorKind::Invalid, format!("the directory '{}' is outside of the app's root", shown(path)))),
    }
}

/// Finds the program and prepares execve, inside the app's root and as its user.
pub(crate) fn prepare(command: &Command) -> Result<Executable> {
    let invalid = |message| failure(ErrorKind::Invalid, message);
    let name = command.argv.first().ok_or_else(|| invalid("the command is empty"))?;
    let program = program::find(name, &command.env)?;
    match (strings(&command.argv), strings(&command.env)) {
        (Some(argv), Some(env)) => Ok(Executable::new(program, argv, env)),
        _ => Err(invalid("an argument or an environment variable contains a NUL byte")),
    }
}

impl Confinement {
    /// Drops everything that the app does not get, before an app can see the process: an app with CAP_SYS_PTRACE can
    /// control every process it sees. Afterwards the process makes only the system calls listed in [`crate::seccomp`],
    /// and allocates nothing.
    ///
    /// The order is: signals, descriptors, resource limits, the ambient and the bounding set, the filter, and last the
    /// capability that loading the filter needed. `is_admin`: the process has [`ADMIN`] besides the capabilities of the
    /// app.
    pub(crate) fn lock_down(&self, uid: u32, is_admin: bool) -> Result<()> {
        self.try_lock_down(uid, is_admin)
            .map_err(|error| failure(ErrorKind::Internal, format!("cannot confine the app: {error}")))
    }

    fn try_lock_down(&self, uid: u32, is_admin: bool) -> io::Result<()> {
        sys::reset_signals();
        sys::close_all_on_exec()?;
        ulimits::apply(&self.ulimits)?;
        self.raise_ambient(uid, is_admin)?;
        if !self.new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        if is_admin {
            // Otherwise root would get CAP_SYS_ADMIN and CAP_SETPCAP back at execve.
            drop_bounding(!self.capabilities)?;
        }
        if let Some(filters) = &self.filters {
            sys::load_seccomp(&filters.first)?;
        }
        if self.needs_admin() {
            rustix::thread::set_capabilities(None, self.sets(uid))?;
        }
        Ok(())
    }

    /// Executes the program in a process that is locked down. Returns only on failure.
    pub(crate) fn execute(&self, program: &Executable) -> (Step, io::Error) {
        if let Some(last) = self.filters.as_ref().and_then(|filters| filters.last.as_ref())
            && let Err(error) = sys::load_seccomp(last)
        {
            return (Step::Filter, error);
        }
        (Step::Execve, program.execute())
    }
}

/// Removes these from the bounding set.
pub(crate) fn drop_bounding(capabilities: CapabilitySet) -> io::Result<()> {
    for capability in capabilities.iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not have.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn strings(texts: &[String]) -> Option<Vec<CString>> {
    texts.iter().map(|text| CString::new(text.as_str()).ok()).collect()
}

/// The capabilities that this process can give an app.
pub(crate) fn held_capabilities() -> io::Result<CapabilitySet> {
    let permitted = rustix::thread::capabilities(None)?.permitted;
    let mut held = CapabilitySet::empty();
    for capability in permitted.iter() {
        if rustix::thread::capability_is_in_bounding_set(capability)? {
            held |= capability;
        }
    }
    Ok(held)
}

/// The names of the capabilities in a set.
pub(crate) fn names(set: CapabilitySet) -> Vec<&'static str> {
    let all = gantry_model::spec::CAPABILITIES;
    all.iter().enumerate().filter(|(i, _)| set.bits() >> i & 1 == 1).map(|(_, name)| *name).collect()
}

/// The set of capabilities with these names. The engine has checked that they exist.
pub(crate) fn capability_set(names: &[String]) -> CapabilitySet {
    let all = gantry_model::spec::CAPABILITIES;
    let bits =
        names.iter().filter_map(|name| all.iter().position(|known| known == name)).fold(0u64, |bits, i| bits | 1 << i);
    CapabilitySet::from_bits_truncate(bits)
}
