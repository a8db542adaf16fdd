//! System call filters, compiled to classic BPF: the default profile, or a list of the user's.
//!
//! libseccomp would cost 13 ms a container (it rebuilds a profile's filter each time); this compiler takes some
//! microseconds, so nothing is cached. The filter is a balanced tree over ranges of system call numbers: some
//! 7 comparisons a call instead of some 300.
//!
//! Programs of another architecture (32-bit ones included) get ENOSYS for every call.

mod compile;
mod numbers;
mod profile;

use gantry_contract::plan::Seccomp;
use gantry_model::ErrorKind;

use crate::failure::{Result, failure};
use crate::sys::Insn;

/// What happens to a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is made.
    Allow,
    /// It fails with this error number.
    Errno(u16),
    /// The first condition that holds decides, else the last action.
    When(Vec<(Condition, Action)>, Box<Action>),
}

/// A condition on one argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    /// Which argument, from 0.
    pub(crate) argument: u8,
    /// Bits of its low 32 that count. The high 32 bits are not looked at: every argument tested here is an `int` or flags of 32 bits.
    pub(crate) mask: u32,
    /// What those bits must be.
    pub(crate) value: u32,
}

/// The filter of an app with these capabilities; `None` when it is unconfined.
pub(crate) fn filter(seccomp: &Seccomp, capabilities: &[String]) -> Result<Option<Vec<Insn>>> {
    let (rules, default) = match seccomp {
        Seccomp::Unconfined => return Ok(None),
        Seccomp::Default => (profile::rules(capabilities), Action::Errno(profile::DEFAULT_ERRNO)),
        Seccomp::Remove { names, errno } => {
            let mut rules = profile::rules(capabilities);
            for number in numbers_of(names)? {
                rules.insert(number, Action::Errno(*errno));
            }
            (rules, Action::Errno(profile::DEFAULT_ERRNO))
        }
        Seccomp::Retain { names, errno } => {
            let rules = numbers_of(names)?.into_iter().map(|number| (number, Action::Allow)).collect();
            (rules, Action::Errno(*errno))
        }
    };
    compile::compile(&rules, &default).map(Some)
}

fn numbers_of(names: &[String]) -> Result<Vec<u32>> {
    names
        .iter()
        .map(|name| {
            numbers::number(name).ok_or_else(|| {
                let shown = gantry_model::id::shown(name);
                failure(ErrorKind::Invalid, format!("'{shown}' is not a system call of this architecture"))
            })
        })
        .collect()
}
