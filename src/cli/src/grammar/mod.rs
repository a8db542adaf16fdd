//! Parses the arguments of `run` and `prepare`, and of `app sandbox` and `app add`, which take some of their flags:
//! rkt's grammar, and docker's form of it.
//!
//! ```text
//! gantry run [pod flags] [app flags for all apps] IMAGE [app flags] [-- arg… [---]] IMAGE …
//! gantry run [flags] IMAGE [flags] COMMAND arg…
//! gantry app sandbox [pod flags]
//! gantry app add [flags] POD IMAGE [app flags] [--] [COMMAND] arg…
//! gantry schedule enable [flags] NAME IMAGE [app flags] [-- arg…]
//! ```
//!
//! The second form is docker's; [`second_word`] decides which one a command line has.
//!
//! A flag of an app applies to the image before it; before the first image it applies to every app. `--` begins the
//! arguments of an app, `---` ends them so that another image can follow. Flags of the pod and global flags may come
//! anywhere.
//!
//! clap describes these commands ([`describe`]) but does not parse them: whether the word after the first image is an
//! image or a command may depend on the store, which decides whether the words after it are flags of gantry or
//! arguments of the app. The parser does no I/O itself; [`Caller`] has the functions it calls.
//!
//! [`flags`] is the table of all flags, [`values`] and [`network`] parse their values, [`parse`] walks the words and
//! collects them in a [`draft`], from which the [`Request`] is made.

mod draft;
mod flags;
mod mount;
mod network;
mod parse;
mod second_word;
#[cfg(test)]
mod tests;
mod unsupported;
mod values;

pub(crate) use draft::merged_environment;
#[cfg(test)]
pub(crate) use flags::{APP_FLAGS, POD_FLAGS};
pub(crate) use flags::{Flag, all as all_flags, describe};
pub(crate) use network::networks;
pub(crate) use parse::{check_values, parse};
pub(crate) use second_word::ImageLookup;
pub(crate) use values::{check_variable_name, message};
/// The values of limits, which `gantry update` has in common with `run`.
pub(crate) mod limit_values {
    pub(crate) use super::values::{
        blkio_weight, cpu_limit, cpu_quota, cpuset, device_rate, hugetlb_limit, limit, memory_limit, memory_swap,
        message, number, pids_limit,
    };
}

use std::path::PathBuf;

use values::ValueError;

use gantry_model::{ErrorKind, ImageRef, Kind, PodSpec};
use thiserror::Error;

use crate::globals::Globals;
use crate::terminal::DetachKeys;

/// The environment of the parser.
pub(crate) struct Caller<'a> {
    /// Returns an environment variable of the caller.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The working directory, to which relative paths of volumes refer. `None`: it does not exist any more.
    pub(crate) directory: Option<PathBuf>,
    /// Looks up a word that may be an image, with the global flags before it.
    pub(crate) look_up_image: &'a dyn Fn(&Globals, &ImageRef) -> ImageLookup,
}

/// The command that is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `run`: prepares and starts a pod.
    Run,
    /// `prepare`: prepares a pod without starting it.
    Prepare,
    /// `app sandbox`: starts a pod without apps.
    Sandbox,
    /// `app add`: adds an app to a running pod.
    AddApp,
    /// `schedule enable`: enables a schedule of pods.
    Schedule,
}

impl Verb {
    /// The name of the command.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Prepare => "prepare",
            Self::Sandbox => "app sandbox",
            Self::AddApp => "app add",
            Self::Schedule => "schedule enable",
        }
    }
}

/// A parsed command line.
#[derive(Debug, PartialEq)]
pub(crate) enum Parsed {
    /// `--help`.
    Help,
    /// A pod.
    Pod(Box<Request>),
}

/// A request to prepare or run a pod.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Request {
    /// The global flags.
    pub(crate) globals: Globals,
    /// The running pod to which an app is added, or the name of the schedule.
    pub(crate) target: Option<String>,
    /// The pod; empty if `options.pod_manifest` is given. Environment variables from files and from the caller are not
    /// added yet.
    pub(crate) spec: PodSpec,
    /// Everything apart from the pod itself.
    pub(crate) options: PodOptions,
}

