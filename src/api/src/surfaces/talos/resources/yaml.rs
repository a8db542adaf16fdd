//! Writes YAML 1.2: block mappings whose texts are double-quoted, as in JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A value of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum YamlValue {
    /// `null`.
    Null,
    Text(String),
    Number(i64),
    Flag(bool),
    Texts(Vec<String>),
    Map(BTreeMap<String, String>),
    Objects(Vec<Vec<(&'static str, Self)>>),
}

impl YamlValue {
    /// A text, or `null`.
    pub(super) fn from_text(text: Option<impl Into<String>>) -> Self {
        text.map_or(Self::Null, |text| Self::Text(text.into()))
    }

    /// A number, or `null`.
    pub(super) fn from_number(number: Option<impl Into<i64>>) -> Self {
        number.map_or(Self::Null, |number| Self::Number(number.into()))
    }
}

/// The document of a mapping.
pub(super) fn yaml(fields: &[(&'static str, YamlValue)]) -> Vec<u8> {
    let mut out = String::new();
    for (key, value) in fields {
        out.push_str(key);
        out.push(':');
        write_value(&mut out, value);
    }
    out.into_bytes()
}

/// Writes a value after its key, with a line end.
fn write_value(out: &mut String, value: &YamlValue) {
    match value {
        YamlValue::Null => out.push_str(" null\n"),
        YamlValue::Text(text) => {
            out.push(' ');
            write_text(out, text);
            out.push('\n');
        }
        YamlValue::Number(number) => {
            let _a_string_takes_it = writeln!(out, " {number}");
        }
        YamlValue::Flag(flag) => {
            let _a_string_takes_it = writeln!(out, " {flag}");
        }
        YamlValue::Texts(texts) if texts.is_empty() => out.push_str(" []\n"),
        YamlValue::Texts(texts) => {
            out.push('\n');
            for text in texts {
                out.push_str("  - ");
                write_text(out, text);
                out.push('\n');
            }
        }
        YamlValue::Map(map) if map.is_empty() => out.push_str(" {}\n"),
        YamlValue::Map(map) => {
            out.push('\n');
            for (key, text) in map {
                out.push_str("  ");
                write_text(out, key);
                out.push_str(": ");
                write_text(out, text);
                out.push('\n');
            }
        }
        YamlValue::Objects(objects) if objects.is_empty() => out.push_str(" []\n"),
        YamlValue::Objects(objects) => {
            out.push('\n');
            for object in objects {
                for (number, (key, value)) in object.iter().enumerate() {
                    out.push_str(if number == 0 { "  - " } else { "    " });
                    out.push_str(key);
                    out.push(':');
                    write_value(out, value);
                }
            }
        }
    }
}

/// A double-quoted scalar (YAML 1.2, section 7.3.1). Control characters are escaped, and those that are line ends for
/// YAML 1.1.
fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                let _a_string_takes_it = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_blocks() {
        let map = BTreeMap::from([("a: b".to_owned(), "\"\\\n\u{1}ü".to_owned())]);
        let written = yaml(&[
            ("text", YamlValue::Text("- x".into())),
            ("number", YamlValue::from_number(Some(-1))),
            ("none", YamlValue::from_text(None::<String>)),
            ("flag", YamlValue::Flag(true)),
            ("texts", YamlValue::Texts(vec!["a".into(), "b".into()])),
            ("empty", YamlValue::Texts(Vec::new())),
            ("map", YamlValue::Map(map)),
        ]);
        let want = "text: \"- x\"\nnumber: -1\nnone: null\nflag: true\ntexts:\n  - \"a\"\n  - \"b\"\nempty: []\n\
                    map:\n  \"a: b\": \"\\\"\\\\\\n\\u0001ü\"\n";
        assert_eq!(String::from_utf8(written).unwrap(), want);
    }
}
