//! A storm: commands that change pods and their apps run side by side, and commands, supervisors and the node daemon
//! are killed at random moments. Afterwards the invariants hold, and nothing hangs.
//!
//! `GANTRY_STORM_SECONDS` is its length (20 by default), `GANTRY_STORM_SEED` repeats the choices of an earlier storm,
//! as far as timing allows.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

use gantry_tests::{DEADLINE, Gantry, Running, Signal, now_ns, wait_for};
use rustix::process::{Pid, kill_process};
use serde_json::Value;

/// Commands that run at the same time.
const PARALLEL: usize = 6;
/// Pods that exist at the same time.
const MAX_PODS: usize = 4;
const APPS: [&str; 3] = ["web", "db", "job"];

/// Random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(high).map_or(0, |high| high % end)
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// A command that runs.
struct Flight {
    command: Running,
    begin: Instant,
    /// When it is killed.
    kill_after: Option<Duration>,
    killed: bool,
}

struct Storm<'a> {
    g: &'a Gantry,
    image: String,
    random: Random,
    flights: Vec<Flight>,
    /// How often each command was started.
    counts: BTreeMap<String, usize>,
}

impl Storm<'_> {
    fn pods(&self) -> Vec<String> {
        let names = std::fs::read_dir(self.g.dir().join("pods")).into_iter().flatten().flatten();
        names.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| name.len() == 36).collect()
    }

    /// The next command.
    fn choose(&mut self) -> Vec<String> {
        let words = |line: &[&str]| line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let pods = self.pods();
        let image = self.image.clone();
        if pods.is_empty() || (pods.len() < MAX_PODS && self.random.below(8) == 0) {
            return match self.random.below(2) {
                0 => words(&["app", "sandbox", "--net=none"]),
                _ => words(&["run", "--detach", "--net=none", &image, "--name=main", "--", "obey", "SIGTERM"]),
            };
        }
        let pod = pods[self.random.below(pods.len())].clone();
        let name = self.random.pick(&APPS);
        let app = format!("{pod}/{name}");
        let flag = format!("--name={name}");
        match self.random.below(24) {
            0..=4 => {
                let verb = self.random.pick(&["obey SIGTERM", "exit 0", "exit 3", "print x", "sleep forever"]);
                let volume = self.random.pick(&["--volume=storm:/data", "--volume=/own", "--hostname-ignored"]);
                let mut line = words(&["app", "add", &pod, &image, &flag]);
                if volume.starts_with("--volume") {
                    line.push(volume.to_owned());
                }
                line.push("--".to_owned());
                line.extend(verb.split(' ').map(str::to_owned));
                line
            }
            5..=8 => words(&["app", "start", &app]),
            9 | 10 => words(&["app", "stop", &app, "--time=1"]),
            11 | 12 => words(&["restart", &app]),
            13 | 14 => words(&["app", "rm", "--force", &app]),
            15 => words(&["app", "rm", &app]),
            16 | 17 => words(&["exec", &pod, "--app", name, "--", "/bin/app", "true"]),
            18 => words(&["logs", &pod]),
            19 => words(&["list"]),
            20 => words(&["status", &pod]),
            21 => words(&["gc", "--mark-only"]),
            22 if self.random.below(3) == 0 => words(&["stop", &pod]),
            23 if self.random.below(3) == 0 => words(&["rm", "--force", &pod]),
            _ => words(&["app", "list", &pod]),
        }
    }

    fn start(&mut self) {
        let line = self.choose();
        let verb = line.iter().take_while(|word| word.chars().all(char::is_alphabetic)).take(2);
        *self.counts.entry(verb.cloned().collect::<Vec<_>>().join(" ")).or_default() += 1;
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        let command = self.g.spawn(&line);
        let is_killed = self.random.below(4) == 0;
        let kill_after = is_killed.then(|| Duration::from_micros(self.random.below(60_000) as u64));
        self.flights.push(Flight { command, begin: Instant::now(), kill_after, killed: false });
    }

    /// Kills commands whose time has come, and checks those that have ended.
    fn advance(&mut self) -> bool {
        let before = self.flights.len();
        for mut flight in std::mem::take(&mut self.flights) {
            if flight.command.has_ended() {
                let killed = flight.killed;
                let out = flight.command.wait();
                assert!(killed || out.code < 128 || out.code == 137 || out.code == 143, "it was killed: {out}");
                assert!(!out.stderr.contains("panicked") && !out.stderr.contains("internal"), "{out}");
                continue;
            }
            assert!(flight.begin.elapsed() < DEADLINE, "it hangs: {}", flight.command.stderr());
            if !flight.killed && flight.kill_after.is_some_and(|after| flight.begin.elapsed() >= after) {
                flight.command.signal(Signal::KILL);
                flight.killed = true;
            }
            self.flights.push(flight);
        }
        self.flights.len() < before
    }

    /// Kills a supervisor that runs.
    fn kill_supervisor(&mut self) {
        let running = self.g.list().into_iter().filter(|pod| pod["phase"] == "running");
        let pids: Vec<i32> = running.filter_map(|pod| i32::try_from(pod["pid"].as_i64()?).ok()).collect();
        if pids.is_empty() {
            return;
        }
        // The supervisor may have ended since: another pid is not reused that fast.
        let pid = Pid::from_raw(pids[self.random.below(pids.len())]);
        let _ended_meanwhile = pid.map(|pid| kill_process(pid, Signal::KILL));
        *self.counts.entry("(kill supervisor)".to_owned()).or_default() += 1;
    }
}

