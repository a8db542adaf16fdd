//! A gantry with a data directory of its own.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::binaries::binaries;
use crate::net::{NetworkNamespace, Space};
use crate::output::Out;
use crate::running::Running;
use crate::wait::{DEADLINE, wait_for, within};

/// The timeout of one command during clean-up after a failed test.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A gantry with a fresh `--dir`. Dropping it removes its pods and checks the invariants.
#[derive(Debug)]
pub struct Gantry {
    home: TempDir,
    fixture: OnceCell<String>,
    pods: RefCell<BTreeSet<String>>,
    space: Option<InSpace>,
}

/// The network space in which a gantry with networks runs.
#[derive(Debug)]
struct InSpace {
    space: Space,
    /// The interfaces that existed before the gantry.
    before: BTreeSet<String>,
}

impl Gantry {
    /// A gantry with an empty data directory.
    ///
    /// # Panics
    /// Without root, or without a directory for temporary files.
    #[must_use]
    #[track_caller]
    #[expect(clippy::new_without_default, reason = "it makes directories; a default should not")]
    pub fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "these tests run containers: run them as root");
        let home = match tempfile::Builder::new().prefix("gantry-test-").tempdir() {
            Ok(home) => home,
            Err(error) => panic!("cannot make a temporary directory: {error}"),
        };
        let made = Self { home, fixture: OnceCell::new(), pods: RefCell::default(), space: None };
        // Tests never set up networks in the machine's own network namespace.
        made.write_config("[network]\ndefault = \"none\"\n");
        made
    }

    /// A gantry on the host of this space, with the built-in networks and the ones that [`Self::conflist`] writes.
    /// Drop it before the space.
    ///
    /// # Panics
    /// As [`Self::new`].
    #[must_use]
    #[track_caller]
    pub fn in_space(space: &Space) -> Self {
        let mut made = Self::new();
        made.space = Some(InSpace { space: space.clone(), before: space.host().links() });
        made.networks("");
        made
    }

    /// Replaces the network configuration of a gantry in a space, with these lines in the section `[network]`.
    #[track_caller]
    pub fn networks(&self, lines: &str) {
        let home = self.home.path().display();
        let dirs = format!("config-dirs = [\"{home}/net.d\"]\n");
        let plugins = if lines.contains("plugin-dirs") { "" } else { "plugin-dirs = [\"/usr/lib/cni\"]\n" };
        self.write_config(&format!("[network]\n{dirs}{plugins}{lines}\n"));
    }

    /// Writes a network configuration list for a gantry in a space.
    #[track_caller]
    pub fn conflist(&self, name: &str, plugins: &Value) {
        let list = serde_json::json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins });
        self.net_file(&format!("{name}.conflist"), &list.to_string());
    }

    /// Writes a file into the directory of network configurations.
    #[track_caller]
    pub fn net_file(&self, name: &str, text: &str) {
        let dir = self.home.path().join("net.d");
        if let Err(error) = std::fs::create_dir_all(&dir).and_then(|()| std::fs::write(dir.join(name), text)) {
            panic!("cannot write {name} to {}: {error}", dir.display());
        }
    }

    #[track_caller]
    fn write_config(&self, text: &str) {
        let path = self.config();
        if let Err(error) = std::fs::write(&path, text) {
            panic!("cannot write {}: {error}", path.display());
        }
    }

    /// Appends lines to the configuration, such as a new section.
    ///
    /// # Panics
    /// When the file cannot be written.
    #[track_caller]
    pub fn configure(&self, lines: &str) {
        let text = std::fs::read_to_string(self.config()).unwrap_or_default();
        self.write_config(&format!("{text}\n{lines}\n"));
    }

    fn config(&self) -> PathBuf {
        self.home.path().join("config.toml")
    }

    /// The data directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.home.path().join("data")
    }

    /// A directory for the test's own files, deleted with this gantry.
    #[must_use]
    #[track_caller]
    pub fn scratch(&self) -> PathBuf {
        let path = self.home.path().join("scratch");
        if let Err(error) = std::fs::create_dir_all(&path) {
            panic!("cannot make {}: {error}", path.display());
        }
        path
    }

    /// The command `gantry --dir DIR ARGS`, not started yet. Makes DIR, because commands that only read do not.
    ///
    /// # Panics
    /// When the directory cannot be made.
    #[must_use]
    #[track_caller]
    pub fn command(&self, args: &[&str]) -> Command {
        let dir = self.dir();
        if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
            panic!("cannot make {}: {error}", dir.display());
        }
        self.program(&binaries().gantry, args)
    }

    /// The fixture app, to be run on the host.
    #[must_use]
    pub fn app_program(&self) -> &'static Path {
        &binaries().app_program
    }

    /// A copy of the supervisor's program in the scratch directory, for `GANTRY_STAGE1`: a test may let apps attack
    /// the copy.
    #[must_use]
    #[track_caller]
    pub fn own_supervisor(&self) -> PathBuf {
        let path = self.scratch().join("gantry-stage1");
        if let Err(error) = std::fs::copy(&binaries().stage1, &path) {
            panic!("cannot copy {} to {}: {error}", binaries().stage1.display(), path.display());
        }
        path
    }

    /// The node daemon `gantryd --dir DIR ARGS`, not started yet. It must end before the invariants are checked,
    /// because it keeps the directory open. Unless the arguments name listen addresses, it serves rkt's API
    /// on [`Self::api_socket`] alone, so tests never collide.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self, args: &[&str]) -> Command {
        let mut command = self.program(&binaries().gantryd, args);
        command.arg("--run-dir").arg(self.scratch());
        if !args.contains(&"--listen") && !args.iter().any(|arg| arg.starts_with("--listen=")) {
            command.arg(format!("--listen=unix:{}", self.api_socket().display()));
        }
        for listen in ["--machine-listen", "--aurae-listen", "--cri-listen"] {
            if !args.contains(&listen) {
                command.arg(format!("{listen}=none"));
            }
        }
        command
    }

    /// Starts a node daemon and waits until it manages the directory.
    #[track_caller]
    #[must_use]
    pub fn start_daemon(&self, args: &[&str]) -> Running {
        let mut daemon = self.spawn_command(&mut self.daemon(args));
        daemon.wait_for_stderr("info: reconciling the pods of");
        daemon
    }

    /// The socket on which the node daemon listens.
    #[must_use]
    #[track_caller]
    pub fn api_socket(&self) -> PathBuf {
        self.scratch().join("api.sock")
    }

    fn program(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = match &self.space {
            Some(InSpace { space, .. }) => space.host().command(&program.display().to_string()),
            None => Command::new(program),
        };
        command.arg("--dir").arg(self.dir()).args(args);
        // The machine's own configuration must not affect the tests.
        command.env("NO_COLOR", "1").env("HOME", self.home.path()).env("TMPDIR", self.home.path());
        command.env("GANTRY_CONFIG", self.config());
        command
            .env_remove("NOTIFY_SOCKET")
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("DOCKER_CONFIG")
            .env_remove("REGISTRY_AUTH_FILE");
        command.current_dir(self.home.path());
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Out {
        self.run_within(DEADLINE, args)
    }

    /// Runs a command to its end, which must come within this time.
    #[track_caller]
    pub fn run_within(&self, time: Duration, args: &[&str]) -> Out {
        let out = Running::start(&mut self.command(args), false).wait_within(time);
        self.record_pod_ids(&out.stdout);
        out
    }

    /// Runs a command with this standard input.
    #[track_caller]
    pub fn run_with_input(&self, args: &[&str], input: &[u8]) -> Out {
        let file = self.scratch().join("stdin");
        let opened = std::fs::write(&file, input).and_then(|()| std::fs::File::open(&file));
        let input = match opened {
            Ok(file) => file,
            Err(error) => panic!("cannot write {}: {error}", file.display()),
        };
        let out = Running::start_with(&mut self.command(args), input.into()).wait();
        self.record_pod_ids(&out.stdout);
        out
    }

    /// Starts a command and leaves it running.
    #[track_caller]
    #[must_use]
    pub fn spawn(&self, args: &[&str]) -> Running {
        // A shell that runs the tests in the background ignores SIGINT and SIGHUP, and children inherit ignored
        // signals.
        let plain = self.command(args);
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(plain.get_program()).args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        for (name, _) in plain.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        command.current_dir(plain.get_current_dir().unwrap_or(self.home()));
        Running::start(&mut command, false)
    }

    /// Starts a prepared command and leaves it running.
    #[track_caller]
    #[must_use]
    pub fn spawn_command(&self, command: &mut Command) -> Running {
        Running::start(command, false)
    }

    /// Starts a prepared command with this standard input.
    #[track_caller]
    #[must_use]
    pub fn spawn_with(&self, command: &mut Command, stdin: Stdio) -> Running {
        Running::start_with(command, stdin)
    }

    /// Starts a command with a pipe as standard input.
    #[track_caller]
    #[must_use]
    pub fn spawn_with_stdin(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args), true)
    }

    /// Starts a prepared command with a pipe as standard input.
    #[track_caller]
    #[must_use]
    pub fn spawn_command_with_stdin(&self, command: &mut Command) -> Running {
        Running::start(command, true)
    }

    /// Runs a command with `-o json` that must succeed.
    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        self.run(&[args, &["-o", "json"]].concat()).ok().json()
    }

    /// Imports the standard image, once, and returns its id (`sha256:…`).
    #[track_caller]
    pub fn fixture(&self) -> String {
        self.fixture
            .get_or_init(|| {
                let dir = self.scratch().join("standard");
                let image = match gantry_fixtures::write_standard(&dir, &binaries().app) {
                    Ok(image) => image,
                    Err(error) => panic!("cannot write the standard image to {}: {error}", dir.display()),
                };
                let reference = format!("oci:{}", dir.join("layout").display());
                let id = image_id(&self.run(&["fetch", &reference]).ok());
                assert_eq!(id, image.id(), "the image has another id than its manifest's digest");
                id
            })
            .clone()
    }

    /// The fixture app's bytes, for custom images.
    #[must_use]
    pub fn app_bytes(&self) -> &'static [u8] {
        &binaries().app
    }

    /// Writes an image as a layout below the scratch directory and imports it; returns its id.
    #[track_caller]
    pub fn import(&self, name: &str, image: &gantry_fixtures::Image) -> String {
        image_id(&self.run(&["fetch", &self.layout(name, image)]).ok())
    }

    /// Writes an image as a layout below the scratch directory; returns the reference to it.
    #[track_caller]
    pub fn layout(&self, name: &str, image: &gantry_fixtures::Image) -> String {
        let dir = self.scratch().join(name);
        if let Err(error) = gantry_fixtures::write_layout(&dir, &[(image, "latest")]) {
            panic!("cannot write {}: {error}", dir.display());
        }
        format!("oci:{}", dir.display())
    }

    /// Runs the standard image in the foreground: `gantry run --net=none --quiet FLAGS IMAGE -- VERB`.
    #[track_caller]
    pub fn app(&self, flags: &[&str], verb: &[&str]) -> Out {
        let image = self.fixture();
        self.run(&run_line("--quiet", &image, flags, verb))
    }

    /// Starts the standard image in the background and returns the pod's id.
    #[track_caller]
    pub fn detached(&self, flags: &[&str], verb: &[&str]) -> String {
        let image = self.fixture();
        pod_id(&self.run(&run_line("--detach", &image, flags, verb)).ok())
    }

    /// The pod's `status -o json`.
    #[track_caller]
    pub fn status(&self, pod: &str) -> Value {
        self.json(&["status", pod])
    }

    /// Waits until the pod is in this state, and returns its status.
    #[track_caller]
    pub fn wait_state(&self, pod: &str, state: &str) -> Value {
        wait_for(&format!("pod {pod} to be {state}"), || {
            Some(self.status(pod)).filter(|status| status["phase"] == state)
        })
    }

    /// Starts the standard image in the background with networks, as the flags say, and returns the pod's id.
    #[track_caller]
    pub fn networked(&self, flags: &[&str], verb: &[&str]) -> String {
        let image = self.fixture();
        pod_id(&self.run(&[&["run", "--detach", image.as_str()], flags, &["--"], verb].concat()).ok())
    }

    /// Starts a pod with networks that runs `serve-echo` on this port, and waits until the server replies.
    #[track_caller]
    pub fn server(&self, flags: &[&str], port: &str) -> String {
        let pod = self.networked(flags, &["serve-echo", port]);
        self.wait_log(&pod, "listening");
        pod
    }

    /// Runs the standard image in the foreground with networks, as the flags say.
    #[track_caller]
    pub fn client(&self, flags: &[&str], verb: &[&str]) -> Out {
        let image = self.fixture();
        self.run(&[&["run", "--quiet", image.as_str()], flags, &["--"], verb].concat())
    }

    /// The network namespace of a running pod.
    #[track_caller]
    #[must_use]
    pub fn network_namespace(&self, pod: &str) -> NetworkNamespace {
        let status = self.status(pod);
        NetworkNamespace::of_process(number(&status["apps"][0]["pid"], "pid of the first app"))
    }

    /// The pod's network attachments in `status -o json`, one for each network.
    #[track_caller]
    #[must_use]
    pub fn network_status(&self, pod: &str) -> Vec<Value> {
        let status = self.status(pod);
        match status["networks"].as_array() {
            Some(networks) => networks.clone(),
            None => panic!("no networks in {status}"),
        }
    }

    /// The pod's first IPv4 address.
    #[track_caller]
    #[must_use]
    pub fn ip4(&self, pod: &str) -> String {
        self.ip(pod, false)
    }

    /// The pod's first IPv6 address.
    #[track_caller]
    #[must_use]
    pub fn ip6(&self, pod: &str) -> String {
        self.ip(pod, true)
    }

    #[track_caller]
    fn ip(&self, pod: &str, six: bool) -> String {
        let networks = self.network_status(pod);
        let all = networks.iter().flat_map(|network| network["addresses"].as_array().cloned().unwrap_or_default());
        let mut texts = all.filter_map(|address| Some(address["address"].as_str()?.to_owned()));
        match texts.find(|text| text.contains(':') == six) {
            Some(text) => text,
            None => panic!("no such address in {networks:?}"),
        }
    }

    /// Waits until the pod's log contains a text, and returns the log.
    #[track_caller]
    pub fn wait_log(&self, pod: &str, text: &str) -> String {
        wait_for(&format!("'{text}' in the log of {pod}"), || {
            Some(self.run(&["logs", pod]).ok().stdout).filter(|log| log.contains(text))
        })
    }

    /// All pods of `list -o json`.
    #[track_caller]
    pub fn list(&self) -> Vec<Value> {
        let list = self.json(&["list"]);
        match list.as_array() {
            Some(pods) => pods.clone(),
            None => panic!("list -o json is not an array: {list}"),
        }
    }

    /// The supervisor's process id of a running pod.
    #[track_caller]
    pub fn supervisor(&self, pod: &str) -> u32 {
        number(&self.status(pod)["pid"], "pid")
    }

    /// The process id of a running app in the host's PID namespace.
    #[track_caller]
    pub fn app_pid(&self, pod: &str, name: &str) -> u32 {
        number(&app(&self.status(pod), name)["pid"], "pid")
    }

    /// Waits until every pod is in a state in which it can be killed or removed: a pod that a supervisor is starting
    /// gets there by itself.
    ///
    /// # Panics
    /// When the deadline passes.
    #[track_caller]
    pub fn wait_reconciled(&self) {
        for pod in self.list() {
            let id = pod["id"].as_str().unwrap_or_default();
            wait_for("the pod to be something", || {
                let phase = self.status(id)["phase"].clone();
                ["aborted-prepare", "prepared", "running", "exited"].iter().any(|p| phase == *p).then_some(())
            });
        }
    }

    /// Kills and removes every pod, as a user would.
    #[track_caller]
    pub fn remove_all(&self) {
        for pod in self.list() {
            let Some(id) = pod["id"].as_str() else { panic!("a pod without an id: {pod}") };
            self.pods.borrow_mut().insert(id.to_owned());
            if pod["phase"] == "running" && pod["sandbox"] == true {
                // It does not end with its apps.
                self.run(&["stop", "--force", id]).succeeded();
            } else if pod["phase"] == "running" {
                // It may be about to end by itself.
                let killed = self.run(&["kill", id]);
                assert!(killed.code == 0 || self.status(id)["phase"] != "running", "{killed}");
                self.run(&["status", "--wait", id]).succeeded();
            }
            self.run(&["rm", id]).succeeded();
        }
    }

    /// Cleans up after a failure: removes pods without checks and with short timeouts.
    fn remove_all_forcibly(&self) {
        let names = std::fs::read_dir(self.dir().join("pods")).into_iter().flatten().flatten();
        let mut pods = self.known_pods();
        pods.extend(names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_uuid(name)));
        for pod in pods {
            let Ok(mut child) = self.command(&["rm", "--force", &pod]).stderr(Stdio::null()).spawn() else { continue };
            if within(EXIT_TIMEOUT, || child.try_wait().ok().flatten()).is_none() {
                // Both fail only if the process has exited already.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// All pods ever seen by this gantry, to find their leftovers after their rows are deleted.
    pub(crate) fn known_pods(&self) -> BTreeSet<String> {
        self.pods.borrow().clone()
    }

    /// The leftovers of finished pods in the networks of the space.
    pub(crate) fn network_leftovers(&self, over: &BTreeSet<String>) -> Vec<String> {
        let state_dir = self.dir().join("net").display().to_string();
        self.space.as_ref().map(|it| it.space.leftovers(&it.before, over, &state_dir)).unwrap_or_default()
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    /// Records every pod id in some output.
    pub(crate) fn record_pod_ids(&self, text: &str) {
        let words = text.split(|c: char| !c.is_ascii_hexdigit() && c != '-').filter(|word| is_uuid(word));
        self.pods.borrow_mut().extend(words.map(str::to_owned));
    }
}

impl Drop for Gantry {
    fn drop(&mut self) {
        let is_used = std::fs::read_dir(self.dir()).is_ok_and(|mut entries| entries.next().is_some());
        if !is_used {
            return;
        }
        if std::thread::panicking() {
            self.remove_all_forcibly();
            return;
        }
        self.remove_all();
        self.check_invariants();
    }
}

fn run_line<'a>(how: &'a str, image: &'a str, flags: &[&'a str], verb: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--net=none", how, image], flags, &["--"], verb].concat()
}

