//! ListPods and InspectPod: the checks of rkt's own tests (rkt_api_service_test.go), stricter, and new ones:
//! short-lived states, damage, apps that exit before their pod.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::slice::from_ref;
use std::time::{Duration, Instant};

use gantry_proto::rkt::v1alpha::{AppState, EventFilter, EventType, KeyValue, Pod, PodFilter, PodState};
use gantry_tests::api::{Api, Served, copy_environment, data};
use gantry_tests::appc::check_pod_manifest;
use gantry_tests::{Gantry, Signal, install_program, nanos, now_ns, pod_id, wait_for};
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use serde_json::{Value, json};

/// A pod manifest of one app that runs a verb.
fn manifest(g: &Gantry, file: &str, image: &str, app: &str, verb: &[&str], more: &Value) -> String {
    let mut pod = json!({
        "version": 1,
        "apps": [{ "name": app, "image": image, "exec": "/bin/app", "args": verb, "annotations": { "app-test": "app-test" } }],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        pod[key] = value.clone();
    }
    g.write(file, &pod.to_string())
}

fn keys(pairs: &[KeyValue]) -> Vec<(&str, &str)> {
    pairs.iter().map(|pair| (pair.key.as_str(), pair.value.as_str())).collect()
}

fn state(status: &Value) -> PodState {
    match status["phase"].as_str().unwrap() {
        "embryo" => PodState::Embryo,
        "preparing" => PodState::Preparing,
        "prepared" => PodState::Prepared,
        "running" => PodState::Running,
        "aborted-prepare" => PodState::AbortedPrepare,
        "exited" => PodState::Exited,
        "garbage" => PodState::Garbage,
        "deleting" => PodState::Deleting,
        other => panic!("phase {other}"),
    }
}

/// Compares a pod of the API with the output of `status`: every field that both contain.
#[track_caller]
fn same(pod: &Pod, status: &Value) {
    let time = |key: &str| status[key].as_str().map_or(0, nanos);
    assert_eq!(pod.id, status["id"], "{status}");
    assert_eq!(pod.state(), state(status), "{status}");
    assert_eq!(pod.pid, status["pid"].as_i64().map_or(-1, |pid| i32::try_from(pid).unwrap()), "{status}");
    assert_eq!((pod.created_at, pod.started_at), (time("created"), time("started")), "{status}");
    let apps = status["apps"].as_array().unwrap();
    assert_eq!(pod.apps.len(), apps.len(), "{status}");
    for (app, want) in pod.apps.iter().zip(apps) {
        let image = app.image.as_ref().unwrap();
        assert_eq!(
            (&app.name, &image.id),
            (&want["name"].as_str().unwrap().into(), &want["image_id"].as_str().unwrap().into())
        );
        let state = match want["state"].as_str().unwrap() {
            "waiting" => AppState::Undefined,
            "running" => AppState::Running,
            _ => AppState::Exited,
        };
        assert_eq!(app.state(), state, "{want}");
        assert_eq!(i64::from(app.exit_code), want["exit_code"].as_i64().unwrap_or(0), "{want}");
    }
    let suffix = if pod.state() == PodState::Running { format!("/{}", pod.id) } else { String::new() };
    assert!(pod.cgroup.ends_with(&suffix) && pod.cgroup.is_empty() == suffix.is_empty(), "{}", pod.cgroup);
}

/// Shuts down in order: every serving process has ended before the gantry is checked.
fn end(api: Api, served: Served) {
    drop(api);
    served.end();
}

#[test]
fn info_reports_versions_and_directories() {
    let g = Gantry::new();
    // The directory is given by a detour; GetInfo returns its canonical path.
    let config = g.write("config.toml", "");
    let told = g.daemon(&["--config", &config]);
    let mut command = Command::new(told.get_program());
    let through = g.scratch().join("../data");
    command.args(told.get_args().map(|arg| if arg == g.dir() { through.as_os_str() } else { arg }));
    copy_environment(&told, &mut command);
    let served = Served::wait_ready(g.spawn_command(&mut command));
    let api = served.api();
    let info = api.info();
    assert_eq!(info.api_version, "1.0.0-alpha");
    assert_eq!(info.appc_version, "0.8.11");
    assert!(info.rkt_version.starts_with("1.30.0+gantry."), "{}", info.rkt_version);
    let flags = info.global_flags.unwrap();
    assert_eq!(flags.dir, g.dir().display().to_string());
    assert_eq!(flags.system_config_dir, g.scratch().display().to_string());
    assert_eq!((&*flags.local_config_dir, &*flags.user_config_dir, &*flags.insecure_flags), ("", "", "none"));
    assert!(!flags.trust_keys_from_https);
    assert!(api.pods().is_empty() && api.list_images(Vec::new(), true).is_empty());
    end(api, served);
}

#[test]
fn pods_match_the_command_line() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    assert!(api.pods().is_empty());

    let good = manifest(
        &g,
        "good.json",
        &image,
        "inspect",
        &["print", "hello"],
        &json!({ "annotations": { "test": "test" } }),
    );
    let bad = manifest(&g, "bad.json", &image, "inspect", &["exit", "254"], &json!({}));
    let save = |name: &str| g.scratch().join(name).display().to_string();
    let _ = g.run(&["run", "--quiet", "--uuid-file-save", &save("good"), "--pod-manifest", &good]).exits(0);
    let _ = g.run(&["run", "--quiet", "--uuid-file-save", &save("bad"), "--pod-manifest", &bad]).exits(254);
    let prepared = pod_id(&g.run(&["prepare", "--pod-manifest", &good]).ok());
    let read = |name: &str| std::fs::read_to_string(save(name)).unwrap();
    let (good, bad) = (read("good"), read("bad"));
    g.run(&["gc", "--mark-only"]).succeeded();
    let marked = now_ns();

    let pods = api.pods();
    assert_eq!(pods.len(), 3, "the one that failed and the one that never ran are listed: {pods:?}");
    assert!(pods.is_sorted_by(|a, b| a.id < b.id), "by id");
    let detailed = api.list_pods(Vec::new(), true);
    for (pod, detailed) in pods.iter().zip(&detailed) {
        same(pod, &g.status(&pod.id));
        let gc = pod.gc_marked_at;
        let fits = if pod.id == prepared { gc == 0 } else { (marked - gc).abs() < 2_000_000_000 };
        assert!(fits, "marked at {gc}, it is {marked}: {pod:?}");
        let app = &pod.apps[0];
        assert_eq!(keys(&app.annotations), [("app-test", "app-test")]);
        assert_eq!(app.exit_code, if pod.id == bad { 254 } else { 0 });
        assert_eq!(keys(&pod.annotations), if pod.id == bad { vec![] } else { vec![("test", "test")] });
        assert!(pod.networks.is_empty(), "{pod:?}");
        assert!(pod.manifest.is_empty(), "only with detail");

        let inspected = api.inspect_pod(&pod.id);
        assert_eq!(&inspected, detailed);
        let printed = g.run(&["cat-manifest", "--appc", &pod.id]).ok().json();
        assert_eq!(serde_json::from_slice::<Value>(&inspected.manifest).unwrap(), printed);
        check_pod_manifest(&printed).unwrap();
        assert_eq!(Pod { manifest: Vec::new(), ..inspected }, *pod);
    }
    let find = |id: &str| pods.iter().find(|pod| pod.id == id).unwrap();
    assert_eq!(find(&prepared).state(), PodState::Prepared);
    assert_eq!((find(&good).state(), find(&bad).state()), (PodState::Garbage, PodState::Garbage));

    // An id may be shortened and in capitals, as long as it is unique.
    let shortest = (1..=36).find(|&n| pods.iter().filter(|pod| pod.id.starts_with(&good[..n])).count() == 1).unwrap();
    for id in [&good[..shortest], &good.to_uppercase(), &good[..35]] {
        assert_eq!(api.inspect_pod(id).id, good, "{id}");
    }
    end(api, served);
}

