//! Flags of `run` and `prepare` that change an app's view of the system, on real containers.

use gantry_tests::{Gantry, app, pod_id};

/// The line of an app's mount at this target, without its ids, as proc_pid_mountinfo(5) describes it.
fn mount_at(mounts: &str, target: &str) -> String {
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(target));
    line.unwrap_or_else(|| panic!("nothing is mounted at {target}:\n{mounts}")).to_owned()
}

#[test]
fn tmpfs() {
    let g = Gantry::new();
    let flags = ["--tmpfs=/run", "--tmpfs=/new/deep:size=1m,mode=0750,uid=1000,gid=50,exec", "--tmpfs=/ro:ro"];
    let mounts = g.app(&flags, &["mounts"]).ok().stdout;
    let line = mount_at(&mounts, "/run");
    assert!(line.contains(" - tmpfs tmpfs rw") && line.contains("rw,nosuid,nodev,noexec"), "{line}");
    let line = mount_at(&mounts, "/new/deep");
    assert!(line.contains("size=1024k") && line.contains("mode=750") && !line.contains("noexec"), "{line}");
    assert!(mount_at(&mounts, "/ro").contains(" ro,nosuid"), "{mounts}");
    let stat = g.app(&flags, &["stat", "/run", "/new/deep"]).ok().stdout;
    assert!(stat.starts_with("dir 1777 0 0 ") && stat.contains("\ndir 0750 1000 50 "), "{stat}");
    let _ = g.app(&flags, &["write", "/ro/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    // What is below the target in the image is hidden, links of the image are followed in it.
    assert_eq!(g.app(&["--tmpfs=/lower"], &["ls", "/lower"]).ok().stdout, "");
    // A read-only root has writable places.
    let _ = g.app(&["--read-only", "--tmpfs=/tmp"], &["write", "/tmp/x", "x"]).ok();
    // A volume inside a tmpfs, and a tmpfs inside a volume.
    let volume = "--volume=v,kind=empty";
    let inside = [volume, "--mount=volume=v,target=/t/v", "--tmpfs=/t"];
    let mounts = g.app(&inside, &["mounts"]).ok().stdout;
    assert!(mount_at(&mounts, "/t").contains("tmpfs") && !mount_at(&mounts, "/t/v").contains(" - tmpfs"), "{mounts}");
    let mounts = g.app(&[volume, "--mount=volume=v,target=/v", "--tmpfs=/v/t"], &["mounts"]).ok().stdout;
    assert!(mount_at(&mounts, "/v/t").contains(" - tmpfs"), "{mounts}");
}

#[test]
fn tmpfs_of_each_app_and_in_the_manifest() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = ["prepare", "--tmpfs=/t:size=64Ki", &image, "--name=a", "--tmpfs=/a", &image, "--name=b"];
    let pod = pod_id(&g.run(&line).ok());
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!(
        app(&manifest, "b")["tmpfs"],
        serde_json::json!([{ "target": "/t", "size": 65536, "mode": 0o1777,
        "uid": 0, "gid": 0, "exec": false, "read_only": false }])
    );
    assert_eq!(app(&manifest, "a")["tmpfs"].as_array().map(Vec::len), Some(2));
    let file = g.scratch().join("manifest");
    std::fs::write(&file, manifest.to_string()).unwrap();
    let again = pod_id(&g.run(&["prepare", &format!("--pod-manifest={}", file.display())]).ok());
    assert_eq!(g.run(&["cat-manifest", &again]).ok().json()["apps"], manifest["apps"]);
}

#[test]
fn tmpfs_that_are_refused() {
    let g = Gantry::new();
    for (flag, why) in [
        ("--tmpfs=run", "is not an absolute path"),
        ("--tmpfs=/proc", "cannot mount over '/proc'"),
        ("--tmpfs=/t:size=none", "is not an amount of memory"),
        ("--tmpfs=/t:size=0", "tmpfs size 0 is out of range"),
        ("--tmpfs=/t:suid", "is not an option of a tmpfs"),
    ] {
        let _ = g.app(&[flag], &["true"]).exits(125).stderr_contains(&[why]);
    }
    let _ = g.app(&["--tmpfs=/t", "--tmpfs=/t/"], &["true"]).exits(125).stderr_contains(&["mounts twice at '/t'"]);
    assert!(g.list().is_empty());
}

/// The soft and the hard limit of a resource in proc_pid_limits(5).
fn limits_of(limits: &str, name: &str) -> (String, String) {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let mut fields = line.unwrap_or_else(|| panic!("no {name} in {limits}")).split_whitespace().map(str::to_owned);
    (fields.next().unwrap_or_default(), fields.next().unwrap_or_default())
}

#[test]
fn ulimits_hold_in_the_app_and_in_exec() {
    let g = Gantry::new();
    let flags = ["--ulimit=nofile=100:200", "--ulimit=core=0", "--ulimit=nproc=5000", "--ulimit=stack=1048576:-1"];
    let check = |limits: &str| {
        for (name, soft, hard) in [
            ("Max open files", "100", "200"),
            ("Max core file size", "0", "0"),
            ("Max processes", "5000", "5000"),
            ("Max stack size", "1048576", "unlimited"),
        ] {
            assert_eq!(limits_of(limits, name), (soft.to_owned(), hard.to_owned()), "{name}");
        }
    };
    check(&g.app(&flags, &["cat", "/proc/self/limits"]).ok().stdout);
    check(&g.app(&[&flags[..], &["--user=app"]].concat(), &["cat", "/proc/self/limits"]).ok().stdout);
    let pod = g.detached(&flags, &["sleep", "forever"]);
    check(&g.run(&["exec", &pod, "/bin/app", "cat", "/proc/self/limits"]).ok().stdout);
    check(&g.run(&["exec", "--user=app", &pod, "/bin/app", "cat", "/proc/self/limits"]).ok().stdout);
    // The supervisor and PID 1 keep theirs.
    let supervisor = std::fs::read_to_string(format!("/proc/{}/limits", g.supervisor(&pod))).unwrap();
    assert_ne!(limits_of(&supervisor, "Max open files").0, "100");
    g.run(&["kill", &pod]).succeeded();
    g.wait_state(&pod, "exited");
}

/// Limits that are too low for the steps of a start must not stop them.
#[test]
fn low_ulimits_do_not_stop_the_start() {
    let g = Gantry::new();
    let flags = ["--ulimit=nofile=4", "--ulimit=fsize=0", "--ulimit=memlock=0", "--ulimit=sigpending=1"];
    assert_eq!(limits_of(&g.app(&flags, &["cat", "/proc/self/limits"]).ok().stdout, "Max open files").0, "4");
}

/// Without CAP_SYS_RESOURCE the kernel refuses to raise a hard limit: the app does not run with a lower one.
#[test]
fn ulimits_above_the_hard_limit_need_a_capability() {
    let g = Gantry::new();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let can_raise = u64::from_str_radix(held.trim(), 16).unwrap() & (1 << 24) != 0;
    let out = g.app(&["--ulimit=memlock=-1"], &["cat", "/proc/self/limits"]);
    if can_raise {
        assert_eq!(limits_of(&out.ok().stdout, "Max locked memory").1, "unlimited");
    } else {
        let _ = out.exits(125).stderr_contains(&["--ulimit memlock=-1:-1 is above the hard limit", "CAP_SYS_RESOURCE"]);
    }
    for (flag, why) in
        [("nofile=2:1", "above the hard limit"), ("files=1", "is not a resource"), ("nofile", "NAME=SOFT")]
    {
        let _ = g.app(&[&format!("--ulimit={flag}")], &["true"]).exits(125).stderr_contains(&[why]);
    }
}

#[test]
fn sysctls_of_the_pods_namespaces() {
    let g = Gantry::new();
    let image = g.fixture();
    let flags = ["--sysctl=net.core.somaxconn=77", "--sysctl=kernel.shmmni=99", "--sysctl=net/ipv4/ip_forward=1"];
    let host = |name: &str| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap();
    let before = [host("net/core/somaxconn"), host("kernel/shmmni")];
    for (name, want) in [("net.core.somaxconn", "77"), ("kernel.shmmni", "99"), ("net.ipv4.ip_forward", "1")] {
        assert_eq!(g.app(&flags, &["sysctl", name]).ok().text(), want, "{name}");
    }
    assert_eq!([host("net/core/somaxconn"), host("kernel/shmmni")], before, "the host's settings were changed");
    let pod = pod_id(&g.run(&[&["prepare"][..], &flags, &[&image, "--", "sysctl", "kernel.shmmni"]].concat()).ok());
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!(manifest["sysctls"]["net.ipv4.ip_forward"], "1");
    // The network of a prepared pod can be replaced.
    let out = g.run(&["run-prepared", "--net=host", &pod]).exits(125);
    let _ = out.stderr_contains(&["would change the host"]);
    for (flag, why) in [
        ("--sysctl=kernel.pid_max=9", "of the whole host"),
        ("--sysctl=kernel.hostname=x", "--hostname"),
        ("--sysctl=net.core.somaxconn", "is not NAME=VALUE"),
        ("--sysctl=net/../kernel/pid_max=9", "is not the name of a kernel setting"),
        ("--sysctl=net.core.no_such=1", "cannot set sysctl net.core.no_such"),
        ("--sysctl=net.core.somaxconn=many", "cannot set sysctl net.core.somaxconn to 'many'"),
    ] {
        let _ = g.app(&[flag], &["true"]).exits(125).stderr_contains(&[why]);
    }
    let _ = g
        .run(&["run", "--net=host", flags[0], &image, "--", "true"])
        .exits(125)
        .stderr_contains(&["would change the host"]);
}

#[test]
fn size_of_shared_memory() {
    let g = Gantry::new();
    let shm = |flags: &[&str]| mount_at(&g.app(flags, &["mounts"]).ok().stdout, "/dev/shm");
    assert!(shm(&[]).contains("size=65536k"), "{}", shm(&[]));
    assert!(shm(&["--shm-size=1m"]).contains("size=1024k"), "{}", shm(&["--shm-size=1m"]));
    let _ = g.app(&["--shm-size=0"], &["true"]).exits(125).stderr_contains(&["--shm-size 0 is out of range"]);
    let _ = g.app(&["--shm-size=big"], &["true"]).exits(125).stderr_contains(&["is not an amount of memory"]);
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", "--shm-size=128m", &image]).ok());
    assert_eq!(g.run(&["cat-manifest", &pod]).ok().json()["shm_size"], 128 << 20);
}

/// A character device that apps do not have by default and that root may open.
fn spare_device() -> &'static str {
    let known = ["/dev/fuse", "/dev/loop-control", "/dev/autofs"];
    let found = known.into_iter().find(|path| std::path::Path::new(path).exists());
    found.unwrap_or_else(|| panic!("this host has none of {known:?}"))
}

