//! JSON output, written item by item: a list of ten thousand pods is never held in memory as text.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde::ser::{SerializeSeq as _, Serializer as _};

use super::OutputFormat;
use crate::relay::Stdout;

/// A time in JSON: RFC 3339 with nanoseconds.
pub(crate) struct TimeJson(pub(crate) gantry_model::Timestamp);

impl Serialize for TimeJson {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.rfc3339().as_str())
    }
}

/// A value in JSON as a string, formatted by [`std::fmt::Display`].
pub(crate) struct DisplayJson<T>(pub(crate) T);

impl<T: std::fmt::Display> Serialize for DisplayJson<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Writes items as one array (`json`) or one document per line (`json-lines`).
pub(crate) fn write_items<T: Serialize, W: Write + ?Sized>(
    out: &mut W,
    format: OutputFormat,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    match format {
        OutputFormat::JsonLines => {
            for item in items {
                serde_json::to_writer(&mut *out, &item)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        }
        OutputFormat::JsonPretty => {
            write_array(&mut serde_json::Serializer::pretty(&mut *out), items)?;
            out.write_all(b"\n")
        }
        OutputFormat::Json | OutputFormat::Table => {
            write_array(&mut serde_json::Serializer::new(&mut *out), items)?;
            out.write_all(b"\n")
        }
    }
}

fn write_array<T: Serialize, W: Write, F: serde_json::ser::Formatter>(
    serializer: &mut serde_json::Serializer<W, F>,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    let mut sequence = serializer.serialize_seq(None)?;
    for item in items {
        sequence.serialize_element(&item)?;
    }
    Ok(sequence.end()?)
}

/// Writes one document, indented in the pretty format and for tables.
pub(crate) fn write_document<W: Write + ?Sized>(
    out: &mut W,
    format: OutputFormat,
    value: &impl Serialize,
) -> io::Result<()> {
    match format {
        OutputFormat::JsonPretty | OutputFormat::Table => serde_json::to_writer_pretty(&mut *out, value)?,
        OutputFormat::Json | OutputFormat::JsonLines => serde_json::to_writer(&mut *out, value)?,
    }
    out.write_all(b"\n")
}

/// Writes an array if several objects were requested, otherwise one document; nothing if that one failed.
pub(crate) fn write_one_or_several<T: Serialize, W: Write + ?Sized>(
    out: &mut W,
    format: OutputFormat,
    several: bool,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    if several {
        return write_items(out, format, items);
    }
    items.into_iter().try_for_each(|item| write_document(out, format, &item))
}

/// Calls `write` with buffered standard output and flushes it. The type of the buffer is known, because the serializer
/// writes few bytes at a time: a virtual call for each of them would take a sixth of a long list.
pub(crate) fn to_stdout(
    write: impl FnOnce(&mut BufWriter<Stdout>) -> io::Result<()>,
) -> Result<(), crate::failure::Failure> {
    let mut out = BufWriter::with_capacity(64 << 10, Stdout);
    write(&mut out).and_then(|()| out.flush()).map_err(crate::failure::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_formats_are_written() {
        for (format, want) in [
            (OutputFormat::Json, "[1,2]\n"),
            (OutputFormat::JsonLines, "1\n2\n"),
            (OutputFormat::JsonPretty, "[\n  1,\n  2\n]\n"),
        ] {
            let mut out = Vec::new();
            write_items(&mut out, format, [1, 2]).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
        let mut out = Vec::new();
        write_items(&mut out, OutputFormat::Json, [0u8; 0]).unwrap();
        assert_eq!(out, b"[]\n");
    }
}
