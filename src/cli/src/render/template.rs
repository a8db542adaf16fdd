//! `--format TEMPLATE`: a template as in docker and podman, printed as one line per item.
//!
//! `{{.Field}}` is a field (case-insensitive), `{{json .}}` the whole item as JSON; `\t` and `\n` are a tab and a
//! newline. There are no pipes, conditions or functions.

use std::io::{self, Write};

use clap::ValueEnum as _;
use gantry_model::id::shown;

use super::{OutputFormat, escape};

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// The field with this number.
    Field(usize),
    Json,
}

/// The value of `--format` of commands that list. Like docker's, it also takes an output format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListFormat {
    /// As `--output`.
    Named(OutputFormat),
    /// A line for each item.
    Template(Template),
}

impl ListFormat {
    /// The value of `--format`, else that of `--output`.
    pub(crate) fn or_output(format: Option<&Self>, output: OutputFormat) -> Self {
        format.cloned().unwrap_or(Self::Named(output))
    }

    /// Parses an output format, or a template that may use these fields.
    pub(crate) fn parse(text: &str, fields: &[&str]) -> Result<Self, String> {
        if let Ok(output) = OutputFormat::from_str(text, false) {
            return Ok(Self::Named(output));
        }
        if text.starts_with("table ") {
            return Err("table templates are not supported: omit 'table'".to_owned());
        }
        if !text.contains("{{") {
            let names = "table, json or json-lines";
            let why = format!("neither an output format ({names}) nor a template with {{{{.Field}}}}");
            return Err(format!("'{}' is {why}", shown(text)));
        }
        Template::parse(text, fields).map(Self::Template)
    }
}

/// An item that a template prints.
pub(crate) trait TemplateItem {
    /// The text of the field.
    fn field(&self, number: usize) -> String;
    /// Writes the whole item as JSON in one line.
    fn json(&self, out: &mut dyn Write) -> io::Result<()>;
}

impl Template {
    /// Parses a template that may use these fields.
    pub(crate) fn parse(text: &str, fields: &[&str]) -> Result<Self, String> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, behind)) = rest.split_once("{{") {
            let Some((action, after)) = behind.split_once("}}") else {
                return Err(format!("'{}': '{{{{' without '}}}}'", shown(text)));
            };
            parts.push(Part::Text(unescaped(before)));
            parts.push(part(action.trim(), fields)?);
            rest = after;
        }
        parts.push(Part::Text(unescaped(rest)));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self(parts))
    }

    /// Writes the item and a newline.
    pub(crate) fn write(&self, out: &mut dyn Write, item: &impl TemplateItem) -> io::Result<()> {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.write_all(text.as_bytes())?,
                Part::Field(number) => out.write_all(escape::text(&item.field(*number)).as_bytes())?,
                Part::Json => item.json(out)?,
            }
        }
        out.write_all(b"\n")
    }
}

fn part(action: &str, fields: &[&str]) -> Result<Part, String> {
    if action.split_whitespace().eq(["json", "."]) {
        return Ok(Part::Json);
    }
    let name = action.strip_prefix('.');
    let number = name.and_then(|name| fields.iter().position(|field| field.eq_ignore_ascii_case(name)));
    number.map(Part::Field).ok_or_else(|| {
        let known: Vec<_> = fields.iter().map(|field| format!(".{field}")).collect();
        format!("'{{{{{}}}}}' is not a field: expected {{{{json .}}}}, or one of {}", shown(action), known.join(", "))
    })
}

fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    struct Pair;

    impl TemplateItem for Pair {
        fn field(&self, number: usize) -> String {
            ["one", "\u{1b}[2J"][number].to_owned()
        }

        fn json(&self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(b"{}")
        }
    }

    #[test]
    fn templates_are_rendered() {
        for (text, want) in [
            ("{{.A}}", "one\n"),
            (r"{{ .a }}\t{{.B}}!", "one\t\\u{1b}[2J!\n"),
            ("{{json .}} {{ json  . }}", "{} {}\n"),
            ("plain }}", "plain }}\n"),
            ("", "\n"),
        ] {
            let mut out = Vec::new();
            Template::parse(text, &["A", "B"]).unwrap().write(&mut out, &Pair).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want, "{text}");
        }
        for (text, want) in [
            ("{{.C}}", "is not a field: expected {{json .}}, or one of .A, .B"),
            ("{{A}}", "is not a field"),
            ("{{.A", "without"),
            ("{{range .}}", "is not a field"),
            ("{{.\u{1b}}}", "u{1b}"),
        ] {
            let error = Template::parse(text, &["A", "B"]).unwrap_err();
            assert!(error.contains(want) && !error.contains('\u{1b}'), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "([{}.aAjson \\\\t]|.){0,24}") {
            let _ = Template::parse(&text, &["A", "B"]);
        }
    }
}
