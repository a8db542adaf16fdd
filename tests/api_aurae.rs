//! Aurae's API: its contract by reflection, Observe, Schedule and ScheduleExecutable, by a client that shares only the
//! .proto files.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use gantry_tests::api::Served;
use gantry_tests::aurae::serve;
use gantry_tests::python::{repository, run_script, spawn_script};
use gantry_tests::talos::{FAILED, call, failure};
use gantry_tests::{Gantry, Signal, json_lines, let_pass, pod_id, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::{Value, json};

const STATUS: &str = "observe.Observe/Status";
const DAEMON_LOG: &str = "observe.Observe/GetAuraeDaemonLogStream";
const PROCESS_LOG: &str = "observe.Observe/GetSubProcessStream";
const ENABLE: &str = "schedule.ScheduleExecutable/Enable";
const DISABLE: &str = "schedule.ScheduleExecutable/Disable";
const DESTROY: &str = "schedule.ScheduleExecutable/Destroy";

/// The only message of a unary reply.
#[track_caller]
fn reply(address: &str, method: &str, request: &Value) -> Value {
    call(address, method, request).remove(0)
}

fn executable(name: &str, command: &str) -> Value {
    json!({ "meta": { "name": name }, "command": command, "comment": "a test" })
}

/// The executables that ShowEnabled or ShowDisabled lists, by name.
#[track_caller]
fn shown(address: &str, method: &str) -> Vec<Value> {
    let list = reply(address, &format!("schedule.Schedule/{method}"), &json!({}));
    list["Executables"].as_array().cloned().unwrap_or_default()
}

/// Whether the only disabled executable is in this state.
fn shown_as(address: &str, state: &str) -> Option<()> {
    let list = shown(address, "ShowDisabled");
    list.first().filter(|item| item["meta"]["message"] == state).map(drop)
}

/// The live process of the first enabled executable.
#[track_caller]
fn active_pid(address: &str) -> u32 {
    wait_for("an active executable", || {
        let message = shown(address, "ShowEnabled").first()?["meta"]["message"].as_str()?.to_owned();
        message.strip_prefix("active pid ")?.parse().ok()
    })
}

#[track_caller]
fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.unwrap_or_else(|| panic!("no such process id")), Signal::KILL)
        .unwrap_or_else(|error| panic!("cannot kill: {error}"));
}

#[test]
fn descriptors_match_the_contract() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let path = g.scratch().join("reflected").display().to_string();
    run_script("client.py", &[&address, "reflect", &path]).succeeded();
    let table = repository().join("proto/aurae/v0.tsv").display().to_string();
    let checked = run_script("wire.py", &["check", &table, &path]).ok();
    assert!(checked.stdout.trim_end().ends_with("60 of 60 rows hold"), "{checked}");
    served.end();
}

#[test]
fn status_tells_version_pods_and_schedules() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let message = || reply(&address, STATUS, &json!({}))["meta"]["message"].as_str().unwrap_or_default().to_owned();
    let empty = message();
    assert!(
        empty.starts_with("ok, 0.") && empty.contains(", up ") && empty.ends_with("0 pods, 0 scheduled"),
        "{empty}"
    );
    let name = reply(&address, STATUS, &json!({}))["meta"]["name"].clone();
    assert_eq!(name, rustix::system::uname().nodename().to_string_lossy().as_ref());
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &g.fixture(), "--", "sleep", "600"]).ok());
    assert!(message().ends_with("1 pod, 0 scheduled"));
    g.run(&["rm", "--force", &pod]).succeeded();
    served.end();
}

#[test]
fn calls_that_exist_as_comments_are_unimplemented() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for method in ["ExecutableStop", "ContainerStart", "ContainerStop", "InstanceStart", "InstanceStop"] {
        assert_eq!(failure(&address, &format!("runtime.Runtime/{method}"), &json!({})).0, "UNIMPLEMENTED", "{method}");
    }
    served.end();
}

