//! Selects the pods for a command: by id, by name, the newest one, all of them, or by filters.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use gantry_engine::{Engine, PodRow, PodWait};
use gantry_model::query::PodQuery;
use gantry_model::{AppName, PodId};

use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure, io};
use crate::pod_filter::{self, Condition};
use crate::targets;

/// The most pods that a command ends at once. Ending one is mostly waiting: for its apps, then for the kernel.
const MAX_AT_ONCE: usize = 8;
/// The most pods whose journals a command keeps open until it waits for them: it needs descriptors for other files.
const MAX_WATCHED_RUNS: usize = 256;

/// Finds a pod by its id, its name, a unique prefix of the id, the name of an app, or the host name.
pub(crate) fn find(engine: &Engine, text: &str) -> Result<PodId, Failure> {
    find_only_pod(engine, text, None)
}

/// As [`find`]; `instead` is the command for an app, if there is one.
fn find_only_pod(engine: &Engine, text: &str, instead: Option<&str>) -> Result<PodId, Failure> {
    match split_at_slash(text) {
        (pod, Some(_)) if !pod.is_empty() => {
            engine.find_pod(pod)?;
            let instead = instead.map(str::to_owned);
            Err(CliError::AppForPod { text: text.to_owned(), pod: pod.to_owned(), instead }.into())
        }
        _ => Ok(engine.find_pod(text)?),
    }
}

/// The pod, and the app, that a word and `--app` name: a pod, `POD/APP`, or the id of an app.
fn find_target(engine: &Engine, text: &str, app: Option<&AppName>) -> Result<(PodId, Option<AppName>), Failure> {
    let is_pod = app.is_none() && split(text)?.1.is_none() && engine.find_app_by_id(text)?.is_none();
    match is_pod {
        true => find(engine, text).map(|id| (id, None)),
        false => find_app(engine, text, app).map(|(id, app)| (id, Some(app))),
    }
}

/// The newest pod.
pub(crate) fn latest(engine: &Engine) -> Result<PodId, Failure> {
    let rows = engine.list(&PodQuery::default())?;
    let newest = rows.iter().map(|view| &view.row).max_by_key(|row| (row.created, row.id));
    newest.map(|row| row.id).ok_or_else(|| CliError::NoPods.into())
}

/// The pod of a command that takes exactly one.
#[derive(Debug, clap::Args)]
pub(crate) struct OnePod {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest"])]
    pub(crate) pod: Option<String>,
    #[command(flatten)]
    pub(crate) reference: PodReference,
}

/// Flags that select a pod in place of an argument.
#[derive(Debug, clap::Args)]
pub(crate) struct PodReference {
    /// Read the pod's id from this file, as written by --uuid-file-save
    #[arg(long, value_name = "FILE")]
    uuid_file: Option<PathBuf>,
    /// The newest pod
    #[arg(long, short, conflicts_with = "uuid_file")]
    latest: bool,
}

impl PodReference {
    /// The selected pod; `None`: no such flag is given.
    fn find(&self, engine: &Engine) -> Result<Option<PodId>, Failure> {
        match &self.uuid_file {
            Some(path) => find(engine, &read_id_file(path)?).map(Some),
            None if self.latest => latest(engine).map(Some),
            None => Ok(None),
        }
    }

    fn is_given(&self) -> bool {
        self.latest || self.uuid_file.is_some()
    }
}

impl OnePod {
    /// The pod; and the first argument, if a flag selects the pod.
    pub(crate) fn id(&self, engine: &Engine) -> Result<(PodId, Option<&str>), Failure> {
        if let Some(id) = self.reference.find(engine)? {
            return Ok((id, self.pod.as_deref()));
        }
        find(engine, self.pod.as_deref().unwrap_or_default()).map(|id| (id, None))
    }

