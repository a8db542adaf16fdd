//! Which events are logged: a level for all, and levels for single modules.

use std::str::FromStr;

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;

/// The environment variable of the filter. The flag `--log-level` wins over it.
pub const FILTER_VARIABLE: &str = "GANTRY_LOG";

/// The levels and their names, from the fewest events to the most.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warning", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The names of the levels, from the fewest events to the most.
#[must_use]
pub fn level_names() -> [&'static str; 6] {
    LEVELS.map(|(name, _)| name)
}

/// A filter: `LEVEL`, `MODULE=LEVEL`, or several of them with commas (`info,gantry_api=debug`). [`level_names`] has
/// the levels; `warn` is `warning`, too. A module includes its submodules.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter(Targets);

/// The text is no filter.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FilterError {
    /// A level that does not exist.
    #[error("'{0}' is not a level; levels are {levels}", levels = listed_levels())]
    Level(String),
    /// A module without a name.
    #[error("'{0}' names no module; expected LEVEL or MODULE=LEVEL")]
    Module(String),
    /// The filter in the environment.
    #[error("cannot read {FILTER_VARIABLE}")]
    Environment(#[source] Box<FilterError>),
}

impl Filter {
    /// Events of this level and above, whatever the module.
    #[must_use]
    pub fn level(level: LevelFilter) -> Self {
        Self(base().with_default(level))
    }

    /// The flag's filter, else that of [`FILTER_VARIABLE`]; `None` if neither is given.
    ///
    /// # Errors
    /// [`FilterError`], if the variable is set to something that is no filter.
    pub fn from_flag_or_env(flag: Option<Self>) -> Result<Option<Self>, FilterError> {
        if flag.is_some() {
            return Ok(flag);
        }
        let Some(text) = std::env::var_os(FILTER_VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
        let filter = text.to_string_lossy().parse();
        filter.map(Some).map_err(|error| FilterError::Environment(Box::new(error)))
    }

    pub(crate) fn into_targets(self) -> Targets {
        self.0
    }
}

/// h2 warns of frames that a client can send without end, so only its errors are logged unless a directive names it.
fn base() -> Targets {
    Targets::new().with_target("h2", LevelFilter::ERROR)
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        // Errors of modules that no directive names are logged, too: the last one says why a program failed.
        let mut targets = base().with_default(LevelFilter::ERROR);
        for directive in text.split(',').map(str::trim) {
            targets = match directive.split_once('=') {
                None => targets.with_default(parse_level(directive)?),
                Some(("", _)) => return Err(FilterError::Module(directive.to_owned())),
                Some((module, level)) => targets.with_target(module, parse_level(level)?),
            };
        }
        Ok(Self(targets))
    }
}

fn listed_levels() -> String {
    let [others @ .., last] = level_names();
    format!("{} and {last}", others.join(", "))
}

fn parse_level(text: &str) -> Result<LevelFilter, FilterError> {
    let given = text.to_ascii_lowercase();
    let name = if given == "warn" { "warning" } else { &given };
    let known = LEVELS.into_iter().find(|(known, _)| *known == name).map(|(_, level)| level);
    known.ok_or_else(|| FilterError::Level(text.to_owned()))
}