#[test]
fn enabled_commands_run_until_they_are_destroyed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let wanted = executable("ticker", "sleep  '1000' ");
    let enabled = reply(&address, ENABLE, &wanted);
    assert_eq!(enabled["meta"], json!({ "name": "ticker", "message": "enabled" }));
    let first = active_pid(&address);
    // The same content changes nothing.
    reply(&address, ENABLE, &wanted);
    assert_eq!(active_pid(&address), first);
    let list = shown(&address, "ShowEnabled");
    assert_eq!((&list[0]["command"], &list[0]["comment"]), (&json!("sleep  '1000' "), &json!("a test")));
    assert_eq!(g.run(&["schedule", "list", "-q"]).ok().text(), "ticker");

    kill(first);
    let second = wait_for("another process", || Some(active_pid(&address)).filter(|pid| *pid != first));
    // gantryd comes and goes, the process stays.
    served.end();
    let (served, address) = serve(&g);
    assert_eq!(active_pid(&address), second);
    // Another command replaces it.
    reply(&address, ENABLE, &executable("ticker", "sleep 2000"));
    let third = wait_for("another process", || Some(active_pid(&address)).filter(|pid| *pid != second));
    assert_eq!(std::fs::read(format!("/proc/{third}/cmdline")).ok().as_deref(), Some(&b"sleep\x002000\0"[..]));

    let named = json!({ "meta": { "name": "ticker" } });
    for _ in 0..2 {
        assert_eq!(reply(&address, DISABLE, &named)["meta"]["message"], "disabled");
    }
    assert!(!std::path::Path::new(&format!("/proc/{third}")).exists());
    assert_eq!(shown(&address, "ShowEnabled"), Vec::<Value>::new());
    let disabled = shown(&address, "ShowDisabled");
    assert_eq!((&disabled[0]["command"], &disabled[0]["meta"]["message"]), (&json!("sleep 2000"), &json!("passive")));
    reply(&address, ENABLE, &executable("ticker", "sleep 2000"));
    active_pid(&address);
    assert_eq!(reply(&address, DESTROY, &named)["meta"]["message"], "destroyed");
    assert_eq!((shown(&address, "ShowEnabled").len(), shown(&address, "ShowDisabled").len()), (0, 0));
    for method in [DISABLE, DESTROY] {
        assert_eq!(failure(&address, method, &named).0, "NOT_FOUND", "{method}");
    }
    assert_eq!(g.list(), Vec::<Value>::new());
    served.end();
}

#[test]
fn enabling_starts_a_stopped_command_again() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let wanted = executable("ticker", "sleep 1000");
    reply(&address, ENABLE, &wanted);
    let first = active_pid(&address);
    let pod = g.list()[0]["id"].as_str().unwrap_or_default().to_owned();
    g.run(&["stop", "--time=0", &pod]).succeeded();
    wait_for("the reason", || {
        let message = shown(&address, "ShowEnabled").first()?["meta"]["message"].clone();
        (message == "standby: stopped on request").then_some(())
    });
    reply(&address, ENABLE, &wanted);
    assert_ne!(active_pid(&address), first);
    assert_eq!(g.list()[0]["id"], pod);
    reply(&address, DESTROY, &wanted);
    served.end();
}

#[test]
fn a_command_is_its_own_name() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let unnamed = json!({ "command": "sleep 1000" });
    assert_eq!(reply(&address, ENABLE, &unnamed)["meta"]["name"], "sleep 1000");
    active_pid(&address);
    assert_eq!(reply(&address, DESTROY, &unnamed)["meta"]["name"], "sleep 1000");
    served.end();
}

#[test]
fn commands_that_do_not_exist_are_errors() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    reply(&address, ENABLE, &executable("none", "/no/such/program"));
    let message = wait_for("the failure", || {
        let message = shown(&address, "ShowEnabled").first()?["meta"]["message"].as_str()?.to_owned();
        message.starts_with("error: ").then_some(message)
    });
    assert!(message.contains("/no/such/program"), "{message}");
    reply(&address, DESTROY, &executable("none", ""));
    served.end();
}

