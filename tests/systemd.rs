//! Cooperation with systemd: readiness of apps, gantry under a unit, and systemd as an app's program.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use gantry_tests::{DEADLINE, Gantry, Signal, app, pod_id, systemd_image, wait_for};

/// The socket of a service manager, as systemd has one for each unit of Type=notify.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(g: &Gantry) -> Self {
        let path = g.scratch().join("manager");
        let bound = UnixDatagram::bind(&path).and_then(|socket| {
            socket.set_read_timeout(Some(DEADLINE))?;
            Ok(socket)
        });
        match bound {
            Ok(socket) => Self { socket, path },
            Err(error) => panic!("cannot bind {}: {error}", path.display()),
        }
    }

    fn receive(&self) -> String {
        let mut bytes = [0; 4096];
        match self.socket.recv(&mut bytes) {
            Ok(count) => String::from_utf8_lossy(&bytes[..count]).into_owned(),
            Err(error) => panic!("no notification came: {error}"),
        }
    }

    fn has_message(&self) -> bool {
        let received = self.socket.set_nonblocking(true).and_then(|()| self.socket.recv(&mut [0; 1]));
        self.socket.set_nonblocking(false).is_ok() && received.is_ok()
    }
}

/// A line of `gantry status`.
fn status_line(g: &Gantry, pod: &str, key: &str) -> Option<String> {
    let status = g.run(&["status", pod]).ok().stdout;
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned))
}

#[test]
fn an_app_reports_its_readiness() {
    let g = Gantry::new();
    let image = g.fixture();
    let script = ["--", "seq", "notify", "STATUS=loading", "--", "wait-file", "/go", "--", "notify"];
    let rest = ["READY=1\nSTATUS=up\nMAINPID=1", "READY=1", "--", "sleep", "1000"];
    let pod =
        pod_id(&g.run(&[&["run", "-d", "--sdnotify=app", &image, "--name=web"], &script[..], &rest[..]].concat()).ok());
    wait_for("the status text", || status_line(&g, &pod, "status-web").filter(|text| text == "loading"));
    assert_eq!(status_line(&g, &pod, "ready-web").as_deref(), Some("false"));
    let json = g.run(&["status", "-o", "json", &pod]).ok().json();
    assert_eq!(app(&json, "web")["readiness"], "starting");
    let late = g.run(&["wait", "--condition=ready", "--time=100ms", &pod]);
    assert_ne!(late.code, 0, "{late}");
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/go"]).succeeded();
    assert_eq!(g.run(&["wait", "--condition=ready", &pod]).ok().text(), "-1");
    assert_eq!(status_line(&g, &pod, "ready-web").as_deref(), Some("true"));
    assert_eq!(status_line(&g, &pod, "status-web").as_deref(), Some("up"));
    let json = g.run(&["status", "-o", "json", &pod]).ok().json();
    assert_eq!(app(&json, "web")["readiness"], "ready");
    // Once, however often the app sends it and the pod is read.
    let events = g.run(&["events", "--since=1h", "--filter=type=app-ready"]).ok().stdout;
    assert_eq!(events.matches("app-ready").count(), 1, "{events}");
    // Another start is not ready.
    g.run(&["exec", &pod, "--", "/bin/app", "rm", "/go"]).succeeded();
    g.run(&["restart", &format!("{pod}/web")]).succeeded();
    assert_eq!(status_line(&g, &pod, "ready-web").as_deref(), Some("false"));
    g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/go"]).succeeded();
    g.run(&["wait", "--condition=ready", &pod]).succeeded();
    let events = g.run(&["events", "--since=1h", "--filter=type=app-ready"]).ok().stdout;
    assert!(events.contains("attempt=1") && events.matches("app-ready").count() == 2, "{events}");
}

