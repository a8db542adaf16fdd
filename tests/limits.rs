//! Resource limits of apps and pods, as the kernel has them, and their changes while the pod runs.

use std::path::PathBuf;

use gantry_tests::{Gantry, SmallDisk, wait_for};
use serde_json::{Value, json};

/// The directory of a process's cgroup in the hierarchy of a controller, and whether it is of v2. `above`: that many
/// levels up.
fn cgroup_of(pid: u32, controller: &str, above: usize) -> (PathBuf, bool) {
    let groups = read(&format!("/proc/{pid}/cgroup"));
    let mounts = read("/proc/self/mountinfo");
    let v1 = groups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    let v2 = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let (path, is_v2) = v1.map_or((v2, true), |path| (path, false));
    let find_root = |line: &str| {
        let (mount, fs) = line.split_once(" - ")?;
        let mut options = fs.rsplit(' ').next()?.split(',');
        let is_root = match is_v2 {
            true => fs.starts_with("cgroup2 "),
            false => fs.starts_with("cgroup ") && options.any(|name| name == controller),
        };
        mount.split(' ').nth(4).filter(|_| is_root).map(str::to_owned)
    };
    let root = mounts.lines().find_map(find_root).unwrap_or_default();
    let mut dir = PathBuf::from(format!("{root}{path}"));
    (0..above).for_each(|_| assert!(dir.pop()));
    (dir, is_v2)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The value of a limit: the file of v1, or of v2. `None`: the kernel has no such file.
fn limit(pid: u32, controller: &str, above: usize, v1: &str, v2: &str) -> Option<String> {
    let (dir, is_v2) = cgroup_of(pid, controller, above);
    let text = std::fs::read_to_string(dir.join(if is_v2 { v2 } else { v1 })).ok()?;
    Some(text.trim().to_owned())
}

fn memory(pid: u32, above: usize) -> Option<u64> {
    let bytes = limit(pid, "memory", above, "memory.limit_in_bytes", "memory.max")?;
    bytes.parse().ok().filter(|bytes| *bytes < 1 << 62)
}

fn pids(pid: u32, above: usize) -> Option<String> {
    limit(pid, "pids", above, "pids.max", "pids.max")
}

/// The CPU time per period: `500/1000`.
fn cpu(pid: u32, above: usize) -> Option<String> {
    let (dir, is_v2) = cgroup_of(pid, "cpu", above);
    let read = |file: &str| Some(std::fs::read_to_string(dir.join(file)).ok()?.trim().to_owned());
    if is_v2 {
        return read("cpu.max").map(|text| text.replace(' ', "/"));
    }
    Some(format!("{}/{}", read("cpu.cfs_quota_us")?.replace("-1", "max"), read("cpu.cfs_period_us")?))
}

/// The processors that a process may use.
fn processors(pid: u32) -> String {
    let status = read(&format!("/proc/{pid}/status"));
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.unwrap_or_default().trim().to_owned()
}

#[test]
fn limits_of_an_app_and_of_the_pod() {
    let g = Gantry::new();
    let all = processors(std::process::id());
    let flags = [
        "--name=it",
        "--memory=64m",
        "--memory-reservation=32m",
        "--cpu-quota=25000",
        "--cpu-period=50000",
        "--cpuset-cpus=0",
        "--pids-limit=100",
        "--pod-memory=128m",
        "--pod-cpus=0.75",
        "--pod-pids-limit=200",
    ];
    let pod = g.detached(&flags, &["sleep", "forever"]);
    let pid = g.app_pid(&pod, "it");
    assert_eq!((memory(pid, 0), memory(pid, 1)), (Some(64 << 20), Some(128 << 20)));
    assert_eq!((cpu(pid, 0).as_deref(), cpu(pid, 1).as_deref()), (Some("25000/50000"), Some("75000/100000")));
    assert_eq!((pids(pid, 0).as_deref(), pids(pid, 1).as_deref()), (Some("100"), Some("200")));
    let soft = limit(pid, "memory", 0, "memory.soft_limit_in_bytes", "memory.low");
    assert_eq!(soft, Some((32_u64 << 20).to_string()));
    assert_eq!(processors(pid), "0");
    // A program executed in the app has its limits, and so has a restarted app.
    let allowed = "Cpus_allowed_list:\t0\n";
    let status = g.run(&["exec", &pod, "--", "/bin/app", "cat", "/proc/self/status"]).ok().stdout;
    assert!(status.contains(allowed), "{status}");
    g.run(&["restart", &pod]).succeeded();
    let pid = g.app_pid(&pod, "it");
    assert_eq!((memory(pid, 0), processors(pid).as_str()), (Some(64 << 20), "0"));
    // A pod without such a limit uses all processors, and no further hierarchy.
    let other = g.detached(&["--name=it"], &["sleep", "forever"]);
    assert_eq!(processors(g.app_pid(&other, "it")), all);
    g.run(&["stop", "--force", &pod, &other]).succeeded();
}

#[test]
fn limits_in_the_manifest() {
    let g = Gantry::new();
    let image = g.fixture();
    let line = [
        "prepare",
        "--pod-memory=1g",
        "--pod-cpuset-mems=0",
        &image,
        "--name=a",
        "--device-read-bps=/dev/sda:1mb",
        "--device-write-iops=/dev/sda:100",
        "--blkio-weight=500",
        "--hugetlb-limit=2MB=4Mi",
        "--memory-high=1Mi",
    ];
    let pod = gantry_tests::pod_id(&g.run(&line).ok());
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    assert_eq!(manifest["limits"], json!({ "memory": 1 << 30, "cpuset_mems": "0" }));
    let want = json!({
        "memory_high": 1 << 20,
        "io_weight": 4950,
        "io_devices": [{ "path": "/dev/sda", "read_bps": 1 << 20, "write_iops": 100 }],
        "hugetlb": { "2MB": 4 << 20 },
    });
    assert_eq!(gantry_tests::app(&manifest, "a")["limits"], want);
    let file = g.scratch().join("manifest");
    std::fs::write(&file, manifest.to_string()).unwrap();
    let again = gantry_tests::pod_id(&g.run(&["prepare", &format!("--pod-manifest={}", file.display())]).ok());
    let again = g.run(&["cat-manifest", &again]).ok().json();
    assert_eq!((&again["apps"], &again["limits"]), (&manifest["apps"], &manifest["limits"]));
}

#[test]
fn limits_that_are_refused() {
    let g = Gantry::new();
    for (flags, why) in [
        (&["--cpuset-cpus=3-1"][..], "is not a list of processors"),
        (&["--cpuset-cpus=4000"], "--cpuset-cpus: this host does not have all of '4000'"),
        (&["--cpus=1", "--cpu-quota=5000"], "exclude each other"),
        (&["--cpu-period=10", "--cpu-quota=5000"], "1000 to 1000000"),
        (&["--memory=8m", "--memory-high=16m"], "at most --memory"),
        (&["--io-weight=10001"], "1 to 10000"),
        (&["--blkio-weight=5"], "a weight of 10 to 1000"),
        (&["--device-read-bps=sda:1mb"], "expected one such as /dev/sda:1mb"),
        (&["--device-read-bps=/dev/nothing:1mb"], "cannot limit the input and output of '/dev/nothing'"),
        (&["--device-read-bps=/dev/null:1mb"], "it is not a block device"),
        (&["--hugetlb-limit=3MB=1"], "is not a size of huge pages"),
        (&["--cpus=2", "--pod-cpus=1"], "may use 2.000 cores, and its pod only 1.000"),
        (&["--pod-memory=1"], "limits of the pod: --memory"),
    ] {
        let _ = g.app(flags, &["true"]).exits(125).stderr_contains(&[why]);
    }
}

/// A limit that the host cannot set is one warning, and the pod runs.
#[test]
fn limits_without_effect_are_one_warning() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=probe"], &["sleep", "forever"]);
    let (dir, is_v2) = cgroup_of(g.app_pid(&pod, "probe"), "memory", 0);
    g.run(&["stop", "--force", &pod]).succeeded();
    let out = g.app(&["--memory=64m", "--memory-high=32m"], &["true"]).ok();
    if is_v2 {
        assert!(!out.stderr.contains("no effect"), "{}: {}", dir.display(), out.stderr);
    } else {
        assert_eq!(out.stderr.matches("--memory-high has no effect").count(), 1, "{}", out.stderr);
    }
    // No host has pages of this size.
    let out = g.app(&["--hugetlb-limit=8KB=1Mi"], &["true"]).ok();
    assert_eq!(out.stderr.matches("--hugetlb-limit has no effect").count(), 1, "{}", out.stderr);
}

