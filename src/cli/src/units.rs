//! The text of systemd units (systemd.syntax(7)) that run a pod in the foreground.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::globals::Globals;

/// Time for fetching images and starting the pod.
const START_TIMEOUT: &str = "15min";
/// The service that stops the other pods at the shutdown of the host (`packaging`).
const POD_SHUTDOWN_UNIT: &str = "gantry-pods.service";

/// Time that `gantry run` has besides the grace of the pod's apps, before systemd kills it.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// When systemd restarts the service: the values of `Restart=` (systemd.service(5)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartCondition {
    /// Never
    No,
    /// When the pod ends with exit code 0
    OnSuccess,
    /// When the pod fails
    #[default]
    OnFailure,
    /// When gantry is killed or a timeout passes
    OnAbnormal,
    /// When the watchdog times out
    OnWatchdog,
    /// When gantry dies by a signal
    OnAbort,
    /// Always, unless systemd stopped it
    Always,
}

impl RestartCondition {
    /// The value of `Restart=`.
    fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::OnSuccess => "on-success",
            Self::OnFailure => "on-failure",
            Self::OnAbnormal => "on-abnormal",
            Self::OnWatchdog => "on-watchdog",
            Self::OnAbort => "on-abort",
            Self::Always => "always",
        }
    }
}

/// A service that runs a pod in the foreground.
#[derive(Debug)]
pub(crate) struct PodService<'a> {
    /// The name of the pod and of the service.
    pub(crate) name: &'a str,
    /// The source of the service, for the comment.
    pub(crate) source: &'a str,
    /// The program of gantry.
    pub(crate) program: &'a Path,
    /// Global flags.
    pub(crate) global_flags: &'a [String],
    /// The words after `gantry run` and the flags that every service has.
    pub(crate) words: &'a [String],
    /// Standard input of `gantry run`.
    pub(crate) input: Option<&'a str>,
    /// Whether readiness is reported to systemd.
    pub(crate) notifies: bool,
    /// The grace of the pod's apps.
    pub(crate) grace: Duration,
    /// When systemd restarts it.
    pub(crate) restart: RestartCondition,
    /// Lines for the section `[Unit]`.
    pub(crate) unit_lines: &'a [String],
    /// Lines for the section `[Service]`, which override those before.
    pub(crate) service_lines: &'a [String],
    /// Lines of the section `[Install]`.
    pub(crate) install_lines: &'a [String],
}