    /// The pod, the app of a command that acts on one, and the first argument, if a flag selects the pod. The word may
    /// also be `POD/APP` or the id of an app.
    pub(crate) fn app(&self, engine: &Engine, app: Option<&AppName>) -> Result<SelectedApp<'_>, Failure> {
        let text = self.pod.as_deref().unwrap_or_default();
        let named = match self.reference.is_given() {
            true => None,
            false if text.contains('/') => Some(find_app(engine, text, app)?),
            false => engine.find_app_by_id(text)?,
        };
        match named {
            Some((_, name)) if app.is_some_and(|app| *app != name) => Err(named_twice()),
            Some((pod, name)) => Ok(SelectedApp { pod, app: Some(name), found_by: None, first: None }),
            None if self.reference.is_given() => {
                let (pod, first) = self.id(engine)?;
                Ok(SelectedApp { pod, app: app.cloned(), found_by: None, first })
            }
            None => {
                let (pod, found_by) = engine.find_pod_and_app(text)?;
                Ok(SelectedApp { pod, app: app.cloned(), found_by, first: None })
            }
        }
    }

    /// As [`Self::app`], for a command that takes no further arguments.
    pub(crate) fn only_app(&self, engine: &Engine, app: Option<&AppName>) -> Result<(PodId, Option<AppName>), Failure> {
        match self.app(engine, app)? {
            SelectedApp { pod, app, first: None, .. } => Ok((pod, app)),
            SelectedApp { first: Some(_), .. } => Err(selected_twice()),
        }
    }

    /// The pod of a command that takes no further arguments.
    pub(crate) fn only(&self, engine: &Engine) -> Result<PodId, Failure> {
        match self.id(engine)? {
            (id, None) => Ok(id),
            (_, Some(_)) => Err(selected_twice()),
        }
    }
}

/// The pod and the app of a command.
#[derive(Debug)]
pub(crate) struct SelectedApp<'a> {
    /// The pod.
    pub(crate) pod: PodId,
    /// The app, if one is named.
    pub(crate) app: Option<AppName>,
    /// The app by whose name the pod was found.
    pub(crate) found_by: Option<AppName>,
    /// The first argument, if a flag selects the pod.
    pub(crate) first: Option<&'a str>,
}

/// The pod and the app in `POD/APP`, or the pod alone.
fn split_at_slash(text: &str) -> (&str, Option<&str>) {
    text.split_once('/').map_or((text, None), |(pod, app)| (pod, Some(app)))
}

/// The pod and the app that a word names, if it names one.
pub(crate) fn split(text: &str) -> Result<(&str, Option<AppName>), Failure> {
    let (pod, app) = split_at_slash(text);
    Ok((pod, app.map(str::parse).transpose()?))
}

/// Finds an app by its id, by `POD/APP`, or by a pod and `--app`; without these, the pod's only app.
pub(crate) fn find_app(engine: &Engine, text: &str, app: Option<&AppName>) -> Result<(PodId, AppName), Failure> {
    if app.is_none()
        && let Some(found) = engine.find_app_by_id(text)?
    {
        return Ok(found);
    }
    let (pod, named) = split(text)?;
    if named.is_some() && app.is_some() && named.as_ref() != app {
        return Err(named_twice());
    }
    let (id, found_by) = engine.find_pod_and_app(pod)?;
    let app = engine.select_app(id, named.as_ref().or(app).or(found_by.as_ref()))?;
    Ok((id, app))
}

fn named_twice() -> Failure {
    Failure::usage("name the app after the pod or with --app, not both")
}

fn selected_twice() -> Failure {
    Failure::usage(
        "select pods by arguments, by --uuid-file, by --latest, or by --all and --filter, not by several of these",
    )
}

/// The pods of a command that takes several.
#[derive(Debug, clap::Args)]
pub(crate) struct Pods {
    /// Pods: their ids, their names, unique prefixes of ids, names of apps, or host names
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest"])]
    pods: Vec<String>,
    #[command(flatten)]
    reference: PodReference,
}

impl Pods {
    /// Whether the command selects several pods.
    pub(crate) fn are_several(&self) -> bool {
        self.pods.len() > 1
    }

    /// Calls `act` for each pod and returns the highest exit code. Failures are printed, and the other pods still
    /// follow.
    pub(crate) fn for_each(
        &self,
        context: &Context,
        engine: &Engine,
        act: impl FnMut(PodId) -> Result<ExitStatus, Failure>,
    ) -> Result<ExitStatus, Failure> {
        for_each(context, engine, &self.pods, &self.reference, act)
    }

