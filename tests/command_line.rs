//! Command lines as users of docker, podman, kubectl or rkt type them.

use gantry_tests::{Gantry, app, pod_id, wait_for};
use serde_json::{Value, json};

/// The exit code of gantry's own failures.
const FAILED: i32 = 125;

/// A command line of `run` that leaves no pod.
fn line<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--net=none", "--quiet", "--rm"], words].concat()
}

#[test]
fn a_command_needs_no_separator() {
    let g = Gantry::new();
    let image = g.fixture();
    // The entrypoint of the image is the fixture app, its command is replaced.
    let out = g.run(&line(&[&image, "args", "one", "-la", "--rm", "--help"])).ok();
    assert_eq!(out.text(), "[\"one\",\"-la\",\"--rm\",\"--help\"]");
    let out = g.run(&line(&["--entrypoint=", &image, "/bin/app", "args", "x"])).ok();
    assert_eq!(out.text(), "[\"x\"]");
    let _ = g.run(&line(&["--entrypoint=", &image])).exits(FAILED).stderr_contains(&["--entrypoint", "command"]);
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "args", "two"]).ok());
    assert_eq!(g.run(&["run-prepared", &prepared]).ok().text(), "[\"two\"]");
    // Words that are images in the store are images.
    let out = g.run(&line(&[&image, "--name=a", &image, "--name=b"])).ok();
    assert_eq!(out.stdout.lines().count(), 2, "{out}");
    let _ = g.run(&line(&["-it", &image, &image, "--name=b"])).exits(FAILED).stderr_contains(&[
        "exactly one app",
        "was taken for another image",
        &format!("-it {image} -- {image}"),
    ]);
    let _ = g
        .run(&line(&["--entrypoint=", &image, "no-such-program"]))
        .exits(127)
        .stderr_contains(&["no-such-program", "was taken for the command of the app"]);
}

#[test]
fn commands_of_other_tools_get_a_hint() {
    let g = Gantry::new();
    for (line, says) in [
        (&["system", "df"][..], &["gantry df"][..]),
        (&["export", "x"], &["gantry cp"]),
        (&["create", "x"], &["gantry prepare"]),
        (&["cp", "a", "b"], &["POD:PATH"]),
        (&["image", "prune"], &["gantry image gc"]),
        (&["network", "create", "x"], &["/etc/gantry/net.d"]),
        (&["st", "x"], &["is ambiguous: status, stats, start, stop"]),
        (&[""], &["the command is empty: 'gantry help' lists the commands"]),
        (&["help", "lsit"], &["there is no command 'lsit': did you mean 'list'?"]),
        (&["help", "image", "nosuch"], &["there is no command 'image nosuch'"]),
        (&["run", "--net", "none", "x"], &["'none'", "write --net=none"]),
        (&["rm", "--everything"], &["--everything"]),
        (&["run", "--init", "x"], &["--init", "leave it out"]),
        (&["run", "--health-interval=x", "x"], &["--health-interval", "'x'"]),
    ] {
        let out = g.run(line).exits(FAILED).stderr_contains(says);
        assert!(!out.stderr.contains("tip:") && out.stdout.is_empty(), "{out}");
    }
    assert_eq!(g.run(&["im", "ls", "-q"]).ok().stdout, "");
    assert_eq!(g.run(&["help", "im", "ls"]).ok().stdout, g.run(&["image", "list", "--help"]).ok().stdout);
    let out = g.run(&[]).exits(FAILED);
    assert!(out.stderr.starts_with("Run pods of apps"), "help alone: {out}");
}

#[test]
fn store_errors_are_not_missing_pods() {
    let g = Gantry::new();
    let _ = g
        .run(&["--config=/no/such/file", "list"])
        .exits(FAILED)
        .stderr_contains(&["/no/such/file", "No such file or directory"]);
    let _ = g.run(&["--dir=/proc/gantry", "list"]).exits(FAILED).stderr_contains(&["/proc/gantry"]);
}

#[test]
fn reading_commands_make_no_data_directory() {
    let g = Gantry::new();
    let typo = g.scratch().join("typo");
    let dir = format!("--dir={}", typo.display());
    let want = format!("there is no data directory '{}': 'gantry run' or 'gantry fetch' creates it", typo.display());
    for command in ["list", "images", "events", "doctor", "info", "df"] {
        let _ = g.run(&[&dir, command]).exits(FAILED).stderr_contains(&[&want]);
    }
    let _ = g.run(&[&dir, "status", "x"]).exits(FAILED).stderr_contains(&[&want]);
    assert!(!typo.exists());
}

