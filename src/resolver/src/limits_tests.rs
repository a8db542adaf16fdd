//! Tests of the limits.

use super::*;

fn pod(n: u32) -> IpAddr {
    IpAddr::V4(n.into())
}

#[test]
fn the_query_rate_is_limited_per_pod() {
    let (limits, now) = (Limits::default(), Instant::now());
    let admitted = |pod, at| (0..MAX_QUERIES * 2).filter(|_| limits.admits_query(pod, at)).count();
    assert_eq!(admitted(pod(1), now), MAX_QUERIES as usize);
    assert_eq!(admitted(pod(2), now), MAX_QUERIES as usize, "another pod has its own rate");
    assert_eq!(admitted(pod(1), now + RATE_INTERVAL / 2), 0);
    assert_eq!(admitted(pod(1), now + RATE_INTERVAL), MAX_QUERIES as usize);
}

#[test]
fn permits_are_limited_per_pod_and_in_total() {
    let (limits, now) = (Limits::default(), Instant::now());
    let acquire = |pod| limits.try_acquire(PermitKind::Forward, pod, now);
    let mut permits: Vec<Permit> = std::iter::from_fn(|| acquire(pod(1))).collect();
    assert_eq!(permits.len(), MAX_PERMITS_PER_POD);
    // Each further pod gets one, until none is free.
    permits.extend((2..).map_while(|n| acquire(pod(n))));
    assert_eq!(permits.len(), MAX_PERMITS);
    assert!(acquire(pod(5000)).is_none());
    let connection = |pod| limits.try_acquire(PermitKind::Connection, pod, now);
    assert!(connection(pod(1)).is_some() && connection(pod(5000)).is_some(), "connections have a budget of their own");
    permits.clear();
    assert!(acquire(pod(1)).is_some(), "dropped permits are free again");
}

/// However many pods flood, the next one gets its share.
#[test]
fn flooding_pods_share_and_leave_a_reserve() {
    let now = Instant::now();
    for flooding in [1, 4, 8, 9, 50] {
        let limits = Limits::default();
        let acquire = |pod| limits.try_acquire(PermitKind::Forward, pod, now);
        let mut permits: Vec<Permit> = Vec::new();
        loop {
            let round: Vec<Permit> = (1..=flooding).filter_map(|n| acquire(pod(n))).collect();
            if round.is_empty() {
                break;
            }
            permits.extend(round);
        }
        let share = (MAX_PERMITS / (flooding as usize + 1)).min(MAX_PERMITS_PER_POD);
        let held = |n: u32| limits.pods.lock().unwrap()[&pod(n)].forwards.count();
        assert!((1..=flooding).all(|n| held(n).abs_diff(share) <= 1), "{flooding}: {:?}", (1..=flooding).map(held));
        let later: Vec<Permit> = std::iter::from_fn(|| acquire(pod(1000))).collect();
        assert!(later.len() >= share / 2 && !later.is_empty(), "{flooding}: {}", later.len());
    }
}

#[test]
fn the_number_of_pods_is_limited() {
    let (limits, now) = (Limits::default(), Instant::now());
    let busy = limits.try_acquire(PermitKind::Connection, pod(0), now).unwrap();
    for n in 1..MAX_PODS as u32 {
        assert!(limits.admits_query(pod(n), now));
    }
    assert!(!limits.admits_query(pod(1 << 20), now), "there are too many");
    assert!(limits.admits_query(pod(1), now), "a pod that is counted already is served");
    assert!(limits.admits_query(pod(1 << 20), now + RATE_INTERVAL), "idle pods are forgotten");
    assert_eq!(limits.pods.lock().unwrap().len(), 2, "a pod with a permit is not idle");
    drop(busy);
    assert_eq!(limits.connections.available_permits(), MAX_PERMITS);
}
