//! `--filter KEY=VALUE` of the commands that list apps.

use std::collections::BTreeMap;

use gantry_engine::AppRow;
use gantry_model::AppState;
use gantry_model::id::shown;

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AppCondition {
    /// Its id has this prefix.
    Id(String),
    /// It has this name.
    Name(String),
    /// It is in this state.
    State(String),
    /// It has this label, with this value if one is given.
    Label(String, Option<String>),
    /// It has this annotation, with this value if one is given.
    Annotation(String, Option<String>),
}

/// Reads `KEY=VALUE`.
pub(crate) fn parse(text: &str) -> Result<AppCondition, String> {
    let expected = "expected KEY=VALUE with one of id, name, state, label, annotation";
    let (key, value) = text.split_once('=').ok_or(expected)?;
    if value.is_empty() {
        return Err(format!("the value of '{}' is missing", shown(key)));
    }
    let pair = || match value.split_once('=') {
        Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
        None => (value.to_owned(), None),
    };
    Ok(match key {
        "id" => AppCondition::Id(value.to_owned()),
        "name" => AppCondition::Name(value.to_owned()),
        "state" | "status" if [PAUSED, RESTARTING].contains(&value) || AppState::NAMES.contains(&value) => {
            AppCondition::State(value.to_owned())
        }
        "state" | "status" => {
            let known = AppState::NAMES.join(", ");
            return Err(format!("'{}' is not a state: expected {PAUSED}, {RESTARTING}, {known}", shown(value)));
        }
        "label" => {
            let (name, value) = pair();
            AppCondition::Label(name, value)
        }
        "annotation" => {
            let (name, value) = pair();
            AppCondition::Annotation(name, value)
        }
        _ => return Err(format!("'{}' is not a key: {expected}", shown(key))),
    })
}

/// The state of running apps that are paused.
const PAUSED: &str = "paused";
/// The state of apps that have exited and are about to be started again.
const RESTARTING: &str = "restarting";

impl AppCondition {
    /// Whether the app meets it.
    pub(crate) fn is_met(&self, app: &AppRow) -> bool {
        let has = |map: &BTreeMap<String, String>, name: &str, value: &Option<String>| {
            map.get(name).is_some_and(|is| value.as_ref().is_none_or(|value| value == is))
        };
        match self {
            Self::Id(prefix) => app.id.as_str().starts_with(prefix.as_str()),
            Self::Name(name) => app.name.as_str() == name,
            Self::State(state) if state == RESTARTING => app.state.is_restarting(),
            Self::State(state) => (if app.paused { PAUSED } else { app.state.name() }) == state,
            Self::Label(name, value) => has(&app.labels, name, value),
            Self::Annotation(name, value) => has(&app.annotations, name, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn apps_are_selected() {
        let mut app = crate::render::pod::tests::ended().apps[0].clone();
        app.labels.insert("tier".into(), "web=1".into());
        app.annotations.insert("note".into(), "x".into());
        for (filter, want) in [
            ("id=0101", true),
            ("id=02", false),
            ("name=a", true),
            ("name=b", false),
            ("state=exited", true),
            ("state=paused", false),
            ("label=tier", true),
            ("label=tier=web=1", true),
            ("label=tier=db", false),
            ("label=note", false),
            ("annotation=note=x", true),
            ("annotation=tier", false),
        ] {
            assert_eq!(parse(filter).unwrap().is_met(&app), want, "{filter}");
        }
        for bad in ["", "id", "id=", "state=odd", "image=x"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