#[test]
fn reading_commands_need_root() {
    use std::os::unix::process::CommandExt as _;
    let g = Gantry::new();
    let _ = g.fixture();
    for command in ["list", "images", "status", "doctor", "events"] {
        let words = [command, "x"];
        let words = if command == "status" { &words[..] } else { &words[..1] };
        match g.command(words).uid(65534).gid(65534).current_dir("/").output() {
            Ok(out) => {
                let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
                assert_eq!(out.status.code(), Some(FAILED), "{command}: {stderr}");
                assert!(stderr.contains("needs root"), "{command}: {stderr}");
            }
            // Only root can enter the build directory, so other users cannot start the program.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
        }
    }
}

#[test]
fn docker_volume_syntax_is_accepted() {
    let g = Gantry::new();
    let image = g.fixture();
    // Commands of the harness run in its home directory.
    std::fs::write(g.scratch().join("page"), "hello").unwrap();
    let out = g.run(&line(&["-v", "./scratch:/data:ro,z", &image, "cat", "/data/page"])).ok();
    assert_eq!(out.text(), "hello");
    let out = g.run(&line(&["-v", "/no/such/place:/x", &image, "true"])).exits(FAILED);
    let out = out.stderr_contains(&["/no/such/place does not exist on this host"]);
    assert!(!out.stderr.contains("bind-"), "{out}");
    assert!(g.list().is_empty());
    let _ = g.run(&line(&["-m", "64MB", &image, "true"])).ok();
}

#[test]
fn pods_are_selected_by_name_and_filter() {
    let g = Gantry::new();
    let (web, db) = (
        g.detached(&["--name=web", "--label=tier=front", "--hostname=one"], &["sleep", "forever"]),
        g.detached(&["--name=db", "--label=tier=back"], &["sleep", "forever"]),
    );
    for name in ["web", "one", &web[..8], &web] {
        assert_eq!(g.json(&["status", name])["id"], web.as_str(), "{name}");
    }
    assert_eq!(g.json(&["status", "--latest"])["id"], db.as_str());
    let out = g.run(&["exec", "--latest", "/bin/app", "args", "-l", "x"]).ok();
    assert_eq!(out.text(), "[\"-l\",\"x\"]");
    let file = g.scratch().join("id");
    std::fs::write(&file, format!("{web}\n")).unwrap();
    let file = format!("--uuid-file={}", file.display());
    let _ = g.run(&["exec", &file, "--", "/bin/app", "true"]).ok();
    let _ = g.run(&["logs", &file]).ok();
    let _ = g.run(&["logs", &file, "web"]).exits(FAILED).stderr_contains(&["--uuid-file"]);

    // Of several pods with one name, the running one is selected, otherwise none.
    let other = pod_id(&g.run(&["prepare", "--net=none", &g.fixture(), "--name=web"]).ok());
    assert_eq!(g.json(&["status", "web"])["id"], web.as_str());
    let _ = g
        .run(&["stop", "web", "missing", "db"])
        .exits(1)
        .stdout_contains(&db)
        .stderr_contains(&["there is no pod 'missing'"]);
    let _ = g.run(&["rm", "web"]).exits(FAILED).stderr_contains(&["2 pods", "'web'", &web, &other, "give the id"]);

    // wait prints an exit code per pod; inspect prints several pods as an array.
    let codes = g.run(&["wait", &web, &db]).ok().stdout;
    assert_eq!(codes, "143\n143\n");
    let _ = g.run(&["wait", "--time=0", &other]).exits(FAILED).stderr_contains(&["did not exit"]);
    for command in ["status", "inspect"] {
        let both = g.json(&[command, &web, &db]);
        let ids: Vec<&Value> = both.as_array().unwrap().iter().map(|pod| &pod["id"]).collect();
        assert_eq!(ids, [&json!(web), &json!(db)], "{command}");
        assert_eq!(g.json(&[command, &db])["id"], db.as_str(), "{command}");
    }
    let text = g.run(&["status", &web, &db]).ok().stdout;
    assert!(text.starts_with(&format!("id={web}\nstate=")) && text.contains(&format!("\n\nid={db}\n")), "{text}");

    assert_eq!(g.run(&["rm", "--filter=label=tier=back"]).ok().text(), db);
    let gone = g.run(&["rm", "-a"]).ok().stdout;
    assert!(gone.contains(&web) && gone.contains(&other), "{gone}");
    for command in [&["stop", "--all"][..], &["kill", "--all"], &["rm", "--all"]] {
        assert_eq!(g.run(command).ok().stdout, "", "nothing is left for {command:?}");
    }
    let _ = g.run(&["status", "--latest"]).exits(1).stderr_contains(&["there are no pods"]);
    let _ = g.run(&["stop", "--all", "x"]).exits(FAILED);
}

