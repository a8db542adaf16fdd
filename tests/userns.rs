//! User namespaces of pods: the ids of their processes and files, and what their root cannot do.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;

use gantry_tests::{Gantry, Out, Space, Terminal, app, pod_id, wait_for};
use rustix::process::{Pid, Signal, kill_process};

const FAILED: i32 = 125;

/// The id of the host that root of the tests' pods is.
const ROOT: u32 = 300_000;
/// The flag for it.
const USERNS: &str = "--userns=300000";

/// The user of a process of the host.
fn user_of(process: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// A namespace of a process of the host.
fn namespace(process: u32, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap()
}

/// A file of the writable layer of a pod's app on the host: type and permissions, user, group.
fn on_disk(g: &Gantry, pod: &str, app: &str, path: &str) -> (u32, u32, u32) {
    let path = g.dir().join("pods").join(pod).join("apps").join(app).join("upper").join(path);
    let file = fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (file.mode() & 0o7777, file.uid(), file.gid())
}

fn exec(g: &Gantry, pod: &str, flags: &[&str], verb: &[&str]) -> Out {
    g.run(&[&["exec"], flags, &[pod, "--", "/bin/app"], verb].concat())
}

fn numbers(text: &str) -> Vec<u32> {
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

#[test]
fn ids_are_those_of_the_mapping() {
    let g = Gantry::new();
    let maps = ["cat", "/proc/self/uid_map", "/proc/self/gid_map"];
    assert_eq!(numbers(&g.app(&[USERNS], &maps).ok().stdout), [0, ROOT, 65536, 0, ROOT, 65536]);
    let podman = ["--uidmap=0:1000:100000", "--gidmap=0:2000:70000"];
    assert_eq!(numbers(&g.app(&podman, &maps).ok().stdout), [0, 1000, 100_000, 0, 2000, 70_000]);
    assert_eq!(numbers(&g.app(&["--userns=host"], &maps).ok().stdout), [0, 0, u32::MAX, 0, 0, u32::MAX]);
    for user in ["app", "/data/owned"] {
        let ids = g.app(&[USERNS, &format!("--user={user}")], &["ids"]).ok();
        let line = ids.stdout.lines().find(|line| line.starts_with("Uid")).unwrap_or_default();
        assert_eq!(line.split_whitespace().skip(1).collect::<Vec<_>>(), ["1000"; 4], "{user}: {ids}");
    }
    let _ = g.app(&["--userns=300000:1000", "--user=app"], &["true"]).exits(FAILED).stderr_contains(&["user 1000"]);
    assert_eq!(numbers(&g.app(&["--userns=300000:1"], &maps).ok().stdout), [0, ROOT, 1, 0, ROOT, 1]);
}

#[test]
fn processes_are_users_of_the_host() {
    let g = Gantry::new();
    let pod = g.detached(&[USERNS, "--name=web", "--user=app"], &["sleep", "forever"]);
    let (supervisor, main) = (g.supervisor(&pod), g.app_pid(&pod, "web"));
    let init: u32 = {
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        let is_init =
            |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "gantry-init\n");
        numbers(&children).into_iter().find(is_init).unwrap()
    };
    assert_eq!((user_of(supervisor), user_of(init), user_of(main)), (0, ROOT, ROOT + 1000));
    let host = std::process::id();
    assert_eq!(namespace(supervisor, "user"), namespace(host, "user"));
    assert_eq!(namespace(init, "user"), namespace(main, "user"));
    for kind in ["user", "pid", "net", "ipc", "uts", "mnt", "cgroup"] {
        assert_ne!(namespace(main, kind), namespace(host, kind), "{kind}");
    }
    let command_line = fs::read(format!("/proc/{init}/cmdline")).unwrap();
    assert!(command_line.starts_with(b"gantry-init"), "{}", String::from_utf8_lossy(&command_line));
    let root = exec(&g, &pod, &["--user=0"], &["cat", "/proc/self/uid_map"]).ok();
    assert_eq!(numbers(&root.stdout), [0, ROOT, 65536], "of a program that is executed in the app");
    let own = exec(&g, &pod, &[], &["seq", "caps", "--", "write", "/tmp/own", "x"]).ok();
    assert!(own.stdout.contains("CapEff: 0000000000000000"), "{own}");
    assert_eq!(on_disk(&g, &pod, "web", "tmp/own").1, 1000);
    // Its root sees the processes of the pod, and neither the supervisor nor those of another pod.
    let _other = g.detached(&["--userns=300000"], &["sleep", "forever"]);
    let pids = exec(&g, &pod, &["--user=0"], &["pids"]).ok();
    assert!(pids.stdout.lines().count() <= 3 && !pids.stdout.contains("stage1"), "{pids}");
}

#[test]
fn files_have_plain_ids_on_disk() {
    let g = Gantry::new();
    let made = [
        "seq",
        "write",
        "/data/own",
        "x",
        "--",
        "mkdir",
        "/new",
        "--",
        "mkfifo",
        "/new/fifo",
        "--",
        "rm",
        "/data/owned",
    ];
    let pod = g.detached(&[USERNS, "--name=web"], &made);
    g.wait_state(&pod, "exited");
    for path in ["data/own", "new", "new/fifo", "etc/hosts", "etc/hostname"] {
        let (_, uid, gid) = on_disk(&g, &pod, "web", path);
        assert_eq!((uid, gid), (0, 0), "{path}");
    }
    let whiteout = fs::symlink_metadata(g.dir().join("pods").join(&pod).join("apps/web/upper/data/owned")).unwrap();
    assert_eq!((whiteout.uid(), whiteout.rdev()), (0, 0), "a whiteout");
    let diff = g.run(&["diff", &pod]).ok();
    assert!(diff.stdout.contains("A /new\n") && diff.stdout.contains("D /data/owned\n"), "{diff}");
    assert!(!diff.stdout.contains("/etc/hosts"), "gantry's own files are left out: {diff}");
    // The same ids, another process: the files are those of the pod's root again.
    g.run(&["start", &pod]).succeeded();
    let again = g.wait_state(&pod, "exited");
    assert_eq!(app(&again, "web")["exit"]["code"].as_i64().unwrap_or(1), 1, "mkdir fails the second time: {again}");
}

#[test]
fn files_of_the_app_belong_to_its_users() {
    let g = Gantry::new();
    let paths = ["stat", "/", "/etc/hosts", "/data/owned", "/dev/null", "/dev/shm", "/dev/pts", "/proc", "/bin/app"];
    let out = g.app(&[USERNS, "--tmpfs=/scratch:uid=7,gid=8"], &[&paths[..], &["/scratch"]].concat()).ok();
    let owners: Vec<(String, Vec<u32>)> = out
        .stdout
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[words.len() - 1].to_owned(), numbers(&words[2..4].join(" ")))
        })
        .collect();
    for (path, want) in [
        ("/", [0, 0]),
        ("/etc/hosts", [0, 0]),
        ("/data/owned", [1000, 50]),
        ("/dev/null", [0, 0]),
        ("/dev/shm", [0, 0]),
        ("/dev/pts", [0, 0]),
        ("/bin/app", [0, 0]),
        ("/scratch", [7, 8]),
    ] {
        assert!(owners.iter().any(|(at, ids)| at == path && *ids == want), "{path}: {out}");
    }
    let _ =
        g.app(&["--userns=300000:5", "--tmpfs=/scratch:uid=7"], &["true"]).exits(FAILED).stderr_contains(&["user 7"]);
}

