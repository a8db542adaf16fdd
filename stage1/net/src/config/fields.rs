//! Reading the keys of a JSON object one by one, strictly, and knowing which were not asked for.

use std::str::FromStr;

use serde_json::{Map, Value};

use super::locate::{Step, shown};

/// What is wrong, and where.
#[derive(Debug)]
pub(crate) struct Bad {
    pub(crate) at: Vec<Step>,
    pub(crate) problem: String,
}

type Result<T> = std::result::Result<T, Bad>;

/// An object, its place in the file, and the keys read so far.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    at: Vec<Step>,
    seen: Vec<&'static str>,
}

/// An element of a list and its place.
pub(crate) struct Item<'a> {
    pub(crate) value: &'a Value,
    pub(crate) at: Vec<Step>,
}

impl<'a> Fields<'a> {
    /// The value must be an object.
    pub(crate) fn of(value: &'a Value, at: Vec<Step>) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, at, seen: Vec::new() }),
            other => Err(Bad { at, problem: format!("must be an object, and is {}", sort(other)) }),
        }
    }

    /// The object as it was written.
    pub(crate) fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// Where a key is, or would be.
    pub(crate) fn place(&self, key: &str) -> Vec<Step> {
        let mut at = self.at.clone();
        at.push(Step::Key(key.to_owned()));
        at
    }

    /// The key is wrong.
    pub(crate) fn bad(&self, key: &str, problem: impl Into<String>) -> Bad {
        Bad { at: self.place(key), problem: problem.into() }
    }

    /// The object as a whole is wrong.
    pub(crate) fn wrong(&self, problem: impl Into<String>) -> Bad {
        Bad { at: self.at.clone(), problem: problem.into() }
    }

    fn mistyped(&self, key: &str, wants: &str, is: &Value) -> Bad {
        self.bad(key, format!("must be {wants}, and is {}", sort(is)))
    }

    /// The key's value. `null` is as good as absent.
    pub(crate) fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.seen.push(key);
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, key: &'static str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.mistyped(key, "a text", other)),
        }
    }

    /// A text that is not empty, which is as good as absent.
    pub(crate) fn word(&mut self, key: &'static str) -> Result<Option<String>> {
        Ok(self.text(key)?.filter(|text| !text.is_empty()).map(str::to_owned))
    }

    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.mistyped(key, "true or false", other)),
        }
    }

    /// A whole number within the bounds.
    pub(crate) fn number(&mut self, key: &'static str, least: u64, most: u64) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None if value.is_number() => Err(self.bad(key, format!("must be a whole number from {least} to {most}"))),
            None => Err(self.mistyped(key, "a number", value)),
        }
    }

    /// As [`Fields::number`], of 32 bits.
    pub(crate) fn number32(&mut self, key: &'static str, least: u32, most: u32) -> Result<Option<u32>> {
        Ok(self.number(key, least.into(), most.into())?.and_then(|number| u32::try_from(number).ok()))
    }

    /// A text that says a `T`; an empty one is as good as absent.
    pub(crate) fn parsed<T: FromStr>(&mut self, key: &'static str, wants: &str) -> Result<Option<T>> {
        let Some(text) = self.text(key)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        let problem = || self.bad(key, format!("'{}' is not {wants}", gantry_model::id::shown(text)));
        text.parse().map(Some).map_err(|_| problem())
    }

    /// One of some words.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)], default: T) -> Result<T> {
        let Some(text) = self.text(key)?.filter(|text| !text.is_empty()) else { return Ok(default) };
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        found.ok_or_else(|| self.bad(key, format!("'{}' is none of: {}", gantry_model::id::shown(text), words())))
    }

    pub(crate) fn object(&mut self, key: &'static str) -> Result<Option<Fields<'a>>> {
        self.get(key).map(|value| Fields::of(value, self.place(key))).transpose()
    }

    /// The elements of a list; none when it is absent.
    pub(crate) fn list(&mut self, key: &'static str) -> Result<Vec<Item<'a>>> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        items(value, self.place(key))
    }

    /// The texts of a list.
    pub(crate) fn texts(&mut self, key: &'static str) -> Result<Vec<String>> {
        let text = |item: Item<'a>| match item.value {
            Value::String(text) => Ok(text.clone()),
            other => Err(Bad { problem: format!("must be a text, and is {}", sort(other)), at: item.at }),
        };
        self.list(key)?.into_iter().map(text).collect()
    }

    /// Keys whose meaning is elsewhere: not to be reported.
    pub(crate) fn leave(&mut self, keys: &[&'static str]) {
        self.seen.extend(keys);
    }

    /// Reports the keys nobody asked for.
    pub(crate) fn finish(self, notes: &mut Vec<String>) {
        for key in self.map.keys().filter(|key| !self.seen.contains(&key.as_str())) {
            notes.push(format!("{} is not known here", shown(&self.place(key))));
        }
    }
}

/// The elements of a list, with their places.
pub(crate) fn items(value: &Value, at: Vec<Step>) -> Result<Vec<Item<'_>>> {
    let Value::Array(values) = value else {
        return Err(Bad { at, problem: format!("must be a list, and is {}", sort(value)) });
    };
    let item = |(index, value)| {
        let mut at = at.clone();
        at.push(Step::Index(index));
        Item { value, at }
    };
    Ok(values.iter().enumerate().map(item).collect())
}

fn sort(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