#[test]
fn running_pods_are_found_by_cgroup() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let run = || pod_id(&g.run(&["run", "--net=host", "-d", &image, "--name=it", "--", "obey", "SIGTERM", "0"]).ok());
    let (one, two) = (run(), run());
    let pods: Vec<Pod> = [&one, &two].iter().map(|id| api.wait_state(id, PodState::Running)).collect();
    for pod in &pods {
        same(pod, &g.status(&pod.id));
        assert_eq!(pod.gc_marked_at, 0);
        // The path is correct: the app's own cgroup is below it in some hierarchy.
        let app = std::fs::read_to_string(format!("/proc/{}/cgroup", g.app_pid(&pod.id, "it"))).unwrap();
        let below = format!("{}/it", pod.cgroup);
        assert!(app.lines().any(|line| line.ends_with(&below)), "{below} is not in {app}");
    }
    let cgroup = |i: usize| pods[i].cgroup.clone();
    let exact = |paths: Vec<String>| api.pod_ids(PodFilter { cgroups: paths, ..PodFilter::default() });
    let below = |path: String| api.pod_ids(PodFilter { pod_sub_cgroups: vec![path], ..PodFilter::default() });
    let mut both = vec![one.clone(), two.clone()];
    both.sort();
    assert_eq!(exact(vec![cgroup(0)]), from_ref(&one));
    assert_eq!(exact(vec![cgroup(0), "/elsewhere".into(), cgroup(1)]), both);
    assert!(exact(vec![String::new()]).is_empty(), "all run");
    assert_eq!(below(cgroup(1)), from_ref(&two));
    assert_eq!(below(format!("{}/it", cgroup(1))), from_ref(&two));
    assert_eq!(below(format!("{}/it/deeper", cgroup(1))), from_ref(&two));
    // rkt matched these too: a path that only shares a prefix with the pod's.
    assert!(below(format!("{}0/it", cgroup(1))).is_empty());
    assert!(below("/".into()).is_empty() && exact(vec!["/".into()]).is_empty());
    assert_eq!(api.inspect_pod(&one).cgroup, cgroup(0));

    for pod in [&one, &two] {
        g.wait_log(pod, "obeying");
        g.run(&["kill", "-s", "SIGTERM", pod]).succeeded();
        let ended = api.wait_state(pod, PodState::Exited);
        assert_eq!((ended.cgroup.as_str(), ended.pid), ("", -1));
        assert_eq!(ended.networks.len(), 1, "it was in the host's network: {ended:?}");
    }
    assert_eq!(exact(vec![String::new()]), both, "every pod that does not run");
    assert!(exact(vec![cgroup(0)]).is_empty() && below(cgroup(0)).is_empty());
    end(api, served);
}

