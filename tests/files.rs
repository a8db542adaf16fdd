//! `cp` and `diff`: files of running, exited and prepared apps, and apps that try to lead a copy astray.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, Out};

/// Runs a verb in a running pod.
#[track_caller]
fn exec(g: &Gantry, pod: &str, verb: &[&str]) -> String {
    g.run(&[&["exec", pod, "/bin/app"], verb].concat()).ok().stdout
}

#[track_caller]
fn copy(g: &Gantry, from: &str, to: &str) -> Out {
    g.run(&["cp", from, to]).ok()
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

/// A directory for the host's side.
fn host_dir(g: &Gantry) -> PathBuf {
    let dir = g.scratch().join("host");
    fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn files_are_copied_out_of_a_running_app() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let dir = host_dir(&g);
    let at = |name: &str| dir.join(name).display().to_string();
    exec(&g, &pod, &["write", "/data/note", "new"]);
    // A file: to a new name, over a file, into a directory.
    copy(&g, &format!("{pod}:/data/note"), &at("name"));
    assert_eq!(text(at("name")), "new\n");
    fs::write(at("name"), "something longer than before").unwrap();
    copy(&g, &format!("{pod}:data/note"), &at("name"));
    assert_eq!(text(at("name")), "new\n");
    copy(&g, &format!("{pod}:/data/owned"), &at(""));
    let owned = fs::metadata(at("owned")).unwrap();
    assert_eq!((owned.uid(), owned.gid(), owned.mode() & 0o7777), (0, 0, 0o640));
    g.run(&["cp", "-a", &format!("{pod}:/data/owned"), &at("")]).succeeded();
    let owned = fs::metadata(at("owned")).unwrap();
    assert_eq!((owned.uid(), owned.gid()), (1000, 50));
    // A directory: to a new name, into a directory, its contents.
    copy(&g, &format!("{pod}:/data"), &at("tree"));
    assert_eq!(text(at("tree/note")), "new\n");
    copy(&g, &format!("{pod}:/data"), &at("tree"));
    assert_eq!(text(at("tree/data/note")), "new\n");
    fs::create_dir(at("contents")).unwrap();
    copy(&g, &format!("{pod}:/data/."), &at("contents"));
    assert_eq!(text(at("contents/owned")), "owned by app:staff\n");
    // Links are copied as links, or followed in the app's root.
    copy(&g, &format!("{pod}:/bin/app-absolute"), &at("link"));
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("/bin/app"));
    g.run(&["cp", "-L", &format!("{pod}:/bin/app-absolute"), &at("program")]).succeeded();
    assert!(fs::symlink_metadata(at("program")).unwrap().is_file());
    // Refused copies.
    for (from, to, why) in [
        ("/data/none", at("x"), "cannot open '/data/none'"),
        ("/data/note", at("none/x"), "cannot open the directory"),
        ("/data/note", at("none/"), "is not a directory"),
        ("/data", at("name"), "is a file"),
        ("/data/note/.", at("x"), "cannot open"),
        ("/proc/1/status", at("x"), "a file system of the kernel"),
        ("/sys/kernel", at("x"), "'/sys/kernel' is on sysfs, a file system of the kernel"),
        ("/procself/etc/passwd", at("x"), "cannot open"),
        ("/dev/null", at("x"), "which is not copied"),
        ("/data/note", "/dev/null".to_owned(), "neither a file nor a directory"),
    ] {
        let out = g.run(&["cp", &format!("{pod}:{from}"), &to]).exits(125);
        drop(out.stderr_contains(&[why]));
    }
    drop(g.run(&["cp", "nothing:/etc", &at("x")]).exits(1));
    drop(g.run(&["cp", &at("name"), &at("x")]).exits(125));
    assert!(!Path::new(&at("x")).exists());
}

