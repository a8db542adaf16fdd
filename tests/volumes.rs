//! Volumes: initial contents, allowed mount points, and isolation from later mounts on the host.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_fixtures::{Device, Header, Image, ImageBuilder, Layer};
use gantry_tests::{Gantry, Out, pod_id};

/// An image with the fixture app and the files that `add` adds.
fn image(g: &Gantry, add: impl FnOnce(Layer) -> Layer) -> ImageBuilder {
    let mut layer = Layer::new();
    for dir in ["bin", "dev", "etc", "proc", "sys"] {
        layer = layer.dir(dir, 0o755);
    }
    Image::builder().layer(add(layer.file("bin/app", g.app_bytes(), 0o755))).entrypoint(&["/bin/app"])
}

fn run(g: &Gantry, flags: &[&str], image: &str, verb: &[&str]) -> Out {
    g.run(&[&["run", "--net=none", "--quiet"], flags, &[image, "--"], verb].concat())
}

/// The directories of a pod's own volumes on the host.
fn dirs_of(g: &Gantry, pod: &str) -> Vec<PathBuf> {
    let dir = g.dir().join("pods").join(pod).join("volumes");
    let mut all: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn declared_volumes_keep_the_image_content() {
    let g = Gantry::new();
    let own = |layer: Layer| layer.owner(1700, 60);
    let made = image(&g, |layer| {
        let layer = own(layer.dir("var", 0o755)).dir("var/empty", 0o1777);
        let layer = own(layer).dir("var/full", 0o750);
        let layer = own(layer).xattr("user.kind", b"note").file("var/full/file", "text", 0o4711);
        let layer = own(layer.hardlink("var/full/again", "var/full/file"));
        let layer = own(layer.device("var/full/fifo", Device::Fifo, 0o622)).dir("var/full/deep", 0o700);
        own(layer).file("var/full/deep/file", "deep", 0o600)
    });
    let made = made.volume("/var/empty").volume("/var/full").volume("/var/full/deep").volume("/var/new");
    let id = g.import("declared", &made.build().unwrap());
    let files = ["/var/full/file", "/var/full/again", "/var/full/fifo", "/var/full/deep/file"];
    let verb = [&["stat", "/var/empty", "/var/full"][..], &files].concat();
    let out = run(&g, &["--user=1700:60"], &id, &verb).ok();
    let want = [
        "dir 1777 1700 60 ",
        "dir 0750 1700 60 ",
        "file 4711 1700 60 4 ",
        "file 4711 1700 60 4 ",
        "fifo 0622 1700 60 ",
        "file 0600 1700 60 4 ",
    ];
    assert_eq!(out.stdout.lines().count(), want.len());
    for (line, want) in out.stdout.lines().zip(want) {
        assert!(line.starts_with(want), "expected {want} in {out}");
    }
    let _ = run(&g, &["--user=1700:60"], &id, &["write", "/var/empty/mine", "x"]).ok();
    assert!(run(&g, &[], &id, &["stat", "/var/new"]).ok().stdout.starts_with("dir 0755 0 0 "));
    let pod = g.run(&["run", "--detach", "--net=none", &id, "--", "sleep", "forever"]).ok().text().to_owned();
    let full = dirs_of(&g, &pod).into_iter().find(|dir| dir.join("file").exists()).unwrap();
    let (file, again) = (fs::metadata(full.join("file")).unwrap(), fs::metadata(full.join("again")).unwrap());
    assert_eq!((file.ino(), file.nlink()), (again.ino(), 2));
    assert_eq!(rustix::fs::getxattr(full.join("file"), "user.kind", &mut [0u8; 16][..]).unwrap(), 4);
    assert!(!full.join("deep/file").exists(), "what another volume covers was copied");
}

/// A layer of some kilobytes must not fill the disk when a volume is filled from it.
#[test]
fn volumes_are_limited_to_the_image_size() {
    let g = Gantry::new();
    let made = image(&g, |mut layer| {
        let octal = |number: u64| format!("{number:011o}\0").into_bytes();
        let patches = vec![(386, octal(4 << 30)), (398, octal(0)), (483, octal(4 << 30))];
        let header = Header { magic: *b"ustar  \0", patches, ..Header::new(b'S', "data/hole") };
        layer = layer.dir("data", 0o755).raw_header(&header, b"").file("data/file", [b'x'; 100_000], 0o644);
        for i in 0..2000 {
            layer = layer.hardlink(format!("data/link-{i}"), "data/file");
        }
        layer
    });
    let id = g.import("sparse", &made.volume("/data").build().unwrap());
    let pod = g.run(&["run", "--detach", "--net=none", &id, "--", "sleep", "forever"]).ok().text().to_owned();
    let volume = dirs_of(&g, &pod).pop().unwrap();
    let (hole, file) = (fs::metadata(volume.join("hole")).unwrap(), fs::metadata(volume.join("link-7")).unwrap());
    assert_eq!((hole.len(), file.nlink()), (4 << 30, 2001));
    assert!(hole.blocks() * 512 < 1 << 20, "the hole takes {} blocks", hole.blocks());
}

#[test]
fn declared_volumes_are_limited_in_number() {
    let g = Gantry::new();
    let many = |count: usize| {
        let mut made = image(&g, |layer| layer);
        for i in 0..count {
            made = made.volume(&format!("/v/{i}"));
        }
        made.build().unwrap()
    };
    let reference = g.layout("many", &many(5000));
    let out = g.run(&["run", "--net=none", &reference, "--", "true"]).exits(125);
    let _ = out.stderr_contains(&["declares 5000 volumes", "at most 200"]);
    let id = g.import("some", &many(200));
    let _ = run(&g, &[], &id, &["true"]).ok();
    g.check_invariants();
}

#[test]
fn declared_volumes_at_reserved_paths_are_skipped() {
    let g = Gantry::new();
    let paths = ["/", "/proc", "/proc/sys", "/sys/fs/cgroup", "/dev", "/dev/pts", "/dev/null", "/dev/mqueue"];
    for (i, path) in paths.into_iter().enumerate() {
        let id = g.import(&format!("over-{i}"), &image(&g, |layer| layer).volume(path).build().unwrap());
        let line = ["run", "--net=none", &id, "--", "seq", "sysctl", "kernel.ostype", "--", "stat", "/dev/null"];
        let out = g.run(&line).ok().stderr_contains(&[&format!("volume {path}:")]);
        assert!(out.stdout.starts_with("Linux\nchar 0666 0 0 0 1:3 "), "{path}: {out}");
        let _ = run(&g, &["--tty"], &id, &["tty"]).ok();
    }
    let shm = g.import("shm", &image(&g, |layer| layer).volume("/dev/shm").build().unwrap());
    let mounts = run(&g, &[], &shm, &["mounts"]).ok().stdout;
    assert_eq!(mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/dev/shm")).count(), 2, "{mounts}");
}

/// A link in the image, or in a volume, leads a mount to /dev, /proc or /sys.
#[test]
fn links_do_not_lead_mounts_to_reserved_paths() {
    let g = Gantry::new();
    let host = g.scratch().join("host");
    fs::create_dir_all(host.join("sub")).unwrap();
    fs::write(host.join("ptmx"), "mine").unwrap();
    std::os::unix::fs::symlink("/proc", host.join("to-proc")).unwrap();
    let volume = format!("--volume=v,kind=host,source={}", host.display());
    let other = format!("--volume=w,kind=host,source={}", host.join("sub").display());
    let rows = [("/dev", "/dev"), ("/../dev/./", "/dev"), ("proc/sys", "/proc/sys"), ("/sys", "/sys"), (".", "/")];
    for (i, (link, place)) in rows.into_iter().enumerate() {
        let made = image(&g, |layer| layer.symlink("data", link));
        let id = g.import(&format!("link-{i}"), &made.build().unwrap());
        let out = run(&g, &[&volume, "--mount=volume=v,target=/data"], &id, &["true"]).exits(125);
        let _ = out.stderr_contains(&[&format!("cannot mount over '{place}'"), "'/data' leads there"]);
        // If the image declares the volume, it is skipped.
        let made = image(&g, |layer| layer.symlink("data", link));
        let id = g.import(&format!("declared-{i}"), &made.volume("/data").build().unwrap());
        assert_eq!(run(&g, &[], &id, &["sysctl", "kernel.ostype"]).ok().text(), "Linux", "{link}");
    }
    let id = g.fixture();
    let flags = [&volume, &other, "--mount=volume=v,target=/data", "--mount=volume=w,target=/data/to-proc/sys"];
    let _ = run(&g, &flags, &id, &["true"]).exits(125).stderr_contains(&["cannot mount over '/proc/sys'"]);
    let flags = [&volume, &other, "--mount=volume=v,target=/etc", "--mount=volume=w,target=/escape"];
    let _ = run(&g, &flags, &id, &["true"]).exits(125).stderr_contains(&["mounts twice at '/etc'"]);
    let mut names: Vec<_> = fs::read_dir(&host).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["ptmx", "sub", "to-proc"], "the host's directory was changed");
    assert_eq!(fs::read_dir(host.join("sub")).unwrap().count(), 0);
    // Links that stay inside the root are legitimate and common.
    let made = image(&g, |layer| layer.dir("run", 0o755).dir("var", 0o755).symlink("var/run", "../run"));
    let inside = g.import("inside", &made.volume("/run/x").volume("/var/run/x").build().unwrap());
    let flags = [&volume, "--mount=volume=v,target=/var/run/x/deep"];
    assert_eq!(run(&g, &flags, &inside, &["cat", "/run/x/deep/ptmx"]).ok().stdout, "mine");
}

/// As with runc: volumes may cover /sys, what is below it, and some files of /proc. The covered paths stay covered.
#[test]
fn volumes_cover_sys_and_files_of_proc() {
    let g = Gantry::new();
    let image = g.fixture();
    let host = g.scratch().join("host");
    fs::create_dir_all(host.join("firmware")).unwrap();
    fs::write(host.join("firmware/secret"), "secret").unwrap();
    fs::write(host.join("meminfo"), "MemTotal: 1 kB\n").unwrap();
    let bind = |target: &str| format!("-v={}:{target}", host.display());
    // The host's /sys has what the pod's own does not show: the cgroups of the host.
    let names = |path: &str| {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names.join("\n")
    };
    let out = run(&g, &["-v=/sys:/sys:ro"], &image, &["ls", "/sys/fs/cgroup"]).ok();
    assert_eq!(out.text(), names("/sys/fs/cgroup"));
    let out = run(&g, &["-v=/sys:/sys:ro"], &image, &["ls", "/sys/firmware"]).ok();
    assert_eq!(out.text(), "", "hidden");
    let _ =
        run(&g, &["-v=/sys:/sys:ro"], &image, &["mkdir", "/sys/fs/cgroup/x"]).exits(1).stderr_contains(&["Read-only"]);
    // A directory of the host, at /sys and below.
    assert_eq!(run(&g, &[&bind("/sys")], &image, &["ls", "/sys/firmware"]).ok().text(), "", "hidden");
    assert_eq!(run(&g, &[&bind("/sys")], &image, &["cat", "/sys/meminfo"]).ok().text(), "MemTotal: 1 kB");
    assert_eq!(run(&g, &[&bind("/sys/fs/cgroup")], &image, &["ls", "/sys/fs/cgroup"]).ok().text(), "firmware\nmeminfo");
    assert_eq!(run(&g, &["--tmpfs=/sys/fs/bpf"], &image, &["ls", "/sys/fs/bpf"]).ok().text(), "");
    let file = format!("-v={}:/proc/meminfo:ro", host.join("meminfo").display());
    assert_eq!(run(&g, &[&file], &image, &["cat", "/proc/meminfo"]).ok().text(), "MemTotal: 1 kB");
    for target in ["/proc", "/proc/self", "/proc/1", "/proc/sys", "/proc/self/status"] {
        let _ = run(&g, &[&bind(target)], &image, &["true"]).exits(125).stderr_contains(&["cannot mount over"]);
    }
    g.check_invariants();
}

/// A volume covers the working directory that is made in the image's root.
#[test]
fn working_directories_are_made_in_volumes() {
    let g = Gantry::new();
    let image = g.fixture();
    let (host, outside) = (g.scratch().join("host"), g.scratch().join("outside"));
    fs::create_dir(&host).unwrap();
    fs::create_dir(&outside).unwrap();
    let bind = format!("-v={}:/work", host.display());
    let cwd = "--working-dir=/work/build/deep";
    let empty = ["--volume=v,kind=empty", "--mount=volume=v,target=/work"];
    for volume in [&[bind.as_str()][..], &["--tmpfs=/work"], &empty] {
        let flags = [volume, &[cwd, "--readonly-rootfs"]].concat();
        assert_eq!(run(&g, &flags, &image, &["cwd"]).ok().text(), "/work/build/deep");
    }
    let made = fs::metadata(host.join("build/deep")).unwrap();
    assert_eq!((made.mode() & 0o7777, made.uid()), (0o755, 0));
    let read_only = format!("{bind}:ro");
    assert_eq!(run(&g, &[&read_only, cwd], &image, &["cwd"]).ok().text(), "/work/build/deep", "it exists");
    fs::remove_dir_all(host.join("build")).unwrap();
    let _ = run(&g, &[&read_only, cwd], &image, &["true"]).exits(125).stderr_contains(&["/work/build", "Read-only"]);
    // No link of a volume leads out of the app's root.
    for target in [outside.clone(), Path::new("../outside").to_owned()] {
        std::os::unix::fs::symlink(target, host.join("link")).unwrap();
        let _ = run(&g, &[&bind, "--working-dir=/work/link/x"], &image, &["true"]).exits(125);
        fs::remove_file(host.join("link")).unwrap();
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    g.check_invariants();
}

/// Runs a program in the mount namespace of a process.
fn in_mount_namespace_of(process: u32, program: &Command) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--mount=/proc/{process}/ns/mnt"))
        .arg("--")
        .arg(program.get_program())
        .args(program.get_args());
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// File systems that the host mounts below a volume do not appear in a running pod, where they would be writable.
#[test]
fn later_host_mounts_do_not_appear_in_volumes() {
    let g = Gantry::new();
    let volume = g.scratch().join("shared");
    fs::create_dir_all(volume.join("sub")).unwrap();
    fs::set_permissions(volume.join("sub"), PermissionsExt::from_mode(0o777)).unwrap();
    let script = r#"mount --bind "$1" "$1" && mount --make-shared "$1" && echo mounted && exec cat"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", script, "sh"]).arg(&volume);
    let mut host = g.spawn_with(&mut command, std::process::Stdio::piped());
    host.wait_for_stdout("mounted");
    let inside = |command: &Command| g.spawn_command(&mut in_mount_namespace_of(host.pid(), command)).wait();
    let image = g.fixture();
    let source = format!("--volume=v,kind=host,source={},readOnly=true", volume.display());
    let line =
        ["run", "--detach", "--net=none", &source, "--mount=volume=v,target=/v", &image, "--", "sleep", "forever"];
    let pod = inside(&g.command(&line)).ok().text().to_owned();
    let mut later = Command::new("mount");
    later.args(["-t", "tmpfs", "-o", "mode=0777", "later"]).arg(volume.join("sub"));
    inside(&later).succeeded();
    let mounts = g.run(&["exec", &pod, "--", "/bin/app", "mounts"]).ok().stdout;
    assert!(!mounts.contains("/v/sub"), "{mounts}");
    let private = |line: &&str| !["shared:", "master:"].iter().any(|word| line.contains(word));
    assert!(mounts.lines().all(|line| private(&line)), "{mounts}");
    let _ = g.run(&["exec", &pod, "--", "/bin/app", "write", "/v/sub/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    g.run(&["rm", "--force", &pod]).succeeded();
}

#[test]
fn mtab_links_to_the_mounts_of_the_process() {
    let g = Gantry::new();
    assert_eq!(g.app(&[], &["readlink", "/etc/mtab"]).ok().text(), "../proc/self/mounts");
    let own = g.import("mtab", &image(&g, |layer| layer.file("etc/mtab", "own\n", 0o644)).build().unwrap());
    assert_eq!(run(&g, &[], &own, &["cat", "/etc/mtab"]).ok().stdout, "own\n");
}

/// Where a file of an app's /dev was removed or replaced, `exec` still gives programs the null device.
#[test]
fn exec_needs_no_null_device_in_the_app() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let exec = |verb: &[&str]| g.run(&[&["exec", &pod, "--", "/bin/app"], verb].concat());
    exec(&["rm", "/dev/null"]).succeeded();
    let out = exec(&["fds"]).ok();
    assert!(out.stdout.starts_with("0 /dev/null"), "{out}");
    exec(&["mkdir", "/dev/null"]).succeeded();
    exec(&["true"]).succeeded();
    assert!(Path::new("/dev/null").exists());
}

/// An image with a directory `/data` of user 1700 and some files, and the first words of the verb `stat` for it.
fn seeded(g: &Gantry, name: &str) -> String {
    let made = image(g, |layer| {
        let layer = layer.owner(1700, 60).dir("data", 0o750).owner(1700, 60).file("data/file", name, 0o640);
        layer.hardlink("data/again", "data/file")
    });
    g.import(name, &made.build().unwrap())
}

#[test]
fn named_volumes_start_from_images_and_outlive_pods() {
    let g = Gantry::new();
    let (one, two) = (seeded(&g, "one"), seeded(&g, "two"));
    let with = |image: &str, verb: &[&str]| run(&g, &["--rm", "--user=1700:60", "-v", "pg_data:/data"], image, verb);
    let out = with(&one, &["seq", "stat", "/data", "--", "cat", "/data/again"]).ok();
    assert!(out.stdout.starts_with("dir 0750 1700 60 ") && out.stdout.ends_with("/data\none"), "{out}");
    with(&one, &["write", "/data/mine", "kept"]).succeeded();
    // Another image, another mount point, read-only: the volume's contents are kept.
    let flags = ["--rm", "--user=1700:60", "-v", "pg_data:/elsewhere:ro"];
    let out = run(&g, &flags, &two, &["cat", "/elsewhere/file", "/elsewhere/mine"]).ok();
    assert_eq!(out.stdout, "onekept\n");
    let _ = run(&g, &flags, &two, &["write", "/elsewhere/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    // An emptied volume stays empty.
    with(&one, &["seq", "rm", "/data/file", "--", "rm", "/data/again", "--", "rm", "/data/mine"]).succeeded();
    assert_eq!(with(&two, &["ls", "/data"]).ok().stdout, "");
    let data = g.dir().join("volumes/pg_data");
    assert_eq!(fs::metadata(&data).unwrap().mode() & 0o7777, 0o700, "others get into the volume");
    assert_eq!(fs::metadata(data.join("data")).unwrap().mode() & 0o7777, 0o750);
    // Two apps of a pod, and docker's long form.
    let line = [
        "run",
        "--net=none",
        "--quiet",
        "--rm",
        &one,
        "--name=a",
        "-v",
        "shared:/data",
        "--",
        "wait-file",
        "/data/go",
        "---",
        &two,
        "--name=b",
        "--mount=type=volume,source=shared,target=/data",
        "--",
        "touch-ready",
        "/data/go",
    ];
    g.run(&line).succeeded();
    assert!(g.dir().join("volumes/shared/data/file").exists());
    g.check_invariants();
}

#[test]
fn named_volumes_are_listed_and_removed() {
    let g = Gantry::new();
    assert_eq!(g.json(&["volume", "list"]), serde_json::json!([]));
    assert_eq!(g.run(&["volume", "create", "--label=k=v", "data", "idle"]).ok().stdout, "data\nidle\n");
    assert_eq!(g.run(&["volume", "create", "data"]).ok().stdout, "data\n", "it is unchanged");
    let image = g.fixture();
    let prepared = pod_id(&g.run(&["prepare", "-v", "data:/d", &image]).ok());
    let running =
        g.detached(&["--volume=x,kind=named,source=data", "--mount=volume=x,target=/x"], &["sleep", "forever"]);
    let of = |name: &str| g.json(&["volume", "inspect", name]);
    let mut pods = vec![prepared.clone(), running.clone()];
    pods.sort();
    let data = of("data");
    assert_eq!((&data["pods"], &data["labels"]), (&serde_json::json!(pods), &serde_json::json!({"k": "v"})));
    assert_eq!(data["path"], g.dir().join("volumes/data/data").display().to_string());
    assert_eq!(of("idle")["pods"], serde_json::json!([]));
    let several = g.run(&["volume", "inspect", "data", "absent", "idle", "-o", "json"]).exits(1);
    let several = several.stderr_contains(&["no volume 'absent'"]).json();
    assert_eq!((&several[0], &several[1]["name"]), (&data, &serde_json::json!("idle")));
    let table = g.run(&["volume", "ls"]).ok().stdout;
    assert!(table.starts_with("VOLUME") && table.contains(&prepared[..8]), "{table}");
    // In every state of its pods.
    for pod in [&running, &prepared] {
        let _ = g.run(&["volume", "rm", "data"]).exits(125).stderr_contains(&["volume 'data' is used by", pod]);
        g.run(&["kill", pod]);
        if pod == &running {
            g.wait_state(pod, "exited");
            let _ = g.run(&["volume", "rm", "--force", "data"]).exits(125).stderr_contains(&[pod]);
        }
        g.run(&["rm", pod]).succeeded();
    }
    fs::write(g.dir().join("volumes/data/data/file"), [7; 100_000]).unwrap();
    // prune lists and removes the volumes that no pod mounts.
    let keeper = pod_id(&g.run(&["prepare", "-v", "used:/d", &image]).ok());
    let dry = g.run(&["volume", "prune", "--dry-run"]).ok().stdout;
    assert!(dry.contains("data ") && dry.contains("idle ") && !dry.contains("used "), "{dry}");
    assert_eq!(g.json(&["volume", "list"]).as_array().map(Vec::len), Some(3));
    // Without a terminal and without --force, nothing is removed.
    let _ = g.run(&["volume", "prune"]).exits(125).stderr_contains(&["give --force"]);
    assert_eq!(g.json(&["volume", "list"]).as_array().map(Vec::len), Some(3));
    let dry = g.json(&["volume", "prune", "--dry-run", "-o", "json"]);
    assert_eq!((&dry["volumes"], &dry["done"]), (&serde_json::json!(["data", "idle"]), &false.into()));
    assert!(dry["bytes"].as_u64().is_some_and(|bytes| bytes >= 100_000), "{dry}");
    let pruned = g.run(&["volume", "prune", "--force"]).ok().stdout;
    assert!(pruned.contains("data ") && pruned.contains("freed 10"), "{pruned}");
    assert!(g.run(&["volume", "prune", "--force"]).ok().stdout.contains("every volume is mounted by a pod"));
    let out = g.run(&["volume", "rm", "used"]).exits(125);
    let _ = out.stderr_contains(&[&format!("is used by pod {keeper}: remove it first")]);
    assert_eq!(g.run(&["volume", "list", "-q"]).ok().stdout, "used\n");
    g.run(&["rm", &keeper]).succeeded();
    let pruned = g.json(&["volume", "prune", "--force", "--output=json"]);
    assert_eq!((&pruned["volumes"], &pruned["done"]), (&serde_json::json!(["used"]), &true.into()));
    let none = g.json(&["volume", "prune", "--force", "--output=json"]);
    assert_eq!(none, serde_json::json!({ "volumes": [], "bytes": 0, "done": true }));
    assert!(g.run(&["volume", "prune", "--force"]).ok().stdout.contains("there are no volumes"));
    g.run(&["volume", "create", "used"]).succeeded();
    assert_eq!(g.run(&["volume", "rm", "used"]).ok().stdout, "used\n");
    let _ = g.run(&["volume", "rm", "used"]).exits(1).stderr_contains(&["no volume 'used'"]);
    assert_eq!(g.run(&["volume", "rm", "--force", "used"]).ok().stdout, "");
    let _ = g.run(&["volume", "inspect", "used"]).exits(1).stderr_contains(&["no volume 'used'"]);
    for bad in ["../x", ".", "a/b", "-"] {
        let _ = g.run(&["volume", "create", "--", bad]).exits(125).stderr_contains(&["is not the name of a volume"]);
    }
    g.check_invariants();
}

#[test]
fn anonymous_volumes_are_removed_with_their_pod() {
    let g = Gantry::new();
    let one = seeded(&g, "one");
    let out =
        run(&g, &["--user=1700:60", "-v", "/data"], &one, &["seq", "cat", "/data/file", "--", "write", "/data/x", "x"]);
    assert_eq!(out.ok().stdout, "one");
    let pod = g.list().pop().unwrap()["id"].as_str().unwrap().to_owned();
    assert!(dirs_of(&g, &pod)[0].join("x").exists());
    g.run(&["rm", &pod]).succeeded();
    assert_eq!(g.json(&["volume", "list"]), serde_json::json!([]));
}

/// A supervisor is killed while it fills a volume: the next one fills it, and nothing of the first try is visible.
#[test]
fn a_partially_filled_volume_is_filled_again() {
    let g = Gantry::new();
    let one = seeded(&g, "one");
    g.run(&["volume", "create", "data"]).succeeded();
    let dir = g.dir().join("volumes/data");
    fs::create_dir(dir.join("filling")).unwrap();
    fs::write(dir.join("filling/half"), "x").unwrap();
    let out = run(&g, &["-v", "data:/data"], &one, &["ls", "/data"]).ok();
    assert_eq!(out.stdout, "again\nfile\n");
    assert!(!dir.join("filling").exists() && !dir.join("fresh").exists());
    // A volume that a user filled before its first mount is left unchanged.
    g.run(&["volume", "create", "mine"]).succeeded();
    fs::write(g.dir().join("volumes/mine/data/own"), "x").unwrap();
    assert_eq!(run(&g, &["-v", "mine:/data"], &one, &["ls", "/data"]).ok().stdout, "own\n");
    // Two pods at once: one fills the volume, neither sees it partly filled.
    let both: Vec<_> = (0..2)
        .map(|_| g.spawn(&["run", "--rm", "--net=none", "--quiet", "-v", "new:/data", &one, "--", "ls", "/data"]))
        .collect();
    for running in both {
        assert_eq!(running.wait().ok().stdout, "again\nfile\n");
    }
}

/// Volumes and their references are recovered after the database was lost.
#[test]
fn volumes_survive_the_loss_of_the_database() {
    let g = Gantry::new();
    let image = g.fixture();
    let _ = run(&g, &["--rm", "-v", "kept:/d"], &image, &["write", "/d/file", "x"]).ok();
    let prepared = pod_id(&g.run(&["prepare", "-v", "data:/d", &image]).ok());
    for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        let _ = fs::remove_file(g.dir().join(name));
    }
    for backup in fs::read_dir(g.dir().join("backups")).unwrap() {
        fs::remove_file(backup.unwrap().path()).unwrap();
    }
    drop(g.start_daemon(&[]));
    let _ = fs::remove_file(g.dir().join("restored"));
    assert_eq!(g.run(&["volume", "list", "-q"]).ok().stdout, "data\nkept\n");
    let _ = g.run(&["volume", "rm", "data"]).exits(125).stderr_contains(&[&prepared]);
    let _ = run(&g, &["--rm", "-v", "kept:/d"], &image, &["cat", "/d/file"]).ok().stdout_contains("x");
    // A directory without a row was left by a kill; it gets a row again.
    g.run(&["rm", &prepared]).succeeded();
    fs::create_dir_all(g.dir().join("volumes/found/data")).unwrap();
    fs::set_permissions(g.dir().join("volumes/found"), PermissionsExt::from_mode(0o700)).unwrap();
    g.run(&["gc"]).succeeded();
    assert_eq!(g.run(&["volume", "list", "-q"]).ok().stdout, "data\nfound\nkept\n");
}