#[test]
fn filters_select_pods_to_stop_and_kill() {
    let g = Gantry::new();
    let a = g.detached(&["--name=a"], &["sleep", "forever"]);
    let b = g.detached(&["--name=b"], &["sleep", "forever"]);
    assert_eq!(g.run(&["stop", "--filter", "name=a"]).ok().text(), a);
    let _ = g.run(&["kill", "--all", "--signal=KILL"]).ok();
    assert_eq!(g.run(&["wait", "b"]).ok().text(), "137");
    let removed = g.run(&["rm", "-f", "--filter=state=exited"]).ok().stdout;
    assert!(removed.contains(&a) && removed.contains(&b) && g.list().is_empty(), "{removed}");
}

#[test]
fn lists_are_filtered_sorted_and_formatted() {
    let g = Gantry::new();
    let image = g.fixture();
    let bad = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=bad", "--", "exit", "3"]).ok());
    let _ = g.run(&["run-prepared", &bad]).exits(3);
    let good = g.detached(&["--name=good", "--label=x=1"], &["sleep", "forever"]);
    let of = |flags: &[&str]| g.run(&[&["list", "--format={{.FullID}}"], flags].concat()).ok().stdout;
    let lines = |pods: &[&str]| pods.iter().map(|pod| format!("{pod}\n")).collect::<String>();
    for (flags, want) in [
        (&[][..], &[&good, &bad][..]),
        (&["--sort=name"], &[&bad, &good]),
        (&["--last=1"], &[&good]),
        (&["--latest"], &[&good]),
        (&["--filter=exited=3"], &[&bad]),
        (&["--filter", "state=running", "--filter", "label=x=1"], &[&good]),
        (&["-f", "label=y"], &[]),
        (&["-f", &format!("image={}", &image[..19])], &[&good, &bad]),
        (&["-f", "network=none", "-f", "name=bad"], &[&bad]),
    ] {
        let want: Vec<&str> = want.iter().map(|pod| pod.as_str()).collect();
        assert_eq!(of(flags), lines(&want), "{flags:?}");
    }
    let out = g.run(&["ps", "--format", r"{{.Names}}\t{{.State}}\t{{.ExitCode}}\t{{.Labels}}"]).ok();
    assert_eq!(out.stdout, "good\trunning\t\tx=1\nbad\texited\t3\t\n");
    let _ = g
        .run(&["ps", "--format={{.Colour}}"])
        .exits(FAILED)
        .stderr_contains(&["'{{.Colour}}' is not a field", ".Names"]);
    let _ = g.run(&["ps", "-f", "colour=red"]).exits(FAILED).stderr_contains(&["is not a key", "label"]);
    assert_eq!(g.json(&["list", "--filter=name=good"])[0]["id"], good.as_str());
    let full = g.run(&["list", "--full"]).ok().stdout;
    assert!(full.lines().next().unwrap().ends_with("LABELS") && full.contains("  x=1\n"), "{full}");

    // An app that exits before its pod is listed with its exit code.
    let two = g.run(&[
        "run",
        "-d",
        "--net=none",
        &image,
        "--name=stays",
        "--",
        "sleep",
        "forever",
        "---",
        &image,
        "--name=goes",
        "--",
        "true",
    ]);
    let two = pod_id(&two.ok());
    gantry_tests::wait_for("the end of an app in the list", || {
        let table = g.run(&["list", "-f", &format!("id={two}")]).ok().stdout;
        let line = table.lines().find(|line| line.contains("goes"))?.to_owned();
        line.contains("exited (0)").then_some(())
    });
}

