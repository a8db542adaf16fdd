//! Listing, naming and removing images in the store; logins to registries.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::os::unix::fs::PermissionsExt as _;

use gantry_fixtures::{Image, Layer};
use gantry_tests::{DebianRegistry, Gantry, PASSWORD, USER, pod_id, write_index};
use serde_json::json;

const FAILED: i32 = 125;

/// An image with every field of the configuration set.
fn image_with_metadata() -> Image {
    let layer = |name: &str, bytes: usize| Layer::new().file(name, vec![b'x'; bytes], 0o644);
    Image::builder()
        .layer(layer("one", 5000))
        .layer(layer("two", 3000))
        .entrypoint(&["/one", "a b"])
        .cmd(&["c"])
        .env("GREETING", "hello world")
        .user("7:8")
        .workdir("/work")
        .port("80/tcp")
        .volume("/data")
        .label("org.example", "x=y")
        .stop_signal("SIGQUIT")
        .edit_config(|config| {
            config["created"] = json!("2024-02-03T04:05:06Z");
            config["author"] = json!("An Author");
            config["history"] = json!([
                { "created": "2024-02-03T04:05:05Z", "created_by": "COPY one /" },
                { "created_by": "ENV GREETING=hello world", "empty_layer": true },
                { "created_by": "COPY two /", "comment": "the second" },
            ]);
        })
        .build()
        .unwrap()
}

#[test]
fn inspect_shows_the_image_configuration() {
    let g = Gantry::new();
    let id = g.import("talkative", &image_with_metadata());
    let text = g.run(&["image", "inspect", &id[7..19]]).ok().stdout;
    for line in [
        &format!("id={id}"),
        "platform=linux/amd64",
        "created=2024-02-03T04:05:06Z",
        "author=An Author",
        "user=7:8",
        "working-dir=/work",
        "entrypoint=[\"/one\",\"a b\"]",
        "cmd=[\"c\"]",
        "env=GREETING=hello world",
        "port=80/tcp",
        "volume=/data",
        "stop-signal=SIGQUIT",
        "label=org.example=x=y",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing: {text}");
    }
    let all = g.json(&["image", "inspect", &id, &id]);
    assert_eq!(all.as_array().map(Vec::len), Some(2));
    let one = &all[0];
    assert_eq!((&one["id"], &one["user"], &one["stop_signal"]), (&json!(id), &json!("7:8"), &json!("SIGQUIT")));
    assert_eq!(one["env"], json!(["GREETING=hello world"]));
    assert_eq!(one["labels"], json!({ "org.example": "x=y" }));
    let sizes: Vec<u64> =
        one["layers"].as_array().unwrap().iter().map(|layer| layer["size"].as_u64().unwrap()).collect();
    assert!(sizes[0] >= 5000 && sizes[1] >= 3000, "{sizes:?}");
    assert_eq!(one["disk_size"].as_u64(), Some(sizes.iter().sum()));
    assert_eq!(
        g.json(&["image", "list"])[0]["disk_size"],
        one["disk_size"],
        "'list' and 'inspect' tell different sizes"
    );
    let _ = g.run(&["image", "inspect", "nothing"]).exits(1).stderr_contains(&["no image 'nothing'"]);
    let out = g.run(&["image", "inspect", "nothing", &id, "-o", "json"]).exits(1);
    let found = out.stderr_contains(&["no image 'nothing'"]).json();
    assert_eq!((found.as_array().map(Vec::len), &found[0]["id"]), (Some(1), &json!(id)));
}

#[test]
fn history_pairs_steps_with_layers() {
    let g = Gantry::new();
    let id = g.import("talkative", &image_with_metadata());
    let steps = g.json(&["image", "history", &id]);
    let said: Vec<_> =
        steps.as_array().unwrap().iter().map(|step| (&step["created_by"], step["layer"].is_null())).collect();
    let want = [json!("COPY two /"), json!("ENV GREETING=hello world"), json!("COPY one /")];
    assert_eq!(said, [(&want[0], false), (&want[1], true), (&want[2], false)]);
    assert_eq!(steps[0]["comment"], "the second");
    let table = g.run(&["image", "history", &id]).ok().stdout;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(
        lines[0].starts_with("LAYER") && lines[2].starts_with("-  ") && lines[3].ends_with("COPY one /"),
        "{table}"
    );
}

