//! The duration of the two operations that every command and every list performs. Printed, not asserted: run with
//! `cargo test --release -p gantry-store speed -- --nocapture`. Targets: open < 1 ms, list of 10 000 pods < 25 ms, few
//! of them by state < 1 ms.

use std::time::Instant;

use gantry_model::PhaseName;
use gantry_model::query::{PodFilter, PodQuery};

use super::*;
use crate::PodWhere;

#[test]
fn cost_of_each_operation() {
    let home = Home::new();
    let image = image(&home.store, "i", &[]);
    for n in 0..200 {
        home.store.insert_pod(&new_pod(pod_id(n), &image, &["a", "b"])).unwrap();
    }
    let begun = Instant::now();
    for n in 200..300 {
        home.store.insert_pod(&new_pod(pod_id(n), &image, &["a", "b"])).unwrap();
    }
    println!("insert a pod: {:?}", begun.elapsed() / 100);
    let durable = |n| {
        let change = Change { durable: true, ..edge(Edge::Aborted(Timestamp(1))) };
        moved(&home.store, pod_id(n), Generation(0), change);
    };
    let begun = Instant::now();
    (0..20).for_each(durable);
    println!("a durable step: {:?}", begun.elapsed() / 20);
    home.store.conn.execute_batch("BEGIN").unwrap();
    for n in 300..10_000u128 {
        let sql = "INSERT INTO pod (id, cgroup, generation, phase, created, net, hostname, user_annotations, user_labels,
            prepared_at, started_at, ended_at, exit_code, reason) VALUES (?1, '/g/' || ?1, 4, 'exited', ?2, 'none', 'host', '{}',
            '{}', 1, 2, 3, 0, 'all apps ended')";
        let id = pod_id(n).to_string();
        home.store.conn.prepare_cached(sql).unwrap().execute(rusqlite::params![id, n as i64]).unwrap();
        let sql = "INSERT INTO app (pod, position, name, image, image_name, annotations, state, attempt, started_at,
            ended_at, exit_code, oom, app_id)
            VALUES (?1, 0, 'app', ?2, 'docker.io/library/i:1', '{}', 'exited', 0, 1, 2, 0, 0, lower(hex(randomblob(32))))";
        home.store.conn.prepare_cached(sql).unwrap().execute([id, image.to_string()]).unwrap();
    }
    home.store.conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    // A WAL after ordinary work, at about its longest.
    for n in 100..180 {
        moved(&home.store, pod_id(n), Generation(0), edge(Edge::Aborted(Timestamp(1))));
    }
    for others in ["with another process at work", "as the only one"] {
        let keep = (others != "as the only one").then(|| home.another());
        for _ in 0..3 {
            let begun = Instant::now();
            let store = home.another();
            let opened = begun.elapsed();
            let begun = Instant::now();
            let pods = store.pods(&PodQuery::default()).unwrap();
            println!("{others}: open {opened:?}, list {} pods {:?}", pods.len(), begun.elapsed());
            assert_eq!((pods.len(), pods[9_999].apps.len()), (10_000, 1));
        }
        drop(keep);
    }
    filters(&home.store);
    with_networks(&home);
    let path = home.path();
    drop(home.store);
    println!("the WAL has {} bytes", std::fs::metadata(path.join("gantry.db-wal")).unwrap().len());
    for _ in 0..5 {
        let begun = Instant::now();
        let store = Store::open(&path).unwrap();
        println!("alone: open {:?}", begun.elapsed());
        drop(store);
    }
    start_of_gantryd(&path);
}

/// The same list when each of them was on the default network, and a filter by it.
fn with_networks(home: &Home) {
    let networks = PodNetwork { ports: vec![], dns: Default::default(), ..full_network() };
    let networks = Networks::from_list(&[networks]).unwrap();
    let tx = home.store.conn.unchecked_transaction().unwrap();
    for n in 300..10_000 {
        crate::pods::row::write_networks(&tx, pod_id(n), &networks).unwrap();
    }
    tx.commit().unwrap();
    for _ in 0..3 {
        let begun = Instant::now();
        let pods = home.store.pods(&PodQuery::default()).unwrap();
        println!("list {} pods with networks: {:?}", pods.len(), begun.elapsed());
        let filter = PodFilter { networks: vec!["default".into()], ..PodFilter::default() };
        let begun = Instant::now();
        let pods = home.store.pods_where(&[PodWhere { filter: &filter, cgroups: vec![] }]).unwrap();
        println!("{} pods by network: {:?}", pods.len(), begun.elapsed());
    }
    home.store.conn.execute_batch("UPDATE pod SET networks = NULL").unwrap();
}

