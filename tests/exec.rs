//! Commands in running pods.

use std::process::{Child, Command, Stdio};

use gantry_tests::{Gantry, Signal, pod_id};

#[test]
fn output_and_exit_code_are_forwarded() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let exec = |verb: &[&str]| g.run(&[&["exec", &pod, "--", "/bin/app"], verb].concat());
    let out = exec(&["seq", "print", "good", "--", "eprint", "bad", "--", "exit", "17"]).exits(17);
    assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("good\n", "bad\n"));
    let _ = exec(&["raise", "SIGTERM"]).exits(143);
    assert_eq!(exec(&["flood", "3000000"]).ok().bytes.len(), 3_000_000);
    assert_eq!(exec(&["binary"]).ok().bytes, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn exec_runs_in_the_context_of_the_app() {
    let g = Gantry::new();
    // Where the score cannot be lowered, both run with the supervisor's.
    let flags = [
        "--user=app",
        "--environment=A=1",
        "--working-dir=/data",
        "--caps-retain=",
        "--name=it",
        "--oom-score-adj=-500",
    ];
    let context = ["seq", "caps", "--", "ids", "--", "ns", "--", "cgroup", "--", "rlimits", "--", "oom-adj"];
    let verb = [&context[..], &["--", "print", "over", "--", "sleep", "forever"]].concat();
    let pod = g.detached(&flags, &verb);
    let app = g.wait_log(&pod, "over");
    let exec = g.run(&[&["exec", &pod, "--", "/bin/app"], &context[..]].concat()).ok().stdout;
    assert_eq!(exec.lines().collect::<Vec<_>>(), app.trim_end().trim_end_matches("\nover").lines().collect::<Vec<_>>());
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "cwd"]).ok().text(), "/data");
    let env = g.run(&["exec", &pod, "--", "/bin/app", "env"]).ok().stdout;
    assert!(env.contains("A=1\n") && env.contains("HOME=/home/app\n"), "{env}");
}

#[test]
fn user_directory_and_variables_can_be_overridden() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let line = [
        "exec",
        "--user=app",
        "--workdir=/home/app",
        "--env=B=2",
        &pod,
        "--",
        "app",
        "seq",
        "ids",
        "--",
        "cwd",
        "--",
        "env",
    ];
    let out = g.run(&line).ok();
    assert!(out.stdout.contains("Uid: 1000 1000 1000 1000\n"), "{out}");
    assert!(out.stdout.contains("\n/home/app\n") && out.stdout.contains("B=2\n"), "{out}");
    let file = g.scratch().join("variables");
    assert!(std::fs::write(&file, "# of the file\nB=file\nC=file\nFROM_CALLER_ONLY_IF_SET\n").is_ok());
    let from_file = format!("--env-file={}", file.display());
    let out = g.run(&["exec", &from_file, "--env=B=2", &pod, "--", "/bin/app", "env"]).ok();
    assert!(out.stdout.contains("B=2\n") && out.stdout.contains("C=file\n"), "{out}");
    assert!(!out.stdout.contains("B=file") && !out.stdout.contains("FROM_CALLER"), "{out}");
    let absent = g.run(&["exec", "--env-file=/absent", &pod, "--", "/bin/app", "env"]).exits(125);
    let _refused = absent.stderr_contains(&["read variables from /absent"]);
}