impl PodService<'_> {
    /// The text of the unit.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("# Made by {}.\n[Unit]\n", self.source);
        let name = self.name;
        push(&mut text, &format!("Description=gantry pod {name}"));
        push(&mut text, "Wants=network-online.target");
        // At the shutdown of the host, systemd stops this service first, then the pods that are no services.
        push(&mut text, &format!("After=network-online.target {POD_SHUTDOWN_UNIT}"));
        self.unit_lines.iter().for_each(|line| push(&mut text, line));
        push(&mut text, "\n[Service]");
        push(&mut text, if self.notifies { "Type=notify" } else { "Type=exec" });
        // systemd sends SIGTERM to gantry alone, which stops the pod; the grace is the pod's own.
        push(&mut text, "KillMode=mixed");
        push(&mut text, &format!("TimeoutStartSec={START_TIMEOUT}"));
        push(&mut text, &format!("TimeoutStopSec={}", (self.grace + STOP_MARGIN).as_secs()));
        push(&mut text, &format!("Restart={}", self.restart.as_str()));
        // An app that SIGTERM ended, or SIGKILL after its grace.
        push(&mut text, "SuccessExitStatus=143 137");
        if self.restart == RestartCondition::OnFailure {
            // It is also the code of an app that was killed for lack of memory. systemd ignores this during a stop.
            push(&mut text, "RestartForceExitStatus=137");
        }
        let id_file = format!("--uuid-file=%t/gantry-{name}.id");
        let remove = self.command_line("-", &["rm", "--force"], &[id_file]);
        // A pod that outlived its `gantry run`, which was killed.
        push(&mut text, &format!("ExecStartPre={remove}"));
        let own = format!("--uuid-file-save=%t/gantry-{name}.id");
        let mut line = self.command_line("", &["run", "--rm", "--quiet"], &[own]);
        for word in self.words {
            let _cannot_fail = write!(line, " {}", exec_word(word));
        }
        push(&mut text, &format!("ExecStart={line}"));
        push(&mut text, &format!("ExecStopPost={remove}"));
        if let Some(input) = self.input {
            push(&mut text, "StandardInput=data");
            for line in input.lines() {
                push(&mut text, &format!("StandardInputText={}", line.replace('\\', "\\\\").replace('%', "%%")));
            }
        }
        self.service_lines.iter().for_each(|line| push(&mut text, line));
        if !self.install_lines.is_empty() {
            push(&mut text, "\n[Install]");
            self.install_lines.iter().for_each(|line| push(&mut text, line));
        }
        text
    }

    /// A line of gantry; `with_specifiers` are words in which systemd expands specifiers.
    fn command_line(&self, prefix: &str, command: &[&str], with_specifiers: &[String]) -> String {
        let program = exec_word(&self.program.display().to_string());
        let mut line = format!("{prefix}{program}");
        for word in self.global_flags.iter().map(String::as_str).chain(command.iter().copied()) {
            let _cannot_fail = write!(line, " {}", exec_word(word));
        }
        for word in with_specifiers {
            let _cannot_fail = write!(line, " {word}");
        }
        line
    }
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// A word of a command line, quoted so that systemd passes it on unchanged (systemd.service(5), "COMMAND LINES").
pub(crate) fn exec_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in word.chars() {
        match c {
            '\\' | '"' => quoted.extend(['\\', c]),
            '%' | '$' => quoted.extend([c, c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_ascii_control() => {
                let _cannot_fail = write!(quoted, "\\x{:02x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The global flags by which a service finds the same data directory and configuration as this command.
pub(crate) fn global_flags(globals: &Globals) -> std::io::Result<Vec<String>> {
    let from_environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let paths = [
        ("--dir", globals.dir.clone().or_else(|| from_environment("GANTRY_DIR"))),
        ("--config", globals.config.clone().or_else(|| from_environment("GANTRY_CONFIG"))),
    ];
    let given = paths.into_iter().filter_map(|(flag, path)| Some((flag, path?)));
    given.map(|(flag, path)| Ok(format!("{flag}={}", std::path::absolute(path)?.display()))).collect()
}

/// Writes a file as a whole: a reader never finds a part of it.
pub(crate) fn write_file(dir: &Path, name: &str, text: &str) -> std::io::Result<PathBuf> {
    let (path, new) = (dir.join(name), dir.join(format!(".{name}.new")));
    std::fs::write(&new, text)?;
    std::fs::rename(&new, &path)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_systemd() {
        for (word, want) in [
            ("--name=web", "--name=web"),
            ("", "\"\""),
            ("a b", "\"a b\""),
            ("100%", "\"100%%\""),
            ("$HOME", "\"$$HOME\""),
            ("say \"x\\\"", "\"say \\\"x\\\\\\\"\""),
            ("two\nlines", "\"two\\nlines\""),
            (";", "\";\""),
        ] {
            assert_eq!(exec_word(word), want, "{word}");
        }
    }

    #[test]
    fn lines_of_the_user_come_last() {
        let service = PodService {
            name: "web",
            source: "a test",
            program: Path::new("/usr/local/bin/gantry"),
            global_flags: &["--dir=/d".to_owned()],
            words: &["--pod-name=web".to_owned(), "x y".to_owned()],
            input: Some("{\"a\": \"50%\\n\"}"),
            notifies: true,
            grace: Duration::from_secs(5),
            restart: RestartCondition::Always,
            unit_lines: &["After=db.service".to_owned()],
            service_lines: &["Restart=no".to_owned()],
            install_lines: &["WantedBy=multi-user.target".to_owned()],
        };
        let want = "# Made by a test.
[Unit]
Description=gantry pod web
Wants=network-online.target
After=network-online.target gantry-pods.service
After=db.service

[Service]
Type=notify
KillMode=mixed
TimeoutStartSec=15min
TimeoutStopSec=15
Restart=always
SuccessExitStatus=143 137
ExecStartPre=-/usr/local/bin/gantry --dir=/d rm --force --uuid-file=%t/gantry-web.id
ExecStart=/usr/local/bin/gantry --dir=/d run --rm --quiet --uuid-file-save=%t/gantry-web.id --pod-name=web \"x y\"
ExecStopPost=-/usr/local/bin/gantry --dir=/d rm --force --uuid-file=%t/gantry-web.id
StandardInput=data
StandardInputText={\"a\": \"50%%\\\\n\"}
Restart=no

[Install]
WantedBy=multi-user.target
";
        assert_eq!(service.text(), want);
    }
}
