//! A pod in the foreground: all of its output arrives, even with a slow reader, and signals are passed on.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::Duration;

use gantry_tests::{Gantry, Running, Signal, SmallDisk, Terminal, let_pass, pod_id, wait_for};
use rustix::process::{Pid, kill_process};

/// The number of lines that the slow readers' app writes, and their length with the newline: 100 MB.
const LINES: usize = 1_000_000;
const LINE: usize = 100;

/// The output of the fixture app's verb `lines`, with these line ends.
fn lines(end: &str) -> Vec<u8> {
    let mut all = Vec::with_capacity(LINES * (LINE + 1));
    for i in 0..LINES {
        let text = format!("line {i:06} ");
        all.extend_from_slice(text.as_bytes());
        all.resize(all.len() + LINE - 1 - text.len(), b'x');
        all.extend_from_slice(end.as_bytes());
    }
    all
}

/// Waits until the pod's only app has filled its pipes: it blocks in write(2), and makes no progress during ten
/// checks.
#[track_caller]
fn wait_blocked(g: &Gantry) {
    let pod = wait_for("the pod to run", || {
        let list = g.list();
        list.iter().find(|pod| pod["phase"] == "running").map(|pod| pod["id"].as_str().unwrap().to_owned())
    });
    let status = g.status(&pod);
    let pid = status["apps"][0]["pid"].as_u64().unwrap();
    let (mut last, mut looks) = (String::new(), 0);
    wait_for("the app to be held back", || {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{pid}/syscall")) else {
            panic!("the app was not held back: it has ended before any of its output was read")
        };
        let written = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let written = written.lines().find(|line| line.starts_with("wchar")).unwrap_or_default().to_owned();
        let waits = call.starts_with("1 0x");
        looks = if waits && written == last { looks + 1 } else { 0 };
        last = written;
        (looks >= 10).then_some(())
    });
}

#[track_caller]
fn assert_same(got: &[u8], want: &[u8]) {
    let same = got.iter().zip(want).take_while(|(a, b)| a == b).count();
    assert!(got == want, "{} bytes of {}, equal up to byte {same}", got.len(), want.len());
}

fn line_of(g: &Gantry, flags: &[&str]) -> Vec<String> {
    let (image, count, length) = (g.fixture(), LINES.to_string(), LINE.to_string());
    let verb = ["--", "lines", &count, &length];
    let all = [&["run", "--net=none", "--quiet"], flags, &[image.as_str()], &verb].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// A command whose output is a pipe that is not read yet.
#[track_caller]
fn unread(g: &Gantry, line: &[String]) -> Child {
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    g.command(&line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_slow_pipe_reader_gets_every_byte() {
    let g = Gantry::new();
    let mut child = unread(&g, &line_of(&g, &[]));
    wait_blocked(&g);
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_same(&got, &lines("\n"));
}

#[track_caller]
fn slow_terminal(flags: &[&str]) {
    let g = Gantry::new();
    let line = line_of(&g, flags);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let mut terminal = Terminal::start_unread(&g.command(&line));
    wait_blocked(&g);
    terminal.read();
    let left = terminal.wait();
    assert_eq!(left.code, 0);
    assert_same(&left.bytes, &lines("\r\n"));
    assert!(left.is_restored);
}

#[test]
fn a_slow_terminal_gets_every_byte() {
    slow_terminal(&[]);
}

#[test]
fn a_slow_terminal_gets_all_app_terminal_output() {
    slow_terminal(&["-t"]);
}

#[test]
fn a_slow_terminal_gets_all_interactive_output() {
    slow_terminal(&["-it"]);
}

#[test]
fn run_prepared_waits_for_slow_readers_too() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "flood", "3000000"]).ok());
    let mut child = unread(&g, &["run-prepared".to_owned(), pod]);
    wait_blocked(&g);
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!((child.wait().unwrap().code(), got.len()), (Some(0), 3_000_000));
}

/// Output that an app wrote before its end is forwarded however long that takes; meanwhile the pod can be inspected.
#[test]
fn remaining_output_is_forwarded_after_exit() {
    let g = Gantry::new();
    let image = g.fixture();
    // More than the command's output pipe holds, and less than all pipes on the way.
    let line = ["run", "--net=none", "--quiet", &image, "--", "flood", "400000"].map(str::to_owned);
    let mut child = unread(&g, &line);
    let pod = wait_for("the app to end", || {
        let list = g.list();
        let pod = list.first()?;
        let id = pod["id"].as_str()?.to_owned();
        (g.status(&id)["apps"][0]["state"] == "exited").then_some(id)
    });
    assert_eq!(g.status(&pod)["phase"], "running");
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    assert_eq!((child.wait().unwrap().code(), got.len()), (Some(0), 400_000));
    g.wait_state(&pod, "exited");
}