#[test]
fn names_are_added_and_removed() {
    let g = Gantry::new();
    let (one, two) = (g.import("one", &image_with_metadata()), g.fixture());
    assert_eq!(
        g.run(&["image", "tag", &one, "mine", "reg.example/team/mine:2"]).ok().text(),
        "mine:latest\nreg.example/team/mine:2"
    );
    for name in ["mine", "mine:latest", "reg.example/team/mine:2", "team/mine:2"] {
        assert_eq!(g.json(&["image", "inspect", name])[0]["id"], json!(one), "{name}");
    }
    let out = g.run(&["image", "tag", &two, "mine"]).ok();
    assert!(out.stderr.contains(&format!("mine:latest was moved from image {}", &one[7..19])), "{out}");
    for bad in ["UPPER", &two, &format!("mine@{two}"), "deadbeef"] {
        let _ = g.run(&["image", "tag", &one, bad]).exits(FAILED).stderr_contains(&["cannot be an image's name"]);
    }
    let _ = g.run(&["image", "tag", "nothing", "x"]).exits(1).stderr_contains(&["no image 'nothing'"]);
    // Removing by name removes the name only; removing by id would remove all names and needs --force.
    assert_eq!(g.run(&["rmi", "mine"]).ok().text(), "untagged mine:latest");
    let out = g.run(&["image", "rm", &one]).exits(FAILED);
    let _ = out.stderr_contains(&["several names", "reg.example/team/mine:2", "--force"]);
    let _ = g.run(&["rmi", "-f", &one]).ok().stdout_contains(&format!("removed {one}"));
    let left = g.json(&["image", "list"]);
    assert_eq!((left.as_array().map(Vec::len), &left[0]["id"]), (Some(1), &json!(two)));
}

#[test]
fn force_removes_only_ended_pods() {
    let g = Gantry::new();
    let id = g.fixture();
    let ended = pod_id(&g.run(&["run", "--net=none", "--detach", &id, "--", "exit", "3"]).ok());
    g.wait_state(&ended, "exited");
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &id, "--", "args"]).ok());
    let running = g.detached(&[], &["sleep", "1000"]);
    for flags in [&[][..], &["--force"]] {
        let _ = g.run(&[&["image", "rm"], flags, &[&id]].concat()).exits(FAILED).stderr_contains(&["is used by"]);
    }
    assert_eq!(g.list().len(), 3, "a pod was removed although the image stays");
    g.run(&["rm", "--force", &running]).succeeded();
    let _ = g.run(&["image", "rm", "--force", &id]).exits(FAILED).stderr_contains(&["is used by", &prepared[..8]]);
    g.run(&["rm", &prepared]).succeeded();
    let _ = g.run(&["image", "rm", "--force", &id]).ok().stdout_contains(&format!("removed pod {ended}"));
    assert!(g.list().is_empty() && g.json(&["image", "list"]) == json!([]));
}

