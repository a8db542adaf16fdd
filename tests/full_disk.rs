//! A full disk: what must fail says so, what frees space still works, and nothing half-done stays.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, Out, SmallDisk, pod_id};
use serde_json::json;

const FAILED: i32 = 125;

fn tiny(text: &str) -> Image {
    Image::builder().layer(Layer::new().file("file", text, 0o644)).entrypoint(&["/file"]).build().unwrap()
}

fn big(bytes: usize) -> Image {
    let layer = Layer::new().file("a", vec![1u8; bytes / 2], 0o644).file("b", vec![2u8; bytes / 2], 0o644);
    Image::builder().layer(layer).entrypoint(&["/a"]).build().unwrap()
}

/// Demands a failure that says what is missing.
#[track_caller]
fn assert_full(out: &Out) {
    assert_eq!(out.code, FAILED, "{out}");
    // As the kernel words it, and as the database does.
    assert!(["No space left", "disk is full"].iter().any(|text| out.stderr.contains(text)), "{out}");
}

#[track_caller]
fn assert_clean(disk: &SmallDisk<'_>) {
    disk.run(&["doctor"]).succeeded();
    let left: Vec<_> = std::fs::read_dir(disk.data().join("tmp")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "temporary files: {left:?}");
}

#[test]
fn an_image_that_does_not_fit_is_refused_whole() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "8m");
    let reference = g.layout("big", &big(40 << 20));
    for _ in 0..2 {
        assert_full(&disk.run(&["fetch", &reference]));
        assert_eq!(disk.run(&["image", "list", "-o", "json"]).ok().json(), json!([]));
        assert_clean(&disk);
    }
    // What it had taken is free again.
    disk.run(&["fetch", &g.layout("fits", &big(3 << 20))]).succeeded();
    assert_clean(&disk);
}

#[test]
fn what_frees_space_works_without_any() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "16m");
    let kept = tiny("kept");
    let (kept, used) = (g.layout("kept", &kept), g.layout("used", &big(1 << 20)));
    let used = disk.run(&["fetch", &used]).ok().text().to_owned();
    disk.run(&["fetch", &kept]).succeeded();
    let pod = pod_id(&disk.run(&["prepare", "--net=none", &used]).ok());
    let spare = pod_id(&disk.run(&["prepare", "--net=none", &used]).ok());
    disk.fill();

    let other = g.layout("other", &tiny("other"));
    assert_full(&disk.run(&["fetch", &other]));
    assert_full(&disk.run(&["prepare", "--net=none", &used]));
    let ids = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap().as_array().unwrap().len();
    let pods = ids(&disk.run(&["list", "-o", "json"]).ok().stdout);
    assert_eq!(pods, 2, "a pod that could not be prepared is listed, or one is missing");
    assert_eq!(ids(&disk.run(&["image", "list", "-o", "json"]).ok().stdout), 2);
    assert!(disk.run(&["status", &pod]).ok().stdout.contains("prepared"));
    disk.run(&["doctor"]).succeeded();

    disk.run(&["rm", &pod]).succeeded();
    disk.run(&["rm", &spare]).succeeded();
    disk.run(&["gc", "--grace-period=0s"]).succeeded();
    assert_eq!(ids(&disk.run(&["list", "-o", "json"]).ok().stdout), 0);
    disk.run(&["image", "rm", &used]).succeeded();
    disk.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    assert_eq!(ids(&disk.run(&["image", "list", "-o", "json"]).ok().stdout), 0);
    assert_clean(&disk);

    disk.drain();
    disk.run(&["fetch", &other]).succeeded();
    assert_clean(&disk);
}

#[test]
fn a_pod_runs_on_when_the_disk_is_full() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "32m");
    let standard = g.scratch().join("standard");
    gantry_fixtures::write_standard(&standard, g.app_bytes()).unwrap();
    let id = disk.run(&["fetch", &format!("oci:{}", standard.join("layout").display())]).ok().text().to_owned();
    let pod = pod_id(&disk.run(&["run", "--net=none", "--detach", &id, "--", "sleep", "1000"]).ok());
    disk.fill();
    assert!(disk.run(&["list"]).ok().stdout.contains(&pod[..8]));
    assert_eq!(disk.run(&["exec", &pod, "--", "/bin/app", "args", "in"]).ok().stdout, "[\"in\"]\n");
    let out = disk.run(&["run", "--net=none", &id, "--", "args"]);
    if out.code != 0 {
        assert_full(&out);
    }
    disk.run(&["stop", &pod]).succeeded();
    assert!(disk.run(&["status", &pod]).ok().stdout.contains("exited"));
    disk.run(&["rm", &pod]).succeeded();
    disk.run(&["gc", "--grace-period=0s"]).succeeded();
    disk.drain();
    assert_clean(&disk);
}
