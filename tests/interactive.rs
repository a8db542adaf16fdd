//! Interactive use of a terminal: `run -it`, `attach`, `exec -it`, detach keys, window sizes, hangups.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_tests::{Gantry, Signal, Terminal, wait_for};

/// docker's detach keys: ctrl-p ctrl-q.
const DETACH: &str = "\x10\x11";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

/// `gantry run FLAGS IMAGE -- VERB` on a terminal.
#[track_caller]
fn run(g: &Gantry, flags: &[&str], verb: &[&str]) -> Terminal {
    let image = g.fixture();
    Terminal::start(&g.command(&[&["run", "--net=none", "--quiet"], flags, &[&image, "--"], verb].concat()))
}

/// The only pod.
#[track_caller]
fn pod(g: &Gantry) -> String {
    wait_for("a pod", || g.list().first().map(|pod| pod["id"].as_str().unwrap().to_owned()))
}

#[test]
fn a_terminal_without_client_has_a_size() {
    let g = Gantry::new();
    assert_eq!(g.app(&["-t"], &["tty"]).ok().stdout, "tty 0=true 1=true 2=true\r\nsize 24x80\r\n");
}

#[test]
fn a_reopened_terminal_has_a_reader() {
    let g = Gantry::new();
    let verb = ["hang-up", "--", "touch-ready", "/closed", "--", "wait-file", "/go", "--", "write", "/dev/console"];
    let verb = [&["seq"], &verb[..], &["again", "--", "sleep", "forever"]].concat();
    let pod = g.detached(&["-t"], &verb);
    // The supervisor serves each command, so it has seen that no process has the terminal open.
    g.run(&["exec", &pod, "--", "/bin/app", "wait-file", "/closed"]).succeeded();
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/go"]).succeeded();
    g.wait_log(&pod, "again");
}

#[test]
fn the_app_gets_a_terminal_of_equal_size() {
    let g = Gantry::new();
    let terminal = run(&g, &["-it"], &["tty", "watch"]);
    terminal.wait_for("tty 0=true 1=true 2=true\r\nsize 24x80\r\n");
    terminal.resize(50, 132);
    terminal.wait_for("size 50x132\r\n");
    terminal.resize(10, 20);
    terminal.wait_for("size 10x20\r\n");
    terminal.type_in(CTRL_C);
    let left = terminal.wait();
    assert_eq!(left.code, 130, "{left:?}");
    assert!(left.is_restored && !left.output.contains("\r\r"), "{left:?}");
}

#[test]
fn restarted_apps_keep_the_size_of_their_terminal() {
    let g = Gantry::new();
    let image = g.fixture();
    let unhealthy = ["--health-cmd=/missing", "--health-interval=100ms", "--health-retries=1"];
    let flags =
        [&unhealthy[..], &["--health-on-failure=restart", "--", "seq", "tty", "--", "sleep", "forever"]].concat();
    let command = g.command(&[&["run", "--net=none", "--quiet", "-t", &image], &flags[..]].concat());
    let mut resized = std::process::Command::new("sh");
    resized.args(["-c", "stty rows 40 cols 100 && exec \"$@\"", "sh"]).arg(command.get_program());
    resized.args(command.get_args()).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let terminal = Terminal::start(&resized);
    wait_for("the app to be started again", || (terminal.output().matches("size ").count() >= 2).then_some(()));
    terminal.signal(Signal::TERM);
    let left = terminal.wait();
    assert_eq!(left.output.matches("size 40x100\r\n").count(), left.output.matches("size ").count(), "{left:?}");
    g.check_invariants();
}

#[test]
fn typed_input_is_echoed_once_and_delivered() {
    let g = Gantry::new();
    let terminal = run(&g, &["-it"], &["seq", "print", "ready", "--", "echo-stdin"]);
    terminal.wait_for("ready\r\n");
    terminal.type_in("hello\r");
    terminal.wait_for("hello\r\nhello\r\n");
    terminal.type_in(CTRL_D);
    let left = terminal.wait();
    assert_eq!((left.code, left.output.as_str()), (0, "ready\r\nhello\r\nhello\r\n"));
    assert!(left.is_restored);
}

#[test]
fn the_exit_code_of_the_app_is_returned() {
    let g = Gantry::new();
    let left = run(&g, &["-it", "--rm"], &["seq", "print", "out", "--", "eprint", "err", "--", "exit", "7"]).wait();
    assert_eq!((left.code, left.output.as_str()), (7, "out\r\nerr\r\n"));
    assert!(left.is_restored && g.list().is_empty());
}