#[test]
fn a_login_is_verified_stored_and_removed() {
    let g = Gantry::new();
    let registry = DebianRegistry::protected();
    let host = registry.host();
    let image = image_with_metadata();
    registry.push(&format!("{}:latest", g.layout("image", &image)), "private:1");
    let file = g.scratch().join("auth/auth.json");
    let with = |args: &[&str], input: Option<&str>| {
        let mut command = g.command(args);
        command.env("REGISTRY_AUTH_FILE", &file);
        let typed = g.scratch().join("typed");
        std::fs::write(&typed, input.unwrap_or_default()).unwrap();
        // The harness gives programs an empty standard input; a shell passes this one on.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "exec \"$@\" <\"$0\""]).arg(&typed).arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        g.spawn_command(shell.envs(set)).wait()
    };
    let name = format!("{host}/private:1");
    let _ = with(&["fetch", &name], None).exits(FAILED).stderr_contains(&[&format!("gantry login {host}")]);
    let wrong = with(&["login", "-u", USER, "--password-stdin", &host], Some("wrong\n")).exits(FAILED);
    let _ = wrong.stderr_contains(&["cannot log in", &host, "not accepted"]);
    assert!(!file.exists(), "a login that was refused was filed");
    let out =
        with(&["login", "-u", USER, "--password-stdin", &format!("http://{host}/")], Some(&format!("{PASSWORD}\n")))
            .ok();
    assert!(out.text().contains(&format!("logged in to {host}")) && !out.stdout.contains(PASSWORD), "{out}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(with(&["fetch", &name], None).ok().text(), image.id());
    // podman and skopeo read the same credentials.
    let skopeo = std::process::Command::new("skopeo")
        .args(["inspect", "--tls-verify=false", "--authfile"])
        .arg(&file)
        .arg(format!("docker://{name}"))
        .output()
        .unwrap();
    assert!(skopeo.status.success(), "{}", String::from_utf8_lossy(&skopeo.stderr));
    let out = with(&["login", "-u", USER, "-p", PASSWORD, &host], None).ok();
    assert!(out.stderr.contains("warning: other users can read a password"), "{out}");
    let _ = with(&["login", "-u", USER, &host], None)
        .exits(FAILED)
        .stderr_contains(&["not a terminal", "--password-stdin"]);
    let _ = with(&["login", "no-registry"], None).exits(FAILED).stderr_contains(&["is not a registry"]);
    assert_eq!(with(&["logout", &host], None).ok().text(), format!("logged out of {host}"));
    let _ = with(&["logout", &host], None).exits(FAILED).stderr_contains(&["not logged in"]);
}

/// The files of an image as a pod sees them, with all metadata that layers can set.
fn seen(g: &Gantry, image: &str) -> Vec<String> {
    let look = |words: &[&str]| {
        let out = g.run(&[&["run", "--rm", "--net=none", image, "--"], words].concat());
        format!("{} {} {}", out.code, out.stdout, if out.code == 0 { "" } else { "failed" })
    };
    [&["cat", "/lower/kept"][..], &["cat", "/replaced/new"], &["cat", "/replaced/old"], &["args", "a", "b"]]
        .map(look)
        .to_vec()
}

#[test]
fn saved_images_round_trip() {
    let g = Gantry::new();
    let id = g.fixture();
    g.run(&["image", "tag", &id, "reg.example/team/app:1", "plain:2"]).succeeded();
    let want = seen(&g, &id);
    assert!(want[0].starts_with("0 from the lower layer"), "{want:?}");
    for (format, command) in [("docker-archive", "image save"), ("oci-archive", "save")] {
        let file = g.scratch().join(format!("saved-{format}.tar"));
        let path = file.display().to_string();
        let words: Vec<&str> = command.split(' ').collect();
        let flag = format!("--format={format}");
        g.run(&[&words[..], &[&flag, "-o", &path, &id]].concat()).succeeded();
        let again = g.scratch().join("again.tar");
        g.run(&[&words[..], &[&flag, "-o", &again.display().to_string(), &id]].concat()).succeeded();
        assert!(
            std::fs::read(&file).unwrap() == std::fs::read(&again).unwrap(),
            "{format}: another archive of the same image"
        );
        // skopeo verifies every digest.
        let out = g.scratch().join(format!("read-{format}"));
        let source = format!("{format}:{path}:reg.example/team/app:1");
        let skopeo = std::process::Command::new("skopeo")
            .args(["copy", "--quiet", "--insecure-policy", &source])
            .arg(format!("oci:{}:x", out.display()))
            .env("TMPDIR", g.scratch())
            .output()
            .unwrap();
        assert!(skopeo.status.success(), "{format}: {}", String::from_utf8_lossy(&skopeo.stderr));
        let fresh = Gantry::new();
        let loaded = fresh.run(&["image", "load", "-i", &path]).ok();
        let names = |g: &Gantry| g.json(&["image", "list"])[0]["names"].clone();
        assert_eq!((names(&fresh), names(&g).as_array().map(Vec::len)), (names(&g), Some(3)), "{format}");
        assert_eq!(seen(&fresh, loaded.text()), want, "{format}");
        assert_eq!(seen(&fresh, "reg.example/team/app:1"), want, "{format}");
        let said = |g: &Gantry, name: &str| {
            let mut all = g.json(&["image", "inspect", name])[0].clone();
            for field in ["id", "names", "size", "format", "imported", "last_used", "layers", "disk_size"] {
                all[field] = json!(null);
            }
            all
        };
        assert_eq!(said(&fresh, "reg.example/team/app:1"), said(&g, &id), "{format}: the configuration changed");
        let sizes = |g: &Gantry, name: &str| g.json(&["image", "inspect", name])[0]["disk_size"].clone();
        assert_eq!(sizes(&fresh, "reg.example/team/app:1"), sizes(&g, &id), "{format}");
        assert!(
            !std::fs::read_dir(g.scratch()).unwrap().any(|e| e
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".tmp"))
        );
    }
}

