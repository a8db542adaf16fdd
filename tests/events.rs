//! Each event is reported once, in order, for every cause and every listener.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gantry_tests::{DEADLINE, Gantry, Signal, pod_id, wait_for};
use serde_json::Value;

const ALL: [&str; 9] = [
    "pod-prepared",
    "pod-prepare-aborted",
    "pod-started",
    "pod-exited",
    "pod-garbage-collected",
    "app-started",
    "app-exited",
    "image-imported",
    "image-removed",
];

/// The value, or a failed test.
#[track_caller]
fn must<T, E: std::fmt::Display>(what: &str, outcome: Result<T, E>) -> T {
    outcome.unwrap_or_else(|error| panic!("cannot {what}: {error}"))
}

/// The JSON values in some output.
fn documents(text: &str) -> Vec<Value> {
    text.lines().map(|line| must(&format!("read {line}"), serde_json::from_str(line))).collect()
}

/// The output of `gantry events FLAGS -o json`.
#[track_caller]
fn events(g: &Gantry, flags: &[&str]) -> Vec<Value> {
    documents(&g.run(&[&["events", "-o", "json"], flags].concat()).ok().stdout)
}

fn text<'a>(event: &'a Value, field: &str) -> &'a str {
    event[field].as_str().unwrap_or_else(|| panic!("no {field} in {event}"))
}

/// The types, in order.
fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| text(event, "type")).collect()
}

/// Starts preparing a pod and kills the command while the pod's row is in the state preparing; returns once it has
/// exited.
fn killed_prepare(g: &Gantry, image: &str) {
    // The pipe has no reader, so the command blocks on writing the pod's id.
    let fifo = g.scratch().join("fifo");
    let made = rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0);
    must("make a fifo", made);
    let path = fifo.display().to_string();
    let prepare = g.spawn(&["prepare", "--net=none", "--uuid-file-save", &path, image, "--", "true"]);
    wait_for("the pod's row", || {
        let dir = std::fs::read_dir(g.dir().join("pods")).ok()?;
        (dir.count() > 0 && g.list().iter().any(|pod| pod["phase"] == "embryo")).then_some(())
    });
    prepare.signal(Signal::KILL);
    let _ = prepare.wait();
    wait_for("the abort to be noticed", || g.list().iter().any(|pod| pod["phase"] == "aborted-prepare").then_some(()));
    g.remove_all();
    must("remove the fifo", std::fs::remove_file(fifo));
}

/// Causes every type of event, by commands only.
fn everything(g: &Gantry) {
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=one", "--", "true"]).ok());
    g.run(&["run-prepared", &prepared]).succeeded();
    let two = ["run", "--net=none", &image, "--name=two", "--", "exit", "3", "---", &image, "--name=three"];
    let _ = g.run(&[&two[..], &["--", "sleep", "forever"]].concat()).exits(3);
    let detached = g.detached(&["--name=four"], &["obey", "SIGTERM", "0"]);
    g.wait_log(&detached, "obeying");
    g.run(&["stop", &detached]).succeeded();
    g.wait_state(&detached, "exited");
    g.run(&["rm", &prepared]).succeeded();
    let never = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    g.run(&["gc", "--grace-period=0s", "--expire-prepared=0s"]).succeeded();
    g.run(&["gc", "--grace-period=0s", "--expire-prepared=0s"]).succeeded();
    assert!(g.list().is_empty(), "{never}");
    let nowhere = ["prepare", "--net=none", "--uuid-file-save=/no/such/dir/id", &image, "--", "true"];
    let _ = g.run(&nowhere).exits(125);
    killed_prepare(g, &image);
    g.run(&["image", "rm", &image]).succeeded();
}

/// The events of each subject in order, subjects in the order of their first event. Between pods, the order is that of
/// the commands; of one pod's apps, either may come first.
fn events_by_subject(events: &[Value]) -> Vec<Vec<String>> {
    let mut lives: Vec<(&str, Vec<String>)> = Vec::new();
    for event in events {
        let id = text(event, "id");
        let name = if text(event, "type").starts_with("app-") { text(event, "name") } else { "" };
        let code = event["data"]["exit_code"].as_i64().map(|code| code.to_string()).unwrap_or_default();
        let told = format!("{} {name} {code}", text(event, "type"));
        match lives.iter_mut().find(|(known, _)| *known == id) {
            Some((_, life)) => life.push(told),
            None => lives.push((id, vec![told])),
        }
    }
    lives.into_iter().map(|(_, life)| life).collect()
}

