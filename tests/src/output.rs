//! The output and exit status of a command.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::Value;

/// A finished command.
#[derive(Debug)]
pub struct Out {
    /// Exit code as a shell shows it: 128 + n for signal n.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Standard output, byte for byte.
    pub bytes: Vec<u8>,
    /// The run time.
    pub duration: Duration,
    /// The command line, for messages.
    pub command: String,
}

impl Out {
    pub(crate) fn new(command: String, status: ExitStatus, stdout: Vec<u8>, stderr: &[u8], duration: Duration) -> Self {
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Self {
            code,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(stderr).into_owned(),
            bytes: stdout,
            duration,
            command,
        }
    }

    /// Fails the test unless the exit code is 0.
    #[track_caller]
    #[must_use = "check the output, or call `succeeded`"]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "expected success of {self}");
        self
    }

    /// Fails the test unless the exit code is 0; returns nothing.
    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(self.code, 0, "expected success of {self}");
    }

    /// Fails the test unless the exit code is this one.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "expected exit code {code} of {self}");
        self
    }

    /// Fails the test unless standard output contains a text.
    #[track_caller]
    pub fn stdout_contains(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "expected '{text}' in the output of {self}");
        self
    }

    /// Fails the test unless standard error contains all these texts and is readable: one `error`, no panic, no raw
    /// control characters.
    #[track_caller]
    pub fn stderr_contains(self, texts: &[&str]) -> Self {
        for text in texts {
            assert!(self.stderr.contains(text), "expected '{text}' in the complaint of {self}");
        }
        assert!(!self.stderr.contains("panicked"), "it panicked: {self}");
        let raw = self.stderr.chars().any(|c| c.is_control() && c != '\n' && c != '\t');
        assert!(!raw, "control characters reached the terminal: {self}");
        self
    }

    /// Standard output without the last newline.
    #[must_use]
    pub fn text(&self) -> &str {
        self.stdout.trim_end_matches('\n')
    }

    /// Standard output as JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {self}"),
        }
    }
}

impl fmt::Display for Out {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (exit code {}, {} ms)", self.command, self.code, self.duration.as_millis())?;
        write!(f, "\n--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}

/// Standard output as JSON values, one per line.
///
/// # Panics
/// When a line is not JSON.
#[track_caller]
#[must_use]
pub fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| match serde_json::from_str(line) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {line}"),
        })
        .collect()
}
