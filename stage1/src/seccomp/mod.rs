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

use std::collections::BTreeMap;

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
            let numbers = numbers_of(names)?;
            let mut rules: BTreeMap<u32, Action> = numbers.iter().map(|&number| (number, Action::Allow)).collect();
            // A list of calls says nothing of address families.
            rules
                .extend(profile::socket_rules(capabilities).into_iter().filter(|(number, _)| numbers.contains(number)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_calls_does_not_open_address_families() {
        let names = ["socket", "read"].map(str::to_owned).to_vec();
        let filter = filter(&Seccomp::Retain { names: names.clone(), errno: 1 }, &[]).unwrap().unwrap();
        let refused = |insn: &Insn| insn.k == 0x0005_0000 | libc::EAFNOSUPPORT as u32;
        assert_eq!(
            filter.iter().filter(|insn| refused(insn)).count(),
            1,
            "socket, and not socketpair, which is not in it"
        );
        let removed = super::filter(&Seccomp::Remove { names, errno: 1 }, &[]).unwrap().unwrap();
        assert_eq!(removed.iter().filter(|insn| refused(insn)).count(), 1, "socketpair; socket is removed");
    }
}