#[test]
fn files_are_copied_into_a_running_app() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let dir = host_dir(&g);
    let at = |name: &str| dir.join(name).display().to_string();
    fs::create_dir_all(at("tree/sub")).unwrap();
    fs::write(at("tree/sub/file"), "text").unwrap();
    std::os::unix::fs::chown(at("tree/sub/file"), Some(1234), Some(56)).unwrap();
    fs::set_permissions(at("tree/sub/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    symlink("/etc/passwd", at("tree/link")).unwrap();
    copy(&g, &at("tree"), &format!("{pod}:/home"));
    assert!(exec(&g, &pod, &["stat", "/home/tree/sub/file"]).starts_with("file 0711 0 0 4 "));
    assert_eq!(exec(&g, &pod, &["readlink", "/home/tree/link"]), "/etc/passwd\n");
    g.run(&["cp", "--archive", &at("tree"), &format!("{pod}:/new")]).succeeded();
    assert!(exec(&g, &pod, &["stat", "/new/sub/file"]).starts_with("file 4711 1234 56 4 "));
    copy(&g, &at("tree/sub/file"), &format!("{pod}:/data/owned"));
    assert_eq!(exec(&g, &pod, &["cat", "/data/owned"]), "text");
    // A link in the app leads within its root.
    copy(&g, &at("tree/sub/file"), &format!("{pod}:/escape"));
    assert_eq!(exec(&g, &pod, &["cat", "/etc/file"]), "text");
    assert!(!Path::new("/etc/file").exists());
    for (to, why) in [
        ("/none/x", "cannot open the directory"),
        ("/proc/sys/kernel", "a file system of the kernel"),
        ("/sys/new", "a file system of the kernel"),
        ("/procself/tmp", "cannot open"),
        ("/dev/null", "neither a file nor a directory"),
    ] {
        let out = g.run(&["cp", &at("tree/sub/file"), &format!("{pod}:{to}")]).exits(125);
        drop(out.stderr_contains(&[why]));
    }
    let out = g.run(&["cp", &at("none"), &format!("{pod}:/tmp")]).exits(125);
    drop(out.stderr_contains(&["cannot open"]));
}

/// Others write to the file, too: a copy must not put another in its place.
#[test]
fn open_files_of_processes_are_not_replaced() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let dir = host_dir(&g);
    let from = format!("{pod}:/data/owned");
    let file = dir.join("output");
    symlink("/dev/stdout", dir.join("link")).unwrap();
    symlink("/proc/self/cwd", dir.join("here")).unwrap();
    for to in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/stdout/", "link"] {
        let to = dir.join(to).display().to_string();
        let mut out = fs::File::create(&file).unwrap();
        let mut command = g.command(&["cp", &from, &to]);
        let refused = Command::stdout(&mut command, out.try_clone().unwrap()).stderr(Stdio::piped()).output().unwrap();
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(125), "{to}: {why}");
        assert!(why.contains("'-' writes an archive to standard output"), "{to}: {why}");
        std::io::Write::write_all(&mut out, b"kept").unwrap();
        assert_eq!(text(&file), "kept", "{to}");
        // A pipe.
        drop(g.run(&["cp", &from, &to]).exits(125).stderr_contains(&["'-' writes an archive to standard output"]));
    }
    for (flags, source) in [(&[][..], "/dev/stdin"), (&[], "/dev/fd/0"), (&["-L"], "link")] {
        let source = dir.join(source).display().to_string();
        let to = format!("{pod}:/tmp/x");
        let line = [&["cp"], flags, &[&source, &to]].concat();
        drop(g.run(&line).exits(125).stderr_contains(&["'-' reads an archive from standard input"]));
    }
    // The link itself, and a directory.
    copy(&g, &dir.join("link").display().to_string(), &format!("{pod}:/tmp"));
    assert_eq!(exec(&g, &pod, &["readlink", "/tmp/link"]), "/dev/stdout\n");
    let mut command = g.command(&["cp", &from, &dir.join("here").display().to_string()]);
    assert!(command.current_dir(&dir).status().unwrap().success());
    assert!(dir.join("owned").is_file());
}

#[test]
fn a_killed_copy_leaves_nothing() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let big = host_dir(&g).join("big");
    fs::write(&big, vec![7; 64 << 20]).unwrap();
    let (from, to) = (big.display().to_string(), format!("{pod}:/tmp/big"));
    let whole = g.run(&["cp", &from, &to]).ok().duration;
    for step in 1..8 {
        g.spawn(&["cp", &from, &to]).kill_after(whole * step / 10);
    }
    assert_eq!(exec(&g, &pod, &["ls", "/tmp"]).trim(), "big");
}