#[test]
fn running_apps_without_readiness_are_ready() {
    let g = Gantry::new();
    let pod = pod_id(&g.run(&["run", "-d", &g.fixture(), "--name=it", "--", "sleep", "1000"]).ok());
    assert_eq!(g.run(&["wait", "--condition=ready", &pod]).ok().text(), "-1");
    assert_eq!(status_line(&g, &pod, "ready-it"), None);
    let env = g.run(&["exec", &pod, "--", "/bin/app", "env"]).ok().stdout;
    assert!(!env.contains("NOTIFY_SOCKET"), "{env}");
    let _ = g.app(&["--sdnotify=maybe"], &["true"]).exits(125).stderr_contains(&["none of app, ready and none"]);
}

#[test]
fn an_app_cannot_speak_for_another() {
    let g = Gantry::new();
    let image = g.fixture();
    let line =
        ["run", "-d", "--cap-add=SYS_PTRACE", &image, "--name=a", "--sdnotify=app", "--", "sleep", "1000", "---"];
    let pod = pod_id(&g.run(&[&line[..], &[&image, "--name=b", "--", "sleep", "1000"]].concat()).ok());
    let json = g.run(&["status", "-o", "json", &pod]).ok().json();
    // The path through /proc leads to the other app's socket; its supervisor knows the sender's cgroup.
    let pids = g.run(&["exec", "--app=b", &pod, "--", "/bin/app", "pids"]).ok().stdout;
    assert_eq!(app(&json, "a")["readiness"], "starting");
    let sent: Vec<i32> = (2..9)
        .map(|pid| {
            let socket = format!("NOTIFY_SOCKET=/proc/{pid}/root/dev/gantry/notify");
            let send = ["exec", "--app=b", "--env", &socket, &pod, "--", "/bin/app", "notify", "READY=1"];
            g.run(&send).code
        })
        .collect();
    assert!(sent.contains(&0), "no process of the other app was found: {sent:?} {pids}");
    assert_eq!(status_line(&g, &pod, "ready-a").as_deref(), Some("false"));
    // The directory is read-only, so that the app can neither replace its socket nor fill the supervisor's memory.
    let write = g.run(&["exec", "--app=a", &pod, "--", "/bin/app", "write", "/dev/gantry/x", "x"]);
    let _ = write.exits(1).stderr_contains(&["Read-only"]);
    g.run(&["exec", "--app=a", "--env=NOTIFY_SOCKET=/dev/gantry/notify", &pod, "--", "/bin/app", "notify", "READY=1"])
        .succeeded();
    g.run(&["wait", "--condition=ready", &pod]).succeeded();
}

#[test]
fn foreground_pods_are_reported_to_the_service_manager() {
    let g = Gantry::new();
    let image = g.fixture();
    for (flag, messages) in [
        ("--sdnotify=ready", vec!["READY=1\nMAINPID=PID"]),
        ("--sdnotify=app", vec!["STATUS=up", "READY=1\nMAINPID=PID", "WATCHDOG=1", "STOPPING=1"]),
    ] {
        let manager = Manager::new(&g);
        let verbs = ["--", "seq", "env", "--", "notify", "STATUS=up\nREADY=1", "WATCHDOG=1", "STOPPING=1\nX=1", "--"];
        let notify = flag.ends_with("app");
        let verbs = if notify { &verbs[..] } else { &verbs[..1] };
        let line = [&["run", "--rm", flag, &image][..], verbs, &["sleep", "1000"]].concat();
        let mut command = g.command(&line);
        command.env("NOTIFY_SOCKET", &manager.path).env("WATCHDOG_USEC", "5000000");
        let mut run = g.spawn_command(&mut command);
        for message in messages {
            let got = manager.receive();
            // The command's own process is the main process.
            assert_eq!(got, message.replace("=PID", &format!("={}", run.pid())), "{flag}");
        }
        assert!(!manager.has_message(), "{flag}");
        if notify {
            run.wait_for_stdout("WATCHDOG_USEC=5000000");
        }
        // As systemd stops a unit with KillMode=mixed.
        run.signal(Signal::TERM);
        let _ = run.wait().exits(143);
        std::fs::remove_file(&manager.path).unwrap();
    }
    let manager = Manager::new(&g);
    let mut command = g.command(&["run", "--rm", "--sdnotify=none", &image, "true"]);
    g.spawn_command(command.env("NOTIFY_SOCKET", &manager.path)).wait().succeeded();
    assert!(!manager.has_message());
}

