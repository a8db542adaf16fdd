//! Files and the kernel log by the Talos node API: List, DiskUsage, Read, Copy and Dmesg.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_tests::api::Served;
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::talos::{FAILED, call, failure, message, serve, stream_bytes};
use gantry_tests::{Gantry, json_lines, wait_for};
use serde_json::{Value, json};

/// Makes a tree with a file of each type, and returns its path. The device node exists only where mknod is permitted.
fn make_tree(g: &Gantry) -> PathBuf {
    let tree = g.scratch().join("tree");
    fs::create_dir_all(tree.join("dir/deep")).unwrap();
    fs::write(tree.join("dir/deep/leaf"), "leaf\n").unwrap();
    fs::write(tree.join("big"), vec![b'x'; 300_000]).unwrap();
    fs::hard_link(tree.join("big"), tree.join("big2")).unwrap();
    fs::write(tree.join(OsStr::from_bytes(b"not-\xff-utf8")), "x").unwrap();
    symlink("/etc/shadow", tree.join("link")).unwrap();
    for args in [&["fifo", "p"][..], &["null", "c", "1", "3"]] {
        let path = tree.join(args[0]);
        let _refused_in_some_containers = Command::new("mknod").arg(path).args(&args[1..]).status();
    }
    std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    tree
}

fn method(name: &str) -> String {
    format!("machine.MachineService/{name}")
}

/// The rows with this field as a key.
fn names(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["relative_name"].as_str()).collect()
}

fn row<'a>(rows: &'a [Value], name: &str) -> &'a Value {
    rows.iter().find(|row| row["relative_name"] == name).unwrap_or_else(|| panic!("no row {name}: {rows:?}"))
}

#[test]
fn list_describes_files_of_all_types() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let tree = make_tree(&g);
    let list = |request: Value| call(&address, &method("List"), &request);
    let rows = list(json!({ "root": tree }));
    let seen = names(&rows);
    assert_eq!(seen[..4], [".", "big", "big2", "dir"], "{seen:?}");
    assert!(!seen.contains(&"dir/deep") && seen.contains(&"not-\u{fffd}-utf8"), "{seen:?}");
    let mode = |name: &str| row(&rows, name)["mode"].as_u64().unwrap();
    // Go's os.FileMode.
    assert_eq!((mode("dir") >> 20, row(&rows, "dir")["is_dir"].as_bool()), (1 << 11, Some(true)));
    assert_eq!((mode("link") >> 20, row(&rows, "link")["link"].as_str()), (1 << 7, Some("/etc/shadow")));
    assert_eq!((mode("socket") >> 20, mode("fifo") >> 20), (1 << 4, 1 << 5));
    assert_eq!((mode("big") >> 20, row(&rows, "big")["size"].as_str()), (0, Some("300000")));
    assert_eq!(row(&rows, "big")["name"], tree.join("big").display().to_string());
    assert!(row(&rows, "big")["modified"].is_string());

    let recursive = |depth: i32, types: &[&str]| {
        let rows = list(json!({ "root": tree.join("dir"), "recurse": true, "recursion_depth": depth, "types": types }));
        names(&rows).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(recursive(0, &[]), [".", "deep", "deep/leaf"]);
    assert_eq!(recursive(1, &[]), [".", "deep"]);
    // A directory that is left out is visited, and counts as a level.
    assert_eq!(recursive(0, &["REGULAR"]), ["deep/leaf"]);
    assert_eq!(recursive(1, &["REGULAR"]), Vec::<String>::new());
    assert_eq!(names(&list(json!({ "root": tree.join("big") }))), ["big"]);
    let (code, text) = failure(&address, &method("List"), &json!({ "root": "/nonexistent" }));
    assert_eq!((&code[..], &text[..]), ("NOT_FOUND", "lstat /nonexistent: no such file or directory"));
    let etc = list(json!({ "root": "/etc" }));
    assert!(names(&etc).contains(&"os-release"));
    let root = list(json!({}));
    assert!(
        names(&root).contains(&"etc") && !names(&root).contains(&"os-release"),
        "the default is the root directory"
    );
    served.end();
}

