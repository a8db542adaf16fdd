//! `--filter KEY=VALUE` of the commands that list or select pods. A pod matches if every key matches; a key matches if
//! any of its values does, except for `label`, where all values have to match.

use gantry_engine::{AppRow, PodRow};
use gantry_model::id::{IdError, shown};
use gantry_model::{ImageRef, Phase, PhaseName, PodNamespace, PodPrefix};

use crate::failure::Failure;
use crate::image_names;
use crate::render::pod::pod_run;

/// The keys.
pub(crate) const KEYS: [&str; 9] = ["state", "name", "namespace", "app", "label", "image", "exited", "network", "id"];

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Condition {
    /// In this state.
    State(PodStateFilter),
    /// An app, or the host, has this name.
    Name(String),
    /// It is in this namespace.
    Namespace(PodNamespace),
    /// An app has this name.
    App(String),
    /// It has this label, with this value if one is given.
    Label(String, Option<String>),
    /// An app was made from this image.
    Image(String),
    /// It has exited with this code.
    Exited(i32),
    /// It requested this network or is attached to it.
    Network(String),
    /// Its id has this prefix.
    Id(PodPrefix),
}

/// A state of a pod, as lists show it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PodStateFilter {
    /// In this phase.
    Phase(PhaseName),
    /// It runs and is paused.
    Paused,
    /// It, or one of its apps, has exited and is about to be started again.
    Restarting,
}

impl PodStateFilter {
    /// The words beside those of the phases.
    pub(crate) const WORDS: [&'static str; 2] = ["paused", "restarting"];
}

impl std::str::FromStr for PodStateFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "paused" => Self::Paused,
            "restarting" => Self::Restarting,
            _ => Self::Phase(phase(text).map_err(|error| format!("{error}, {}", Self::WORDS.join(", ")))?),
        })
    }
}

/// Reads `KEY=VALUE`.
pub(crate) fn parse(text: &str) -> Result<Condition, String> {
    let expected = || format!("expected KEY=VALUE with one of {}", KEYS.join(", "));
    let (key, value) = text.split_once('=').ok_or_else(expected)?;
    if value.is_empty() {
        return Err(format!("the value of '{}' is missing", shown(key)));
    }
    let text = || value.to_owned();
    Ok(match key {
        "state" | "phase" | "status" => Condition::State(value.parse()?),
        "name" => Condition::Name(text()),
        "namespace" => Condition::Namespace(value.parse().map_err(|error: IdError| error.to_string())?),
        "app" => Condition::App(text()),
        "label" => match value.split_once('=') {
            Some((name, value)) => Condition::Label(name.to_owned(), Some(value.to_owned())),
            None => Condition::Label(text(), None),
        },
        "image" | "ancestor" => Condition::Image(text()),
        "exited" => Condition::Exited(value.parse().map_err(|_| format!("'{}' is not an exit code", shown(value)))?),
        "network" => Condition::Network(text()),
        "id" => Condition::Id(value.parse().map_err(|error: IdError| error.to_string())?),
        _ => return Err(format!("'{}' is not a key: {}", shown(key), expected())),
    })
}

/// Parses a phase.
pub(crate) fn phase(text: &str) -> Result<PhaseName, String> {
    PhaseName::from_word(text).ok_or_else(|| {
        let all = PhaseName::ALL.map(PhaseName::as_str).join(", ");
        format!("'{}' is not a phase: expected one of {all}", shown(text))
    })
}

/// Whether the pod matches.
///
/// # Errors
/// The networks in the pod's row are damaged.
pub(crate) fn holds(conditions: &[Condition], row: &PodRow) -> Result<bool, Failure> {
    let networks = match conditions.iter().any(|condition| matches!(condition, Condition::Network(_))) {
        true => networks(row)?,
        false => Vec::new(),
    };
    let met: Vec<bool> = conditions.iter().map(|condition| is_met(condition, row, &networks)).collect();
    let key = std::mem::discriminant::<Condition>;
    Ok(conditions.iter().zip(&met).all(|(condition, is_met)| {
        let label = matches!(condition, Condition::Label(..));
        *is_met || !label && conditions.iter().zip(&met).any(|(other, met)| *met && key(other) == key(condition))
    }))
}

/// The names of the networks that the pod requested, and of those it is attached to.
fn networks(row: &PodRow) -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = row.networks.read()?.into_iter().map(|network| network.name).collect();
    let requested = row.net.to_string();
    names.extend(requested.split(',').map(|network| network.split(':').next().unwrap_or(network).to_owned()));
    Ok(names)
}