/// Sequence numbers rise by one, and no event is reported twice.
#[track_caller]
fn check(events: &[Value]) {
    let mut facts = std::collections::BTreeSet::new();
    for (event, next) in events.iter().zip(events.iter().skip(1)) {
        assert_eq!(event["seq"].as_u64().map(|seq| seq + 1), next["seq"].as_u64(), "{event} {next}");
    }
    for event in events {
        let attempt = event["data"]["attempt"].to_string();
        let fact = format!("{} {} {} {attempt}", text(event, "type"), text(event, "id"), text(event, "name"));
        assert!(facts.insert(fact), "told twice: {event}");
        assert!(event["trimmed"].is_null() && !text(event, "boot").is_empty(), "{event}");
    }
}

#[test]
fn each_event_is_recorded_once() {
    let mut both = Vec::new();
    for kept in [false, true] {
        let g = Gantry::new();
        let daemon = kept.then(|| g.start_daemon(&["--config", &g.write("config.toml", "gc-interval = '1h'\n")]));
        everything(&g);
        let events = events(&g, &[]);
        check(&events);
        for kind in ALL {
            assert!(types(&events).contains(&kind), "no {kind} with gantryd {kept}: {:?}", types(&events));
        }
        let mut lives = events_by_subject(&events);
        // Two apps exit together; the pod's exit is reported after both.
        lives.iter_mut().for_each(|life| {
            if let Some(apps) = life.iter().position(|told| told.starts_with("app-exited")) {
                let over = life.iter().position(|told| told.starts_with("pod-exited")).expect("no end of the pod");
                assert!(apps < over, "{life:?}");
                life[apps..over].sort();
            }
        });
        both.push(lives);
        if let Some(daemon) = daemon {
            daemon.terminate();
        }
    }
    let said = |types: &[&str]| types.iter().map(|told| format!("{told} ")).collect::<Vec<_>>();
    let life = |apps: &[&str], codes: &[&str], code: &str| {
        let mut told = said(&["pod-prepared ", "pod-started "]);
        told.extend(apps.iter().map(|app| format!("app-started {app} ")));
        // This one was stopped.
        told.extend(apps.contains(&"four").then(|| "pod-stopping  ".to_owned()));
        let mut over: Vec<_> = apps.iter().zip(codes).map(|(app, code)| format!("app-exited {app} {code}")).collect();
        over.sort();
        told.extend(over);
        told.extend([format!("pod-exited  {code}"), "pod-garbage-collected  ".to_owned()]);
        told
    };
    let want = [
        said(&["image-imported ", "image-removed "]),
        life(&["one"], &["0"], "0"),
        life(&["two", "three"], &["3", "143"], "3"),
        life(&["four"], &["0"], "0"),
        said(&["pod-prepared ", "pod-garbage-collected "]),
        said(&["pod-prepare-aborted ", "pod-garbage-collected "]),
        said(&["pod-prepare-aborted ", "pod-garbage-collected "]),
    ];
    assert_eq!(both[0], want, "without gantryd");
    assert_eq!(both[1], want, "with gantryd");
}

#[test]
fn a_follower_reports_unobserved_changes() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it"], &["obey", "SIGTERM", "4"]);
    g.wait_log(&pod, "obeying");
    let mut follow = g.spawn(&["events", "-f", "--since=1h", "-o", "json"]);
    follow.wait_for_stdout("app-started");
    g.run(&["kill", "-s", "SIGTERM", &pod]).succeeded();
    let said = follow.wait_for_stdout("pod-exited");
    check(&documents(&said));
    // Silently, like any interrupted program.
    follow.signal(Signal::INT);
    let out = follow.wait().exits(130);
    assert_eq!(out.stderr, "");
}

/// A follower that records the arrival time of each line.
struct Follower {
    child: Child,
    lines: Receiver<(Duration, Value)>,
}

