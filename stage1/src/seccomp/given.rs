//! The rules of a profile that the user gives.
//!
//! For a call, the first rule with conditions that hold decides, then the first one without conditions, then the
//! default. Names that this architecture lacks have no effect, as with other runtimes: profiles are written for several
//! kernels and architectures.

use std::collections::BTreeMap;

use gantry_model::ErrorKind;
use gantry_model::seccomp_profile::{SeccompAction, SeccompArgument, SeccompProfile, SeccompTest};

use super::{Action, Condition, Test, numbers};
use crate::failure::{Result, failure};

const RET_KILL_PROCESS: u32 = 0x8000_0000;
const RET_KILL_THREAD: u32 = 0;
const RET_TRAP: u32 = 0x0003_0000;
const RET_TRACE: u32 = 0x7ff0_0000;
const RET_LOG: u32 = 0x7ffc_0000;

/// The rules for one call.
#[derive(Default)]
struct CallRules {
    /// Those with conditions.
    branches: Vec<(Vec<Condition>, Action)>,
    /// The first one without.
    otherwise: Option<Action>,
}

/// The rules by number, and the action for other calls.
pub(super) fn rules(profile: &SeccompProfile) -> (BTreeMap<u32, Action>, Action) {
    let default = action(profile.default);
    let mut calls: BTreeMap<u32, CallRules> = BTreeMap::new();
    for rule in &profile.rules {
        for number in rule.names.iter().filter_map(|name| numbers::number(name)) {
            let call = calls.entry(number).or_default();
            if rule.arguments.is_empty() {
                call.otherwise.get_or_insert(action(rule.action));
            } else {
                call.branches.push((rule.arguments.iter().map(condition).collect(), action(rule.action)));
            }
        }
    }
    let whole = |CallRules { branches, otherwise }| {
        let otherwise: Action = otherwise.unwrap_or_else(|| default.clone());
        if branches.is_empty() { otherwise } else { Action::When(branches, Box::new(otherwise)) }
    };
    (calls.into_iter().map(|(number, call)| (number, whole(call))).collect(), default)
}

/// Refuses rules with which no program can be started.
pub(super) fn check(rules: &BTreeMap<u32, Action>, default: &Action) -> Result<()> {
    let execve = numbers::number("execve").and_then(|number| rules.get(&number)).unwrap_or(default);
    match execve {
        Action::Allow | Action::When(..) => Ok(()),
        Action::Return(RET_LOG) => Ok(()),
        Action::Errno(_) | Action::Return(_) => {
            let why = "the seccomp profile does not allow execve, without which the app cannot be started";
            Err(failure(ErrorKind::Invalid, why))
        }
    }
}

fn action(action: SeccompAction) -> Action {
    match action {
        SeccompAction::Allow => Action::Allow,
        SeccompAction::Errno(errno) => Action::Errno(errno.min(MAX_ERRNO)),
        SeccompAction::Log => Action::Return(RET_LOG),
        SeccompAction::Trap => Action::Return(RET_TRAP),
        SeccompAction::KillThread => Action::Return(RET_KILL_THREAD),
        SeccompAction::KillProcess => Action::Return(RET_KILL_PROCESS),
        SeccompAction::Trace(number) => Action::Return(RET_TRACE | u32::from(number)),
    }
}

/// The highest error number; the kernel lowers others to it.
const MAX_ERRNO: u16 = 4095;

fn condition(argument: &SeccompArgument) -> Condition {
    let test = match argument.test {
        SeccompTest::Ne(value) => Test::NotEqual(value),
        SeccompTest::Eq(value) => Test::Masked { mask: u64::MAX, value },
        SeccompTest::MaskedEq { mask, value } => Test::Masked { mask, value },
        SeccompTest::Gt(value) => Test::Greater(value),
        SeccompTest::Le(value) => Test::AtMost(value),
        // Of no number, and of every number.
        SeccompTest::Lt(0) => Test::Greater(u64::MAX),
        SeccompTest::Ge(0) => Test::AtMost(u64::MAX),
        SeccompTest::Lt(value) => Test::AtMost(value - 1),
        SeccompTest::Ge(value) => Test::Greater(value - 1),
    };
    Condition { argument: argument.index, test }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::seccomp_profile::SeccompRule;

    fn rule(names: &[&str], action: SeccompAction, arguments: Vec<SeccompArgument>) -> SeccompRule {
        SeccompRule { names: names.iter().map(|&name| name.to_owned()).collect(), action, arguments }
    }

    #[test]
    fn conditions_come_before_rules_without() {
        let no_vsock = SeccompArgument { index: 0, test: SeccompTest::Ne(40) };
        let profile = SeccompProfile {
            default: SeccompAction::Errno(1),
            rules: vec![
                rule(&["socket", "no_such_call"], SeccompAction::Errno(97), Vec::new()),
                rule(&["socket"], SeccompAction::Allow, vec![no_vsock]),
                rule(&["socket"], SeccompAction::KillProcess, Vec::new()),
            ],
        };
        let (rules, default) = rules(&profile);
        assert_eq!(default, Action::Errno(1));
        assert_eq!(rules.len(), 1);
        let condition = Condition { argument: 0, test: Test::NotEqual(40) };
        let want = Action::When(vec![(vec![condition], Action::Allow)], Box::new(Action::Errno(97)));
        assert_eq!(rules.values().next(), Some(&want));
        assert!(check(&rules, &default).is_err(), "no execve");
        assert!(check(&rules, &Action::Allow).is_ok());
    }

    #[test]
    fn every_comparison_means_what_it_says() {
        for (test, held, failing) in [
            (SeccompTest::Lt(5), vec![0, 4], vec![5, u64::MAX]),
            (SeccompTest::Lt(0), vec![], vec![0, u64::MAX]),
            (SeccompTest::Ge(0), vec![0, u64::MAX], vec![]),
            (SeccompTest::Ge(5), vec![5, 6], vec![0, 4]),
            (SeccompTest::Le(5), vec![0, 5], vec![6]),
            (SeccompTest::Gt(5), vec![6], vec![0, 5]),
            (SeccompTest::Eq(1 << 40), vec![1 << 40], vec![0]),
            (SeccompTest::Ne(5), vec![4, 1 << 40 | 5], vec![5]),
            (SeccompTest::MaskedEq { mask: 6, value: 2 }, vec![2, 3], vec![4, 6]),
        ] {
            let test = condition(&SeccompArgument { index: 0, test }).test;
            assert!(held.iter().all(|&value| test.holds(value)), "{test:?}");
            assert!(!failing.iter().any(|&value| test.holds(value)), "{test:?}");
        }
    }
}