#[test]
fn a_detached_pod_is_reported_with_its_supervisor() {
    let g = Gantry::new();
    let manager = Manager::new(&g);
    let image = g.fixture();
    let verbs = ["--", "seq", "wait-file", "/go", "--", "notify", "READY=1", "--", "sleep", "1000"];
    let mut command = g.command(&[&["run", "-d", "--sdnotify=app", &image, "--name=web"], &verbs[..]].concat());
    let run = g.spawn_command(command.env("NOTIFY_SOCKET", &manager.path));
    let pod = wait_for("the pod", || g.list().first().and_then(|pod| Some(pod["id"].as_str()?.to_owned())));
    wait_for("the app", || g.run(&["exec", &pod, "--", "/bin/app", "touch-ready", "/go"]).code.eq(&0).then_some(()));
    let out = run.wait().ok();
    let status = g.run(&["status", "-o", "json", out.text()]).ok().json();
    assert_eq!(manager.receive(), format!("MAINPID={}\nREADY=1", status["pid"]));
}

/// A service that runs until systemd stops it.
const SERVICE: &str = "[Service]\nExecStart=/bin/sleep 1000\n";

#[test]
fn systemd_runs_in_a_pod() {
    let g = Gantry::new();
    let image = g.import("systemd", &systemd_image(&[("work.service", SERVICE)]));
    let pod = pod_id(&g.run(&["run", "-d", "--name=host", "--sdnotify=app", &image]).ok());
    // systemd sends READY=1 when it has started its default target.
    g.run(&["wait", "--condition=ready", &pod]).succeeded();
    let exec = |line: &[&str]| g.run(&[&["exec", &pod, "--"], line].concat());
    let state = wait_for("the end of systemd's start", || {
        let state = exec(&["systemctl", "is-system-running"]).text().to_owned();
        (state != "starting" && state != "initializing").then_some(state)
    });
    assert_eq!(state, "running", "{}", exec(&["systemctl", "list-units", "--failed", "--no-pager"]));
    assert_eq!(exec(&["systemctl", "is-active", "multi-user.target"]).ok().text(), "active");
    assert_eq!(exec(&["systemctl", "is-active", "work.service"]).ok().text(), "active");
    assert_eq!(exec(&["cat", "/proc/1/comm"]).ok().text(), "systemd");
    assert_eq!(exec(&["cat", "/etc/machine-id"]).ok().text(), pod.replace('-', ""));
    let slice = "/sys/fs/cgroup/system.slice/work.service/cgroup.procs";
    assert!(!exec(&["cat", slice]).ok().text().is_empty());
    // The limits of the app are outside of its cgroup namespace.
    assert!(exec(&["cat", "/sys/fs/cgroup/cgroup.procs"]).ok().text().is_empty());
    let write = exec(&["sh", "-c", "echo 1 >/proc/sysrq-trigger"]);
    assert_ne!(write.code, 0, "{write}");
    assert_eq!(exec(&["cat", "/proc/kallsyms"]).ok().text(), "");
    // A restart makes another PID namespace, with an empty cgroup.
    g.run(&["restart", &format!("{pod}/host")]).succeeded();
    g.run(&["wait", "--condition=ready", &pod]).succeeded();
    assert_eq!(exec(&["systemctl", "is-active", "work.service"]).ok().text(), "active");
    // SIGRTMIN+3: systemd stops its units and halts.
    g.run(&["stop", "--time=30", &pod]).succeeded();
    let json = g.run(&["status", "-o", "json", &pod]).ok().json();
    assert_eq!((&json["exit_code"], &app(&json, "host")["signal"]), (&0.into(), &serde_json::Value::Null), "{json}");
}