#[test]
fn root_has_no_rights_on_the_host() {
    let g = Gantry::new();
    let all = [USERNS, "--cap-add=ALL", "--security-opt=seccomp=unconfined"];
    for (verb, code, what) in [
        (&["mknod-try", "/dev/full2"][..], 3, "mknod: EPERM"),
        (&["write", "/proc/sys/kernel/core_pattern", "x"], 1, ""),
        (&["write", "/proc/sysrq-trigger", "x"], 1, ""),
        (&["open-try", "/proc/kcore"], 3, ""),
        (&["bpf-try"], 3, "EPERM"),
    ] {
        let out = g.app(&all, verb);
        assert!(out.code == code && out.stdout.contains(what), "{verb:?}: {out}");
    }
    // Mounting works in the pod's own mount namespace, and the host sees nothing of it.
    let pod = g.detached(
        &[&all[..], &["--name=web"]].concat(),
        &["seq", "mount-try", "/data", "--", "print", "up", "--", "sleep", "forever"],
    );
    g.wait_log(&pod, "up");
    let main = g.app_pid(&pod, "web");
    let theirs = fs::read_to_string(format!("/proc/{main}/mountinfo")).unwrap();
    assert!(theirs.lines().any(|line| line.contains(" /data ")), "{theirs}");
    let ours = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!ours.contains(&pod), "{ours}");
    let caps = exec(&g, &pod, &[], &["caps"]).ok();
    assert!(!caps.stdout.contains("CapEff: 0000000000000000"), "capabilities in the namespace: {caps}");
    assert_eq!(user_of(main), ROOT);
}

