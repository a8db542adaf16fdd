//! The security context, the resources and the mounts of containers of the Kubernetes CRI, with a client of none of
//! gantry's types.

#![expect(clippy::expect_used, reason = "a helper of a test fails as the test itself does")]

use std::os::unix::fs::PermissionsExt as _;

use gantry_fixtures::{Image, Layer};
use gantry_tests::api::Served;
use gantry_tests::cri::{Sandbox, call, container, failure, serve};
use gantry_tests::{Gantry, Out};
use serde_json::{Value, json};

/// A sandbox, and the container that was created last.
struct Containers<'a> {
    g: &'a Gantry,
    sandbox: Sandbox,
}

impl<'a> Containers<'a> {
    #[track_caller]
    fn new(g: &'a Gantry, address: &str) -> Self {
        Self { g, sandbox: Sandbox::run(g, address, "secured") }
    }

    /// In a sandbox that may have privileged containers.
    #[track_caller]
    fn privileged(g: &'a Gantry, address: &str) -> Self {
        let linux = json!({ "security_context": { "privileged": true } });
        Self { g, sandbox: Sandbox::run_with(g, address, "privileged", &json!({ "linux": linux })) }
    }

    /// Runs a container with this configuration, and a program beside its own.
    #[track_caller]
    fn exec(&self, more: &Value, verb: &[&str]) -> Out {
        let id = self.launch(more);
        let out = self.exec_in(&id, verb);
        call(&self.sandbox.address, "RemoveContainer", &json!({ "container_id": id }));
        out
    }

    #[track_caller]
    fn launch(&self, more: &Value) -> String {
        let id = self.sandbox.create_with(&["sleep", "forever"], more);
        self.sandbox.start(&id);
        id
    }

    #[track_caller]
    fn exec_in(&self, id: &str, verb: &[&str]) -> Out {
        self.g.run(&[&["exec", id, "--", "/bin/app"], verb].concat())
    }

    /// The same, with a security context.
    #[track_caller]
    fn secured(&self, context: &Value, verb: &[&str]) -> Out {
        self.exec(&json!({ "linux": { "security_context": context } }), verb)
    }

    #[track_caller]
    fn refuse(&self, more: &Value, code: &str, why: &str) {
        let request = self.sandbox.request(&["sleep", "forever"], more);
        let (found, details) = failure(&self.sandbox.address, "CreateContainer", &request);
        assert!(found == code && details.contains(why), "{more}: {found} {details}");
    }
}

/// A line of the `caps` of a program, such as `CapBnd`.
#[track_caller]
fn line<'a>(out: &'a Out, name: &str) -> &'a str {
    let found = out.stdout.lines().find(|line| line.split_whitespace().next().is_some_and(|it| it.starts_with(name)));
    found.unwrap_or_else(|| panic!("no {name}: {out}"))
}

#[test]
fn capabilities_are_added_and_dropped() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let caps = |context: &Value| containers.secured(context, &["caps"]).ok();
    let dropped = caps(&json!({ "capabilities": { "drop_capabilities": ["ALL"] } }));
    assert!(line(&dropped, "CapBnd").ends_with("0000000000000000"), "{dropped}");
    let one = caps(&json!({ "capabilities": { "drop_capabilities": ["ALL"], "add_capabilities": ["NET_ADMIN"] } }));
    assert!(line(&one, "CapBnd").ends_with("0000000000001000"), "{one}");
    let user = json!({ "value": 1000 });
    // Another user than root holds ambient capabilities alone.
    let added = caps(&json!({ "run_as_user": user, "capabilities": { "add_capabilities": ["CAP_NET_ADMIN"] } }));
    assert!(line(&added, "CapEff").ends_with("0000000000000000"), "{added}");
    let ambient = caps(&json!({ "run_as_user": user, "capabilities": { "add_ambient_capabilities": ["NET_ADMIN"] } }));
    assert!(line(&ambient, "CapEff").ends_with("0000000000001000"), "{ambient}");
    let all = caps(&json!({ "capabilities": { "add_capabilities": ["ALL"] } }));
    let privileged = Containers::privileged(&g, &address).secured(&json!({ "privileged": true }), &["caps"]).ok();
    assert_eq!(line(&all, "CapBnd"), line(&privileged, "CapBnd"));
    assert_eq!(
        line(&privileged, "CapEff").split_once(':').map(|it| it.1),
        line(&all, "CapBnd").split_once(':').map(|it| it.1)
    );
    served.end();
}

