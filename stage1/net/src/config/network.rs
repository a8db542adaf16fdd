//! One network's configuration: read from a text, checked as a whole.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::fields::{Bad, Fields, Item};
use super::locate::{Step, line_of, shown};
use super::version::CniVersion;
use super::views::ipam::{self, Dns, Ipam};
use super::views::{self, View};
use super::{MAX_PLUGINS, is_name};

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// gantry itself.
    BuiltIn,
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built in"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A network: what is to be run, in order (CNI specification 1.1.0, section 1).
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// Its name.
    pub name: String,
    /// The greatest version of the specification it is written for.
    pub cni_version: CniVersion,
    /// All versions it says it is written for; never empty.
    pub cni_versions: Vec<CniVersion>,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called (the plugins may be shared with another runtime).
    pub disable_gc: bool,
    /// What is run, in order; never empty.
    pub plugins: Vec<PluginConfig>,
    /// Where it comes from.
    pub source: Source,
    /// What is odd and harmless: keys that mean nothing here.
    pub notes: Vec<String>,
    /// The text it was read from, to be kept with a pod that uses it.
    pub text: String,
}

/// One plugin of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConfig {
    /// Its type: the name of its program, without `/`.
    pub kind: String,
    /// The object as it was written.
    pub raw: Map<String, Value>,
    /// The capabilities it declares; those with `true` may get `runtimeConfig`.
    pub capabilities: BTreeMap<String, bool>,
    /// Where addresses come from. `None` for none, and for plugins that are not standard.
    pub ipam: Option<Ipam>,
    /// DNS settings.
    pub dns: Dns,
    /// Its own keys, when it is a standard plugin.
    pub view: View,
}

impl NetworkConfig {
    /// Reads a configuration list, or a single plugin's configuration, which is a list of one.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] with line and key.
    pub fn parse(text: &str, source: Source) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text).map_err(|error| ConfigError::Malformed {
            origin: source.to_string(),
            line: error.line().max(1),
            field: String::new(),
            problem: format!("not JSON: {error}"),
        })?;
        let origin = source.to_string();
        network(&value, text, source).map_err(|bad| ConfigError::Malformed {
            origin,
            line: line_of(text, &bad.at),
            field: shown(&bad.at),
            problem: bad.problem,
        })
    }

    /// The name a text gives its network, if it can be told: to know which network a broken file is of. Of what is no JSON
    /// it is what follows the first `"name":`, so that a slip in one's own `default` does not bring back the built-in one.
    pub(crate) fn name_of(text: &str) -> Option<String> {
        let name = match serde_json::from_str::<Value>(text) {
            Ok(value) => value.get("name")?.as_str()?.to_owned(),
            Err(_) => {
                let (_, rest) = text.split_once("\"name\"")?;
                let rest = rest.trim_start().strip_prefix(':')?.trim_start().strip_prefix('"')?;
                rest.split_once('"')?.0.to_owned()
            }
        };
        is_name(&name).then_some(name)
    }
}

fn network(value: &Value, text: &str, source: Source) -> Result<NetworkConfig, Bad> {
    let mut notes = Vec::new();
    let mut fields = Fields::of(value, Vec::new())?;
    let name = fields.word("name")?.ok_or_else(|| fields.bad("name", "is missing"))?;
    if !is_name(&name) {
        let problem = "must begin with a letter or digit and have only those, '_', '.' and '-', at most 128";
        return Err(fields.bad("name", problem));
    }
    let cni_versions = versions(&mut fields)?;
    let cni_version = cni_versions.iter().copied().max().unwrap_or(CniVersion::V1_0_0);
    let (disable_check, disable_gc) = (switch(&mut fields, "disableCheck")?, switch(&mut fields, "disableGC")?);
    fields.leave(&["loadOnlyInlinedPlugins"]);
    let plugins = if fields.map().contains_key("plugins") {
        let plugins = fields.list("plugins")?;
        let place = fields.place("plugins");
        fields.finish(&mut notes);
        list(plugins, place, &mut notes)?
    } else {
        let whole = Item { value, at: Vec::new() };
        vec![plugin(whole, &mut notes)?]
    };
    let text = text.to_owned();
    Ok(NetworkConfig { name, cni_version, cni_versions, disable_check, disable_gc, plugins, source, notes, text })
}

