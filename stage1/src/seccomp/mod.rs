//! System call filters, compiled to classic BPF: the default profile, or the user's list or profile.
//!
//! libseccomp takes 13 ms per container, because it rebuilds a profile's filter each time. This compiler takes some
//! microseconds, so nothing is cached. The filter is a balanced tree over ranges of system call numbers: about 7
//! comparisons per call instead of 300.
//!
//! Programs of another architecture (32-bit ones included) get ENOSYS for every call.

mod compile;
mod given;
mod numbers;
mod profile;
mod start;

use std::collections::BTreeMap;

use gantry_model::ErrorKind;
use gantry_model::spec::Seccomp;

use crate::failure::{Result, failure};
use crate::sys::Insn;

/// The filter's action for a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// The kernel executes it.
    Allow,
    /// It fails with this error number.
    Errno(u16),
    /// Another action, by its return value (seccomp(2)).
    Return(u32),
    /// The action of the first branch whose conditions hold, or else the last action.
    When(Vec<(Vec<Condition>, Action)>, Box<Action>),
}

/// A condition on one argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    /// The argument's position, from 0.
    pub(crate) argument: u8,
    /// The test of its 64 bits.
    pub(crate) test: Test,
}

/// A test of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// These bits have this value.
    Masked {
        /// The bits.
        mask: u64,
        /// Their value.
        value: u64,
    },
    /// It is another number.
    NotEqual(u64),
    /// It is greater.
    Greater(u64),
    /// It is less or equal.
    AtMost(u64),
}

impl Test {
    /// Whether it holds for an argument.
    pub(crate) fn holds(self, argument: u64) -> bool {
        match self {
            Self::Masked { mask, value } => argument & mask == value,
            Self::NotEqual(value) => argument != value,
            Self::Greater(value) => argument > value,
            Self::AtMost(value) => argument <= value,
        }
    }
}

impl Condition {
    /// Bits of an `int`, or of 32 bits of flags: the kernel ignores the high half of such an argument, and so does the
    /// test.
    pub(crate) fn masked(argument: u8, mask: u32, value: u32) -> Self {
        Self { argument, test: Test::Masked { mask: mask.into(), value: value.into() } }
    }
}

/// The filters of an app.
#[derive(Debug)]
pub(crate) struct Filters {
    /// Loaded before an app can see the process.
    pub(crate) first: Vec<Insn>,
    /// Loaded right before execve, if the first one allows more than the app gets.
    pub(crate) last: Option<Vec<Insn>>,
}

/// The filters of an app with these capabilities; `None` if it is unconfined. With a storage limit, the app cannot
/// change the project of its files, which overlayfs would pass on to the file system below: the limit counts a project.
pub(crate) fn filters(
    seccomp: &Seccomp,
    capabilities: &[String],
    new_privileges: bool,
    has_storage_limit: bool,
) -> Result<Option<Filters>> {
    if let Seccomp::Retain { names, .. } = seccomp
        && !names.iter().any(|name| name == "execve")
    {
        let why = "a list of retained system calls must contain execve, without which the app cannot be started";
        return Err(failure(ErrorKind::Invalid, why));
    }
    let Some((mut rules, default)) = rules(seccomp, capabilities)? else { return Ok(None) };
    if let Seccomp::Profile(_) = seccomp {
        given::check(&rules, &default)?;
    }
    if has_storage_limit {
        profile::fix_project(&mut rules, &default);
    }
    let own = || compile::compile(&rules, &default);
    let filters = match start::rules(&rules, &default, new_privileges) {
        None => Filters { first: own()?, last: None },
        Some(first) => {
            let last = if new_privileges { None } else { Some(own()?) };
            Filters { first: compile::compile(&first, &default)?, last }
        }
    };
    Ok(Some(filters))
}

/// A filter that allows these calls and no others.
pub(crate) fn only(names: &[&str]) -> Result<Vec<Insn>> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let rules = numbers_of(&names)?.into_iter().map(|number| (number, Action::Allow)).collect();
    compile::compile(&rules, &Action::Errno(libc::EPERM as u16))
}

/// The rules for system calls, and the action for calls without a rule; `None` if the app is unconfined.
fn rules(seccomp: &Seccomp, capabilities: &[String]) -> Result<Option<(BTreeMap<u32, Action>, Action)>> {
    Ok(Some(match seccomp {
        Seccomp::Unconfined => return Ok(None),
        Seccomp::Profile(profile) => given::rules(profile),
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
            // A list of calls does not name address families.
            rules
                .extend(profile::socket_rules(capabilities).into_iter().filter(|(number, _)| numbers.contains(number)));
            (rules, Action::Errno(*errno))
        }
    }))
}

fn numbers_of<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<Vec<u32>> {
    names
        .into_iter()
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
    fn call_lists_do_not_allow_address_families() {
        let names = std::collections::BTreeSet::from(["socket", "read", "execve"].map(str::to_owned));
        let filters = |seccomp: &Seccomp| super::filters(seccomp, &[], false, false).unwrap().unwrap();
        let filter = filters(&Seccomp::Retain { names: names.clone(), errno: 1 }).last.unwrap();
        let refused = |insn: &Insn| insn.k == 0x0005_0000 | libc::EAFNOSUPPORT as u32;
        assert_eq!(
            filter.iter().filter(|insn| refused(insn)).count(),
            1,
            "socket, and not socketpair, which is not in it"
        );
        let removed = filters(&Seccomp::Remove { names, errno: 1 }).last.unwrap();
        assert_eq!(removed.iter().filter(|insn| refused(insn)).count(), 1, "socketpair; socket is removed");
    }

    #[test]
    fn a_list_without_execve_is_refused() {
        let names = ["read".to_owned()].into();
        assert!(filters(&Seccomp::Retain { names, errno: 1 }, &[], false, false).is_err());
    }

    #[test]
    fn an_unneeded_second_filter_is_not_made() {
        let default = filters(&Seccomp::Default, &[], false, false).unwrap().unwrap();
        assert!(default.last.is_none());
        let names = ["setsid".to_owned()].into();
        let removed = Seccomp::Remove { names, errno: 1 };
        assert!(filters(&removed, &[], false, false).unwrap().unwrap().last.is_some());
        assert!(filters(&removed, &[], true, false).unwrap().unwrap().last.is_none(), "it could not be loaded");
    }

    #[test]
    fn a_storage_limit_fixes_the_project_of_files() {
        let ioctl = numbers::number("ioctl").unwrap();
        for (seccomp, is_allowed) in [
            (Seccomp::Default, true),
            (Seccomp::Remove { names: ["ioctl".to_owned()].into(), errno: 1 }, false),
            (Seccomp::Retain { names: ["execve".to_owned()].into(), errno: 1 }, false),
        ] {
            let (mut rules, default) = rules(&seccomp, &[]).unwrap().unwrap();
            profile::fix_project(&mut rules, &default);
            assert_eq!(matches!(rules.get(&ioctl), Some(Action::When(..))), is_allowed, "{seccomp:?}");
        }
    }
}