#[test]
fn apps_report_their_own_state() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let pod = pod_id(
        &g.run(&[
            "run",
            "--net=none",
            "-d",
            &image,
            "--name=short",
            "--",
            "obey",
            "SIGTERM",
            "0",
            "---",
            &image,
            "--name=bad",
            "--",
            "obey",
            "SIGTERM",
            "3",
            "---",
            &image,
            "--name=long",
            "--",
            "ignore",
            "SIGTERM",
        ])
        .ok(),
    );
    let told =
        |pod: &Pod| pod.apps.iter().map(|app| (app.name.clone(), app.state(), app.exit_code)).collect::<Vec<_>>();
    let app = |name: &str, state, code| (name.to_owned(), state, code);
    let running = api.wait_state(&pod, PodState::Running);
    let all = [("short", 0), ("bad", 0), ("long", 0)].map(|(name, code)| app(name, AppState::Running, code));
    assert_eq!(told(&running), all);
    for (name, code) in [("short", 0), ("bad", 3)] {
        wait_for("the app to be ready", || {
            g.run(&["logs", "--app", name, &pod]).ok().stdout.contains("obeying").then_some(())
        });
        g.run(&["kill", "-s", "SIGTERM", "--app", name, &pod]).succeeded();
        // The pod keeps running: the first app did not fail, and after the second one the last has its grace period.
        let shown = api.wait_pod(&pod, &format!("tell the end of {name}"), |pod| {
            pod.apps.iter().any(|app| app.name == name && app.state() == AppState::Exited)
        });
        assert_eq!(shown.state(), PodState::Running, "{shown:?}");
        assert!(told(&shown).contains(&app(name, AppState::Exited, code)), "{shown:?}");
        assert!(told(&shown).contains(&app("long", AppState::Running, 0)), "{shown:?}");
    }
    g.run(&["kill", &pod]).succeeded();
    let over = api.wait_state(&pod, PodState::Exited);
    assert_eq!(over.apps[2].exit_code, 137);
    same(&over, &g.status(&pod));
    end(api, served);
}

