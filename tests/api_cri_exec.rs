//! ExecSync, logs, resources and PID namespaces of containers of the Kubernetes CRI.

use gantry_tests::cri::{self, Sandbox, call, failure, serve};
use gantry_tests::python::spawn_script;
use gantry_tests::talos::decode_base64;
use gantry_tests::{Gantry, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Runs a program of the fixture in a container.
#[track_caller]
fn exec(address: &str, id: &str, args: &[&str]) -> Value {
    let cmd: Vec<&str> = ["/bin/app"].iter().chain(args).copied().collect();
    call(address, "ExecSync", &json!({ "container_id": id, "cmd": cmd, "timeout": 30 }))
}

fn text(reply: &Value, stream: &str) -> String {
    let bytes = decode_base64(reply[stream].as_str().unwrap_or_default());
    String::from_utf8(bytes).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn programs_have_output_and_exit_codes() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "forever"]);
    let reply = exec(&address, &id, &["seq", "print", "hello", "--", "eprint", "oh", "--", "exit", "7"]);
    assert_eq!((text(&reply, "stdout"), text(&reply, "stderr")), ("hello\n".into(), "oh\n".into()));
    assert_eq!(reply["exit_code"], 7);
    assert_eq!(exec(&address, &id, &["echo-stdin"]), json!({}), "stdin is empty");
    // More than a kubelet receives.
    let reply = exec(&address, &id, &["flood", &(20 << 20).to_string()]);
    assert_eq!((text(&reply, "stdout").len(), &reply["exit_code"]), ((16 << 20) - 1024, &Value::Null));
    for cmd in ["/bin/missing", "/bin/notexec"] {
        let (code, details) = failure(&address, "ExecSync", &json!({ "container_id": id, "cmd": [cmd] }));
        assert!(code == "FAILED_PRECONDITION" && details.contains(cmd), "{code} {details}");
    }
    for bad in [json!({ "cmd": [] }), json!({ "cmd": ["/bin/app"], "timeout": -1 })] {
        let mut request = bad.clone();
        request["container_id"] = json!(id);
        assert_eq!(failure(&address, "ExecSync", &request).0, "INVALID_ARGUMENT", "{bad}");
    }
    let created = sandbox.create(&["sleep", "forever"]);
    let request = json!({ "container_id": created, "cmd": ["/bin/app", "true"] });
    assert_eq!(failure(&address, "ExecSync", &request).0, "FAILED_PRECONDITION");
    sandbox.remove();
    served.end();
}

/// The processes in a container's PID namespace, except the one that lists them.
#[track_caller]
fn processes(address: &str, id: &str) -> Vec<String> {
    let listed = text(&exec(address, id, &["pids"]), "stdout");
    listed.lines().filter(|line| !line.contains(" R ")).map(str::to_owned).collect()
}

#[test]
fn timeouts_kill_programs_and_their_descendants() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "forever"]);
    let before = processes(&address, &id);
    for args in [&["sleep", "forever"][..], &["fork-children", "3", "forever"], &["fork-orphans", "3", "forever"]] {
        // `fork-orphans` does not wait for them, so something else must.
        let cmd: Vec<&str> =
            ["/bin/app", "seq"].iter().chain(args).chain(&["--", "sleep", "forever"]).copied().collect();
        let (code, _) = failure(&address, "ExecSync", &json!({ "container_id": id, "cmd": cmd, "timeout": 1 }));
        assert_eq!(code, "DEADLINE_EXCEEDED");
        let left = processes(&address, &id);
        assert_eq!(left.len(), before.len(), "{args:?}: {left:?}");
    }
    assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_RUNNING");
    sandbox.remove();
    served.end();
}

#[test]
fn cancelled_calls_kill_their_programs() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "forever"]);
    let before = processes(&address, &id).len();
    let cmd = ["/bin/app", "seq", "fork-children", "2", "forever", "--", "sleep", "forever"];
    let request = json!({ "container_id": id, "cmd": cmd }).to_string();
    let client = spawn_script("node_client.py", &[&address, "runtime.v1.RuntimeService/ExecSync", &request]);
    wait_for("the program", || (processes(&address, &id).len() > before).then_some(()));
    client.signal(Signal::KILL);
    wait_for("its end", || (processes(&address, &id).len() == before).then_some(()));
    assert_eq!(cri::container(&address, &id)["state"], "CONTAINER_RUNNING");
    sandbox.remove();
    served.end();
}

/// The pipes that a process has open.
fn count_pipes(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("pipe:")).count()
}

