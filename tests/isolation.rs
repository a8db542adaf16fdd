//! An app's view of the system, and its limits.

use gantry_fixtures::{Image, Layer};
use std::time::{Duration, Instant};

use gantry_tests::{Gantry, app, pod_id, wait_for};

#[test]
fn users_and_groups_are_applied() {
    let g = Gantry::new();
    for (flags, uid, gid, groups) in [
        (&[][..], "0", "0", &["0"][..]),
        (&["--user=app"], "1000", "1000", &["50", "1000", "2000"]),
        (&["--user=1000"], "1000", "1000", &["50", "1000", "2000"]),
        (&["--user=app:staff"], "1000", "50", &["50"]),
        (&["--user=1234"], "1234", "0", &["0"]),
        (&["--user=1234:5678"], "1234", "5678", &["5678"]),
        (&["--user=app", "--group=other"], "1000", "1001", &["1001"]),
        (&["--user=/data/owned"], "1000", "50", &["50"]),
        (&["--user=other", "--supplementary-gids=7,8"], "1001", "1001", &["7", "8", "50"]),
        (&["--user=1234:5678", "--group-add=staff,7", "--group-add=app"], "1234", "5678", &["7", "50", "1000", "5678"]),
    ] {
        let out = g.app(flags, &["ids"]).ok();
        let row = |name: &str| {
            let line = out.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
            line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("Uid"), [uid; 4], "{flags:?}");
        assert_eq!(row("Gid"), [gid; 4], "{flags:?}");
        let mut want: Vec<&str> = [groups, &[gid]].concat();
        want.sort_unstable_by_key(|group| group.parse::<u32>().unwrap());
        want.dedup();
        assert_eq!(row("Groups"), want, "{flags:?}: the primary group is among them: {out}");
    }
    let unknown = g.app(&["--group-add=absent"], &["ids"]).exits(125);
    let _refused = unknown.stderr_contains(&["group 'absent'", "neither in the image nor a number"]);
}

#[test]
fn environment_and_working_directory_are_applied() {
    let g = Gantry::new();
    let out = g.app(&["--user=app", "--environment=A=1", "--environment=FIXTURE=over"], &["env"]).ok();
    let has = |line: &str| out.stdout.lines().any(|have| have == line);
    assert!(has("A=1") && has("FIXTURE=over") && has("PATH=/usr/local/bin:/bin") && has("HOME=/home/app"), "{out}");
    for secret in ["LISTEN_FDS", "GANTRY", "CARGO", "SSH_"] {
        assert!(!out.stdout.contains(secret), "the caller's environment came through: {out}");
    }
    assert_eq!(g.app(&[], &["cwd"]).ok().text(), "/");
    assert_eq!(g.app(&["--working-dir=/data"], &["cwd"]).ok().text(), "/data");
}

#[test]
fn the_hostname_is_set() {
    let g = Gantry::new();
    assert_eq!(g.app(&["--hostname=box"], &["hostname"]).ok().text(), "box");
    assert_eq!(g.app(&["-h", "box"], &["hostname"]).ok().text(), "box");
    let out = g.app(&[], &["hostname"]).ok();
    assert!(out.text().starts_with("gantry-"), "{out}");
}

