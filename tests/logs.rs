//! What apps write, and where it goes.

use gantry_tests::{Gantry, pod_id};

#[test]
fn everything_arrives_in_order() {
    let g = Gantry::new();
    let out = g.app(&[], &["lines", "20000", "100"]).ok();
    assert_eq!(out.stdout.lines().count(), 20_000);
    for (i, line) in out.stdout.lines().enumerate() {
        assert!(line.starts_with(&format!("line {i:06}")), "line {i} is {line}");
    }
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(g.run(&["logs", &pod]).ok().bytes, out.bytes, "the log is what was shown");
}

#[test]
fn bytes_are_exact() {
    let g = Gantry::new();
    assert_eq!(g.app(&[], &["no-newline", "no end"]).ok().stdout, "no end");
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(g.app(&[], &["binary"]).ok().bytes, all);
    let long = g.app(&[], &["lines", "2", "100000"]).ok();
    assert_eq!(long.bytes.len(), 200_000, "lines longer than a pipe's atom");
    let empty = g.app(&[], &["seq", "print", "", "--", "print", ""]).ok();
    assert_eq!(empty.stdout, "\n\n");
}

#[test]
fn stdout_and_stderr_stay_apart() {
    let g = Gantry::new();
    let out = g.app(&[], &["seq", "print", "good", "--", "eprint", "bad"]).ok();
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("good\n", "bad\n"));
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let logs = g.run(&["logs", &pod]).ok();
    assert_eq!((logs.stdout.as_str(), logs.stderr.as_str()), ("good\n", "bad\n"));
}

#[test]
fn a_flood_is_whole() {
    let g = Gantry::new();
    let out = g.app(&[], &["flood", "5000000"]).ok();
    assert_eq!(out.bytes.len(), 5_000_000);
}

#[test]
fn what_is_in_the_pipe_at_the_end_is_kept() {
    let g = Gantry::new();
    for _ in 0..10 {
        let out = g.app(&[], &["seq", "flood", "60000", "--", "raise", "SIGKILL"]).exits(137);
        assert_eq!(out.bytes.len(), 60_000);
    }
}

#[test]
fn tail_and_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "--detach",
            &image,
            "--name=one",
            "--",
            "lines",
            "50",
            "---",
            &image,
            "--name=two",
            "--",
            "print",
            "from two",
        ])
        .ok(),
    );
    g.wait_state(&pod, "exited");
    let tail = g.run(&["logs", "--app=one", "--tail=3", &pod]).ok();
    assert_eq!(tail.stdout, "line 000047\nline 000048\nline 000049\n");
    assert_eq!(g.run(&["logs", "--app=one", "--tail=0", &pod]).ok().stdout, "");
    assert_eq!(g.run(&["logs", "--app=one", "--tail=500", &pod]).ok().stdout.lines().count(), 50);
    assert_eq!(g.run(&["logs", "--app=two", &pod]).ok().stdout, "from two\n");
    let _ = g.run(&["logs", "--app=three", &pod]).complains(&["three"]);
    let all = g.run(&["logs", &pod]).ok().stdout;
    assert_eq!(all.lines().count(), 51, "both apps: {all}");
}

#[test]
fn follow_ends_with_the_pod() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["seq", "lines", "3", "0", "50", "--", "obey", "SIGTERM"]);
    let mut follow = g.spawn(&["logs", "--follow", &pod]);
    follow.wait_for_output("line 000002");
    follow.wait_for_output("obeying");
    g.run(&["stop", &pod]).succeeded();
    let out = follow.wait().ok();
    assert!(out.stdout.ends_with("got SIGTERM\n"), "{out}");
}

#[test]
fn since_and_until() {
    let g = Gantry::new();
    g.app(&[], &["lines", "5"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(g.run(&["logs", "--since=1h", &pod]).ok().stdout.lines().count(), 5);
    assert_eq!(g.run(&["logs", "--until=1h", &pod]).ok().stdout, "");
    assert_eq!(g.run(&["logs", "--since=2000-01-01T00:00:00Z", &pod]).ok().stdout.lines().count(), 5);
    assert_eq!(g.run(&["logs", "--until=2000-01-01T00:00:00Z", &pod]).ok().stdout, "");
    let _ = g.run(&["logs", "--since=yesterday-ish", &pod]).exits(125).complains(&["yesterday-ish"]);
}

#[test]
fn files_are_in_cri_format() {
    let g = Gantry::new();
    g.app(&["--name=it"], &["seq", "print", "full", "--", "no-newline", "rest"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let file = g.dir().join("pods").join(&pod).join("logs/it/0.log");
    let text = std::fs::read_to_string(&file).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    let [full, rest @ ..] = rows.as_slice() else { panic!("no lines in {text}") };
    assert_eq!(full[1..], ["stdout", "F", "full"], "{text}");
    assert_eq!(rest.last().map(|row| row[2]), Some("F:noeol"), "logs end in F, and tell of a missing newline: {text}");
    assert!(rest.iter().any(|row| row[3] == "rest"), "{text}");
    assert!(full[0].ends_with('Z') || full[0].contains('+'), "RFC 3339: {text}");
}

#[test]
fn logs_are_rotated_by_the_supervisor_and_read_as_one() {
    let g = Gantry::new();
    let config = g.scratch().join("config.toml");
    std::fs::write(&config, "[log]\nmax-size = \"64Ki\"\nmax-files = 3\n").unwrap();
    let image = g.fixture();
    let config = config.display().to_string();
    let line =
        ["--config", &config, "run", "--net=none", "--detach", &image, "--name=it", "--", "lines", "3000", "100"];
    let pod = pod_id(&g.run(&line).ok());
    g.wait_state(&pod, "exited");
    let dir = g.dir().join("pods").join(&pod).join("logs/it");
    let sizes: Vec<u64> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).collect();
    assert!((2..=4).contains(&sizes.len()), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size <= 80 * 1024), "{sizes:?}");
    let log = g.run(&["logs", &pod]).ok().stdout;
    assert!(log.trim_end().lines().last().is_some_and(|line| line.starts_with("line 002999")), "the newest stay");
    let first: u32 = log.lines().next().unwrap()[5..11].parse().unwrap();
    for (want, line) in (first..).zip(log.lines()) {
        assert!(line.starts_with(&format!("line {want:06}")), "a gap before {line}");
    }
}
