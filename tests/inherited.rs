//! Processes of a pod inherit from the caller only what the command line requests.

use std::process::Command;

use gantry_tests::{Gantry, Out, Running, pod_id, wait_for};

/// `gantry ARGS` started through another program, such as `setpriv --groups=6`.
#[track_caller]
fn start_by(g: &Gantry, wrapper: &[&str], args: &[&str]) -> Running {
    let plain = g.command(args);
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(g.scratch());
    g.spawn_command(&mut command)
}

#[track_caller]
fn run_by(g: &Gantry, wrapper: &[&str], args: &[&str]) -> Out {
    start_by(g, wrapper, args).wait()
}

/// A field of `/proc/PID/status`.
#[track_caller]
fn status_field(pid: u32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    match status.lines().find_map(|line| line.strip_prefix(name)) {
        Some(value) => value.split_whitespace().collect::<Vec<_>>().join(" "),
        None => panic!("no {name} of process {pid}"),
    }
}

/// Process group, session and terminal of a process (fields 5 to 7 of proc_pid_stat(5)).
#[track_caller]
fn session_of(pid: u32) -> [i64; 3] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<i64> = stat
        .rsplit_once(") ")
        .map(|(_, rest)| rest.split(' ').skip(2).take(3).filter_map(|field| field.parse().ok()).collect())
        .unwrap_or_default();
    match fields[..] {
        [group, session, terminal] => [group, session, terminal],
        _ => panic!("no session of process {pid}: {stat}"),
    }
}

fn parent_of(pid: u32) -> u32 {
    status_field(pid, "PPid:").parse().unwrap_or(0)
}

/// The pod's PID 1, in the host's PID namespace.
#[track_caller]
fn init_of(supervisor: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
    let children = children.unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    match pids.into_iter().find(|&pid| name(pid).trim() == "gantry-init") {
        Some(pid) => pid,
        None => panic!("supervisor {supervisor} has no gantry-init: {children}"),
    }
}

#[test]
fn supplementary_groups_are_not_inherited() {
    let g = Gantry::new();
    let image = g.fixture();
    let groups = ["setpriv", "--groups=0,6,27"];
    for (user, want) in [("0", "Groups: 0\n"), ("1234:5678", "Groups: 5678\n"), ("app", "Groups: 50 1000 2000\n")] {
        let user = format!("--user={user}");
        let run = ["run", "--quiet", "--net=none", &user, &image, "--", "ids"];
        let out = run_by(&g, &groups, &run).ok();
        assert!(out.stdout.ends_with(want), "{user}: {out}");
        let pod =
            pod_id(&run_by(&g, &groups, &["run", "-d", "--net=none", &user, &image, "--", "sleep", "forever"]).ok());
        let exec = run_by(&g, &groups, &["exec", &pod, "--", "/bin/app", "ids"]).ok();
        assert!(exec.stdout.ends_with(want), "exec {user}: {exec}");
        let supervisor = g.supervisor(&pod);
        for pid in [supervisor, init_of(supervisor)] {
            assert_eq!(status_field(pid, "Groups:"), "", "process {pid}");
        }
    }
}