#[test]
fn the_program_decides_over_systemd_mode() {
    let g = Gantry::new();
    let image = g.fixture();
    let first = |flags: &[&str], image: &str| {
        let pids = g.run(&[&["run", "--rm"], flags, &[image, "--", "pids"]].concat()).ok().stdout;
        pids.lines().next().map(str::to_owned).unwrap_or_default()
    };
    assert!(first(&[], &image).contains("gantry-init"));
    assert_eq!(first(&["--systemd=always"], &image), "1 0 R app");
    let mounts = g.app(&["--systemd=always"], &["mounts"]).ok().stdout;
    for target in [" /run ", " /run/lock ", " /tmp ", " /sys/fs/cgroup "] {
        assert!(mounts.contains(target), "{target}: {mounts}");
    }
    let _ = g.app(&["--systemd=always", "--user=1000"], &["true"]).exits(125).stderr_contains(&["must run as root"]);
    let _ = g.app(&["--systemd=maybe"], &["true"]).exits(125).stderr_contains(&["none of auto, always and false"]);
    // The capabilities that made the namespaces are gone.
    let caps = |flags: &[&str]| {
        let caps = g.app(flags, &["caps"]).ok().stdout;
        caps.lines().filter(|line| line.starts_with("Cap")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(caps(&["--systemd=always"]), caps(&[]));
    // Its output, its exit code and its end are those of any app.
    let _ = g.app(&["--systemd=always"], &["exit", "7"]).exits(7);
    // The kernel drops signals of PID 1 to itself.
    let _ = g.app(&["--systemd=always"], &["raise", "KILL"]).exits(1).stderr_contains(&["still alive"]);
    let _ = g.app(&["--systemd=always"], &["nothing-of-this-name"]).exits(2);
    let _ = g.run(&["run", "--rm", "--systemd=always", &image, "--exec=/nothing"]).exits(127);
}

#[test]
fn apps_in_systemd_mode_end_with_their_supervisor() {
    let g = Gantry::new();
    let pod = pod_id(&g.run(&["run", "-d", "--systemd=always", &g.fixture(), "--name=it", "--", "sleep", "1000"]).ok());
    let json = g.run(&["status", "-o", "json", &pod]).ok().json();
    let pid = app(&json, "it")["pid"].as_u64().unwrap();
    let supervisor = i32::try_from(json["pid"].as_i64().unwrap()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    let path = format!("/proc/{pid}");
    wait_for("the end of the app", || (!std::path::Path::new(&path).exists()).then_some(()));
}

/// The words of a line of `ExecStart=` and the like, as systemd splits them, and standard input.
fn service_command(unit: &str, runtime_dir: &str) -> (Vec<String>, String) {
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap_or_default();
    let line = line.replace("%t", runtime_dir).replace("%%", "%").replace("$$", "$");
    let words = line.split(' ').map(str::to_owned).collect();
    let input = unit.lines().filter_map(|line| line.strip_prefix("StandardInputText="));
    let input: String = input.map(|line| line.replace("%%", "%").replace("\\\\", "\\") + "\n").collect();
    (words, input)
}

/// Lets systemd check a unit.
#[track_caller]
fn verify(path: &std::path::Path) {
    let verified = std::process::Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output();
    match verified {
        Ok(output) => assert!(output.status.success() && output.stderr.is_empty(), "{}: {output:?}", path.display()),
        Err(error) => panic!("cannot execute systemd-analyze: {error}; ./dev setup tests installs it"),
    }
}

#[test]
fn generated_services_run_pods_like_the_original() {
    let g = Gantry::new();
    let image = g.fixture();
    let env = "--env=TEXT=50% of \"$HOME\" \\ end";
    let line = ["run", "-d", "--pod-name=shop", &image, "--name=web", "--memory=64Mi", env, "--", "sleep", "1000"];
    let pod = pod_id(&g.run(&line).ok());
    let manifest = g.run(&["cat-manifest", &pod]).ok().json();
    let dir = g.scratch();
    let made = g.run(&["generate", "systemd", "shop", "--files", dir.to_str().unwrap(), "--restart-policy=always"]);
    let path = dir.join("shop.service");
    assert_eq!(made.ok().text(), path.display().to_string());
    verify(&path);
    let unit = std::fs::read_to_string(&path).unwrap();
    assert!(unit.contains("\nRestart=always\n") && unit.contains("\nType=notify\n"), "{unit}");
    assert_eq!(g.run(&["generate", "systemd", &pod, "--name=other"]).ok().stdout.matches("other").count(), 5);
    g.run(&["rm", "--force", &pod]).succeeded();
    let (words, input) = service_command(&unit, dir.to_str().unwrap());
    let manager = Manager::new(&g);
    let file = dir.join("input");
    std::fs::write(&file, input).unwrap();
    let mut command = std::process::Command::new(&words[0]);
    // The data directory and the configuration come from the unit.
    command.args(&words[1..]).env("NOTIFY_SOCKET", &manager.path);
    let run = g.spawn_with(&mut command, std::fs::File::open(&file).unwrap().into());
    assert_eq!(manager.receive(), format!("READY=1\nMAINPID={}", run.pid()));
    let again = g.run(&["cat-manifest", "shop"]).ok().json();
    assert_eq!(again["apps"], manifest["apps"]);
    run.signal(Signal::TERM);
    let _ = run.wait().exits(143);
    assert!(g.list().is_empty());
    let terminal = pod_id(&g.run(&["prepare", "-t", &image, "true"]).ok());
    let _ = g.run(&["generate", "systemd", &terminal]).exits(125).stderr_contains(&["a service does not have"]);
}

#[test]
fn pod_files_become_services() {
    let g = Gantry::new();
    let image = g.fixture();
    let (files, out) = (g.scratch().join("pods"), g.scratch().join("out"));
    std::fs::create_dir_all(&files).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    let text = format!(
        "[Pod]\nNetwork=none\n[App web]\nImage={image}\nMemory=64Mi\nArgs=args one\n\
         [App other]\nImage={image}\nArgs=true\n[Service]\nRestartSec=3\n[Install]\nWantedBy=multi-user.target\n"
    );
    std::fs::write(files.join("shop.pod"), text).unwrap();
    std::fs::write(files.join("bad.pod"), format!("[App a]\nImage={image}\nMemroy=1Gi\n")).unwrap();
    let generate = ["generate", "units", files.to_str().unwrap(), out.to_str().unwrap()];
    let _ = g.run(&generate).exits(125).stderr_contains(&["bad.pod:3: [App NAME] has no key Memroy=", "Memory=?"]);
    let path = out.join("shop.service");
    verify(&path);
    let unit = std::fs::read_to_string(&path).unwrap();
    assert!(unit.contains("\nRestartSec=3\n") && unit.contains("SourcePath="), "{unit}");
    let link = std::fs::read_link(out.join("multi-user.target.wants/shop.service")).unwrap();
    assert_eq!(link, PathBuf::from("../shop.service"));
    assert!(!out.join("bad.service").exists());
    let (words, _) = service_command(&unit, g.scratch().to_str().unwrap());
    let mut command = std::process::Command::new(&words[0]);
    let run = g.spawn_command(command.args(&words[1..])).wait().ok();
    assert!(run.stdout.contains("[web] [\"one\"]"), "{run}");
    // Without a directory of pod files, there is nothing to do.
    g.run(&["generate", "units", "/nonexistent/pods", out.to_str().unwrap()]).succeeded();
}
