//! The system calls that a process makes between loading its filter and its execve, and the filters that allow them.
//!
//! An app with CAP_SYS_PTRACE can take over every process of its pod that it sees. So a process gets its filter and its
//! final capabilities before any app can see it. This module lists the calls that it makes afterwards. The default
//! profile allows all of them; a filter given by the user may not. In that case the process first loads a filter that
//! also allows these calls, and the app's own filter right before execve. The kernel applies both: a call succeeds only
//! if each filter allows it.

use std::collections::BTreeMap;

use super::{Action, Condition, numbers};

/// A call, and the position and value of an argument that is always the same.
type Call = (&'static str, Option<(u8, u32)>);

/// A created app waits for its execve; the helper of an exec forks and exits; the program's process of an exec takes
/// its permission and starts a session. All report failures or execute the program.
const CALLS: [Call; 7] = [
    ("clone", Some((0, (libc::CLONE_PARENT | libc::CLONE_PARENT_SETTID | libc::SIGCHLD) as u32))),
    ("execve", None),
    ("exit_group", None),
    ("ioctl", Some((1, libc::TIOCSCTTY as u32))),
    ("read", None),
    ("setsid", None),
    ("write", None),
];
/// To load the app's own filter after the first one.
const LOAD: Call = ("seccomp", None);
/// To drop the capability that loading a filter without no_new_privs needs.
const DROP: Call = ("capset", None);

/// The rules that a process starts with; `None` if the app's own suffice. A process that may gain privileges cannot
/// load a second filter later, so it keeps this one.
pub(super) fn rules(
    own: &BTreeMap<u32, Action>,
    default: &Action,
    new_privileges: bool,
) -> Option<BTreeMap<u32, Action>> {
    let last = if new_privileges { DROP } else { LOAD };
    let lacking = CALLS.iter().chain([&last]).filter_map(|(name, argument)| {
        let number = numbers::number(name)?;
        let action = own.get(&number).unwrap_or(default);
        (!allows(action, *argument)).then(|| (*name, number, allowing(action, *argument)))
    });
    let lacking: Vec<_> = lacking.collect();
    // This call is needed only if there is a second filter.
    if lacking.iter().all(|(name, ..)| *name == LOAD.0) {
        return None;
    }
    let mut rules = own.clone();
    rules.extend(lacking.into_iter().map(|(_, number, action)| (number, action)));
    Some(rules)
}

/// Whether a call with this argument is allowed, with any other arguments.
fn allows(action: &Action, argument: Option<(u8, u32)>) -> bool {
    match (action, argument) {
        (Action::Allow, _) => true,
        (Action::When(branches, otherwise), Some((number, value))) => {
            for (conditions, action) in branches {
                let on_it = |condition: &Condition| condition.argument == number;
                let (known, other): (Vec<_>, Vec<_>) = conditions.iter().partition(|condition| on_it(condition));
                if !known.iter().all(|condition| condition.test.holds(value.into())) {
                    continue;
                }
                // Conditions on other arguments may hold or not.
                if !allows(action, argument) {
                    return false;
                }
                if other.is_empty() {
                    return true;
                }
            }
            allows(otherwise, argument)
        }
        _ => false,
    }
}

fn allowing(action: &Action, argument: Option<(u8, u32)>) -> Action {
    match argument {
        None => Action::Allow,
        Some((argument, value)) => {
            let condition = Condition::masked(argument, u32::MAX, value);
            Action::When(vec![(vec![condition], Action::Allow)], Box::new(action.clone()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Action = Action::Errno(1);

    fn all() -> BTreeMap<u32, Action> {
        CALLS.iter().chain([&LOAD, &DROP]).map(|(name, _)| (numbers::number(name).unwrap(), Action::Allow)).collect()
    }

    #[test]
    fn the_default_profile_suffices() {
        for new_privileges in [false, true] {
            assert_eq!(rules(&super::super::profile::rules(&[]), &REFUSED, new_privileges), None);
            assert_eq!(rules(&all(), &REFUSED, new_privileges), None);
        }
    }

    #[test]
    fn calls_needed_at_start_are_added() {
        let number = |name| numbers::number(name).unwrap();
        for (name, argument) in CALLS {
            let mut own = all();
            own.remove(&number(name));
            let added = rules(&own, &REFUSED, false).unwrap();
            assert!(allows(&added[&number(name)], argument), "{name}");
            if let Some((at, value)) = argument {
                assert!(!allows(&added[&number(name)], Some((at, value ^ 1))), "{name} with another argument");
            }
        }
        let mut own = all();
        own.remove(&number("seccomp"));
        assert_eq!(rules(&own, &REFUSED, false), None, "one filter needs no call to load a second");
        own.insert(number("setsid"), REFUSED);
        assert!(allows(&rules(&own, &REFUSED, false).unwrap()[&number("seccomp")], None));
    }

    #[test]
    fn conditions_on_other_arguments_are_ignored() {
        let other = || vec![Condition::masked(2, u32::MAX, 0)];
        let action =
            |then: &Action, otherwise: Action| Action::When(vec![(other(), then.clone())], Box::new(otherwise));
        assert!(!allows(&action(&Action::Allow, REFUSED), Some((1, 5))));
        assert!(!allows(&action(&REFUSED, Action::Allow), Some((1, 5))));
        assert!(allows(&action(&Action::Allow, Action::Allow), Some((1, 5))));
        assert!(!allows(&action(&Action::Allow, Action::Allow), None));
    }
}