#[test]
fn the_usual_confinement_applies() {
    let g = Gantry::new();
    let caps = g.app(&[USERNS], &["caps"]).ok();
    assert!(caps.stdout.contains("NoNewPrivs: 1"), "{caps}");
    let plain = g.app(&[], &["caps"]).ok();
    assert_eq!(caps.stdout, plain.stdout, "the same capabilities and filter as without the namespace");
    assert_eq!(g.app(&[USERNS], &["cat", "/proc/interrupts"]).ok().stdout, "");
    assert_eq!(g.app(&[USERNS], &["ls", "/sys/firmware"]).ok().stdout, "");
    assert_eq!(g.app(&[USERNS], &["fds"]).ok().stdout.lines().count(), 3);
    let _ = g.app(&[USERNS], &["unshare-try"]).exits(3);
    let _ = g.app(&[USERNS], &["mknod-try", "/dev/full2"]).exits(3);
    let _ =
        g.app(&[USERNS, "--readonly-rootfs"], &["write", "/data/own", "x"]).exits(1).stderr_contains(&["Read-only"]);
    let _ = g.app(&[USERNS], &["open-try", "/dev/null"]).ok();
    let _ =
        g.app(&[USERNS, "--device=/dev/kmsg:/dev/log/kmsg"], &["stat", "/dev/log/kmsg"]).ok().stdout_contains("1:11");
    let limits = g.app(&[USERNS, "--ulimit=nofile=100:200"], &["rlimits"]).ok();
    assert!(limits.stdout.contains("nofile 100 200\n"), "{limits}");
    assert_eq!(g.app(&[USERNS, "--oom-score-adj=500"], &["oom-adj"]).ok().text(), "500");
    assert_eq!(g.app(&[USERNS, "--hostname=box"], &["hostname"]).ok().text(), "box");
    let own = g.app(&[USERNS, "--pid=private"], &["pids"]).ok();
    assert!(own.stdout.starts_with("1 0 ") && own.stdout.lines().count() == 1, "{own}");
    let view = g.app(&[USERNS], &["cgroup"]).ok();
    assert!(view.stdout.lines().all(|line| !line.contains("gantry")), "{view}");
}

#[test]
fn sysctls_of_the_namespaces_are_set() {
    let g = Gantry::new();
    for (name, value) in [
        ("kernel.shmmni", "4097"),
        ("fs.mqueue.msg_max", "11"),
        ("net.ipv4.ip_forward", "1"),
        ("kernel.domainname", "example"),
    ] {
        let out = g.app(&[USERNS, &format!("--sysctl={name}={value}")], &["sysctl", name]).ok();
        assert_eq!(out.text(), value, "{name}");
    }
    assert_eq!(g.app(&[USERNS, "--user=app"], &["bind-try", "80"]).code, 0, "any user may bind low ports");
}

