//! Values of flags, for completion.

use gantry_model::spec::{ALL_CAPABILITIES, CAPABILITIES};
use gantry_model::{EventKind, Phase};

use super::candidates::{Answer, Candidate};
use super::known::Known;
use crate::commands::events::filter::KEYS as EVENT_KEYS;
use crate::pod_filter::KEYS as POD_KEYS;

/// The values of the flag `name` of `command`; `hint` is what its help shows in place of a value, such as `auto|plain`.
pub(super) fn values(command: &str, name: &str, hint: &str, typed: &str, known: &dyn Known) -> Answer {
    match name {
        "phase" | "state" => Answer::words(Phase::NAMES),
        "signal" | "stop-signal" => Answer::words(crate::signal_name::NAMES.map(|name| format!("SIG{name}"))),
        "cap-add" | "cap-drop" => Answer::words(CAPABILITIES.iter().copied().chain([ALL_CAPABILITIES]).map(short)),
        "caps-retain" | "cap-retain" | "caps-remove" | "cap-remove" => Answer::words(CAPABILITIES.iter().copied()),
        "insecure-options" => Answer::words(crate::globals::INSECURE_OPTIONS),
        "net" | "network" => {
            Answer::words(["none", "host", "all"].map(str::to_owned).into_iter().chain(known.networks()))
        }
        "app" => Answer::words(known.pods().into_iter().flat_map(|pod| pod.apps)),
        "filter" if command == "events" => filters(&EVENT_KEYS, typed, known),
        "filter" if command == "logs" => Answer::words(["app=", "stream=stdout", "stream=stderr"]),
        "filter" => filters(&POD_KEYS, typed, known),
        "security-opt" => Answer::words(["no-new-privileges", "seccomp=unconfined"]),
        "dir" | "config" | "uuid-file" | "uuid-file-save" | "cidfile" | "pod-manifest" | "env-file"
        | "set-env-file" | "volume" | "working-dir" | "workdir" => Answer::files(),
        _ if is_choice(hint) => Answer::words(hint.split('|')),
        _ => Answer::default(),
    }
}

/// docker users write capabilities without the `CAP_` prefix.
fn short(name: &str) -> String {
    name.strip_prefix("CAP_").unwrap_or(name).to_owned()
}

/// Whether the help lists all values, as `never|new|update`.
fn is_choice(hint: &str) -> bool {
    hint.contains('|') && hint.split('|').all(|word| !word.is_empty() && word.bytes().all(|c| c.is_ascii_lowercase()))
}

/// The keys of a filter, and the values of the key that is typed.
fn filters(keys: &[&str], typed: &str, known: &dyn Known) -> Answer {
    let Some((key, _)) = typed.split_once('=') else {
        return Answer::words(keys.iter().map(|key| format!("{key}=")));
    };
    let values: Vec<String> = match key {
        "type" => EventKind::ALL.map(|kind| kind.as_str().to_owned()).into(),
        "state" => Phase::NAMES.map(str::to_owned).into(),
        "app" | "name" => known.pods().into_iter().flat_map(|pod| pod.apps).collect(),
        "image" => known.images(),
        "network" => known.networks(),
        "pod" | "id" => known.pods().into_iter().map(|pod| pod.id).collect(),
        _ => Vec::new(),
    };
    let candidates = values.into_iter().map(|value| Candidate::word(format!("{key}={value}")));
    Answer { candidates: candidates.collect(), files: false }
}