/// Another user gets its own home directory, not that of the app's environment, unless the request names one.
#[test]
fn a_requested_home_directory_is_kept() {
    let g = Gantry::new();
    let pod = g.detached(&["--environment=HOME=/of-the-app"], &["sleep", "forever"]);
    let home = |flags: &[&str]| {
        let out = g.run(&[&["exec"], flags, &[&pod, "--", "/bin/app", "env"]].concat()).ok();
        out.stdout.lines().filter(|line| line.starts_with("HOME=")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(home(&[]), ["HOME=/of-the-app"]);
    assert_eq!(home(&["--user=app"]), ["HOME=/home/app"]);
    assert_eq!(home(&["--user=app", "--env=HOME=/x"]), ["HOME=/x"]);
    assert_eq!(home(&["--env=HOME=/x"]), ["HOME=/x"]);
    g.check_invariants();
}

#[test]
fn stdin_is_forwarded_until_eof() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let mut cat = g.spawn_with_stdin(&["exec", "-i", &pod, "--", "/bin/app", "echo-stdin"]);
    cat.write("first\n");
    cat.wait_for_stdout("first");
    cat.write("second\n");
    cat.close_stdin();
    assert_eq!(cat.wait().ok().stdout, "first\nsecond\n");
    let none = g.run(&["exec", &pod, "--", "/bin/app", "echo-stdin"]).ok();
    assert_eq!(none.stdout, "", "without -i stdin is empty");
    let big = vec![b'x'; 2_000_000];
    let out = g.run_with_input(&["exec", "-i", &pod, "--", "/bin/app", "echo-stdin"], &big).ok();
    assert_eq!(out.bytes.len(), big.len());
}

#[test]
fn the_end_of_stdin_ends_terminal_input() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let image = g.fixture();
    let exec = ["exec", "-it", &pod, "--", "/bin/app", "echo-stdin"];
    let run = ["run", "--net=none", "--quiet", "-it", &image, "--", "echo-stdin"];
    for input in ["", "line\n", "part"] {
        for command in [&exec[..], &run] {
            let out = g.run_with_input(command, input.as_bytes()).ok();
            assert!(out.stdout.contains(input.trim_end()), "{input:?}: {out}");
        }
    }
}

#[test]
fn descriptors_of_the_caller_are_not_inherited() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let out = g.run_with_input(&["exec", "-i", &pod, "--", "/bin/app", "fds"], b"secret").ok();
    let scratch = g.scratch().display().to_string();
    assert!(!out.stdout.contains(&scratch), "a file of the host is open inside: {out}");
    assert_eq!(out.stdout.lines().count(), 3, "{out}");
}

/// Starts a command with these standard streams, of which no copies stay.
fn spawn(mut command: Command, stdin: impl Into<Stdio>, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Child {
    command.stdin(stdin).stdout(stdout).stderr(stderr).spawn().unwrap_or_else(|error| panic!("{error}"))
}

/// Through /proc/self/fd, a program can open the other end of a pipe: it would read what others write into the caller's
/// standard output, and write into the caller's standard input.
#[test]
fn pipes_of_the_caller_are_not_passed() {
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let (mut rest, mut typist) = std::io::pipe().unwrap();
    let (mut printed, stdout) = std::io::pipe().unwrap();
    let (mut complained, stderr) = std::io::pipe().unwrap();
    typist.write_all(b"first\n").unwrap();
    let inodes = [rest.as_fd(), stdout.as_fd(), stderr.as_fd()].map(|fd| rustix::fs::fstat(fd).unwrap().st_ino);
    let line = ["seq", "fds", "--", "write", "/proc/self/fd/0", "INJECTED"];
    let exec = g.command(&[&["exec", "-i", &pod, "--", "/bin/app"], &line[..]].concat());
    assert!(spawn(exec, rest.try_clone().unwrap(), stdout, stderr).wait().unwrap().success());
    drop(typist);
    let (mut fds, mut errors, mut left) = (String::new(), String::new(), String::new());
    let _ = printed.read_to_string(&mut fds).unwrap();
    let _ = complained.read_to_string(&mut errors).unwrap();
    let _ = rest.read_to_string(&mut left).unwrap();
    assert_eq!(fds.matches("pipe:[").count(), 3, "{fds}{errors}");
    for inode in inodes {
        assert!(!fds.contains(&format!("pipe:[{inode}]")), "pipe {inode} of the caller is open inside:\n{fds}");
    }
    assert_eq!(left.replace("first\n", ""), "", "the program wrote into the standard input of its caller");
}

#[test]
fn output_and_errors_keep_their_order() {
    use std::io::Read as _;
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let (mut reader, stdout) = std::io::pipe().unwrap();
    let line = ["seq", "print", "1", "--", "eprint", "2", "--", "print", "3", "--", "eprint", "4"];
    let exec = g.command(&[&["exec", &pod, "--", "/bin/app"], &line[..]].concat());
    assert!(spawn(exec, Stdio::null(), stdout.try_clone().unwrap(), stdout).wait().unwrap().success());
    let mut all = String::new();
    let _ = reader.read_to_string(&mut all).unwrap();
    assert_eq!(all, "1\n2\n3\n4\n");
}

/// The program waits for nobody when the reader of its output has left.
#[test]
fn a_closed_output_ends_the_program() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let (reader, stdout) = std::io::pipe().unwrap();
    let exec = g.command(&["exec", &pod, "--", "/bin/app", "newlines"]);
    let mut exec = spawn(exec, Stdio::null(), stdout, Stdio::null());
    drop(reader);
    assert!(!exec.wait().unwrap().success(), "the program could not write");
}

