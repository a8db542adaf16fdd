//! A network configuration: read from a text and checked as a whole.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::error::ConfigError;
use super::json::{Invalid, join, lenient_bool, read};
use super::settings::PluginSettings;
use super::settings::ipam::{Dns, Ipam};
use super::version::CniVersion;
use super::{MAX_PLUGINS, is_name};

/// The origin of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Built into gantry.
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

/// A network: the plugins to run, in order (CNI specification 1.1.0, section 1).
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// Its name.
    pub name: String,
    /// The greatest version of the specification in [`Self::cni_versions`].
    pub cni_version: CniVersion,
    /// The versions of the specification that the configuration is written for; never empty.
    pub cni_versions: Vec<CniVersion>,
    /// CHECK must not be called.
    pub disable_check: bool,
    /// GC must not be called, because another runtime may share the plugins.
    pub disable_gc: bool,
    /// The plugins, in order; never empty.
    pub plugins: Vec<PluginConfig>,
    /// The origin of the configuration.
    pub source: Source,
    /// Harmless oddities: keys that gantry does not know.
    pub notes: Vec<String>,
    /// The text of the configuration, which is kept with the pods that use it.
    pub text: String,
}

/// One plugin of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConfig {
    /// Its type: the name of its program, without `/`.
    pub kind: String,
    /// The object in the configuration.
    pub raw: Map<String, Value>,
    /// The capabilities it declares; those that are `true` may be passed in `runtimeConfig`.
    pub capabilities: BTreeMap<String, bool>,
    /// The source of addresses. `None` for none, and for plugins that gantry does not know.
    pub ipam: Option<Ipam>,
    /// DNS settings.
    pub dns: Dns,
    /// Its own keys, if gantry knows the plugin.
    pub settings: PluginSettings,
}

/// The keys of a configuration list besides its plugins.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct ListKeys {
    name: String,
    cni_version: Option<String>,
    #[serde(default)]
    cni_versions: Vec<String>,
    #[serde(default, deserialize_with = "lenient_bool")]
    disable_check: bool,
    #[serde(default, rename = "disableGC", deserialize_with = "lenient_bool")]
    disable_gc: bool,
    #[serde(default, rename = "loadOnlyInlinedPlugins")]
    _load_only_inlined_plugins: IgnoredAny,
    plugins: Option<Vec<Value>>,
}