#[test]
fn a_damaged_pod_is_listed() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let kinds = ["deleted", "directory", "fifo", "garbage", "empty", "whole"];
    let pods = kinds.map(|_| pod_id(&g.run(&["prepare", "--net=none", &image, "--name=it", "--", "true"]).ok()));
    let whole = api.inspect_pod(&pods[5]);
    for (kind, pod) in kinds.iter().zip(&pods) {
        let file = g.dir().join("pods").join(pod).join("plan.json");
        if *kind != "whole" {
            std::fs::remove_file(&file).unwrap();
        }
        match *kind {
            "directory" => std::fs::create_dir(&file).unwrap(),
            "fifo" => rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
            "garbage" => std::fs::write(&file, b"\xff\0{").unwrap(),
            "empty" => std::fs::write(&file, b"").unwrap(),
            _ => {}
        }
    }
    let begin = Instant::now();
    for detail in [false, true] {
        let listed = api.list_pods(Vec::new(), detail);
        assert_eq!(listed.len(), kinds.len());
        for pod in listed {
            assert_eq!(pod.state(), PodState::Prepared);
            assert_eq!(pod.apps.len(), 1);
            assert_eq!(pod.apps[0].image, whole.apps[0].image, "{pod:?}");
        }
    }
    for (kind, pod) in kinds.iter().zip(&pods) {
        let manifest = api.inspect_pod(pod).manifest;
        assert_eq!(manifest.is_empty(), *kind != "whole", "{kind}: {manifest:?}");
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "nothing waits for a FIFO: {:?}", begin.elapsed());
    // The directory is missing: a row without a directory is listed too.
    std::fs::remove_dir_all(g.dir().join("pods").join(&pods[0])).unwrap();
    assert_eq!(api.pods().len(), kinds.len());
    assert_eq!(api.inspect_pod(&pods[0]).apps.len(), 1);
    for pod in &pods {
        g.run(&["rm", pod]).succeeded();
    }
    assert!(api.pods().is_empty());
    end(api, served);
}

/// Asserts that a call returns at once, even while a pod is blocked.
#[track_caller]
fn at_once<T>(what: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let answer = what();
    assert!(begin.elapsed() < Duration::from_secs(10), "it took {:?}", begin.elapsed());
    answer
}

/// The child processes of a process.
fn children(pid: u32) -> Vec<rustix::process::Pid> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.split_whitespace().map(|pid| rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

fn fifo(path: &Path) -> String {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    path.display().to_string()
}

#[test]
fn starting_pods_are_listed_without_waiting() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    // Prepared by a command that blocks on writing the id, after it inserted the row and before it wrote the files.
    let path = fifo(&g.scratch().join("id"));
    let preparing = g.spawn(&["prepare", "--net=none", "--uuid-file-save", &path, &image, "--", "true"]);
    let embryo = wait_for("the embryo", || at_once(|| api.pods()).pop());
    assert_eq!((embryo.state(), embryo.pid, embryo.started_at), (PodState::Embryo, -1, 0));
    assert_eq!(at_once(|| api.inspect_pod(&embryo.id)).state(), PodState::Embryo);
    assert!(embryo.created_at > 0 && embryo.apps.len() == 1, "{embryo:?}");
    preparing.signal(Signal::KILL);
    let _ = preparing.wait();
    // The preparing process is gone: gantryd notices without any command.
    assert_eq!(api.wait_state(&embryo.id, PodState::AbortedPrepare).pid, -1);

    // Started by a supervisor that never replies.
    let slow = g.scratch().join("slow-stage1");
    install_program(g.write("slow-stage1.sh", "#!/bin/sh\nexec sleep 600\n"), &slow);
    let start = |args: &[&str]| g.spawn_command(g.command(args).env("GANTRY_STAGE1", &slow));
    let running = start(&["run", "--net=none", "--quiet", &image, "--name=it", "--", "true"]);
    let filter = |state: PodState| vec![PodFilter { states: vec![state.into()], ..PodFilter::default() }];
    let on_way =
        wait_for("the pod that is being run", || at_once(|| api.list_pods(filter(PodState::Preparing), true)).pop());
    assert_eq!((on_way.pid, on_way.started_at, on_way.cgroup.as_str()), (-1, 0, ""));
    assert_eq!(on_way.apps[0].state(), AppState::Undefined);
    assert!(at_once(|| g.status(&on_way.id))["phase"] == "preparing");

    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    let starting = start(&["run-prepared", &prepared]);
    let log = g.dir().join("pods").join(&prepared).join("supervisor.log");
    wait_for("the start to be under way", || log.exists().then_some(()));
    assert_eq!(at_once(|| api.inspect_pod(&prepared)).state(), PodState::Prepared);
    assert_eq!(at_once(|| api.list_pods(Vec::new(), true)).len(), 3);

    for (command, pod) in [(running, &on_way.id), (starting, &prepared)] {
        let supervisors = children(command.pid());
        command.signal(Signal::KILL);
        // The supervisor outlives the process that started it, and holds the lock on the pod.
        supervisors.into_iter().for_each(|pid| rustix::process::kill_process(pid, Signal::KILL).unwrap());
        let _ = command.wait();
        let state = api.wait_pod(pod, "be nobody's", |pod| pod.state() != PodState::Preparing).state();
        assert!(matches!(state, PodState::AbortedPrepare | PodState::Prepared), "{state:?}");
    }
    end(api, served);
}