#[test]
fn disk_usage_counts_each_file_once() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let tree = make_tree(&g);
    let usage = |request: Value| call(&address, &method("DiskUsage"), &request);
    let size = |row: &Value| row["size"].as_str().unwrap_or("0").parse::<u64>().unwrap();
    let paths = [tree.display().to_string(), "/nonexistent".to_owned(), tree.join("dir").display().to_string()];
    let rows = usage(json!({ "paths": paths }));
    assert_eq!(names(&rows), ["dir/deep", "dir", ".", "/nonexistent", "deep", "."]);
    assert_eq!(rows[3]["error"], "lstat /nonexistent: no such file or directory");
    let expected = Command::new("du").args(["-sb"]).arg(&tree).output().unwrap();
    let expected: u64 = String::from_utf8_lossy(&expected.stdout).split_whitespace().next().unwrap().parse().unwrap();
    assert_eq!(size(&rows[2]), expected);

    let all = usage(json!({ "paths": [tree], "all": true, "recursion_depth": 2 }));
    assert!(names(&all).contains(&"big") && !names(&all).contains(&"dir/deep"), "{all:?}");
    let parts: u64 = all.iter().filter(|row| row["relative_name"] != ".").map(size).sum();
    assert_eq!(parts + fs::metadata(&tree).unwrap().len(), size(row(&all, ".")));
    let large = usage(json!({ "paths": [tree], "all": true, "threshold": "100000" }));
    assert_eq!(names(&large), ["big", "."]);
    let small = usage(json!({ "paths": [tree], "all": true, "threshold": "-10" }));
    assert!(names(&small).contains(&"dir/deep/leaf") && !names(&small).contains(&"big"), "{small:?}");
    served.end();
}

#[test]
fn read_sends_regular_files_only() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let tree = make_tree(&g);
    let read = |path: &Path| stream_bytes(&call(&address, &method("Read"), &json!({ "path": path })));
    assert_eq!(read(&tree.join("dir/deep/leaf")), b"leaf\n");
    assert_eq!(read(&tree.join("big")).len(), 300_000);
    assert!(read(Path::new("/proc/self/status")).starts_with(b"Name:"), "a file whose size is 0");
    for name in ["dir", "fifo", "socket"] {
        let (code, text) = failure(&address, &method("Read"), &json!({ "path": tree.join(name) }));
        assert_eq!((&code[..], &text[..]), ("FAILED_PRECONDITION", "path must be a regular file"), "{name}");
    }
    let (code, text) = failure(&address, &method("Read"), &json!({ "path": "/nonexistent" }));
    assert_eq!((&code[..], &text[..]), ("NOT_FOUND", "stat /nonexistent: no such file or directory"));
    // Of two nodes, this one sends the file, and the other an error.
    let request = json!({ "path": tree.join("dir/deep/leaf") }).to_string();
    let nodes = ["--nodes", "127.0.0.1", "--nodes", "192.0.2.1"];
    let out = run_script("node_client.py", &[&nodes[..], &[&address, &method("Read"), &request]].concat()).ok();
    let messages = json_lines(&out.stdout);
    let of = |node: &str| -> Vec<Value> {
        messages.iter().filter(|one| one["metadata"]["hostname"] == node).cloned().collect()
    };
    assert_eq!(stream_bytes(&of("127.0.0.1")), b"leaf\n", "{out}");
    let refused = of("192.0.2.1");
    assert_eq!((refused.len(), messages.len()), (1, 2), "{out}");
    assert!(refused[0]["metadata"]["error"].as_str().is_some_and(|text| text.ends_with("no request forwarding")));
    // An app could make such a link.
    symlink("/etc/passwd", g.dir().join("escape")).unwrap();
    let (code, text) = failure(&address, &method("Read"), &json!({ "path": g.dir().join("escape") }));
    assert_eq!(code, "PERMISSION_DENIED", "{text}");
    fs::remove_file(g.dir().join("escape")).unwrap();
    served.end();
}

