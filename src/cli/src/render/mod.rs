//! Formats output: tables for people, JSON for programs.

pub(crate) mod escape;
pub(crate) mod image;
pub(crate) mod json;
pub(crate) mod listing;
pub(crate) mod network;
pub(crate) mod pod;
pub(crate) mod size;
pub(crate) mod table;
pub(crate) mod template;
pub(crate) mod time;

use std::ffi::OsStr;

use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args, Command, ValueEnum};

/// An output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Text: a table, or lines of NAME=VALUE
    #[default]
    Table,
    /// One JSON document
    Json,
    /// One JSON document per line
    #[value(alias = "jsonl")]
    JsonLines,
    /// Indented JSON, as in rkt
    #[value(hide = true)]
    JsonPretty,
}

/// Parses an output format. Refuses Docker's templates with a message that names an alternative.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FormatParser;

impl TypedValueParser for FormatParser {
    type Value = OutputFormat;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<OutputFormat, clap::Error> {
        if value.as_encoded_bytes().windows(2).any(|pair| pair == b"{{") {
            let why = "templates are not supported here: use `-o json` and select fields with jq\n";
            return Err(clap::Error::raw(ErrorKind::InvalidValue, why).with_cmd(command));
        }
        EnumValueParser::<OutputFormat>::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(OutputFormat::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// The flag of commands that print a table or JSON.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct OutputFlag {
    /// Output format
    #[arg(
        short = 'o',
        long = "output",
        alias = "format",
        value_parser = FormatParser,
        default_value = "table",
        value_name = "FORMAT"
    )]
    pub(crate) format: OutputFormat,
}

/// The flag of commands that print complete records.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Indented {
    /// Output format [default: indented JSON]
    #[arg(
        short = 'o',
        long = "output",
        alias = "format",
        value_parser = FormatParser,
        default_value = "json-pretty",
        hide_default_value = true,
        value_name = "FORMAT"
    )]
    pub(crate) format: OutputFormat,
}

/// Flags of commands that list.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    #[command(flatten)]
    pub(crate) flag: OutputFlag,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    pub(crate) no_legend: bool,
    /// Full ids and absolute times
    #[arg(long, visible_alias = "no-trunc")]
    pub(crate) full: bool,
    /// Print ids only
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;

    fn parse(value: &str) -> Result<OutputFormat, clap::Error> {
        let command = OutputFlag::augment_args(Command::new("test"));
        let matches = command.try_get_matches_from(["test", "--format", value])?;
        OutputFlag::from_arg_matches(&matches).map(|flag| flag.format)
    }

    #[test]
    fn templates_are_refused_with_an_alternative() {
        assert_eq!(parse("jsonl").unwrap(), OutputFormat::JsonLines);
        let refused = parse("{{.State.Status}}").unwrap_err().to_string();
        assert!(refused.contains("jq"), "{refused}");
        let refused = parse("yaml").unwrap_err().to_string();
        assert!(refused.contains("[possible values: table, json, json-lines]"), "{refused}");
    }
}