#[test]
fn pods_being_deleted_are_listed() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    // An undeletable file, even for root, keeps the deletion from completing.
    let path = g.dir().join("pods").join(&pod).join("stays");
    let file = File::create(&path).unwrap();
    let flags = ioctl_getflags(&file).unwrap();
    ioctl_setflags(&file, flags | IFlags::IMMUTABLE).unwrap();
    let refused = g.run(&["rm", &pod]);
    let seen = api.pods();
    let found = api.try_inspect_pod(&pod);
    ioctl_setflags(&file, flags).unwrap();
    assert_ne!(refused.code, 0, "{refused}");
    let state = |pod: &Pod| (pod.id.clone(), pod.state());
    assert_eq!(seen.iter().map(state).collect::<Vec<_>>(), [(pod.clone(), PodState::Deleting)]);
    let found = found.unwrap();
    assert!(found.gc_marked_at > 0 && found.pid == -1, "{found:?}");
    // The next command completes it.
    let listed = g.json(&["list", "--state", "deleting"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    g.run(&["rm", &pod]).succeeded();
    assert!(api.pods().is_empty());
    end(api, served);
}

/// rkt's own test of its API: a pod that cannot start because its network is missing is still listed.
#[test]
fn failed_starts_are_listed_with_their_reason() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter::default());
    let saved = g.scratch().join("id").display().to_string();
    let run = |flags: &[&str]| {
        let all = [&["run", "--net=none", "--uuid-file-save", &saved], flags, &[&image, "--name=it"]].concat();
        let _ =
            g.run(&[&all[..], &["--exec=/no/such/program"]].concat()).exits(127).stderr_contains(&["/no/such/program"]);
        std::fs::read_to_string(&saved).unwrap()
    };
    let pod = run(&[]);
    let shown = api.inspect_pod(&pod);
    assert_eq!((shown.state(), shown.pid, shown.started_at), (PodState::AbortedPrepare, -1, 0));
    let [annotation] = &shown.annotations[..] else { panic!("{shown:?}") };
    assert!(annotation.key == "gantry/failure" && annotation.value.contains("/no/such/program"), "{shown:?}");
    check_pod_manifest(&serde_json::from_slice(&shown.manifest).unwrap()).unwrap();
    let event = listener.until(|event| event.id == pod).pop().unwrap();
    assert_eq!(
        (event.r#type(), data(&event, "reason")),
        (EventType::PodPrepareAborted, Some(annotation.value.as_str()))
    );
    let status = g.run(&["status", &pod]).ok().stdout;
    assert!(status.contains("state=aborted-prepare") && status.contains("/no/such/program"), "{status}");
    // The pod holds no resources, and is removed like any other.
    g.run(&["gc"]).succeeded();
    assert_eq!(api.inspect_pod(&pod), shown, "until its grace period is over");
    g.run(&["rm", &pod]).succeeded();
    let removed = run(&["--rm"]);
    assert_eq!(api.try_inspect_pod(&removed).unwrap_err().code(), tonic::Code::NotFound, "--rm takes it away");
    drop(listener);
    end(api, served);
}
