//! Apps that are added, started, stopped and removed while their pod runs, by requests to the supervisor itself.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gantry_tests::{Gantry, pod_id, wait_for};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use serde_json::{Value, json};

/// Timeout of a reply, generous for a debug build on a busy machine.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A pod whose supervisor gets requests directly.
struct Pod<'a> {
    g: &'a Gantry,
    id: String,
    dir: PathBuf,
    plan: Value,
}

impl<'a> Pod<'a> {
    /// A pod with the app `main`, which sleeps.
    fn start(g: &'a Gantry, pod_flags: &[&str], app_flags: &[&str]) -> Self {
        let image = g.fixture();
        let image = &[image.as_str(), "--name=main"];
        let line = [&["run", "--net=none", "--detach"], pod_flags, image, app_flags, &["--", "sleep", "forever"]];
        let id = pod_id(&g.run(&line.concat()).ok());
        let dir = g.dir().join("pods").join(&id);
        let plan = serde_json::from_slice(&fs::read(dir.join("plan.json")).unwrap()).unwrap();
        Self { g, id, dir, plan }
    }

    #[track_caller]
    fn request(&self, request: &Value) -> Value {
        send_request(&self.dir, request).unwrap()
    }

    #[track_caller]
    fn done(&self, request: &Value) {
        assert_eq!(self.request(request), json!("done"), "{request}");
    }

    /// The kind of failure of a request.
    #[track_caller]
    fn fails(&self, request: &Value) -> String {
        let reply = self.request(request);
        let kind = reply["failed"]["kind"].as_str();
        println!("{}", reply["failed"]["message"]);
        kind.unwrap_or_else(|| panic!("{request}: {reply}")).to_owned()
    }

    /// The request to add an app like `main`, with another name and command.
    fn add(&self, name: &str, argv: &[&str]) -> Value {
        add(&self.plan, name, argv)
    }

    #[track_caller]
    fn start_app(&self, name: &str, attempt: u32) -> Value {
        let reply = self.request(&start(name, attempt));
        assert_eq!(reply["app-started"]["attempt"], attempt, "{reply}");
        reply["app-started"].clone()
    }

    fn state(&self, name: &str) -> Value {
        let status = self.request(&json!("status"));
        let apps = status["status"]["apps"].as_array().unwrap().clone();
        apps.into_iter().find(|app| app["app"] == name).map_or(Value::Null, |app| app["state"].clone())
    }

    fn log(&self, name: &str, attempt: u32) -> String {
        fs::read_to_string(self.dir.join(format!("logs/{name}/{attempt}.log"))).unwrap_or_default()
    }

    /// The facts of the journal about an app, without their details.
    fn facts(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("journal")).unwrap();
        let records = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let fact = |record: Value| {
            let (fact, details) = record["fact"].as_object()?.iter().next()?;
            (details["app"] == name).then(|| fact.clone())
        };
        records.filter_map(fact).collect()
    }

    /// What the supervisor holds: descriptors, lines of mountinfo, cgroups of the pod, entries of the pod directory.
    fn holdings(&self) -> (usize, usize, Vec<PathBuf>, Vec<PathBuf>) {
        let proc = PathBuf::from(format!("/proc/{}", self.g.supervisor(&self.id)));
        let fds = fs::read_dir(proc.join("fd")).unwrap().count();
        let mounts = fs::read_to_string(proc.join("mountinfo")).unwrap().lines().count();
        let mut cgroups = Vec::new();
        find_dirs(Path::new("/sys/fs/cgroup"), 5, &mut |dir| {
            if dir.parent().is_some_and(|parent| parent.ends_with(&self.id)) {
                cgroups.push(dir.to_owned());
            }
        });
        cgroups.sort();
        let mut entries = Vec::new();
        for dir in ["apps", "logs", "volumes"] {
            let dir = fs::read_dir(self.dir.join(dir)).into_iter().flatten();
            entries.extend(dir.map(|entry| entry.unwrap().path()));
        }
        entries.sort();
        (fds, mounts, cgroups, entries)
    }

    /// The children of the supervisor, zombies included.
    fn children(&self) -> usize {
        let supervisor = self.g.supervisor(&self.id);
        let text = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        text.split_whitespace().count()
    }

    /// Waits until the supervisor has given back the pages of its start, which it does once: from then on it waits
    /// without a timeout.
    fn wait_until_idle(&self) {
        /// ppoll(2) on x86-64; its third argument is the timeout.
        const PPOLL: &str = "271";
        let path = format!("/proc/{}/syscall", self.g.supervisor(&self.id));
        wait_for("the supervisor to be idle", || {
            let call = fs::read_to_string(&path).unwrap();
            let fields: Vec<_> = call.split_whitespace().collect();
            matches!(fields[..], [PPOLL, _, _, "0x0", ..]).then_some(())
        });
    }

    /// The supervisor's resident memory that is its own, in kilobytes.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.g.supervisor(&self.id));
        let text = fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

