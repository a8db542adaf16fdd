//! Namespaces that apps share with the host, or have of their own.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_tests::{Gantry, app, pod_id, wait_for};

/// The link of a namespace of a process.
fn namespace(pid: u32, kind: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

fn own(kind: &str) -> String {
    namespace(std::process::id(), kind)
}

fn stop(g: &Gantry, pod: &str) {
    g.run(&["stop", "--force", pod]).succeeded();
    g.wait_state(pod, "exited");
}

#[test]
fn an_app_is_alone_in_its_namespace() {
    let g = Gantry::new();
    let out = g.app(&["--pid=app"], &["pids"]).ok().stdout;
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(out.starts_with("1 0 "), "{out}");
    let masked = ["open-try", "/proc/kcore"];
    assert_eq!(g.app(&["--pid=app"], &masked).stdout, g.app(&[], &masked).stdout);
    let denied = ["write", "/proc/sys/kernel/core_pattern", "x"];
    assert!(g.app(&["--pid=app"], &denied).code != 0, "/proc/sys is read-only");
    // Two apps of one pod do not see each other; commands executed in one see it alone.
    let image = g.fixture();
    let line = ["run", "--net=none", "--detach", &image, "--name=a", "--pid=app", "--", "sleep", "forever", "---"];
    let other = [image.as_str(), "--name=b", "--", "sleep", "forever"];
    let pod = pod_id(&g.run(&[&line[..], &other].concat()).ok());
    let (a, b) = (g.app_pid(&pod, "a"), g.app_pid(&pod, "b"));
    assert!(namespace(a, "pid") != namespace(b, "pid") && namespace(a, "pid") != own("pid"));
    let seen = g.run(&["exec", "--app=a", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    assert_eq!(seen.lines().count(), 2, "{seen}");
    let seen = g.run(&["exec", "--app=b", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    assert!(!seen.lines().any(|line| line.starts_with(&format!("{a} "))), "{seen}");
    // PID 1 of a namespace ignores SIGTERM without a handler.
    g.run(&["restart", "--force", &format!("{pod}/a")]).succeeded();
    assert_eq!(namespace(g.app_pid(&pod, "b"), "pid"), namespace(b, "pid"));
    stop(&g, &pod);
    g.check_invariants();
}

#[test]
fn apps_with_host_pids_end_with_their_pod() {
    let g = Gantry::new();
    let pod = g.detached(&["--pid=host", "--name=it"], &["fork-children", "3", "forever"]);
    let pid = g.app_pid(&pod, "it");
    assert_eq!(namespace(pid, "pid"), own("pid"));
    let seen = g.run(&["exec", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    assert!(seen.lines().any(|line| line.starts_with(&format!("{} ", std::process::id()))), "{seen}");
    let members = || g.run(&["top", &pod]).ok().stdout.lines().count() - 1;
    wait_for("the children", || (members() >= 4).then_some(()));
    let top = g.run(&["top", &pod]).ok().stdout;
    let pids = top.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse().ok());
    let processes: Vec<u32> = pids.collect();
    assert!(processes.contains(&pid), "{top}");
    g.run(&["pause", &pod]).succeeded();
    g.run(&["unpause", &pod]).succeeded();
    stop(&g, &pod);
    let is_alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    wait_for("the end of all processes", || (!processes.iter().any(is_alive)).then_some(()));
    g.check_invariants();
}

#[test]
fn apps_with_host_pids_are_killed_later() {
    let g = Gantry::new();
    let pod = g.detached(&["--pid=host", "--name=it"], &["sleep", "forever"]);
    let pid = g.app_pid(&pod, "it");
    let supervisor = rustix::process::Pid::from_raw(i32::try_from(g.supervisor(&pod)).unwrap()).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    let status = g.wait_state(&pod, "exited");
    assert_eq!(status["reason"], "the supervisor was killed");
    wait_for("the end of the app", || (!std::path::Path::new(&format!("/proc/{pid}/root")).exists()).then_some(()));
    g.check_invariants();
}

#[test]
fn added_apps_have_namespaces_of_their_choice() {
    let g = Gantry::new();
    let pod = g.run(&["app", "sandbox", "--net=none", "--quiet"]).ok().stdout.trim().to_owned();
    for (mode, same) in [("host", true), ("app", false), ("pod", false)] {
        g.run(&[
            "app",
            "add",
            "--quiet",
            &format!("--name={mode}"),
            &format!("--pid={mode}"),
            &pod,
            &g.fixture(),
            "--",
            "sleep",
            "forever",
        ])
        .succeeded();
        g.run(&["app", "start", &format!("{pod}/{mode}")]).succeeded();
        assert_eq!(namespace(g.app_pid(&pod, mode), "pid") == own("pid"), same, "{mode}");
    }
    g.run(&["restart", "--force", &pod]).succeeded();
    assert_eq!(app(&g.status(&pod), "host")["attempt"], 1);
    assert_eq!(namespace(g.app_pid(&pod, "host"), "pid"), own("pid"));
    g.run(&["app", "rm", "--force", &format!("{pod}/host")]).succeeded();
    stop(&g, &pod);
    g.check_invariants();
}

#[test]
fn ipc_and_host_name_are_shared_on_request() {
    let g = Gantry::new();
    let pod = g.detached(&["--ipc=host", "--uts=host", "--name=it"], &["sleep", "forever"]);
    let pid = g.app_pid(&pod, "it");
    assert_eq!((namespace(pid, "ipc"), namespace(pid, "uts")), (own("ipc"), own("uts")));
    let shm = std::fs::metadata("/dev/shm").unwrap();
    let seen = std::fs::metadata(format!("/proc/{pid}/root/dev/shm")).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((shm.dev(), shm.ino()), (seen.dev(), seen.ino()));
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "hostname"]).ok().stdout, name);
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "cat", "/etc/hostname"]).ok().stdout, name);
    assert_eq!(g.status(&pod)["hostname"], name.trim());
    stop(&g, &pod);
    let pod = g.detached(&["--name=it"], &["sleep", "forever"]);
    let pid = g.app_pid(&pod, "it");
    assert!(namespace(pid, "ipc") != own("ipc") && namespace(pid, "uts") != own("uts"));
    stop(&g, &pod);
    assert!(!g.app(&["--ipc=none"], &["ls", "/dev"]).ok().stdout.lines().any(|line| line == "shm"));
    g.check_invariants();
}

#[test]
fn contradictory_namespaces_are_refused() {
    let g = Gantry::new();
    for (flags, text) in [
        (&["--uts=host", "--hostname=x"][..], "--hostname cannot be combined with --uts=host"),
        (&["--ipc=host", "--shm-size=1Mi"], "--shm-size"),
        (&["--ipc=host", "--sysctl=kernel.shmmax=1"], "kernel.shmmax"),
        (&["--pid=host", "--systemd=always"], "systemd must be PID 1"),
        (&["--pid=container:x"], "pod, app and host"),
        (&["--ipc=container:x"], "private, none and host"),
    ] {
        let _ = g.app(flags, &["true"]).stderr_contains(&[text]);
    }
    assert!(g.list().is_empty());
    g.check_invariants();
}