#[test]
fn limits_scores_and_priorities_are_reset() {
    let g = Gantry::new();
    let verb = ["seq", "rlimits", "--", "oom-adj", "--", "cat", "/proc/self/stat"];
    let image = g.fixture();
    let line = [&["run", "--quiet", "--net=none", &image, "--"], &verb[..]].concat();
    let odd = "ulimit -S -n 777; ulimit -S -c unlimited; ulimit -S -s 4096; echo 500 >/proc/self/oom_score_adj; umask 0; trap '' PIPE HUP; \
               exec nice -n 7 taskset -c 0 setarch --addr-no-randomize \"$0\" \"$@\"";
    let plain = g.run(&line).ok();
    let strange = run_by(&g, &["sh", "-c", odd], &line).ok();
    let fields = |out: &Out| -> Vec<String> {
        let (limits, stat) = out.stdout.rsplit_once(") ").unwrap();
        let limits = limits.lines().filter(|line| !line.contains(" (")).map(str::to_owned);
        // Priority, nice value and scheduling policy.
        limits
            .chain(stat.split(' ').enumerate().filter(|(i, _)| [15, 16, 38].contains(i)).map(|(_, f)| f.to_owned()))
            .collect()
    };
    assert_eq!(fields(&plain), fields(&strange), "{plain}\n{strange}");
    let limit = |name: &str| plain.stdout.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    assert!(limit("core").starts_with("core 0 "), "no core files unless the app asks for them: {plain}");
    let [soft, hard] = limit("nofile").split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(soft, hard, "as many open files as may be had: {plain}");
    assert!(plain.stdout.lines().any(|line| line == "0"), "oom_score_adj: {plain}");
    let pod =
        pod_id(&run_by(&g, &["sh", "-c", odd], &["run", "-d", "--net=none", &image, "--", "sleep", "forever"]).ok());
    let supervisor = g.supervisor(&pod);
    assert_eq!(status_field(supervisor, "Umask:"), "0022");
    assert_eq!(status_field(supervisor, "Cpus_allowed_list:"), status_field(std::process::id(), "Cpus_allowed_list:"));
    let personality = std::fs::read_to_string(format!("/proc/{supervisor}/personality")).unwrap();
    assert_eq!(personality.trim(), "00000000", "addresses are randomised");
    let exec = g.run(&["exec", &pod, "--", "/bin/app", "rlimits"]).ok();
    assert!(plain.stdout.starts_with(&exec.stdout), "exec: {exec}\n{plain}");
    // Lowering a score takes CAP_SYS_RESOURCE, which some hosts of tests lack.
    let held = status_field(std::process::id(), "CapEff:");
    let can_lower = u64::from_str_radix(&held, 16).unwrap() & (1 << 24) != 0;
    for process in [supervisor, init_of(supervisor)] {
        let score = std::fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
        assert_eq!(score.trim(), if can_lower { "-999" } else { "0" }, "process {process}");
    }
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "oom-adj"]).ok().text(), "0");
}

/// SIGXFSZ would kill the supervisor or the command.
#[test]
fn a_limit_of_file_sizes_kills_no_process() {
    let g = Gantry::new();
    let image = g.fixture();
    let limited = |kibibytes: u32| format!("ulimit -f {kibibytes}; exec \"$0\" \"$@\"");
    let few = run_by(&g, &["bash", "-c", &limited(0)], &["volume", "create", "v"]);
    let _ = few.exits(125).stderr_contains(&["File too large"]);
    let line = ["run", "--quiet", "--net=none", "-d", &image, "--", "flood", "20000000"];
    let pod = pod_id(&run_by(&g, &["bash", "-c", &limited(4000)], &line).ok());
    assert_eq!(g.run(&["wait", &pod]).ok().text(), "0");
}

#[test]
fn descriptors_are_not_inherited() {
    let g = Gantry::new();
    let image = g.fixture();
    let file = g.scratch().join("locked");
    let script = format!("exec 9>{}; flock 9; exec \"$0\" \"$@\"", file.display());
    let pod = pod_id(
        &run_by(&g, &["sh", "-c", &script], &["run", "-d", "--net=none", &image, "--", "sleep", "forever"]).ok(),
    );
    let supervisor = g.supervisor(&pod);
    for pid in [supervisor, init_of(supervisor), g.app_pid(&pod, app_name(&g, &pod).as_str())] {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let targets: Vec<_> = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
        assert!(!targets.contains(&file), "process {pid} has the caller's file open: {targets:?}");
    }
    let lock = Command::new("flock").arg("--nonblock").arg(&file).arg("true").status().unwrap();
    assert!(lock.success(), "the pod holds the lock of the shell that started it");
}