#[test]
fn all_lists_take_filters_and_templates() {
    let g = Gantry::new();
    let id = g.fixture();
    g.run(&["image", "tag", &id, "example.com/team/web:1", "example.com/team/db"]).succeeded();
    let lines = |args: &[&str]| -> Vec<String> { g.run(args).ok().stdout.lines().map(str::to_owned).collect() };
    let names = ["example.com/team/web 1", "example.com/team/db latest"];
    let listed = lines(&["images", "--format", "{{.Repository}} {{.Tag}}", "-f", "reference=team/*"]);
    assert!(names.iter().all(|name| listed.iter().any(|line| line == name)), "{listed:?}");
    for (filter, count) in [("name=web", 1), ("name=web:1", 1), ("name=web:2", 0), ("dangling=true", 0)] {
        assert_eq!(lines(&["image", "ls", "-q", "--filter", filter]).len(), count, "{filter}");
    }
    assert_eq!(lines(&["images", "-q", "--no-trunc", "db"]), [id.as_str()]);
    assert_eq!(lines(&["images", "--sort=size", "--format={{.FullID}}", "web"])[0], id);
    g.run(&["volume", "create", "--label=tier=a", "first", "second"]).succeeded();
    let pod = g.detached(&["--volume=second:/data"], &["sleep", "forever"]);
    assert_eq!(lines(&["volume", "ls", "-q", "-f", "dangling=true"]), ["first"]);
    assert_eq!(lines(&["volume", "ls", "-q", "-f", "label=tier=a", "-f", "name=s*"]), ["second"]);
    let format = "--format={{.Name}} {{.Labels}} {{.Pods}}";
    assert_eq!(
        lines(&["volume", "ls", "--sort=name", format]),
        ["first tier=a ".to_owned(), format!("second tier=a {pod}")]
    );
    assert_eq!(lines(&["volume", "ls", "--format=json"]).len(), 1);
    let apps = lines(&["app", "ls", &pod, "--sort=name", "--format", "{{.Name}} {{.State}} {{json .}}"]);
    assert!(apps.len() == 1 && apps[0].contains(" running {\"name\":"), "{apps:?}");
    for args in [&["network", "ls", "-q"][..], &["network", "ls", "--format={{.Name}}", "--sort=name"]] {
        assert!(!lines(args).is_empty(), "{args:?}");
    }
    assert_eq!(lines(&["network", "ls", "-q", "-f", "name=no-such-*"]), [""; 0]);
    for (args, why) in [
        (&["volume", "ls", "--format={{.Nmae}}"][..], "is not a field"),
        (&["images", "--format=yaml"], "neither an output format"),
        (&["images", "--filter=colour=red"], "is not a key"),
        (&["network", "ls", "--sort=colour"], "colour"),
    ] {
        drop(g.run(args).exits(FAILED).stderr_contains(&[why]));
    }
}

/// Events are logged on request only, by flag or variable, in both formats; also by `run`, whose flags clap does not
/// parse.
#[test]
fn events_are_logged_on_request() {
    let g = Gantry::new();
    assert_eq!(g.run(&["list", "-q"]).ok().stderr, "");
    let text = g.run(&["--log-level=debug", "list", "-q"]).ok();
    assert!(text.stderr.lines().any(|line| line.starts_with("debug: read the settings command=\"list\"")), "{text}");
    let out = g.app(&["--log-level", "gantry=debug", "--log-format=json", "--quiet"], &["print", "x"]).ok();
    assert_eq!(out.stdout, "x\n");
    let events: Vec<serde_json::Value> = out.stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let exited = events.iter().find(|event| event["message"] == "the pod exited").unwrap();
    assert!(exited["level"] == "DEBUG" && exited["exit_code"] == 0 && exited["pod"].is_string(), "{out}");
    let mut list = g.command(&["list", "-q"]);
    let by_variable = g.spawn_command(list.env("GANTRY_LOG", "debug")).wait().ok();
    assert!(by_variable.stderr.contains("debug: "), "{by_variable}");
    let invalid = g.spawn_command(g.command(&["list"]).env("GANTRY_LOG", "loud")).wait().exits(125);
    let _ = invalid.stderr_contains(&["GANTRY_LOG", "'loud' is not a level"]);
    for line in [&["list", "--log-level=loud"][..], &["run", "x", "--log-level=loud"]] {
        let _ = g.run(line).exits(125).stderr_contains(&["--log-level", "'loud' is not a level"]);
    }
}

