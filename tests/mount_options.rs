//! Options of mounts: propagation, read-only mounts that are not recursive, and volumes that are images.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gantry_fixtures::{Image, Layer};

use gantry_tests::{Gantry, Out, Running, pod_id, wait_for};

const FAILED: i32 = 125;

/// A mount namespace of the host in which gantry runs, with a shared mount that has a writable directory `sub`.
struct SharedHost<'a> {
    g: &'a Gantry,
    shell: Running,
    volume: PathBuf,
}

impl<'a> SharedHost<'a> {
    #[track_caller]
    fn new(g: &'a Gantry) -> Self {
        let volume = g.scratch().join("shared");
        for name in ["sub", "other"] {
            fs::create_dir_all(volume.join(name)).unwrap();
            fs::set_permissions(volume.join(name), fs::Permissions::from_mode(0o777)).unwrap();
        }
        let script = r#"mount --bind "$1" "$1" && mount --make-shared "$1" && echo mounted && exec cat"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "sh", "-c", script, "sh"]).arg(&volume);
        let mut shell = g.spawn_with(&mut command, Stdio::piped());
        shell.wait_for_stdout("mounted");
        Self { g, shell, volume }
    }

    #[track_caller]
    fn run(&self, program: &Command) -> Out {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.shell.pid())).arg(program.get_program());
        command.args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        self.g.spawn_command(&mut command).wait()
    }

    #[track_caller]
    fn gantry(&self, args: &[&str]) -> Out {
        self.run(&self.g.command(args))
    }

    #[track_caller]
    fn mount(&self, at: &Path) {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "mode=0777", "later"]).arg(at);
        self.run(&command).succeeded();
    }

    #[track_caller]
    fn unmount(&self, at: &Path) {
        let mut command = Command::new("umount");
        self.run(command.arg(at)).succeeded();
    }

    /// The mount points of this namespace below the volume.
    #[track_caller]
    fn mounts(&self) -> Vec<String> {
        let out = self.run(Command::new("cat").arg("/proc/self/mountinfo")).ok();
        let points = out.stdout.lines().filter_map(|line| line.split(' ').nth(4));
        let below = format!("{}/", self.volume.display());
        points.filter_map(|point| point.strip_prefix(&below)).map(str::to_owned).collect()
    }

    #[track_caller]
    fn in_app(&self, app: &str, verb: &[&str]) -> Out {
        let (pod, app) = app.split_once('/').unwrap();
        self.g.run(&[&["exec", pod, "--app", app, "--", "/bin/app"], verb].concat())
    }

    /// The mount points of an app below `/v`.
    #[track_caller]
    fn mounts_in(&self, app: &str) -> Vec<String> {
        let out = self.in_app(app, &["mounts"]).ok();
        let points = out.stdout.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter_map(|point| point.strip_prefix("/v/")).map(str::to_owned).collect()
    }
}