#[test]
fn crash_loops_become_errors() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    reply(&address, ENABLE, &executable("loop", "sh -c 'exit 3'"));
    for start in ["standby: exit status: 3, next start in ", "error: app 'sh' has ended after "] {
        wait_for(start, || {
            let message = shown(&address, "ShowEnabled").first()?["meta"]["message"].as_str()?.to_owned();
            message.starts_with(start).then_some(())
        });
    }
    reply(&address, DESTROY, &executable("loop", ""));
    served.end();
}

#[test]
fn invalid_executables_are_refused() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let rows = [
        (json!({}), "command is empty"),
        (executable("a", ""), "command is empty"),
        (executable("a", "echo 'x"), "not closed"),
        (executable("a", "echo %i"), "%i"),
        (executable("a\nb", "true"), "meta.name"),
        (json!({ "command": format!("echo {}", "x".repeat(300)) }), "meta.name"),
    ];
    for (request, part) in rows {
        let (code, text) = failure(&address, ENABLE, &request);
        assert_eq!(code, "INVALID_ARGUMENT", "{request}");
        assert!(text.contains(part), "{request}: {text}");
    }
    assert_eq!(g.run(&["schedule", "list", "-q"]).ok().text(), "");
    served.end();
}

#[test]
fn process_output_is_streamed_to_its_end() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let script = "echo one; printf 'tw\\377o\\n'; echo err >&2; sleep 1000; printf late";
    let pod = pod_id(&g.run(&["run", "--stage1=host", "-d", "--", "sh", "-c", script]).ok());
    let pid = g.app_pid(&pod, "sh");
    let request = |channel: &str| json!({ "process_id": pid.to_string(), "channel_type": channel }).to_string();
    let mut stdout = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request("CHANNEL_STDOUT")]);
    let mut stderr = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request("CHANNEL_STDERR")]);
    stdout.wait_for_stdout("tw");
    stderr.wait_for_stdout("err");
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let (stdout, stderr) = (stdout.wait().ok(), stderr.wait().ok());
    let lines = |text: &str| json_lines(text).iter().map(|item| item["line"].clone()).collect::<Vec<_>>();
    assert_eq!(lines(&stdout.stdout), [json!("one"), json!("tw\u{fffd}o")]);
    assert!(lines(&stderr.stdout).contains(&json!("err")));
    let first = json_lines(&stdout.stdout).remove(0);
    assert_eq!(first["channel"], "sh::stdout");
    let seconds: i64 = first["timestamp"].as_str().and_then(|text| text.parse().ok()).unwrap_or_default();
    assert!(seconds > 1_700_000_000 && seconds < 20_000_000_000, "seconds: {seconds}");
    g.run(&["rm", &pod]).succeeded();
    let gone = json!({ "process_id": pid.to_string() });
    assert_eq!(failure(&address, PROCESS_LOG, &gone).0, "NOT_FOUND");
    assert_eq!(failure(&address, PROCESS_LOG, &json!({ "process_id": "1" })).0, "NOT_FOUND");
    assert_eq!(failure(&address, PROCESS_LOG, &json!({ "channel_type": 7 })).0, "INVALID_ARGUMENT");
    served.end();
}

#[test]
fn a_last_line_without_newline_is_streamed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let fifo = g.scratch().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).unwrap();
    let script = format!("echo begun; read word < {}; printf '%s' partial", fifo.display());
    let pod = pod_id(&g.run(&["run", "--stage1=host", "-d", "--", "sh", "-c", &script]).ok());
    let request = json!({ "process_id": g.app_pid(&pod, "sh").to_string() }).to_string();
    let mut stream = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request]);
    stream.wait_for_stdout("begun");
    std::fs::write(&fifo, "go\n").unwrap();
    let text = stream.wait().ok().stdout;
    let lines: Vec<Value> = json_lines(&text).iter().map(|item| item["line"].clone()).collect();
    assert_eq!(lines, [json!("begun"), json!("partial")]);
    g.run(&["rm", "--force", &pod]).succeeded();
    served.end();
}