#[test]
fn devices_of_the_host() {
    let g = Gantry::new();
    let device = spare_device();
    let flag = format!("--device={device}");
    let _ = g.app(&[&flag], &["open-try", device]).ok();
    let number = rustix::fs::stat(device).unwrap().st_rdev;
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    let stat = g.app(&[&format!("{flag}:/dev/deep/node")], &["stat", "/dev/deep/node"]).ok();
    assert!(stat.stdout.starts_with("char ") && stat.stdout.contains(&format!(" {major}:{minor} ")), "{stat}");
    // The confinement applies if an app makes a node itself.
    let made = |flags: &[&str]| {
        g.app(&[&["--cap-add=MKNOD"][..], flags].concat(), &["mknod-try", "/dev/mine", &major, &minor])
    };
    let _ = made(&[]).exits(3).stdout_contains("open: EPERM");
    let _ = made(&[&flag]).ok();
    let _ = g.app(&[&format!("{flag}:r")], &["open-try", device]).exits(3).stdout_contains("EPERM");
    // Nodes of other apps' devices are not in the app.
    let image = g.fixture();
    let line =
        ["run", "--net=none", &image, "--name=a", &flag, "--", "true", "---", &image, "--name=b", "--", "stat", device];
    let _ = g.run(&line).exits(1).stderr_contains(&["No such file"]);
}