/// The events of changes: the app or the pod, and the new limits.
fn updates(g: &Gantry, pod: &str) -> Vec<String> {
    let out = g.run(&["events", "-o", "json", "--since=1h", &format!("--filter=pod={pod}")]).ok().stdout;
    let shown = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let name = event["name"].as_str().unwrap_or_default();
        let kind = if name == pod { "pod-updated" } else { "app-updated" };
        let data = event["data"].as_object().into_iter().flatten();
        let limits = data.filter(|(key, _)| !["attempt", "image_id"].contains(&key.as_str()));
        let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let limits: Vec<String> = limits.map(|(key, value)| format!("{key}={}", text(value))).collect();
        (event["type"] == kind).then(|| format!("{name} {}", limits.join(" ")))
    };
    out.lines().filter_map(shown).collect()
}

#[test]
fn update_changes_limits_that_survive_a_restart() {
    let g = Gantry::new();
    let flags = ["--name=it", "--memory=64m", "--cpus=0.5"];
    let pod = g.detached(&flags, &["sleep", "forever"]);
    let pid = g.app_pid(&pod, "it");
    let app = format!("{pod}/it");
    let new = ["update", "--memory=96m", "--cpus=1", "--pids-limit=50", "--cpuset-cpus=0", &app];
    assert_eq!(g.run(&new).ok().stdout, format!("{app}\n"));
    let check = |pid| {
        assert_eq!((memory(pid, 0), pids(pid, 0).as_deref()), (Some(96 << 20), Some("50")));
        assert_eq!((cpu(pid, 0).as_deref(), processors(pid).as_str()), (Some("100000/100000"), "0"));
    };
    check(pid);
    g.run(&["restart", &pod]).succeeded();
    check(g.app_pid(&pod, "it"));
    let limits = g.json(&["inspect", &pod])["limits"].clone();
    let want = json!({ "memory": 96 << 20, "cpu_milli": 1000, "cpuset_cpus": "0", "pids": 50 });
    assert_eq!(limits, json!({ "pod": {}, "apps": { "it": want } }));
    let status = g.run(&["app", "status", &app]).ok().stdout;
    assert!(status.contains("\nlimit-memory=100663296\n") && status.contains("\nlimit-cpuset_cpus=0\n"), "{status}");
    // 0 removes a limit.
    g.run(&["update", "--memory=0", "--cpus=0", "--cpuset-cpus=", &app]).succeeded();
    let pid = g.app_pid(&pod, "it");
    assert_eq!((memory(pid, 0), cpu(pid, 0).as_deref()), (None, Some("max/100000")));
    assert_eq!(processors(pid), processors(std::process::id()));
    // The pod's own.
    assert_eq!(g.run(&["update", "--pod", "--memory=256m", "--pids-limit=300", &pod]).ok().stdout, format!("{pod}\n"));
    assert_eq!((memory(pid, 1), pids(pid, 1).as_deref()), (Some(256 << 20), Some("300")));
    assert_eq!(g.json(&["inspect", &pod])["limits"]["pod"], json!({ "memory": 256 << 20, "pids": 300 }));
    // An app without processors of its own follows the pod's.
    for (list, want) in [("--cpuset-cpus=0", "0".to_owned()), ("--cpuset-cpus=", processors(std::process::id()))] {
        g.run(&["update", "--pod", list, &pod]).succeeded();
        assert_eq!(processors(pid), want, "{list}");
    }
    // A change to what is in effect is none.
    g.run(&["update", "--memory=0", &app]).succeeded();
    let of_app =
        ["cpu_milli=1000 cpuset_cpus=0 memory=100663296 pids=50", "cpu_milli=none cpuset_cpus=none memory=none"];
    let of_pod = ["memory=268435456 pids=300", "cpuset_cpus=0", "cpuset_cpus=none"];
    let (apps, pods) = (of_app.map(|limits| format!("it {limits}")), of_pod.map(|limits| format!("{pod} {limits}")));
    assert_eq!(updates(&g, &pod), [&apps[..], &pods[..]].concat());
    g.run(&["stop", "--force", &pod]).succeeded();
    let _ = g.run(&["update", "--memory=96m", &pod]).exits(125).stderr_contains(&["only the limits of a running pod"]);
}

