//! Compiles rules to classic BPF.

use std::collections::BTreeMap;

use gantry_model::ErrorKind;

use super::{Action, Condition, Test};
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
const JGT: u16 = 0x25;
const JA: u16 = 0x05;
const AND: u16 = 0x54;
const RET: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;

/// The longest action after a condition, in instructions: a jump skips at most 255.
const MAX_BRANCH: u8 = 250;

/// The kernel's limit on a program (`BPF_MAXINSNS`).
const MAX_PROGRAM: usize = 4096;

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Insn {
    Insn { code, jt, jf, k }
}

/// Compiles a program that applies the rule for a call's number, or the default.
pub(super) fn compile(rules: &BTreeMap<u32, Action>, default: &Action) -> Result<Vec<Insn>> {
    let head = [
        insn(LD_ABS, 0, 0, OFFSET_ARCH),
        insn(JEQ, 1, 0, ARCH),
        insn(RET, 0, 0, RET_ERRNO | libc::ENOSYS.unsigned_abs()),
        insn(LD_ABS, 0, 0, OFFSET_NUMBER),
    ];
    // With a default that allows calls, x32 calls would escape the rules for calls of the same names.
    let none = Action::Errno(libc::ENOSYS.unsigned_abs().try_into().unwrap_or_default());
    let mut segments = segments(rules, default);
    if segments.last().is_none_or(|(_, last)| **last != none) {
        segments.push((X32_BIT, &none));
    }
    // A search has about two instructions for each segment.
    let mut program = Vec::with_capacity(head.len() + segments.len() * 3);
    program.extend(head);
    append_tree(&mut program, &segments)?;
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

/// Appends a balanced binary search over the segments.
fn append_tree(program: &mut Vec<Insn>, segments: &[(u32, &Action)]) -> Result<()> {
    if let [(_, action)] = segments {
        return append_leaf(program, action);
    }
    let (low, high) = segments.split_at(segments.len() / 2);
    let (at, first) = (program.len(), high[0].0);
    program.push(insn(JGE, 0, 0, first));
    append_tree(program, low)?;
    let skip = program.len() - at - 1;
    match u8::try_from(skip) {
        Ok(skip) => program[at].jt = skip,
        Err(_) => {
            program[at].jf = 1;
            program.insert(at + 1, insn(JA, 0, 0, u32::try_from(skip).unwrap_or(u32::MAX)));
        }
    }
    append_tree(program, high)
}

fn append_leaf(program: &mut Vec<Insn>, action: &Action) -> Result<()> {
    match action {
        Action::Allow => program.push(insn(RET, 0, 0, RET_ALLOW)),
        Action::Errno(errno) => program.push(insn(RET, 0, 0, RET_ERRNO | u32::from(*errno))),
        Action::Return(value) => program.push(insn(RET, 0, 0, *value)),
        Action::When(branches, otherwise) => {
            for (conditions, action) in branches {
                let mut then = Vec::new();
                append_leaf(&mut then, action)?;
                program.extend(branch(conditions, then)?);
            }
            append_leaf(program, otherwise)?;
        }
    }
    Ok(())
}

/// Executes `then` if all conditions hold.
fn branch(conditions: &[Condition], then: Vec<Insn>) -> Result<Vec<Insn>> {
    let mut program = then;
    for condition in conditions.iter().rev() {
        let skip = u8::try_from(program.len())
            .ok()
            .filter(|skip| *skip <= MAX_BRANCH)
            .ok_or_else(|| failure(ErrorKind::Internal, "a branch of a seccomp rule is too long"))?;
        let mut guarded = guard(condition, skip);
        guarded.extend(program);
        program = guarded;
    }
    Ok(program)
}

/// Continues if the condition holds, and else skips that many instructions.
fn guard(condition: &Condition, skip: u8) -> Vec<Insn> {
    let low = OFFSET_ARGUMENTS + 8 * u32::from(condition.argument);
    let halves = |value: u64| ((value >> 32) as u32, value as u32);
    let load = |offset: u32| insn(LD_ABS, 0, 0, offset);
    // Both architectures are little-endian: the high half comes second.
    let high = low + 4;
    match condition.test {
        Test::Masked { mask, value } => {
            let ((mask_high, mask_low), (value_high, value_low)) = (halves(mask), halves(value));
            let mut program = Vec::new();
            if mask_high != 0 || value_high != 0 {
                program.extend([load(high), insn(AND, 0, 0, mask_high), insn(JEQ, 0, skip + 3, value_high)]);
            }
            program.extend([load(low), insn(AND, 0, 0, mask_low), insn(JEQ, 0, skip, value_low)]);
            program
        }
        Test::NotEqual(value) => {
            let (value_high, value_low) = halves(value);
            vec![load(high), insn(JEQ, 0, 2, value_high), load(low), insn(JEQ, skip, 0, value_low)]
        }
        Test::Greater(value) => {
            let (value_high, value_low) = halves(value);
            vec![
                load(high),
                insn(JGT, 3, 0, value_high),
                insn(JEQ, 0, skip + 2, value_high),
                load(low),
                insn(JGT, 0, skip, value_low),
            ]
        }
        Test::AtMost(value) => {
            let (value_high, value_low) = halves(value);
            vec![
                load(high),
                insn(JGT, skip + 3, 0, value_high),
                insn(JEQ, 0, 2, value_high),
                load(low),
                insn(JGT, skip, 0, value_low),
            ]
        }
    }
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