#[test]
fn exec_with_a_terminal() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let out = g.run(&["exec", "-t", &pod, "--", "/bin/app", "tty"]).ok();
    assert!(out.stdout.contains("tty 0=true 1=true 2=true"), "{out}");
    assert!(out.stdout.contains("size 24x80"), "{out}");
    let of_exec = |flags: &[&str]| g.run(&[&["exec"], flags, &[&pod, "--", "/bin/app", "env"]].concat()).ok().stdout;
    let term = |environment: String| environment.lines().find(|line| line.starts_with("TERM=")).map(str::to_owned);
    assert_eq!(term(of_exec(&["-t"])).as_deref().map(str::trim_end), Some("TERM=xterm"));
    assert_eq!(term(of_exec(&["-t", "-e", "TERM=vt100"])).as_deref().map(str::trim_end), Some("TERM=vt100"));
    assert_eq!(term(of_exec(&[])), None);
}

#[test]
fn unexecutable_commands_are_reported() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    for (command, code) in
        [("/bin/missing", 127), ("missing", 127), ("/bin/notexec", 126), ("/bin/garbage", 126), ("/bin/directory", 126)]
    {
        let _ = g.run(&["exec", &pod, "--", command]).exits(code).stderr_contains(&[command]);
    }
    let _ =
        g.run(&["exec", &pod, "--user=stranger", "--", "/bin/app", "true"]).exits(125).stderr_contains(&["stranger"]);
    let _ = g.run(&["exec", &pod, "--app=none", "--", "/bin/app", "true"]).exits(125).stderr_contains(&["none"]);
    assert_eq!(g.status(&pod)["phase"], "running", "a failed exec does no harm");
}

#[test]
fn exec_requires_a_running_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", &image]).ok());
    let _ = g.run(&["exec", &prepared, "--", "/bin/app", "true"]).exits(125).stderr_contains(&["prepared"]);
    let two = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "--detach",
            &image,
            "--name=one",
            "--",
            "sleep",
            "forever",
            "---",
            &image,
            "--name=two",
            "--environment=WHICH=two",
            "--",
            "sleep",
            "forever",
        ])
        .ok(),
    );
    let _ = g.run(&["exec", &two, "--", "/bin/app", "true"]).exits(125).stderr_contains(&["one", "two", "--app"]);
    let env = g.run(&["exec", "--app=two", &two, "--", "/bin/app", "env"]).ok().stdout;
    assert!(env.contains("WHICH=two"), "{env}");
}

#[test]
fn a_killed_client_ends_its_command() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let mut exec =
        g.spawn_with_stdin(&["exec", "-i", &pod, "--", "/bin/app", "seq", "print", "in", "--", "echo-stdin"]);
    exec.wait_for_stdout("in");
    exec.signal(Signal::KILL);
    let _ = exec.wait().exits(137);
    gantry_tests::wait_for("the command to end with its client", || {
        let pids = g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok().stdout;
        // PID 1, the app, and this listing.
        (pids.lines().count() <= 3).then_some(())
    });
}

/// They run on after the command, whatever they write, and end with the pod.
#[test]
fn detached_programs_run_in_the_background() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    for (flags, file) in [("--detach", "/tmp/plain"), ("-dt", "/tmp/terminal")] {
        let verb = ["seq", "flood", "1000000", "--", "touch-ready", file, "--", "sleep", "forever"];
        let out = g.run(&[&["exec", flags, &pod, "--", "/bin/app"], &verb[..]].concat()).ok();
        assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""), "{flags}");
        gantry_tests::wait_for("the program to write and continue", || {
            (g.run(&["exec", &pod, "--", "/bin/app", "stat", file]).code == 0).then_some(())
        });
    }
    let pids = g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    assert_eq!(pids.lines().count(), 5, "PID 1, the app, the two programs and this listing:\n{pids}");
    g.run(&["stop", "--force", &pod]).succeeded();
    g.check_invariants();
}

