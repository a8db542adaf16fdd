//! Images in the store as people look at them, name them and remove them; logins at registries.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::os::unix::fs::PermissionsExt as _;

use gantry_fixtures::{Image, Layer};
use gantry_tests::{DebianRegistry, Gantry, PASSWORD, USER, pod_id};
use serde_json::json;

const FAILED: i32 = 125;

/// An image that says everything an image can say.
fn talkative() -> Image {
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
fn inspect_shows_what_an_image_says() {
    let g = Gantry::new();
    let id = g.import("talkative", &talkative());
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
    let _ = g.run(&["image", "inspect", "nothing"]).exits(1).complains(&["no image 'nothing'"]);
}

#[test]
fn history_pairs_steps_with_layers() {
    let g = Gantry::new();
    let id = g.import("talkative", &talkative());
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
fn names_are_given_and_taken_away() {
    let g = Gantry::new();
    let (one, two) = (g.import("one", &talkative()), g.fixture());
    assert_eq!(
        g.run(&["image", "tag", &one, "mine", "reg.example/team/mine:2"]).ok().text(),
        "mine:latest\nreg.example/team/mine:2"
    );
    for name in ["mine", "mine:latest", "reg.example/team/mine:2", "team/mine:2"] {
        assert_eq!(g.json(&["image", "inspect", name])[0]["id"], json!(one), "{name}");
    }
    let out = g.run(&["image", "tag", &two, "mine"]).ok();
    assert!(out.stderr.contains(&format!("mine:latest belonged to image {}", &one[7..19])), "{out}");
    for bad in ["UPPER", &two, &format!("mine@{two}"), "deadbeef"] {
        let _ = g.run(&["image", "tag", &one, bad]).exits(FAILED).complains(&["cannot be an image's name"]);
    }
    let _ = g.run(&["image", "tag", "nothing", "x"]).complains(&["no image 'nothing'"]);
    // By its name only the name goes; by its id everything would, so that has to be meant.
    assert_eq!(g.run(&["rmi", "mine"]).ok().text(), "untagged mine:latest");
    let out = g.run(&["image", "rm", &one]).exits(FAILED);
    let _ = out.complains(&["several names", "reg.example/team/mine:2", "--force"]);
    let _ = g.run(&["rmi", "-f", &one]).ok().says(&format!("removed {one}"));
    let left = g.json(&["image", "list"]);
    assert_eq!((left.as_array().map(Vec::len), &left[0]["id"]), (Some(1), &json!(two)));
}

#[test]
fn force_removes_pods_that_have_ended_and_no_others() {
    let g = Gantry::new();
    let id = g.fixture();
    let ended = pod_id(&g.run(&["run", "--net=none", "--detach", &id, "--", "exit", "3"]).ok());
    g.wait_state(&ended, "exited");
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &id, "--", "args"]).ok());
    let running = g.detached(&[], &["sleep", "1000"]);
    for flags in [&[][..], &["--force"]] {
        let _ = g.run(&[&["image", "rm"], flags, &[&id]].concat()).exits(FAILED).complains(&["is used by"]);
    }
    assert_eq!(g.list().len(), 3, "a pod was removed although the image stays");
    g.run(&["rm", "--force", &running]).succeeded();
    let _ = g.run(&["image", "rm", "--force", &id]).exits(FAILED).complains(&["is used by", &prepared[..8]]);
    g.run(&["rm", &prepared]).succeeded();
    let _ = g.run(&["image", "rm", "--force", &id]).ok().says(&format!("removed pod {ended}"));
    assert!(g.list().is_empty() && g.json(&["image", "list"]) == json!([]));
}

#[test]
fn a_login_is_checked_filed_and_removed() {
    let g = Gantry::new();
    let registry = DebianRegistry::protected();
    let host = registry.host();
    let image = talkative();
    registry.push(&format!("{}:latest", g.layout("image", &image)), "private:1");
    let file = g.scratch().join("auth/auth.json");
    let with = |args: &[&str], input: Option<&str>| {
        let mut command = g.command(args);
        command.env("REGISTRY_AUTH_FILE", &file);
        let typed = g.scratch().join("typed");
        std::fs::write(&typed, input.unwrap_or_default()).unwrap();
        // The harness gives its programs an empty standard input; a shell hands this one over.
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "exec \"$@\" <\"$0\""]).arg(&typed).arg(command.get_program()).args(command.get_args());
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        g.spawn_command(shell.envs(set)).wait()
    };
    let name = format!("{host}/private:1");
    let _ = with(&["fetch", &name], None).exits(FAILED).complains(&[&format!("gantry login {host}")]);
    let wrong = with(&["login", "-u", USER, "--password-stdin", &host], Some("wrong\n")).exits(FAILED);
    let _ = wrong.complains(&["cannot log in", &host, "not accepted"]);
    assert!(!file.exists(), "a login that was refused was filed");
    let out =
        with(&["login", "-u", USER, "--password-stdin", &format!("http://{host}/")], Some(&format!("{PASSWORD}\n")))
            .ok();
    assert!(out.text().contains(&format!("logged in to {host}")) && !out.stdout.contains(PASSWORD), "{out}");
    let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert_eq!(with(&["fetch", &name], None).ok().text(), image.id());
    // podman's and skopeo's eyes see the same.
    let skopeo = std::process::Command::new("skopeo")
        .args(["inspect", "--tls-verify=false", "--authfile"])
        .arg(&file)
        .arg(format!("docker://{name}"))
        .output()
        .unwrap();
    assert!(skopeo.status.success(), "{}", String::from_utf8_lossy(&skopeo.stderr));
    let out = with(&["login", "-u", USER, "-p", PASSWORD, &host], None).ok();
    assert!(out.stderr.contains("warning: other users can read a password"), "{out}");
    let _ = with(&["login", "-u", USER, &host], None).exits(FAILED).complains(&["not a terminal", "--password-stdin"]);
    let _ = with(&["login", "no-registry"], None).exits(FAILED).complains(&["is not a registry"]);
    assert_eq!(with(&["logout", &host], None).ok().text(), format!("logged out of {host}"));
    let _ = with(&["logout", &host], None).exits(FAILED).complains(&["not logged in"]);
}