    /// As [`Self::for_each`], for waiting: looks at all pods before the first wait, during which the others may end and
    /// be removed.
    pub(crate) fn for_each_wait<'e>(
        &self,
        context: &Context,
        engine: &'e Engine,
        mut act: impl FnMut(PodWait<'e>) -> Result<ExitStatus, Failure>,
    ) -> Result<ExitStatus, Failure> {
        let ids: Vec<_> = resolve(context, engine, &self.pods, &self.reference)?.collect();
        // A wait begins with a look.
        let looks_first = ids.len() > 1;
        let pods = ids.into_iter().enumerate().map(|(at, id)| {
            let mut pod = engine.pod_wait(id?);
            if looks_first {
                pod.look(at < MAX_WATCHED_RUNS)?;
            }
            Ok(pod)
        });
        let pods: Vec<Result<_, Failure>> = pods.collect();
        Ok(context.for_each(pods, CommandKind::Query, &mut |pod: Result<_, Failure>| pod.and_then(&mut act)))
    }
}

/// The pods of a command that also takes `--all` and `--filter`.
#[derive(Debug, clap::Args)]
pub(crate) struct PodSet {
    /// Pods: their ids, their names, unique prefixes of ids, names of apps, or host names
    #[arg(value_name = "POD", required_unless_present_any = ["uuid_file", "latest", "all", "filter"])]
    pods: Vec<String>,
    #[command(flatten)]
    reference: PodReference,
    /// All pods to which the command applies
    #[arg(long, short, conflicts_with_all = ["pods", "uuid_file", "latest"])]
    all: bool,
    /// Only pods that match: state=, name=, namespace=, app=, label=, image=, exited=, network= or id=; see 'gantry
    /// list'
    #[arg(long, value_parser = pod_filter::parse, value_name = "KEY=VALUE", conflicts_with_all = ["pods", "uuid_file", "latest"])]
    filter: Vec<Condition>,
}

impl PodSet {
    /// As [`Pods::for_each`]; `is_selected` limits `--all` and `--filter` to the pods to which the command applies.
    pub(crate) fn for_each(
        &self,
        context: &Context,
        engine: &Engine,
        is_selected: impl Fn(&PodRow) -> bool,
        act: impl FnMut(PodId) -> Result<ExitStatus, Failure>,
    ) -> Result<ExitStatus, Failure> {
        if let Some(chosen) = self.choose(engine, is_selected)? {
            return Ok(for_each_id(context, chosen.into_iter().map(Ok), act));
        }
        for_each(context, engine, &self.pods, &self.reference, act)
    }

    /// As [`Self::for_each`], where a word may name an app, too; `app` is that of `--app`. All words are resolved
    /// first, as in [`targets::for_each`].
    pub(crate) fn for_each_target(
        &self,
        context: &Context,
        engine: &Engine,
        is_selected: impl Fn(&PodRow) -> bool,
        app: Option<&AppName>,
        mut act: impl FnMut(PodId, Option<&AppName>) -> Result<ExitStatus, Failure>,
    ) -> Result<ExitStatus, Failure> {
        if self.pods.is_empty() || self.reference.is_given() {
            return self.for_each(context, engine, is_selected, |id| act(id, app));
        }
        let find = |word: &str| find_target(engine, word, app);
        Ok(targets::for_each(context, engine, &self.pods, find, &mut |(id, app)| act(id, app.as_ref())))
    }

    /// As [`Self::for_each`], for several pods at once and in any order: each thread has an engine of its own.
    pub(crate) fn for_each_at_once(
        &self,
        context: &Context,
        engine: &Engine,
        is_selected: impl Fn(&PodRow) -> bool,
        act: impl Fn(&Engine, PodId) -> Result<ExitStatus, Failure> + Sync,
    ) -> Result<ExitStatus, Failure> {
        let (ids, worst) = match self.choose(engine, is_selected)? {
            Some(chosen) => (chosen, ExitStatus::OK),
            None => {
                let mut ids = Vec::new();
                let find = |id| {
                    ids.push(id);
                    Ok(ExitStatus::OK)
                };
                let worst = for_each(context, engine, &self.pods, &self.reference, find)?;
                (ids, worst)
            }
        };
        let threads = ids.len().min(MAX_AT_ONCE);
        Ok(worst.worst(for_each_of(context, &ids, threads, engine, act)))
    }

