//! The cost of a pod among many. The tests compare the traffic with the kernel, which is deterministic; the measurement
//! (`--ignored --nocapture`) prints times and asserts none.

use std::time::{Duration, Instant};

use super::space::Space;
use super::{allowed_from, bridge, port};
use crate::channel::Traffic;
use crate::nft::{Access, Interface, Protocol, State, Table};

const PODS: u16 = 500;
const MAX_ROUNDS: u16 = 40;

/// A pod with two ports of each family.
fn pod(number: u16) -> State {
    let mut state = State::new();
    let owner = format!("00000000-0000-0000-0000-{number:012}");
    let (high, low) = (number / 200, number % 200 + 2);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let four = format!("10.1.{high}.{low}:80").parse().unwrap();
        state.forward(port("0.0.0.0", protocol, 10_000 + number), 1, four, &owner).unwrap();
        let six = format!("[fd00:1::{number:x}]:80").parse().unwrap();
        state.forward(port("::", protocol, 10_000 + number), 1, six, &owner).unwrap();
    }
    state
}

/// The same, with an interface of the host for this pod only.
fn pod_with_interface(number: u16) -> State {
    let mut state = pod(number);
    let addresses = state.ports.values().map(|forward| forward.to.ip()).collect();
    let interface = Interface { network: "default".to_owned(), addresses, access: Access::Isolated };
    state.interfaces.insert(format!("veth{number}"), interface);
    state
}

/// The same, with an anti-spoofing entry.
fn pod_with_anti_spoofing(number: u16) -> State {
    let mut state = pod(number);
    let [high, low] = number.to_be_bytes();
    let mut guard = allowed_from([2, 0, 0, 0, high, low], &[]);
    guard.addresses = state.ports.values().map(|forward| forward.to.ip()).collect();
    state.anti_spoofing.insert(format!("gt{number}"), guard);
    state
}