#[test]
fn devices_of_a_removed_app_are_denied_again() {
    let g = Gantry::new();
    let (image, device) = (g.fixture(), spare_device());
    let number = rustix::fs::stat(device).unwrap().st_rdev;
    let (major, minor) = (rustix::fs::major(number).to_string(), rustix::fs::minor(number).to_string());
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let add =
        |name: &str, flag: &str| g.run(&["app", "add", &pod, &image, "--name", name, flag, "--", "sleep", "1000"]);
    add("probe", "--cap-add=MKNOD").succeeded();
    g.run(&["app", "start", &format!("{pod}/probe")]).succeeded();
    // The confinement is that of the pod.
    let open = |node: &str| g.run(&["exec", "--app=probe", &pod, "--", "/bin/app", "mknod-try", node, &major, &minor]);
    let _ = open("/dev/before").exits(3).stdout_contains("open: EPERM");
    let (all, read) = (format!("--device={device}"), format!("--device={device}:/dev/mine:r"));
    add("first", &all).succeeded();
    add("second", &all).succeeded();
    add("reader", &read).succeeded();
    let _ = open("/dev/with-three").ok();
    g.run(&["app", "rm", &format!("{pod}/first")]).succeeded();
    let _ = open("/dev/with-two").ok();
    g.run(&["app", "rm", &format!("{pod}/second")]).succeeded();
    g.run(&["app", "rm", &format!("{pod}/reader")]).succeeded();
    let _ = open("/dev/without").exits(3).stdout_contains("open: EPERM");
    // So are those of an app that cannot be added.
    let out = g.run(&["app", "add", &pod, &image, "--name=broken", &all, "--exec=/no-such-program"]);
    let _ = out.exits(127);
    let _ = open("/dev/after-failure").exits(3).stdout_contains("open: EPERM");
    add("first", &all).succeeded();
    let _ = open("/dev/again").ok();
}

