//! What every command starts from: the global flags, an engine opened as the command needs it, and pods as people name them.

use std::path::PathBuf;

use gantry_engine::{Engine, Options};
use gantry_model::{ErrorKind, PodId, PodPrefix};

use crate::failure::{CliError, Failure, io};
use crate::globals::Globals;
use crate::settings;

/// The global flags, and which command they were given to.
pub(crate) struct Context {
    pub(crate) globals: Globals,
    command: String,
}

impl Context {
    pub(crate) fn new(globals: Globals, command: impl Into<String>) -> Self {
        Self { globals, command: command.into() }
    }

    /// The engine's options here.
    pub(crate) fn options(&self) -> Result<Options, Failure> {
        settings::options(&self.globals).map_err(Failure::of_gantry_itself)
    }

    /// An engine for a command that changes something. Only root gets one, and before anything is touched.
    pub(crate) fn open(&self, command: &'static str) -> Result<Engine, Failure> {
        need_root(command)?;
        Engine::open(self.options()?).map_err(|error| Failure::from(error).of_gantry_itself())
    }

    /// [`Self::open`] with other settings for fetching.
    pub(crate) fn open_for_fetch(
        &self,
        command: &'static str,
        change: impl FnOnce(&mut gantry_engine::FetchConfig),
    ) -> Result<Engine, Failure> {
        need_root(command)?;
        let mut options = self.options()?;
        change(&mut options.fetch);
        Ok(Engine::open(options)?)
    }

    /// An engine for a command that looks. Root's also brings rows up to the facts; others may try.
    pub(crate) fn look(&self) -> Result<Engine, Failure> {
        let options = self.options()?;
        let engine = if is_root() { Engine::open_to_look(options) } else { Engine::open_read_only(options) };
        engine.map_err(|error| {
            let failure = Failure::from(error);
            match failure.kind() {
                ErrorKind::Denied if !is_root() => CliError::NeedsRoot(self.command.clone()).into(),
                _ => failure.of_gantry_itself(),
            }
        })
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Refuses callers that are not root.
pub(crate) fn need_root(command: &'static str) -> Result<(), Failure> {
    if is_root() { Ok(()) } else { Err(CliError::NeedsRoot(command.to_owned()).into()) }
}

/// The pod that this text names: its id or the beginning of it.
pub(crate) fn pod(engine: &Engine, text: &str) -> Result<PodId, Failure> {
    let prefix: PodPrefix = text.parse()?;
    Ok(engine.resolve(&prefix)?)
}

/// The pods named by words or by a file that `--uuid-file-save` wrote.
#[derive(Debug, clap::Args)]
pub(crate) struct Pods {
    /// Ids of pods, or the beginnings of them
    #[arg(value_name = "POD", required_unless_present = "uuid_file")]
    pods: Vec<String>,
    /// Read the pod's id from this file
    #[arg(long, value_name = "FILE", conflicts_with = "pods")]
    uuid_file: Option<PathBuf>,
}

impl Pods {
    /// The texts that name pods.
    pub(crate) fn texts(&self) -> Result<Vec<String>, Failure> {
        match &self.uuid_file {
            Some(path) => Ok(vec![from_file(path)?]),
            None => Ok(self.pods.clone()),
        }
    }

    /// Does something to every one of them, also when it fails for some: all failures are said, the worst code counts.
    pub(crate) fn each(
        &self,
        debug: bool,
        asking: crate::exit::Asking,
        mut act: impl FnMut(&str) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        Ok(each(&self.texts()?, debug, asking, &mut act))
    }
}

/// Does something to every one of `texts`; see [`Pods::each`].
pub(crate) fn each(
    texts: &[String],
    debug: bool,
    asking: crate::exit::Asking,
    act: &mut dyn FnMut(&str) -> Result<u8, Failure>,
) -> u8 {
    let mut worst = crate::exit::OK;
    for text in texts {
        let code = act(text).unwrap_or_else(|failure| {
            failure.print(debug);
            failure.code(asking)
        });
        worst = worst.max(code);
    }
    worst
}

fn from_file(path: &std::path::Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let failed = || io("read the pod's id from", path.display().to_string());
    let file = std::fs::File::open(path).map_err(failed())?;
    let mut text = String::new();
    // A UUID has 36 characters; what is longer than this is no such file.
    file.take(128).read_to_string(&mut text).map_err(failed())?;
    Ok(text.trim().to_owned())
}