fn is_met(condition: &Condition, row: &PodRow, networks: &[String]) -> bool {
    let has_app = |name: &str| row.apps.iter().any(|app| app.name.as_str() == name);
    match condition {
        Condition::State(PodStateFilter::Phase(phase)) => row.phase.name() == *phase,
        Condition::State(PodStateFilter::Paused) => row.paused,
        Condition::State(PodStateFilter::Restarting) => is_restarting(row),
        Condition::Name(name) => {
            row.name.as_ref().is_some_and(|is| is.as_str() == name) || row.hostname == *name || has_app(name)
        }
        Condition::Namespace(namespace) => row.namespace == *namespace,
        Condition::App(name) => has_app(name),
        Condition::Label(name, value) => {
            row.user_labels.get(name).is_some_and(|is| value.as_ref().is_none_or(|value| value == is))
        }
        Condition::Image(image) => row.apps.iter().any(|app| is_of_image(app, image)),
        Condition::Exited(code) => pod_run(&row.phase).end.is_some_and(|end| end.exit_code == *code),
        Condition::Network(name) => networks.contains(name),
        Condition::Id(prefix) => row.id.to_string().starts_with(&prefix.to_string()),
    }
}

fn is_restarting(row: &PodRow) -> bool {
    match row.phase {
        Phase::Running { .. } => row.apps.iter().any(|app| app.state.is_restarting()),
        // Only an exited pod has a time.
        _ => row.restart.at.is_some(),
    }
}

/// Whether the app runs this image, given by name or id. The name may omit the registry, the tag, or both; the id may
/// omit the algorithm, and all but the first 8 digits.
fn is_of_image(app: &AppRow, image: &str) -> bool {
    let digits = image.strip_prefix("sha256:").or(image.strip_prefix("sha512:")).unwrap_or(image);
    if digits.len() >= ImageRef::MIN_ID_DIGITS && app.image.as_ref().is_some_and(|id| id.hex().starts_with(digits)) {
        return true;
    }
    let name = app.image_name.split_once("://").map_or(app.image_name.as_str(), |(_, name)| name);
    image_names::any_form(name, |form| form == image)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::pod::tests::ended;

    fn row() -> PodRow {
        let mut row = ended();
        row.apps[0].image_name = "docker://registry.example:5000/team/app:1".into();
        row.user_labels = [("tier".to_owned(), "web=1".to_owned()), ("x".to_owned(), String::new())].into();
        row
    }

    #[test]
    fn conditions_select_pods() {
        let row = row();
        for (filters, want) in [
            (&[][..], true),
            (&["state=exited"], true),
            (&["status=running"], false),
            (&["state=running", "state=exited"], true),
            (&["state=exited", "exited=1"], false),
            (&["exited=139"], true),
            (&["exited=0", "exited=139"], true),
            (&["name=a"], true),
            (&["name=h"], true),
            (&["namespace=taloscontainers"], true),
            (&["namespace=k8s.io"], false),
            (&["app=h"], false),
            (&["label=tier"], true),
            (&["label=tier=web=1", "label=x"], true),
            (&["label=tier=web=1", "label=y"], false),
            (&["label=tier=web"], false),
            (&["image=app"], true),
            (&["image=team/app"], true),
            (&["ancestor=team/app:1"], true),
            (&["image=registry.example:5000/team/app:1"], true),
            (&["image=pp:1"], false),
            (&["image=abababab"], true),
            (&["image=sha256:abababababab"], true),
            (&["image=ababab"], false),
            (&["network=none"], true),
            (&["network=default"], false),
            (&["id=6733c088"], true),
            (&["id=7"], false),
        ] {
            let conditions: Vec<_> = filters.iter().map(|text| parse(text).unwrap()).collect();
            assert_eq!(holds(&conditions, &row).unwrap(), want, "{filters:?}");
        }
    }

    #[test]
    fn invalid_conditions_are_rejected() {
        for (text, want) in [
            ("running", "expected KEY=VALUE"),
            ("state=", "is missing"),
            ("state=happy", "garbage, deleting, paused, restarting"),
            ("exited=x", "is not an exit code"),
            ("namespace=system", "namespace of gantryd"),
            ("colour=red", "is not a key"),
            ("id=xyz", "xyz"),
            ("\u{1b}=1", "u{1b}"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(want) && !error.contains('\u{1b}'), "{text}: {error}");
        }
    }
}
