//! Tests of the limits.

use super::*;

fn asker(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

#[test]
fn so_many_questions_a_second() {
    let (limits, now) = (Limits::default(), Instant::now());
    let admitted = |asker, at| (0..RATE * 2).filter(|_| limits.admit(asker, at)).count();
    assert_eq!(admitted(asker(1), now), RATE as usize);
    assert_eq!(admitted(asker(2), now), RATE as usize, "one does not hinder another");
    assert_eq!(admitted(asker(1), now + WINDOW / 2), 0);
    assert_eq!(admitted(asker(1), now + WINDOW), RATE as usize);
}

#[test]
fn so_much_under_way() {
    let (limits, now) = (Limits::default(), Instant::now());
    for work in [Work::Forward, Work::Connection] {
        let Most { of_one, of_all } = work.most();
        let begin = |asker| limits.begin(asker, work, now);
        let mut tickets: Vec<Ticket> = std::iter::from_fn(|| begin(asker(1))).collect();
        assert_eq!(tickets.len(), of_one as usize, "of one");
        // Each of many gets one, until nothing is free.
        tickets.extend((2..).map_while(|n| begin(asker(n))));
        assert_eq!(tickets.len(), of_all as usize, "of all");
        assert!(begin(asker(5000)).is_none());
        tickets.clear();
        assert!(begin(asker(1)).is_some(), "over is over");
    }
}

/// However many ask for all they can get, one who comes later has its part.
#[test]
fn askers_share_and_leave_a_reserve() {
    let now = Instant::now();
    for flooding in [1, 4, 8, 9, 50] {
        let limits = Limits::default();
        let begin = |asker| limits.begin(asker, Work::Forward, now);
        let Most { of_one, of_all } = Work::Forward.most();
        let mut tickets: Vec<Ticket> = Vec::new();
        loop {
            let round: Vec<Ticket> = (1..=flooding).filter_map(|n| begin(asker(n))).collect();
            if round.is_empty() {
                break;
            }
            tickets.extend(round);
        }
        let share = (of_all / (flooding + 1)).min(of_one) as usize;
        let has = |n: u32| limits.lock().askers[&asker(n)].forwards as usize;
        assert!((1..=flooding).all(|n| has(n).abs_diff(share) <= 1), "{flooding}: {:?}", (1..=flooding).map(has));
        let later: Vec<Ticket> = std::iter::from_fn(|| begin(asker(1000))).collect();
        assert!(later.len() >= share / 2 && !later.is_empty(), "{flooding}: {}", later.len());
    }
}

#[test]
fn so_many_askers() {
    let (limits, now) = (Limits::default(), Instant::now());
    let busy = limits.begin(asker(0), Work::Forward, now).unwrap();
    for n in 1..MOST_ASKERS as u32 {
        assert!(limits.admit(asker(n), now));
    }
    assert!(!limits.admit(asker(1 << 20), now), "there are too many");
    assert!(limits.admit(asker(1), now), "who is known goes on");
    assert!(limits.admit(asker(1 << 20), now + WINDOW), "who was there before is forgotten");
    assert_eq!(limits.lock().askers.len(), 2, "who has something under way is not");
    drop(busy);
    assert_eq!(limits.lock().all.forwards, 0);
}
