//! A full disk: operations that need space fail clearly, operations that free space work, and no partial result
//! remains.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, Out, SmallDisk, pod_id, wait_for};
use serde_json::json;

const FAILED: i32 = 125;

fn tiny(text: &str) -> Image {
    Image::builder().layer(Layer::new().file("file", text, 0o644)).entrypoint(&["/file"]).build().unwrap()
}

fn big(bytes: usize) -> Image {
    let layer = Layer::new().file("a", vec![1u8; bytes / 2], 0o644).file("b", vec![2u8; bytes / 2], 0o644);
    Image::builder().layer(layer).entrypoint(&["/a"]).build().unwrap()
}

/// Asserts a failure that names the full disk.
#[track_caller]
fn assert_full(out: &Out) {
    assert_eq!(out.code, FAILED, "{out}");
    // In the words of the kernel and of the database.
    assert!(["No space left", "disk is full"].iter().any(|text| out.stderr.contains(text)), "{out}");
}

#[track_caller]
fn assert_clean(disk: &SmallDisk<'_>) {
    disk.run(&["doctor"]).succeeded();
    let left: Vec<_> = std::fs::read_dir(disk.data().join("tmp")).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "temporary files: {left:?}");
}

#[test]
fn an_image_that_does_not_fit_leaves_nothing() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "8m");
    let reference = g.layout("big", &big(40 << 20));
    for _ in 0..2 {
        assert_full(&disk.run(&["fetch", &reference]));
        assert_eq!(disk.run(&["image", "list", "-o", "json"]).ok().json(), json!([]));
        assert_clean(&disk);
    }
    // The failed fetch has released its space.
    disk.run(&["fetch", &g.layout("fits", &big(3 << 20))]).succeeded();
    assert_clean(&disk);
}

