//! Values of flags, for completion.

use gantry_model::spec::{ALL_CAPABILITIES, CAPABILITIES};
use gantry_model::ulimit::Resource;
use gantry_model::{EventKind, PhaseName};

use super::candidates::{Candidate, Candidates};
use super::host_names::HostNames;
use crate::commands::events::filter::KEYS as EVENT_KEYS;
use crate::pod_filter::{KEYS as POD_KEYS, PodStateFilter};

/// The values of the flag `name` of `command`; `hint` is what its help shows in place of a value, such as `auto|plain`.
pub(super) fn values(command: &str, name: &str, hint: &str, typed: &str, names: &dyn HostNames) -> Candidates {
    match name {
        "phase" | "state" => Candidates::from_words(PhaseName::ALL.map(PhaseName::as_str)),
        "signal" | "stop-signal" => {
            Candidates::from_words(gantry_model::signal::NAMES.map(|name| format!("SIG{name}")))
        }
        "cap-add" | "cap-drop" => {
            Candidates::from_words(CAPABILITIES.iter().copied().chain([ALL_CAPABILITIES]).map(short))
        }
        "caps-retain" | "cap-retain" | "caps-remove" | "cap-remove" => {
            Candidates::from_words(CAPABILITIES.iter().copied())
        }
        "ulimit" => Candidates::from_words(Resource::ALL.map(|resource| format!("{}=", resource.as_str()))),
        "insecure-options" => Candidates::from_words(crate::globals::INSECURE_OPTIONS),
        "net" | "network" => {
            Candidates::from_words(["none", "host", "all"].map(str::to_owned).into_iter().chain(names.networks()))
        }
        "app" => Candidates::from_words(names.pods().into_iter().flat_map(|pod| pod.apps)),
        "filter" if command == "events" => filters(&EVENT_KEYS, typed, names),
        "filter" if command == "logs" => Candidates::from_words(["app=", "stream=stdout", "stream=stderr"]),
        "filter" => filters(&POD_KEYS, typed, names),
        "security-opt" => Candidates::from_words(["no-new-privileges", "seccomp=unconfined"]),
        "device" | "volume" | "log-dir" => Candidates::files(),
        "log-level" => Candidates::from_words(gantry_logging::level_names()),
        "log-format" => Candidates::from_words(["text", "json"]),
        _ if matches!(hint, "FILE" | "DIR") => Candidates::files(),
        _ if is_choice(hint) => Candidates::from_words(hint.split('|').map(without_addition)),
        _ => Candidates::default(),
    }
}

/// docker users write capabilities without the `CAP_` prefix.
fn short(name: &str) -> String {
    name.strip_prefix("CAP_").unwrap_or(name).to_owned()
}

/// Whether the help lists all values, as `never|new|update` or `no|on-failure[:N]`.
fn is_choice(hint: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_lowercase() || c == b'-');
    hint.contains('|') && hint.split('|').map(without_addition).all(is_word)
}

/// `on-failure[:N]` as `on-failure`.
fn without_addition(word: &str) -> &str {
    word.split('[').next().unwrap_or(word)
}

/// The keys of a filter, and the values of the key that is typed.
fn filters(keys: &[&str], typed: &str, names: &dyn HostNames) -> Candidates {
    let Some((key, _)) = typed.split_once('=') else {
        return Candidates::from_words(keys.iter().map(|key| format!("{key}=")));
    };
    let values: Vec<String> = match key {
        "type" => EventKind::ALL.map(|kind| kind.as_str().to_owned()).into(),
        "state" => PhaseName::ALL
            .map(PhaseName::as_str)
            .iter()
            .chain(&PodStateFilter::WORDS)
            .map(ToString::to_string)
            .collect(),
        "app" | "name" => names.pods().into_iter().flat_map(|pod| pod.apps).collect(),
        "image" => names.images(),
        "network" => names.networks(),
        "pod" | "id" => names.pods().into_iter().map(|pod| pod.id).collect(),
        _ => Vec::new(),
    };
    let candidates = values.into_iter().map(|value| Candidate::word(format!("{key}={value}")));
    Candidates { candidates: candidates.collect(), files: false }
}