/// Keys of a list that a single plugin's configuration may have as well.
const LIST_KEYS: [&str; 6] =
    ["name", "cniVersion", "cniVersions", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"];
/// Keys of a plugin that the runtime fills in or replaces.
const RUNTIME_KEYS: [&str; 5] = ["args", "runtimeConfig", "prevResult", "name", "cniVersion"];

impl NetworkConfig {
    /// Reads a configuration list, or a single plugin's configuration, which is a list of one.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Malformed`] with the path of the invalid key, or with line and column if the text is not JSON.
    pub fn parse(text: &str, source: Source) -> Result<Self, ConfigError> {
        let malformed = |problem: String| ConfigError::Malformed { origin: source.to_string(), problem };
        let value: Value = serde_json::from_str(text).map_err(|error| malformed(format!("not JSON: {error}")))?;
        parse_value(&value, text, source.clone()).map_err(|invalid| malformed(invalid.to_string()))
    }

    /// The network's name in a text that may be invalid otherwise. In a text that is not JSON it is the string after
    /// the first `"name":`, so that a syntax error in an administrator's `default` does not bring back the built-in
    /// one.
    pub(crate) fn find_name(text: &str) -> Option<String> {
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

fn parse_value(value: &Value, text: &str, source: Source) -> Result<NetworkConfig, Invalid> {
    if !value.is_object() {
        return Err(Invalid::new("", "must be an object"));
    }
    let (mut notes, mut unknown) = (Vec::new(), Vec::new());
    let list: ListKeys = read(value, "", &mut unknown)?;
    if !is_name(&list.name) {
        let problem = "must begin with a letter or digit and contain only those, '_', '.' and '-', at most 128";
        return Err(Invalid::new("name", problem));
    }
    let cni_versions = parse_versions(&list)?;
    let cni_version = cni_versions.iter().copied().max().unwrap_or(CniVersion::V1_0_0);
    let plugins = match list.plugins {
        None => vec![parse_plugin(value, "", &mut notes)?],
        Some(plugins) if plugins.is_empty() || plugins.len() > MAX_PLUGINS => {
            return Err(Invalid::new("plugins", format!("must list 1 to {MAX_PLUGINS} plugins")));
        }
        Some(_) => {
            notes.append(&mut unknown);
            // As written: `read` has removed absent keys from the copies in the list.
            let plugins = value.get("plugins").and_then(Value::as_array).into_iter().flatten().enumerate();
            let parse = |(index, plugin)| parse_plugin(plugin, &format!("plugins[{index}]"), &mut notes);
            plugins.map(parse).collect::<Result<_, _>>()?
        }
    };
    let (disable_check, disable_gc) = (list.disable_check, list.disable_gc);
    let notes = notes.into_iter().map(|key| format!("{key} is not known to gantry")).collect();
    let (name, text) = (list.name, text.to_owned());
    Ok(NetworkConfig { name, cni_version, cni_versions, disable_check, disable_gc, plugins, source, notes, text })
}

/// The versions in `cniVersion` and, since 1.1.0, in `cniVersions`.
fn parse_versions(list: &ListKeys) -> Result<Vec<CniVersion>, Invalid> {
    // Versions in the list that gantry does not know are not chosen.
    let mut versions: Vec<_> = list.cni_versions.iter().filter_map(|text| CniVersion::from_str(text).ok()).collect();
    match &list.cni_version {
        Some(text) => versions.push(text.parse().map_err(|problem: String| Invalid::new("cniVersion", problem))?),
        None if list.cni_versions.is_empty() => {
            return Err(Invalid::new("", "missing field `cniVersion`: write 1.0.0 or 1.1.0"));
        }
        None if versions.is_empty() => {
            return Err(Invalid::new("cniVersions", "has no version from 0.3.1 to 1.1.0"));
        }
        None => {}
    }
    versions.sort_unstable();
    versions.dedup();
    Ok(versions)
}

fn parse_plugin(value: &Value, path: &str, notes: &mut Vec<String>) -> Result<PluginConfig, Invalid> {
    #[derive(Deserialize)]
    #[serde(expecting = "an object")]
    struct CommonKeys {
        #[serde(rename = "type")]
        kind: String,
        #[serde(default)]
        capabilities: BTreeMap<String, bool>,
        ipam: Option<Value>,
        dns: Option<Value>,
    }
    let common: CommonKeys = read(value, path, &mut Vec::new())?;
    let kind = common.kind;
    if !is_name(&kind) {
        return Err(Invalid::new(join(path, "type"), "must be the name of a program, without a path"));
    }
    let raw = value.as_object().cloned().unwrap_or_default();
    let capabilities = common.capabilities;
    if !PluginSettings::is_known(&kind) {
        let settings = PluginSettings::Other;
        return Ok(PluginConfig { kind, raw, capabilities, ipam: None, dns: Dns::default(), settings });
    }
    let ipam = common.ipam.map(|ipam| Ipam::read(&ipam, &join(path, "ipam"), notes)).transpose()?.flatten();
    let dns = common.dns.map(|dns| Dns::read(&dns, &join(path, "dns"), notes)).transpose()?.unwrap_or_default();
    let mut own = raw.clone();
    own.retain(|key, _| {
        let is_list_key = path.is_empty() && LIST_KEYS.contains(&key.as_str());
        let is_common = matches!(key.as_str(), "type" | "capabilities" | "ipam" | "dns");
        !is_list_key && !is_common && !RUNTIME_KEYS.contains(&key.as_str())
    });
    let settings = PluginSettings::read(&kind, &Value::Object(own), path, notes)?;
    Ok(PluginConfig { kind, raw, capabilities, ipam, dns, settings })
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
