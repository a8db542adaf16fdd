//! An app cannot change programs of the host through the `/proc/PID/exe` of any process in its pod (CVE-2019-5736).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gantry_fixtures::{Image, Layer};
use gantry_tests::{Gantry, Out, Running, Signal, pod_id, wait_for};
use rustix::process::{Pid, kill_process};

/// All properties of a file that an app with root's rights could change.
#[derive(Debug, PartialEq, Eq)]
struct FileState {
    is_original: bool,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    modified: (i64, i64),
    links: u64,
    attributes: BTreeMap<String, Vec<u8>>,
}

impl FileState {
    fn of(path: &Path, original: &[u8]) -> Self {
        let meta = must("stat the program", std::fs::metadata(path));
        let mut names = vec![0; 4096];
        let length = must("list its attributes", rustix::fs::listxattr(path, &mut names));
        let names = names[..length].split(|&c| c == 0).filter(|name| !name.is_empty());
        let attribute = |name: &[u8]| {
            let name = String::from_utf8_lossy(name).into_owned();
            let mut value = vec![0; 4096];
            let length = must("read an attribute", rustix::fs::getxattr(path, name.as_str(), &mut value));
            (name, value[..length].to_vec())
        };
        Self {
            is_original: must("read it", std::fs::read(path)) == original,
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            links: meta.nlink(),
            attributes: names.map(attribute).collect(),
        }
    }
}

#[track_caller]
fn must<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("cannot {what}: {error}"),
    }
}

/// A gantry whose supervisor's program is a copy that apps may attack, and an image with links that execute it.
struct Target {
    g: Gantry,
    program: PathBuf,
    original: Vec<u8>,
    before: FileState,
    image: String,
}

/// Permits the attacker to open the programs of other processes.
const TRACE: &str = "--cap-add=CAP_SYS_PTRACE";

impl Target {
    fn new() -> Self {
        let g = Gantry::new();
        let layer = Layer::new()
            .dir("bin", 0o755)
            .file("bin/app", g.app_bytes(), 0o755)
            .symlink("bin/link", "/proc/self/exe")
            .file("bin/script", b"#!/proc/self/exe\n", 0o755);
        let image = must("build the image", Image::builder().layer(layer).entrypoint(&["/bin/app"]).build());
        let image = g.import("image", &image);
        let program = g.own_supervisor();
        let original = must("read the program", std::fs::read(&program));
        let before = FileState::of(&program, &original);
        Self { g, program, original, before, image }
    }

    fn start(&self, args: &[&str], stdin: bool) -> Running {
        let mut command = self.g.command(args);
        command.env("GANTRY_STAGE1", &self.program);
        if stdin { self.g.spawn_command_with_stdin(&mut command) } else { self.g.spawn_command(&mut command) }
    }

    fn run(&self, args: &[&str]) -> Out {
        self.start(args, false).wait()
    }

    /// A pod in the background with one app.
    fn pod(&self, flags: &[&str], verb: &[&str]) -> String {
        let line = [&["run", "--detach", "--net=none"], flags, &[self.image.as_str(), "--"], verb].concat();
        pod_id(&self.run(&line).ok())
    }

    /// A pod whose app executes gantry-stage1 and reads its standard input, which stays open.
    fn becomes_the_program(&self) -> String {
        let line = ["run", "--detach", "-i", "--net=none", &self.image, "--exec=/bin/link", "--", "network"];
        pod_id(&self.run(&line).ok())
    }

    #[track_caller]
    fn assert_unchanged(&self, after: &str) {
        let state = FileState::of(&self.program, &self.original);
        assert_eq!(state, self.before, "an app changed gantry-stage1 on the host: {after}");
    }

    /// The attacker's log after all its attempts; all must have failed.
    #[track_caller]
    fn assert_all_failed(&self, pod: &str, how: &str) {
        let log = self.g.wait_log(pod, "tried everything");
        self.assert_unchanged(&format!("{how}\n{log}"));
        assert!(!log.contains("allowed"), "{how}: {log}");
    }

