//! Invalid input: the message names the operation, the object and the remedy, the exit code fits, and nothing is left
//! behind.

use std::path::Path;

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, Signal, install_program, pod_id, wait_for};
use serde_json::Value;

/// The exit code of gantry's own failures.
const FAILED: i32 = 125;

#[test]
fn unexecutable_commands_are_reported() {
    let g = Gantry::new();
    let image = g.fixture();
    for (exec, code, says) in [
        ("/bin/missing", 127, "/bin/missing"),
        ("missing", 127, "missing"),
        ("/bin/dangling", 127, "/bin/dangling"),
        ("/bin/noint", 127, "/bin/noint"),
        ("/bin/notexec", 126, "/bin/notexec"),
        ("/bin/directory", 126, "/bin/directory"),
        ("/bin/garbage", 126, "/bin/garbage"),
        ("/bin/loop", 126, "/bin/loop"),
    ] {
        let out = g.run(&["run", "--net=none", &image, "--exec", exec]);
        assert!(out.code == code || (exec == "/bin/loop" && out.code == 127), "{exec}: {out}");
        let _ = out.stderr_contains(&[says]);
    }
    let _ = g.run(&["run", "--net=none", &image, "--user=app", "--exec=/bin/rootonly"]).exits(126);
}

#[test]
fn users_are_resolved_strictly() {
    let g = Gantry::new();
    for user in [
        "stranger",
        "4294967296",
        "-1",
        "0x0",
        "root\n",
        "",
        "app:stranger",
        "/no/such/file",
        "app:-1",
        ":",
        ":stranger",
    ] {
        let out = g.app(&["--user", user], &["ids"]).exits(FAILED);
        assert_eq!(out.stdout, "", "user '{user}' ran");
        let _ = out.stderr_contains(&[]);
    }
    let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755).dir("etc", 0o755);
    for (i, passwd) in
        ["twice:x:1:1::/:\ntwice:x:0:0::/:\n", "bad:x:-1:0::/:\n", "bad:x:4294967296:0::/:\n"].into_iter().enumerate()
    {
        let image =
            Image::builder().layer(layer.clone().file("etc/passwd", passwd, 0o644)).entrypoint(&["/bin/app"]).build();
        let image = g.import(&format!("passwd-{i}"), &image.unwrap());
        let name = passwd.split(':').next().unwrap();
        let out = g.run(&["run", "--net=none", &image, "--user", name, "--", "ids"]);
        // The first line with a name applies, as in glibc; an id out of range is an error.
        assert!(out.code == FAILED || out.stdout.contains("Uid: 1 1 1 1"), "{passwd:?}: {out}");
    }
}

#[test]
fn unknown_flags_and_commands_are_rejected() {
    let g = Gantry::new();
    let image = g.fixture();
    for (line, says) in [
        (&["run", "--no-such-flag", "x"][..], &["--no-such-flag"][..]),
        (&["run", "--hostnam=x", "x"], &["--hostnam", "--hostname"]),
        (&["no-such-command"], &["no-such-command"]),
        (&["run"], &["image"]),
        (&["run", "--net=none"], &["image"]),
        (&["run", "--net=lan,lan", &image], &["--net", "lan"]),
        (&["run", "--net=host", "--net", &image], &["--net", "host"]),
        (&["run", "--private-users", &image], &["--private-users"]),
        (&["run", "--port=80", &image], &["--port", "--net=none"]),
        (&["run", "--port=Http:80", &image], &["--port", "HOSTPORT"]),
        (&["run", &image, "--memory=lots"], &["lots", "64Mi"]),
        (&["run", &image, "--memory=4095"], &["memory"]),
        (&["run", &image, "--cpu=0.0001"], &["cpu"]),
        (&["run", &image, "--oom-score-adj=1001"], &["1001"]),
        (&["run", &image, "--caps-retain=CAP_NO_SUCH"], &["CAP_NO_SUCH"]),
        (&["run", &image, "--caps-retain=CAP_KILL", "--caps-remove=CAP_CHOWN"], &["caps"]),
        (&["--insecure-options=sloppy", "list"], &["sloppy"]),
    ] {
        let out = g.run(line);
        assert_ne!(out.code, 0, "{out}");
        let out = out.exits(FAILED).stderr_contains(says);
        assert_eq!(out.stdout, "", "complaints belong on stderr: {out}");
    }
    assert!(g.list().is_empty(), "a pod was made of nonsense");
}