#[test]
fn groups_follow_their_policy() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let groups = ("etc/group", "root:x:0:\nwww:x:1000:\nextra:x:50000:www\n");
    let passwd = ("etc/passwd", "root:x:0:0::/:/\nwww:x:1000:1000::/:/\n");
    let image = own_image(&g, "grouped", &[groups, passwd]);
    let ids = |policy: &str| {
        let context = json!({
            "run_as_user": { "value": 1000 }, "supplemental_groups": [1234], "supplemental_groups_policy": policy,
        });
        let more = json!({ "image": { "image": image }, "linux": { "security_context": context } });
        containers.exec(&more, &["ids"]).ok().stdout
    };
    let merged = ids("Merge");
    assert!(merged.contains("1000 1234 50000"), "{merged}");
    let strict = ids("Strict");
    assert!(strict.contains("1000 1234") && !strict.contains("50000"), "{strict}");
    let features = call(&address, "Status", &json!({}));
    assert_eq!(features["features"]["supplemental_groups_policy"], true, "{features}");
    served.end();
}

#[test]
fn seccomp_profiles_are_read_from_the_host() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let path = g.scratch().join("profile.json");
    let denies = r#"{ "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [ { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 13 } ] }"#;
    std::fs::write(&path, denies).expect("a profile");
    let shown = path.display().to_string();
    let local = json!({ "seccomp": { "profile_type": "Localhost", "localhost_ref": shown } });
    let old = json!({ "seccomp_profile_path": format!("localhost/{shown}") });
    for context in [&local, &old] {
        let _ = containers.secured(context, &["mkdir", "/x"]).exits(1).stderr_contains(&["Permission denied"]);
    }
    let privileged = json!({ "seccomp": local["seccomp"], "privileged": true });
    Containers::privileged(&g, &address).secured(&privileged, &["mkdir", "/x"]).succeeded();
    let mode = |context: &Value| containers.secured(context, &["caps"]).ok();
    for (context, want) in [
        (json!({}), "0"),
        (json!({ "seccomp": { "profile_type": "Unconfined" } }), "0"),
        (json!({ "seccomp": { "profile_type": "RuntimeDefault" } }), "2"),
        (json!({ "seccomp_profile_path": "runtime/default" }), "2"),
    ] {
        let found = mode(&context);
        assert!(line(&found, "Seccomp").ends_with(want), "{context}: {found}");
    }
    let context = |seccomp: Value| json!({ "linux": { "security_context": { "seccomp": seccomp } } });
    let absent = json!({ "profile_type": "Localhost", "localhost_ref": "/nowhere/profile.json" });
    containers.refuse(&context(absent), "NOT_FOUND", "/nowhere/profile.json");
    let relative = json!({ "profile_type": "Localhost", "localhost_ref": "profile.json" });
    containers.refuse(&context(relative), "INVALID_ARGUMENT", "absolute");
    served.end();
}

