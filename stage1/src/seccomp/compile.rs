//! Compiles rules to classic BPF.

use std::collections::BTreeMap;

use gantry_model::ErrorKind;

use super::{Action, Condition};
use crate::failure::{Result, failure};
use crate::sys::Insn;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;

/// x86_64 numbers with this bit are x32 calls.
const X32_BIT: u32 = 0x4000_0000;

const LD_ABS: u16 = 0x20;
const JEQ: u16 = 0x15;
const JGE: u16 = 0x35;
const JA: u16 = 0x05;
const AND: u16 = 0x54;
const RET: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

/// The kernel's limit on a program (`BPF_MAXINSNS`).
const MAX_PROGRAM: usize = 4096;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// Compiles a program that applies the rule for a call's number, or the default.
pub(super) fn compile(rules: &BTreeMap<u32, Action>, default: &Action) -> Result<Vec<Insn>> {
    let mut program = vec![
        insn(LD_ABS, 0, 0, OFFSET_ARCH),
        insn(JEQ, 1, 0, ARCH),
        insn(RET, 0, 0, RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        insn(LD_ABS, 0, 0, OFFSET_NUMBER),
    ];
    program.extend(tree(&segments(rules, default))?);
    if program.len() > MAX_PROGRAM {
        return Err(failure(
            ErrorKind::Invalid,
            format!("the seccomp filter has {} instructions; {MAX_PROGRAM} is the limit", program.len()),
        ));
    }
    Ok(program)
}

/// Cuts the range of numbers where the action changes: `(first number, action)`.
fn segments<'a>(rules: &'a BTreeMap<u32, Action>, default: &'a Action) -> Vec<(u32, &'a Action)> {
    let mut cut: Vec<(u32, &Action)> = Vec::with_capacity(rules.len() * 2 + 1);
    let mut push = |start: u32, action: &'a Action| match cut.last_mut() {
        Some(last) if last.0 == start => last.1 = action,
        Some(last) if last.1 == action => {}
        _ => cut.push((start, action)),
    };
    push(0, default);
    for (&number, action) in rules.range(..X32_BIT) {
        push(number, action);
        push(number + 1, default);
    }
    // A rule that replaced the default at its number may equal its neighbour.
    cut.dedup_by(|next, previous| next.1 == previous.1);
    cut
}

/// A balanced binary search over the segments.
fn tree(segments: &[(u32, &Action)]) -> Result<Vec<Insn>> {
    if let [(_, action)] = segments {
        return leaf(action);
    }
    let (left, right) = segments.split_at(segments.len() / 2);
    let (low, high) = (tree(left)?, tree(right)?);
    let mut program = Vec::with_capacity(low.len() + high.len() + 2);
    match u8::try_from(low.len()) {
        Ok(skip) => program.push(insn(JGE, skip, 0, right[0].0)),
        Err(_) => {
            let skip = u32::try_from(low.len()).unwrap_or(u32::MAX);
            program.extend([insn(JGE, 0, 1, right[0].0), insn(JA, 0, 0, skip)]);
        }
    }
    program.extend(low);
    program.extend(high);
    Ok(program)
}

fn leaf(action: &Action) -> Result<Vec<Insn>> {
    match action {
        Action::Allow => Ok(vec![insn(RET, 0, 0, RET_ALLOW)]),
        Action::Errno(errno) => Ok(vec![insn(RET, 0, 0, RET_ERRNO | u32::from(*errno))]),
        Action::When(branches, otherwise) => {
            let mut program = Vec::new();
            for (condition, action) in branches {
                program.extend(branch(condition, &leaf(action)?)?);
            }
            program.extend(leaf(otherwise)?);
            Ok(program)
        }
    }
}

/// Executes `then` if the condition holds.
fn branch(condition: &Condition, then: &[Insn]) -> Result<Vec<Insn>> {
    let skip = u8::try_from(then.len())
        .map_err(|_| failure(ErrorKind::Internal, "a branch of a seccomp rule is longer than 255 instructions"))?;
    let offset = OFFSET_ARGUMENTS + 8 * u32::from(condition.argument);
    let mut program =
        vec![insn(LD_ABS, 0, 0, offset), insn(AND, 0, 0, condition.mask), insn(JEQ, 0, skip, condition.value)];
    program.extend(then);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Interprets the instructions used here as the kernel does.
    fn run(program: &[Insn], arch: u32, number: u32, arguments: [u32; 6]) -> u32 {
        let (mut at, mut a) = (0usize, 0u32);
        loop {
            let i = program[at];
            at += 1;
            match i.code {
                LD_ABS if i.k == OFFSET_NUMBER => a = number,
                LD_ABS if i.k == OFFSET_ARCH => a = arch,
                LD_ABS => a = arguments[((i.k - OFFSET_ARGUMENTS) / 8) as usize],
                AND => a &= i.k,
                JEQ => at += usize::from(if a == i.k { i.jt } else { i.jf }),
                JGE => at += usize::from(if a >= i.k { i.jt } else { i.jf }),
                JA => at += i.k as usize,
                RET => return i.k,
                other => panic!("{other}"),
            }
        }
    }

    proptest! {
        #[test]
        fn each_number_gets_its_own_rule(numbers in proptest::collection::btree_map(0u32..600, 0u16..4, 0..300), probe in 0u32..700) {
            let action = |n: u16| if n == 0 { Action::Allow } else { Action::Errno(n) };
            let rules: BTreeMap<u32, Action> = numbers.iter().map(|(&k, &v)| (k, action(v))).collect();
            let program = compile(&rules, &Action::Errno(38)).unwrap();
            let want = match numbers.get(&probe) {
                Some(0) => RET_ALLOW,
                Some(&n) => RET_ERRNO | u32::from(n),
                None => RET_ERRNO | 38,
            };
            prop_assert_eq!(run(&program, ARCH, probe, [0; 6]), want);
        }
    }

    #[test]
    fn conditions_select_an_action() {
        let flags = Condition { argument: 0, mask: 0x7e02_0000, value: 0 };
        let rules = [(56, Action::When(vec![(flags, Action::Allow)], Box::new(Action::Errno(1))))].into();
        let program = compile(&rules, &Action::Errno(38)).unwrap();
        assert_eq!(run(&program, ARCH, 56, [17, 0, 0, 0, 0, 0]), RET_ALLOW);
        assert_eq!(run(&program, ARCH, 56, [0x1000_0000, 0, 0, 0, 0, 0]), RET_ERRNO | 1);
        assert_eq!(run(&program, ARCH, 57, [0; 6]), RET_ERRNO | 38);
        assert_eq!(run(&program, 0x4000_0003, 56, [0; 6]), RET_ERRNO | 38, "another architecture");
    }
}