#[test]
fn missing_pods_are_reported() {
    let g = Gantry::new();
    let _ = g.fixture();
    let unknown = "00000000-0000-4000-8000-000000000000";
    for (line, code) in [
        (&["status", unknown][..], 1),
        (&["rm", unknown], 1),
        (&["stop", unknown], 1),
        (&["kill", unknown], 1),
        (&["logs", unknown], 1),
        (&["inspect", unknown], 1),
        (&["cat-manifest", unknown], 1),
        (&["exec", unknown, "--", "/bin/app", "true"], FAILED),
        (&["run-prepared", unknown], FAILED),
    ] {
        let _ = g.run(line).exits(code).stderr_contains(&["00000000"]);
    }
    for bad in ["xyz", "../../etc", "-", "", "00000000-0000-4000-8000-0000000000000", "\u{1b}[31m"] {
        let out = g.run(&["status", "--", bad]);
        assert_ne!(out.code, 0, "{out}");
        let _ = out.stderr_contains(&["pod"]);
    }
}

#[test]
fn ambiguous_prefixes_are_refused() {
    let g = Gantry::new();
    let image = g.fixture();
    // Of seventeen ids, two share the first digit.
    let all: Vec<String> = (0..17).map(|_| pod_id(&g.run(&["prepare", &image]).ok())).collect();
    let shared = all.iter().map(|id| &id[..1]).find(|digit| all.iter().filter(|id| id.starts_with(digit)).count() > 1);
    let _ = g.run(&["rm", shared.unwrap()]).exits(FAILED).stderr_contains(&["pods", "among them"]);
    assert_eq!(g.list().len(), 17, "nothing may be removed by half a name");
}

#[test]
fn invalid_names_are_rejected() {
    let g = Gantry::new();
    let long = "a".repeat(64);
    for name in ["", "..", "a/b", "a b", "-a", "a-", "A", "a\nb", "\u{202e}gnp", "\u{1b}[31mred", &long] {
        let _ = g.app(&["--name", name], &["true"]).exits(FAILED).stderr_contains(&["name"]);
    }
    for name in ["", "a b", "a\nb", &"h".repeat(65), "../x"] {
        let _ = g.app(&["--hostname", name], &["true"]).exits(FAILED).stderr_contains(&["host"]);
    }
    let image = g.fixture();
    let _ = g
        .run(&["run", &image, "--name=same", &image, "--name=same"])
        .exits(FAILED)
        .stderr_contains(&["same", "--name"]);
    assert!(g.list().is_empty());
}

#[test]
fn invalid_environments_are_rejected() {
    let g = Gantry::new();
    for entry in ["", "=x", "line\nbreak=x"] {
        let out = g.app(&["--environment", entry], &["true"]);
        assert!(out.code == FAILED || entry.ends_with('='), "{entry}: {out}");
    }
    let out = g.app(&["--environment=HOME=/x\nroot2:x:0:0::/:/bin/app"], &["cat", "/etc/passwd"]);
    assert!(!out.stdout.contains("root2"), "a line of the environment reached /etc/passwd: {out}");
    let out = g.app(&["--environment=MULTI=one\ntwo=3"], &["env"]).ok();
    assert!(out.stdout.contains("MULTI=one\ntwo=3"), "newlines are allowed in values: {out}");
    let mut command = g.command(&["run", "--net=none", &g.fixture()]);
    command.arg(format!("--environment=BIG={}", "x".repeat(120_000))).args(["--", "true"]);
    let big = command.output().unwrap();
    assert!(big.status.success(), "120 kB fit the kernel's limit: {}", String::from_utf8_lossy(&big.stderr));
}

#[test]
fn invalid_working_directories_are_rejected() {
    let g = Gantry::new();
    for path in ["relative", "/proc/self/fd/7", "/proc/1/root", "/../..", "/etc/passwd", "/procself/etc", ""] {
        let out = g.app(&["--working-dir", path], &["cwd"]);
        let host = std::fs::read_dir("/").unwrap().count();
        assert!(out.code == FAILED, "{path} (the host has {host} names in /): {out}");
        let _ = out.stderr_contains(&[]);
    }
}

