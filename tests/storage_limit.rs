//! `--storage-limit` where the file system has no project quotas. tests/vm has the checks of a limit: the kernel of
//! this host may lack project quotas.

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, SmallDisk};

const FAILED: i32 = 125;

#[test]
fn a_file_system_without_project_quotas_is_refused() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "64m");
    let image =
        Image::builder().layer(Layer::new().file("file", "text", 0o644)).entrypoint(&["/file"]).build().unwrap();
    let reference = g.layout("tiny", &image);
    let out = disk.run(&["run", "--net=none", &reference, "--storage-limit=2Mi"]);
    assert_eq!(out.code, FAILED, "{out}");
    assert!(out.stderr.contains("needs project quotas on the file system of"), "{out}");
    assert!(out.stderr.contains("option prjquota"), "{out}");
    assert_eq!(disk.run(&["list", "-q"]).ok().stdout, "", "a pod is left");
}

#[test]
fn impossible_storage_limits_are_refused() {
    let g = Gantry::new();
    let combined = "--storage-limit cannot be combined with --privileged";
    for (flags, want) in [
        (&["--storage-limit=1Ki"][..], "--storage-limit"),
        (&["--storage-limit=many"], "--storage-limit"),
        (&["--storage-limit=2Mi", "--privileged"], combined),
        (&["--storage-limit=2Mi", "--seccomp=unconfined"], combined),
    ] {
        let out = g.run(&[&["run", "--net=none", "registry.example/image:1"], flags, &["--", "true"]].concat());
        assert!(out.code == FAILED && out.stderr.contains(want), "{flags:?}: {out}");
    }
}
