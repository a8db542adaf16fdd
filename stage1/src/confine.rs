//! The last steps of a process before it becomes the app: one list for apps and for what is executed in them, so that
//! an exec can never have more rights than its app (rkt CVE-2019-10144, -10145, -10147).

use std::ffi::CString;
use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::program::{self, Unexecutable};
use crate::refusal::Step;
use crate::seccomp::Filters;
use crate::sys::{self, Executable};

/// What confines an app's processes, worked out once per app.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    /// The capabilities of the bounding set, and of the others when the user is root.
    pub(crate) capabilities: CapabilitySet,
    /// Those of them that another user holds, by way of the ambient set.
    pub(crate) ambient: CapabilitySet,
    /// The system call filters.
    pub(crate) filters: Option<std::rc::Rc<Filters>>,
    /// Whether execve may gain privileges.
    pub(crate) new_privileges: bool,
}

impl Confinement {
    /// The sets a process of this user ends up with: another user than root keeps none but the bounding set and those added
    /// explicitly, as with podman.
    pub(crate) fn sets(&self, uid: u32) -> CapabilitySets {
        let (own, inheritable) =
            if uid == 0 { (self.capabilities, CapabilitySet::empty()) } else { (self.ambient, self.ambient) };
        CapabilitySets { effective: own, permitted: own, inheritable }
    }

    /// Raises the ambient set, by which a process of another user than root keeps capabilities across execve.
    fn raise_ambient(&self, uid: u32) -> io::Result<()> {
        if uid == 0 || self.ambient.is_empty() {
            return Ok(());
        }
        let mut sets = self.sets(uid);
        if self.needs_admin() {
            let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP;
            sets.effective |= needed;
            sets.permitted |= needed;
        }
        rustix::thread::set_capabilities(None, sets)?;
        for capability in self.ambient.iter() {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
        Ok(())
    }

    /// A filter without no-new-privs needs CAP_SYS_ADMIN at the moment it is loaded; it is dropped right after.
    pub(crate) fn needs_admin(&self) -> bool {
        self.filters.is_some() && self.new_privileges
    }
}

/// A program that is about to be executed.
#[derive(Debug, Clone)]
pub(crate) struct Command {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// Environment.
    pub(crate) env: Vec<String>,
}

/// Finds the program and makes all that execve needs, from inside the app's root and as its user.
pub(crate) fn prepare(command: &Command) -> Result<Executable, Unexecutable> {
    let invalid = |message: &str| Unexecutable { kind: "invalid", message: message.to_owned() };
    let name = command.argv.first().ok_or_else(|| invalid("the command is empty"))?;
    let program = program::find(name, &command.env)?;
    match (strings(&command.argv), strings(&command.env)) {
        (Some(argv), Some(env)) => Ok(Executable::new(program, argv, env)),
        _ => Err(invalid("an argument or a variable holds a NUL byte")),
    }
}

impl Confinement {
    /// Gives up everything that the app does not have, before an app can see the process: whatever it sees, it can take over with
    /// CAP_SYS_PTRACE. From here on only the calls in [`crate::seccomp`]'s list are made, and nothing is allocated.
    ///
    /// Order: signals, descriptors, the ambient and the bounding set, then the filter, then the capability that loading it needed.
    pub(crate) fn lock_down(&self, uid: u32) -> Result<(), Unexecutable> {
        self.try_lock_down(uid)
            .map_err(|error| Unexecutable { kind: "internal", message: format!("cannot confine the app: {error}") })
    }

    fn try_lock_down(&self, uid: u32) -> io::Result<()> {
        sys::reset_signals();
        sys::close_all_on_exec()?;
        self.raise_ambient(uid)?;
        if !self.new_privileges {
            rustix::thread::set_no_new_privs(true)?;
        }
        if self.needs_admin() {
            // SYS_ADMIN or SETPCAP, whichever the app does not have: root would get it back at execve.
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

    /// Becomes the program, once locked down. Returns only what failed.
    pub(crate) fn execute(&self, program: &Executable) -> (Step, io::Error) {
        if let Some(last) = self.filters.as_ref().and_then(|filters| filters.last.as_ref())
            && let Err(error) = sys::load_seccomp(last)
        {
            return (Step::Filter, error);
        }
        (Step::Execve, program.execute())
    }
}

/// Takes these out of the bounding set.
pub(crate) fn drop_bounding(capabilities: CapabilitySet) -> io::Result<()> {
    for capability in capabilities.iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // One that this kernel does not know cannot be held either.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn strings(texts: &[String]) -> Option<Vec<CString>> {
    texts.iter().map(|text| CString::new(text.as_str()).ok()).collect()
}

/// What this process can give an app.
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

/// The names of a set.
pub(crate) fn names(set: CapabilitySet) -> Vec<&'static str> {
    let all = gantry_model::spec::CAPABILITIES;
    all.iter().enumerate().filter(|(i, _)| set.bits() >> i & 1 == 1).map(|(_, name)| *name).collect()
}

/// The set of these names; those that do not exist are not in it (the engine has checked them).
pub(crate) fn capability_set(names: &[String]) -> CapabilitySet {
    let all = gantry_model::spec::CAPABILITIES;
    let bits =
        names.iter().filter_map(|name| all.iter().position(|known| known == name)).fold(0u64, |bits, i| bits | 1 << i);
    CapabilitySet::from_bits_truncate(bits)
}
