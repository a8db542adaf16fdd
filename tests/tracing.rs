//! An app with CAP_SYS_PTRACE: every process of the pod that it can see is confined like the app itself, including
//! processes that have not executed their program yet.

use gantry_tests::{Gantry, pod_id, wait_for};

const TRACE: &str = "--cap-add=CAP_SYS_PTRACE";
const NEW_PRIVILEGES: &str = "--no-new-privileges=false";
/// System calls that start a process, and that the app itself does not need.
const WITHOUT: &str = "--seccomp=mode=remove,setsid,sendto,clone,capset,seccomp";

/// Asserts that the attacker found no process that it could use.
#[track_caller]
fn assert_nothing_exploitable(log: &str, how: &[&str]) {
    let of_use: Vec<&str> = log.lines().filter(|line| line.starts_with("process ")).collect();
    assert!(of_use.is_empty(), "{how:?}: {of_use:#?}");
}

#[test]
fn exec_processes_are_confined_before_they_are_visible() {
    let g = Gantry::new();
    for flags in [&[TRACE][..], &[TRACE, NEW_PRIVILEGES], &[TRACE, WITHOUT], &[TRACE, NEW_PRIVILEGES, WITHOUT]] {
        let pod = g.detached(flags, &["catch", "12"]);
        g.wait_log(&pod, "catching");
        let log = wait_for("enough processes to be caught", || {
            let _ = g.run(&["exec", &pod, "--", "/bin/app", "true"]);
            Some(g.run(&["logs", &pod]).ok().stdout).filter(|log| log.contains("caught enough"))
        });
        assert_nothing_exploitable(&log, flags);
        let _ = g.run(&["exec", &pod, "--", "/bin/app", "true"]).ok();
        let _ = g.run(&["exec", "-t", &pod, "--", "/bin/app", "tty"]).ok().stdout_contains("tty 0=true 1=true 2=true");
    }
}

#[test]
fn all_apps_are_confined_before_any_starts() {
    let g = Gantry::new();
    let image = g.fixture();
    for flags in [&[TRACE][..], &[TRACE, NEW_PRIVILEGES], &[TRACE, WITHOUT]] {
        let names: Vec<String> = (1..=12).map(|number| format!("--name=other-{number}")).collect();
        let mut line =
            [&["run", "--detach", "--net=none"], flags, &[&image, "--name=first", "--", "catch", "12"]].concat();
        for name in &names {
            line.extend(["---", &image, name, "--", "sleep", "forever"]);
        }
        let pod = pod_id(&g.run(&line).ok());
        let log = wait_for("enough processes to be caught", || {
            let log = g.run(&["logs", "--app=first", &pod]).ok().stdout;
            log.contains("caught enough").then_some(log)
        });
        assert_nothing_exploitable(&log, flags);
        g.run(&["kill", &pod]).succeeded();
        g.wait_state(&pod, "exited");
    }
}

/// A paused app that is resumed while a process is made beside it runs when that process is confined.
#[test]
fn resumed_tracers_see_confined_processes_only() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let tracer = format!("{pod}/tracer");
    g.run(&["app", "add", &pod, &image, "--name=tracer", TRACE, "--", "catch", "100000"]).succeeded();
    g.run(&["app", "start", &tracer]).succeeded();
    g.wait_log(&pod, "catching");
    for round in 0..12 {
        g.run(&["pause", &tracer]).succeeded();
        let name = format!("--name=other-{round}");
        let adding = g.spawn(&["app", "add", &pod, &image, &name, "--", "sleep", "forever"]);
        let resuming: Vec<_> = (0..4).map(|_| g.spawn(&["unpause", &tracer])).collect();
        for command in resuming.into_iter().chain([adding]) {
            let _done = command.wait().exits(0);
        }
    }
    // It runs again.
    g.run(&["exec", &pod, "--app=tracer", "--", "/bin/app", "true"]).succeeded();
    let log = g.run(&["logs", "--app=tracer", &pod]).ok().stdout;
    assert_nothing_exploitable(&log, &[TRACE]);
    g.run(&["stop", "--force", &pod]).succeeded();
}