/// The traffic of an operation.
fn traffic_of(table: &mut Table, what: impl FnOnce(&mut Table)) -> Traffic {
    table.channel.traffic = Traffic::default();
    what(table);
    table.channel.traffic
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// The traffic and median times of adding and removing a pod.
fn measure(table: &mut Table, pod: fn(u16) -> State) -> ([Traffic; 2], [Duration; 2]) {
    let one = pod(1000);
    let added = traffic_of(table, |table| assert!(table.add(&one).is_ok()));
    let words = [added, traffic_of(table, |table| table.remove(&one).unwrap())];
    let (mut adding, mut removing) = (Vec::new(), Vec::new());
    for round in 0..MAX_ROUNDS {
        let one = pod(1000 + round);
        let began = Instant::now();
        table.add(&one).unwrap();
        adding.push(began.elapsed());
        let began = Instant::now();
        table.remove(&one).unwrap();
        removing.push(began.elapsed());
    }
    (words, [median(adding), median(removing)])
}

fn compare(what: &str, pod: fn(u16) -> State) {
    let space = Space::new();
    let mut table = space.table();
    let mut state = State::new();
    bridge(&mut state, "default", "gantry0", &["10.1.0.0/16", "fd00:1::/64"], Access::Isolated);
    table.ensure(&state).unwrap();
    table.add(&pod(0)).unwrap();
    let few = measure(&mut table, pod);
    for number in 1..PODS {
        table.add(&pod(number)).unwrap();
    }
    let many = measure(&mut table, pod);
    println!("{what}: add, remove at 1: {:?}; at {PODS}: {:?}; {:?}", few.1, many.1, few.0);
    assert_eq!(few.0, many.0);
    let [adding, removing] = few.0;
    // One transaction with one reply; removing queries first.
    assert!(adding.answers <= 2 && removing.requests < 50, "{few:?}");
    let began = Instant::now();
    let found = table.read().unwrap().unwrap();
    let reading = began.elapsed();
    assert_eq!((found.state.ports.len(), found.faults.len()), (usize::from(PODS) * 4, 0));
    let began = Instant::now();
    table.ensure(&found.state).unwrap();
    println!("{what}: all of it read in {reading:?}, replaced in {:?}", began.elapsed());
    assert!(table.read().unwrap().unwrap() == found);
}

#[test]
fn cost_per_pod_is_constant() {
    compare("on a bridge", pod);
}

#[test]
fn cost_per_single_interface_pod_is_constant() {
    compare("with a veth each", pod_with_interface);
}

#[test]
fn cost_per_anti_spoofing_pod_is_constant() {
    compare("with anti-spoofing each", pod_with_anti_spoofing);
}

/// Measures operations; a rejected transaction waits for an RCU grace period.
#[test]
#[ignore = "a measurement that asserts nothing"]
fn cost_of_each_operation() {
    let space = Space::new();
    let mut table = space.table();
    let mut state = State::new();
    bridge(&mut state, "default", "gantry0", &["10.1.0.0/16", "fd00:1::/64"], Access::Isolated);
    table.ensure(&state).unwrap();
    let mut price = |what: &str, each: &mut dyn FnMut(&mut Table, u16)| {
        let times = (0..MAX_ROUNDS).map(|round| {
            let began = Instant::now();
            each(&mut table, round);
            began.elapsed()
        });
        println!("{what:45} {:?}", median(times.collect()));
    };
    price("an existing anti-spoofing entry", &mut |table, _| {
        table.add(&State { anti_spoofing: pod_with_anti_spoofing(1).anti_spoofing, ..State::new() }).unwrap();
    });
    price("an existing network", &mut |table, _| {
        table.add(&state).unwrap();
    });
    for what in ["a pod", "the same again"] {
        price(what, &mut |table, round| {
            table.add(&pod_with_anti_spoofing(round)).unwrap();
        });
    }
    price("with its network", &mut |table, round| {
        let mut all = pod_with_anti_spoofing(1000 + round);
        all.networks.clone_from(&state.networks);
        all.interfaces.clone_from(&state.interfaces);
        table.add(&all).unwrap();
    });
    price("port taken", &mut |table, round| {
        let mut other = pod(round);
        other.ports.values_mut().for_each(|forward| forward.to.set_port(1));
        table.add(&other).unwrap_err();
    });
    price("the table replaced", &mut |table, _| table.ensure(&state).unwrap());
}

/// The batch exceeds the default send buffer.
#[test]
fn a_large_table_is_one_transaction() {
    let space = Space::new();
    let mut table = space.table();
    let mut state = State::new();
    let owner = "o".repeat(100);
    let mut left = std::env::var("GANTRY_TEST_PORTS").map_or(20_000, |count| count.parse::<u32>().unwrap());
    for address in 1..=u8::MAX {
        for block in 0..32_u16 {
            let count = left.min(1024);
            if count == 0 {
                break;
            }
            left -= count;
            let first = port(&format!("2001:db8::{address:x}"), Protocol::Tcp, 1 + 1024 * block);
            state.forward(first, u16::try_from(count).unwrap(), "[fd00::2]:1".parse().unwrap(), &owner).unwrap();
        }
    }
    let began = Instant::now();
    table.ensure(&state).unwrap();
    println!("{} ports made in {:?}", state.ports.len(), began.elapsed());
    let found = table.read().unwrap().unwrap();
    assert!(found.state == state && found.faults.is_empty());
    println!("and read after {:?}", began.elapsed());
}

/// While the kernel resizes a hash table after additions, a dump skips elements.
#[test]
fn reading_during_a_resize_is_complete() {
    let space = Space::new();
    let mut table = space.table();
    let mut state = State::new();
    (0..PODS).for_each(|number| state.ports.extend(pod(number).ports));
    for _ in 0..50 {
        table.ensure(&state).unwrap();
        assert!(table.read().unwrap().unwrap().state == state);
    }
}