/// Sends a request to a pod; `None` if its supervisor closed the connection or has exited.
fn send_request(dir: &Path, request: &Value) -> Option<Value> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(REPLY_TIMEOUT)).unwrap();
    set_socket_timeout(&socket, Timeout::Send, Some(REPLY_TIMEOUT)).unwrap();
    connect(&socket, &SocketAddrUnix::new(dir.join("control")).unwrap()).ok()?;
    send(&socket, request.to_string().as_bytes(), SendFlags::NOSIGNAL).ok()?;
    receive(&socket, request)
}

fn add(plan: &Value, name: &str, argv: &[&str]) -> Value {
    let mut app = plan["apps"][0].clone();
    app["name"] = json!(name);
    app["argv"] = json!([&["/bin/app"], argv].concat());
    json!({ "add-app": { "app": app } })
}

fn receive(socket: &OwnedFd, request: &Value) -> Option<Value> {
    let mut bytes = vec![0u8; 128 << 10];
    match recv(socket, &mut bytes[..], RecvFlags::empty()) {
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => None,
        Ok((length, _)) => Some(serde_json::from_slice(&bytes[..length]).unwrap()),
        Err(error) => panic!("no reply to {request}: {error}"),
    }
}

fn start(app: &str, attempt: u32) -> Value {
    json!({ "start-app": { "app": app, "attempt": attempt } })
}

fn stop(app: &str, grace_ms: u64) -> Value {
    json!({ "stop-app": { "app": app, "grace_ms": grace_ms } })
}

fn restart(app: &str, attempt: u32) -> Value {
    json!({ "restart-app": { "app": app, "attempt": attempt, "grace_ms": 0 } })
}

fn remove(app: &str) -> Value {
    json!({ "remove-app": { "app": app } })
}

fn find_dirs(dir: &Path, depth: usize, visit: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path());
            if depth > 0 {
                find_dirs(&entry.path(), depth - 1, visit);
            }
        }
    }
}