#[test]
fn commands_that_free_space_need_none() {
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
    assert!(disk.run(&["doctor"]).ok().stdout.contains("has no space left"));

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
fn pods_keep_running_on_a_full_disk() {
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

/// A disk with the fixture image on it.
fn disk_with_fixture<'g>(g: &'g Gantry, disk: SmallDisk<'g>) -> (SmallDisk<'g>, String) {
    let standard = g.scratch().join("standard");
    gantry_fixtures::write_standard(&standard, g.app_bytes()).unwrap();
    let id = disk.run(&["fetch", &format!("oci:{}", standard.join("layout").display())]).ok().text().to_owned();
    (disk, id)
}

/// Fills the disk to the last byte, and uses up the reserve too, as a logging pod does with freed space.
#[track_caller]
fn fill_for_good(disk: &SmallDisk<'_>) {
    let reserve = disk.data().join("reserve");
    if reserve.exists() {
        std::fs::remove_file(&reserve).unwrap();
    }
    disk.fill();
}

/// The shm file of a database that no process has open may be of any length.
#[test]
fn list_needs_no_space_for_a_wal_index() {
    let g = Gantry::new();
    for disk in [SmallDisk::new(&g, "16m"), SmallDisk::ext4(&g, "16m", 1024)] {
        let (disk, image) = disk_with_fixture(&g, disk);
        let pod = pod_id(&disk.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
        let index = disk.data().join("gantry.db-shm");
        for length in [0, 3, 4096] {
            std::fs::File::options().write(true).open(&index).unwrap().set_len(length).unwrap();
            fill_for_good(&disk);
            assert!(disk.run(&["list"]).ok().stdout.contains(&pod[..8]), "{length}");
            assert!(disk.run(&["status", &pod]).ok().stdout.contains("prepared"), "{length}");
            assert_eq!(disk.run(&["image", "list", "-q"]).ok().stdout.lines().count(), 1, "{length}");
            disk.drain();
        }
        disk.run(&["rm", &pod]).succeeded();
        assert_clean(&disk);
    }
}

#[test]
fn a_full_disk_can_be_emptied_repeatedly() {
    let g = Gantry::new();
    for disk in [SmallDisk::new(&g, "24m"), SmallDisk::ext4(&g, "24m", 4096)] {
        let (disk, image) = disk_with_fixture(&g, disk);
        let prepare = || pod_id(&disk.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
        let pods: Vec<String> = (0..5).map(|_| prepare()).collect();
        let gone = disk.run(&["run", "--net=none", &image, "--", "print", "x"]);
        gone.succeeded();
        let reserve = disk.data().join("reserve");
        disk.fill();
        disk.run(&["rm", &pods[0]]).succeeded();
        fill_for_good(&disk);
        disk.run(&["rm", &pods[1]]).succeeded();
        fill_for_good(&disk);
        disk.run(&["gc", "--grace-period=0s"]).succeeded();
        fill_for_good(&disk);
        disk.run(&["rm", &pods[2], &pods[3]]).succeeded();
        fill_for_good(&disk);
        disk.run(&["gc", "--grace-period=0s", "--expire-prepared=0s"]).succeeded();
        assert_eq!(disk.run(&["list", "-o", "json"]).ok().json(), json!([]));
        fill_for_good(&disk);
        disk.run(&["image", "rm", &image]).succeeded();
        assert_eq!(disk.run(&["image", "list", "-o", "json"]).ok().json(), json!([]));
        disk.drain();
        disk.run(&["list"]).succeeded();
        assert!(reserve.exists(), "set aside again as soon as there is room");
        assert_clean(&disk);
    }
}

/// A name gives no space back: its removal has only the blocks that the database and its WAL have.
#[test]
fn names_of_used_images_are_removed_repeatedly() {
    let g = Gantry::new();
    for disk in [SmallDisk::new(&g, "24m"), SmallDisk::ext4(&g, "24m", 1024)] {
        let (disk, image) = disk_with_fixture(&g, disk);
        let names: Vec<String> = (0..24).map(|number| format!("name{number}:1")).collect();
        let tag: Vec<&str> = ["image", "tag", &image].into_iter().chain(names.iter().map(String::as_str)).collect();
        disk.run(&tag).succeeded();
        let prepare = || pod_id(&disk.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
        let user = prepare();
        let others: Vec<String> = (0..6).map(|_| prepare()).collect();
        fill_for_good(&disk);
        for (number, name) in names.iter().enumerate() {
            disk.run(&["image", "rm", name]).succeeded();
            if let Some(other) = others.get(number / 2).filter(|_| number % 2 == 0) {
                disk.run(&["rm", other]).succeeded();
            }
            fill_for_good(&disk);
        }
        let list = disk.run(&["image", "list", "-o", "json"]).ok().stdout;
        assert!(!list.contains("name1"), "{list}");
        assert!(disk.run(&["status", &user]).ok().stdout.contains("prepared"));
        disk.drain();
        assert_clean(&disk);
    }
}

/// Waits until the supervisor of a pod is gone, which holds a lock on the pod's directory, without recording the end.
#[track_caller]
fn wait_for_supervisor_exit(disk: &SmallDisk<'_>, pod: &str) {
    let dir = disk.data().join("pods").join(pod);
    wait_for("the end of the supervisor", || {
        let journal = std::fs::read_to_string(dir.join("journal")).unwrap();
        let lock = std::fs::File::open(&dir).unwrap();
        (journal.contains("\"ended\"") && lock.try_lock_shared().is_ok()).then_some(())
    });
}

#[test]
fn pods_can_be_stopped_on_a_full_disk() {
    let g = Gantry::new();
    let (disk, image) = disk_with_fixture(&g, SmallDisk::new(&g, "24m"));
    let run = |verb: &[&str]| pod_id(&disk.run(&[&["run", "--net=none", "-d", &image, "--"], verb].concat()).ok());
    let (ends, stays) = (run(&["seq", "print", "words", "--", "sleep", "0.2"]), run(&["sleep", "forever"]));
    wait_for_supervisor_exit(&disk, &ends);
    fill_for_good(&disk);
    let looks = |disk: &SmallDisk<'_>| {
        let list = disk.run(&["list", "-o", "json"]).ok().json();
        let phase = |pod: &str| list.as_array().unwrap().iter().find(|row| row["id"] == pod).unwrap()["phase"].clone();
        assert_eq!(phase(&ends), "exited");
        assert!(disk.run(&["status", &ends]).ok().stdout.contains("exit-code=0"));
        assert_eq!(disk.run(&["logs", &ends]).ok().stdout, "words\n");
        // Whether the pod's end is recorded depends on the blocks already allocated to the WAL.
        let doctor = disk.run(&["doctor"]);
        assert!(doctor.code == 0 || doctor.stdout.contains("cannot be written"), "{doctor}");
    };
    looks(&disk);
    disk.run(&["stop", &stays]).succeeded();
    disk.drain();
    disk.run(&["doctor"]).succeeded();
    // The same on a file system that was remounted read-only.
    let again = run(&["sleep", "0.2"]);
    wait_for_supervisor_exit(&disk, &again);
    disk.remount("ro");
    let list = disk.run(&["list", "-o", "json"]).ok().json();
    assert!(list.as_array().unwrap().iter().all(|row| row["phase"] == "exited"), "{list}");
    let doctor = disk.run(&["doctor"]);
    assert!(doctor.code == 1 && doctor.stdout.contains("cannot be written"), "{doctor}");
    disk.remount("rw");
    assert_clean(&disk);
}

#[test]
fn doctor_reports_full_and_read_only_disks() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "8m");
    disk.run(&["fetch", &g.layout("tiny", &tiny("x"))]).succeeded();
    let of_disk = |code: i32| {
        let doctor = disk.run(&["doctor"]).exits(code).stdout;
        doctor.lines().find(|line| line.contains("the file system of")).unwrap_or_default().to_owned()
    };
    assert_eq!(of_disk(0), "");
    fill_for_good(&disk);
    assert!(of_disk(0).ends_with("has no space left: no pod can be created"));
    disk.drain();
    // A megabyte is left, less than is set aside for removals.
    let room = disk.data().join("../room");
    std::fs::write(&room, vec![1; 1 << 20]).unwrap();
    fill_for_good(&disk);
    std::fs::remove_file(&room).unwrap();
    assert!(of_disk(0).contains(" has only 10"), "{}", of_disk(0));
    disk.drain();
    disk.remount("ro");
    assert!(of_disk(1).contains(" is read-only: no pod can be created"));
    disk.remount("rw");
    assert_eq!(of_disk(0), "");
}

#[test]
fn images_are_saved_from_a_read_only_disk() {
    let g = Gantry::new();
    let disk = SmallDisk::new(&g, "16m");
    let id = disk.run(&["fetch", &g.layout("big", &big(1 << 20))]).ok().text().to_owned();
    disk.remount("ro");
    for format in ["docker-archive", "oci-archive"] {
        let dir = g.scratch().join(format);
        std::fs::create_dir(&dir).unwrap();
        let archive = dir.join("saved.tar");
        disk.run(&["image", "save", "--format", format, "-o", &archive.display().to_string(), &id]).succeeded();
        assert!(std::fs::metadata(&archive).unwrap().len() > 0);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "temporary files");
        assert!(!disk.run(&["image", "save", "--format", format, &id]).ok().stdout.is_empty());
    }
    disk.remount("rw");
    assert_clean(&disk);
}