#[test]
fn archives_are_streams() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let out = g.run(&["cp", &format!("{pod}:/data"), "-"]).ok();
    let dir = host_dir(&g);
    fs::write(dir.join("archive.tar"), &out.bytes).unwrap();
    let listed = Command::new("tar").arg("-tvf").arg(dir.join("archive.tar")).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("1000/50") && listed.contains(" data/owned"), "{listed}");
    assert!(listed.contains(" data/\n") && !listed.contains("data//"), "{listed}");
    let other = g.detached(&[], &["sleep", "forever"]);
    let input = fs::File::open(dir.join("archive.tar")).unwrap();
    let mut command = g.command(&["cp", "-a", "-", &format!("{other}:/tmp")]);
    g.spawn_with(&mut command, Stdio::from(input)).wait().succeeded();
    assert!(exec(&g, &other, &["stat", "/tmp/data/owned"]).starts_with("file 0640 1000 50 "));
    // Cut off, or no archive at all.
    for bytes in [&out.bytes[..1000], b"no archive"] {
        let out = g.run_with_input(&["cp", "-", &format!("{other}:/tmp")], bytes);
        assert_eq!(out.code, 125, "{out}");
        drop(out.stderr_contains(&["cannot read the archive: it "]));
    }
    let out = g.run_with_input(&["cp", "-", &format!("{other}:/tmp")], b"\x1f\x8b\x08").exits(125);
    drop(out.stderr_contains(&["compressed with gzip: decompress it first: 'gzip -dc FILE | gantry cp - "]));
    let hostile = Layer::new().file("../../outside", "x", 0o644).tar();
    let out = g.run_with_input(&["cp", "-", &format!("{other}:/tmp")], &hostile).exits(125);
    drop(out.stderr_contains(&["leads upwards"]));
    let out = g.run_with_input(&["cp", "-", &format!("{other}:/data/owned")], &[0; 1024]).exits(125);
    drop(out.stderr_contains(&["is not a directory"]));
}

#[test]
fn exited_and_prepared_apps_have_files() {
    let g = Gantry::new();
    let dir = host_dir(&g);
    let at = |name: &str| dir.join(name).display().to_string();
    fs::create_dir(at("volume")).unwrap();
    fs::write(at("volume/inside"), "of the volume").unwrap();
    let volume = format!("--volume={}:/mounted:ro", at("volume"));
    let verb = ["seq", "write", "/data/note", "late", "--", "rm", "/lower", "--", "rm", "/data/owned"];
    let pod = g.detached(&[&volume], &verb);
    let _status = g.wait_state(&pod, "exited");
    copy(&g, &format!("{pod}:/"), &at("root"));
    assert_eq!(text(at("root/data/note")), "late\n");
    assert_eq!(text(at("root/replaced/new")), "from the upper layer\n");
    assert_eq!(text(at("root/mounted/inside")), "of the volume");
    for gone in ["lower", "data/owned", "replaced/old"] {
        assert!(!Path::new(&at("root")).join(gone).exists(), "{gone}");
    }
    // Into it, and out again.
    copy(&g, &at("volume/inside"), &format!("{pod}:/data/copied"));
    copy(&g, &format!("{pod}:/data/copied"), &at("again"));
    assert_eq!(text(at("again")), "of the volume");
    drop(g.run(&["cp", &at("again"), &format!("{pod}:/mounted")]).exits(125));
    assert_eq!(fs::read_dir(at("volume")).unwrap().count(), 1);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(&pod), "a mount of the copy is on the host");
    // A pod that was never started.
    let image = g.fixture();
    let prepared = g.run(&["prepare", "--net=none", &image, "--", "cat", "/tmp/given"]).ok().text().to_owned();
    copy(&g, &format!("{prepared}:/etc/passwd"), &at("passwd"));
    assert!(text(at("passwd")).contains("root"));
    copy(&g, &at("again"), &format!("{prepared}:/tmp/given"));
    drop(g.run(&["run-prepared", &prepared]).ok().stdout_contains("of the volume"));
}