#[test]
fn hung_supervisors_delay_no_other_pod() {
    const CALLS: usize = 14;
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let (hung, other) = (Sandbox::run(&g, &address, "hung"), Sandbox::run(&g, &address, "other"));
    let (in_hung, in_other) = (hung.launch(&["sleep", "forever"]), other.launch(&["sleep", "forever"]));
    let before = processes(&address, &in_hung).len();
    let supervisor = Pid::from_raw(i32::try_from(g.supervisor(&hung.id)).unwrap()).unwrap();
    kill_process(supervisor, Signal::STOP).unwrap();
    let (gantryd, pipes) = (served.daemon().pid(), count_pipes(served.daemon().pid()));
    let request = json!({ "container_id": in_hung, "cmd": ["/bin/app", "true"] }).to_string();
    let method = "runtime.v1.RuntimeService/ExecSync";
    let clients = spawn_script("node_client.py", &["--parallel", &CALLS.to_string(), &address, method, &request]);
    // Each call has the reading ends of the output of its program.
    wait_for("all calls", || (count_pipes(gantryd) >= pipes + 2 * CALLS).then_some(()));
    assert_eq!(text(&exec(&address, &in_other, &["print", "here"]), "stdout"), "here\n");
    let request = json!({ "container_id": in_hung, "cmd": ["/bin/app", "sleep", "forever"], "timeout": 1 });
    assert_eq!(failure(&address, "ExecSync", &request).0, "DEADLINE_EXCEEDED", "the timeout covers the start");
    call(&address, "StopContainer", &json!({ "container_id": in_other, "timeout": 0 }));
    kill_process(supervisor, Signal::CONT).unwrap();
    let _succeeded_or_hung_too_long = clients.wait();
    wait_for("no program that starts late", || (processes(&address, &in_hung).len() == before).then_some(()));
    hung.remove();
    other.remove();
    served.end();
}

/// The sockets that a process has open.
fn count_sockets(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn hung_supervisors_delay_no_changes_of_others() {
    // More than the threads of the engine for such calls.
    const CALLS: usize = 14;
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let (hung, other) = (Sandbox::run(&g, &address, "hung"), Sandbox::run(&g, &address, "other"));
    let (in_hung, in_other) = (hung.launch(&["sleep", "forever"]), other.launch(&["sleep", "forever"]));
    let supervisor = Pid::from_raw(i32::try_from(g.supervisor(&hung.id)).unwrap()).unwrap();
    let request = |id: &str, method: &str| match method {
        "ReopenContainerLog" => json!({ "container_id": id }),
        _ => json!({ "container_id": id, "linux": { "cpu_shares": 512 } }),
    };
    for method in ["ReopenContainerLog", "UpdateContainerResources"] {
        kill_process(supervisor, Signal::STOP).unwrap();
        let (gantryd, sockets) = (served.daemon().pid(), count_sockets(served.daemon().pid()));
        let of_hung = request(&in_hung, method).to_string();
        let path = format!("runtime.v1.RuntimeService/{method}");
        let clients = spawn_script("node_client.py", &["--parallel", &CALLS.to_string(), &address, &path, &of_hung]);
        // Each call has two descriptors of its connection to the supervisor.
        let all_wait = || count_sockets(gantryd) >= sockets + 2 * CALLS - 2;
        wait_for("all calls", || all_wait().then_some(()));
        for method in ["ReopenContainerLog", "UpdateContainerResources"] {
            call(&address, method, &request(&in_other, method));
        }
        assert!(all_wait(), "{method}: the calls of the other pod were delayed");
        kill_process(supervisor, Signal::CONT).unwrap();
        let _succeeded_or_hung_too_long = clients.wait();
    }
    call(&address, "UpdateContainerResources", &request(&in_hung, "UpdateContainerResources"));
    hung.remove();
    other.remove();
    served.end();
}

#[test]
fn processes_left_behind_do_not_delay_output() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["sleep", "forever"]);
    let before = processes(&address, &id).len();
    // The orphan has stdout open. The call's timeout would end it with an error.
    let reply = exec(&address, &id, &["seq", "fork-orphans", "1", "forever", "--", "print", "done"]);
    assert!(text(&reply, "stdout").contains("done"), "{reply}");
    assert_eq!(processes(&address, &id).len(), before + 1, "the orphan lives on");
    sandbox.remove();
    served.end();
}

