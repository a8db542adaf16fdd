//! Flags of the commands that list images, volumes, networks and apps: output, templates, filters.

use std::io::{self, Write};

use clap::Args;
use gantry_model::id::shown;
use serde::Serialize;

use super::template::{ListFormat, Template, TemplateItem};
use super::{OutputFormat, json};
use crate::failure::Failure;

/// Flags of a list.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Listing {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT", conflicts_with = "format")]
    output: Option<OutputFormat>,
    /// A template such as '{{.Name}}', printed once per line of the table; or an output format
    #[arg(long, value_name = "TEMPLATE")]
    format: Option<String>,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    pub(crate) no_legend: bool,
    /// Full ids and absolute times
    #[arg(long, visible_alias = "no-trunc")]
    pub(crate) full: bool,
    /// Print ids or names only
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

/// The output that the flags ask for.
pub(crate) enum ListOutput {
    /// Ids or names.
    Quiet,
    /// Table or JSON.
    Format(OutputFormat),
    /// A line for each item.
    Template(Template),
}

impl Listing {
    /// The output; templates may use these fields.
    ///
    /// # Errors
    /// `--format` is neither an output format nor a template with these fields.
    pub(crate) fn parse_output(&self, fields: &[&str]) -> Result<ListOutput, Failure> {
        let invalid = |why: String| Failure::usage(format!("--format: {why}"));
        Ok(match &self.format {
            _ if self.quiet => ListOutput::Quiet,
            None => ListOutput::Format(self.output.unwrap_or_default()),
            Some(text) => match ListFormat::parse(text, fields).map_err(invalid)? {
                ListFormat::Named(format) => ListOutput::Format(format),
                ListFormat::Template(template) => ListOutput::Template(template),
            },
        })
    }
}

/// The fields of one item for a template, in the order of their names, and the item as JSON.
pub(crate) struct ListedItem<T> {
    pub(crate) cells: Vec<String>,
    pub(crate) json: T,
}

impl<T: Serialize> TemplateItem for ListedItem<T> {
    fn field(&self, number: usize) -> String {
        self.cells.get(number).cloned().unwrap_or_default()
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &self.json)?)
    }
}

/// Writes a line for each item.
pub(crate) fn write_template<T: Serialize>(
    template: &Template,
    items: impl IntoIterator<Item = ListedItem<T>>,
) -> Result<(), Failure> {
    json::to_stdout(|out| items.into_iter().try_for_each(|item| template.write(out, &item)))
}

/// A condition of `--filter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListFilter {
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

impl ListFilter {
    /// Parses `KEY=VALUE` with one of these keys.
    ///
    /// # Errors
    /// The accepted keys, or values.
    pub(crate) fn parse(text: &str, keys: &[&'static str]) -> Result<Self, String> {
        let expected = || format!("expected KEY=VALUE with one of {}", keys.join(", "));
        let (key, value) = text.split_once('=').ok_or_else(expected)?;
        let Some(key) = keys.iter().find(|known| **known == key) else {
            return Err(format!("'{}' is not a key: {}", shown(key), expected()));
        };
        if value.is_empty() {
            return Err(format!("the value of '{key}' is missing"));
        }
        if matches!(*key, "dangling" | "enabled") && !matches!(value, "true" | "false") {
            return Err(format!("'{}' is neither true nor false", shown(value)));
        }
        Ok(Self { key, value: value.to_owned() })
    }
}

/// Whether an item meets the conditions: values of one key are alternatives; all keys, and all labels, must match.
pub(crate) fn matches_all(filters: &[ListFilter], is_met: impl Fn(&str, &str) -> bool) -> bool {
    filters.iter().all(|filter| {
        let ListFilter { key, value } = filter;
        let alternatives = || filters.iter().filter(|other| other.key == *key);
        is_met(key, value) || *key != "label" && alternatives().any(|other| is_met(key, &other.value))
    })
}

/// Whether a label is there, `NAME` or `NAME=VALUE`.
pub(crate) fn has_label(labels: &std::collections::BTreeMap<String, String>, condition: &str) -> bool {
    match condition.split_once('=') {
        Some((name, value)) => labels.get(name).is_some_and(|is| is == value),
        None => labels.contains_key(condition),
    }
}

/// Whether a name matches a pattern, in which `*` stands for any characters.
pub(crate) fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, want) in [
            ("db", "db", true),
            ("db", "db2", false),
            ("db*", "db2", true),
            ("*", "", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c", false),
            ("*a", "ba", true),
            ("aa*a", "aa", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), want, "{pattern} {name}");
        }
    }

    #[test]
    fn filters_are_combined() {
        let parse = |text: &str| ListFilter::parse(text, &["name", "label", "dangling", "enabled"]);
        let filters: Vec<_> = ["name=a", "name=b", "label=x"].map(|text| parse(text).unwrap()).into();
        let item = |name: &'static str, labels: &'static [&str]| {
            move |key: &str, value: &str| if key == "name" { value == name } else { labels.contains(&value) }
        };
        assert!(matches_all(&filters, item("b", &["x"])));
        assert!(!matches_all(&filters, item("c", &["x"])) && !matches_all(&filters, item("b", &[])));
        let labels = [parse("label=x").unwrap(), parse("label=y").unwrap()];
        assert!(!matches_all(&labels, item("a", &["x"])) && matches_all(&labels, item("a", &["x", "y"])));
        for bad in ["name", "name=", "other=x", "dangling=maybe", "enabled=yes"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