/// Stopping does not wait for a reader that never reads; the lost output is reported.
#[test]
fn a_blocked_reader_does_not_delay_stopping() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["run", "--net=none", "--quiet", &image, "--", "flood", "300000000"].map(str::to_owned);
    let mut child = unread(&g, &line);
    wait_blocked(&g);
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    g.run(&["stop", "--force", &pod]).succeeded();
    assert_eq!(g.status(&pod)["phase"], "exited");
    let (mut got, mut said) = (Vec::new(), String::new());
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // The stop signal ended the app, or SIGKILL right after it.
    assert!([Some(137), Some(143)].contains(&child.wait().unwrap().code()));
    assert!(got.len() < 300_000_000 && said.contains(&format!("output of pod {pod} was lost")), "{said}");
}

#[track_caller]
fn terminate(child: &mut Child) -> Option<i32> {
    kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    wait_for("the command to end", || child.try_wait().unwrap()).code()
}

/// A signal ends the command, too, although nothing reads its output.
#[test]
fn a_signal_ends_run_with_unread_output() {
    let g = Gantry::new();
    let image = g.fixture();
    let flags = ["run", "--net=none", "--quiet", "--stop-timeout=1"];
    let line = [&flags[..], &[image.as_str(), "--", "flood", "300000000"]].concat();
    let mut child = unread(&g, &line.into_iter().map(str::to_owned).collect::<Vec<_>>());
    wait_blocked(&g);
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(terminate(&mut child), Some(143));
    assert_eq!(g.status(&pod)["exit_code"], 143);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(&format!("output of pod {pod} was lost")), "{said}");
    g.check_invariants();
}

/// Neither does a signal to `exec` wait for the reader of the terminal's output.
#[test]
fn a_signal_ends_exec_with_unread_output() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let line = ["exec", "-t", &pod, "--", "/bin/app", "flood", "300000000"].map(str::to_owned);
    let mut child = unread(&g, &line);
    wait_for("the pipe to fill", || {
        let unread = rustix::io::ioctl_fionread(child.stdout.as_ref().unwrap()).unwrap();
        (unread >= 1 << 15).then_some(())
    });
    assert_eq!(terminate(&mut child), Some(143));
    wait_for("the program to end with its client", || {
        let pids = g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok().stdout;
        // PID 1, the app, and this listing.
        (pids.lines().count() <= 3).then_some(())
    });
    g.check_invariants();
}

/// A killed foreground command does not block the app.
#[test]
fn killed_foreground_commands_do_not_block_the_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["run", "--net=none", "--quiet", &image, "--", "flood", "30000000"].map(str::to_owned);
    let mut child = unread(&g, &line);
    wait_blocked(&g);
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(g.wait_state(&pod, "exited")["exit_code"], 0);
}

/// The log is written besides the foreground output; its rotation does not affect the foreground.
#[test]
fn foreground_output_is_logged_too() {
    let g = Gantry::new();
    let text = g.app(&[], &["seq", "lines", "2000", "100", "--", "eprint", "bad", "--", "no-newline", "end"]).ok();
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let logs = g.run(&["logs", &pod]).ok();
    assert_eq!((logs.stdout, logs.stderr), (text.stdout, text.stderr));
}

#[test]
fn incomplete_lines_are_forwarded_at_once() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["run", "--net=none", "--quiet", &image, "--", "seq", "no-newline", "50%", "--", "obey", "TERM", "3"];
    let mut run = g.spawn(&line);
    // `obey` prints on the same line: the foreground shows it alone only if it arrived alone, so the log is checked as
    // well.
    run.wait_for_stdout("50%");
    run.wait_for_stdout("obeying");
    run.signal(Signal::TERM);
    let out = run.wait().exits(3);
    assert!(out.stdout.starts_with("50%obeying"), "{out}");
}

/// A log follower sees incomplete lines, without an added line break.
#[test]
fn a_followed_log_shows_unfinished_lines() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["seq", "no-newline", "Password: ", "--", "sleep", "forever"]);
    let mut logs = g.spawn(&["logs", "--follow", &pod]);
    logs.wait_for_stdout("Password: ");
    g.run(&["stop", "--force", &pod]).succeeded();
    assert_eq!(logs.wait().ok().stdout, "Password: ");
    let written = g.run(&["logs", "-o", "json", &pod]).ok();
    assert_eq!(written.stdout.lines().count(), 2, "{written}");
}