#[test]
fn volumes_keep_plain_ids() {
    let g = Gantry::new();
    let shared = g.scratch().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&shared, Some(1000), Some(1000)).unwrap();
    let source = format!("--volume=host,kind=host,source={}", shared.display());
    let flags = [
        USERNS,
        "--name=web",
        &source,
        "--volume=named,kind=named,source=kept",
        "--volume=tmp,kind=empty,uid=1000,gid=1000,mode=0700",
        "--mount=volume=host,target=/host",
        "--mount=volume=named,target=/data",
        "--mount=volume=tmp,target=/empty",
    ];
    let write = |dir: &str| format!("{dir}/own");
    let verb = [
        "seq",
        "write",
        &write("/host"),
        "x",
        "--",
        "write",
        &write("/empty"),
        "x",
        "--",
        "stat",
        "/host",
        "/empty",
        "/data/owned",
    ];
    let out = g.app(&[&flags[..], &["--user=app"]].concat(), &verb).ok();
    for want in ["0755 1000 1000", "0700 1000 1000", "1000 50"] {
        assert!(out.stdout.contains(want), "{want}: {out}");
    }
    let owner = |path: PathBuf| fs::symlink_metadata(path).map(|file| (file.uid(), file.gid())).unwrap();
    assert_eq!(owner(shared.join("own")), (1000, 1000));
    assert_eq!(owner(g.dir().join("volumes/kept/data/owned")), (1000, 50), "filled from the image");
    // Another pod with other ids, and one without a namespace, see the same owners.
    for userns in ["--userns=host", "--userns=500000"] {
        let out = g
            .app(
                &["--volume=named,kind=named,source=kept", "--mount=volume=named,target=/data", userns],
                &["stat", "/data/owned"],
            )
            .ok();
        assert!(out.stdout.contains(" 1000 50 "), "{userns}: {out}");
    }
    // A file system that cannot be idmapped is named: here that of the kernel's processes.
    let proc = ["--volume=proc,kind=host,source=/proc/self", "--mount=volume=proc,target=/host-proc", USERNS];
    let _ = g.app(&proc, &["true"]).exits(FAILED).stderr_contains(&["/host-proc", "cannot be idmapped"]);
    // Volumes below /dev, such as the file for the last message of a Kubernetes container.
    let message = shared.join("message");
    fs::write(&message, "").unwrap();
    let file = format!("--volume=file,kind=host,source={}", message.display());
    let below = [
        &source,
        &file,
        "--mount=volume=host,target=/dev/host",
        "--mount=volume=file,target=/dev/termination-log",
        USERNS,
    ];
    let verb = [
        "seq",
        "write",
        "/dev/termination-log",
        "over",
        "--",
        "write",
        "/dev/host/late",
        "x",
        "--",
        "stat",
        "/dev/host",
    ];
    let out = g.app(&below, &verb).ok();
    assert!(out.stdout.contains("0755 1000 1000 "), "{out}");
    assert_eq!((fs::read_to_string(&message).unwrap().trim(), owner(shared.join("late"))), ("over", (0, 0)));
}

#[test]
fn automatic_ids_are_one_pods_alone() {
    let g = Gantry::new();
    g.configure("[user-namespaces]\nids = '700000:131072'\n");
    let first = |pod: &str| {
        let map = exec(&g, pod, &[], &["cat", "/proc/self/uid_map", "/proc/self/gid_map"]).ok();
        let map = numbers(&map.stdout);
        assert_eq!((map[0], map[2], map[4], map[5]), (0, 65536, map[1], 65536));
        map[1]
    };
    let pods = [(); 2].map(|()| g.detached(&["--userns=auto"], &["sleep", "forever"]));
    assert_eq!([first(&pods[0]), first(&pods[1])], [700_000, 765_536]);
    let _ = g.app(&["--userns=auto"], &["true"]).exits(FAILED).stderr_contains(&["no 65536 ids are left"]);
    let _ = g.app(&["--userns=765600:2"], &["true"]).exits(FAILED).stderr_contains(&[&pods[1], "choose other ids"]);
    // A pod that has ended keeps its ids until it is removed.
    g.run(&["kill", &pods[0]]).succeeded();
    g.wait_state(&pods[0], "exited");
    let _ = g.app(&["--userns=auto"], &["true"]).exits(FAILED);
    g.run(&["start", &pods[0]]).succeeded();
    assert_eq!(first(&pods[0]), 700_000);
    g.run(&["rm", "--force", &pods[0]]).succeeded();
    let next = g.detached(&["--userns=auto"], &["sleep", "forever"]);
    assert_eq!(first(&next), 700_000);
    let manifest = g.run(&["cat-manifest", &next]).ok();
    assert!(manifest.stdout.contains("userns"), "{manifest}");
}