#[test]
fn manifest_has_the_devices_and_bad_ones_fail() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = pod_id(&g.run(&["prepare", &image, "--name=a", "--device=/dev/kmsg:r"]).ok());
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    let want = serde_json::json!([{ "source": "/dev/kmsg", "target": "/dev/kmsg", "read": true, "write": false }]);
    assert_eq!(app(&manifest, "a")["devices"], want);
    for (flag, why) in [
        ("--device=/dev/no-such", "cannot use '/dev/no-such' as a device"),
        ("--device=/etc/passwd:/dev/x", "it is neither a device nor a directory"),
        ("--device=/dev/kmsg:/kmsg", "is not below /dev"),
        ("--device=/dev/kmsg:/dev/null", "is provided by gantry"),
    ] {
        let _ = g.app(&[flag], &["true"]).exits(125).stderr_contains(&[why]);
    }
}

/// The limit of memory and swap together (v1), or of swap alone (v2), of an app's cgroup; `None`: the kernel does not
/// account for swap.
fn swap_limit(pid: u32) -> Option<String> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let group = |prefix: &str| groups.lines().find_map(|line| line.split_once(prefix)).map(|(_, path)| path.to_owned());
    let file = match group(":memory:") {
        Some(path) => format!("/sys/fs/cgroup/memory{path}/memory.memsw.limit_in_bytes"),
        None => format!("/sys/fs/cgroup{}/memory.swap.max", group("::").unwrap_or_default()),
    };
    std::fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

#[test]
fn limit_of_swap() {
    let g = Gantry::new();
    let mebibytes = |limit: &str| limit.parse::<u64>().ok().map(|bytes| bytes >> 20);
    for (flags, v1, v2) in [
        (&["--memory=32m"][..], Some(32), Some(0)),
        (&["--memory=32m", "--memory-swap=48m"], Some(48), Some(16)),
        (&["--memory=32m", "--memory-swap=-1"], None, None),
    ] {
        let pod = g.detached(&[flags, &["--name=it"]].concat(), &["sleep", "forever"]);
        let pid = g.app_pid(&pod, "it");
        if let Some(limit) = swap_limit(pid) {
            let is_v1 = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap().contains(":memory:");
            match if is_v1 { v1 } else { v2 } {
                Some(want) => assert_eq!(mebibytes(&limit), Some(want), "{flags:?}: {limit}"),
                None => assert!(mebibytes(&limit).is_none_or(|limit| limit > 1 << 40), "{flags:?}: {limit}"),
            }
        }
        g.run(&["kill", &pod]).succeeded();
        g.wait_state(&pod, "exited");
    }
    let _ = g.app(&["--memory-swap=1g"], &["true"]).exits(125).stderr_contains(&["--memory-swap needs --memory"]);
}

#[test]
fn failed_mounts_are_explained() {
    let g = Gantry::new();
    let file = g.scratch().join("file");
    std::fs::write(&file, "x").unwrap();
    let mount = |source: &std::path::Path, target: &str| {
        format!("--mount=type=bind,source={},target={target}", source.display())
    };
    let over_dir = g.app(&[&mount(&file, "/bin")], &["true"]).exits(125);
    let _ = over_dir.stderr_contains(&["cannot mount at '/bin'", "the volume is a file", "a directory has this path"]);
    let over_file = g.app(&[&mount(&g.scratch(), "/bin/app")], &["true"]).exits(125);
    let _ = over_file.stderr_contains(&["cannot mount at '/bin/app'", "the volume is a directory"]);
    let absent = "--mount=type=image,source=absent:2,target=/img";
    let out = g.app(&["--name=web", absent], &["true"]).exits(125);
    let _ = out.stderr_contains(&["of app 'web', at '/img', cannot be prepared without its image", "'absent:2'"]);
}