#[test]
fn logs_are_reopened() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(&logs).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    let id = sandbox.create_with(&["ignore", "USR1"], &json!({ "log_path": "a.log" }));
    let (path, moved) = (logs.join("a.log"), logs.join("a.log.1"));
    let reopen = json!({ "container_id": id });
    assert_eq!(failure(&address, "ReopenContainerLog", &reopen).0, "FAILED_PRECONDITION");
    sandbox.start(&id);
    wait_for("the log", || path.exists().then_some(()));
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(call(&address, "ReopenContainerLog", &reopen), json!({}));
    assert!(path.exists(), "the new file exists when the call returns");
    let pid = i32::try_from(g.app_pid(&sandbox.id, "container-0-2")).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::USR1).unwrap();
    wait_for("a line in the new file", || {
        std::fs::read_to_string(&path).ok().filter(|text| text.contains("USR1")).map(drop)
    });
    call(&address, "StopContainer", &json!({ "container_id": id, "timeout": 0 }));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(failure(&address, "ReopenContainerLog", &reopen).0, "FAILED_PRECONDITION");
    assert!(!path.exists(), "a refused call makes no file");
    sandbox.remove();
    served.end();
}

/// The numbers of the lines in the log of `lines`.
fn line_numbers(log: &str) -> Vec<u64> {
    let number = |line: &str| line.split(" F line ").nth(1)?.split(' ').next()?.parse().ok();
    log.lines().map(|line| number(line).unwrap_or_else(|| panic!("{line}"))).collect()
}

#[test]
fn reopened_logs_lose_nothing() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let logs = g.scratch().join("pod-logs");
    std::fs::create_dir_all(&logs).unwrap();
    let sandbox = Sandbox::run_with(&g, &address, "web", &json!({ "log_directory": logs }));
    let id = sandbox.create_with(&["lines", "forever", "20", "500"], &json!({ "log_path": "a.log" }));
    sandbox.start(&id);
    let path = logs.join("a.log");
    let mut text = String::new();
    for number in 0..5 {
        let moved = logs.join(format!("a.log.{number}"));
        wait_for("output", || std::fs::metadata(&path).ok().filter(|meta| meta.len() > 0));
        std::fs::rename(&path, &moved).unwrap();
        call(&address, "ReopenContainerLog", &json!({ "container_id": id }));
        // From now on the old file stays as it is.
        text += &std::fs::read_to_string(&moved).unwrap();
    }
    call(&address, "StopContainer", &json!({ "container_id": id, "timeout": 0 }));
    text += &std::fs::read_to_string(&path).unwrap();
    let numbers = line_numbers(&text);
    let first = numbers[0];
    assert!(numbers.iter().copied().eq(first..first + numbers.len() as u64), "lines were lost or reordered");
    sandbox.remove();
    served.end();
}

#[test]
fn resources_are_updated() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let resources = json!({ "cpu_shares": "512", "memory_limit_in_bytes": "67108864", "oom_score_adj": "500" });
    let id = sandbox.create_with(&["sleep", "forever"], &json!({ "linux": { "resources": resources } }));
    sandbox.start(&id);
    let shown = |id: &str| cri::container(&address, id)["resources"]["linux"].clone();
    assert_eq!(shown(&id), resources);
    let update = json!({ "container_id": id, "linux": { "memory_limit_in_bytes": "134217728" } });
    assert_eq!(call(&address, "UpdateContainerResources", &update), json!({}));
    let mut changed = resources.clone();
    changed["memory_limit_in_bytes"] = json!("134217728");
    assert_eq!(shown(&id), changed, "a field of zero stays as it is");
    let bad = json!({ "container_id": id, "linux": { "cpuset_cpus": "none" } });
    assert_eq!(failure(&address, "UpdateContainerResources", &bad).0, "INVALID_ARGUMENT");
    assert_eq!(shown(&id), changed);
    let pod = json!({ "pod_sandbox_id": sandbox.id, "resources": { "cpu_shares": "100" } });
    assert_eq!(call(&address, "UpdatePodSandboxResources", &pod), json!({}));
    let verbose = call(&address, "PodSandboxStatus", &json!({ "pod_sandbox_id": sandbox.id, "verbose": true }));
    assert!(verbose["info"]["info"].as_str().is_some_and(|text| text.contains("\"cpuShares\":100")), "{verbose}");
    assert_eq!(verbose["status"]["annotations"], Value::Null, "the record is not an annotation of the client");
    sandbox.stop();
    // Recorded, although there is no cgroup any more.
    let update = json!({ "container_id": id, "linux": { "cpu_shares": "300" } });
    assert_eq!(call(&address, "UpdateContainerResources", &update), json!({}));
    assert_eq!(shown(&id)["cpu_shares"], "300");
    sandbox.remove();
    served.end();
}