#[test]
fn a_terminal_without_stdin() {
    let g = Gantry::new();
    let terminal = run(&g, &["-t"], &["seq", "tty", "--", "print", "ready", "--", "obey", "INT", "5"]);
    terminal.wait_for("tty 0=true 1=true 2=true\r\nsize 24x80\r\nready\r\n");
    terminal.wait_for("obeying");
    // The input goes to the command's terminal, not the app's: it interrupts the command, which stops the app.
    terminal.type_in(CTRL_C);
    let left = terminal.wait();
    assert!(!left.output.contains("\r\r\n"), "{left:?}");
    assert!([5, 143].contains(&left.code) && left.is_restored, "{left:?}");
}

/// httpd and nginx stop on SIGWINCH, which the kernel sends to gantry when the user resizes the window.
#[test]
fn sigwinch_is_not_forwarded_without_a_terminal() {
    let g = Gantry::new();
    let terminal = run(&g, &[], &["ignore", "USR1", "USR2", "WINCH", "40"]);
    terminal.wait_for("ignoring");
    terminal.resize(50, 132);
    // Pending signals are delivered in the order of their numbers; SIGWINCH would precede the second signal.
    for (signal, name) in [(Signal::USR1, "SIGUSR1"), (Signal::USR2, "SIGUSR2")] {
        terminal.signal(signal);
        terminal.wait_for(&format!("got {name}"));
    }
    assert!(!terminal.output().contains("SIGWINCH"), "{}", terminal.output());
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.wait().code, 143);
}

#[test]
fn ctrl_c_stops_a_pod_without_terminal() {
    let g = Gantry::new();
    let terminal = run(&g, &[], &["obey", "TERM", "9"]);
    terminal.wait_for("obeying SIGTERM\r\n");
    terminal.type_in(CTRL_C);
    let left = terminal.wait();
    assert_eq!(left.code, 9, "{left:?}");
    assert!(left.output.contains("got SIGTERM\r\n"), "{left:?}");
}

#[test]
fn detach_and_reattach() {
    let g = Gantry::new();
    let terminal = run(&g, &["-it"], &["seq", "print", "ready", "--", "echo-stdin"]);
    terminal.wait_for("ready\r\n");
    let pod = pod(&g);
    terminal.type_in(DETACH);
    let left = terminal.wait();
    assert_eq!(left.code, 0, "{left:?}");
    assert!(
        left.is_restored && left.output.contains(&format!("detached from pod {pod}, which continues to run")),
        "{left:?}"
    );

    let attach = || Terminal::start(&g.command(&["attach", &pod]));
    let (one, two) = (attach(), attach());
    one.wait_raw();
    two.wait_raw();
    for (terminal, word) in [(&one, "first"), (&two, "second")] {
        terminal.type_in(&format!("{word}\r"));
        one.wait_for(&format!("{word}\r\n{word}\r\n"));
        two.wait_for(&format!("{word}\r\n{word}\r\n"));
    }
    one.type_in(DETACH);
    assert_eq!(one.wait().code, 0);
    two.type_in("still here\r");
    two.wait_for("still here\r\nstill here\r\n");
    two.type_in(CTRL_D);
    let left = two.wait();
    assert_eq!(left.code, 0, "{left:?}");
    assert!(left.is_restored);
    g.wait_state(&pod, "exited");

    let out = g.run(&["attach", &pod]).exits(125);
    let _ = out.stderr_contains(&["has exited with code 0", "gantry logs"]);
}

#[test]
fn detach_keys_can_be_changed_or_disabled() {
    let g = Gantry::new();
    let terminal = run(&g, &["-it", "--detach-keys=ctrl-x,q"], &["seq", "print", "ready", "--", "echo-stdin"]);
    terminal.wait_for("ready\r\n");
    terminal.type_in("\x18a\r");
    // The terminal's echo of control characters.
    terminal.wait_for("^Xa\r\n");
    terminal.type_in("\x18q");
    assert!(terminal.wait().output.contains("detached from pod"));
    let pod = pod(&g);

    let attached = Terminal::start(&g.command(&["attach", "--detach-keys=", &pod]));
    attached.wait_raw();
    attached.type_in("\x10\x18q\r");
    attached.wait_for("^P^Xq\r\n");
    attached.type_in(CTRL_D);
    assert_eq!(attached.wait().code, 0);

    let out = g.app(&["-it", "--detach-keys=ctrl-"], &["true"]).exits(125);
    let _ = out.stderr_contains(&["--detach-keys", "is not a key"]);
}

/// `gantry exec FLAGS POD -- VERB` on a terminal.
#[track_caller]
fn exec(g: &Gantry, flags: &[&str], pod: &str, verb: &[&str]) -> Terminal {
    Terminal::start(&g.command(&[&["exec"], flags, &[pod, "--", "/bin/app"], verb].concat()))
}