/// A link of the app leads into a mount below a read-only volume.
#[test]
fn mounts_below_read_only_volumes_take_no_files() {
    let g = Gantry::new();
    let volume = g.scratch().join("ro");
    fs::create_dir_all(volume.join("sub")).unwrap();
    let file = host_dir(&g).join("file").display().to_string();
    fs::write(&file, "text").unwrap();
    let script = r#"mount --bind "$1" "$1" && mount --make-shared "$1" && mount -t tmpfs below "$1/sub" &&
        echo mounted && exec cat"#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", script, "sh"]).arg(&volume);
    let mut host = g.spawn_with(&mut command, Stdio::piped());
    host.wait_for_stdout("mounted");
    let namespace = format!("--mount=/proc/{}/ns/mnt", host.pid());
    let inside = |command: &Command| {
        let mut entering = Command::new("nsenter");
        entering.arg(&namespace).arg("--").arg(command.get_program()).args(command.get_args());
        entering.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        g.spawn_command(&mut entering).wait()
    };
    let image = g.fixture();
    let run = |volume: &str| {
        let link = ["seq", "symlink", "/v/sub", "/lnk"];
        let line = [&["run", "--net=none", "--detach", volume, &image, "--"], &link[..]].concat();
        let pod = inside(&g.command(&line)).ok().text().to_owned();
        let _status = g.wait_state(&pod, "exited");
        pod
    };
    let pod = run(&format!("--volume={}:/v:ro", volume.display()));
    let out = inside(&g.command(&["cp", &file, &format!("{pod}:/lnk/x")])).exits(125);
    drop(out.stderr_contains(&["Read-only file system"]));
    inside(&g.command(&["cp", &format!("{pod}:/v"), &host_dir(&g).join("copy").display().to_string()])).succeeded();
    // Writable below a volume that is only itself read-only, and below a writable one.
    let propagated = format!("--volume={}:/v:ro,rslave", volume.display());
    for volume in [propagated, format!("--volume={}:/v", volume.display())] {
        let pod = run(&volume);
        inside(&g.command(&["cp", &file, &format!("{pod}:/lnk/x")])).succeeded();
        let copied = inside(Command::new("cat").arg(g.scratch().join("ro/sub/x"))).ok();
        assert_eq!(copied.stdout, "text", "{volume}");
        inside(Command::new("rm").arg(g.scratch().join("ro/sub/x"))).succeeded();
    }
}

/// The path of the innermost directory is longer than any that Linux takes.
#[test]
fn deep_trees_are_copied_and_listed_in_part() {
    let g = Gantry::new();
    let to = host_dir(&g).join("copy");
    let verb = ["seq", "nest", "/tmp/deep", "5000", "--", "write", "/tmp/near", "text"];
    let pod = g.detached(&[], &verb);
    let _status = g.wait_state(&pod, "exited");
    let out = copy(&g, &format!("{pod}:/tmp"), &to.display().to_string());
    drop(out.stderr_contains(&["1 files and directories are left out", "the first is '"]));
    assert_eq!(text(to.join("near")), "text\n");
    assert!(to.join("deep/d/d/d").is_dir());
    let out = g.run(&["diff", &pod]).ok();
    drop(out.stdout_contains("A /tmp/near").stderr_contains(&["1 files and directories are left out"]));
}

/// A volume that the first start makes, or fills from the image.
#[test]
fn unfilled_volumes_take_no_files() {
    let g = Gantry::new();
    let dir = host_dir(&g);
    let file = dir.join("file").display().to_string();
    fs::write(&file, "text").unwrap();
    let image = g.fixture();
    let volumes = ["--volume=named:/data", "--volume=/new"];
    let line = [&["prepare", "--net=none"][..], &volumes, &[&image, "--", "cat", "/data/owned"]].concat();
    let pod = g.run(&line).ok().text().to_owned();
    for (volume, target) in [("/data", "/data"), ("/data", "/data/file"), ("/new", "/new"), ("/new", "/new/file")] {
        let out = g.run(&["cp", &file, &format!("{pod}:{target}")]).exits(125);
        drop(out.stderr_contains(&[format!("({volume}): start the pod once, then copy").as_str()]));
    }
    copy(&g, &file, &format!("{pod}:/tmp/file"));
    drop(g.run(&["run-prepared", &pod]).ok().stdout_contains("owned by app:staff"));
    for target in ["/data/file", "/new/file"] {
        copy(&g, &file, &format!("{pod}:{target}"));
        let back = dir.join("back").display().to_string();
        copy(&g, &format!("{pod}:{target}"), &back);
        assert_eq!(text(back), "text");
    }
}

#[test]
fn special_and_endless_files_are_harmless() {
    let g = Gantry::new();
    let pod = g.detached(&[], &["sleep", "forever"]);
    let dir = host_dir(&g);
    let at = |name: &str| dir.join(name).display().to_string();
    exec(&g, &pod, &["mkdir", "/tmp/odd"]);
    exec(&g, &pod, &["mkfifo", "/tmp/odd/fifo"]);
    exec(&g, &pod, &["sparse", "/tmp/odd/holes", "4398046511104"]);
    exec(&g, &pod, &["write", "/tmp/odd/plain", "text"]);
    let out = copy(&g, &format!("{pod}:/tmp/odd"), &at("odd"));
    drop(out.stderr_contains(&["'fifo' is left out: it is a device, FIFO or socket"]));
    let holes = fs::metadata(at("odd/holes")).unwrap();
    assert!(holes.len() == 4_398_046_511_104 && holes.blocks() < 100, "{holes:?}");
    assert_eq!(text(at("odd/plain")), "text\n");
    assert!(!Path::new(&at("odd/fifo")).exists());
    let out = g.run(&["cp", &format!("{pod}:/tmp/odd"), "-"]).ok();
    assert!(out.bytes.len() < 1 << 20, "{} bytes", out.bytes.len());
    // The whole root, with /proc, /sys and /dev.
    fs::create_dir(at("root")).unwrap();
    let out = copy(&g, &format!("{pod}:/"), &at("root"));
    drop(out.stderr_contains(&["file systems of the kernel are left out"]));
    assert_eq!(fs::read_dir(at("root/proc")).unwrap().count(), 0);
}