    /// The pods that `--all` and `--filter` select; `None`: neither is given.
    fn choose(&self, engine: &Engine, is_selected: impl Fn(&PodRow) -> bool) -> Result<Option<Vec<PodId>>, Failure> {
        if !self.all && self.filter.is_empty() {
            return Ok(None);
        }
        let mut chosen = Vec::new();
        for view in engine.list(&PodQuery::default())? {
            if is_selected(&view.row) && pod_filter::holds(&self.filter, &view.row)? {
                chosen.push(view.row.id);
            }
        }
        Ok(Some(chosen))
    }
}

/// Calls `act` for each pod on this many threads and returns the worst exit code.
fn for_each_of(
    context: &Context,
    ids: &[PodId],
    threads: usize,
    engine: &Engine,
    act: impl Fn(&Engine, PodId) -> Result<ExitStatus, Failure> + Sync,
) -> ExitStatus {
    let next = AtomicUsize::new(0);
    let take = |engine: &Engine| {
        let ids = std::iter::from_fn(|| ids.get(next.fetch_add(1, Ordering::Relaxed)).copied());
        for_each_id(context, ids.map(Ok), |id| act(engine, id))
    };
    thread::scope(|scope| {
        let mut others = Vec::new();
        for _ in 1..threads {
            let (take, options) = (&take, engine.options().clone());
            // A thread that cannot start or open the database leaves the pods to the others.
            others.extend(
                thread::Builder::new()
                    .spawn_scoped(scope, move || Engine::open(options).map_or(ExitStatus::OK, |engine| take(&engine))),
            );
        }
        let own = take(engine);
        others.into_iter().fold(own, |worst, other| {
            worst.worst(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })
}

fn for_each(
    context: &Context,
    engine: &Engine,
    words: &[String],
    reference: &PodReference,
    act: impl FnMut(PodId) -> Result<ExitStatus, Failure>,
) -> Result<ExitStatus, Failure> {
    Ok(for_each_id(context, resolve(context, engine, words, reference)?, act))
}

/// The pods that the words and the flags select, each looked up when it is taken. A pod that is named twice is one pod:
/// the second removal of it would fail.
fn resolve<'a>(
    context: &Context,
    engine: &'a Engine,
    words: &'a [String],
    reference: &PodReference,
) -> Result<impl Iterator<Item = Result<PodId, Failure>> + use<'a>, Failure> {
    let reference = reference.find(engine)?;
    if reference.is_some() && !words.is_empty() {
        return Err(selected_twice());
    }
    let instead = context.command_for_apps();
    let named = words.iter().map(move |word| find_only_pod(engine, word, instead.as_deref()));
    let mut seen = HashSet::new();
    let is_new = move |found: &Result<PodId, Failure>| found.as_ref().map_or(true, |id| seen.insert(*id));
    Ok(named.chain(reference.map(Ok)).filter(is_new))
}

fn for_each_id(
    context: &Context,
    pods: impl Iterator<Item = Result<PodId, Failure>>,
    mut act: impl FnMut(PodId) -> Result<ExitStatus, Failure>,
) -> ExitStatus {
    context.for_each(pods, CommandKind::Query, &mut |pod: Result<PodId, Failure>| pod.and_then(&mut act))
}

/// A UUID has 36 characters; a longer file is not a UUID file.
const MAX_ID_FILE: u64 = 128;

fn read_id_file(path: &Path) -> Result<String, Failure> {
    use std::io::Read as _;
    let failed = || io("read the pod's id from", path.display().to_string());
    let file = std::fs::File::open(path).map_err(failed())?;
    let mut text = String::new();
    file.take(MAX_ID_FILE).read_to_string(&mut text).map_err(failed())?;
    match text.trim() {
        "" => {
            Err(CliError::Content { path: path.to_owned(), why: "is empty: it should contain a pod's id".to_owned() }
                .into())
        }
        id => Ok(id.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apps_are_named_after_their_pods() {
        assert_eq!(split("12ab/web").unwrap(), ("12ab", Some("web".parse().unwrap())));
        assert_eq!(split("12ab").unwrap(), ("12ab", None));
        assert!(split("12ab/").is_err() && split("12ab/a/b").is_err());
    }
}