fn app_name(g: &Gantry, pod: &str) -> String {
    g.status(pod)["apps"][0]["name"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_session_keyring_is_not_inherited() {
    let g = Gantry::new();
    let image = g.fixture();
    let app = g.app_program().display().to_string();
    let with_key = [app.as_str(), "with-session-key"];
    let _ = run_by(&g, &with_key, &[]).exits(125);
    let there = Command::new(&app).args(["with-session-key", &app, "session-key-try"]).output().unwrap();
    if !there.status.success() {
        // A kernel without keyrings has none to pass on.
        assert!(String::from_utf8_lossy(&there.stderr).contains("not implemented"), "{there:?}");
        return;
    }
    let flags = ["--net=none", "--seccomp=unconfined"];
    let run = [&["run", "--quiet"], &flags[..], &[&image, "--", "session-key-try"]].concat();
    let _ = run_by(&g, &with_key, &run).exits(3).stdout_contains("session key: ENOKEY");
    let start = [&["run", "-d"], &flags[..], &[&image, "--", "sleep", "forever"]].concat();
    let pod = pod_id(&run_by(&g, &with_key, &start).ok());
    let exec = run_by(&g, &with_key, &["exec", &pod, "--", "/bin/app", "session-key-try"]);
    let _ = exec.exits(3).stdout_contains("session key: ENOKEY");
}

/// A shell on a terminal starts a pod in the background and one in the foreground: neither stays in its session.
#[test]
fn session_and_terminal_are_left() {
    let g = Gantry::new();
    let image = g.fixture();
    let script = g.scratch().join("on-terminal");
    let gantry = g.command(&[]);
    let words: Vec<String> = std::iter::once(gantry.get_program())
        .chain(gantry.get_args())
        .map(|word| format!("'{}'", word.display()))
        .collect();
    let gantry = words.join(" ");
    let text = format!(
        "#!/bin/sh\n{gantry} run -d --net=none {image} -- sleep forever\n{gantry} run --net=none --name=front {image} -- sleep forever\n"
    );
    std::fs::write(&script, text).unwrap();
    let line = format!("sh {}", script.display());
    let mut terminal = start_by_terminal(&g, &line);
    let pods = wait_for("both pods to run", || {
        let running: Vec<String> = g
            .list()
            .iter()
            .filter(|pod| pod["phase"] == "running")
            .filter_map(|pod| Some(pod["id"].as_str()?.to_owned()))
            .collect();
        (running.len() == 2).then_some(running)
    });
    let shell = session_of(terminal.pid());
    for pod in &pods {
        let supervisor = g.supervisor(pod);
        let init = init_of(supervisor);
        assert_eq!(parent_of(init), supervisor);
        for pid in [supervisor, init] {
            assert_eq!(
                session_of(pid),
                [i64::from(supervisor), i64::from(supervisor), 0],
                "process {pid}, shell {shell:?}"
            );
        }
        let [_, session, tty] = session_of(g.app_pid(pod, &app_name(&g, pod)));
        assert!(tty == 0 && session != shell[1], "the app");
    }
    for pod in &pods {
        g.run(&["kill", pod]).succeeded();
    }
    wait_for("the shell to end", || terminal.has_ended().then_some(()));
}

/// The supervisor joins the process group of its parent to leave its own, which fails if the engine was killed by
/// then. A damaged plan shows how far the supervisor got.
#[test]
fn the_session_is_left_without_an_engine() {
    let g = Gantry::new();
    let lock = g.scratch();
    // With job control (set -m), the job leads a process group, like a supervisor started by the engine. The job
    // executes the supervisor when the shell, its parent, has exited. Its new parent is in another session, so the
    // process group of that parent cannot be joined.
    let script =
        format!("(read line; exec {} run --lock-fd 9 9<{}) <&0 & exit 0", g.own_supervisor().display(), lock.display());
    let mut command = Command::new("setsid");
    command.args(["bash", "-c", &script]).current_dir(&lock);
    let mut shell = g.spawn_command_with_stdin(&mut command);
    wait_for("the shell to exit", || shell.has_ended().then_some(()));
    shell.write("go\nno plan");
    shell.close_stdin();
    let out = shell.wait();
    assert!(out.stdout.contains("the plan is damaged"), "{out}");
}

#[track_caller]
fn start_by_terminal(g: &Gantry, line: &str) -> Running {
    let plain = g.command(&[]);
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    g.spawn_command(&mut command)
}

/// The PID 1 entry in `ps`, inside and outside the pod.
#[test]
fn pid_1_exposes_nothing_of_the_host() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "cat", "/proc/1/cmdline"]).ok().stdout, "gantry-init\0");
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "cat", "/proc/1/comm"]).ok().stdout, "gantry-init\n");
    let supervisor = std::fs::read(format!("/proc/{}/cmdline", g.supervisor(&pod))).unwrap();
    assert!(supervisor.starts_with(b"gantry-stage1\0run\0"), "the supervisor's own are as they were: {supervisor:?}");
}

/// With SIGCHLD ignored, the kernel reaps children before they are waited for.
#[test]
fn exit_codes_survive_a_caller_that_ignores_children() {
    let g = Gantry::new();
    let image = g.fixture();
    let ignoring = ["env", "--ignore-signal=CHLD"];
    let run = |flags: &[&str], verb: &[&str]| {
        run_by(&g, &ignoring, &[&["run", "--net=none", "--quiet"], flags, &[&image, "--"], verb].concat())
    };
    assert_eq!(run(&["--rm"], &["exit", "3"]).code, 3);
    assert_eq!(run(&["--rm"], &["true"]).code, 0);
    let pod = pod_id(&run(&["--detach"], &["sleep", "forever"]).ok());
    assert_eq!(run_by(&g, &ignoring, &["exec", &pod, "--", "/bin/app", "exit", "4"]).code, 4);
    g.run(&["stop", "--force", &pod]).succeeded();
    g.check_invariants();
}