/// A program may end before its client detaches.
#[test]
fn short_programs_can_be_detached() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    for round in 0..40 {
        let flags = if round % 2 == 0 { "-d" } else { "-dt" };
        let out = g.run(&["exec", flags, &pod, "--", "/bin/app", "exit", "3"]).ok();
        assert_eq!((out.stdout.as_str(), out.stderr.as_str()), ("", ""), "{flags}");
    }
    let _ = g.run(&["exec", "-d", &pod, "--", "/bin/missing"]).exits(127).stderr_contains(&["/bin/missing"]);
    let _ = g.run(&["exec", "-d", &pod]).exits(125).stderr_contains(&["name the program"]);
    let _ = g.run(&["exec", "-dit", &pod, "--", "/bin/app", "true"]).ok();
}

#[test]
fn concurrent_commands_end_with_the_pod() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let all: Vec<_> = (0..10).map(|i| g.spawn(&["exec", &pod, "--", "/bin/app", "exit", &format!("{i}")])).collect();
    for (i, exec) in (0..).zip(all) {
        let _ = exec.wait().exits(i);
    }
    let mut held = g.spawn(&["exec", &pod, "--", "/bin/app", "seq", "print", "in", "--", "sleep", "forever"]);
    held.wait_for_stdout("in");
    g.run(&["kill", &pod]).succeeded();
    let _ = held.wait().exits(137);
    g.check_invariants();
}

/// Through /proc/self/fd, a program could change the mode of the host's /dev/null.
#[test]
fn the_null_device_belongs_to_the_app() {
    use std::os::linux::fs::MetadataExt as _;
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let out = g.run(&["exec", &pod, "--", "/bin/app", "mounts"]).ok().stdout;
    assert!(out.contains(" /dev "), "{out}");
    let mut held = g.spawn(&["exec", &pod, "--", "/bin/app", "seq", "print", "in", "--", "sleep", "forever"]);
    held.wait_for_stdout("in");
    let host = std::fs::metadata("/dev/null").unwrap();
    let host = (host.st_dev(), host.st_ino());
    let supervisor = g.supervisor(&pod).to_string();
    let mut looked = 0;
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let group = std::fs::read_to_string(process.path().join("cgroup")).unwrap_or_default();
        if !group.contains(&pod) || process.file_name() == *supervisor {
            continue;
        }
        if let Ok(stdin) = std::fs::metadata(process.path().join("fd/0")) {
            assert_ne!((stdin.st_dev(), stdin.st_ino()), host, "{} has the host's /dev/null", process.path().display());
            looked += 1;
        }
    }
    assert!(looked >= 2, "the app and the program were to be looked at, not {looked} processes");
    held.signal(Signal::KILL);
    let _ = held.wait();
}

/// An app can stop every process it sees, also a process that is about to execute a program; a frozen cgroup has the
/// same effect. No command waits for such a process.
#[test]
fn a_stuck_exec_does_not_block_other_commands() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it"], &["sleep", "forever"]);
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", g.app_pid(&pod, "it"))).unwrap();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).expect("a cgroup v2 hierarchy");
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(std::path::Path::new);
    let root = roots.into_iter().find(|root| root.join(group).exists()).expect("the app's cgroup");
    std::fs::write(root.join(group).join("cgroup.freeze"), "1").unwrap();
    let _stuck = g.spawn(&["exec", &pod, "--", "/bin/app", "true"]);
    gantry_tests::wait_for("the process of the exec", || {
        let members = std::fs::read_to_string(root.join(group).join("cgroup.procs")).unwrap_or_default();
        (members.lines().count() >= 2).then_some(())
    });
    let begin = std::time::Instant::now();
    let _ = g.run(&["stop", "--force", &pod]).ok();
    assert!(begin.elapsed() < std::time::Duration::from_secs(9), "the supervisor was held up");
    g.check_invariants();
}