/// The candidates that a shell offers at the end of a line, with gantry's completion script.
fn completed(g: &Gantry, line: &str) -> Vec<String> {
    let words: Vec<String> = line.replace('=', " = ").split(' ').map(|word| format!("'{word}'")).collect();
    let program = g.command(&[]).get_program().to_string_lossy().into_owned();
    let asked = format!(
        "gantry() {{ '{program}' \"$@\"; }}\nsource <(gantry completion bash)\n\
         COMP_LINE='{line}' COMP_POINT=${{#COMP_LINE}} COMP_WORDS=({}) COMP_CWORD={}\n\
         COMP_POINT=${{#COMP_LINE}}; _gantry; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.join(" "),
        words.len() - 1
    );
    let plain = g.command(&[]);
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", &asked]).env("GANTRY_DIR", g.dir()).envs(plain.get_envs().filter_map(|(k, v)| Some((k, v?))));
    let out = bash.current_dir("/").output().unwrap_or_else(|error| panic!("cannot run bash: {error}"));
    assert!(out.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    let words = String::from_utf8_lossy(&out.stdout);
    words.lines().map(str::to_owned).filter(|word| !word.is_empty()).collect()
}

#[test]
fn bash_completes_names_on_this_host() {
    let g = Gantry::new();
    let running = g.detached(&["--name=server"], &["sleep", "forever"]);
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &g.fixture(), "--name=later"]).ok());
    for (line, want) in [
        ("gantry netw", &["network"][..]),
        ("gantry stop ", &["server", &running[..8]]),
        ("gantry run-prepared ", &["later", &prepared[..8]]),
        ("gantry exec ser", &["server"]),
        ("gantry run --net=no", &["none"]),
        ("gantry ps --phase=run", &["running"]),
        ("gantry ps --filter=state=run", &["running"]),
        ("gantry kill -s SIGKI", &["SIGKILL"]),
        ("gantry run --cap-add=NET_AD", &["NET_ADMIN"]),
        ("gantry fetch /etc/hostnam", &["/etc/hostname"]),
    ] {
        assert_eq!(completed(&g, line), want, "{line}");
    }
    assert!(completed(&g, "gantry run --mem").contains(&"--memory".to_owned()));
}

/// With one after the other, the second pod would be asked to stop only when the first has ended.
#[test]
fn several_pods_are_stopped_at_once() {
    let g = Gantry::new();
    let pods = ["a", "b", "c"].map(|name| g.detached(&[&format!("--name={name}")], &["ignore", "TERM"]));
    pods.iter().for_each(|pod| drop(g.wait_log(pod, "ignoring")));
    let stop = g.spawn(&["stop", "--all", "--time=10m"]);
    pods.iter().for_each(|pod| drop(g.wait_log(pod, "got SIGTERM")));
    g.run(&["kill", "--all", "--signal=KILL"]).succeeded();
    let stopped = stop.wait().ok().stdout;
    assert!(pods.iter().all(|pod| stopped.contains(pod)), "{stopped}");
    // A pod that is named twice is removed once, and a word that names none hinders no other.
    let removed = g.run(&["rm", "a", "b", "none", "a", "c"]).exits(1).stdout;
    assert!(pods.iter().all(|pod| removed.contains(pod)) && g.list().is_empty(), "{removed}");
}