#[test]
fn an_app_is_added_started_stopped_and_removed() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &[]);
    pod.done(&pod.add("two", &["seq", "print", "hello", "--", "write", "/file", "x", "--", "sleep", "forever"]));
    assert_eq!(pod.state("two"), "created");
    assert_eq!(pod.fails(&pod.add("two", &["true"])), "already-exists");
    let started = pod.start_app("two", 0);
    wait_for("the app's output", || pod.log("two", 0).contains("hello").then_some(()));
    assert_eq!(pod.request(&start("two", 0))["app-started"], started, "a repeated request");
    assert_eq!(pod.state("two")["running"], started);
    assert_eq!(pod.fails(&start("two", 1)), "refused", "it runs");
    assert_eq!(pod.fails(&remove("two")), "refused", "it runs");
    pod.done(&stop("two", 5000));
    assert_eq!(pod.state("two")["exited"]["how"], json!({ "signal": 15 }));
    assert_eq!(pod.fails(&start("two", 0)), "refused", "the attempt has run");
    // Its files are those of the last attempt.
    let again = pod.start_app("two", 7);
    assert_ne!(again["pid"], started["pid"]);
    wait_for("the app's output", || pod.log("two", 7).contains("hello").then_some(()));
    assert_eq!(pod.request(&restart("two", 9))["app-started"]["attempt"], 9);
    pod.done(&stop("two", 0));
    pod.done(&stop("two", 0));
    pod.done(&remove("two"));
    pod.done(&remove("two"));
    assert_eq!(pod.state("two"), Value::Null);
    let once = ["app-started", "app-stopping", "app-exited"];
    let facts = [&["app-created"][..], &once, &once, &once, &["app-removed"]].concat();
    assert_eq!(pod.facts("two"), facts);
    // The name is free, and nothing of the first app is left.
    pod.done(&pod.add("two", &["ls", "/"]));
    pod.start_app("two", 0);
    wait_for("the app's exit", || (!pod.state("two")["exited"].is_null()).then_some(()));
    assert!(pod.log("two", 0).contains("bin") && !pod.log("two", 0).contains("file"), "{}", pod.log("two", 0));
    assert_eq!(fs::read_dir(pod.dir.join("logs/two")).unwrap().count(), 1);
    g.run(&["stop", &pod.id]).succeeded();
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

#[test]
fn an_app_that_cannot_be_created_leaves_nothing() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &[]);
    let before = pod.holdings();
    let with = |key: &str, value: Value| {
        let mut request = pod.add("bad", &["true"]);
        request["add-app"]["app"][key] = value;
        request
    };
    for (request, kind) in [
        (with("argv", json!(["/no/such/program"])), "command-not-found"),
        (with("argv", json!(["/etc"])), "command-not-executable"),
        (with("user", json!("nobody-here")), "invalid"),
        (with("name", json!("../x")), "invalid"),
        (with("layers", json!([])), "invalid"),
        (with("layers", json!(["missing"])), "not-found"),
        (with("cwd", json!("/proc/self")), "invalid"),
        (with("mounts", json!([{ "volume": "missing", "target": "/x", "read_only": false }])), "invalid"),
        (start("bad", 0), "not-found"),
        (stop("bad", 0), "not-found"),
    ] {
        assert_eq!(pod.fails(&request), kind, "{request}");
    }
    wait_for("nothing to be left", || (pod.holdings() == before).then_some(()));
    let unknown = pod.request(&json!({ "from-the-future": {} }));
    assert_eq!(unknown["failed"]["kind"], "unavailable", "{unknown}");
    pod.done(&with("name", json!("good")));
    pod.start_app("good", 0);
    // The pod ends with its apps, as ever, and an app that was stopped has not failed.
    pod.done(&stop("main", 0));
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

/// A pod whose only app is restarted must not end.
#[test]
fn the_last_app_of_a_pod_is_restarted() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &["--pids-limit=2"]);
    for attempt in 1..4 {
        assert_eq!(pod.request(&restart("main", attempt))["app-started"]["attempt"], attempt);
    }
    assert!(pod.state("main")["running"].is_object());
    pod.done(&stop("main", 0));
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