#[test]
fn invalid_mounts_are_rejected() {
    let g = Gantry::new();
    let image = g.fixture();
    let volume = format!("--volume=v,kind=host,source={}", g.scratch().display());
    for target in ["/", "/proc", "/proc/sys", "/dev", "/a/../../b", "relative", ""] {
        let mount = format!("--mount=volume=v,target={target}");
        let _ = g.run(&["run", "--net=none", &volume, &image, &mount, "--", "true"]).exits(FAILED).stderr_contains(&[]);
    }
    for (volume, mount, says) in [
        ("--volume=v,kind=host,source=/does/not/exist", "--mount=volume=v,target=/m", "/does/not/exist"),
        ("--volume=v,kind=host,source=relative", "--mount=volume=v,target=/m", "relative"),
        ("--volume=v,kind=magic", "--mount=volume=v,target=/m", "magic"),
        ("--volume=v,kind=empty", "--mount=volume=w,target=/m", "w"),
    ] {
        let _ =
            g.run(&["run", "--net=none", volume, &image, mount, "--", "true"]).exits(FAILED).stderr_contains(&[says]);
    }
    g.check_invariants();
}

#[test]
fn missing_images_are_reported() {
    let g = Gantry::new();
    let empty = g.scratch().join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let empty = format!("oci:{}", empty.display());
    for (reference, says) in [
        ("oci:/does/not/exist", "/does/not/exist"),
        ("oci-archive:/does/not/exist.tar", "/does/not/exist.tar"),
        ("docker-archive:/does/not/exist.tar", "/does/not/exist.tar"),
        (empty.as_str(), "empty"),
        ("sha256:0123456789abcdef", "0123456789abcdef"),
        ("sha256:xyz", "xyz"),
        ("docker://127.0.0.1:1/nobody/there:1", "127.0.0.1:1"),
        ("Not A Name", "Not A Name"),
        ("ftp://host/x", "ftp://"),
        ("", "image"),
    ] {
        for command in ["fetch", "run"] {
            let out = g.run(&[command, reference]);
            assert_ne!(out.code, 0, "{out}");
            let _ = out.stderr_contains(&[says]);
        }
    }
    let _ = g.run(&["run", "no-such-short-name"]).exits(FAILED).stderr_contains(&["no-such-short-name"]);
    assert!(g.list().is_empty());
}

#[test]
fn images_without_a_command_are_rejected() {
    let g = Gantry::new();
    let image = Image::builder().layer(Layer::new().file("x", b"x", 0o644)).build().unwrap();
    let image = g.import("mute", &image);
    let _ = g.run(&["run", "--net=none", &image]).exits(FAILED).stderr_contains(&["--exec"]);
}

#[test]
fn untrusted_data_directories_are_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let g = Gantry::new();
    let open = g.scratch().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    let link = g.scratch().join("link");
    std::os::unix::fs::symlink("/tmp", &link).unwrap();
    let file = g.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    for dir in [&open, &link, &file] {
        // Without the --dir of the harness, because the last one counts.
        let out = std::process::Command::new(g.command(&[]).get_program()).arg("--dir").arg(dir).arg("gc").output();
        let out = out.unwrap();
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(FAILED), "{}: {stderr}", dir.display());
        assert!(stderr.contains(&dir.display().to_string()), "{stderr}");
    }
}

#[test]
fn other_users_are_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::CommandExt as _;
    let g = Gantry::new();
    let image = g.fixture();
    // Other users can enter neither the test's nor the build directory, so the program is copied.
    let open = tempfile::Builder::new().prefix("gantry-for-all-").tempdir().unwrap();
    std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let program = open.path().join("gantry");
    let model = g.command(&["run", &image, "--", "true"]);
    std::fs::copy(model.get_program(), &program).unwrap();
    let mut command = std::process::Command::new(&program);
    let out = command.args(model.get_args()).uid(65534).gid(65534).current_dir("/").output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(FAILED), "{stderr}");
    assert!(stderr.contains("root"), "{stderr}");
}

#[test]
fn failures_leave_nothing() {
    let g = Gantry::new();
    let image = g.fixture();
    let _ = g.run(&["run", "--net=none", "--rm", &image, "--exec=/bin/missing"]).exits(127);
    let _ = g.run(&["run", "--net=none", &image, "--name=one", "--exec=/bin/missing", &image, "--name=two"]).exits(127);
    g.check_invariants();
}