#[test]
fn exec_runs_interactively() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let terminal = exec(&g, &["-it"], &pod, &["tty", "watch"]);
    terminal.wait_for("tty 0=true 1=true 2=true\r\nsize 24x80\r\n");
    terminal.resize(33, 99);
    terminal.wait_for("size 33x99\r\n");
    terminal.type_in(CTRL_C);
    let left = terminal.wait();
    assert!(left.code == 130 && left.is_restored, "{left:?}");

    let left = exec(&g, &["-it"], &pod, &["seq", "print", "in", "--", "exit", "6"]).wait();
    assert_eq!((left.code, left.output.as_str()), (6, "in\r\n"));
    let left = exec(&g, &["-t"], &pod, &["seq", "tty", "--", "print", "over"]).wait();
    assert_eq!((left.code, left.output.as_str()), (0, "tty 0=true 1=true 2=true\r\nsize 24x80\r\nover\r\n"));
    assert!(left.is_restored);
    let left = Terminal::start(&g.command(&["enter", &pod, "/bin/app", "print", "entered"])).wait();
    assert_eq!((left.code, left.output.as_str()), (0, "entered\r\n"));
}

#[test]
fn a_program_of_exec_reopens_its_terminal() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let verb =
        ["hang-up", "--", "touch-ready", "/closed", "--", "wait-file", "/go", "--", "write", "/dev/tty", "again"];
    let terminal = exec(&g, &["-t"], &pod, &[&["seq"], &verb[..]].concat());
    // The supervisor serves each command meanwhile; the client sees at once if the terminal ends.
    g.run(&["exec", &pod, "--", "/bin/app", "wait-file", "/closed"]).succeeded();
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/go"]).succeeded();
    let left = terminal.wait();
    assert_eq!((left.code, left.output.as_str()), (0, "again\r\n"), "{left:?}");
    g.check_invariants();
}

/// The program keeps running, and its later output does not block it.
#[test]
fn exec_can_be_detached_from() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let verb =
        ["seq", "obey", "USR1", "--", "flood", "1000000", "--", "touch-ready", "/tmp/done", "--", "sleep", "forever"];
    let terminal = exec(&g, &["-it"], &pod, &verb);
    terminal.wait_for("obeying");
    let pids = || g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    let before = pids();
    terminal.type_in(DETACH);
    let left = terminal.wait();
    assert_eq!(left.code, 0, "{left:?}");
    assert!(left.is_restored && left.output.contains("detached from the program in pod"), "{left:?}");
    assert_eq!(before.lines().count(), pids().lines().count(), "the program has ended:\n{before}\n{}", pids());
    // PID 1, the app, and the program, which has the highest number except for the listings themselves.
    let program: u32 = before.lines().rev().nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let supervisor = g.supervisor(&pod);
    let host_pid = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    let host_pid = host_pid.split_whitespace().find(|pid| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .any(|line| line.starts_with("NSpid:") && line.split_whitespace().nth(2) == Some(&program.to_string()))
    });
    let host_pid = rustix::process::Pid::from_raw(host_pid.unwrap().parse().unwrap()).unwrap();
    rustix::process::kill_process(host_pid, Signal::USR1).unwrap();
    wait_for("the program to write and continue", || {
        (g.run(&["exec", &pod, "--", "/bin/app", "stat", "/tmp/done"]).code == 0).then_some(())
    });
}

#[test]
fn exec_with_detach_keys_disabled() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let terminal = exec(&g, &["-it", "--detach-keys="], &pod, &["seq", "print", "ready", "--", "echo-stdin"]);
    terminal.wait_for("ready\r\n");
    terminal.type_in("\x10a\r");
    terminal.wait_for("^Pa\r\n");
    terminal.type_in(CTRL_D);
    assert_eq!(terminal.wait().code, 0);
}

#[test]
fn a_hangup_ends_run_but_not_attached_pods() {
    let g = Gantry::new();
    let mut terminal = run(&g, &["-it"], &["seq", "print", "ready", "--", "echo-stdin"]);
    terminal.wait_for("ready\r\n");
    let own = pod(&g);
    terminal.hang_up();
    g.wait_state(&own, "exited");

    let other = g.detached(&["-it"], &["seq", "print", "ready", "--", "sleep", "forever"]);
    g.wait_log(&other, "ready");
    let mut attached = Terminal::start(&g.command(&["attach", &other]));
    let pid = attached.pid();
    attached.hang_up();
    wait_for("attach to end", || (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    assert_eq!(g.status(&other)["phase"], "running");
}
