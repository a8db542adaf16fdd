//! The output of apps, and their logs.

use std::path::PathBuf;

use gantry_tests::{Gantry, Signal, Terminal, json_lines, pod_id, wait_for};

#[test]
fn output_arrives_in_order() {
    let g = Gantry::new();
    let out = g.app(&[], &["lines", "20000", "100"]).ok();
    assert_eq!(out.stdout.lines().count(), 20_000);
    for (i, line) in out.stdout.lines().enumerate() {
        assert!(line.starts_with(&format!("line {i:06}")), "line {i} is {line}");
    }
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(g.run(&["logs", &pod]).ok().bytes, out.bytes, "the log equals the output");
}

#[test]
fn output_bytes_are_exact() {
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
    for (filters, want) in [
        (&["--filter=stream=stderr"][..], ("", "bad\n")),
        (&["--filter=stream=stdout", "--tail=1"], ("good\n", "")),
        (&["--filter=stream=stdout", "--filter=stream=stderr"], ("good\n", "bad\n")),
    ] {
        let logs = g.run(&[&["logs", &pod], filters].concat()).ok();
        assert_eq!((logs.stdout.as_str(), logs.stderr.as_str()), want, "{filters:?}");
    }
    let _ = g.run(&["logs", "--filter=app=none", &pod]).exits(1).stderr_contains(&["no app 'none'"]);
    let _ = g.run(&["logs", "--filter=stream=stdin", &pod]).exits(125).stderr_contains(&["stream=stderr"]);
}

#[test]
fn a_flood_of_output_is_complete() {
    let g = Gantry::new();
    let out = g.app(&[], &["flood", "5000000"]).ok();
    assert_eq!(out.bytes.len(), 5_000_000);
}

#[test]
fn output_left_in_the_pipe_is_kept() {
    let g = Gantry::new();
    for _ in 0..10 {
        let out = g.app(&[], &["seq", "flood", "60000", "--", "raise", "SIGKILL"]).exits(137);
        assert_eq!(out.bytes.len(), 60_000);
    }
}

#[test]
fn tail_and_app_select_lines() {
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
    for all in [&["--tail=500"][..], &["--tail=all"], &["--tail", "-1"]] {
        let out = g.run(&[&["logs", "--app=one", &pod], all].concat()).ok();
        assert_eq!(out.stdout.lines().count(), 50, "{out}");
    }
    let _ = g.run(&["logs", "--tail=x", &pod]).exits(125).stderr_contains(&["'x' is not a number of lines, or all"]);
    assert_eq!(g.run(&["logs", "--app=two", &pod]).ok().stdout, "from two\n");
    let _ = g.run(&["logs", "--app=three", &pod]).stderr_contains(&["three"]);
    let all = g.run(&["logs", &pod]).ok().stdout;
    assert_eq!(all.lines().count(), 51, "both apps: {all}");
    assert!(all.lines().any(|line| line == "[two] from two") && all.contains("[one] line 000049\n"), "{all}");
    let colored = |command: &mut std::process::Command| Terminal::start(command).wait().output;
    let mut logs = g.command(&["logs", "--tail=1", &pod]);
    let _ = logs.env("TERM", "xterm").env_remove("NO_COLOR");
    let text = colored(&mut logs);
    assert!(text.contains("\u{1b}[36m[") && text.contains("\u{1b}[33m["), "{text:?}");
    assert!(!colored(logs.env("NO_COLOR", "1")).contains('\u{1b}'));
}

#[test]
fn follow_ends_with_the_pod() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["seq", "lines", "3", "0", "50", "--", "obey", "SIGTERM"]);
    let mut follow = g.spawn(&["logs", "--follow", &pod]);
    follow.wait_for_stdout("line 000002");
    follow.wait_for_stdout("obeying");
    g.run(&["stop", &pod]).succeeded();
    let out = follow.wait().ok();
    assert!(out.stdout.ends_with("got SIGTERM\n"), "{out}");
}