#[test]
fn apps_are_named_where_pods_are() {
    let g = Gantry::new();
    let image = g.fixture();
    let one = ["run", "--net=none", "--detach", "--pod-name=two", &image, "--name=a", "--", "obey", "USR1", "0"];
    let two = ["---", &image, "--name=b", "--", "obey", "USR1", "0"];
    let pod = pod_id(&g.run(&[&one[..], &two].concat()).ok());
    wait_for("the apps to be ready", || {
        (g.run(&["logs", &pod]).ok().stdout.matches("obeying").count() == 2).then_some(())
    });
    assert_eq!(g.run(&["kill", "--signal=USR1", "two/a"]).ok().text(), format!("{pod}/a"));
    wait_for("the app to end", || (app(&g.status(&pod), "a")["state"] == "exited").then_some(()));
    assert_eq!(app(&g.status(&pod), "b")["state"], "running");
    let _absent = g.run(&["kill", "two/none"]).exits(1).stderr_contains(&["none"]);
    for command in ["stop", "start", "status", "rm"] {
        let refused = g.run(&[command, "two/b"]).exits(125);
        let instead = format!("use 'gantry app {command} two/b'");
        let _named = refused.stderr_contains(&["'two/b' names an app", "name the pod alone, 'two'", &instead]);
    }
    for command in ["wait", "inspect", "top", "stats", "port", "cat-manifest"] {
        let _named = g.run(&[command, "two/b"]).exits(125).stderr_contains(&["'two/b' names an app"]);
    }
    let _absent = g.run(&["stop", "none/b"]).exits(1).stderr_contains(&["no pod 'none'"]);
    g.run(&["kill", "--signal=USR1", "two"]).succeeded();
    g.wait_state(&pod, "exited");
}

#[test]
fn many_running_pods_are_removed_at_once() {
    let g = Gantry::new();
    let pods: Vec<String> = (0..20).map(|_| g.detached(&[], &["sleep", "forever"])).collect();
    let removed = g.run(&["rm", "--force", "--all"]).ok().stdout;
    let mut lines: Vec<&str> = removed.lines().collect();
    lines.sort_unstable();
    let mut ids: Vec<&str> = pods.iter().map(String::as_str).collect();
    ids.sort_unstable();
    assert_eq!(lines, ids);
    assert!(g.list().is_empty());
}

#[test]
fn separators_in_arguments_are_explained() {
    let g = Gantry::new();
    let image = g.fixture();
    for (words, want) in [
        (&["sh", "-c", "echo hi", "--", "b"][..], format!("--rm {image} -- sh -c 'echo hi' …")),
        (&["echo", "a", "--", "x"], format!("--rm {image} -- echo a -- …")),
        (&["/bin/app", "args", "--", "x"], format!("--rm {image} -- /bin/app args -- …")),
    ] {
        let out = g.run(&[&["run", "--rm", &image], words].concat()).exits(FAILED);
        let taken = format!("'{}' was taken for another image", words[0]);
        let out = out.stderr_contains(&[&taken, &want]);
        assert_eq!(out.stderr.lines().count(), 1, "nothing is fetched: {out}");
    }
    let out = g.run(&line(&[&image, "--", "args", "a", "--", "x"])).ok();
    assert_eq!(out.text(), "[\"a\",\"--\",\"x\"]");
    assert!(g.list().is_empty());
}

#[test]
fn names_of_variables_are_checked() {
    let g = Gantry::new();
    for (text, why) in [
        ("A=1\nC = 3\n", "line 2: the name of a variable, 'C ', contains white space"),
        ("export D=4\n", "line 1: the name of a variable, 'export D', contains white space"),
    ] {
        let file = g.scratch().join("variables");
        std::fs::write(&file, text).unwrap();
        let flag = format!("--env-file={}", file.display());
        let _ = g.app(&[&flag], &["true"]).exits(FAILED).stderr_contains(&["variables", why]);
    }
    for flag in ["--env=A B=1", "--env=\"A\"=1"] {
        let _ = g.app(&[flag], &["true"]).exits(FAILED).stderr_contains(&["--env", "the name of a variable"]);
    }
    assert!(g.list().is_empty());
}

#[test]
fn flags_of_docker_get_a_hint() {
    let g = Gantry::new();
    for (line, says) in [
        (&["kill", "-9", "x"][..], "write --signal=9"),
        (&["kill", "-HUP", "x"], "write --signal=HUP"),
        (&["rm", "-fv", "x"], "leave it out"),
        (&["inspect", "-f", "{{.State}}", "x"], "jq"),
        (&["update", "--pod-memory", "32m", "x"], "write --pod --memory=32m"),
        (&["run", "--network", "container:x", "x"], "apps of one pod"),
        (&["run", "-p", "-1:80", "x"], "'-1' is not a port: 1 to 65535"),
    ] {
        let _ = g.run(line).exits(FAILED).stderr_contains(&[says]);
    }
}