/// gantryd starts the pod again after a power cut, with these limits. Data that is not synced has no blocks yet.
#[test]
fn updated_limits_of_restarted_pods_are_synced() {
    let g = Gantry::new();
    let (disk, image) = disk_with_image(&g);
    let run = ["run", "--detach", "--net=none", "--restart=always", &image, "--", "sleep", "forever"];
    let pod = gantry_tests::pod_id(&disk.run(&run).ok());
    for memory in ["--memory=96m", "--memory=97m"] {
        disk.run(&["update", memory, &pod]).succeeded();
        assert_limits_are_synced(&disk, &pod);
    }
    disk.run(&["rm", "--force", &pod]).succeeded();
}

#[test]
fn a_restart_policy_syncs_limits_changed_before() {
    let g = Gantry::new();
    let (disk, image) = disk_with_image(&g);
    let pod = gantry_tests::pod_id(&disk.run(&["app", "sandbox", "--net=none"]).ok());
    let add = |name: &str, restart: &str| {
        let line = ["app", "add", "--start", "--name", name, restart, &pod, &image, "--", "sleep", "forever"];
        disk.run(&line).succeeded();
    };
    add("plain", "--restart=no");
    // The third one writes to the file of the first one.
    for memory in ["--memory=96m", "--memory=100m", "--memory=97m"] {
        disk.run(&["update", memory, &format!("{pod}/plain")]).succeeded();
    }
    add("kept", "--restart=always");
    assert_limits_are_synced(&disk, &pod);
    let limits = std::fs::read(record_of_limits(&disk, &pod)).unwrap();
    let limits: Value = serde_json::from_slice(&limits).unwrap();
    assert_eq!(limits["apps"]["plain"]["memory"], 97 << 20);
    disk.run(&["rm", "--force", &pod]).succeeded();
}

