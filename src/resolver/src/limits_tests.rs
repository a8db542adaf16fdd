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
        tickets.extend((2..).map_while(|n| begin(asker(n))));
        tickets.extend(std::iter::from_fn(|| begin(asker(2))));
        let others = (3..1000).flat_map(|n| std::iter::from_fn(move || Some(n)).take(of_one as usize));
        tickets.extend(others.map_while(|n| begin(asker(n))));
        assert_eq!(tickets.len(), of_all as usize, "of all");
        assert!(begin(asker(5000)).is_none());
        tickets.clear();
        assert!(begin(asker(1)).is_some(), "over is over");
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