/// Lines of several apps are not mixed.
#[test]
fn lines_of_several_apps_are_prefixed() {
    let g = Gantry::new();
    let image = g.fixture();
    let verb = ["lines", "20000", "50"];
    let line = [&["run", "--net=none", "--quiet", &image, "--name=a", "--"][..], &verb, &["---"]].concat();
    let second = [&[image.as_str(), "--name=b", "--"][..], &["seq", "lines", "20000", "50", "--", "no-newline", "x"]];
    let out = g.run(&[line, second.concat()].concat()).ok();
    for app in ["a", "b"] {
        let prefix = format!("[{app}] line ");
        let own: Vec<&str> = out.stdout.lines().filter(|line| line.starts_with(&prefix)).collect();
        assert_eq!(own.len(), 20_000);
        assert!(own.iter().enumerate().all(|(i, line)| line.starts_with(&format!("{prefix}{i:06} xx"))), "{app}");
    }
    assert_eq!(out.stdout.lines().count(), 40_001);
    assert!(out.stdout.ends_with("[b] x"), "{:?}", &out.stdout[out.stdout.len() - 100..]);
}

/// An app that is added is shown from its first byte on, by its own name.
#[test]
fn output_of_added_apps_is_shown() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut run = foreground(&g, &["--name=first"], &["seq", "no-newline", "waiting ", "--", "obey", "TERM"]);
    run.wait_for_stdout("waiting obeying SIGTERM\n");
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let add = |name: &str, verb: &[&str]| {
        let flags = ["app", "add", "--start", "--name", name, &pod, &image, "--"];
        g.run(&[&flags[..], verb].concat()).succeeded();
    };
    add("second", &["seq", "print", "hello", "--", "obey", "TERM"]);
    run.wait_for_stdout("[second] hello\n");
    g.run(&["app", "rm", "--force", &format!("{pod}/second")]).succeeded();
    // Its number is not its place among the apps.
    add("third", &["seq", "lines", "forever", "20", "50"]);
    run.wait_for_stdout("[third] line 000001 ");
    let mut attach = g.spawn(&["attach", "--no-stdin", &pod]);
    attach.wait_for_stdout("[third] line ");
    add("fourth", &["seq", "print", "hello", "--", "obey", "TERM"]);
    attach.wait_for_stdout("[fourth] hello\n");
    run.wait_for_stdout("[fourth] hello\n");
    assert_eq!(g.status(&pod)["phase"], "running");
    g.run(&["app", "rm", "--force", &format!("{pod}/third")]).succeeded();
    run.signal(Signal::TERM);
    let out = run.wait().exits(0);
    assert!(out.stdout.contains("[first] got SIGTERM\n"), "{out}");
    assert_eq!(attach.wait().code, 0);
    g.check_invariants();
}

/// A prompt has no newline. With several apps it is printed nevertheless, and another app's output starts a new line.
#[test]
fn prompts_of_several_apps_are_shown() {
    let g = Gantry::new();
    let image = g.fixture();
    let prompt = ["--name=a", "--", "seq", "no-newline", "Name: ", "--", "obey", "USR1", "--", "print", "x", "---"];
    let other = ["--name=b", "--", "seq", "obey", "USR1", "--", "print", "y"];
    let line = [&["run", "--net=none", "--quiet", &image][..], &prompt, &[image.as_str()], &other].concat();
    let mut run = g.spawn(&line);
    run.wait_for_stdout("[a] Name: ");
    run.wait_for_stdout("[b] obeying SIGUSR1\n");
    run.signal(Signal::USR1);
    let out = run.wait().ok();
    let lines: Vec<&str> = out.stdout.lines().collect();
    for want in ["[b] obeying SIGUSR1", "[b] got SIGUSR1", "[b] y", "[a] x"] {
        assert!(lines.contains(&want), "{want}: {out}");
    }
}

/// Both outputs go to one file: writes with a pause in between stay in order.
#[test]
fn stdout_and_stderr_keep_their_order() {
    let g = Gantry::new();
    let image = g.fixture();
    let mut command = g.command(&["run", "--net=none", "--quiet", &image, "--"]);
    command.args([
        "seq", "print", "1", "--", "sleep", "0.2", "--", "eprint", "2", "--", "sleep", "0.2", "--", "print", "3",
    ]);
    assert_eq!(Terminal::start(&command).wait().output, "1\r\n2\r\n3\r\n");
}

