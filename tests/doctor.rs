//! `doctor` reports real problems and gives no false alarms.

use std::fs;

use gantry_tests::{Gantry, Running, Signal, Space, pod_id};

/// Repeats `doctor --deep` until these commands have ended: work in progress is no finding.
#[track_caller]
fn assert_healthy_until_the_end(g: &Gantry, mut busy: Vec<Running>) {
    let mut asked = 0;
    while asked == 0 || busy.iter_mut().any(|running| !running.has_ended()) {
        g.run(&["doctor", "--deep"]).succeeded();
        asked += 1;
    }
    for running in busy {
        running.wait().succeeded();
    }
}

#[test]
fn starting_and_ending_pods_are_no_findings() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let image = g.fixture();
    for _ in 0..4 {
        let prepared = pod_id(&g.run(&["prepare", &image, "--", "true"]).ok());
        let runs =
            [&["run-prepared", &*prepared][..], &["run", "--rm", &image, "--", "true"], &["run", &image, "--", "true"]];
        assert_healthy_until_the_end(&g, runs.map(|args| g.spawn(args)).into());
        let ended: Vec<String> = g.list().iter().map(|pod| pod["id"].as_str().unwrap_or_default().to_owned()).collect();
        let removals = ended.iter().map(|pod| g.spawn(&["rm", pod])).collect();
        assert_healthy_until_the_end(&g, removals);
    }
}

/// One after the other, the timeouts would exceed the deadline of a command: each is ten seconds.
#[test]
fn hung_supervisors_are_queried_concurrently() {
    let g = Gantry::new();
    let pods: Vec<String> = (0..7).map(|_| g.detached(&[], &["sleep", "forever"])).collect();
    let signal = |signal| {
        for pod in &pods {
            let pid = i32::try_from(g.supervisor(pod)).ok().and_then(rustix::process::Pid::from_raw);
            let sent = rustix::process::kill_process(pid.unwrap_or(rustix::process::Pid::INIT), signal);
            assert!(sent.is_ok(), "{sent:?}");
        }
    };
    signal(Signal::STOP);
    let doctor = g.run(&["doctor"]);
    signal(Signal::CONT);
    assert_eq!(doctor.code, 1, "{doctor}");
    for pod in &pods {
        assert!(doctor.stdout.contains(&format!("pod {pod} runs and cannot be talked to")), "{doctor}");
    }
    g.run(&["doctor"]).succeeded();
}

#[test]
fn missing_directories_are_findings() {
    let g = Gantry::new();
    g.app(&[], &["true"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap_or_default().to_owned();
    g.run(&["rm", &pod]).succeeded();
    for name in ["tmp", "pods", "locks", "backups"] {
        let (dir, away) = (g.dir().join(name), g.scratch().join(name));
        assert!(fs::rename(&dir, &away).is_ok());
        let doctor = g.run(&["doctor", "--deep"]).exits(1).stdout;
        assert!(doctor.contains(&format!("{} is missing", dir.display())), "{doctor}");
        let _made_meanwhile = fs::remove_dir(&dir);
        assert!(fs::rename(&away, &dir).is_ok());
    }
    g.run(&["doctor", "--deep"]).succeeded();
}

#[test]
fn an_unreadable_restore_record_does_not_block_gantryd() {
    let g = Gantry::new();
    g.fixture();
    let record = g.dir().join("restored");
    assert!(fs::write(&record, [0xff, 0xfe, b'=', 0x80]).is_ok());
    g.start_daemon(&[]).terminate();
    assert!(fs::remove_file(&record).and_then(|()| fs::create_dir(&record)).is_ok());
    g.start_daemon(&[]).terminate();
    let doctor = g.run(&["doctor"]).exits(1).stdout;
    assert!(doctor.contains(&record.display().to_string()), "{doctor}");
    assert!(fs::remove_dir(&record).is_ok());
}