#[test]
fn mounts_propagate_as_asked() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let source = host.volume.display().to_string();
    let pod = pod_id(&host.gantry(&["app", "sandbox", "--net=none"]).ok());
    let apps: Vec<String> = ["private", "slave", "shared"]
        .into_iter()
        .map(|kind| {
            let bind = format!("-v={source}:/v:r{kind}");
            let app = format!("{pod}/{kind}");
            let line =
                ["app", "add", &pod, &image, "--name", kind, "--cap-add=SYS_ADMIN", &bind, "--", "sleep", "forever"];
            host.gantry(&line).succeeded();
            host.gantry(&["app", "start", &app]).succeeded();
            app
        })
        .collect();
    // One more, with the pod itself.
    let bind = format!("-v={source}:/v:rslave");
    let other = host.gantry(&["run", "--detach", "--net=none", "--name=own", &bind, &image, "--", "sleep", "forever"]);
    let other = format!("{}/own", pod_id(&other.ok()));
    host.mount(&host.volume.join("sub"));
    for (app, sees) in [(&apps[0], false), (&apps[1], true), (&apps[2], true), (&other, true)] {
        assert_eq!(host.mounts_in(app).contains(&"sub".to_owned()), sees, "{app}");
    }
    // What an app mounts appears on the host only if it is shared.
    for (app, mounted) in [(&apps[1], false), (&apps[2], true)] {
        host.in_app(app, &["mount-try", "/v/other"]).succeeded();
        assert_eq!(host.mounts().contains(&"other".to_owned()), mounted, "{app}");
    }
    assert!(!host.mounts_in(&apps[0]).contains(&"other".to_owned()));
    // A restarted app finds the mounts of that moment.
    host.gantry(&["restart", "--force", &apps[2]]).succeeded();
    assert_eq!(host.mounts_in(&apps[2]).iter().filter(|point| *point == "sub").count(), 1);
    host.unmount(&host.volume.join("other"));
    wait_for("the unmount to reach the app", || {
        (!host.mounts_in(&apps[2]).contains(&"other".to_owned())).then_some(())
    });
    // The end of an app unmounts nothing of the host.
    host.gantry(&["app", "rm", "--force", &apps[0], &apps[1], &apps[2]]).succeeded();
    assert_eq!(host.mounts(), ["sub"]);
    host.gantry(&["rm", "--force", &pod, other.trim_end_matches("/own")]).succeeded();
    assert_eq!(host.mounts(), ["sub"]);
}

/// gantry's own mounts are made before a shared volume covers them.
#[test]
fn mounts_of_apps_stay_outside_shared_volumes() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let shared = host.volume.display().to_string();
    fs::write(host.volume.join("console"), "").unwrap();
    for dir in ["pts", "shm", "fs/cgroup"] {
        fs::create_dir_all(host.volume.join(dir)).unwrap();
    }
    for target in ["/dev", "/sys"] {
        let bind = format!("-v={shared}:{target}:rshared");
        for terminal in ["--tty=false", "--tty"] {
            let run = ["run", "--net=none", "--privileged", terminal, &bind, &image, "--read-only", "--", "true"];
            host.gantry(&run).succeeded();
            assert_eq!(host.mounts(), Vec::<String>::new(), "{target} {terminal}");
        }
    }
}

#[test]
fn mounts_that_cannot_propagate_are_refused() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let (shared, private) = (host.volume.display().to_string(), g.scratch().join("plain"));
    fs::create_dir_all(&private).unwrap();
    let pod = pod_id(&host.gantry(&["app", "sandbox", "--net=none"]).ok());
    let bind = |source: &str, how: &str| format!("-v={source}:/v:{how}");
    let plain = private.display().to_string();
    let inside = format!("-v={plain}:/v/in");
    for (flags, why) in [
        (vec![bind(&plain, "rslave")], "not on a shared or slave mount"),
        (vec![bind(&plain, "rshared")], "not on a shared mount"),
        (vec![bind(&shared, "rshared"), inside], "would appear on the host"),
        (vec!["-v=named:/v:rslave".to_owned()], "only the mounts below a path of the host"),
    ] {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let end = [image.as_str(), "--", "true"];
        let run = [&["run", "--net=none"][..], &flags, &end].concat();
        let _ = host.gantry(&run).exits(FAILED).stderr_contains(&[why]);
        let add = [&["app", "add", &pod, &image, "--name=x"][..], &flags, &["--", "true"]].concat();
        let _ = host.gantry(&add).exits(FAILED).stderr_contains(&[why]);
    }
    host.gantry(&["rm", "--force", &pod]).succeeded();
}