fn is_uuid(word: &str) -> bool {
    let dashes = |(i, c): (usize, u8)| matches!(i, 8 | 13 | 18 | 23) == (c == b'-');
    word.len() == 36 && word.bytes().enumerate().all(dashes)
}

/// The one image id in some output.
#[track_caller]
fn image_id(out: &Out) -> String {
    match out.stdout.split_whitespace().rev().find(|word| word.starts_with("sha256:")) {
        Some(id) => id.to_owned(),
        None => panic!("no image id in the output of {out}"),
    }
}

/// The pod id a command printed.
///
/// # Panics
/// When there is none.
#[track_caller]
#[must_use]
pub fn pod_id(out: &Out) -> String {
    match out.stdout.split_whitespace().find(|word| is_uuid(word)) {
        Some(id) => id.to_owned(),
        None => panic!("no pod id in the output of {out}"),
    }
}

/// The app of this name in a pod's status.
///
/// # Panics
/// When there is none.
#[track_caller]
#[must_use]
pub fn app(status: &Value, name: &str) -> Value {
    let apps = status["apps"].as_array();
    match apps.and_then(|apps| apps.iter().find(|app| app["name"] == name)) {
        Some(app) => app.clone(),
        None => panic!("no app {name} in {status}"),
    }
}

#[track_caller]
fn number(value: &Value, what: &str) -> u32 {
    match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
        Some(number) => number,
        None => panic!("{what} is {value}, not a process id"),
    }
}
