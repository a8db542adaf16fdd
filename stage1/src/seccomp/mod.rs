//! System call filters, compiled to classic BPF: the default profile, or the user's list or profile.
//!
//! libseccomp takes 13 ms per container, because it rebuilds a profile's filter each time. This compiler takes 0.2 ms,
//! once for all apps of a pod with the same confinement ([`FilterCache`]). The filter is a balanced tree over ranges of
//! system call numbers: about 7 comparisons per call instead of 300.
//!
//! Programs of another architecture (32-bit ones included) get ENOSYS for every call.

mod compile;
mod given;
mod numbers;
mod profile;
mod start;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use gantry_model::ErrorKind;
use gantry_model::spec::Seccomp;
use rustix::thread::CapabilitySet;

use crate::app::confine;
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

/// What the filters of an app depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FilterInputs {
    /// The system calls that the app asks for.
    pub(crate) seccomp: Seccomp,
    /// The capabilities of the app: the default profile allows more calls with some.
    pub(crate) capabilities: CapabilitySet,
    /// Whether its programs may gain privileges.
    pub(crate) new_privileges: bool,
    /// Whether its storage is limited. The limit counts a project (quota), which overlayfs would let the app change
    /// for its files.
    pub(crate) has_storage_limit: bool,
}

/// The filters of a pod's apps. Compiling takes 0.2 ms, and most apps have the same.
#[derive(Debug, Default)]
pub(crate) struct FilterCache(RefCell<Vec<(FilterInputs, Weak<Filters>)>>);

impl FilterCache {
    /// The filters of an app; `None` if it is unconfined.
    pub(crate) fn get_or_compile(&self, inputs: &FilterInputs) -> Result<Option<Rc<Filters>>> {
        let mut entries = self.0.borrow_mut();
        entries.retain(|(_, filters)| filters.strong_count() > 0);
        let known = entries.iter().find(|(known, _)| known == inputs);
        if let Some(filters) = known.and_then(|(_, filters)| filters.upgrade()) {
            return Ok(Some(filters));
        }
        let Some(filters) = compile_filters(inputs)?.map(Rc::new) else { return Ok(None) };
        entries.push((inputs.clone(), Rc::downgrade(&filters)));
        Ok(Some(filters))
    }
}

fn compile_filters(inputs: &FilterInputs) -> Result<Option<Filters>> {
    let &FilterInputs { ref seccomp, capabilities, new_privileges, has_storage_limit } = inputs;
    let capabilities: Vec<String> = confine::names(capabilities).into_iter().map(str::to_owned).collect();
    if let Seccomp::Retain { names, .. } = seccomp
        && !names.iter().any(|name| name == "execve")
    {
        let why = "a list of retained system calls must contain execve, without which the app cannot be started";
        return Err(failure(ErrorKind::Invalid, why));
    }
    let Some((mut rules, default)) = rules(seccomp, &capabilities)? else { return Ok(None) };
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

    fn inputs(seccomp: Seccomp, new_privileges: bool) -> FilterInputs {
        FilterInputs { seccomp, capabilities: CapabilitySet::empty(), new_privileges, has_storage_limit: false }
    }

    fn filters(seccomp: Seccomp, new_privileges: bool) -> Result<Filters> {
        compile_filters(&inputs(seccomp, new_privileges)).map(Option::unwrap)
    }

    #[test]
    fn apps_share_equal_filters_only() {
        let cache = FilterCache::default();
        let get = |inputs| cache.get_or_compile(&inputs).unwrap();
        let first = get(inputs(Seccomp::Default, false)).unwrap();
        assert!(Rc::ptr_eq(&first, &get(inputs(Seccomp::Default, false)).unwrap()));
        let admin = FilterInputs { capabilities: CapabilitySet::SYS_ADMIN, ..inputs(Seccomp::Default, false) };
        assert_ne!(get(admin).unwrap().first, first.first);
        let removed = Seccomp::Remove { names: ["setsid".to_owned()].into(), errno: 1 };
        assert!(get(inputs(removed, false)).unwrap().last.is_some());
        assert!(get(inputs(Seccomp::Unconfined, false)).is_none());
        drop(first);
        get(inputs(Seccomp::Unconfined, false));
        assert!(cache.0.borrow().is_empty(), "filters that no app has are freed");
    }

    #[test]
    fn call_lists_do_not_allow_address_families() {
        let names = std::collections::BTreeSet::from(["socket", "read", "execve"].map(str::to_owned));
        let filters = |seccomp| filters(seccomp, false).unwrap();
        let filter = filters(Seccomp::Retain { names: names.clone(), errno: 1 }).last.unwrap();
        let refused = |insn: &Insn| insn.k == 0x0005_0000 | libc::EAFNOSUPPORT as u32;
        assert_eq!(
            filter.iter().filter(|insn| refused(insn)).count(),
            1,
            "socket, and not socketpair, which is not in it"
        );
        let removed = filters(Seccomp::Remove { names, errno: 1 }).last.unwrap();
        assert_eq!(removed.iter().filter(|insn| refused(insn)).count(), 1, "socketpair; socket is removed");
    }

    #[test]
    fn a_list_without_execve_is_refused() {
        let names = ["read".to_owned()].into();
        assert!(filters(Seccomp::Retain { names, errno: 1 }, false).is_err());
    }

    #[test]
    fn an_unneeded_second_filter_is_not_made() {
        let default = filters(Seccomp::Default, false).unwrap();
        assert!(default.last.is_none());
        let names = ["setsid".to_owned()].into();
        let removed = Seccomp::Remove { names, errno: 1 };
        assert!(filters(removed.clone(), false).unwrap().last.is_some());
        assert!(filters(removed, true).unwrap().last.is_none(), "it could not be loaded");
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
            assert_eq!(rules.get(&profile::FILE_SETATTR), None, "the default is an error: {seccomp:?}");
        }
        // A profile may allow calls without a rule.
        let mut rules = BTreeMap::new();
        profile::fix_project(&mut rules, &Action::Allow);
        assert_eq!(rules.get(&profile::FILE_SETATTR), Some(&Action::Errno(libc::ENOSYS as u16)));
        let Some(Action::When(branches, otherwise)) = rules.get(&ioctl) else { panic!("{rules:?}") };
        assert_eq!(**otherwise, Action::Allow);
        for command in profile::SET_PROJECT {
            let denied = (vec![Condition::masked(1, u32::MAX, command)], Action::Errno(libc::EPERM as u16));
            assert!(branches.contains(&denied), "{command:#x}");
        }
    }
}