/// A disk whose files get blocks when they are synced, and an image on it.
fn disk_with_image(g: &Gantry) -> (SmallDisk<'_>, String) {
    let disk = SmallDisk::ext4(g, "64m", 4096);
    let standard = g.scratch().join("standard");
    assert!(gantry_fixtures::write_standard(&standard, g.app_bytes()).is_ok());
    let image = disk.run(&["fetch", &format!("oci:{}", standard.join("layout").display())]).ok().text().to_owned();
    (disk, image)
}

fn record_of_limits(disk: &SmallDisk<'_>, pod: &str) -> PathBuf {
    disk.data().join("pods").join(pod).join("limits.json")
}

fn assert_limits_are_synced(disk: &SmallDisk<'_>, pod: &str) {
    let out = std::process::Command::new("filefrag").arg("-v").arg(record_of_limits(disk, pod)).output();
    let blocks = String::from_utf8(out.unwrap_or_else(|error| panic!("filefrag: {error}")).stdout).unwrap_or_default();
    assert!(blocks.contains("last") && !blocks.contains("delalloc"), "{blocks}");
}

/// A change is made as a whole or not at all.
#[test]
fn a_refused_update_changes_nothing() {
    let g = Gantry::new();
    let flags = [&["--name=it", "--memory=256m", "--pids-limit=100"][..], &host_programs()].concat();
    let pod = g.detached(&flags, &["alloc", "64", "hold"]);
    let pid = g.app_pid(&pod, "it");
    let used = || limit(pid, "memory", 0, "memory.usage_in_bytes", "memory.current")?.parse::<u64>().ok();
    wait_for("the app to have its memory", || used().filter(|used| *used > 60 << 20));
    for (flags, why) in [
        (&["--memory=16m", "--pids-limit=5"][..], "cannot be reclaimed"),
        (&["--memory=512m", "--pids-limit=5", "--cpuset-cpus=4000"], "does not have all of '4000'"),
        (&["--memory=160m", "--pids-limit=5", "--cpuset-cpus=4000"], "does not have all of '4000'"),
        (&["--memory-swap=1m"], "--memory-swap"),
    ] {
        let line = [&["update"][..], flags, &[&pod]].concat();
        let _ = g.run(&line).exits(125).stderr_contains(&[why]);
        assert_eq!((memory(pid, 0), pids(pid, 0).as_deref()), (Some(256 << 20), Some("100")), "{flags:?}");
    }
    // The app runs on, and takes the next change. The kernel reclaims page cache of files that the app wrote.
    let dd = ["/usr/bin/dd", "if=/dev/zero", "of=/file", "bs=1M", "count=96", "conv=fsync"];
    g.run(&[&["exec", &pod, "--"], &dd[..]].concat()).succeeded();
    assert!(used().is_some_and(|used| used > 128 << 20), "{:?}", used());
    g.run(&["update", "--memory=96m", &pod]).succeeded();
    assert_eq!((memory(pid, 0), g.app_pid(&pod, "it")), (Some(96 << 20), pid));
    assert!(used().is_some_and(|used| used <= 96 << 20), "{:?}", used());
    // Nothing is changed without a change, and in no app that does not exist.
    let _ = g.run(&["update", &pod]).exits(125).stderr_contains(&["name a limit"]);
    let _ = g.run(&["update", "--memory=1g", &format!("{pod}/other")]).exits(1).stderr_contains(&["other"]);
    g.run(&["stop", "--force", &pod]).succeeded();
}