impl Follower {
    fn start(g: &Gantry, flags: &[&str]) -> Self {
        let mut command = g.command(&[&["events", "-f", "-o", "json"], flags].concat());
        let mut child = must("follow", command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn());
        let from = BufReader::new(must("read", child.stdout.take().ok_or("no pipe")));
        let (into, lines) = channel();
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                if into.send((now, documents(&line).remove(0))).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    #[track_caller]
    fn next(&self) -> (Duration, Value) {
        must("get an event", self.lines.recv_timeout(DEADLINE))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An RFC 3339 time in UTC with nanoseconds, as nanoseconds since midnight: enough for differences within a day.
fn since_midnight(time: &str) -> u64 {
    let number = |range: std::ops::Range<usize>| must("read a time", time[range].parse::<u64>());
    ((number(11..13) * 60 + number(14..16)) * 60 + number(17..19)) * 1_000_000_000 + number(20..29)
}

#[test]
fn events_of_other_processes_arrive_promptly() {
    const DAY: u64 = 86_400_000_000_000;
    for kept in [false, true] {
        let g = Gantry::new();
        let image = g.fixture();
        let daemon = kept.then(|| g.start_daemon(&[]));
        let follower = Follower::start(&g, &["--since=1h"]);
        assert_eq!(text(&follower.next().1, "type"), "image-imported");
        let mut delays = Vec::new();
        for _ in 0..25 {
            let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
            g.run(&["rm", &pod]).succeeded();
            for kind in ["pod-prepared", "pod-garbage-collected"] {
                let (came, event) = follower.next();
                assert_eq!((text(&event, "type"), text(&event, "id")), (kind, pod.as_str()));
                let came = u64::try_from(came.as_nanos() % u128::from(DAY)).unwrap();
                delays.push(Duration::from_nanos((came + DAY - since_midnight(text(&event, "time"))) % DAY));
            }
        }
        delays.sort();
        // Measured from the event's time stamp, so it includes the commit and its sync. The benchmark measures the
        // latency on an idle machine; on a busy one, it means nothing.
        let at = |percent: usize| delays[(delays.len() * percent).div_ceil(100) - 1];
        println!("{} events, gantryd {kept}: p50 {:?}, p99 {:?}", delays.len(), at(50), at(99));
        drop(follower);
        if let Some(daemon) = daemon {
            daemon.terminate();
        }
    }
}

#[test]
fn events_of_killed_writers_are_not_lost() {
    let g = Gantry::new();
    let image = g.fixture();
    let follower = Follower::start(&g, &["--since=1h"]);
    let whole = g.app(&[], &["true"]).duration;
    for step in 0..10u32 {
        let run = g.spawn(&["run", "--net=none", &image, "--", "true"]);
        run.kill_after(whole * step / 10);
    }
    wait_for("the pods to be over", || {
        let over = |pod: &Value| ["exited", "aborted-prepare"].iter().any(|phase| pod["phase"] == *phase);
        g.list().iter().all(over).then_some(())
    });
    g.remove_all();
    let told = events(&g, &[]);
    check(&told);
    for event in told {
        assert_eq!(follower.next().1, event);
    }
}

#[test]
fn ranges_and_output_formats_are_supported() {
    let g = Gantry::new();
    assert!(g.run(&["events"]).ok().stdout.starts_with("TIME"), "a header also when there is nothing");
    let _ = g.app(&["--name=it"], &["exit", "3"]).exits(3);
    let all = events(&g, &[]);
    let kinds = ["image-imported", "pod-prepared", "pod-started", "app-started", "app-exited", "pod-exited"];
    assert_eq!(types(&all), kinds);
    assert_eq!((&all[4]["data"]["exit_code"], &all[4]["name"]), (&Value::from(3), &Value::from("it")));
    let pod = text(&all[1], "id");
    // Half-open intervals: from a time on, before a time.
    let (second, last) = (text(&all[1], "time"), text(&all[5], "time"));
    let ids = |flags: &[&str]| events(&g, flags).iter().filter_map(|event| event["seq"].as_u64()).collect::<Vec<_>>();
    let all_but = |flags: &[&str]| all.len() - events(&g, flags).len();
    assert_eq!(all_but(&["--since", second]), 1);
    assert!(all_but(&["--until", last]) >= 1);
    assert!(ids(&["--since=1h", "--until=30m"]).is_empty());
    assert_eq!(ids(&["--until", second]), [1]);
    // A follower with an end time shows the same.
    assert_eq!(events(&g, &["-f", "--until", second]), events(&g, &["--until", second]));
    for (filter, want) in [
        (&["--filter=type=pod-exited"][..], &["pod-exited"][..]),
        (&["--filter", "type=EVENT_TYPE_POD_STARTED", "--filter", "type=APP_STARTED"], &["pod-started", "app-started"]),
        (&["--filter=app=it"], &["app-started", "app-exited"]),
        (&["--filter", &format!("pod={}", &pod[..8])], &kinds[1..]),
        // As for other commands, the name of an app names its pod.
        (&["--filter=pod=it"], &kinds[1..]),
        (&["--filter=name=it", "--filter=type=app-exited"], &["app-exited"]),
        (&["--filter", &format!("image={}", text(&all[0], "id"))], &["image-imported", "app-started", "app-exited"]),
        (&["--filter=app=other"], &[]),
    ] {
        assert_eq!(types(&events(&g, filter)), want, "{filter:?}");
    }
    let table = g.run(&["events", "--filter=type=pod-exited"]).ok().stdout;
    let shown: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(shown[..3], [last, "pod-exited", &pod[..8]], "{table}");
    assert!(
        table.contains("reason=\"app it failed\"")
            && g.run(&["events", "--no-legend"]).ok().stdout.lines().count() == 6
    );
    for (flags, want) in [
        (&["--filter=colour=red"][..], "type, id, name, pod, app, image"),
        (&["--filter=type=died"], "pod-exited"),
        (&["--filter=pod"], "KEY=VALUE"),
        (&["--since=yesterday-ish"], "yesterday-ish"),
        (&["--since=1h", "--until=2h"], "--until is before --since"),
    ] {
        let _ = g.run(&[&["events"], flags].concat()).exits(125).stderr_contains(&[want]);
    }
}

#[test]
fn removed_pods_are_found_by_name() {
    let g = Gantry::new();
    let image = g.fixture();
    let pods: Vec<String> = (0..2)
        .map(|_| {
            let pod = pod_id(&g.run(&["prepare", "--net=none", "--pod-name=shop", &image, "--", "true"]).ok());
            g.run(&["run-prepared", "shop"]).succeeded();
            g.run(&["rm", "shop"]).succeeded();
            pod
        })
        .collect();
    let ids = |filter: &str| events(&g, &[filter]).iter().map(|event| text(event, "id").to_owned()).collect::<Vec<_>>();
    // Prepared, started, exited and removed; the start and the exit of the app.
    let both: Vec<String> = pods.iter().flat_map(|pod| std::iter::repeat_n(pod.clone(), 6)).collect();
    assert_eq!(ids("--filter=pod=shop"), both);
    assert_eq!(ids(&format!("--filter=pod={}", &pods[0][..8])), both[..6]);
    for unknown in ["nowhere", "00000000"] {
        let flag = format!("--filter=pod={unknown}");
        let _ = g.run(&["events", &flag]).exits(1).stderr_contains(&[&format!("there is no pod '{unknown}'")]);
        g.run(&["events", "--follow", "--until=0s", &flag]).succeeded();
    }
}

#[test]
fn followers_end_at_their_deadline_or_on_sigpipe() {
    let g = Gantry::new();
    g.fixture();
    // Far enough away that all followers have started by then.
    let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(3);
    let until = format!("@{}.{:09}", end.as_secs(), end.subsec_nanos());
    let follow = |flags: &[&str]| g.spawn(&[&["events", "-f", "-o", "json", "--until", &until], flags].concat());
    let (past, new) = (follow(&["--since=1h"]), follow(&[]));
    let past = past.wait().ok();
    assert_eq!(types(&documents(&past.stdout)), ["image-imported"]);
    assert!(SystemTime::now().duration_since(UNIX_EPOCH).unwrap() >= end, "{past}");
    assert_eq!(new.wait().ok().stdout, "", "nothing new came");
    let mut command = g.command(&["events", "-f", "--since=1h"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let status = wait_for("the end of a follower without a reader", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(141));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(said, "");
}

/// A pod ends shortly before the end time, and no command has reconciled it.
#[test]
fn a_follower_reconciles_once_more_at_its_deadline() {
    let g = Gantry::new();
    let image = g.fixture();
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // Before the follower's first check for changes without a commit. On a slow machine, ending a pod in time may take
    // several tries.
    for attempt in 1.. {
        let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--", "obey", "SIGTERM", "0"]).ok());
        g.wait_log(&pod, "obeying");
        let stat = format!("/proc/{}/stat", g.supervisor(&pod));
        let until = now() + Duration::from_millis(900);
        let text = format!("@{}.{:09}", until.as_secs(), until.subsec_nanos());
        let follower =
            g.spawn(&["events", "-f", "-o", "json", "--since=1h", "--until", &text, "--filter", "type=pod-exited"]);
        g.run(&["kill", "-s", "SIGTERM", &pod]).succeeded();
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        wait_for("the end of the pod", || (!lives()).then_some(()));
        // The last check is a tenth of a second before the end.
        let in_time = now() + Duration::from_millis(150) < until;
        let told = follower.wait().ok();
        if in_time {
            assert!(told.stdout.contains(&pod), "{told}");
            return;
        }
        assert!(attempt < 20, "no pod ends within a second");
    }
}

#[test]
fn trimming_by_gantryd_is_reported_as_a_gap() {
    let g = Gantry::new();
    let image = g.fixture();
    // 1 prepared, 1 started, 60 + 60 of the apps, 1 exited, 1 collected.
    let mut line = vec!["run".to_owned(), "--net=none".to_owned()];
    for app in 0..60 {
        line.extend([image.clone(), format!("--name=a{app}"), "--".to_owned(), "true".to_owned(), "---".to_owned()]);
    }
    line.pop();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let follower = Follower::start(&g, &["--since=1h"]);
    for _ in 0..9 {
        g.run(&line).succeeded();
    }
    g.remove_all();
    let before = events(&g, &[]);
    check(&before);
    assert_eq!(before.len(), 1 + 9 * 124);
    let config = g.write("config.toml", "gc-interval = '100ms'\nevents-kept = 1000\n");
    let mut keeper = g.start_daemon(&["--config", &config]);
    keeper.wait_for_stderr("deleted the 117 oldest events: events-kept is 1000");
    // By default: all stored events, without a notice about trimmed ones.
    let kept = events(&g, &[]);
    assert_eq!(kept, before[117..]);
    // Since an hour ago, some are trimmed; since now, none.
    let since = events(&g, &["--since=1h"]);
    assert_eq!((since.len(), &since[0]["trimmed"]), (1000, &Value::from(117)));
    assert!(since[1]["trimmed"].is_null());
    let exits = events(&g, &["--since=1h", "--filter=type=pod-exited"]);
    assert_eq!(exits[0]["trimmed"], 117, "reported with the first event shown");
    let _ = g.run(&["events", "--since=1h"]).ok().stderr_contains(&["events up to number 117 are missing"]);
    let none = g.run(&["events", "--since=1h", "--filter=app=none", "-o", "json"]).ok();
    assert!(none.stdout.is_empty() && none.stderr.contains("117"), "{none}");
    let last = text(&before[before.len() - 1], "time");
    let late = g.run(&["events", "--since", last]).ok();
    assert_eq!(late.stderr, "");
    // A follower that has read them all in time has missed nothing.
    for event in &before {
        assert_eq!(follower.next().1, *event);
    }
    drop(follower);
    keeper.terminate();
}

/// More events than the default limit, and fewer than the configured one.
#[test]
fn gc_keeps_the_configured_number_of_events() {
    const MADE: usize = 120_000;
    let g = Gantry::new();
    g.fixture();
    let path = g.write("config.toml", "events-kept = 130000\n");
    let make = format!(
        "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {MADE}) INSERT INTO event \
         SELECT next_seq + i, boot, 'image-imported', 1, 's', 'n', '{{}}' FROM n, state"
    );
    let dir = g.dir().display().to_string();
    let next = format!("UPDATE state SET next_seq = next_seq + {MADE}");
    gantry_tests::python::run_script("database.py", &[&dir, "sql", &make, &next]).succeeded();
    let kept = || g.run(&["events", "-o", "json"]).ok().stdout.lines().count();
    g.run(&["--config", &path, "gc"]).succeeded();
    assert!(kept() > MADE);
    g.run(&["gc"]).succeeded();
    assert_eq!(kept(), 100_000);
}