#[test]
fn process_logs_end_before_the_restart() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let command = r#"sh -c "echo start $$; sleep 1000""#;
    reply(&address, ENABLE, &executable("a", command));
    let pid = active_pid(&address);
    let request = json!({ "process_id": pid.to_string() }).to_string();
    let mut stream = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request]);
    stream.wait_for_stdout(&format!("start {pid}"));
    kill(pid);
    let out = stream.wait().ok();
    assert_eq!(out.stdout.matches("start").count(), 1, "only the first start: {out}");
    reply(&address, DESTROY, &executable("a", ""));
    served.end();
}

#[test]
fn every_subscriber_reads_every_line() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let mut readers: Vec<_> = (0..2).map(|_| spawn_script("node_client.py", &[&address, DAEMON_LOG])).collect();
    let log = |name: &str| failure(&address, DISABLE, &executable(name, ""));
    for reader in &mut readers {
        wait_for("the subscription", || {
            log("probe");
            reader.stdout().contains("probe").then_some(())
        });
    }
    for number in 0..20 {
        log(&format!("line-{number}-"));
    }
    for reader in &mut readers {
        let text = reader.wait_for_stdout("line-19-");
        let position = |number: usize| text.find(&format!("line-{number}-"));
        assert!((0..19).all(|number| position(number).is_some() && position(number) < position(number + 1)), "{text}");
        let first = json_lines(&text).remove(0);
        assert_eq!(first["channel"], "gantryd");
        assert!(first["timestamp"].as_str().is_some_and(|text| text.len() == 10), "seconds: {first}");
    }
    drop(readers);
    served.end();
}

#[test]
fn a_stuck_subscriber_delays_no_other() {
    const ROUNDS: usize = 10;
    const CALLS: usize = 1000;
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
    let served = g.serve(&["--aurae-listen", &address, "--log-level=info,gantry_api=debug"]);
    let mut stuck = spawn_script("node_client.py", &["--stall", "1", &address, DAEMON_LOG]);
    let mut reader = spawn_script("node_client.py", &[&address, DAEMON_LOG]);
    for client in [&mut stuck, &mut reader] {
        wait_for("the subscription", || {
            reply(&address, STATUS, &json!({}));
            client.stdout().contains("timestamp").then_some(())
        });
    }
    // Each call is a line of the log.
    for _ in 0..ROUNDS {
        run_script("node_client.py", &["--parallel", &CALLS.to_string(), &address, STATUS]).succeeded();
    }
    assert_eq!(failure(&address, DISABLE, &executable("the-last-line", "")).0, "NOT_FOUND");
    let text = reader.wait_for_stdout("the-last-line");
    let seen = json_lines(&text).iter().filter(|item| item["line"].to_string().contains("call answered")).count();
    assert!(seen >= ROUNDS * CALLS, "{seen} lines");
    assert!(!text.contains("were dropped"), "a client that reads misses nothing");
    stuck.signal(Signal::USR1);
    let text = stuck.wait_for_stdout("the-last-line");
    // The lines that neither the ring nor the connection held are counted in a line.
    let lines = json_lines(&text);
    let dropped: usize = lines
        .iter()
        .filter_map(|item| item["line"].as_str()?.strip_prefix("warning: ")?.split_once(" lines were dropped"))
        .filter_map(|(count, _)| count.parse::<usize>().ok())
        .sum();
    assert!(lines.len() + dropped >= ROUNDS * CALLS, "{} lines, {dropped} dropped", lines.len());
    drop((stuck, reader));
    served.end();
}

#[test]
fn a_log_without_subscribers_blocks_nothing() {
    let g = Gantry::new();
    let address = format!("unix:{}", g.scratch().join("aurae.sock").display());
    let served = g.serve(&["--aurae-listen", &address, "--log-level=info,gantry_api=debug"]);
    let call_often = || run_script("node_client.py", &["--parallel", "100", &address, STATUS]).succeeded();
    // Each call is a line of the log, before the first subscriber and after the last one.
    call_often();
    let reader = spawn_script("node_client.py", &[&address, DAEMON_LOG]);
    wait_for("the subscription", || {
        reply(&address, STATUS, &json!({}));
        reader.stdout().contains("call answered").then_some(())
    });
    reader.signal(Signal::KILL);
    let _killed = reader.wait();
    call_often();
    // A stream ends with gantryd.
    let reader = spawn_script("node_client.py", &[&address, DAEMON_LOG]);
    wait_for("the subscription", || {
        reply(&address, STATUS, &json!({}));
        reader.stdout().contains("call answered").then_some(())
    });
    served.end();
    let _ended = reader.wait();
}