#[test]
fn adding_and_removing_leaves_nothing() {
    let g = Gantry::new();
    let host = g.scratch().join("host");
    fs::create_dir(&host).unwrap();
    let volume = format!("--volume=v,kind=host,source={}", host.display());
    let pod = Pod::start(&g, &[&volume], &["--mount=volume=v,target=/data"]);
    let cycle = |round: u32| {
        let name = format!("app-{}", round % 3);
        let mut request = pod.add(&name, &["sleep", "forever"]);
        request["add-app"]["volumes"] = json!([{
            "name": format!("own-{round}"),
            "kind": { "empty": { "mode": 0o755, "uid": 0, "gid": 0 } },
            "read_only": false,
        }]);
        let mounts = request["add-app"]["app"]["mounts"].as_array_mut().unwrap();
        mounts.push(json!({ "volume": format!("own-{round}"), "target": "/own", "read_only": false }));
        pod.done(&request);
        if round.is_multiple_of(2) {
            pod.start_app(&name, 0);
            pod.done(&stop(&name, 0));
        }
        pod.done(&remove(&name));
    };
    pod.wait_until_idle();
    (0..20).for_each(cycle);
    let settle = |what: &str| wait_for(what, || (pod.children() == 2).then_some(()));
    settle("the helpers to exit");
    let (before, memory) = (pod.holdings(), pod.memory());
    (0..100).for_each(cycle);
    settle("the helpers to exit");
    assert_eq!(pod.holdings(), before);
    let now = pod.memory();
    assert!(now * 10 <= memory * 11 + 200, "{memory} kB before, {now} kB after");
    g.run(&["stop", "--force", &pod.id]).succeeded();
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

/// The process that deletes the files of a removed app is killed when its pod ends. What it leaves does not get in the
/// way of other removals, and the next start deletes it.
#[test]
fn leftovers_of_removals_do_not_return() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &[]);
    let apps = pod.dir.join("apps");
    let leave = || {
        for number in 0..4 {
            let leftover = apps.join(format!(".removed-{number}"));
            for dir in ["layers/upper", "logs", "volume-0"] {
                fs::create_dir_all(leftover.join(dir)).unwrap();
                fs::write(leftover.join(dir).join("file"), "x").unwrap();
            }
        }
    };
    leave();
    for round in 0..2 {
        pod.done(&pod.add("two", &["seq", "ls", "/", "--", "write", "/file", "x"]));
        pod.start_app("two", 0);
        wait_for("the app's exit", || (!pod.state("two")["exited"].is_null()).then_some(()));
        let log = pod.log("two", 0);
        assert!(log.contains("bin") && !log.contains("file"), "round {round}: {log}");
        pod.done(&remove("two"));
        assert!(!apps.join("two").exists() && !pod.dir.join("logs/two").exists());
    }
    g.run(&["stop", "--force", &pod.id]).succeeded();
    g.wait_state(&pod.id, "exited");
    leave();
    g.run(&["start", &pod.id]).succeeded();
    wait_for("the leftovers to be deleted", || {
        let names = fs::read_dir(&apps).unwrap().map(|entry| entry.unwrap().file_name());
        (names.collect::<Vec<_>>() == ["main"]).then_some(())
    });
    g.run(&["stop", "--force", &pod.id]).succeeded();
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

/// A volume is mounted inside a volume whose directories and links are exchanged all the time. It must never be mounted
/// elsewhere, and no directory may be made outside of the volume.
#[test]
fn exchanged_links_do_not_move_a_mount() {
    let g = Gantry::new();
    let (host, inner) = (g.scratch().join("host"), g.scratch().join("inner"));
    for dir in [&host, &inner] {
        fs::create_dir(dir).unwrap();
    }
    fs::create_dir_all(host.join("a/b")).unwrap();
    fs::write(inner.join("canary"), "").unwrap();
    symlink("/proc", host.join("link")).unwrap();
    let outer = format!("--volume=v,kind=host,source={}", host.display());
    let other = format!("--volume=w,kind=host,source={}", inner.display());
    let mounts = ["--mount=volume=v,target=/data", "--mount=volume=w,target=/data/a/b"];
    let pod = Pod::start(&g, &[&outer, &other], &mounts);
    let (mut added, mut refused) = (0, 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                renameat_with(CWD, host.join("a"), CWD, host.join("link"), RenameFlags::EXCHANGE).unwrap();
            }
        });
        let adds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..200 {
                let reply = pod.request(&pod.add("probe", &["mounts"]));
                if reply == "done" {
                    added += 1;
                    pod.start_app("probe", 0);
                    wait_for("the exit", || (!pod.state("probe")["exited"].is_null()).then_some(()));
                    check_mounts(&pod.log("probe", 0));
                    pod.done(&remove("probe"));
                } else {
                    refused += 1;
                    println!("{}", reply["failed"]["message"]);
                    assert_ne!(reply["failed"]["kind"], "timed-out", "{reply}");
                }
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        adds.unwrap();
    });
    println!("{added} added, {refused} refused");
    // Refusing is right as long as the path does lead to /proc, which it does for long where the loop gets no CPU time.
    assert!(added > 0, "none was added");
    assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "made in the inner volume");
    g.run(&["stop", "--force", &pod.id]).succeeded();
    g.wait_state(&pod.id, "exited");
    g.check_invariants();
}

