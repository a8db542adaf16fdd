//! What a hand used to docker, podman, kubectl or rkt types, and what it gets.

use gantry_tests::{Gantry, pod_id};

/// An exit code of gantry's own failures.
const FAILED: i32 = 125;

/// A command line of `run` that leaves nothing.
fn line<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--net=none", "--quiet", "--rm"], words].concat()
}

#[test]
fn a_command_needs_no_separator() {
    let g = Gantry::new();
    let image = g.fixture();
    // The entrypoint of the image is the fixture app, its command is replaced.
    let out = g.run(&line(&[&image, "args", "one", "-la", "--rm", "--help"])).ok();
    assert_eq!(out.text(), "[\"one\",\"-la\",\"--rm\",\"--help\"]");
    let out = g.run(&line(&["--entrypoint=", &image, "/bin/app", "args", "x"])).ok();
    assert_eq!(out.text(), "[\"x\"]");
    let _ = g.run(&line(&["--entrypoint=", &image])).exits(FAILED).complains(&["--entrypoint", "command"]);
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "args", "two"]).ok());
    assert_eq!(g.run(&["run-prepared", &prepared]).ok().text(), "[\"two\"]");
    // Every word that is an image stays one.
    let out = g.run(&line(&[&image, "--name=a", &image, "--name=b"])).ok();
    assert_eq!(out.stdout.lines().count(), 2, "{out}");
    let _ = g.run(&line(&["-it", &image, &image, "--name=b"])).exits(FAILED).complains(&[
        "exactly one app",
        "was taken for another image",
        &format!("-it {image} -- {image}"),
    ]);
    let _ = g
        .run(&line(&["--entrypoint=", &image, "no-such-program"]))
        .exits(127)
        .complains(&["no-such-program", "was taken for the command of the app"]);
}

#[test]
fn words_of_other_tools() {
    let g = Gantry::new();
    for (line, says) in [
        (&["prune"][..], &["gantry gc"][..]),
        (&["restart", "x"], &["a pod runs once", "gantry stop"]),
        (&["create", "x"], &["gantry prepare"]),
        (&["cp", "a", "b"], &["gantry exec -i"]),
        (&["image", "prune"], &["gantry image gc"]),
        (&["network", "create", "x"], &["/etc/gantry/net.d"]),
        (&["st", "x"], &["short for several: status, stop"]),
        (&["rm", "--everything"], &["--everything"]),
        (&["run", "--init", "x"], &["--init", "leave it out"]),
        (&["run", "--health-cmd=x", "x"], &["--health-cmd", "not run"]),
    ] {
        let out = g.run(line).exits(FAILED).complains(says);
        assert!(!out.stderr.contains("tip:") && out.stdout.is_empty(), "{out}");
    }
    assert_eq!(g.run(&["im", "ls", "-q"]).ok().stdout, "");
    let out = g.run(&[]).exits(FAILED);
    assert!(out.stderr.starts_with("Run pods of apps"), "help alone: {out}");
}

#[test]
fn what_cannot_begin_is_no_answer() {
    let g = Gantry::new();
    let _ = g
        .run(&["--config=/no/such/file", "list"])
        .exits(FAILED)
        .complains(&["/no/such/file", "No such file or directory"]);
    let _ = g.run(&["--dir=/proc/gantry", "list"]).exits(FAILED).complains(&["/proc/gantry"]);
}

#[test]
fn only_root_looks() {
    use std::os::unix::process::CommandExt as _;
    let g = Gantry::new();
    let _ = g.fixture();
    for command in ["list", "images", "status", "doctor", "events"] {
        let words = [command, "x"];
        let words = if command == "status" { &words[..] } else { &words[..1] };
        match g.command(words).uid(65534).gid(65534).current_dir("/").output() {
            Ok(out) => {
                let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
                assert_eq!(out.status.code(), Some(FAILED), "{command}: {stderr}");
                assert!(stderr.contains("needs root"), "{command}: {stderr}");
            }
            // Built below a directory that only root can enter, it cannot even be started by others.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        }
    }
}

#[test]
fn volumes_as_docker_spells_them() {
    let g = Gantry::new();
    let image = g.fixture();
    // The harness's home is the working directory of its commands.
    std::fs::write(g.scratch().join("page"), "hello").unwrap();
    let out = g.run(&line(&["-v", "./scratch:/data:ro,z", &image, "cat", "/data/page"])).ok();
    assert_eq!(out.text(), "hello");
    let out = g.run(&line(&["-v", "/no/such/place:/x", &image, "true"])).exits(FAILED);
    let out = out.complains(&["/no/such/place does not exist on this host"]);
    assert!(!out.stderr.contains("bind-"), "{out}");
    assert!(g.list().is_empty());
    let _ = g.run(&line(&["-m", "64MB", &image, "true"])).ok();
}