#[test]
fn memory_is_changed_without_swap() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let resources = json!({ "memory_limit_in_bytes": "67108864", "memory_swap_limit_in_bytes": "67108864" });
    let id = sandbox.create_with(&["sleep", "forever"], &json!({ "linux": { "resources": resources } }));
    sandbox.start(&id);
    for memory in ["134217728", "33554432"] {
        let update = json!({ "container_id": id, "linux": { "memory_limit_in_bytes": memory } });
        assert_eq!(call(&address, "UpdateContainerResources", &update), json!({}));
        let shown = &cri::container(&address, &id)["resources"]["linux"];
        assert_eq!(
            (&shown["memory_limit_in_bytes"], &shown["memory_swap_limit_in_bytes"]),
            (&json!(memory), &json!(memory))
        );
    }
    let is_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let file = if is_v2 { "memory.max" } else { "memory/memory.memsw.limit_in_bytes" };
    let limit = text(&exec(&address, &id, &["cat", &format!("/sys/fs/cgroup/{file}")]), "stdout");
    assert_eq!(limit.trim(), "33554432");
    sandbox.remove();
    served.end();
}

#[test]
fn pid_namespaces_are_as_requested() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let other = Sandbox::run(&g, &address, "other");
    let pid = |options: Value| json!({ "linux": { "security_context": { "namespace_options": options } } });
    let launch = |options: Value| {
        let id = sandbox.create_with(&["sleep", "forever"], &pid(options));
        sandbox.start(&id);
        id
    };
    let namespace = |id: &str| {
        let listed = text(&exec(&address, id, &["ns"]), "stdout");
        listed.lines().find(|line| line.starts_with("pid ")).unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    let host = std::fs::read_link("/proc/self/ns/pid").unwrap().display().to_string();
    let (pod, own, node) = (launch(json!({})), launch(json!({ "pid": "CONTAINER" })), launch(json!({ "pid": "NODE" })));
    let target = launch(json!({ "pid": "TARGET", "target_id": own }));
    assert_eq!(namespace(&pod), namespace(&launch(json!({ "pid": "POD" }))));
    assert_ne!(namespace(&pod), namespace(&own));
    assert!(namespace(&node).contains(&host), "{} {host}", namespace(&node));
    assert_eq!(namespace(&target), namespace(&own));
    // PID 1 of the pod is no container; PID 1 of its own namespace is the container.
    let first = |id: &str| text(&exec(&address, id, &["pids"]), "stdout");
    assert!(first(&own).lines().any(|line| line.starts_with("1 0 ")), "{}", first(&own));
    assert_eq!(first(&target).lines().filter(|line| line.contains("app")).count(), 3, "{}", first(&target));
    let refused = |options: Value, code: &str| {
        let (found, details) = failure(&address, "CreateContainer", &sandbox.request(&["true"], &pid(options)));
        assert_eq!(found, code, "{details}");
    };
    let stranger = other.launch(&["sleep", "forever"]);
    refused(json!({ "pid": "TARGET" }), "INVALID_ARGUMENT");
    refused(json!({ "pid": "TARGET", "target_id": stranger }), "INVALID_ARGUMENT");
    refused(json!({ "pid": "TARGET", "target_id": "a7".repeat(32) }), "NOT_FOUND");
    // The end of the target ends the namespace.
    call(&address, "StopContainer", &json!({ "container_id": own, "timeout": 0 }));
    wait_for("the end of the container that joined", || {
        (cri::container(&address, &target)["state"] == "CONTAINER_EXITED").then_some(())
    });
    refused(json!({ "pid": "TARGET", "target_id": own }), "FAILED_PRECONDITION");
    sandbox.remove();
    other.remove();
    served.end();
}

#[test]
fn containers_are_visible_elsewhere() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let sandbox = Sandbox::run(&g, &address, "web");
    let id = sandbox.launch(&["print", "hello"]);
    let status = g.status(&sandbox.id);
    let app = &status["apps"][0];
    assert_eq!((&app["name"], &app["id"]), (&json!("container-0-2"), &json!(id)));
    wait_for("the log", || g.run(&["logs", &sandbox.id]).stdout.contains("hello").then_some(()));
    let pods = served.api().list_pods(Vec::new(), true);
    let pod = pods.iter().find(|pod| pod.id == sandbox.id).unwrap();
    assert_eq!(pod.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(), ["container-0-2"]);
    // Removed by the command line, it has gone here, too.
    cri_exited(&address, &id);
    g.run(&["app", "rm", &sandbox.id, "--app=container-0-2"]).succeeded();
    assert_eq!(cri::containers(&address, &json!({})), [""; 0]);
    sandbox.remove();
    served.end();
}

#[track_caller]
fn cri_exited(address: &str, id: &str) {
    wait_for("the exit", || (cri::container(address, id)["state"] == "CONTAINER_EXITED").then_some(()));
}