/// The disk fills up while the app runs: its log is dropped, the foreground output is not.
#[test]
fn a_full_disk_loses_no_foreground_output() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "32m");
    let standard = g.scratch().join("standard");
    gantry_fixtures::write_standard(&standard, g.app_bytes()).unwrap();
    let id = disk.run(&["fetch", &format!("oci:{}", standard.join("layout").display())]).ok().text().to_owned();
    let verb = ["seq", "obey", "USR1", "--", "print", "important", "--", "flood", "200000", "--", "exit", "4"];
    let mut run = disk.spawn(&[&["run", "--net=none", "--quiet", &id, "--"][..], &verb].concat());
    run.wait_for_stdout("obeying");
    disk.fill();
    run.signal(Signal::USR1);
    let out = run.wait().exits(4);
    assert!(out.stdout.starts_with("obeying SIGUSR1\ngot SIGUSR1\nimportant\nxxx"), "{out}");
    assert_eq!(out.bytes.len(), "obeying SIGUSR1\ngot SIGUSR1\nimportant\n".len() + 200_000);
    disk.drain();
    let pod = disk.run(&["list", "-q"]).ok();
    disk.run(&["rm", pod.text()]).succeeded();
}

#[track_caller]
fn foreground(g: &Gantry, flags: &[&str], verb: &[&str]) -> Running {
    let image = g.fixture();
    g.spawn(&[&["run", "--net=none", "--quiet"], flags, &[&image, "--"], verb].concat())
}

#[test]
fn signals_are_forwarded() {
    let g = Gantry::new();
    let mut run = foreground(&g, &[], &["ignore", "USR1", "USR2", "ALRM", "CONT", "QUIT", "WINCH", "40"]);
    run.wait_for_stdout("ignoring");
    for (signal, name) in [
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::CONT, "SIGCONT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::WINCH, "SIGWINCH"),
    ] {
        run.signal(signal);
        run.wait_for_stdout(&format!("got {name}\n"));
    }
    run.signal(Signal::TERM);
    let _ = run.wait().exits(143);
}

/// timeout(1) signals its child, and then its process group. The app still has its grace period.
#[test]
fn signals_at_once_are_one_request() {
    let g = Gantry::new();
    let verbs = ["seq", "obey", "TERM", "--", "sleep", "0.5", "--", "exit", "3"];
    let mut run = foreground(&g, &[], &verbs);
    run.wait_for_stdout("obeying");
    run.signal(Signal::TERM);
    let_pass(Duration::from_millis(10));
    run.signal(Signal::TERM);
    let _ = run.wait().exits(3);
}

#[test]
fn a_later_second_signal_kills_the_pod() {
    let g = Gantry::new();
    let mut run = foreground(&g, &["--stop-timeout=600"], &["ignore", "TERM"]);
    run.wait_for_stdout("ignoring");
    run.signal(Signal::TERM);
    run.wait_for_stdout("got SIGTERM");
    let_pass(Duration::from_millis(1001));
    run.signal(Signal::TERM);
    let _ = run.wait().exits(137);
}

#[test]
fn without_sig_proxy_signals_end_only_the_command() {
    let g = Gantry::new();
    let run = foreground(&g, &["--sig-proxy=false"], &["sleep", "forever"]);
    let pod = wait_for("the pod to run", || {
        let list = g.list();
        let pod = list.first().filter(|pod| pod["phase"] == "running")?;
        Some(pod["id"].as_str()?.to_owned())
    });
    run.signal(Signal::TERM);
    let _ = run.wait().exits(143);
    assert_eq!(g.status(&pod)["phase"], "running");
}

/// The pod is collected before the command reads its exit status.
#[test]
fn the_exit_code_outlives_the_pod() {
    let g = Gantry::new();
    let mut run = foreground(&g, &[], &["obey", "USR1", "3"]);
    run.wait_for_stdout("obeying");
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    run.signal(Signal::STOP);
    g.run(&["kill", "--signal=USR1", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    assert!(g.list().is_empty());
    run.signal(Signal::CONT);
    let out = run.wait().exits(3);
    assert!(out.stdout.ends_with("got SIGUSR1\n"), "{out}");
}

#[test]
fn out_of_memory_kills_are_reported() {
    let g = Gantry::new();
    let out = g.app(&["--memory=32Mi", "--name=hog"], &["alloc", "200"]).exits(137);
    let out = out.stderr_contains(&["app 'hog' ran out of memory"]);
    let pod = g.list()[0]["id"].as_str().unwrap().to_owned();
    let status = g.run(&["status", &pod]).ok();
    assert!(status.stdout.contains("reason=app hog ran out of memory"), "{out} {status}");
}
