//! Flags that every command takes.

use std::path::PathBuf;

use clap::{Args as _, FromArgMatches as _};
use gantry_logging::{Filter, LogFormat};
use gantry_model::error::chain;

use crate::failure::Failure;

/// The heading of the global flags in every help text.
pub(crate) const HEADING: &str = "Global options";

/// The global flags.
#[derive(Debug, Default, Clone, PartialEq, clap::Args)]
pub(crate) struct Globals {
    /// Data directory [default: /var/lib/gantry; environment: GANTRY_DIR]
    #[arg(long, global = true, help_heading = HEADING, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Configuration file [default: /etc/gantry/config.toml; environment: GANTRY_CONFIG]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print each cause of an error on a line of its own, and its kind
    #[arg(long, global = true, help_heading = HEADING)]
    pub(crate) debug: bool,
    /// Disable protection: http, tls, image, seccomp, capabilities, all-fetch, all-run, all, none
    #[arg(long, global = true, help_heading = HEADING, value_name = "OPTION,…", value_delimiter = ',', value_parser = insecure_option)]
    pub(crate) insecure_options: Vec<InsecureOption>,
    /// Progress output
    #[arg(long, global = true, help_heading = HEADING, value_enum, default_value_t, value_name = "MODE")]
    pub(crate) progress: ProgressMode,
    /// Log events of this level and above to standard error: off, error, warning, info, debug or trace; MODULE=LEVEL
    /// for one module, with commas between several [default: off; environment: GANTRY_LOG]
    #[arg(long, global = true, help_heading = HEADING, value_name = "FILTER")]
    pub(crate) log_level: Option<Filter>,
    /// Format of logged events: text or json
    #[arg(long, global = true, help_heading = HEADING, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
}

/// The output of progress.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProgressMode {
    /// Bars on a terminal, otherwise lines
    #[default]
    Auto,
    /// Lines
    Plain,
    /// None
    None,
}

/// An element of `--insecure-options`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InsecureOption {
    None,
    Http,
    Tls,
    /// Signatures and keys. Accepted for rkt; gantry verifies digests only, so it changes nothing.
    Image,
    Seccomp,
    Capabilities,
    AllFetch,
    AllRun,
    All,
}

/// The elements of `--insecure-options`.
pub(crate) const INSECURE_OPTIONS: [&str; 9] =
    ["http", "tls", "image", "seccomp", "capabilities", "all-fetch", "all-run", "all", "none"];

/// The protections that `--insecure-options` disables.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InsecureSet {
    pub(crate) http: bool,
    pub(crate) tls: bool,
    pub(crate) seccomp: bool,
    pub(crate) capabilities: bool,
}

/// Parses one element of `--insecure-options`.
pub(crate) fn insecure_option(word: &str) -> Result<InsecureOption, String> {
    Ok(match word {
        "none" => InsecureOption::None,
        "http" => InsecureOption::Http,
        "tls" => InsecureOption::Tls,
        "image" | "images" | "pubkey" | "ondisk" => InsecureOption::Image,
        "seccomp" => InsecureOption::Seccomp,
        "capabilities" => InsecureOption::Capabilities,
        "all-fetch" => InsecureOption::AllFetch,
        "all-run" => InsecureOption::AllRun,
        "all" => InsecureOption::All,
        "paths" => return Err("'paths' is not supported yet: masked and read-only paths are always set up".into()),
        _ => {
            return Err(format!(
                "'{}' is not an option: expected http, tls, image, seccomp, capabilities, all-fetch, all-run, all or none",
                gantry_model::id::shown(word)
            ));
        }
    })
}

/// Whether `--NAME` is a global flag; `Some(true)`: its value may be the next word.
pub(crate) fn takes_next_word(name: &str) -> Option<bool> {
    let command = Globals::augment_args(clap::Command::new("gantry"));
    let flag = command.get_arguments().find(|flag| flag.get_long() == Some(name))?;
    Some(flag.get_action().takes_values() && !flag.is_require_equals_set())
}

/// The names of all global flags.
pub(crate) fn names() -> Vec<String> {
    let command = Globals::augment_args(clap::Command::new("gantry"));
    command.get_arguments().filter_map(|flag| flag.get_long().map(str::to_owned)).collect()
}

/// The index of the first word that is neither a global flag nor the value of one.
pub(crate) fn first_argument(words: &[String]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if !word.starts_with('-') || word.len() == 1 {
            return Some(at);
        }
        let takes_next = word.strip_prefix("--").and_then(takes_next_word).unwrap_or(false);
        at += if takes_next { 2 } else { 1 };
    }
    None
}

impl Globals {
    /// Parses words that are global flags, in the form `--NAME` or `--NAME=VALUE`. The last one of a name counts.
    ///
    /// # Errors
    /// A value is invalid; the message says of which flag.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let command = Self::augment_args(clap::Command::new("gantry"));
        let command = command.no_binary_name(true).disable_help_flag(true).args_override_self(true);
        let parsed = command.try_get_matches_from(words).and_then(|matches| Self::from_arg_matches(&matches));
        parsed.map_err(|error| {
            let text = error.to_string();
            // The first paragraph says what is wrong; usage and advice follow.
            let lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect::<Vec<_>>().join(" ");
            lines.strip_prefix("error: ").unwrap_or(&lines).to_owned()
        })
    }

    /// Logs events from now on if `--log-level` or `GANTRY_LOG` is given. Otherwise no subscriber is installed, which
    /// keeps the start short; warnings and errors of the command itself are printed in any case.
    ///
    /// # Errors
    /// `GANTRY_LOG` is invalid.
    pub(crate) fn start_logging(&self) -> Result<(), Failure> {
        let filter = Filter::from_flag_or_env(self.log_level.clone());
        if let Some(filter) = filter.map_err(|error| Failure::usage(chain(&error)))? {
            gantry_logging::init(filter, self.log_format);
        }
        Ok(())
    }

    /// The disabled protections.
    pub(crate) fn insecure(&self) -> InsecureSet {
        let mut set = InsecureSet::default();
        for option in &self.insecure_options {
            match option {
                InsecureOption::None => set = InsecureSet::default(),
                InsecureOption::Image => {}
                InsecureOption::Http => set.http = true,
                InsecureOption::Tls => set.tls = true,
                InsecureOption::Seccomp => set.seccomp = true,
                InsecureOption::Capabilities => set.capabilities = true,
                InsecureOption::AllFetch => (set.http, set.tls) = (true, true),
                InsecureOption::AllRun => (set.seccomp, set.capabilities) = (true, true),
                InsecureOption::All => {
                    set = InsecureSet { http: true, tls: true, seccomp: true, capabilities: true };
                }
            }
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn insecure_options_accumulate() {
        let set = |words: &[&str]| {
            let insecure_options = words.iter().map(|word| insecure_option(word).unwrap()).collect();
            Globals { insecure_options, ..Globals::default() }.insecure()
        };
        let none = InsecureSet::default();
        assert_eq!(set(&[]), none);
        assert_eq!(set(&["image"]), none);
        assert_eq!(set(&["http", "none"]), none);
        assert_eq!(set(&["http"]), InsecureSet { http: true, ..none });
        assert_eq!(set(&["all-run"]), InsecureSet { seccomp: true, capabilities: true, ..none });
        assert_eq!(set(&["all-fetch", "all-run"]), set(&["all"]));
        for bad in ["paths", "HTTP", "", "htp"] {
            assert!(insecure_option(bad).is_err(), "{bad}");
        }
    }
}
