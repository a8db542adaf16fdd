//! The grammar of `run` and `prepare`: rkt's, with what a docker or podman hand would type.
//!
//! ```text
//! gantry run [pod flags] [app flags for all apps] IMAGE [app flags] [-- arg… [---]] IMAGE …
//! gantry run [flags] IMAGE [flags] COMMAND arg…
//! ```
//!
//! The second form is docker's; which of the two is meant is decided in [`second_word`] alone.
//!
//! A flag of an app binds to the image before it; before any image it holds for every app. `--` begins the
//! arguments of an app, `---` ends them so that another image can follow. Flags of the pod, and global ones, may
//! stand anywhere. Pure: no file is read here, and the caller's environment comes in as a function.
//!
//! [`flags`] is the table of all flags, [`values`] and [`network`] read what they take, [`draft`] gathers, and
//! [`Request`] comes out.

mod draft;
mod flags;
mod network;
mod parse;
mod second_word;
#[cfg(test)]
mod tests;
mod unsupported;
mod values;

pub(crate) use draft::merged_environment;
pub(crate) use flags::describe;
#[cfg(test)]
pub(crate) use flags::{APP_FLAGS, POD_FLAGS};
pub(crate) use parse::parse;
pub(crate) use second_word::ImageLookup;

use std::path::PathBuf;

use gantry_model::{ErrorKind, ImageRef, Kind, PodSpec};
use thiserror::Error;

use crate::globals::Globals;
use crate::terminal::DetachKeys;

/// What the grammar asks of the place in which it is used; it does no I/O itself.
pub(crate) struct Caller<'a> {
    /// A variable of the caller's environment.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<String>,
    /// The working directory, where relative paths of volumes begin; `None`: it has none.
    pub(crate) directory: Option<PathBuf>,
    /// What is known of a word that may be an image, with the global flags that stand before it.
    pub(crate) look_up_image: &'a dyn Fn(&Globals, &ImageRef) -> ImageLookup,
}

/// Which of the two commands is parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `run`: prepare and start.
    Run,
    /// `prepare`: make it ready, start nothing.
    Prepare,
}

impl Verb {
    /// The word on the command line.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Prepare => "prepare",
        }
    }
}

/// What a command line of `run` or `prepare` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    /// `--help`.
    Help,
    /// A pod.
    Pod(Box<Request>),
}

/// A pod, and what is to be done with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    /// Global flags, wherever they stood.
    pub(crate) globals: Globals,
    /// The pod; empty when `options.pod_manifest` is given. The variables of `options` that come from outside
    /// (files, the caller's environment) are not in it yet.
    pub(crate) spec: PodSpec,
    /// Everything that is not the pod itself.
    pub(crate) options: PodOptions,
}

/// How a pod is to be made and run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct PodOptions {
    /// When a registry is asked.
    pub(crate) pull: Option<Pull>,
    /// The platform of the images, where it is not this host's.
    pub(crate) platform: Option<gantry_engine::Platform>,
    /// Return when the pod is ready, printing its id.
    pub(crate) detach: bool,
    /// Remove the pod when it has ended.
    pub(crate) remove: bool,
    /// Signals to the command are not passed on to the apps.
    pub(crate) no_sig_proxy: bool,
    /// The keys that leave a pod with a terminal.
    pub(crate) detach_keys: DetachKeys,
    /// No progress.
    pub(crate) quiet: bool,
    /// Keep stdin of the app open and feed it.
    pub(crate) stdin: bool,
    /// Give the app a terminal.
    pub(crate) terminal: bool,
    /// Write the id here as soon as it exists.
    pub(crate) uuid_file: Option<PathBuf>,
    /// The pod comes from this manifest.
    pub(crate) pod_manifest: Option<PathBuf>,
    /// Pass the caller's environment on.
    pub(crate) inherit_env: bool,
    /// Files of `NAME=VALUE` lines for every app.
    pub(crate) env_files: Vec<PathBuf>,
    /// Variables for every app; they win over those of the files.
    pub(crate) set_env: Vec<(String, String)>,
    /// How a word after the first image was read, for when that turns out not to work.
    pub(crate) hint: Option<String>,
}

/// When a registry is asked for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Pull {
    /// Only what is in the store.
    Never,
    /// When it is not in the store.
    #[default]
    #[value(alias = "missing")]
    New,
    /// Always ask; download what changed.
    #[value(alias = "always")]
    Update,
    /// Always ask; use what is in the store when the registry cannot be reached.
    Newer,
}

/// A command line that cannot be meant so.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum UsageError {
    /// No such flag.
    #[error("unknown flag {}{hint} (see 'gantry {verb} --help')", gantry_model::id::shown(.flag))]
    UnknownFlag {
        /// As given.
        flag: String,
        /// `: did you mean --x?`, or empty.
        hint: String,
        /// Of which command.
        verb: &'static str,
    },
    /// A flag that belongs to later work.
    #[error("{flag} is not supported: {instead}")]
    Unsupported {
        /// The flag.
        flag: String,
        /// What is there.
        instead: &'static str,
    },
    /// A flag without the value it needs.
    #[error("{flag} needs a value: {flag}={value}")]
    NoValue {
        /// The flag.
        flag: String,
        /// What sort of value.
        value: &'static str,
    },
    /// A flag's value is not what it takes.
    #[error("{flag}: {why}")]
    Value {
        /// The flag.
        flag: String,
        /// Why not.
        why: String,
    },
    /// A global flag is invalid.
    #[error("{0}")]
    Global(String),
    /// Flags that exclude each other.
    #[error("{0}")]
    Conflict(String),
    /// `--` or `---` where no app is.
    #[error("'{0}' {1}")]
    Separator(&'static str, &'static str),
    /// An image that cannot be one.
    #[error("{0}")]
    Image(String),
    /// A line of several images that may have been meant as one with arguments.
    #[error("{error}; {hint}")]
    SecondImage {
        /// What is wrong with it as it was read.
        error: Box<UsageError>,
        /// Which word was taken for an image, and how to write it as an argument.
        hint: String,
    },
    /// A word that may be an image or a command.
    #[error(
        "'{0}' may be a command or a second image of the default registry: write {command} for the command, or \
         docker://{0} for the image", gantry_model::id::shown(.word)
    )]
    Unclear {
        /// The word.
        word: String,
        /// The line with `--`.
        command: String,
    },
    /// An empty entrypoint, and nothing to execute in its place.
    #[error("app '{0}': an empty --entrypoint needs a command: gantry run --entrypoint '' IMAGE -- PROGRAM ARG…")]
    NoCommand(String),
    /// No name can be made of an image.
    #[error("no app name can be made of image '{}': give one with --name", gantry_model::id::shown(.0))]
    NoName(String),
    /// The pod makes no sense as a whole.
    #[error(transparent)]
    Spec(#[from] gantry_model::spec::SpecError),
}

impl Kind for UsageError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }
}