fn from_environment<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn changes_and_kills_leave_nothing_behind() {
    let length = Duration::from_secs(from_environment("GANTRY_STORM_SECONDS", 20));
    let seed = from_environment("GANTRY_STORM_SEED", u64::try_from(now_ns()).unwrap_or_default() | 1);
    println!("GANTRY_STORM_SEED={seed} GANTRY_STORM_SECONDS={}", length.as_secs());
    let g = Gantry::new();
    let image = g.fixture();
    let mut storm = Storm { g: &g, image, random: Random(seed), flights: Vec::new(), counts: BTreeMap::new() };
    let mut daemon = g.start_daemon(&[]);
    let begin = Instant::now();
    let (mut daemon_end, mut supervisor_end) = (Duration::from_secs(3), Duration::from_secs(1));
    while begin.elapsed() < length {
        while storm.flights.len() < PARALLEL {
            storm.start();
        }
        wait_for("a command to end", || storm.advance().then_some(()));
        if begin.elapsed() >= daemon_end {
            daemon.signal(Signal::KILL);
            let _ = daemon.wait();
            daemon = g.spawn_command(&mut g.daemon(&[]));
            daemon_end = begin.elapsed() + Duration::from_millis(500 + storm.random.below(4000) as u64);
            *storm.counts.entry("(kill gantryd)".to_owned()).or_default() += 1;
        }
        if begin.elapsed() >= supervisor_end {
            storm.kill_supervisor();
            supervisor_end = begin.elapsed() + Duration::from_millis(500 + storm.random.below(3000) as u64);
        }
    }
    wait_for("the last commands to end", || {
        storm.advance();
        storm.flights.is_empty().then_some(())
    });
    println!("{:?}", storm.counts);
    daemon.wait_for_stderr("info: reconciling the pods of");
    daemon.terminate();
    wait_for("every start and every add to be completed or undone", || {
        let pods = g.list();
        let phases = pods.iter().map(|pod| &pod["phase"]);
        let apps = pods.iter().filter_map(|pod| pod["apps"].as_array()).flatten().map(|app| &app["state"]);
        let is_unfinished = |state: &Value| ["embryo", "preparing", "creating"].iter().any(|name| state == name);
        (!phases.chain(apps).any(is_unfinished)).then_some(())
    });
    g.check_invariants();
    g.remove_all();
    // No app that was removed, and no pod, keeps its volume.
    if g.run(&["volume", "list", "-q"]).ok().stdout.lines().any(|name| name == "storm") {
        g.run(&["volume", "rm", "storm"]).succeeded();
    }
}
