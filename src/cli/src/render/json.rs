//! JSON answers, written as they are made: ten thousand pods are never one string in memory.

use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde::ser::{SerializeSeq as _, Serializer as _};

use super::Form;

/// A time as JSON has it: RFC 3339 with nanoseconds.
pub(crate) struct At(pub(crate) gantry_model::Timestamp);

impl Serialize for At {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.rfc3339().as_str())
    }
}

/// Anything as JSON has it by its text.
pub(crate) struct Text<T>(pub(crate) T);

impl<T: std::fmt::Display> Serialize for Text<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// Writes items as one array (`json`) or one document per line (`json-lines`).
pub(crate) fn items<T: Serialize>(
    out: &mut dyn Write,
    form: Form,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    match form {
        Form::JsonLines => {
            for item in items {
                serde_json::to_writer(&mut *out, &item)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        }
        Form::JsonPretty => {
            array(&mut serde_json::Serializer::pretty(&mut *out), items)?;
            out.write_all(b"\n")
        }
        Form::Json | Form::Table => {
            array(&mut serde_json::Serializer::new(&mut *out), items)?;
            out.write_all(b"\n")
        }
    }
}

fn array<T: Serialize, W: Write, F: serde_json::ser::Formatter>(
    serializer: &mut serde_json::Serializer<W, F>,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    let mut sequence = serializer.serialize_seq(None)?;
    for item in items {
        sequence.serialize_element(&item)?;
    }
    Ok(sequence.end()?)
}

/// Writes one document, indented unless it has to fit a line.
pub(crate) fn document(out: &mut dyn Write, form: Form, value: &impl Serialize) -> io::Result<()> {
    match form {
        Form::JsonPretty | Form::Table => serde_json::to_writer_pretty(&mut *out, value)?,
        Form::Json | Form::JsonLines => serde_json::to_writer(&mut *out, value)?,
    }
    out.write_all(b"\n")
}

/// Writes one document where one thing was asked for, and an array where several were. The one may be missing: its failure
/// was said.
pub(crate) fn one_or_several<T: Serialize>(
    out: &mut dyn Write,
    form: Form,
    several: bool,
    items: impl IntoIterator<Item = T>,
) -> io::Result<()> {
    if several {
        return self::items(out, form, items);
    }
    items.into_iter().try_for_each(|item| document(out, form, &item))
}

/// Lends standard output, buffered, to `write`, and flushes it.
pub(crate) fn to_stdout(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), crate::failure::Failure> {
    let mut out = BufWriter::with_capacity(64 << 10, std::io::stdout().lock());
    write(&mut out).and_then(|()| out.flush()).map_err(crate::failure::output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (form, want) in
            [(Form::Json, "[1,2]\n"), (Form::JsonLines, "1\n2\n"), (Form::JsonPretty, "[\n  1,\n  2\n]\n")]
        {
            let mut out = Vec::new();
            items(&mut out, form, [1, 2]).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
        let mut out = Vec::new();
        items(&mut out, Form::Json, [0u8; 0]).unwrap();
        assert_eq!(out, b"[]\n");
    }
}
