//! The live view of `gantry top`, in tmux and on a bare terminal.

use std::path::PathBuf;
use std::process::Command;

use gantry_tests::{Gantry, Signal, Terminal, wait_for};

/// Leaves the alternate screen and shows the cursor.
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";

/// A tmux server of its own with one window.
struct Tmux {
    dir: PathBuf,
}

impl Tmux {
    /// Runs a command of gantry in a shell's window of this size; the shell stays.
    #[track_caller]
    fn start(g: &Gantry, args: &[&str], columns: u16, rows: u16) -> Self {
        let tmux = Self { dir: g.scratch() };
        let command = g.command(args);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
        let script = format!("echo before; {}; echo code=$?; exec sleep 600", line.join(" "));
        let (columns, rows) = (columns.to_string(), rows.to_string());
        tmux.run(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-s",
            "top",
            "-x",
            &columns,
            "-y",
            &rows,
            "sh",
            "-c",
            &script,
        ]);
        tmux
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        let output = command.arg("-S").arg(self.dir.join("tmux.sock")).args(args).env("TERM", "xterm").output();
        match output {
            Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
            other => panic!("tmux {args:?}: {other:?}"),
        }
    }

    /// Waits until the screen fulfils a condition; returns its lines.
    #[track_caller]
    fn wait(&self, what: &str, is_met: impl Fn(&[&str]) -> bool) -> Vec<String> {
        wait_for(what, || {
            let screen = self.run(&["capture-pane", "-p", "-t", "top"]);
            let lines: Vec<&str> = screen.lines().map(str::trim_end).collect();
            is_met(&lines).then(|| lines.into_iter().map(str::to_owned).collect())
        })
    }

    #[track_caller]
    fn type_keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys", "-t", "top"], keys].concat());
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Fails if the server has ended.
        let _ = Command::new("tmux").arg("-S").arg(self.dir.join("tmux.sock")).arg("kill-server").output();
    }
}

/// The names of the pods on the screen, from top to bottom.
fn pods(lines: &[&str]) -> Vec<String> {
    let rows = lines.iter().filter_map(|line| line.split_whitespace().nth(1));
    rows.filter(|name| name.starts_with("pod-")).map(str::to_owned).collect()
}

#[test]
fn the_view_sorts_scrolls_and_follows_the_size() {
    let g = Gantry::new();
    let image = g.fixture();
    for name in ["pod-a", "pod-b", "pod-c"] {
        let flag = format!("--pod-name={name}");
        g.run(&["run", "--net=none", "-d", &flag, &image, "--name=it", "--", "sleep", "600"]).succeeded();
    }
    let tmux = Tmux::start(&g, &["top", "-d", "100ms"], 120, 12);
    let lines = tmux.wait("the pods", |lines| pods(lines).len() == 3);
    assert!(lines[0].starts_with("3 pods, 3 apps; CPU "), "{lines:?}");
    assert!(lines[3].starts_with("UUID ") && lines[3].ends_with("PIDS"), "{lines:?}");
    tmux.type_keys(&["N"]);
    tmux.wait("the order of names", |lines| pods(lines) == ["pod-a", "pod-b", "pod-c"]);
    tmux.type_keys(&["r"]);
    let lines = tmux.wait("the reverse order", |lines| pods(lines) == ["pod-c", "pod-b", "pod-a"]);
    assert!(lines[1].starts_with("Sorted by name, reversed"), "{lines:?}");
    // The apps come below their pods.
    tmux.type_keys(&["a"]);
    tmux.wait("the apps", |lines| lines.iter().filter(|line| line.contains(" it ")).count() == 3);
    tmux.type_keys(&["a", "M", "i"]);
    tmux.wait("the idle pods to go", |lines| {
        lines[1].starts_with("Sorted by memory; without idle pods") && pods(lines).is_empty()
    });
    tmux.type_keys(&["i", "h"]);
    tmux.wait("the help", |lines| lines[0] == "Keys:" && lines.iter().any(|line| line.contains("q  quit")));
    tmux.type_keys(&["q", "N"]);
    tmux.wait("the pods again", |lines| pods(lines) == ["pod-a", "pod-b", "pod-c"]);
    // Two rows fit; the arrows scroll.
    tmux.run(&["resize-window", "-t", "top", "-x", "60", "-y", "6"]);
    tmux.wait("the smaller screen", |lines| lines.len() <= 6 && pods(lines) == ["pod-a", "pod-b"]);
    tmux.type_keys(&["Down", "Down", "Down"]);
    tmux.wait("the last rows", |lines| pods(lines) == ["pod-b", "pod-c"]);
    tmux.type_keys(&["Home"]);
    tmux.wait("the first rows", |lines| pods(lines) == ["pod-a", "pod-b"]);
    g.run(&["stop", "pod-a"]).succeeded();
    tmux.wait("the stopped pod to go", |lines| pods(lines) == ["pod-b", "pod-c"]);
    // The shell's screen comes back.
    tmux.type_keys(&["q"]);
    tmux.wait("the end", |lines| lines[0] == "before" && lines[1] == "code=0");
    g.run(&["stop", "pod-b", "pod-c"]).succeeded();
}

#[test]
fn signals_restore_the_terminal() {
    let g = Gantry::new();
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let terminal = Terminal::start(&g.command(&["top"]));
        terminal.wait_for("0 pods, 0 apps");
        terminal.signal(signal);
        let out = terminal.wait();
        assert_eq!((out.code, out.is_restored), (code, true), "{signal:?}: {}", out.output);
        assert!(out.output.ends_with(LEAVE_SCREEN), "{signal:?}: {:?}", out.output);
    }
    // Ctrl-C is a key in raw mode.
    let terminal = Terminal::start(&g.command(&["top", "--delay=1h"]));
    terminal.wait_for("0 pods, 0 apps");
    terminal.type_in("\u{3}");
    let out = terminal.wait();
    assert_eq!((out.code, out.is_restored), (0, true), "{}", out.output);
}

#[test]
fn suspending_gives_the_terminal_back() {
    let g = Gantry::new();
    let terminal = Terminal::start(&g.command(&["top", "--delay=1h"]));
    terminal.wait_for("0 pods, 0 apps");
    let pid = terminal.pid();
    terminal.type_in("\u{1a}");
    terminal.wait_for(LEAVE_SCREEN);
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(") ")?.1.chars().next()
    };
    wait_for("it to be stopped", || (state() == Some('T')).then_some(()));
    let seen = terminal.output().matches("0 pods, 0 apps").count();
    terminal.signal(Signal::CONT);
    wait_for("the view to be drawn again", || {
        (terminal.output().matches("0 pods, 0 apps").count() > seen).then_some(())
    });
    terminal.wait_raw();
    terminal.type_in("q");
    let out = terminal.wait();
    assert_eq!((out.code, out.is_restored), (0, true), "{}", out.output);
}

#[test]
fn the_view_needs_a_terminal() {
    let g = Gantry::new();
    let _ = g.run(&["top"]).exits(125).stderr_contains(&["the live view needs a terminal", "gantry stats"]);
    let _ = g.run(&["top", "--no-legend"]).exits(125);
    let _ = g.run(&["top", "-d", "1s", "pod"]).exits(125);
}