/// How to prepare and run a pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodOptions {
    /// When to contact a registry.
    pub(crate) pull: Option<Pull>,
    /// The platform of the images, if not this host's.
    pub(crate) platform: Option<gantry_engine::Platform>,
    /// Start the app that is added.
    pub(crate) start: bool,
    /// Print the id when the pod is ready, and exit.
    pub(crate) detach: bool,
    /// Remove the pod when it has exited.
    pub(crate) remove: bool,
    /// Do not forward signals to the apps.
    pub(crate) no_sig_proxy: bool,
    /// The key sequence to detach from a terminal.
    pub(crate) detach_keys: DetachKeys,
    /// Suppress progress output.
    pub(crate) quiet: bool,
    /// Keep standard input of the app open and forward it.
    pub(crate) stdin: bool,
    /// Allocate a terminal for the app.
    pub(crate) terminal: bool,
    /// Write the id to this file as soon as the pod exists.
    pub(crate) id_file: Option<IdFile>,
    /// The pod's name.
    pub(crate) pod_name: Option<gantry_model::PodName>,
    /// Read the pod from this manifest.
    pub(crate) pod_manifest: Option<PathBuf>,
    /// Pass the caller's environment to the apps.
    pub(crate) inherit_env: bool,
    /// Files of `NAME=VALUE` lines for every app.
    pub(crate) env_files: Vec<PathBuf>,
    /// Variables for every app, which override those of the files.
    pub(crate) set_env: Vec<(String, String)>,
    /// When the pods of the schedule are started; `None`: one runs always.
    pub(crate) timer: Option<gantry_model::schedule::Timer>,
    /// A comment on the schedule.
    pub(crate) comment: String,
    /// How the word after the first image was classified, to explain a later failure.
    pub(crate) hint: Option<String>,
    /// How to write a value, such as that of `--net`, that was taken for an image, to explain that there is no such
    /// image.
    pub(crate) value_hint: Option<String>,
}

/// The file for the id of a new pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdFile {
    /// rkt's: a file that exists is replaced.
    Replaced(PathBuf),
    /// docker's: a file that exists stands for a pod that may run.
    New(PathBuf),
}

/// When to contact a registry for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Pull {
    /// Never; use images in the store
    Never,
    /// If the image is not in the store (missing means the same)
    #[default]
    #[value(alias = "missing")]
    New,
    /// Always, and download what has changed (always means the same)
    #[value(alias = "always")]
    Update,
    /// Always, and use the stored image if the registry is unreachable
    Newer,
}

/// The command line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum UsageError {
    /// No such flag.
    #[error("unknown flag {}{hint} (see 'gantry {verb} --help')", gantry_model::id::shown(.flag))]
    UnknownFlag {
        flag: String,
        /// `: did you mean --x?`, or empty.
        hint: String,
        verb: &'static str,
    },
    /// A flag of rkt, docker or podman that gantry does not support.
    #[error("{flag} is not supported: {instead}")]
    Unsupported {
        flag: String,
        /// What to use instead.
        instead: &'static str,
    },
    /// A flag without the value it needs.
    #[error("{flag} needs a value: {flag}={value}")]
    NoValue {
        flag: String,
        /// A placeholder for the value.
        value: &'static str,
    },
    /// The value of a flag is invalid.
    #[error("{flag}: {why}")]
    Value { flag: String, why: String },
    /// A global flag is invalid.
    #[error("{0}")]
    Global(String),
    /// Flags that exclude each other.
    #[error("{0}")]
    Conflict(String),
    /// A misplaced `--` or `---`, and the reason.
    #[error("'{0}' {1}")]
    Separator(&'static str, &'static str),
    /// An image reference is invalid.
    #[error("{0}")]
    Image(String),
    /// An error in a command line of several images that may have been meant as one image with a command, or with a
    /// value of `--net`.
    #[error("{error}; {hint}")]
    SecondImage {
        /// The error, if the word is an image.
        error: Box<UsageError>,
        /// How to write the word if it is no image.
        hint: String,
    },
    /// A word that may be an image or a command.
    #[error(
        "'{0}' may be a command or a second image of the default registry: write {command} for the command, or \
         docker://{0} for the image", gantry_model::id::shown(.word)
    )]
    Unclear {
        word: String,
        /// The line with `--`.
        command: String,
    },
    /// A word that a later `--` makes a further image, and that is none.
    #[error(
        "'{0}' was taken for another image, because '--' comes after it, but there is no such image; the arguments of an \
         app follow '--': {command}", gantry_model::id::shown(.word)
    )]
    NotAnImage {
        word: String,
        /// The line with `--` before the word.
        command: String,
    },
    /// An empty entrypoint without a command.
    #[error("app '{0}': an empty --entrypoint needs a command: gantry run --entrypoint '' IMAGE -- PROGRAM ARG…")]
    NoCommand(String),
    /// An app to be added, without a pod or an image.
    #[error("{0}: gantry app add POD IMAGE [flags] [-- ARG…]")]
    Incomplete(&'static str),
    /// The image has no name from which an app name could be derived.
    #[error("cannot derive an app name from image '{}': use --name", gantry_model::id::shown(.0))]
    NoName(String),
    /// The pod is invalid as a whole.
    #[error(transparent)]
    Spec(#[from] gantry_model::spec::SpecError),
}

impl UsageError {
    /// A flag whose value is invalid or not supported.
    fn of_value(flag: &str, value: &str, why: ValueError) -> Self {
        match why {
            ValueError::Invalid(why) => Self::Value { flag: flag.to_owned(), why },
            ValueError::Unsupported(instead) => {
                Self::Unsupported { flag: format!("{flag}={}", gantry_model::id::shown(value)), instead }
            }
        }
    }
}

impl Kind for UsageError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}