#[test]
fn removed_images_are_reported_despite_later_failures() {
    let g = Gantry::new();
    // No lock of a layer: collecting fails there.
    let odd = g.dir().join("locks/odd");
    for command in [&["image", "rm"][..], &["image", "gc", "--grace-period=0s"], &["prune", "--force", "--all"]] {
        let id = g.import("talkative", &image_with_metadata());
        std::fs::create_dir(&odd).unwrap();
        let words = if command[1] == "rm" { [command, &[&id]].concat() } else { command.to_vec() };
        let out = g.run(&words).exits(FAILED).stderr_contains(&["locks/odd"]);
        assert!(out.stdout.contains(&format!("{id}\n")) || out.stdout.contains(&format!("{id} (")), "{out}");
        assert_eq!(g.json(&["image", "list"]), json!([]));
        std::fs::remove_dir(&odd).unwrap();
        g.run(&["image", "gc", "--grace-period=0s"]).succeeded();
    }
    g.check_invariants();
}

/// As `docker save A:1 A:2` does.
#[test]
fn an_image_is_saved_once() {
    let g = Gantry::new();
    let id = g.fixture();
    g.run(&["image", "tag", &id, "docker.io/library/app:1", "docker.io/library/other:latest"]).succeeded();
    let other = g.import("second", &image_with_metadata());
    let file = g.scratch().join("names.tar").display().to_string();
    g.run(&["save", "-o", &file, "app:1", &other, "docker.io/library/other", "app:1"]).succeeded();
    let list = std::process::Command::new("tar").args(["-xOf", &file, "manifest.json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!(list[0]["RepoTags"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    for name in ["app:1", "other", "other:latest", "docker.io/library/other:latest"] {
        let fresh = Gantry::new();
        let image = format!("docker-archive:{file}:{name}");
        assert_eq!(fresh.run(&["run", "--rm", "--net=none", &image, "--", "args"]).ok().stdout, "[]\n", "{name}");
        let names = fresh.json(&["image", "list"])[0]["names"].clone();
        assert_eq!(names, json!(["docker.io/library/app:1", "docker.io/library/other:latest"]));
    }
}

#[test]
fn save_and_load_work_through_pipes() {
    let g = Gantry::new();
    let id = g.import("talkative", &image_with_metadata());
    let archive = g.scratch().join("piped.tar");
    let mut shell = std::process::Command::new("sh");
    let command = g.command(&["save", "--format=oci", &id]);
    shell.args(["-c", "exec \"$@\" >\"$0\""]).arg(&archive).arg(command.get_program()).args(command.get_args());
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    g.spawn_command(shell.envs(set)).wait().succeeded();
    let fresh = Gantry::new();
    let loaded = fresh.run_with_input(&["load"], &std::fs::read(&archive).unwrap()).ok();
    let all = fresh.json(&["image", "inspect", loaded.text()]);
    assert_eq!((&all[0]["user"], &all[0]["env"]), (&json!("7:8"), &json!(["GREETING=hello world"])));
    let _ = g.run(&["save", "nothing"]).exits(1).stderr_contains(&["no image 'nothing'"]);
    let _ = g
        .run(&["save", "-o", "/nonexistent/x.tar", &id])
        .exits(FAILED)
        .stderr_contains(&["cannot write", "/nonexistent/x.tar"]);
}

#[test]
fn load_imports_every_image_of_an_archive() {
    let g = Gantry::new();
    let other = Image::builder()
        .layer(Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755))
        .entrypoint(&["/bin/app", "--other"])
        .build()
        .unwrap();
    let ids = [g.import("first", &image_with_metadata()), g.import("second", &other)];
    for format in ["docker-archive", "oci-archive"] {
        let file = g.scratch().join(format!("{format}.tar"));
        let path = file.display().to_string();
        g.run(&["save", &format!("--format={format}"), "-o", &path, &ids[0], &ids[1]]).succeeded();
        for input in [&["-i", &path][..], &[]] {
            let fresh = Gantry::new();
            let words = [&["load"], input].concat();
            let loaded = match input.is_empty() {
                true => fresh.run_with_input(&words, &std::fs::read(&file).unwrap()).ok(),
                false => fresh.run(&words).ok(),
            };
            assert_eq!(loaded.text().lines().count(), 2, "{format}");
            let entrypoint = |name: &str| fresh.json(&["image", "inspect", name])[0]["entrypoint"].clone();
            assert_eq!(entrypoint("second"), json!(["/bin/app", "--other"]), "{format}");
            assert_ne!(entrypoint("first"), entrypoint("second"), "{format}");
        }
        // A fetch is for one image, and its advice works.
        let fresh = Gantry::new();
        fresh.run(&["fetch", &path]).exits(FAILED).stderr_contains(&[
            "several images: ",
            &format!("{format}:PATH:NAME"),
            "gantry image load",
        ]);
        let names = g.json(&["image", "inspect", &ids[1]])[0]["names"].clone();
        let name = names[0].as_str().unwrap();
        fresh.run(&["fetch", &format!("{format}:{path}:{name}")]).succeeded();
        let colon = g.scratch().join("with:colon.tar").display().to_string();
        std::fs::copy(&file, &colon).unwrap();
        fresh.run(&["fetch", &format!("{format}:{colon}:{name}")]).succeeded();
    }
    // The images before a damaged one are in the store.
    let dir = g.scratch().join("damaged");
    std::fs::create_dir(&dir).unwrap();
    let manifest = r#"[{"Config":"a.json","Layers":[]},{"Config":"b.json","Layers":[]}]"#;
    std::fs::write(dir.join("manifest.json"), manifest).unwrap();
    let config = r#"{"os":"linux","architecture":"amd64","rootfs":{"type":"layers","diff_ids":[]}}"#;
    std::fs::write(dir.join("a.json"), config).unwrap();
    let file = g.scratch().join("damaged.tar");
    let tar = std::process::Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(&dir).arg(".").status();
    assert!(tar.unwrap().success());
    let fresh = Gantry::new();
    let failed = fresh.run(&["load", "-i", &file.display().to_string()]).exits(FAILED).stderr_contains(&["'b.json'"]);
    assert_eq!(failed.text().lines().count(), 1);
    assert_eq!(fresh.json(&["image", "list"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn foreign_platforms_are_fetched_but_not_run() {
    let g = Gantry::new();
    let of = |arch: &str| {
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        Image::builder()
            .layer(layer)
            .entrypoint(&["/bin/app"])
            .label("arch", arch)
            .platform("linux", arch)
            .build()
            .unwrap()
    };
    // Test machines have no emulator registered for this architecture.
    let (ours, other) = (of("amd64"), of("sparc64"));
    let dir = g.scratch().join("index");
    write_index(&dir, &[&ours, &other]);
    let registry = DebianRegistry::start();
    registry.push(&format!("oci:{}:latest", dir.display()), "app:1");
    let name = format!("{}/app:1", registry.host());
    assert_eq!(g.run(&["fetch", "--platform=linux/sparc64", &name]).ok().text(), other.id());
    let out = g.run(&["run", "--net=none", "--pull=never", &name]).exits(FAILED);
    let _ = out.stderr_contains(&["is for linux/sparc64", "this host runs linux/amd64", "qemu-user-static"]);
    // A platform that is given is fetched if the image in the store is for another one.
    let run = |flags: &[&str]| {
        g.run(&[&["run", "--rm", "--net=none"], flags, &[name.as_str(), "--", "args", "here"]].concat())
    };
    assert_eq!(run(&["--platform=linux/amd64"]).ok().stdout, "[\"here\"]\n");
    // The name stays with the image that runs.
    let _ = run(&["--platform=linux/sparc64"]).exits(FAILED).stderr_contains(&["is for linux/sparc64"]);
    assert_eq!(run(&[]).ok().stdout, "[\"here\"]\n");
    let _ =
        g.run(&["run", "--net=none", "--platform=linux/mips", &name]).exits(FAILED).stderr_contains(&["linux/mips"]);
    let _ = g.run(&["fetch", "--platform=nonsense/", &name]).exits(FAILED).stderr_contains(&["is not a platform"]);
    assert!(g.list().is_empty(), "a pod was left of an image that does not run");
}

/// The newest variant of x86-64 that the processor supports (x86-64 psABI, micro-architecture levels).
fn supported_variant() -> u32 {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let flags: Vec<&str> = cpu.lines().find(|line| line.starts_with("flags")).unwrap().split_whitespace().collect();
    let levels: [&[&str]; 3] = [
        &["cx16", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"],
        &["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"],
        &["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"],
    ];
    1 + u32::try_from(levels.iter().take_while(|level| level.iter().all(|flag| flags.contains(flag))).count()).unwrap()
}

#[test]
fn variants_beyond_the_processor_are_not_fetched() {
    let g = Gantry::new();
    let supported = supported_variant();
    let has_image = |id: &str| g.json(&["image", "list"]).as_array().unwrap().iter().any(|row| row["id"] == id);
    let of = |variant: u32| {
        let layer = Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755);
        let image = Image::builder().layer(layer).entrypoint(&["/bin/app"]).label("variant", &variant.to_string());
        image.edit_config(move |config| config["variant"] = json!(format!("v{variant}"))).build().unwrap()
    };
    for variant in 1..=5 {
        let image = of(variant);
        let reference = g.layout(&format!("v{variant}"), &image);
        let wanted = format!("--platform=linux/amd64/v{variant}");
        let args = |flags: &[&str]| {
            g.run(&[&["run", "--rm", "--net=none"], flags, &[reference.as_str(), "--", "args", "x"]].concat())
        };
        if variant <= supported {
            assert_eq!(args(&[]).ok().stdout, "[\"x\"]\n", "v{variant}");
            assert_eq!(args(&[&wanted]).ok().stdout, "[\"x\"]\n", "v{variant}");
            continue;
        }
        let says = [format!("linux/amd64/v{variant}"), format!("linux/amd64/v{supported}")];
        let out = args(&[&wanted]).exits(FAILED).stderr_contains(&says.each_ref().map(String::as_str));
        assert!(!out.stderr.contains("qemu"), "{out}");
        let _ = args(&[]).exits(FAILED).stderr_contains(&says.each_ref().map(String::as_str));
        assert!(!has_image(&image.id()), "v{variant}");
        // `fetch` is for other hosts, too.
        assert_eq!(g.run(&["fetch", &wanted, &reference]).ok().text(), image.id());
        let out = g.run(&["run", "--rm", "--net=none", &image.id(), "--", "args", "x"]).exits(FAILED);
        let out = out.stderr_contains(&says.each_ref().map(String::as_str));
        assert!(!out.stderr.contains("qemu"), "{out}");
    }
}

#[test]
fn stored_images_are_compared_with_the_platform() {
    let g = Gantry::new();
    let image = image_with_metadata();
    let id = g.import("mine", &image);
    let says = ["is for linux/amd64", "linux/riscv64"];
    let layout = g.layout("again", &image);
    g.run(&["image", "tag", &id, "local:1"]).succeeded();
    for reference in [id.as_str(), &id[7..19], "local:1", "mine", &layout] {
        let _ = g.run(&["fetch", "--platform=linux/riscv64", reference]).exits(FAILED).stderr_contains(&says);
        assert_eq!(g.run(&["fetch", "--platform=linux/amd64", reference]).ok().text(), id, "{reference}");
    }
    let prepare = ["prepare", "--net=none", "--platform=linux/amd64/v1", &id];
    g.run(&prepare).succeeded();
}

#[test]
fn the_root_has_the_attributes_of_the_image() {
    let g = Gantry::new();
    let empty = ["dev", "proc", "sys", "etc"].iter().fold(Layer::new(), |layer, name| layer.dir(name, 0o755));
    let image = Image::builder()
        .layer(Layer::new().dir("bin", 0o755).file("bin/app", g.app_bytes(), 0o755))
        .layer(empty.owner(1000, 50).mtime(1_600_000_000).xattr("user.note", b"of the image").dir("./", 0o1775))
        // Without an entry for its root.
        .layer(Layer::new().file("etc/more", "x", 0o644))
        .entrypoint(&["/bin/app"])
        .build()
        .unwrap();
    g.import("rooted", &image);
    for flags in [&[][..], &["--userns=300000"]] {
        let words = [&["run", "--rm", "--net=none"], flags, &["rooted", "--", "stat", "/"]].concat();
        let out = g.run(&words).ok();
        assert!(out.stdout.starts_with("dir 1775 1000 50 "), "{flags:?}: {out}");
    }
    // A copy into a pod that was never started makes the writable layer.
    let pod = pod_id(&g.run(&["prepare", "--net=none", "rooted", "--", "stat", "/"]).ok());
    let file = g.scratch().join("note");
    std::fs::write(&file, "text").unwrap();
    g.run(&["cp", &file.display().to_string(), &format!("{pod}:/etc/note")]).succeeded();
    let out = g.run(&["run-prepared", &pod]).ok();
    assert!(out.stdout.starts_with("dir 1775 1000 50 "), "{out}");
}

#[test]
fn a_digest_needs_a_name_in_the_repository() {
    let g = Gantry::new();
    let id = g.fixture();
    g.run(&["image", "tag", &id, "reg.example:5000/team/app:1"]).succeeded();
    for repository in ["team/app", "app", "reg.example:5000/team/app"] {
        let name = format!("{repository}@{id}");
        assert_eq!(g.json(&["image", "inspect", &name])[0]["id"], json!(id), "{name}");
        let out = g.run(&["run", "--rm", "--net=none", "--pull=never", &name, "--", "args", "here"]).ok();
        assert_eq!(out.stdout, "[\"here\"]\n", "{name}");
    }
    g.run(&["image", "tag", &id, "plain:2"]).succeeded();
    let name = format!("plain@{id}");
    let out = g.run(&["run", "--rm", "--net=none", &name, "--", "args", "here"]).ok();
    assert_eq!(out.stdout, "[\"here\"]\n");
    for wrong in ["wrongname", "am/app", "5000/team/app"] {
        let name = format!("{wrong}@{id}");
        for command in [&["image", "inspect"][..], &["image", "rm", "--force"]] {
            let _ = g.run(&[command, &[&name]].concat()).exits(1).stderr_contains(&["no image", wrong]);
        }
        let _ = g.run(&["image", "tag", &name, "x"]).exits(1).stderr_contains(&["no image", wrong]);
        let _ = g.run(&["run", "--net=none", &name]).exits(FAILED).stderr_contains(&[wrong]);
    }
    let cut = format!("plain@{}", &id[..id.len() - 1]);
    let _ = g.run(&["image", "inspect", &cut]).exits(FAILED).stderr_contains(&["is not a digest"]);
    let _ = g.run(&["image", "rm", "--force", &name]).ok().stdout_contains(&format!("removed {id}"));
}

#[test]
fn every_store_saves_the_same_bytes() {
    let g = Gantry::new();
    // No layer has an entry for its root or for the directories of its files; one file is a hole.
    let hole = vec![0; 3 << 20];
    let image = Image::builder()
        .layer(Layer::new().file("a/b/one", b"1", 0o644).dir("told", 0o700))
        .layer(Layer::new().file("a/b/two", b"2", 0o644).file("told/c/three", b"3", 0o644).file("hole", hole, 0o644))
        .layer(Layer::new().opaque("a").whiteout("told/c"))
        .entrypoint(&["/one"])
        .build()
        .unwrap();
    let fresh = Gantry::new();
    for format in ["docker-archive", "oci-archive"] {
        let saved = [&g, &fresh].map(|g| {
            g.import("same", &image);
            let file = g.scratch().join("saved.tar");
            g.run(&["save", &format!("--format={format}"), "-o", &file.display().to_string(), "same"]).succeeded();
            std::fs::read(file).unwrap()
        });
        assert!(saved[0] == saved[1], "{format}: the stores give different archives");
        assert!(saved[0].len() < 100_000, "{format}: {} bytes with a hole", saved[0].len());
    }
}

#[test]
fn unreadable_archives_are_explained() {
    let g = Gantry::new();
    let file = g.scratch().join("image.tar");
    let path = file.display().to_string();
    let xz: &[u8] = b"\xfd7zXZ\0\0\x04 and more";
    for (bytes, says) in [
        (xz, "'xz -dc FILE | gantry image load'"),
        (b"BZh91AY&SY and more", "'bzip2 -dc FILE | gantry image load'"),
        (b"", "it is empty"),
        (b"something else", "it is not a tar archive"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let _ = g.run(&["fetch", &path]).exits(FAILED).stderr_contains(&["cannot fetch", says]);
        for out in [g.run(&["image", "load", "-i", &path]), g.run_with_input(&["image", "load"], bytes)] {
            let out = out.exits(FAILED).stderr_contains(&["cannot load", says]);
            assert!(!out.stderr.contains("fetch"), "{out}");
        }
    }
}

#[test]
fn the_advice_for_files_fits() {
    let g = Gantry::new();
    std::fs::write(g.scratch().join("l.tar"), "").unwrap();
    let fetch = |name: &str| g.spawn_command(g.command(&["fetch", name]).current_dir(g.scratch())).wait();
    let _ = fetch("l.tar").exits(FAILED).stderr_contains(&["write ./l.tar for the file"]);
    let _ = fetch("other.tar").exits(FAILED).stderr_contains(&["docker://other.tar"]);
    for name in ["docker-daemon:x", "docker-daemon:x:1", "dir:foo", "dir:/foo", "containers-storage:foo"] {
        let advice = format!("skopeo copy {}:… oci-archive:FILE", name.split(':').next().unwrap());
        let out = fetch(name);
        let out = out.stderr_contains(&[&advice]);
        assert!(out.code != 0 && !out.stderr.contains("docker://"), "{out}");
    }
}