fn list(items: Vec<Item<'_>>, at: Vec<Step>, notes: &mut Vec<String>) -> Result<Vec<PluginConfig>, Bad> {
    if items.is_empty() || items.len() > MAX_PLUGINS {
        return Err(Bad { at, problem: format!("must list 1 to {MAX_PLUGINS} plugins") });
    }
    items.into_iter().map(|item| plugin(item, notes)).collect()
}

/// `cniVersion`, and since 1.1 `cniVersions`.
fn versions(fields: &mut Fields<'_>) -> Result<Vec<CniVersion>, Bad> {
    let text = fields.text("cniVersion")?;
    let more = fields.texts("cniVersions")?;
    let mut versions = Vec::new();
    // Of a list, versions that are not known yet are simply not chosen.
    versions.extend(more.iter().filter_map(|text| CniVersion::from_str(text).ok()));
    match text {
        Some(text) => versions.push(text.parse().map_err(|problem: String| fields.bad("cniVersion", problem))?),
        None if more.is_empty() => return Err(fields.bad("cniVersion", "is missing: write 1.0.0 or 1.1.0")),
        None if versions.is_empty() => return Err(fields.bad("cniVersions", "has no version from 0.3.1 to 1.1.0")),
        None => {}
    }
    versions.sort_unstable();
    versions.dedup();
    Ok(versions)
}

/// true, false, or the text of either: the specification allows both.
fn switch(fields: &mut Fields<'_>, key: &'static str) -> Result<bool, Bad> {
    match fields.get(key) {
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        _ => fields.flag(key, false),
    }
}

fn plugin(item: Item<'_>, notes: &mut Vec<String>) -> Result<PluginConfig, Bad> {
    let whole = item.at.is_empty();
    let mut fields = Fields::of(item.value, item.at)?;
    let kind = fields.word("type")?.ok_or_else(|| fields.bad("type", "is missing"))?;
    if !is_name(&kind) {
        return Err(fields.bad("type", "must be the name of a program, without a path"));
    }
    let capabilities = capabilities(&mut fields)?;
    let view = views::parse(&kind, &mut fields, notes)?;
    let (ipam, dns) = if view == View::Other {
        (None, Dns::default())
    } else {
        (ipam::parse(&mut fields, notes)?, ipam::dns(&mut fields, notes)?)
    };
    let raw = fields.map().clone();
    // Filled in by the runtime, or the list's.
    fields.leave(&["args", "runtimeConfig", "prevResult", "name", "cniVersion"]);
    if whole {
        fields.leave(&["cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"]);
    }
    if view != View::Other {
        fields.finish(notes);
    }
    Ok(PluginConfig { kind, raw, capabilities, ipam, dns, view })
}

fn capabilities(fields: &mut Fields<'_>) -> Result<BTreeMap<String, bool>, Bad> {
    let Some(object) = fields.object("capabilities")? else { return Ok(BTreeMap::new()) };
    let one = |(name, value): (&String, &Value)| match value {
        Value::Bool(has) => Ok((name.clone(), *has)),
        _ => Err(object.bad(name, "must be true or false")),
    };
    object.map().iter().map(one).collect()
}

/// For results: Go writes an absent address as an empty text.
pub(crate) fn empty_is_none<'de, D: Deserializer<'de>, T: FromStr>(from: D) -> Result<Option<T>, D::Error> {
    match Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(de::Error::custom(format!("'{}' is not an address", gantry_model::id::shown(&text)))),
        },
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
