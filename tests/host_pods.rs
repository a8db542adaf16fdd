//! Pods without an image, whose apps run in the host's namespaces and file system (`run --stage1=host`).

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_tests::{Gantry, Out, Signal, pod_id, wait_for};
use rustix::process::{Pid, kill_process};

fn run(g: &Gantry, flags: &[&str], command: &[&str]) -> Out {
    g.run(&[&["run", "--stage1=host"], flags, &["--"], command].concat())
}

fn detached(g: &Gantry, flags: &[&str], command: &[&str]) -> String {
    pod_id(&run(g, &[&["--detach"], flags].concat(), command).ok())
}

fn namespace(pid: &str, kind: &str) -> String {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap().display().to_string()
}

#[test]
fn apps_share_the_namespaces_of_the_host() {
    let g = Gantry::new();
    let pod = detached(&g, &["--name=it"], &["sleep", "1000"]);
    let pid = g.app_pid(&pod, "it").to_string();
    for kind in ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"] {
        assert_eq!(namespace(&pid, kind), namespace("self", kind), "{kind}");
    }
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/root")).unwrap().to_str(), Some("/"));
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap().to_str(), Some("/"));
    let status = g.run(&["status", &pod]).ok().stdout;
    assert!(status.contains("stage1=host\nconfined=false\n"), "{status}");
    let status = g.run(&["status", "-o", "json", &pod]).ok().stdout;
    assert!(status.contains(r#""flavor":"host""#) && status.contains(r#""image_id":null"#), "{status}");
    assert!(g.run(&["list"]).ok().stdout.contains("host"), "the list has the pod");
    // Commands executed in the app see the host, too.
    let seen = g.run(&["exec", &pod, "--", "readlink", "/proc/self/ns/mnt"]).ok().stdout;
    assert_eq!(seen.trim(), namespace("self", "mnt"));
    g.run(&["stop", "--force", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    g.run(&["rm", &pod]).succeeded();
    g.check_invariants();
}

#[test]
fn apps_inherit_no_environment() {
    let g = Gantry::new();
    let out = run(&g, &["--env=A=b"], &["env"]).ok().stdout;
    let mut names: Vec<&str> = out.lines().map(|line| line.split('=').next().unwrap_or(line)).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "HOME", "PATH"], "{out}");
    assert_eq!(run(&g, &["--user=nobody", "--working-dir=/tmp"], &["pwd"]).ok().stdout, "/tmp\n");
    assert_eq!(run(&g, &["--user=nobody"], &["id", "-un"]).ok().stdout, "nobody\n");
    let caps = run(&g, &["--user=nobody"], &["grep", "CapEff", "/proc/self/status"]).ok().stdout;
    assert!(caps.ends_with("0000000000000000\n"), "{caps}");
    // The last one is that of the directory.
    let fds = run(&g, &[], &["ls", "/proc/self/fd"]).ok().stdout;
    assert_eq!(fds, "0\n1\n2\n3\n", "no descriptor of the supervisor is inherited");
    g.check_invariants();
}

#[test]
fn ends_are_reported_as_those_of_containers() {
    let g = Gantry::new();
    assert_eq!(run(&g, &[], &["sh", "-c", "exit 7"]).code, 7);
    assert_eq!(run(&g, &[], &["sh", "-c", "kill -TERM $$"]).code, 128 + 15);
    let none = run(&g, &[], &["/no/such/program"]);
    assert_eq!(none.code, 127, "{}", none.stderr);
    let none = run(&g, &[], &["no-such-program"]);
    assert_eq!(none.code, 127, "{}", none.stderr);
    assert_eq!(run(&g, &[], &["/etc/passwd"]).code, 126);
    assert!(run(&g, &["--working-dir=/no/such/directory"], &["true"]).code != 0);
    g.check_invariants();
}

#[test]
fn settings_of_containers_are_refused() {
    let g = Gantry::new();
    for flag in ["--net=none", "--hostname=x", "--readonly-rootfs", "--tmpfs=/x", "--privileged", "--pid=host", "-t"] {
        let refused = run(&g, &[flag], &["true"]);
        assert!(refused.code != 0 && refused.stderr.contains("--stage1=host"), "{flag}: {}", refused.stderr);
    }
    let refused = g.run(&["run", "--stage1=host", "busybox", "--", "true"]);
    assert!(refused.stderr.contains("has no image"), "{}", refused.stderr);
    let refused = g.run(&["run", "--stage1=kvm", "--", "true"]);
    assert!(refused.stderr.contains("neither container nor host"), "{}", refused.stderr);
    assert_eq!(g.run(&["list", "--no-legend"]).ok().stdout, "", "nothing was made");
}

#[test]
fn background_processes_end_with_the_pod() {
    let g = Gantry::new();
    let out = run(&g, &[], &["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"]).ok().stdout;
    let left = format!("/proc/{}", out.trim());
    wait_for("the end of the process", || (!std::path::Path::new(&left).exists()).then_some(()));
    g.check_invariants();
}

#[test]
fn a_killed_supervisor_leaves_no_process() {
    let g = Gantry::new();
    let pod = detached(&g, &["--name=it"], &["sh", "-c", "setsid sleep 1000 & exec sleep 1000"]);
    let pid = g.app_pid(&pod, "it");
    let supervisor = i32::try_from(g.status(&pod)["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    g.wait_state(&pod, "exited");
    let _ = g.run(&["app", "rm", &format!("{pod}/it")]).exits(125).stderr_contains(&["host's file system"]);
    wait_for("the end of the app", || (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    g.check_invariants();
}

#[test]
fn apps_are_stopped_restarted_and_logged() {
    let g = Gantry::new();
    let pod = detached(&g, &["--name=it", "--restart=on-failure:1"], &["sh", "-c", "echo started; exit 3"]);
    g.wait_state(&pod, "exited");
    let logs = g.run(&["logs", &pod]).ok().stdout;
    assert_eq!(logs.matches("started").count(), 2, "{logs}");
    // An exited pod starts again.
    g.run(&["start", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let pod = detached(&g, &["--name=it"], &["sh", "-c", script]);
    wait_for("the trap", || g.run(&["logs", &pod]).ok().stdout.contains("ready").then_some(()));
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    assert!(g.run(&["status", &pod]).ok().stdout.contains("app-it=5"));
    g.check_invariants();
}

#[test]
fn host_pods_have_no_files_of_their_own() {
    let g = Gantry::new();
    let pod = detached(&g, &["--name=it"], &["sleep", "1000"]);
    let file = g.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let (from, to) = (format!("{pod}:/etc/passwd"), format!("{pod}:/tmp/"));
    let copied = g.scratch().join("copied");
    let (file, copied) = (file.display().to_string(), copied.display().to_string());
    let why = ["was started with --stage1=host", "no files of its own"];
    for command in [&["cp", &from, &copied][..], &["cp", &file, &to], &["diff", &pod]] {
        let _refused = g.run(command).exits(125).stderr_contains(&why);
    }
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let _refused = g.run(&["cp", &from, &copied]).exits(125).stderr_contains(&why);
    g.run(&["rm", &pod]).succeeded();
    g.check_invariants();
}