#[test]
fn copy_sends_an_archive() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let tree = make_tree(&g);
    let archive = g.scratch().join("archive.tar.gz");
    let copy = |path: &str| {
        let messages = call(&address, &method("Copy"), &json!({ "root_path": path }));
        fs::write(&archive, stream_bytes(&messages)).unwrap();
    };
    let tar = |args: &[&str]| {
        let out = Command::new("tar").args(args).arg("-f").arg(&archive).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    copy(&tree.display().to_string());
    let listed = tar(&["-tz", "--quoting-style=escape"]);
    let mut listed: Vec<&str> = listed.lines().collect();
    listed.sort_unstable();
    assert_eq!(listed, ["big", "big2", "dir/", "dir/deep/", "dir/deep/leaf", "link", "not-\\377-utf8"]);
    let out = g.scratch().join("out");
    fs::create_dir(&out).unwrap();
    tar(&["-xz", "-C", &out.display().to_string()]);
    assert_eq!(fs::read(out.join("big")).unwrap(), fs::read(tree.join("big")).unwrap());
    assert_eq!(fs::read_link(out.join("link")).unwrap(), Path::new("/etc/shadow"));
    copy(&tree.join("big").display().to_string());
    assert_eq!(tar(&["-tz"]), "big\n");
    // Files of size 0 that have contents.
    copy("/proc/sys/kernel/random");
    assert!(tar(&["-tz"]).contains("boot_id"));
    assert_eq!(tar(&["-xzO", "boot_id"]).trim(), fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim());
    let (code, text) = failure(&address, &method("Copy"), &json!({ "root_path": "etc" }));
    assert_eq!((&code[..], &text[..]), ("INVALID_ARGUMENT", "path is not absolute etc"));
    // With a node, an error after the archive is a message.
    let request = json!({ "root_path": "/nonexistent" }).to_string();
    let out = run_script("node_client.py", &["--nodes", "127.0.0.1", &address, &method("Copy"), &request]).ok();
    let error = json_lines(&out.stdout)[0]["metadata"]["error"].as_str().unwrap_or_default().to_owned();
    assert!(error.ends_with("lstat /nonexistent: no such file or directory"), "{error}");
    served.end();
}

/// The threads of gantryd that read files.
fn file_threads(served: &mut Served) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", served.daemon().pid())).unwrap();
    let name = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.filter_map(Result::ok).filter(|task| name(task) == "files\n").count()
}

#[test]
fn clients_that_stop_reading_are_dropped() {
    let g = Gantry::new();
    let (mut served, address) = serve(&g);
    let before = served.rss_kib();
    let request = json!({ "root": "/", "recurse": true }).to_string();
    let stall = |_| {
        let mut client = spawn_script("node_client.py", &["--stall", "1", &address, &method("List"), &request]);
        client.wait_for_stdout("\n");
        client
    };
    let clients: Vec<_> = (0..4).map(stall).collect();
    wait_for("the threads", || (file_threads(&mut served) == clients.len()).then_some(()));
    assert!(message(&address, &method("Version"), &json!({}))["version"].is_object());
    let grown = served.rss_kib().saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB more");
    drop(clients);
    wait_for("the threads to end", || (file_threads(&mut served) == 0).then_some(()));
    served.end();
}

#[test]
fn dmesg_sends_records() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    if fs::File::open("/dev/kmsg").is_err() {
        let out = run_script("node_client.py", &[&address, &method("Dmesg")]).exits(FAILED);
        assert!(out.stdout.contains("open /dev/kmsg"), "{out}");
        served.end();
        return;
    }
    for method in ["machine.MachineService/Dmesg", "os.OSService/Dmesg"] {
        let messages = call(&address, method, &json!({}));
        let text = String::from_utf8_lossy(&stream_bytes(&messages)).into_owned();
        assert!(!messages.is_empty(), "the log is empty");
        let first = text.lines().next().unwrap_or_default();
        assert!(first.contains(": [20") && first.contains("Z]: "), "{first}");
        assert!(text.ends_with('\n'));
    }
    // Each record is marked with the node.
    let out = run_script("node_client.py", &["--nodes", "127.0.0.1", &address, &method("Dmesg")]).ok();
    let messages = json_lines(&out.stdout);
    assert!(messages.iter().all(|message| message["metadata"]["hostname"] == "127.0.0.1"), "{out}");
    // Without `follow`, nothing comes after the end.
    assert_eq!(call(&address, &method("Dmesg"), &json!({ "tail": true })), Vec::<Value>::new());
    let mut client =
        spawn_script("node_client.py", &[&address, &method("Dmesg"), &json!({ "follow": true }).to_string()]);
    client.wait_for_stdout("\n");
    assert!(!client.has_ended());
    drop(client);
    served.end();
}