/// The mounts of an app: /proc is one procfs, and the inner volume is inside the outer one.
#[track_caller]
fn check_mounts(log: &str) {
    let lines = log.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
    for line in lines {
        let fields: Vec<_> = line.split(' ').collect();
        let (source, target) = (fields[3], fields[4]);
        if source.ends_with("/scratch/inner") {
            assert!(target.starts_with("/data/"), "{line}");
        }
        assert!(target != "/proc" || line.contains(" - proc "), "{line}");
    }
}

/// Requests about a few apps from many clients at once, while the pod is stopped.
#[test]
fn a_storm_of_requests_ends_with_the_pod() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &[]);
    std::thread::scope(|scope| {
        for client in 0..8u32 {
            let (dir, plan) = (&pod.dir, &pod.plan);
            scope.spawn(move || {
                for round in 0.. {
                    let app = format!("app-{}", (client + round) % 3);
                    let request = match (client * 7 + round * 5) % 6 {
                        0 | 1 => add(plan, &app, &["sleep", "forever"]),
                        2 => start(&app, round),
                        3 => restart(&app, round),
                        4 => stop(&app, u64::from(round % 2) * 50),
                        _ => remove(&app),
                    };
                    if send_request(dir, &request).is_none() {
                        return;
                    }
                }
            });
        }
        let journal = || fs::read_to_string(pod.dir.join("journal")).unwrap();
        wait_for("the apps to change", || (journal().lines().count() > 200).then_some(()));
        g.run(&["stop", &pod.id]).succeeded();
    });
    g.wait_state(&pod.id, "exited");
    let mut journal = String::new();
    fs::File::open(pod.dir.join("journal")).unwrap().read_to_string(&mut journal).unwrap();
    assert!(journal.lines().last().unwrap().contains("ended"), "{journal}");
    g.check_invariants();
}

/// The new limits in the events of changes of `main`.
fn updates(g: &Gantry, pod: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok().stdout;
    let events = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let of_updates = events.filter(|event| event["type"] == "app-updated" && event["name"] == "main");
    of_updates.map(|event| event["data"]["pids"].to_string()).collect()
}

/// A command that is killed when the supervisor has changed the limits leaves its event to the next command. No event
/// is written twice, also after the pod was started again.
#[test]
fn each_change_of_limits_is_one_event() {
    let g = Gantry::new();
    let pod = Pod::start(&g, &[], &[]);
    let mut old = pod.plan["apps"][0]["limits"].clone();
    let mut want = Vec::new();
    for first in [10, 20] {
        // Before the changes: `status` reconciles.
        let supervisor = rustix::process::Pid::from_raw(g.supervisor(&pod.id).cast_signed()).unwrap();
        for pids in first..first + 2 {
            let mut new = old.clone();
            new["pids"] = json!(pids);
            let reply = pod.request(&json!({ "update-limits": { "app": "main", "old": old, "new": new } }));
            assert_eq!(reply, json!({ "limits-updated": { "warnings": [] } }));
            old = new;
            want.push(pids.to_string());
        }
        // The row is behind, of a running pod or of one whose supervisor was killed.
        if first == 20 {
            rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
            g.wait_state(&pod.id, "exited");
        }
        g.run(&["list"]).succeeded();
        assert_eq!(updates(&g, &pod.id), want);
        g.run(&["list"]).succeeded();
        assert_eq!(updates(&g, &pod.id), want, "again");
        if first == 10 {
            g.run(&["stop", "--force", &pod.id]).succeeded();
            g.run(&["start", &pod.id]).succeeded();
        }
    }
}