#[test]
fn paths_are_masked_and_read_only() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let context = json!({ "masked_paths": ["/etc/passwd", "/proc/acpi"], "readonly_paths": ["/tmp"] });
    let masked = containers.secured(&context, &["cat", "/etc/passwd"]).ok();
    assert_eq!(masked.stdout, "");
    let _ = containers.secured(&context, &["write", "/tmp/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    containers.secured(&json!({}), &["write", "/tmp/x", "x"]).succeeded();
    // Kubelets name every masked path; gantry's apply without a security context.
    let size = |more: &Value| containers.exec(more, &["mounts"]).ok().stdout;
    let unmasked = size(&json!({ "linux": { "security_context": {} } }));
    let own = size(&json!({}));
    assert!(!unmasked.contains("/proc/keys") && own.contains("/proc/keys"), "{unmasked}\n{own}");
    served.end();
}

#[test]
fn mounts_are_read_only_as_asked() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let made = g.scratch().join("made/by/create");
    let mount = |more: Value| {
        let mut mount = json!({ "host_path": made, "container_path": "/v" });
        for (key, value) in more.as_object().into_iter().flatten() {
            mount[key] = value.clone();
        }
        json!({ "mounts": [mount] })
    };
    // As kubelets rely on, a path that does not exist becomes a directory.
    containers.exec(&mount(json!({})), &["write", "/v/x", "x"]).succeeded();
    assert_eq!(std::fs::metadata(&made).expect("the directory").permissions().mode() & 0o7777, 0o755);
    for more in [json!({ "readonly": true }), json!({ "readonly": true, "recursive_read_only": true })] {
        let _ = containers.exec(&mount(more), &["write", "/v/y", "y"]).exits(1).stderr_contains(&["Read-only"]);
    }
    for more in [
        json!({ "recursive_read_only": true }),
        json!({ "recursive_read_only": true, "readonly": true, "propagation": "PROPAGATION_HOST_TO_CONTAINER" }),
        json!({ "recursive_read_only": true, "readonly": true, "propagation": "PROPAGATION_BIDIRECTIONAL" }),
    ] {
        containers.refuse(&mount(more), "INVALID_ARGUMENT", "recursive_read_only");
    }
    let status = call(&address, "Status", &json!({}));
    assert_eq!(status["runtime_handlers"][0]["features"]["recursive_read_only_mounts"], true, "{status}");
    served.end();
}

#[test]
fn mounts_propagate_as_asked() {
    let g = Gantry::new();
    let dir = g.scratch().join("shared");
    std::fs::create_dir(&dir).expect("a directory");
    let address = format!("unix:{}", g.scratch().join("cri.sock").display());
    let config = g.write("gantryd.toml", "[network]\nsandbox-network = 'none'\n");
    let daemon = g.daemon(&["--cri-listen", &address, "--config", &config]);
    let served = Served::wait_ready(g.spawn_command(&mut g.in_shared_mount(&daemon, &dir)));
    let containers = Containers::new(&g, &address);
    for (name, tag) in [
        ("PROPAGATION_PRIVATE", None),
        ("PROPAGATION_HOST_TO_CONTAINER", Some("master:")),
        ("PROPAGATION_BIDIRECTIONAL", Some("shared:")),
    ] {
        let mount = json!({ "host_path": dir, "container_path": "/v", "propagation": name });
        let id = containers.launch(&json!({ "mounts": [mount] }));
        let mounts = containers.exec_in(&id, &["mounts"]).ok().stdout;
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/v"));
        let found = line.and_then(|line| line.split(' ').nth(6)).filter(|word| *word != "-");
        assert_eq!(found.map(|found| found.trim_end_matches(char::is_numeric)), tag, "{mounts}");
        let shown = container(&address, &id);
        // proto3 leaves out the first value.
        assert_eq!(shown["mounts"][0]["propagation"].as_str().unwrap_or("PROPAGATION_PRIVATE"), name, "{shown}");
    }
    served.end();
}

