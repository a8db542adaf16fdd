//! Pods below the cgroup parent of their choice.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::path::PathBuf;

use gantry_tests::{Gantry, Signal, app, pod_id};
use rustix::process::{Pid, kill_process};

/// A cgroup of a test's own, in every hierarchy in which a pod has made it. Removed at the end.
struct TestCgroup(String);

impl TestCgroup {
    fn new(name: &str) -> Self {
        Self(format!("/gantry-test-{name}-{}", std::process::id()))
    }

    /// Its directories.
    fn dirs(&self) -> Vec<PathBuf> {
        let v1 = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        let roots = v1.chain([PathBuf::from("/sys/fs/cgroup")]);
        roots.map(|root| root.join(self.0.trim_start_matches('/'))).filter(|dir| dir.is_dir()).collect()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        for dir in self.dirs() {
            for child in fs::read_dir(&dir).into_iter().flatten().flatten().filter(|child| child.path().is_dir()) {
                let _reported_by_the_parent = fs::remove_dir(child.path());
            }
            if let Err(error) = fs::remove_dir(&dir)
                && !std::thread::panicking()
            {
                panic!("{}: {error}", dir.display());
            }
        }
    }
}

/// The paths of a process's cgroups.
fn cgroups_of(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    text.lines().map(|line| line.splitn(3, ':').nth(2).unwrap().to_owned()).collect()
}

/// Sets the parent of all pods.
fn configure_parent(g: &Gantry, parent: &TestCgroup) {
    let path = g.dir().with_file_name("config.toml");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let others: Vec<&str> = text.lines().filter(|line| !line.starts_with("cgroup-parent")).collect();
    fs::write(path, format!("cgroup-parent = '{}'\n{}\n", parent.0, others.join("\n"))).unwrap();
}

