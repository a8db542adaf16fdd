//! Typed values from JSON: errors and unknown keys carry the path of the key, such as
//! `plugins[1].ipam.ranges[0][0].subnet`.
//!
//! The plugins are Go programs: `null` is as good as an absent key (encoding/json), and most of them treat an empty
//! text the same way. So both are removed before the rest is read.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::is_interface_name;

/// A value that is invalid, with its path.
#[derive(Debug)]
pub(crate) struct Invalid {
    path: String,
    problem: String,
}

impl Invalid {
    pub(crate) fn new(path: impl Into<String>, problem: impl Display) -> Self {
        Self { path: path.into(), problem: problem.to_string() }
    }
}

impl Display for Invalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.problem),
            path => write!(f, "{path}: {}", self.problem),
        }
    }
}

/// Reads a `T` from the value at this path. The paths of keys that `T` does not have are added to `unknown`.
pub(crate) fn read<T: DeserializeOwned>(value: &Value, path: &str, unknown: &mut Vec<String>) -> Result<T, Invalid> {
    let value = without_absent(value);
    let mut ignored = |key: serde_ignored::Path<'_>| unknown.push(join(path, &path_of(&key)));
    let keys = serde_ignored::Deserializer::new(&value, &mut ignored);
    serde_path_to_error::deserialize(keys).map_err(|error| {
        let within = error.path().to_string();
        let within = if within == "." { "" } else { within.as_str() };
        Invalid::new(join(path, within), error.inner())
    })
}

/// `plugins[0]` and `ipam.type` make `plugins[0].ipam.type`.
pub(crate) fn join(path: &str, within: &str) -> String {
    let separator = if path.is_empty() || within.is_empty() || within.starts_with('[') { "" } else { "." };
    format!("{path}{separator}{within}")
}

fn path_of(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", path_of(parent)),
        Path::Map { parent, key } => join(&path_of(parent), &gantry_model::id::shown(key)),
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => path_of(parent),
    }
}

/// The value without keys that are `null` or an empty text. An empty text is a valid value of a sysctl.
fn without_absent(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let present = map.iter().filter(|(_, value)| !value.is_null() && value.as_str() != Some(""));
            let within = |key: &str, value: &Value| if key == "sysctl" { value.clone() } else { without_absent(value) };
            Value::Object(present.map(|(key, value)| (key.clone(), within(key, value))).collect())
        }
        Value::Array(values) => Value::Array(values.iter().map(without_absent).collect()),
        other => other.clone(),
    }
}

/// `true`, `false`, or either as a text: the CNI specification allows both for `disableCheck` and `disableGC`.
pub(crate) fn lenient_bool<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    match Value::deserialize(from)? {
        Value::Bool(value) => Ok(value),
        Value::String(text) => text.parse().map_err(|_| D::Error::custom("must be true or false")),
        _ => Err(D::Error::custom("must be true or false")),
    }
}

/// The name of a Linux interface.
pub(crate) fn interface_name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    if is_interface_name(&name) {
        return Ok(name);
    }
    Err(D::Error::custom("must be an interface's name: 1 to 15 characters without '/', ':' and spaces"))
}

/// As [`interface_name`], for an optional key.
pub(crate) fn optional_interface_name<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    interface_name(from).map(Some)
}

/// A hardware address: six bytes in hexadecimal, separated by colons or dashes.
pub(crate) fn hardware_address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<[u8; 6]>, D::Error> {
    let text = String::deserialize(from)?;
    let mac = parse_hardware_address(&text);
    mac.map(Some).ok_or_else(|| D::Error::custom("must be a hardware address such as 02:00:0a:01:02:03"))
}

fn parse_hardware_address(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split([':', '-']);
    let mut mac = [0; 6];
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// A maximum transmission unit in bytes. The plugins treat 0 as absent.
pub(crate) fn mtu<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number_up_to(from, 65535).map(|mtu| Some(mtu).filter(|mtu| *mtu != 0))
}

/// A number whose value 0 means that the key is absent.
pub(crate) fn zero_is_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    u32::deserialize(from).map(|number| Some(number).filter(|number| *number != 0))
}

/// A number from 0 to `max`.
pub(crate) fn number_up_to<'de, D: Deserializer<'de>>(from: D, max: u32) -> Result<u32, D::Error> {
    let number = u64::deserialize(from)?;
    let number = u32::try_from(number).ok().filter(|number| *number <= max);
    number.ok_or_else(|| D::Error::custom(format!("must be a number from 0 to {max}")))
}

/// An address that plugins print as an empty text when they have none (Go's zero value).
pub(crate) fn empty_is_none<'de, D: Deserializer<'de>, T: FromStr>(from: D) -> Result<Option<T>, D::Error> {
    match Option::<String>::deserialize(from)?.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(D::Error::custom(format!("'{}' is not an address", gantry_model::id::shown(&text)))),
        },
    }
}