#[test]
fn networks_belong_to_the_pod() {
    let space = Space::new();
    let g = Gantry::in_space(&space);
    let pod = g.server(&[USERNS, "--port=7007:7007"], "7007");
    let answer = g.client(&[], &["ask", "tcp", &g.ip4(&pod), "7007", "hello"]).ok();
    assert!(answer.stdout.contains("hello"), "{answer}");
    let other = g.client(&["--userns=500000"], &["ask", "udp", &g.ip4(&pod), "7007", "hello"]).ok();
    assert!(other.stdout.contains("hello"), "{other}");
    g.run(&["stop", &pod]).succeeded();
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    let g = Gantry::new();
    let pod = g.detached(&[USERNS, "--name=web"], &["fork-children", "3", "forever"]);
    let (supervisor, main) = (g.supervisor(&pod), g.app_pid(&pod, "web"));
    kill_process(Pid::from_raw(supervisor.cast_signed()).unwrap(), Signal::KILL).unwrap();
    wait_for("the app to end", || (!PathBuf::from(format!("/proc/{main}/ns/user")).exists()).then_some(()));
    g.wait_state(&pod, "exited");
    g.run(&["start", &pod]).succeeded();
    g.wait_state(&pod, "running");
    g.run(&["rm", "--force", &pod]).succeeded();
}

#[test]
fn apps_are_added_and_restarted() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none", USERNS]).ok());
    let add = ["app", "add", &pod, &image, "--name=web", "--start", "--tmpfs=/scratch", "--sdnotify=app"];
    let verb = [
        "--",
        "seq",
        "notify",
        "READY=1",
        "--",
        "cat",
        "/proc/self/uid_map",
        "--",
        "write",
        "/data/own",
        "x",
        "--",
        "sleep",
        "forever",
    ];
    g.run(&[&add[..], &verb].concat()).succeeded();
    assert!(g.wait_log(&pod, "300000").contains("65536"));
    wait_for("the app's file", || exec(&g, &pod, &[], &["stat", "/data/own"]).stdout.contains(" 0 0 ").then_some(()));
    g.run(&["restart", &format!("{pod}/web")]).succeeded();
    wait_for("the app to be ready", || (app(&g.status(&pod), "web")["readiness"] == "ready").then_some(()));
    for flag in ["--privileged", "--pid=host"] {
        let line = ["app", "add", &pod, &image, "--name=other", flag, "--", "true"];
        let _ = g.run(&line).exits(FAILED);
    }
    g.run(&["app", "rm", "--force", &format!("{pod}/web")]).succeeded();
    g.run(&["stop", &pod]).succeeded();
}

#[test]
fn health_is_probed_inside() {
    let g = Gantry::new();
    let probe = r#"--health-cmd=["/bin/app","seq","stat","/etc/hosts","--","cat","/proc/self/uid_map"]"#;
    let pod = g.detached(&[USERNS, "--name=web", probe, "--health-interval=100ms"], &["sleep", "forever"]);
    wait_for("a healthy app", || (app(&g.status(&pod), "web")["health"] == "healthy").then_some(()));
}

#[test]
fn combinations_that_are_not_confined_are_refused() {
    let g = Gantry::new();
    for (flag, name) in [
        ("--net=host", "--net=host"),
        ("--ipc=host", "--ipc=host"),
        ("--pid=host", "--pid=host"),
        ("--privileged", "--privileged"),
        ("--systemd=always", "--systemd"),
        ("--userns=keep-id", "none of host, auto"),
        ("--userns=0", "root of the host"),
    ] {
        let image = g.fixture();
        let mode = if flag.starts_with("--userns") { flag } else { USERNS };
        let net = if flag.starts_with("--net") { flag } else { "--net=none" };
        let out =
            g.run(&["run", mode, net, &image, if flag.starts_with("--net") { "--quiet" } else { flag }, "--", "true"]);
        assert!(out.code != 0 && out.stderr.contains(name), "{flag}: {out}");
    }
    let prepared = pod_id(&g.run(&["prepare", "--net=none", USERNS, &g.fixture(), "--", "true"]).ok());
    let _ = g.run(&["run-prepared", "--net=host", &prepared]).exits(FAILED).stderr_contains(&["user namespace"]);
    g.run(&["run-prepared", &prepared]).succeeded();
}