/// A kubelet mounts its own files over those that gantry provides.
#[test]
fn mounts_of_kubelets_have_their_places() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let file = |name: &str| {
        let path = g.scratch().join(name);
        std::fs::write(&path, format!("{name} of the kubelet\n")).expect("a file");
        path
    };
    let memory = g.scratch().join("memory");
    std::fs::create_dir(&memory).expect("a directory");
    let id = containers.launch(&json!({ "mounts": [
        { "host_path": file("hosts"), "container_path": "/etc/hosts" },
        { "host_path": file("message"), "container_path": "/dev/termination-log" },
        { "host_path": memory, "container_path": "/dev/shm" },
    ] }));
    let read = containers.exec_in(&id, &["cat", "/etc/hosts"]).ok();
    assert_eq!(read.stdout, "hosts of the kubelet\n");
    containers.exec_in(&id, &["write", "/dev/termination-log", "why"]).succeeded();
    assert_eq!(std::fs::read_to_string(g.scratch().join("message")).expect("the message"), "why\n");
    containers.exec_in(&id, &["write", "/dev/shm/x", "x"]).succeeded();
    assert!(memory.join("x").exists(), "/dev/shm is not the mount");
    served.end();
}

#[test]
fn images_are_mounted() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let image = own_image(&g, "assets", &[("assets/index", "hello")]);
    let mount = |sub_path: &str, readonly: bool| {
        json!({ "mounts": [{
            "container_path": "/v", "readonly": readonly, "image": { "image": image }, "image_sub_path": sub_path,
        }] })
    };
    let id = containers.launch(&mount("assets", true));
    assert_eq!(containers.exec_in(&id, &["cat", "/v/index"]).ok().stdout, "hello");
    let _ = containers.exec_in(&id, &["write", "/v/x", "x"]).exits(1).stderr_contains(&["Read-only"]);
    let shown = container(&address, &id);
    assert_eq!(shown["mounts"][0]["image"]["image_ref"], image, "{shown}");
    containers.refuse(&mount("assets", false), "INVALID_ARGUMENT", "readonly");
    containers.refuse(&mount("absent", true), "NOT_FOUND", "absent");
    containers.refuse(&mount("../assets", true), "INVALID_ARGUMENT", "'..'");
    let absent = json!({ "mounts": [{
        "container_path": "/v", "readonly": true, "image": { "image": "absent.example/image" },
    }] });
    containers.refuse(&absent, "NOT_FOUND", "absent.example/image");
    served.end();
}

#[test]
fn resources_reach_the_cgroup() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let containers = Containers::new(&g, &address);
    let with = |resources: Value| json!({ "linux": { "resources": resources } });
    let has_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let unified = if has_v2 { json!({ "memory.high": "max" }) } else { json!({}) };
    let id = containers.launch(&with(json!({
        "memory_limit_in_bytes": 64 << 20, "unified": unified,
        "hugepage_limits": [{ "page_size": "2MB", "limit": 4 << 20 }],
    })));
    let resources = &container(&address, &id)["resources"]["linux"];
    assert_eq!(resources["memory_limit_in_bytes"], (64 << 20).to_string(), "{resources}");
    let described = g.json(&["inspect", &containers.sandbox.id]);
    let text = described.to_string();
    assert!(text.contains("\"hugetlb\"") && text.contains("memory.high") == has_v2, "{text}");
    if !has_v2 {
        containers.refuse(&with(json!({ "unified": { "memory.high": "max" } })), "INVALID_ARGUMENT", "unified");
    }
    containers.refuse(&with(json!({ "memory_limit_in_bytes": 1 })), "INVALID_ARGUMENT", "memory_limit_in_bytes");
    containers.refuse(&with(json!({ "unified": { "cgroup.procs": "1" } })), "INVALID_ARGUMENT", "cgroup.procs");
    containers.refuse(&with(json!({ "hugepage_limits": [{ "page_size": "big" }] })), "INVALID_ARGUMENT", "big");
    served.end();
}

/// Stores an image of the fixture's program and these files.
#[track_caller]
fn own_image(g: &Gantry, name: &str, files: &[(&str, &str)]) -> String {
    let program = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
    let layer = files.iter().fold(program, |layer, (path, text)| layer.file(path, text, 0o644));
    g.import(name, &Image::builder().layer(layer).build().expect("an image"))
}