/// Closing a received descriptor may block for as long as its sender likes: a socket lingers.
#[test]
fn tracers_send_no_descriptors_through_an_exec() {
    let g = Gantry::new();
    let pod = g.detached(&[TRACE], &["send-lingering", "4"]);
    g.wait_log(&pod, "catching");
    let log = wait_for("enough processes to be caught", || {
        let _ = g.run(&["exec", &pod, "--", "/bin/app", "true"]);
        Some(g.run(&["logs", &pod]).ok().stdout).filter(|log| log.contains("caught enough"))
    });
    assert!(!log.contains("sent a socket"), "{log}");
    let _ = g.run(&["exec", &pod, "--", "/bin/app", "true"]).ok();
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
}

/// The same through an app that was added and waits for its start.
#[test]
fn tracers_send_no_descriptors_through_waiting_apps() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    g.run(&["app", "add", &pod, &image, "--name=tracer", TRACE, "--", "send-lingering", "3"]).succeeded();
    g.run(&["app", "start", &format!("{pod}/tracer")]).succeeded();
    g.wait_log(&pod, "catching");
    for name in ["one", "two", "three"] {
        g.run(&["app", "add", &pod, &image, &format!("--name={name}"), "--", "sleep", "forever"]).succeeded();
    }
    let log = wait_for("enough processes to be caught", || {
        Some(g.run(&["logs", "--app=tracer", &pod]).ok().stdout).filter(|log| log.contains("caught enough"))
    });
    assert!(!log.contains("sent a socket"), "{log}");
    for name in ["one", "two", "three"] {
        g.run(&["app", "start", &format!("{pod}/{name}")]).succeeded();
    }
    g.run(&["stop", "--force", &pod]).succeeded();
}

/// A filter that denies the calls needed to start a process still applies to the program.
#[test]
fn short_seccomp_lists_apply_to_the_program() {
    let g = Gantry::new();
    let list = "--seccomp=mode=retain,execve,arch_prctl,set_tid_address,brk,mmap,munmap,mprotect,write,writev,exit_group,\
                nanosleep,clock_nanosleep,open,openat,close,read,fstat,lseek,fcntl,rt_sigprocmask";
    let pod = g.detached(&[list], &["sleep", "forever"]);
    let exec = |verb: &[&str]| g.run(&[&["exec", &pod, "--", "/bin/app"], verb].concat());
    let status = exec(&["cat", "/proc/self/status"]).ok();
    assert!(status.stdout.contains("Seccomp:\t2\n"), "{status}");
    let _ = exec(&["fork-children", "1"]).exits(1);
    let _ = g.app(&[list], &["fork-children", "1"]).exits(1);
    let _ = g.run(&["exec", &pod, "--", "/bin/garbage"]).exits(126).stderr_contains(&["/bin/garbage"]);
    let _ = g.app(&["--seccomp=mode=retain,read,write"], &["true"]).exits(125).stderr_contains(&["execve"]);
}

/// root's writes to files of a process in /proc have no effect on the process that manages the pod.
#[test]
fn root_of_an_app_cannot_tune_pid_1() {
    let g = Gantry::new();
    for file in ["oom_score_adj", "coredump_filter", "comm"] {
        let _ = g.app(&[], &["write", &format!("/proc/1/{file}"), "1"]).exits(1).stderr_contains(&["Read-only"]);
    }
}

/// The kernel shows the exit of a traced process only to the tracer. The supervisor sees that it has ended, but cannot
/// reap it.
#[test]
fn a_tracer_cannot_hide_an_exit() {
    let g = Gantry::new();
    let _ = g.app(&[], &["exit-traced", "7"]).exits(7);
    // The tracer is not the program of an exec: it is not killed. The supervisor sleeps nevertheless.
    let pod = g.detached(&[], &["sleep", "forever"]);
    let mut exec = g.spawn(&["exec", &pod, "--", "/bin/app", "exit-traced", "7"]);
    exec.wait_for_stdout("traced");
    let is_zombie = |line: &str| line.split_whitespace().nth(2) == Some("Z");
    wait_for("the traced program to exit", || {
        let out = g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok();
        out.stdout.lines().any(is_zombie).then_some(())
    });
    let path = format!("/proc/{}/syscall", g.supervisor(&pod));
    wait_for("the supervisor to sleep", || {
        let call = std::fs::read_to_string(&path).ok()?;
        (!call.starts_with("running")).then_some(())
    });
    assert!(!exec.has_ended());
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    let _ended_with_the_pod = exec.wait();
    g.check_invariants();
}