/// gantryd's work before it opens the database, with the maximum number of kept events.
fn start_of_gantryd(path: &std::path::Path) {
    let store = Store::open(path).unwrap();
    store.conn.execute_batch("BEGIN").unwrap();
    let kind = gantry_model::EventKind::PodExited;
    let data = [("exit_code".to_owned(), "0".to_owned()), ("reason".to_owned(), "all apps ended".to_owned())];
    for n in 0..100_000u128 {
        let id = pod_id(n % 10_000).to_string();
        let event = gantry_model::NewEvent { kind, at: Timestamp(5), name: id.clone(), id, data: data.clone().into() };
        store
            .conn
            .prepare_cached("INSERT INTO event SELECT next_seq, boot, ?1, 5, ?2, ?2, ?3 FROM state")
            .and_then(|mut insert| {
                let text = crate::pods::row::map_text(&event.data)?;
                insert.execute([event.kind.as_str(), &event.id, &text])
            })
            .unwrap();
        store.conn.prepare_cached("UPDATE state SET next_seq = next_seq + 1").unwrap().execute([]).unwrap();
    }
    store.conn.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let bytes = std::fs::metadata(store.layout().db()).unwrap().len();
    let home = crate::DataDir::open(path).unwrap();
    for _ in 0..3 {
        let begun = Instant::now();
        assert_eq!(home.damage().unwrap(), None);
        println!("look for damage in {bytes} bytes: {:?}", begun.elapsed());
        let begun = Instant::now();
        store.conn.query_row("PRAGMA quick_check(1)", [], |_| Ok(())).unwrap();
        println!("of that, the quick check: {:?}", begun.elapsed());
        let begun = Instant::now();
        store.back_up_if_due(Duration::ZERO).unwrap();
        println!("back up: {:?}", begun.elapsed());
    }
}

/// Filters on the ten thousand pods: 9 700 exited, 100 aborted, and 200 never started.
fn filters(store: &Store) {
    let f = PodFilter::default;
    let ids = |n: u128| (0..n).map(pod_id).collect();
    let pair = |n: u32| (format!("k{n}"), "v".to_owned());
    let many = |n: u128| PodFilter {
        ids: (0..39).map(|i| pod_id(n * 39 + i)).collect(),
        phases: vec![PhaseName::Exited],
        ..f()
    };
    let rows = [
        ("all", vec![]),
        ("100 by state", vec![PodFilter { phases: vec![PhaseName::AbortedPrepare], ..f() }]),
        ("none by state", vec![PodFilter { phases: vec![PhaseName::Running], ..f() }]),
        ("none that are being deleted", vec![PodFilter { phases: vec![PhaseName::Deleting], ..f() }]),
        ("9 700 by state", vec![PodFilter { phases: vec![PhaseName::Exited], ..f() }]),
        ("1 by id", vec![PodFilter { ids: ids(1), ..f() }]),
        ("10 000 by id", vec![PodFilter { ids: ids(10_000), ..f() }]),
        ("300 by app", vec![PodFilter { app_names: vec!["a".parse().unwrap()], ..f() }]),
        ("9 700 by app", vec![PodFilter { app_names: vec!["app".parse().unwrap()], ..f() }]),
        ("300 by annotation", vec![PodFilter { annotations: vec![("k".into(), "v\n\"".into())], ..f() }]),
        ("none by 100 annotations", vec![PodFilter { annotations: (0..100).map(pair).collect(), ..f() }]),
        ("9 684 by 256 filters", (0..256).map(many).collect()),
    ];
    for (what, filters) in rows {
        let filters: Vec<PodWhere<'_>> = filters.iter().map(|filter| PodWhere { filter, cgroups: vec![] }).collect();
        let mut times = [(); 5].map(|()| {
            let begun = Instant::now();
            let pods = store.pods_where(&filters).unwrap();
            (begun.elapsed(), pods.len())
        });
        times.sort();
        println!("{what}: {} pods, {:?}", times[2].1, times[2].0);
    }
}