/// The supervisor ends before it reads its plan, so writing the plan fails as well. Its own words are the cause.
#[test]
fn early_ends_of_the_supervisor_are_explained() {
    let g = Gantry::new();
    let image = g.fixture();
    let broken = g.scratch().join("broken-stage1");
    install_program(g.write("broken-stage1.sh", "#!/bin/sh\necho 'a library is missing' >&2\nexit 127\n"), &broken);
    for flags in [&["--rm"][..], &[]] {
        let args = [&["run", "--net=none"], flags, &[&*image, "--", "true"]].concat();
        let out = g.spawn_command(g.command(&args).env("GANTRY_STAGE1", &broken)).wait();
        let _ = out.exits(FAILED).stderr_contains(&["ended without a reply", "a library is missing"]);
    }
    let phases: Vec<_> = g.list().iter().map(|pod| pod["phase"].clone()).collect();
    assert_eq!(phases, ["aborted-prepare"]);
    g.check_invariants();
}

/// A supervisor that cannot start its pod: it stops its starter, then ends and replies. Writes its process id to `pid`.
#[track_caller]
fn install_stopping_supervisor(g: &Gantry, program: &Path, pid: &Path) {
    let script = format!(
        "#!/bin/sh\necho $$ >{}\nreply=$({} \"$@\")\ncode=$?\nkill -STOP $PPID\nprintf '%s\\n' \"$reply\"\nexit $code\n",
        pid.display(),
        g.own_supervisor().display()
    );
    install_program(g.write("stops-its-starter.sh", &script), program);
}

#[test]
fn readers_do_not_hide_why_a_start_failed() {
    let g = Gantry::new();
    let image = g.fixture();
    let (program, pid) = (g.scratch().join("stops-its-starter"), g.scratch().join("pid"));
    install_stopping_supervisor(&g, &program, &pid);
    // Continues the command after the supervisor has ended, when `meanwhile` has read the pod.
    let with_unread_failure = |args: &[&str], meanwhile: &dyn Fn()| {
        let command = g.spawn_command(g.command(args).env("GANTRY_STAGE1", &program));
        wait_for("the supervisor to end", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", std::fs::read_to_string(&pid).ok()?.trim()));
            stat.ok().filter(|stat| stat.contains(") Z ")).map(drop)
        });
        meanwhile();
        command.signal(Signal::CONT);
        command.wait()
    };

    let run = ["run", "--net=none", &image, "--exec=/bin/missing"];
    let is_being_started = |phase: &Value| *phase == "embryo" || *phase == "preparing";
    let out = with_unread_failure(&run, &|| assert!(is_being_started(&g.list()[0]["phase"])));
    let _ = out.exits(127).stderr_contains(&["/bin/missing"]);
    let pods = g.list();
    assert_eq!((pods.len(), &pods[0]["phase"]), (1, &"aborted-prepare".into()));
    let status = g.run(&["status", pods[0]["id"].as_str().unwrap_or_default()]).ok();
    assert!(status.stdout.contains("/bin/missing"), "{status}");

    let source = g.scratch().join("source");
    std::fs::create_dir(&source).unwrap_or_else(|error| panic!("{error}"));
    let volume = format!("--volume=v,kind=host,source={}", source.display());
    let pod = g.detached(&[&volume, "--mount=volume=v,target=/v"], &["sleep", "forever"]);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    std::fs::remove_dir(&source).unwrap_or_else(|error| panic!("{error}"));
    let out = with_unread_failure(&["start", &pod], &|| assert_eq!(g.status(&pod)["phase"], "starting"));
    assert!(out.code != 0 && out.stderr.contains("source"), "{out}");
    let status = g.status(&pod);
    assert_eq!(status["phase"], "exited", "{status}");
    assert!(status["restart_failure"].as_str().is_some_and(|why| why.contains("source")), "{status}");
}

/// A start with `--rm` mounts the app's root as a volatile overlay, which cannot be mounted a second time.
#[test]
fn failed_prepared_pods_can_be_started_again() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--exec=/bin/missing"]).ok());
    for flags in [&["--rm"][..], &["--rm"], &[]] {
        let _ = g.run(&[&["run-prepared"], flags, &[&pod]].concat()).exits(127).stderr_contains(&["/bin/missing"]);
    }
    g.run(&["rm", &pod]).succeeded();
    g.check_invariants();
}
