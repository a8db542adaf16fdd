//! Selects the pods for a command: by id, by name, the newest one, all of them, or by filters.

use std::path::{Path, PathBuf};

use gantry_engine::{Engine, PodRow};
use gantry_model::PodId;
use gantry_model::query::PodQuery;

use crate::exit::{self, Asking};
use crate::failure::{Failure, io};
use crate::pod_filter::{self, Condition};

/// The pod that this text names: by its id or the beginning of it, or by the name of an app or the host name.
pub(crate) fn find(engine: &Engine, text: &str) -> Result<PodId, Failure> {
    Ok(engine.find_pod(text)?)
}

/// The pod that was made last.
pub(crate) fn latest(engine: &Engine) -> Result<PodId, Failure> {
    let rows = engine.list(&PodQuery::default())?;
    let newest = rows.iter().map(|view| &view.row).max_by_key(|row| (row.created, row.id));
    newest.map(|row| row.id).ok_or_else(|| crate::failure::CliError::NoPods.into())
}

/// One pod of a command that takes one.
#[derive(Debug, clap::Args)]
pub(crate) struct OnePod {
    /// A pod: its id or the beginning of it, or the name of an app or host
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest"])]
    pub(crate) pod: Option<String>,
    #[command(flatten)]
    pub(crate) other: Other,
}

/// Pods that are named in another way than by a word.
#[derive(Debug, clap::Args)]
pub(crate) struct Other {
    /// Read the pod's id from this file, which --uuid-file-save wrote
    #[arg(long, value_name = "FILE")]
    uuid_file: Option<PathBuf>,
    /// The pod that was made last
    #[arg(long, short, conflicts_with = "uuid_file")]
    latest: bool,
}

impl Other {
    /// The pod that is named so; `None`: a word names it.
    fn id(&self, engine: &Engine) -> Result<Option<PodId>, Failure> {
        match &self.uuid_file {
            Some(path) => find(engine, &from_file(path)?).map(Some),
            None if self.latest => latest(engine).map(Some),
            None => Ok(None),
        }
    }

    fn is_given(&self) -> bool {
        self.latest || self.uuid_file.is_some()
    }
}

impl OnePod {
    /// The pod, and the word in its place where something else names it.
    pub(crate) fn id(&self, engine: &Engine) -> Result<(PodId, Option<&str>), Failure> {
        if let Some(id) = self.other.id(engine)? {
            return Ok((id, self.pod.as_deref()));
        }
        find(engine, self.pod.as_deref().unwrap_or_default()).map(|id| (id, None))
    }

    /// The pod of a command that takes no other words.
    pub(crate) fn only(&self, engine: &Engine) -> Result<PodId, Failure> {
        match self.id(engine)? {
            (id, None) => Ok(id),
            (_, Some(_)) => Err(twice()),
        }
    }
}

fn twice() -> Failure {
    Failure::usage(
        "name pods by words, by --uuid-file, by --latest, or by --all and --filter: not in two of these ways",
    )
}

/// Pods of a command that takes several.
#[derive(Debug, clap::Args)]
pub(crate) struct Pods {
    /// Pods: their ids or the beginnings of them, or the names of apps or hosts
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest"])]
    pods: Vec<String>,
    #[command(flatten)]
    other: Other,
}

impl Pods {
    /// Whether the command selects several pods.
    pub(crate) fn are_several(&self) -> bool {
        self.pods.len() > 1
    }

    /// Does something with every one of them, also when it fails for some: each failure is said, and the worst code
    /// counts.
    pub(crate) fn each(
        &self,
        engine: &Engine,
        debug: bool,
        act: impl FnMut(PodId) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        each(engine, &self.pods, self.other.id(engine)?, self.other.is_given(), debug, act)
    }
}

/// Pods of a command that takes them in sets, too.
#[derive(Debug, clap::Args)]
pub(crate) struct PodSet {
    /// Pods: their ids or the beginnings of them, or the names of apps or hosts
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest", "all", "filter"])]
    pods: Vec<String>,
    #[command(flatten)]
    other: Other,
    /// All pods with which this can be done
    #[arg(long, short, conflicts_with_all = ["pods", "uuid_file", "latest"])]
    all: bool,
    /// All of them that fit: state=, name=, app=, label=, image=, exited=, network= or id=; see 'gantry list'
    #[arg(long, value_parser = pod_filter::parse, value_name = "KEY=VALUE", conflicts_with_all = ["pods", "uuid_file", "latest"])]
    filter: Vec<Condition>,
}

impl PodSet {
    /// As [`Pods::each`]; `fits` says of which pods a set consists.
    pub(crate) fn each(
        &self,
        engine: &Engine,
        debug: bool,
        fits: impl Fn(&PodRow) -> bool,
        act: impl FnMut(PodId) -> Result<u8, Failure>,
    ) -> Result<u8, Failure> {
        if !self.all && self.filter.is_empty() {
            return each(engine, &self.pods, self.other.id(engine)?, self.other.is_given(), debug, act);
        }
        let mut chosen = Vec::new();
        for view in engine.list(&PodQuery::default())? {
            if fits(&view.row) && pod_filter::holds(&self.filter, &view.row)? {
                chosen.push(view.row.id);
            }
        }
        Ok(worst(chosen.into_iter().map(Ok), debug, act))
    }
}

fn each(
    engine: &Engine,
    words: &[String],
    other: Option<PodId>,
    is_other: bool,
    debug: bool,
    act: impl FnMut(PodId) -> Result<u8, Failure>,
) -> Result<u8, Failure> {
    if is_other && !words.is_empty() {
        return Err(twice());
    }
    let named = words.iter().map(|word| find(engine, word));
    Ok(worst(named.chain(other.map(Ok)), debug, act))
}

fn worst(
    pods: impl Iterator<Item = Result<PodId, Failure>>,
    debug: bool,
    mut act: impl FnMut(PodId) -> Result<u8, Failure>,
) -> u8 {
    let mut worst = exit::OK;
    for pod in pods {
        let code = pod.and_then(&mut act).unwrap_or_else(|failure| {
            failure.print(debug);
            failure.code(Asking::Existence)
        });
        worst = worst.max(code);
    }
    worst
}

/// A UUID has 36 characters; a longer file is not a UUID file.
const MAX_ID_FILE: u64 = 128;

fn from_file(path: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let failed = || io("read the pod's id from", path.display().to_string());
    let file = std::fs::File::open(path).map_err(failed())?;
    let mut text = String::new();
    file.take(MAX_ID_FILE).read_to_string(&mut text).map_err(failed())?;
    Ok(text.trim().to_owned())
}