/// The app exchanges a directory and a link to a directory of the host, over and over.
#[test]
fn swapped_links_lead_nowhere() {
    let g = Gantry::new();
    let dir = host_dir(&g);
    let at = |name: &str| dir.join(name).display().to_string();
    for name in ["secret", "given", "got"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("secret/file"), "of the host").unwrap();
    fs::write(at("given/new"), "copied").unwrap();
    let verb = ["seq", "mkdir", "/swap", "--", "mkdir", "/swap/in", "--", "write", "/swap/in/file", "of the app", "--"];
    let secret = at("secret");
    let pod = g.detached(&[], &[&verb[..], &["swap-link", "/swap/in", &secret]].concat());
    let _log = g.wait_log(&pod, "swapping");
    let mut succeeded = 0;
    for round in 0..40 {
        // Whether a copy succeeds depends on the moment.
        let out = g.run(&["cp", "--quiet", &format!("{pod}:/swap/in/file"), &at("got/file")]);
        succeeded += u32::from(out.code == 0);
        let _may_fail = g.run(&["cp", "--quiet", &format!("{pod}:/swap"), &at(&format!("got/tree{round}"))]);
        let _may_fail = g.run(&["cp", "--quiet", &at("given/."), &format!("{pod}:/swap/in")]);
        let _may_fail = g.run(&["cp", "--quiet", &at("given"), &format!("{pod}:/swap")]);
    }
    assert!(succeeded > 0, "no copy succeeded: the test shows nothing");
    let found = Command::new("grep").args(["-rl", "of the host", &at("got")]).output().unwrap();
    assert!(found.stdout.is_empty(), "a file of the host was copied: {}", String::from_utf8_lossy(&found.stdout));
    let names: Vec<_> = fs::read_dir(&secret).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "a file was copied to the host");
}

#[test]
fn changes_are_listed() {
    let g = Gantry::new();
    let plain = g.detached(&[], &["sleep", "forever"]);
    assert_eq!(g.run(&["diff", &plain]).ok().stdout, "", "gantry's own files are listed");
    let verb = ["seq", "write", "/data/note", "x", "--", "rm", "/lower/kept", "--", "rm", "/replaced", "--"];
    let more = ["mkdir", "/replaced", "--", "write", "/replaced/other", "y", "--", "write", "/etc/passwd", "z"];
    let pod = g.detached(&["--tmpfs=/scratch/here"], &[&verb[..], &more].concat());
    let _status = g.wait_state(&pod, "exited");
    let want = [
        "C /data",
        "A /data/note",
        "C /etc",
        "C /etc/passwd",
        "C /lower",
        "D /lower/kept",
        "C /replaced",
        "D /replaced/new",
        "A /replaced/other",
    ];
    let out = g.run(&["diff", &pod]).ok();
    assert_eq!(out.stdout.lines().collect::<Vec<_>>(), want);
    let json = g.json(&["diff", &pod]);
    assert_eq!(json[1], serde_json::json!({"kind": "added", "path": "/data/note"}));
    drop(g.run(&["diff", &format!("{pod}/none")]).exits(1));
    // An image with a single layer.
    let layer = ["bin", "dev", "etc", "proc", "sys"].iter().fold(Layer::new(), |layer, dir| layer.dir(dir, 0o755));
    let layer = layer.file("bin/app", g.app_bytes(), 0o755);
    let image = g.import("single", &Image::builder().layer(layer).entrypoint(&["/bin/app"]).build().unwrap());
    let pod = g.run(&["run", "--net=none", "--detach", &image, "--", "write", "/made", "x"]).ok().text().to_owned();
    let _status = g.wait_state(&pod, "exited");
    assert_eq!(g.run(&["diff", &pod]).ok().stdout, "A /made\n");
}