/// The limits of an app that is added to a running pod, and of one that gets its name later.
#[test]
fn limits_of_added_apps() {
    let g = Gantry::new();
    let image = g.fixture();
    let pod = gantry_tests::pod_id(&g.run(&["app", "sandbox", "--net=none", "--pod-pids-limit=500"]).ok());
    let add = |flags: &[&str]| {
        let line = [&["app", "add", "--name=it"][..], flags, &[&pod, &image, "--", "sleep", "forever"]].concat();
        g.run(&line).succeeded();
        g.run(&["app", "start", &format!("{pod}/it")]).succeeded();
        g.app_pid(&pod, "it")
    };
    let pid = add(&["--memory=64m", "--cpuset-cpus=0"]);
    assert_eq!((memory(pid, 0), processors(pid).as_str()), (Some(64 << 20), "0"));
    assert_eq!(pids(pid, 1).as_deref(), Some("500"));
    g.run(&["update", "--memory=32m", &format!("{pod}/it")]).succeeded();
    assert_eq!(memory(pid, 0), Some(32 << 20));
    g.run(&["app", "rm", "--force", &format!("{pod}/it")]).succeeded();
    let pid = add(&["--memory=48m"]);
    assert_eq!(memory(pid, 0), Some(48 << 20));
    // The supervisor restores a record that was lost.
    g.run(&["update", "--memory=40m", &format!("{pod}/it")]).succeeded();
    std::fs::remove_file(g.dir().join("pods").join(&pod).join("limits.json")).unwrap();
    g.run(&["update", "--memory=48m", &format!("{pod}/it")]).succeeded();
    assert_eq!(memory(pid, 0), Some(48 << 20));
    assert_eq!(g.json(&["inspect", &pod])["limits"]["apps"]["it"], json!({ "memory": 48 << 20 }));
    g.run(&["stop", "--force", &pod]).succeeded();
}

/// Flags that let an app execute programs of the host.
fn host_programs() -> Vec<&'static str> {
    let mut volumes = vec!["--volume=/usr:/usr:ro", "--volume=/usr/lib:/lib:ro", "--tmpfs=/tmp"];
    if std::path::Path::new("/usr/lib64").exists() {
        volumes.push("--volume=/usr/lib64:/lib64:ro");
    }
    volumes
}

