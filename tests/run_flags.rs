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
