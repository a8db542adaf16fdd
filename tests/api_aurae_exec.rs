//! Aurae's Exec: commands on the host that end with their call, by a client that shares only the .proto files.

use std::time::{Duration, Instant};

use gantry_tests::aurae::serve;
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::{call, failure};
use gantry_tests::{Gantry, Signal, json_lines, wait_for};
use serde_json::{Value, json};

const EXEC: &str = "runtime.Runtime/Exec";
const PROCESS_LOG: &str = "observe.Observe/GetSubProcessStream";

#[track_caller]
fn exec(address: &str, command: &str) -> Value {
    call(address, EXEC, &json!({ "command": command })).remove(0)
}

/// The process of a command that runs, by an argument of its own.
#[track_caller]
fn process(argument: &str) -> String {
    wait_for("the process", || {
        let out = std::process::Command::new("pgrep").args(["-xf", &format!("sleep {argument}")]).output().ok()?;
        let text = String::from_utf8(out.stdout).ok()?;
        text.lines().next().map(str::to_owned)
    })
}

#[track_caller]
fn wait_gone(g: &Gantry, pid: &str) {
    let is_gone = || (!std::path::Path::new("/proc").join(pid).exists()).then_some(());
    wait_for("the process to end", is_gone);
    wait_removed(g);
}

/// The pod of a command is removed soon after the reply.
#[track_caller]
fn wait_removed(g: &Gantry) {
    wait_for("the pod to be removed", || g.list().is_empty().then_some(()));
}

#[test]
fn words_are_split_without_a_shell() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let rows = [
        ("echo echo hi", "echo hi\n"),
        ("echo  'Hello   World!'   $HOME", "Hello   World! $HOME\n"),
        (r#"printf '%%s|' "a b" c\sd '' "#, "a b|c d||"),
        ("sh -c 'echo $((1+1)) >&2; echo two'", "two\n"),
        (r"printf '\\377\\n'", "\u{fffd}\n"),
    ];
    for (command, stdout) in rows {
        let reply = exec(&address, command);
        assert_eq!(reply["stdout"], stdout, "{command}: {reply}");
        assert_eq!((&reply["status"], &reply["exit_code"]), (&json!("STATUS_COMPLETE"), &json!("exit status: 0")));
        assert_eq!(reply["meta"], json!({ "name": command, "message": "-" }));
        assert!(reply["proc"]["pid"].as_u64() > Some(1), "{reply}");
    }
    assert_eq!(exec(&address, "sh -c 'echo $((1+1)) >&2'")["stderr"], "2\n");
    let pid = exec(&address, "sh -c 'echo $$'");
    assert_eq!(pid["stdout"], format!("{}\n", pid["proc"]["pid"]), "the process id is that of the host");
    let named = call(&address, EXEC, &json!({ "meta": { "name": "it" }, "command": "true", "comment": "why" }));
    assert_eq!(named[0]["meta"]["name"], "it");
    wait_removed(&g);
    served.end();
}

#[test]
fn ends_of_commands_are_described_as_text() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    assert_eq!(exec(&address, "sh -c 'exit 7'")["exit_code"], "exit status: 7");
    let killed = exec(&address, "sh -c 'kill -KILL $$'");
    assert_eq!((&killed["status"], &killed["exit_code"]), (&json!("STATUS_COMPLETE"), &json!("signal: 9 (SIGKILL)")));
    for (command, part) in [("/no/such/program x", "/no/such/program"), ("/etc/passwd", "/etc/passwd")] {
        let reply = exec(&address, command);
        assert_eq!((&reply["status"], &reply["exit_code"]), (&json!("STATUS_ERROR"), &json!("-")), "{reply}");
        assert_eq!((&reply["stdout"], &reply["proc"]["pid"]), (&json!("-"), &json!(-1)));
        assert!(reply["meta"]["message"].as_str().is_some_and(|text| text.contains(part)), "{reply}");
    }
    for (command, part) in [("", "empty"), ("echo %n", "%n"), ("echo 'x", "not closed"), ("-/bin/true", "prefix '-'")] {
        let (code, text) = failure(&address, EXEC, &json!({ "command": command }));
        assert_eq!(code, "INVALID_ARGUMENT", "{command}");
        assert!(text.contains(part), "{command}: {text}");
    }
    wait_removed(&g);
    served.end();
}