/// Shared volumes are attached last, so one at a covered path would uncover it.
#[test]
fn shared_volumes_cannot_uncover_paths() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let bind = format!("-v={}:/data/v:rshared", host.volume.display());
    let pod = pod_id(&host.gantry(&["prepare", "--net=none", &bind, &image, "--", "true"]).ok());
    let manifest = host.gantry(&["cat-manifest", &pod]).ok().json();
    let file = g.scratch().join("pod.json");
    let run = |list: &str, path: &str| {
        let mut manifest = manifest.clone();
        manifest["apps"][0][list] = serde_json::json!([path]);
        fs::write(&file, manifest.to_string()).unwrap();
        host.gantry(&["run", "--rm", "--pod-manifest", &file.display().to_string()])
    };
    for list in ["masked_paths", "read_only_paths"] {
        for path in ["/data", "/data/v"] {
            let _ = run(list, path).exits(FAILED).stderr_contains(&["is hidden or read-only in the app"]);
        }
        let _ = run(list, "/data/v/sub").exits(FAILED).stderr_contains(&["would appear on the host"]);
        let _ = run(list, "/data/vv").exits(0);
    }
    host.gantry(&["rm", &pod]).succeeded();
    assert_eq!(host.mounts(), Vec::<String>::new());
}

/// Mounts inside of a slave mount are made after it, in the order of their depth.
#[test]
fn volumes_nest_in_mounts_that_propagate() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let source = host.volume.display().to_string();
    let bind = format!("-v={source}:/v:rslave,ro");
    let line =
        ["run", "--detach", "--net=none", "--name=a", &bind, "-v=own:/v/sub", "-v=deep:/v/sub/deep", &image, "--"];
    let out = host.gantry(&[&line[..], &["sleep", "forever"]].concat()).ok();
    let app = format!("{}/a", pod_id(&out));
    host.in_app(&app, &["write", "/v/sub/deep/x", "x"]).succeeded();
    let _ = host.in_app(&app, &["write", "/v/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    assert_eq!(host.mounts_in(&app), ["sub", "sub/deep"]);
    assert_eq!(host.mounts(), [""; 0], "the mounts of the app appear on the host");
    host.gantry(&["rm", "--force", app.trim_end_matches("/a")]).succeeded();
}

fn assets(g: &Gantry, name: &str) -> String {
    let layer = Layer::new()
        .dir("etc", 0o755)
        .file("etc/passwd", "of the image", 0o644)
        .dir("bin", 0o755)
        .file("bin/app", g.app_bytes(), 0o755)
        .symlink("out", "/../../../../../../../../etc")
        .symlink("escape", "/proc/1/root");
    // A layer above, so that the order of layers shows.
    let above = Layer::new().dir("etc", 0o755).file("etc/above", "above", 0o644);
    g.import(name, &Image::builder().layer(layer).layer(above).build().unwrap())
}

#[test]
fn images_are_volumes() {
    let g = Gantry::new();
    let (own, id) = (g.fixture(), assets(&g, "assets"));
    let mount = |options: &str| format!("--mount=type=image,source={id},target=/assets{options}");
    let run =
        |mount: &str, verb: &[&str]| g.run(&[&["run", "--net=none", "--quiet", mount, &own, "--"], verb].concat());
    let out = run(&mount(""), &["seq", "cat", "/assets/etc/passwd", "/assets/etc/above"]).ok();
    assert_eq!(out.stdout, "of the imageabove");
    let _ = run(&mount(""), &["write", "/assets/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    // Programs in it can be executed.
    let out =
        g.run(&["run", "--net=none", "--quiet", &mount(""), &own, "--exec=/assets/bin/app", "--", "print", "hello"]);
    assert_eq!(out.ok().text(), "hello");
    assert_eq!(run(&mount(",subpath=etc/above"), &["cat", "/assets"]).ok().stdout, "above");
    assert_eq!(run(&mount(",subpath=etc"), &["ls", "/assets"]).ok().stdout, "above\npasswd\n");
    // Links lead to places in the image.
    assert_eq!(run(&mount(",subpath=out/passwd"), &["cat", "/assets"]).ok().stdout, "of the image");
    for path in ["absent", "etc/passwd/x", "escape"] {
        let _ =
            run(&mount(&format!(",subpath={path}")), &["true"]).exits(FAILED).stderr_contains(&["the image has no"]);
    }
    let _ = run(&mount(",subpath=../x"), &["true"]).exits(FAILED).stderr_contains(&["'..'"]);
    let absent = "--mount=type=image,source=no-such-image,target=/x";
    let _ = g.run(&["run", "--net=none", "--pull=never", absent, &own, "--", "true"]).exits(FAILED);
}

#[test]
fn mounted_image_is_in_use() {
    let g = Gantry::new();
    let (own, id) = (g.fixture(), assets(&g, "assets"));
    let pod = pod_id(&g.run(&["app", "sandbox", "--net=none"]).ok());
    let mount = format!("--mount=type=image,source={id},target=/assets");
    g.run(&["app", "add", &pod, &own, "--name=a", &mount, "--", "cat", "/assets/etc/passwd"]).succeeded();
    let app = format!("{pod}/a");
    let _ = g.run(&["image", "rm", &id]).exits(FAILED).stderr_contains(&[&pod]);
    g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    g.run(&["app", "start", &app]).succeeded();
    g.wait_log(&pod, "of the image");
    g.check_invariants();
    g.run(&["app", "rm", "--force", &app]).succeeded();
    g.run(&["image", "rm", &id]).succeeded();
}

/// A mount point beside those of the kernel's file systems is made like any other.
#[test]
fn propagating_mounts_have_any_target() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let image = g.fixture();
    let bind = format!("-v={}:/sysadmin:rslave", host.volume.display());
    let run = host.gantry(&["run", "--net=none", "--quiet", &bind, &image, "--", "ls", "/sysadmin"]).ok();
    assert_eq!(run.stdout, "other\nsub\n");
}

/// An app exchanges a directory of a shared volume and a link to /proc, while apps are added that mount inside it.
#[test]
fn swapped_mount_points_lead_nowhere() {
    let g = Gantry::new();
    let host = SharedHost::new(&g);
    let (own, id) = (g.fixture(), assets(&g, "assets"));
    let source = host.volume.display().to_string();
    let pod = pod_id(&host.gantry(&["app", "sandbox", "--net=none"]).ok());
    let attack =
        ["app", "add", &pod, &own, "--name=evil", &format!("-v={source}:/v"), "--", "swap-link", "/v/sub", "/proc"];
    host.gantry(&attack).succeeded();
    host.gantry(&["app", "start", &format!("{pod}/evil")]).succeeded();
    g.wait_log(&pod, "swapping");
    let slave = format!("-v={source}:/v:rslave");
    let image = format!("--mount=type=image,source={id},target=/v/sub");
    let add =
        |name: &str| host.gantry(&["app", "add", &pod, &own, "--name", name, &slave, &image, "--", "sleep", "forever"]);
    let check_mounts = |name: &str| {
        let app = format!("{pod}/{name}");
        host.gantry(&["app", "start", &app]).succeeded();
        let mounts = host.in_app(&app, &["mounts"]).ok().stdout;
        let of_image = |line: &&str| line.contains(" - overlay ") && line.split(' ').nth(4) != Some("/");
        let points: Vec<_> = mounts.lines().filter(of_image).filter_map(|line| line.split(' ').nth(4)).collect();
        assert!(!points.is_empty() && points.iter().all(|point| point.starts_with("/v/")), "{mounts}");
        host.gantry(&["app", "rm", "--force", &app]).succeeded();
    };
    for round in 0..20 {
        let name = format!("a{round}");
        // Whether it succeeds depends on the moment.
        if add(&name).code == 0 {
            check_mounts(&name);
        }
    }
    host.gantry(&["app", "rm", "--force", &format!("{pod}/evil")]).succeeded();
    let sub = host.volume.join("sub");
    if sub.is_symlink() {
        std::fs::remove_file(&sub).unwrap();
    }
    std::fs::create_dir_all(&sub).unwrap();
    add("last").succeeded();
    check_mounts("last");
    assert_eq!(host.mounts(), [""; 0], "a mount of an app is on the host");
    host.gantry(&["rm", "--force", &pod]).succeeded();
}
