//! Programs, interpreted as the kernel does.

use proptest::prelude::*;

use super::*;

/// Interprets the instructions used here.
fn run(program: &[Insn], arch: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let (mut at, mut a) = (0usize, 0u32);
    loop {
        let i = program[at];
        at += 1;
        match i.code {
            LD_ABS if i.k == OFFSET_NUMBER => a = number,
            LD_ABS if i.k == OFFSET_ARCH => a = arch,
            LD_ABS => {
                let offset = i.k - OFFSET_ARGUMENTS;
                let value = arguments[(offset / 8) as usize];
                a = if offset.is_multiple_of(8) { value as u32 } else { (value >> 32) as u32 };
            }
            AND => a &= i.k,
            JEQ => at += usize::from(if a == i.k { i.jt } else { i.jf }),
            JGE => at += usize::from(if a >= i.k { i.jt } else { i.jf }),
            JGT => at += usize::from(if a > i.k { i.jt } else { i.jf }),
            JA => at += i.k as usize,
            RET => return i.k,
            other => panic!("{other}"),
        }
    }
}

/// Values around which comparisons change.
fn value() -> impl Strategy<Value = u64> {
    let edges = [0, 1, 2, 0xffff_ffff, 0x1_0000_0000, 0x1_0000_0001, u64::MAX - 1, u64::MAX];
    prop_oneof![proptest::sample::select(edges.to_vec()), any::<u64>(), 0u64..4]
}

fn test() -> impl Strategy<Value = Test> {
    prop_oneof![
        (value(), value()).prop_map(|(mask, value)| Test::Masked { mask, value }),
        value().prop_map(Test::NotEqual),
        value().prop_map(Test::Greater),
        value().prop_map(Test::AtMost),
    ]
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

    /// The compiled comparisons of 64 bits agree with those of the processor, also if several must hold.
    #[test]
    fn comparisons_are_of_64_bits(tests in proptest::collection::vec((0u8..6, test()), 1..5), arguments in [value(), value(), value(), value(), value(), value()]) {
        let conditions: Vec<Condition> = tests.into_iter().map(|(argument, test)| Condition { argument, test }).collect();
        let holds = conditions.iter().all(|condition| condition.test.holds(arguments[usize::from(condition.argument)]));
        let rules = [(7, Action::When(vec![(conditions, Action::Allow)], Box::new(Action::Errno(1))))].into();
        let program = compile(&rules, &Action::Errno(38)).unwrap();
        prop_assert_eq!(run(&program, ARCH, 7, arguments), if holds { RET_ALLOW } else { RET_ERRNO | 1 });
    }
}

#[test]
fn conditions_select_an_action() {
    let flags = Condition::masked(0, 0x7e02_0000, 0);
    let rules = [(56, Action::When(vec![(vec![flags], Action::Allow)], Box::new(Action::Errno(1))))].into();
    let program = compile(&rules, &Action::Errno(38)).unwrap();
    assert_eq!(run(&program, ARCH, 56, [17, 0, 0, 0, 0, 0]), RET_ALLOW);
    assert_eq!(run(&program, ARCH, 56, [0x1000_0000, 0, 0, 0, 0, 0]), RET_ERRNO | 1);
    assert_eq!(run(&program, ARCH, 57, [0; 6]), RET_ERRNO | 38);
    assert_eq!(run(&program, 0x4000_0003, 56, [0; 6]), RET_ERRNO | 38, "another architecture");
}

#[test]
fn x32_calls_do_not_escape_denied_calls() {
    let program = compile(&[(90, Action::Errno(1))].into(), &Action::Allow).unwrap();
    assert_eq!(run(&program, ARCH, 90, [0; 6]), RET_ERRNO | 1);
    assert_eq!(run(&program, ARCH, 91, [0; 6]), RET_ALLOW);
    for number in [X32_BIT, X32_BIT | 90, u32::MAX] {
        assert_eq!(run(&program, ARCH, number, [0; 6]), RET_ERRNO | 38, "{number:#x}");
    }
}