#[test]
fn files_are_copied_with_ids_of_the_pod() {
    let g = Gantry::new();
    let source = g.scratch().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "text").unwrap();
    std::os::unix::fs::chown(source.join("file"), Some(1000), Some(50)).unwrap();
    let pod = g.detached(&[USERNS, "--name=web"], &["sleep", "forever"]);
    let from = source.display().to_string();
    let copy = |flags: &[&str], from: &str, to: &str| g.run(&[&["cp"], flags, &[from, to]].concat());
    copy(&[], &from, &format!("{pod}:/data/plain")).succeeded();
    copy(&["--archive"], &from, &format!("{pod}:/data/archive")).succeeded();
    let seen = exec(&g, &pod, &[], &["stat", "/data/plain/file", "/data/archive/file"]).ok();
    assert!(seen.stdout.contains(" 0 0 4 ") && seen.stdout.contains(" 1000 50 4 "), "{seen}");
    assert_eq!(on_disk(&g, &pod, "web", "data/plain/file").1, 0);
    assert_eq!(on_disk(&g, &pod, "web", "data/archive/file").1, 1000);
    let owner = |path: PathBuf| fs::metadata(path).map(|file| (file.uid(), file.gid())).unwrap();
    let back = |name: &str, flags: &[&str]| {
        let to = g.scratch().join(name);
        copy(flags, &format!("{pod}:/data/archive"), &to.display().to_string()).succeeded();
        owner(to.join("file"))
    };
    assert_eq!((back("plain", &[]), back("archive", &["--archive"])), ((0, 0), (1000, 50)));
    std::os::unix::fs::chown(source.join("file"), Some(70_000), Some(50)).unwrap();
    let _ =
        copy(&["--archive"], &from, &format!("{pod}:/data/other")).exits(FAILED).stderr_contains(&["user namespace"]);
    // The same files of a pod that has ended.
    g.run(&["kill", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    assert_eq!(back("ended", &["--archive"]), (1000, 50));
    copy(&[], &from, &format!("{pod}:/data/late")).succeeded();
    assert_eq!(on_disk(&g, &pod, "web", "data/late/file").1, 0);
}

#[test]
fn terminals_belong_to_the_user() {
    let g = Gantry::new();
    let pod = g.detached(&[USERNS, "--name=web", "--user=app"], &["sleep", "forever"]);
    let command = g.command(&[
        "exec",
        "-t",
        &pod,
        "--",
        "/bin/app",
        "seq",
        "tty",
        "--",
        "stat",
        "/dev/pts/0",
        "--",
        "print",
        "over",
    ]);
    let terminal = Terminal::start(&command).wait();
    assert!(terminal.output.contains("tty 0=true 1=true 2=true"), "{}", terminal.output);
    assert!(terminal.output.contains(" 1000 5 "), "{}", terminal.output);
    let image = g.fixture();
    let command =
        g.command(&["run", "-t", "--quiet", "--net=none", USERNS, &image, "--", "seq", "tty", "--", "print", "over"]);
    let terminal = Terminal::start(&command).wait();
    assert!(terminal.code == 0 && terminal.output.contains("size 24x80\r\nover"), "{}", terminal.output);
}

/// The kernel locks the flags of mounts that a mount namespace of another user namespace got as a copy.
#[test]
fn flags_of_mounts_are_locked() {
    let g = Gantry::new();
    let dir = g.scratch().join("volume");
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
    let volume = format!("-v={}:/v:ro", dir.display());
    let inner = format!("-v={}:/tmp/v/inner:ro", dir.display());
    for pid in ["--pid=pod", "--pid=private"] {
        for path in ["/v", "/tmp/v/inner", "/sys"] {
            let flags = [USERNS, "--cap-add=SYS_ADMIN", pid, &volume, &inner];
            let out = g.app(&flags, &["remount-try", path]).exits(3);
            assert_eq!(out.stdout, "remount: EPERM\n", "{pid} {path}");
        }
        // What the app mounts itself is its own.
        let own = ["seq", "mount-try", "/tmp", "--", "remount-try", "/tmp"];
        let out = g.app(&[USERNS, "--cap-add=SYS_ADMIN", pid], &own).ok();
        assert_eq!(out.stdout, "mount: allowed\nremount: allowed\n", "{pid}");
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// An app's process opens and mounts these after the volumes are attached.
#[test]
fn volumes_cannot_cover_what_is_mounted_after_them() {
    let g = Gantry::new();
    for target in ["/dev/null", "/dev/pts", "/dev/pts/ptmx", "/dev/console", "/proc/meminfo"] {
        let volume = format!("-v=/dev/null:{target}");
        let why = format!("cannot mount over '{target}': it is provided by gantry");
        let _ = g.app(&[USERNS, &volume], &["true"]).exits(FAILED).stderr_contains(&[&why]);
    }
    g.check_invariants();
}