    fn app_name(&self, pod: &str) -> String {
        let status = self.g.status(pod);
        status["apps"][0]["name"].as_str().unwrap_or_default().to_owned()
    }

    fn end(&self, pod: &str) {
        // The process may have exited by itself.
        let _ = self.g.run(&["kill", pod]);
        let _ = self.g.wait_state(pod, "exited");
        self.assert_unchanged("after the end of its pod");
    }
}

#[test]
fn the_program_of_pid_1_cannot_be_overwritten() {
    let t = Target::new();
    let pod = t.pod(&[TRACE], &["change-program", "1"]);
    t.assert_all_failed(&pod, "PID 1");
    let denied = t.run(&["run", "--rm", "--net=none", &t.image, "--", "change-program", "1"]);
    let _ = denied.exits(1).stderr_contains(&["cannot be opened"]);
    let plugin = t.run(&["network", "list"]).ok();
    t.assert_unchanged(&format!("gantry-stage1 network: {plugin}"));
}

/// With the default capabilities: the app itself executes gantry-stage1, and waits for its standard input.
#[test]
fn an_app_executing_gantry_stage1_cannot_overwrite_it() {
    let t = Target::new();
    let pod = t.becomes_the_program();
    let mut attacker = t.start(&["exec", &pod, "--", "/bin/app", "change-program", "any"], false);
    let said = attacker.wait_for_stdout("tried everything");
    t.assert_unchanged(&said);
    assert!(!said.contains("allowed"), "{said}");
    t.end(&pod);
}

/// A program executed in the app exits at once, so the attacker has to catch it.
#[test]
fn an_exec_of_gantry_stage1_cannot_be_exploited() {
    let t = Target::new();
    let pod = t.pod(&[], &["change-program", "any"]);
    for _ in 0..30 {
        let _ = t.run(&["exec", &pod, "--", "/bin/script", "network"]);
    }
    let log = t.g.run(&["logs", &pod]).ok();
    assert!(!log.stdout.contains("allowed"), "{log}");
    t.end(&pod);
}

/// Forks of the supervisor that have not executed their program yet; an app with CAP_SYS_PTRACE may inspect them.
#[test]
fn forked_children_cannot_be_exploited_before_execve() {
    let t = Target::new();
    let pod = t.pod(&[TRACE], &["change-program", "any"]);
    t.assert_all_failed(&pod, "PID 1 or a process of exec");
    for _ in 0..20 {
        let _ = t.run(&["exec", &pod, "--", "/bin/app", "true"]);
    }
    t.assert_unchanged("exec");
}

/// While the processes of a pod exit, there is a moment in which none executes the file any more and apps still run.
/// The attacker waits for that moment with a descriptor that it opened before.
#[test]
fn a_killed_supervisor_opens_no_overwrite_window() {
    let t = Target::new();
    for round in 0..50 {
        let by_trace = round % 2 == 0;
        let (pod, _attacker) = if by_trace {
            let pod = t.pod(&[TRACE], &["change-program", "1", "overwrite"]);
            t.g.wait_log(&pod, "opened a foreign program");
            (pod, None)
        } else {
            let pod = t.becomes_the_program();
            let line = ["exec", &pod, "--", "/bin/app", "change-program", "any", "overwrite"];
            let mut attacker = t.start(&line, false);
            attacker.wait_for_stdout("opened a foreign program");
            (pod, Some(attacker))
        };
        let app = t.g.app_pid(&pod, &t.app_name(&pod));
        let supervisor = Pid::from_raw(i32::try_from(t.g.supervisor(&pod)).unwrap()).unwrap();
        kill_process(supervisor, Signal::KILL).unwrap();
        wait_for("the app to be dead", || is_dead(app).then_some(()));
        t.assert_unchanged(&format!("round {round}, with the right to trace: {by_trace}"));
        t.g.run(&["rm", &pod]).succeeded();
    }
}

/// Whether a process has exited; it may be a zombie.
fn is_dead(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("State:")).is_none_or(|state| state.trim().starts_with(['Z', 'X']))
}