#[test]
fn a_start_fails_if_the_end_is_unrecordable() {
    let g = Gantry::new();
    let (disk, image) = disk_with_fixture(&g, SmallDisk::new(&g, "24m"));
    let pod = pod_id(&disk.run(&["run", "--net=none", "-d", "--name=a", &image, "--", "sleep", "0.2"]).ok());
    wait_for_supervisor_exit(&disk, &pod);
    disk.remount("ro");
    let _ = disk.run(&["start", &pod]).exits(125).stderr_contains(&["read-only"]);
    let _ = disk.run(&["restart", &pod]).exits(125).stderr_contains(&["read-only"]);
    disk.remount("rw");
    disk.run(&["start", &pod]).succeeded();
    disk.run(&["rm", "--force", &pod]).succeeded();
    assert_clean(&disk);
}

#[test]
fn gantryd_collects_garbage_on_a_full_disk() {
    let g = Gantry::new();
    let (disk, image) = disk_with_fixture(&g, SmallDisk::new(&g, "24m"));
    disk.run(&["prepare", "--net=none", &image, "--", "true"]).succeeded();
    disk.run(&["run", "--net=none", &image, "--", "true"]).succeeded();
    fill_for_good(&disk);
    let config = g.write("config.toml", "gc-interval = '1s'\ngc-grace = '0s'\nexpire-prepared = '0s'\n");
    let mut keeper = disk.daemon(&["--config", &config]);
    keeper.wait_for_stderr("info: reconciling the pods of");
    wait_for("gantryd to collect", || (disk.run(&["list", "-o", "json"]).ok().json() == json!([])).then_some(()));
    keeper.terminate();
    disk.drain();
    assert_clean(&disk);
}

/// SQLite's shared memory file is sparse where blocks are smaller than a page; touching a hole on a full disk raises
/// SIGBUS.
#[test]
fn a_full_disk_raises_no_sigbus() {
    let g = Gantry::new();
    let (disk, image) = disk_with_fixture(&g, SmallDisk::ext4(&g, "24m", 1024));
    let pod = pod_id(&disk.run(&["run", "--net=none", "-d", &image, "--", "sleep", "forever"]).ok());
    // With some kilobytes left as well: less than a page, and less than the whole mapping.
    for left in [0, 1, 3, 5, 9, 17, 29] {
        let room = disk.data().join("../room");
        std::fs::write(&room, vec![1; left << 10]).unwrap();
        fill_for_good(&disk);
        std::fs::remove_file(&room).unwrap();
        disk.run(&["list"]).succeeded();
        disk.run(&["status", &pod]).succeeded();
        disk.drain();
    }
    fill_for_good(&disk);
    disk.run(&["stop", &pod]).succeeded();
    disk.run(&["rm", &pod]).succeeded();
    disk.drain();
    assert_clean(&disk);
}
