//! Pods and apps of commands that change several: all words are resolved before the command acts on any.

use gantry_engine::Engine;
use gantry_model::{AppName, ErrorKind};

use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::split;

/// Resolves each word with `find`, then calls `act` for each result and returns the worst exit code. A word is often
/// an app that was written without its pod (`app rm POD APP`), where `POD` alone means another app: if a word cannot
/// be resolved, the failures are printed and nothing is changed. Failures of `act` are printed, and the others still
/// follow. A target that is named twice is changed once.
pub(crate) fn for_each<T: PartialEq>(
    context: &Context,
    engine: &Engine,
    words: &[String],
    find: impl Fn(&str) -> Result<T, Failure>,
    act: &mut dyn FnMut(T) -> Result<ExitStatus, Failure>,
) -> ExitStatus {
    let (mut targets, mut failures) = (Vec::new(), Vec::new());
    for (at, word) in words.iter().enumerate() {
        match find(word) {
            Ok(target) if targets.contains(&target) => {}
            Ok(target) => targets.push(target),
            Err(failure) => failures.push(explained(engine, &words[..at], word, failure)),
        }
    }
    if failures.is_empty() {
        return context.for_each(targets, CommandKind::Query, act);
    }
    let worst = context.report(failures, CommandKind::Query);
    if !targets.is_empty() {
        crate::failure::print_stderr("gantry: nothing was changed\n");
    }
    worst
}

/// Adds how to write the word if it names no pod and follows one.
fn explained(engine: &Engine, before: &[String], word: &str, failure: Failure) -> Failure {
    let is_absent = failure.kind() == ErrorKind::NotFound && word.parse::<AppName>().is_ok();
    match is_absent.then(|| pod_of(engine, before, word)).flatten() {
        Some(pod) => failure.with_hint(format!("an app is written after its pod: {pod}/{word}")),
        None => failure,
    }
}

/// Of the words, the pod that has an app of this name; else the last word, if it is a pod.
fn pod_of<'a>(engine: &Engine, words: &'a [String], app: &str) -> Option<&'a str> {
    let pods = || words.iter().rev().filter_map(|word| split(word).ok()).map(|(pod, _)| pod);
    let has_app = |pod: &str| {
        let status = engine.find_pod(pod).ok().and_then(|id| engine.status(id).ok());
        status.is_some_and(|status| status.row.apps.iter().any(|row| row.name.as_str() == app))
    };
    pods().find(|pod| has_app(pod)).or_else(|| pods().next().filter(|pod| engine.find_pod(pod).is_ok()))
}
