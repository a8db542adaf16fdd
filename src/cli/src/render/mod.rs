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

use clap::{Args, ValueEnum};

/// An output format.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table
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

/// The flag of commands that print complete records.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Indented {
    /// Output format [default: indented JSON]
    #[arg(
        short = 'o',
        long = "output",
        alias = "format",
        value_enum,
        default_value = "json-pretty",
        value_name = "FORMAT"
    )]
    pub(crate) format: OutputFormat,
}

/// Flags of commands that list.
#[derive(Debug, Clone, Args)]
pub(crate) struct Output {
    /// Output format
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) format: OutputFormat,
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