#[test]
fn long_output_is_cut_with_a_remark() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let reply = exec(&address, "sh -c 'head -c 10485760 /dev/zero | tr \\\\000 x; echo done >&2'");
    assert_eq!(reply["stdout"].as_str().map(str::len), Some(1 << 20));
    assert_eq!(reply["stderr"], "done\n", "the rest was read and discarded");
    assert_eq!(reply["meta"]["message"], "stdout was cut after 1048576 bytes");
    served.end();
}

#[test]
fn a_running_command_is_seen_everywhere() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let command = json!({ "command": "sh -c 'echo begun; exec sleep 31011'" }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pid = process("31011");
    let list = g.list();
    assert_eq!((list.len(), &list[0]["phase"]), (1, &json!("running")), "{list:?}");
    let pod = list[0]["id"].as_str().unwrap_or_default().to_owned();
    assert_eq!(g.run(&["logs", &pod]).ok().stdout, "begun\n");
    let request = json!({ "process_id": pid }).to_string();
    let mut stream = spawn_script("node_client.py", &[&address, PROCESS_LOG, &request]);
    stream.wait_for_stdout("begun");
    // A stop by another command ends it as any pod.
    g.run(&["stop", &pod]).succeeded();
    let reply = json_lines(&client.wait().ok().stdout).remove(0);
    assert_eq!((&reply["exit_code"], &reply["stdout"]), (&json!("signal: 15 (SIGTERM)"), &json!("begun\n")));
    assert_eq!(json_lines(&stream.wait().ok().stdout).len(), 1);
    wait_gone(&g, &pid);
    served.end();
}

#[test]
fn cancelled_calls_end_their_command() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    // The shell has a child, and both end.
    let command = json!({ "command": "sh -c 'sleep 31012 & wait'" }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pid = process("31012");
    client.signal(Signal::KILL);
    let _killed = client.wait();
    wait_gone(&g, &pid);

    let command = json!({ "command": "sleep 31013" }).to_string();
    let client = spawn_script("node_client.py", &["--deadline", "2", &address, EXEC, &command]);
    let pid = process("31013");
    let out = client.wait();
    assert!(out.stdout.contains("DEADLINE_EXCEEDED"), "{out}");
    wait_gone(&g, &pid);
    served.end();
}

#[test]
fn cancelled_commands_that_ignore_sigterm_are_killed() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let command = json!({ "command": r#"sh -c "trap '' TERM; sleep 31017 & exec sleep 31018""# }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pids = [process("31017"), process("31018")];
    client.signal(Signal::KILL);
    let _killed = client.wait();
    for pid in pids {
        wait_gone(&g, &pid);
    }
    served.end();
}

#[test]
fn commands_end_with_gantryd() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let command = json!({ "command": "sleep 31014" }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pid = process("31014");
    assert!(g.run(&["gc", "--grace-period=0s"]).ok().stdout.is_empty(), "its caller lives");
    served.kill();
    let out = client.wait();
    assert!(out.stdout.contains("UNAVAILABLE"), "{out}");
    assert!(std::path::Path::new("/proc").join(&pid).exists());
    // The next gantryd collects it; a command of an administrator would, too.
    let (served, address) = serve(&g);
    wait_gone(&g, &pid);

    let command = json!({ "command": "sleep 31015" }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pid = process("31015");
    served.kill();
    let _unavailable = client.wait();
    let out = g.run(&["gc", "--grace-period=0s"]).ok();
    assert!(out.stdout.contains("the caller of its command is gone"), "{out}");
    wait_gone(&g, &pid);

    let (served, address) = serve(&g);
    let command = json!({ "command": "sleep 31016" }).to_string();
    let client = spawn_script("node_client.py", &[&address, EXEC, &command]);
    let pid = process("31016");
    served.end();
    let out = client.wait();
    assert!(out.stdout.contains("UNAVAILABLE"), "{out}");
    g.run(&["gc", "--grace-period=0s"]).succeeded();
    wait_gone(&g, &pid);
}

#[test]
fn fifty_commands_run_side_by_side() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let begun = Instant::now();
    let out = run_script(
        "node_client.py",
        &["--parallel", "50", &address, EXEC, &json!({ "command": "sleep 1" }).to_string()],
    );
    let replies = json_lines(&out.ok().stdout);
    assert_eq!(replies.len(), 50);
    assert!(replies.iter().all(|reply| reply["exit_code"] == "exit status: 0"), "{replies:?}");
    // One after another, they would take 50 seconds.
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    wait_removed(&g);
    served.end();
}
