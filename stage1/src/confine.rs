//! The last steps of a process before it becomes the app: one list for apps and for what is executed in them, so that
//! an exec can never have more rights than its app (rkt CVE-2019-10144, -10145, -10147).

use std::ffi::CString;
use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::program::{self, Unexecutable};
use crate::sys::{self, Insn};

/// What confines an app's processes, worked out once per app.
#[derive(Debug, Clone)]
pub(crate) struct Confinement {
    /// The capabilities of the bounding set, and of the others when the user is root.
    pub(crate) capabilities: CapabilitySet,
    /// Those of them that another user holds, by way of the ambient set.
    pub(crate) ambient: CapabilitySet,
    /// The system call filter.
    pub(crate) filter: Option<std::rc::Rc<Vec<Insn>>>,
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
        self.filter.is_some() && self.new_privileges
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

/// Becomes the program: from inside the app's root, with its ids set. Returns only why it could not.
///
/// Order: signals, descriptors, the ambient set, then the filter, then the capabilities that only the filter's loading needed, then
/// execve. Between the filter and execve only system calls are made that every sensible filter allows.
pub(crate) fn become_program(command: &Command, confinement: &Confinement, uid: u32) -> Unexecutable {
    let Some(name) = command.argv.first() else {
        return Unexecutable { kind: "invalid", message: "the command is empty".to_owned() };
    };
    let program = match program::find(name, &command.env) {
        Ok(program) => program,
        Err(why) => return why,
    };
    let (Some(argv), Some(env)) = (strings(&command.argv), strings(&command.env)) else {
        return Unexecutable { kind: "invalid", message: "an argument or a variable holds a NUL byte".to_owned() };
    };
    sys::reset_signals();
    match lock_down(confinement, uid) {
        Ok(()) => {}
        Err(error) => return Unexecutable { kind: "internal", message: format!("cannot confine the app: {error}") },
    }
    let error = sys::execve(&program, &argv, &env);
    let errno = error.raw_os_error().map_or(Errno::INVAL, Errno::from_raw_os_error);
    let shown = gantry_model::id::shown(name);
    match errno {
        // The file is there (it was just found): what is missing is what it names.
        Errno::NOENT => Unexecutable {
            kind: "command-not-found",
            message: format!("cannot execute '{shown}': the interpreter or loader it names is not in the image"),
        },
        errno => program::unexecutable(&shown, errno),
    }
}

fn lock_down(confinement: &Confinement, uid: u32) -> io::Result<()> {
    sys::close_all_on_exec()?;
    confinement.raise_ambient(uid)?;
    if !confinement.new_privileges {
        rustix::thread::set_no_new_privs(true)?;
    }
    if let Some(filter) = &confinement.filter {
        sys::load_seccomp(filter)?;
    }
    if confinement.needs_admin() {
        // SYS_ADMIN or SETPCAP, whichever the app does not have: root would get it back at execve.
        drop_bounding(!confinement.capabilities)?;
        rustix::thread::set_capabilities(None, confinement.sets(uid))?;
    }
    Ok(())
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