#[test]
fn since_and_until_select_lines() {
    let g = Gantry::new();
    g.app(&[], &["lines", "5"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(g.run(&["logs", "--since=1h", &pod]).ok().stdout.lines().count(), 5);
    assert_eq!(g.run(&["logs", "--until=1h", &pod]).ok().stdout, "");
    assert_eq!(g.run(&["logs", "--since=2000-01-01T00:00:00Z", &pod]).ok().stdout.lines().count(), 5);
    assert_eq!(g.run(&["logs", "--until=2000-01-01T00:00:00Z", &pod]).ok().stdout, "");
    let _ = g.run(&["logs", "--since=yesterday-ish", &pod]).exits(125).stderr_contains(&["yesterday-ish"]);
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
fn rotated_logs_are_read_as_one() {
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

/// A pod whose app writes this many lines of 100 bytes. A log file is rotated after 400.
fn rotating(g: &Gantry, lines: &[&str]) -> String {
    let config = g.scratch().join("config.toml");
    let written = std::fs::write(&config, "[log]\nmax-size = \"64Ki\"\nmax-files = 3\n");
    assert!(written.is_ok(), "{written:?}");
    let (config, image) = (config.display().to_string(), g.fixture());
    let run = ["--config", &config, "run", "--net=none", "--detach", &image, "--name=it", "--", "lines"];
    pod_id(&g.run(&[&run[..], lines].concat()).ok())
}

fn log_dir(g: &Gantry, pod: &str) -> PathBuf {
    g.dir().join("pods").join(pod).join("logs/it")
}

#[test]
fn following_crosses_rotation_until_the_pod_ends() {
    let g = Gantry::new();
    let pod = rotating(&g, &["4000", "100", "4000"]);
    let follow = g.spawn(&["logs", "--follow", &pod]);
    let out = follow.wait().ok();
    assert!(log_dir(&g, &pod).join("0.log.2").exists(), "it was rotated");
    assert!(!log_dir(&g, &pod).join("0.log.3").exists(), "the oldest file is deleted by now");
    assert_eq!(out.stdout.lines().count(), 4000);
    for (i, line) in out.stdout.lines().enumerate() {
        assert!(line.starts_with(&format!("line {i:06}")), "line {i} is {line}");
    }
}

#[test]
fn without_follow_reading_ends_at_the_present() {
    let g = Gantry::new();
    let pod = rotating(&g, &["forever", "100"]);
    wait_for("rotation", || log_dir(&g, &pod).join("0.log.2").exists().then_some(()));
    let out = g.run(&["logs", &pod]).ok();
    let numbers: Vec<u64> =
        out.stdout.lines().map(|line| line[5..].split(' ').next().unwrap().parse().unwrap()).collect();
    // The app is faster than the reader: whole files are rotated away in between. No line comes twice or out of order.
    assert!(numbers.len() >= 100 && numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    assert_eq!(g.run(&["logs", "--tail=10", &pod]).ok().stdout.lines().count(), 10);
    g.run(&["stop", "--force", &pod]).succeeded();
}

#[test]
fn json_output_and_time_bounds_combine() {
    let g = Gantry::new();
    g.app(&["--name=it"], &["seq", "print", "good", "--", "eprint", "bad", "--", "no-newline", "end"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let documents = json_lines(&g.run(&["logs", "-o", "json", &pod]).ok().stdout);
    let mut rows: Vec<String> =
        documents.iter().map(|d| format!("{} {} {} {}", d["app"], d["stream"], d["partial"], d["text"])).collect();
    rows.sort();
    let row = |stream: &str, partial: bool, text: &str| format!("\"it\" \"{stream}\" {partial} \"{text}\"");
    assert_eq!(rows, [row("stderr", false, "bad"), row("stdout", false, "good"), row("stdout", true, "end")]);
    let mut times: Vec<&str> = documents.iter().map(|d| d["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    times.dedup();
    let last = times.last().unwrap();
    let count = |bound: String| json_lines(&g.run(&["logs", "-o", "json", &bound, &pod]).ok().stdout).len();
    let (from, before) = (count(format!("--since={last}")), count(format!("--until={last}")));
    assert!(from >= 1 && from + before == 3, "{from} from {last} on, {before} before");
}

#[test]
fn following_spans_start_and_removal_of_the_pod() {
    let g = Gantry::new();
    let image = g.fixture();
    let prepare = || pod_id(&g.run(&["prepare", "--net=none", &image, "--", "print", "hello"]).ok());
    let (started, removed) = (prepare(), prepare());
    let following = g.spawn(&["logs", "--follow", &started]);
    let waiting = g.spawn(&["logs", "--follow", &removed]);
    // The commands have opened the database before they wait for a pod.
    let has_database = |pid: u32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut names = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        names.any(|name| name.ends_with("gantry.db")).then_some(())
    };
    wait_for("the first follower", || has_database(following.pid()));
    wait_for("the second follower", || has_database(waiting.pid()));
    g.run(&["run-prepared", &started]).succeeded();
    g.run(&["rm", &removed]).succeeded();
    assert_eq!(following.wait().ok().stdout, "hello\n");
    // The command exits, whether it had found the pod or not.
    let _ = waiting.wait();
    let pod = g.detached(&[], &["seq", "print", "here", "--", "obey", "SIGTERM"]);
    let mut follow = g.spawn(&["logs", "--follow", &pod]);
    follow.wait_for_stdout("here");
    g.run(&["rm", "--force", &pod]).succeeded();
    assert!(follow.wait().ok().stdout.starts_with("here\n"));
}

#[test]
fn foreign_files_in_a_log_directory_are_ignored() {
    let g = Gantry::new();
    g.app(&["--name=it"], &["print", "good"]).succeeded();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let dir = log_dir(&g, &pod);
    std::fs::create_dir(dir.join("1.log")).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(dir.join("2.log")).status();
    assert!(fifo.is_ok_and(|status| status.success()));
    std::os::unix::fs::symlink("/etc/passwd", dir.join("3.log")).unwrap();
    std::fs::write(dir.join("4.log"), b"strange \0 line\n1970-01-01T00:00:00Z stdout F torn").unwrap();
    assert_eq!(g.run(&["logs", &pod]).ok().stdout, "good\nstrange \0 line\n");
    let elsewhere = g.scratch().join("elsewhere");
    assert!(std::process::Command::new("mv").args([&dir, &elsewhere]).status().is_ok_and(|moved| moved.success()));
    std::os::unix::fs::symlink(&elsewhere, &dir).unwrap();
    let _ = g.run(&["logs", &pod]).exits(125).stderr_contains(&["it", &pod]);
    std::fs::remove_file(&dir).unwrap();
    assert_eq!(g.run(&["logs", "--follow", &pod]).ok().stdout, "");
}

/// A killed supervisor leaves a file that can end within a line.
#[test]
fn logs_of_killed_supervisors_end_in_complete_lines() {
    let g = Gantry::new();
    let verb =
        ["seq", "print", "whole", "--", "eprint", "bad", "--", "no-newline", "Password: ", "--", "sleep", "forever"];
    let pod = g.detached(&["--name=it"], &verb);
    let log = g.dir().join("pods").join(&pod).join("logs/it/0.log");
    wait_for("the unfinished line to be logged", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text.contains(" stdout P Password: \n")).then_some(())
    });
    let supervisor = i32::try_from(g.supervisor(&pod)).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    wait_for("the supervisor to be gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap_or_default();
        (stat.is_empty() || stat.contains(") Z ")).then_some(())
    });
    // A partial write.
    let mut file = std::fs::OpenOptions::new().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut file, b"2026-11-22T10:00:00.000000000Z stdo").unwrap();
    drop(file);
    g.wait_state(&pod, "exited");
    let text = std::fs::read_to_string(&log).unwrap();
    let records: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert!(text.ends_with('\n'), "{text}");
    assert_eq!(records, ["stdout F whole", "stderr F bad", "stdout F Password: "]);
    g.run(&["doctor", "--deep"]).succeeded();
    assert_eq!(g.run(&["logs", &pod]).ok().stdout, "whole\nPassword: \n");
}