#[test]
fn executables_are_listed_by_name() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    for name in ["b", "c", "a"] {
        reply(&address, ENABLE, &executable(name, &format!("sleep 1000{}", name.len())));
    }
    let names = |method: &str| -> Vec<Value> {
        shown(&address, method).iter().map(|item| item["meta"]["name"].clone()).collect()
    };
    assert_eq!((names("ShowEnabled"), names("ShowDisabled")), (vec![json!("a"), json!("b"), json!("c")], vec![]));
    for name in ["c", "b"] {
        reply(&address, DISABLE, &executable(name, ""));
    }
    assert_eq!((names("ShowEnabled"), names("ShowDisabled")), (vec![json!("a")], vec![json!("b"), json!("c")]));
    let status = reply(&address, STATUS, &json!({}))["meta"]["message"].to_string();
    assert!(status.contains("1 scheduled"), "{status}");
    for name in ["a", "b", "c"] {
        reply(&address, DESTROY, &executable(name, ""));
    }
    served.end();
}

/// Kills gantryd this long after a call has begun, and starts another one.
#[track_caller]
fn kill_during(g: &Gantry, served: Served, address: &str, method: &str, request: &Value, delay: Duration) -> Served {
    let client = spawn_script("node_client.py", &["--announce", address, method, &request.to_string()]);
    wait_for("the client to be ready", || (client.stderr().contains("ready")).then_some(()));
    let_pass(delay);
    served.kill();
    let _answered_or_not = client.wait();
    serve(g).0
}

#[test]
fn kills_leave_the_old_or_new_state() {
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let wanted = executable("web", "sleep 1000");
    for delay in [0, 1, 2, 4, 6, 8, 12, 16, 24, 40].map(Duration::from_millis) {
        served = kill_during(&g, served, &address, ENABLE, &wanted, delay);
        if !shown(&address, "ShowEnabled").is_empty() {
            active_pid(&address);
        }
        // Whether the killed call had an effect or not, it can be repeated.
        reply(&address, ENABLE, &wanted);
        let pid = active_pid(&address);
        served = kill_during(&g, served, &address, DISABLE, &wanted, delay);
        if shown(&address, "ShowDisabled").is_empty() {
            assert_eq!(active_pid(&address), pid, "the old state");
        } else {
            wait_for("the process to end", || shown_as(&address, "passive"));
        }
        served = kill_during(&g, served, &address, DESTROY, &wanted, delay);
        if shown(&address, "ShowEnabled").is_empty() && shown(&address, "ShowDisabled").is_empty() {
            wait_for("the pod to be removed", || g.list().is_empty().then_some(()));
        } else {
            reply(&address, DESTROY, &wanted);
        }
        assert_eq!(g.list(), Vec::<Value>::new());
    }
    served.end();
}

#[test]
fn only_root_may_call() {
    let g = Gantry::new();
    let dir = std::path::PathBuf::from(format!("/tmp/gantry-aurae-{}", std::process::id()));
    let open = Permissions::from_mode(0o755);
    std::fs::create_dir_all(&dir).and_then(|()| std::fs::set_permissions(&dir, open)).unwrap();
    let socket = dir.join("aurae.sock");
    let address = format!("unix:{}", socket.display());
    let served = g.serve(&["--aurae-listen", &address]);
    assert_eq!(socket.metadata().unwrap().mode() & 0o777, 0o660);
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    for method in [STATUS, ENABLE] {
        let out = run_script("node_client.py", &["--uid", "65534", &address, method]).exits(FAILED);
        assert!(out.stdout.contains("PERMISSION_DENIED") && out.stdout.contains("only root may call"), "{out}");
    }
    reply(&address, STATUS, &json!({}));
    served.end();
    std::fs::remove_dir_all(&dir).unwrap();
}
