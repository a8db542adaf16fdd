//! Log files at paths that the caller of a pod chooses, such as a kubelet (CRI: `log_directory` and `log_path`).

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::SpecError;
use crate::{AppName, PodSpec};

/// The limit of Linux (`PATH_MAX`).
const MAX_PATH: usize = 4095;
/// The limit of file systems (`NAME_MAX`), less the suffix of a rotated and compressed file.
const MAX_NAME: usize = 255 - ".20060102-150405.gz.tmp".len();

/// The directory below which a pod's apps have their log files: absolute, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PodLogDir(String);

/// The path of an app's log file below a [`PodLogDir`]: relative, without `.` and `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AppLogPath(String);

impl PodLogDir {
    /// The directory.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AppLogPath {
    /// The path.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directories of the path below the pod's, and the name of the file.
    #[must_use]
    pub fn split(&self) -> (Option<&str>, &str) {
        self.0.rsplit_once('/').map_or((None, &self.0), |(dirs, name)| (Some(dirs), name))
    }

    /// Whether two logs cannot have these paths: they are the same file, one is a directory of the other, or one has a
    /// name that rotated files of the other may have.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let extends = |long: &str, short: &str| {
            long.strip_prefix(short).is_some_and(|rest| {
                let is_rotated = rest.starts_with(['.', '-']) && rest.ends_with(|c: char| c.is_ascii_digit());
                rest.is_empty() || rest.starts_with('/') || (is_rotated && !rest.contains('/'))
            })
        };
        extends(&self.0, &other.0) || extends(&other.0, &self.0)
    }
}

/// Checks that chosen paths have a directory, and that no two of them collide.
pub(crate) fn check(spec: &PodSpec) -> Result<(), SpecError> {
    let mut known: Vec<(&AppName, &AppLogPath)> = Vec::new();
    for app in &spec.apps {
        let Some(path) = &app.options.log_path else { continue };
        if spec.log_dir.is_none() {
            let why = format!("--log-path of app '{}' needs a pod with --log-dir, below which the file is", app.name);
            return Err(SpecError::new(why));
        }
        if let Some((other, taken)) = known.iter().find(|(_, taken)| taken.conflicts_with(path)) {
            return Err(SpecError::new(format!(
                "--log-path={} of app '{}' collides with {} of app '{other}': choose another file",
                shown(path.as_str()),
                app.name,
                shown(taken.as_str())
            )));
        }
        known.push((&app.name, path));
    }
    Ok(())
}

fn check_text(what: &str, text: &str) -> Result<(), SpecError> {
    let is_plain = text.chars().all(|c| !c.is_control());
    match is_plain && (1..=MAX_PATH).contains(&text.len()) {
        true => Ok(()),
        false => Err(SpecError::new(format!(
            "the {what} '{}' is empty, has control characters, or is longer than {MAX_PATH} bytes",
            shown(text)
        ))),
    }
}

impl FromStr for PodLogDir {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        check_text("log directory", text)?;
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if !text.starts_with('/') || parts.is_empty() || parts.contains(&"..") {
            let why = format!("the log directory '{}' must be an absolute path without '..'", shown(text));
            return Err(SpecError::new(why));
        }
        Ok(Self(format!("/{}", parts.join("/"))))
    }
}

impl FromStr for AppLogPath {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        check_text("log path", text)?;
        let is_name = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= MAX_NAME;
        if !text.split('/').all(is_name) {
            return Err(SpecError::new(format!(
                "the log path '{}' must be relative to --log-dir, without '.' and '..', and its names at most {MAX_NAME} \
                 bytes long",
                shown(text)
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for PodLogDir {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl TryFrom<String> for AppLogPath {
    type Error = SpecError;

    fn try_from(text: String) -> Result<Self, SpecError> {
        text.parse()
    }
}

impl From<PodLogDir> for String {
    fn from(dir: PodLogDir) -> Self {
        dir.0
    }
}

impl From<AppLogPath> for String {
    fn from(path: AppLogPath) -> Self {
        path.0
    }
}

impl fmt::Display for PodLogDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for AppLogPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_directories_are_absolute() {
        for (text, want) in [("/var/log/pods/a", "/var/log/pods/a"), ("//a/./b/", "/a/b")] {
            assert_eq!(text.parse::<PodLogDir>().unwrap().as_str(), want);
        }
        for text in ["", "/", "a", "./a", "/a/..", "/a/../b", "/a\0", "/a\nb"] {
            text.parse::<PodLogDir>().unwrap_err();
        }
        format!("/{}", "a/".repeat(3000)).parse::<PodLogDir>().unwrap_err();
    }

    #[test]
    fn log_paths_stay_below_their_directory() {
        for text in ["0.log", "web/0.log", "...", "a b/ü.log"] {
            assert_eq!(text.parse::<AppLogPath>().unwrap().as_str(), text);
        }
        for text in ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "./a", "a\0b", "\u{1b}[2J"] {
            let why = text.parse::<AppLogPath>().unwrap_err().to_string();
            assert!(!why.contains('\u{1b}'), "{why}");
        }
        "x".repeat(MAX_NAME).parse::<AppLogPath>().unwrap();
        "x".repeat(MAX_NAME + 1).parse::<AppLogPath>().unwrap_err();
        let path: AppLogPath = "a/b/0.log".parse().unwrap();
        assert_eq!(path.split(), (Some("a/b"), "0.log"));
    }

    #[test]
    fn conflicting_log_paths_are_found() {
        let conflict = |a: &str, b: &str| {
            let (a, b) = (a.parse::<AppLogPath>().unwrap(), b.parse::<AppLogPath>().unwrap());
            assert_eq!(a.conflicts_with(&b), b.conflicts_with(&a));
            a.conflicts_with(&b)
        };
        for (a, b) in [("a", "a"), ("a", "a/0.log"), ("0.log", "0.log.1"), ("0.log", "0.log-20261124")] {
            assert!(conflict(a, b), "{a} {b}");
        }
        for (a, b) in [("a", "b"), ("a/0.log", "b/0.log"), ("0.log", "1.log"), ("web", "web.log"), ("a", "a.1/0.log")] {
            assert!(!conflict(a, b), "{a} {b}");
        }
    }
}