#[test]
fn default_confinement_is_applied() {
    let g = Gantry::new();
    let out = g.app(&[], &["caps"]).ok();
    let of = |name: &str| {
        let line = out.stdout.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((of("NoNewPrivs").as_str(), of("Seccomp").as_str()), ("1", "2"), "{out}");
    assert_eq!(of("CapInh"), "0000000000000000", "{out}");
    let sys_admin = 1u64 << 21;
    assert_eq!(u64::from_str_radix(&of("CapBnd"), 16).unwrap() & sys_admin, 0, "{out}");
    let as_user = g.app(&["--user=app"], &["caps"]).ok();
    assert!(as_user.stdout.contains("CapEff: 0000000000000000"), "{as_user}");
    let none = g.app(&["--caps-retain="], &["caps"]).ok();
    assert!(none.stdout.contains("CapBnd: 0000000000000000"), "{none}");
}

#[test]
fn dangerous_system_calls_are_denied() {
    let g = Gantry::new();
    for (verb, what) in [
        (&["mount-try"][..], "mount: E"),
        (&["unshare-try"], "unshare: EPERM"),
        (&["keyctl-try"], "keyctl: E"),
        (&["io-uring-try"], "io_uring_setup: E"),
        (&["bpf-try"], "bpf: E"),
        (&["userfaultfd-try"], "userfaultfd: E"),
    ] {
        let _ = g.app(&[], verb).exits(3).stdout_contains(what);
    }
}

#[test]
fn sensitive_paths_are_masked_or_read_only() {
    let g = Gantry::new();
    assert_eq!(g.app(&[], &["cat", "/proc/interrupts"]).ok().stdout, "");
    assert_eq!(g.app(&[], &["ls", "/sys/firmware"]).ok().stdout, "");
    let _ = g.app(&[], &["write", "/proc/sys/kernel/hostname", "x"]).exits(1);
    let _ = g.app(&[], &["write", "/proc/sysrq-trigger", "x"]).exits(1);
    let _ = g.app(&[], &["open-try", "/dev/null"]).ok();
    assert_eq!(g.app(&[], &["stat", "/dev/null"]).ok().text(), "char 0666 0 0 0 1:3 1 /dev/null");
    let _ = g.app(&[], &["mknod-try", "/dev/full2"]).exits(3).stdout_contains("mknod: EPERM");
    let _ = g.app(&["--cap-add=MKNOD"], &["mknod-try", "/dev/full2"]).ok();
    // Outside of /dev, device nodes cannot be opened, whether created by the app or part of the image.
    let _ = g.app(&["--cap-add=MKNOD"], &["mknod-try", "/tmp/full"]).exits(3).stdout_contains("open: EACCES");
    // No app can open the host's console through any device node.
    let _ =
        g.app(&["--cap-add=MKNOD"], &["mknod-try", "/dev/console2", "5", "1"]).exits(3).stdout_contains("open: EPERM");
    assert_eq!(g.app(&[], &["ls", "/sys/dev/block"]).ok().stdout, "");
    if std::path::Path::new("/proc/dynamic_debug/control").exists() {
        let _ = g.app(&[], &["write", "/proc/dynamic_debug/control", "x"]).exits(1).stderr_contains(&["Read-only"]);
    }
}

#[test]
fn descriptors_and_variables_are_not_inherited() {
    let g = Gantry::new();
    let fds = g.app(&[], &["fds"]).ok();
    assert_eq!(fds.stdout.lines().count(), 3, "descriptors beyond stdin, stdout and stderr: {fds}");
    let mask = g.app(&[], &["sigmask"]).ok();
    for line in ["SigBlk: 0000000000000000", "SigIgn: 0000000000000000", "SigCgt: 0000000000000000"] {
        assert!(mask.stdout.contains(line), "{mask}");
    }
    let mounts = g.app(&[], &["mounts"]).ok();
    let home = g.dir().parent().unwrap().display().to_string();
    let visible = mounts.stdout.lines().filter(|line| line.split(' ').nth(4).is_some_and(|at| at.contains(&home)));
    assert_eq!(visible.count(), 0, "{mounts}");
}

#[test]
fn host_processes_are_invisible() {
    let g = Gantry::new();
    let out = g.app(&[], &["pids"]).ok();
    assert!(out.stdout.lines().count() <= 3, "{out}");
    assert!(!out.stdout.contains("cargo"), "{out}");
}

#[test]
fn network_modes_none_and_host() {
    let g = Gantry::new();
    let _ = g.app(&[], &["connect", "127.0.0.1", "1"]).exits(1).stderr_contains(&["refused"]);
    assert_eq!(g.app(&[], &["cat", "/proc/net/dev"]).ok().stdout.lines().count(), 3, "loopback alone");
    let host = std::fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
    let image = g.fixture();
    let out = g.run(&["run", "--net=host", &image, "--", "ns"]).ok();
    assert!(out.stdout.contains(&format!("net {host}")), "{out}");
    assert!(!g.app(&[], &["ns"]).ok().stdout.contains(&host));
}

#[test]
fn layers_form_one_root() {
    let g = Gantry::new();
    let out = g.app(&[], &["cat", "/lower/kept", "/replaced/new", "/etc/gantry-fixture"]).ok();
    assert_eq!(out.stdout, "from the lower layer\nfrom the upper layer\nstandard\n");
    assert_eq!(g.app(&[], &["ls", "/lower"]).ok().stdout, "kept\n", "a whiteout removes");
    assert_eq!(g.app(&[], &["ls", "/replaced"]).ok().stdout, "new\n", "an opaque directory hides");
    let stat = g.app(&[], &["stat", "/data/owned", "/tmp", "/bin/app-hard"]).ok().stdout;
    assert!(stat.contains("file 0640 1000 50 ") && stat.contains("dir 1777 0 0 "), "{stat}");
}

#[test]
fn writes_stay_in_the_pod() {
    let g = Gantry::new();
    let _ = g.app(&[], &["seq", "write", "/etc/gantry-fixture", "changed", "--", "rm", "/lower"]).ok();
    assert_eq!(
        g.app(&[], &["cat", "/etc/gantry-fixture", "/lower/kept"]).ok().stdout,
        "standard\nfrom the lower layer\n"
    );
}

#[test]
fn a_read_only_root_rejects_writes() {
    let g = Gantry::new();
    let _ = g.app(&["--readonly-rootfs"], &["write", "/etc/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
}

#[test]
fn escaping_links_resolve_beneath_the_root() {
    let g = Gantry::new();
    assert!(g.app(&[], &["ls", "/escape"]).ok().stdout.contains("gantry-fixture"));
    let source = g.scratch().join("vol");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("file"), "host\n").unwrap();
    let volume = format!("--volume=v,kind=host,source={}", source.display());
    let image = g.fixture();
    let mount = "--mount=volume=v,target=/escape/deep";
    let out = g.run(&["run", "--net=none", &volume, mount, &image, "--", "cat", "/etc/deep/file"]);
    assert!(!std::path::Path::new("/etc/deep").exists(), "the mount point was made on the host");
    assert!(out.code == 125 || out.stdout == "host\n", "{out}");
}

#[test]
fn volumes_are_mounted() {
    let g = Gantry::new();
    let source = g.scratch().join("vol");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("file"), "host\n").unwrap();
    let host = format!("--volume=v,kind=host,source={}", source.display());
    let image = g.fixture();
    let run = |volume: &str, mount: &str, verb: &[&str]| {
        g.run(&[&["run", "--net=none", volume, mount, &image, "--"], verb].concat())
    };
    assert_eq!(run(&host, "--mount=volume=v,target=/new/deep", &["cat", "/new/deep/file"]).ok().stdout, "host\n");
    run(&host, "--mount=volume=v,target=/m", &["write", "/m/back", "app"]).succeeded();
    assert_eq!(std::fs::read_to_string(source.join("back")).unwrap(), "app\n");
    let read_only = format!("{host},readOnly=true");
    let _ =
        run(&read_only, "--mount=volume=v,target=/m", &["write", "/m/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    let empty = "--volume=v,kind=empty,mode=0750,uid=1000,gid=50";
    let out = run(empty, "--mount=volume=v,target=/m", &["seq", "stat", "/m", "--", "ls", "/m"]).ok();
    assert!(out.stdout.starts_with("dir 0750 1000 50 "), "{out}");
    assert_eq!(out.stdout.lines().count(), 1, "an empty volume is empty: {out}");
}

#[test]
fn resource_limits_are_enforced() {
    let g = Gantry::new();
    let _ = g.app(&["--memory=32Mi"], &["alloc", "8"]).ok();
    let _ = g.app(&["--memory=32Mi", "--name=fat"], &["alloc", "256"]).exits(137);
    let status = g.list().into_iter().find(|pod| pod["exit_code"] == 137).unwrap();
    assert_eq!(app(&g.status(status["id"].as_str().unwrap()), "fat")["oom"], true);
    let _ = g.app(&["--pids-limit=30"], &["fork-bomb", "200"]).exits(3).stdout_contains("of 200");
    let _ = g.app(&["--pids-limit=30"], &["threads", "200"]).exits(3);
    assert_eq!(g.app(&["--oom-score-adj=500"], &["oom-adj"]).ok().text(), "500");
    let low = g.app(&["--oom-score-adj=-500"], &["oom-adj"]).ok();
    let has_warning = low.stderr.contains("--oom-score-adj has no effect: lowering it to -500 needs CAP_SYS_RESOURCE");
    assert_eq!(low.text() != "-500", has_warning, "{low}");
    // The kernel refuses a quota below 1 % of a processor.
    let _ = g.app(&["--cpu=1m"], &["true"]).ok();
}

/// Writing a log costs the supervisor more than the app that prints: an app with a cpu limit must not evade it this
/// way.
#[test]
fn logging_cannot_evade_the_cpu_limit() {
    let g = Gantry::new();
    let pod = g.detached(&["--cpu=50m", "--name=it"], &["newlines"]);
    let supervisor = g.supervisor(&pod);
    let log = g.dir().join("pods").join(&pod).join("logs/it/0.log");
    wait_for("the log to be written", || std::fs::metadata(&log).is_ok_and(|meta| meta.len() > 100_000).then_some(()));
    let (begin, used) = (Instant::now(), processor_time(supervisor));
    let _ = g.app(&[], &["sleep", "5"]).ok();
    let (took, used) = (begin.elapsed(), processor_time(supervisor) - used);
    assert!(used < took / 4, "5 % of a processor for the app, {used:?} of {took:?} for its supervisor");
    g.run(&["kill", &pod]).succeeded();
    g.wait_state(&pod, "exited");
}

/// The processor time that a process has used: fields 14 and 15 of proc_pid_stat(5), in hundredths of a second.
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').skip(11).take(2)).into_iter().flatten();
    Duration::from_millis(fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() * 10)
}

#[test]
fn orphans_are_reaped_and_end_with_the_app() {
    let g = Gantry::new();
    let pod = g.detached(
        &[],
        &[
            "seq",
            "fork-orphans",
            "5",
            "0",
            "--",
            "fork-children",
            "1",
            "0.2",
            "--",
            "pids",
            "--",
            "print",
            "over",
            "--",
            "sleep",
            "forever",
        ],
    );
    let log = g.wait_log(&pod, "over");
    assert!(!log.lines().any(|line| line.split_whitespace().nth(2) == Some("Z")), "zombies:\n{log}");
    let _ = g.app(&[], &["seq", "fork-orphans", "3", "forever", "--", "exit", "2"]).exits(2);
    let _ = g.run(&["kill", &pod]).ok();
    g.wait_state(&pod, "exited");
    g.check_invariants();
}

#[test]
fn orphans_in_the_hosts_pid_namespace_are_reaped() {
    let g = Gantry::new();
    let pod = g
        .detached(&["--pid=host"], &["seq", "fork-orphans", "5", "0", "--", "print", "over", "--", "sleep", "forever"]);
    g.wait_log(&pod, "over");
    g.run(&["exec", &pod, "--", "/bin/app", "fork-orphans", "3", "0"]).succeeded();
    let supervisor = g.supervisor(&pod);
    let children = || std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    // PID 1 of the pod and the app.
    wait_for("the orphans to be reaped", || (children().split_whitespace().count() == 2).then_some(()));
    let _ = g.run(&["exec", &pod, "--", "/bin/app", "exit", "3"]).exits(3);
    let _ = g.run(&["kill", &pod]).ok();
    g.wait_state(&pod, "exited");
    g.check_invariants();
}

/// Adds one unusual thing to a root file system.
type Change = fn(Layer) -> Layer;

#[test]
fn unusual_roots_start_or_are_rejected() {
    let rows: [(&str, Change); 7] = [
        ("proc is a link", |layer| layer.symlink("proc", "/etc")),
        ("dev is a link", |layer| layer.symlink("dev", "/../../etc")),
        ("sys is a file", |layer| layer.file("sys", b"x", 0o644)),
        ("passwd is a fifo", |layer| layer.device("etc/passwd", gantry_fixtures::Device::Fifo, 0o644)),
        ("passwd is a directory", |layer| layer.dir("etc/passwd", 0o755)),
        ("passwd is a link out", |layer| layer.symlink("etc/passwd", "/../../../etc/passwd")),
        ("etc/resolv.conf is a link", |layer| layer.symlink("etc/resolv.conf", "/proc/self/mem")),
    ];
    let g = Gantry::new();
    for (i, (what, change)) in rows.into_iter().enumerate() {
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755).dir("etc", 0o755);
        let image = Image::builder().layer(change(layer)).entrypoint(&["/bin/app"]).build().unwrap();
        let image = g.import(&format!("strange-{i}"), &image);
        let out = g.run(&["run", "--net=none", "--user=nobody", &image, "--", "true"]);
        let by_number = g.run(&["run", "--net=none", "--user=1:1", &image, "--", "true"]);
        assert!(out.code == 125, "{what}: no file here defines the user nobody: {out}");
        assert!(matches!(by_number.code, 0 | 125), "{what}: {by_number}");
    }
}

#[test]
fn pods_of_different_images_do_not_share_files() {
    let g = Gantry::new();
    let image = |text: &str| {
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        Image::builder().layer(layer).layer(Layer::new().file("which", text, 0o644)).entrypoint(&["/bin/app"]).build()
    };
    let one = g.import("one", &image("one\n").unwrap());
    let two = g.import("two", &image("two\n").unwrap());
    let run = |image: &str| g.run(&["run", "--net=none", image, "--", "cat", "/which"]).ok().stdout;
    assert_eq!((run(&one).as_str(), run(&two).as_str()), ("one\n", "two\n"));
    let both = pod_id(&g.run(&["prepare", &one, "--name=one", &two, "--name=two"]).ok());
    assert_eq!(g.status(&both)["apps"].as_array().map(Vec::len), Some(2));
}

/// CAP_SYS_PTRACE permits inspection of every process of the pod. PID 1 must expose nothing: the host's /proc, visible
/// from the supervisor's root, would lead to the host.
#[test]
fn cap_sys_ptrace_does_not_reach_the_host() {
    let g = Gantry::new();
    let flags = ["--cap-add=CAP_SYS_PTRACE"];
    assert_eq!(g.app(&flags, &["ls", "/proc/1/root"]).ok().stdout, "", "PID 1 sees files");
    assert_eq!(g.app(&flags, &["ls", "/proc/1/root/.."]).ok().stdout, "", "PID 1 sees files");
    assert_eq!(g.app(&flags, &["ls", "/proc/1/fd"]).ok().stdout, "", "PID 1 has descriptors");
    let status = g.app(&flags, &["cat", "/proc/1/status"]).ok().stdout;
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "PID 1 is not filtered: {status}");
    let _ = g.app(&[], &["ls", "/proc/1/root"]).exits(1).stderr_contains(&["denied"]);
}

#[test]
fn other_users_can_reopen_their_output() {
    let g = Gantry::new();
    let out = g.app(&["--user=app"], &["write", "/proc/self/fd/1", "by name"]).ok();
    assert_eq!(out.stdout, "by name\n");
    let pod = g.detached(&[], &["sleep", "forever"]);
    let line = ["exec", "--user=app", &pod, "--", "/bin/app", "write", "/proc/self/fd/1", "by name"];
    assert_eq!(g.run(&line).ok().stdout, "by name\n");
}