/// An app's own cgroup is the root of its view, read-only.
#[test]
fn an_app_sees_its_own_cgroup() {
    let g = Gantry::new();
    let pod = g.detached(&["--name=it", "--memory=64m", "--pids-limit=50"], &["sleep", "forever"]);
    let (_, is_v2) = cgroup_of(g.app_pid(&pod, "it"), "memory", 0);
    let (memory, dir) = if is_v2 { ("memory.max", "") } else { ("memory/memory.limit_in_bytes", "memory/") };
    let exec = |verb: &[&str]| g.run(&[&["exec", &pod, "--", "/bin/app"], verb].concat());
    let limit = exec(&["cat", &format!("/sys/fs/cgroup/{memory}")]).ok().stdout;
    assert_eq!(limit.trim(), (64 << 20).to_string());
    let pids = exec(&["cat", if is_v2 { "/sys/fs/cgroup/pids.max" } else { "/sys/fs/cgroup/pids/pids.max" }]);
    assert_eq!(pids.ok().stdout.trim(), "50");
    // The pod's processes of other apps are in other cgroups; this one begins a namespace.
    let groups = exec(&["cat", "/proc/self/cgroup"]).ok().stdout;
    assert!(groups.lines().all(|line| line.ends_with(":/")), "{groups}");
    // Neither the cgroups above nor those beside it.
    let names = exec(&["ls", "/sys/fs/cgroup"]).ok().stdout;
    let all = exec(&["ls", &format!("/sys/fs/cgroup/{dir}")]).ok().stdout;
    assert!(!names.contains("gantry") && !all.contains("release_agent") && !all.contains("it\n"), "{names}{all}");
    for file in ["cgroup.procs", &memory.replace("memory/", "")] {
        let file = format!("/sys/fs/cgroup/{dir}{file}");
        let _ = exec(&["write", &file, "0"]).exits(1).stderr_contains(&["Read-only file system"]);
    }
    let _ = exec(&["write", "/sys/fs/cgroup/new", "x"]).exits(1).stderr_contains(&["Read-only file system"]);
    g.run(&["update", "--memory=96m", &pod]).succeeded();
    assert_eq!(exec(&["cat", &format!("/sys/fs/cgroup/{memory}")]).ok().stdout.trim(), (96 << 20).to_string());
    g.run(&["restart", &pod]).succeeded();
    assert_eq!(exec(&["cat", &format!("/sys/fs/cgroup/{memory}")]).ok().stdout.trim(), (96 << 20).to_string());
    g.run(&["stop", "--force", &pod]).succeeded();
    // A user other than root sees the same, and no capability is left of those that mounting it needed.
    let out = g.app(&["--user=1000"], &["seq", "caps", "--", "ls", "/sys/fs/cgroup"]).ok().stdout;
    assert!(out.contains("CapPrm: 0000000000000000") && out.contains("CapEff: 0000000000000000"), "{out}");
    assert!(out.contains("pids"), "{out}");
    let all = g.app(&["--cap-drop=all"], &["caps"]).ok().stdout;
    assert!(all.contains("CapBnd: 0000000000000000") && all.contains("CapPrm: 0000000000000000"), "{all}");
}

/// Debian's OpenJDK, of the host, sizes its heap by the memory limit of the app.
#[test]
fn java_sizes_its_heap() {
    let g = Gantry::new();
    let volumes = host_programs();
    let java = std::fs::canonicalize("/usr/bin/java").ok().and_then(|path| path.to_str().map(str::to_owned));
    let Some(java) = java else { panic!("there is no /usr/bin/java: `./dev setup tests` brings it") };
    // Debian keeps the configuration, which the JDK links to, in /etc/java-NN-openjdk.
    let name = java.split('/').find(|part| part.starts_with("java-")).unwrap_or_default();
    let etc = name.rsplit_once('-').map(|(name, _architecture)| format!("/etc/{name}")).unwrap_or_default();
    let etc = format!("--volume={etc}:{etc}:ro");
    let exec = format!("--exec={java}");
    let heap = |memory: &str| -> u64 {
        let image = g.fixture();
        let flags = ["run", "--net=none", "--quiet", "--rm", memory, &etc];
        let java = [&image, &exec, "--", "-XX:+PrintFlagsFinal", "-XX:MaxRAMPercentage=50", "-version"];
        let out = g.run(&[&flags[..], &volumes, &java].concat()).ok().stdout;
        let size = out.lines().find_map(|line| line.split_once(" MaxHeapSize ")?.1.split_ascii_whitespace().nth(1));
        size.and_then(|size| size.parse().ok()).unwrap_or_else(|| panic!("{out}"))
    };
    assert_eq!((heap("--memory=256m") >> 20, heap("--memory=512m") >> 20), (128, 256));
}