fn kill_supervisor(g: &Gantry, pod: &str) {
    let pid = i32::try_from(g.supervisor(pod)).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_pod_runs_below_its_cgroup_parent() {
    let (g, own) = (Gantry::new(), TestCgroup::new("own"));
    let parent = format!("{}/batch", own.0);
    let pod = g.detached(&[&format!("--cgroup-parent={parent}"), "--name=it", "--memory=64Mi"], &["sleep", "forever"]);
    let path = format!("{parent}/{pod}");
    let status = g.status(&pod);
    assert_eq!(status["cgroup"], *path, "{status}");
    let cgroups = cgroups_of(g.app_pid(&pod, "it"));
    assert!(cgroups.contains(&format!("{path}/it")), "{cgroups:?}");
    assert!(!cgroups.iter().any(|one| one.starts_with("/gantry/")), "{cgroups:?}");
    let inspected = g.json(&["inspect", &pod]);
    assert_eq!(inspected["cgroup"], *path);
    let text = g.run(&["inspect", &pod]).ok().stdout;
    assert_eq!(text.lines().filter(|line| line.starts_with("  \"cgroup\":")).count(), 1, "{text}");
    assert_eq!(inspected["manifest"]["cgroup_parent"], *parent);
    let stats = g.json(&["stats", "--no-stream", "-o", "json", &pod]);
    assert!(stats.to_string().contains("\"memory\""), "{stats}");
    g.run(&["update", "--memory=96Mi", &format!("{pod}/it")]).succeeded();
    assert_eq!(g.run(&["exec", &pod, "--", "/bin/app", "print", "inside"]).ok().stdout, "inside\n");
    g.run(&["cp", &format!("{pod}:/bin/app"), &g.scratch().join("copy").display().to_string()]).succeeded();
    g.run(&["stop", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    g.check_invariants();
    assert!(!own.dirs().is_empty(), "the parent is kept, for it may have limits");
    // A restart of the pod takes place below the same parent.
    g.run(&["start", &pod]).succeeded();
    assert!(cgroups_of(g.app_pid(&pod, "it")).contains(&format!("{path}/it")));
    g.run(&["stop", "--force", &pod]).succeeded();
}

#[test]
fn pods_keep_their_cgroup_after_a_configuration_change() {
    let (g, before, after) = (Gantry::new(), TestCgroup::new("before"), TestCgroup::new("after"));
    configure_parent(&g, &before);
    let [stopped, killed, again] = std::array::from_fn(|_| g.detached(&["--name=it"], &["sleep", "forever"]));
    configure_parent(&g, &after);
    assert_eq!(g.status(&stopped)["cgroup"], format!("{}/{stopped}", before.0));
    let stats = g.json(&["stats", "--no-stream", "-o", "json", &stopped]);
    assert!(stats.to_string().contains("\"memory\""), "{stats}");
    assert!(g.run(&["top", &stopped]).ok().stdout.contains("sleep"));
    let doctor = g.run(&["doctor"]).stdout;
    assert!(!doctor.contains(&stopped) && !doctor.contains(&killed), "{doctor}");
    g.run(&["stop", &stopped]).succeeded();
    kill_supervisor(&g, &killed);
    g.wait_state(&killed, "exited");
    g.run(&["stop", "--force", &again]).succeeded();
    g.wait_state(&again, "exited");
    g.check_invariants();
    // The plan of a pod has its parent, which an exited pod keeps as well.
    g.run(&["start", &again]).succeeded();
    let cgroups = cgroups_of(g.app_pid(&again, "it"));
    assert!(cgroups.contains(&format!("{}/{again}/it", before.0)), "{cgroups:?}");
    g.run(&["stop", "--force", &again]).succeeded();
    g.wait_state(&again, "exited");
}

#[test]
fn gc_removes_the_empty_parent() {
    let (g, own) = (Gantry::new(), TestCgroup::new("empty"));
    configure_parent(&g, &own);
    let pod = g.detached(&["--name=it"], &["sleep", "forever"]);
    g.run(&["gc"]).succeeded();
    assert!(own.dirs().iter().any(|dir| dir.join(&pod).is_dir()), "the pod runs");
    g.run(&["rm", "--force", &pod]).succeeded();
    assert!(!own.dirs().is_empty(), "the next pod needs it");
    g.run(&["gc"]).succeeded();
    assert!(own.dirs().is_empty());
    assert_eq!(g.app(&["--rm"], &["print", "inside"]).ok().stdout, "inside\n");
}

#[test]
fn killed_supervisors_leave_no_cgroup_below_a_parent() {
    let (g, own) = (Gantry::new(), TestCgroup::new("killed"));
    let pod = g.detached(&[&format!("--cgroup-parent={}", own.0), "--name=it"], &["fork-children", "3", "forever"]);
    assert!(own.dirs().iter().any(|dir| dir.join(&pod).is_dir()));
    kill_supervisor(&g, &pod);
    g.wait_state(&pod, "exited");
    g.check_invariants();
    assert!(!own.dirs().is_empty() && !own.dirs().iter().any(|dir| dir.join(&pod).exists()));
    // The operator's cgroup is not removed with the pod.
    g.run(&["rm", &pod]).succeeded();
    assert!(!own.dirs().is_empty());
}

#[test]
fn prepared_pods_and_sandboxes_have_a_cgroup_parent() {
    let (g, own) = (Gantry::new(), TestCgroup::new("sandbox"));
    let (image, flag) = (g.fixture(), format!("--cgroup-parent={}", own.0));
    let prepared = pod_id(&g.run(&["prepare", &flag, &image, "--name=it", "--", "sleep", "forever"]).ok());
    assert_eq!(g.status(&prepared)["cgroup"], format!("{}/{prepared}", own.0));
    g.run(&["start", &prepared]).succeeded();
    assert!(cgroups_of(g.app_pid(&prepared, "it")).contains(&format!("{}/{prepared}/it", own.0)));
    let sandbox = pod_id(&g.run(&["app", "sandbox", "--net=none", &flag]).ok());
    g.run(&["app", "add", &sandbox, &image, "--name=late", "--", "sleep", "forever"]).succeeded();
    g.run(&["app", "start", &sandbox, "late"]).succeeded();
    let pid = g.app_pid(&sandbox, "late");
    assert!(cgroups_of(pid).contains(&format!("{}/{sandbox}/late", own.0)), "{:?}", cgroups_of(pid));
    assert_eq!(app(&g.status(&sandbox), "late")["state"], "running");
    // A manifest has the parent as well.
    let manifest = g.run(&["cat-manifest", &prepared]).ok().stdout;
    let file = g.scratch().join("pod.json");
    fs::write(&file, manifest).unwrap();
    let line = ["prepare", &format!("--pod-manifest={}", file.display())];
    let copy = pod_id(&g.run(&line).ok());
    assert_eq!(g.status(&copy)["cgroup"], format!("{}/{copy}", own.0));
    for pod in [&prepared, &sandbox] {
        g.run(&["stop", "--force", pod]).succeeded();
        g.wait_state(pod, "exited");
    }
    g.check_invariants();
}

#[test]
fn invalid_cgroup_parents_are_refused() {
    let g = Gantry::new();
    let image = g.fixture();
    for parent in ["", "/", "batch", "/a/../b", "/a//b"] {
        let out = g.run(&["run", "--net=none", &format!("--cgroup-parent={parent}"), &image, "--", "print", "x"]);
        assert!(out.code != 0 && out.stderr.contains("cgroup parent"), "{parent:?}: {} {}", out.code, out.stderr);
    }
    assert!(g.list().is_empty());
}

/// The tests' hosts have no systemd, or cgroup v1 beside v2; tests/vm/scopes tests the rest.
#[test]
fn scopes_are_refused_without_systemd_and_v2() {
    let g = Gantry::new();
    let image = g.fixture();
    for flag in ["--cgroup-manager=systemd", "--cgroup-parent=gantry.slice"] {
        let out = g.run(&["run", "--net=none", flag, &image, "--", "print", "x"]);
        let _ = out.exits(125).stderr_contains(&["pods in gantry.slice need", "use --cgroup-manager=cgroupfs"]);
    }
    let both = ["--cgroup-manager=systemd", "--cgroup-parent=/gantry"];
    let _ = g.app(&both, &["print", "x"]).exits(125).stderr_contains(&["systemd needs a slice"]);
    let _ = g.app(&["--cgroup-manager=docker"], &["print", "x"]).exits(125).stderr_contains(&["neither cgroupfs nor"]);
    assert!(g.list().is_empty());
    let path = g.dir().with_file_name("config.toml");
    let text = fs::read_to_string(&path).unwrap_or_default();
    fs::write(&path, format!("cgroup-manager = 'systemd'\n{text}")).unwrap();
    let doctor = g.run(&["doctor"]);
    assert!(doctor.stdout.contains("pods in gantry.slice need"), "{}", doctor.stdout);
    // For one pod.
    assert_eq!(g.app(&["--cgroup-manager=cgroupfs"], &["print", "inside"]).ok().stdout, "inside\n");
    // The last doctor is to find nothing.
    fs::write(&path, text).unwrap();
}
