//! The rule for matches on another crate's enum: a new variant must not be absorbed by a wildcard unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{code, files, has_word, none};

/// Enums that classify an open set, so that matches on them always have a default.
const OPEN_ENUMS: &[&str] = &["ErrorKind"];

/// The crates of the workspace: directory with a final slash, and name in code; the most specific directory first.
fn crates() -> Vec<(String, String)> {
    let mut found: Vec<_> = files("Cargo.toml")
        .into_iter()
        .filter_map(|(path, text)| {
            let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{path}: {error}"));
            let name = table.get("package")?["name"].as_str()?.replace('-', "_");
            Some((path.strip_suffix("Cargo.toml")?.to_owned(), name))
        })
        .collect();
    found.sort_by_key(|(dir, _)| std::cmp::Reverse(dir.len()));
    found
}

/// The names of the public enums that a source declares.
fn public_enums(code: &str) -> impl Iterator<Item = &str> {
    code.lines().filter_map(|line| line.trim_start().strip_prefix("pub enum ")?.split([' ', '<', '{']).next())
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The patterns of the arms above line `i` of the same match, as rustfmt indents them; without guards.
fn patterns_above<'a>(lines: &[&'a str], i: usize) -> Vec<&'a str> {
    let own = indentation(lines[i]);
    let above = lines[..i].iter().rev().take_while(|line| line.trim().is_empty() || indentation(line) >= own);
    let arms = above.filter(|line| indentation(line) == own);
    arms.filter_map(|line| line.split("=>").next()?.split(" if ").next()).collect()
}

/// The enums whose variants a pattern names: `Phase` in `Some(Phase::Running { .. })`.
fn enums_of(pattern: &str) -> impl Iterator<Item = &str> {
    let paths = pattern.match_indices("::").filter(|(at, _)| pattern[at + 2..].starts_with(char::is_uppercase));
    let names = paths.filter_map(|(at, _)| pattern[..at].rsplit(|c: char| !c.is_alphanumeric()).next());
    names.filter(|name| name.starts_with(char::is_uppercase))
}

#[test]
fn wildcards_on_foreign_enums_have_a_reason() {
    let crates = crates();
    let crate_of = |path: &str| {
        let own = crates.iter().find(|(dir, _)| path.starts_with(dir));
        own.map(|(_, name)| name.clone()).unwrap_or_default()
    };
    let sources: Vec<_> = files(".rs").into_iter().map(|(path, text)| (path, code(&text), text)).collect();
    let mut declared: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (path, code, _) in &sources {
        for name in public_enums(code).filter(|name| !OPEN_ENUMS.contains(name)) {
            declared.entry(name).or_default().insert(crate_of(path));
        }
    }
    let mut found = Vec::new();
    for (path, code, text) in &sources {
        let own = crate_of(path);
        // Names are not resolved: a crate of the workspace that the file mentions declares the enum, its own does not.
        let is_foreign = |name: &str| {
            let crates = declared.get(name).filter(|crates| !crates.contains(&own));
            crates.is_some_and(|crates| crates.iter().any(|name| has_word(code, name)))
        };
        let (lines, raw): (Vec<&str>, Vec<&str>) = (code.lines().collect(), text.lines().collect());
        for i in (1..lines.len()).filter(|i| lines[*i].trim_start().starts_with("_ =>")) {
            let explained = raw[i].contains("//") || raw[i - 1].trim_start().starts_with("//");
            let patterns = patterns_above(&lines, i);
            let foreign = patterns.iter().flat_map(|pattern| enums_of(pattern)).find(|name| is_foreign(name));
            found.extend(foreign.filter(|_| !explained).map(|name| format!("{path}:{}: {name}", i + 1)));
        }
    }
    none(&found, "list the other variants of the enum, or explain the wildcard in a comment above it");
}

#[test]
fn patterns_name_their_enums() {
    let lines = ["match x {", "    A::One", "    | B::Two if c::D::E => {", "        F::G", "    }", "    _ => 1,"];
    let patterns = patterns_above(&lines, 5);
    let names: Vec<&str> = patterns.iter().flat_map(|pattern| enums_of(pattern)).collect();
    assert_eq!(names, ["B", "A"]);
    assert_eq!(enums_of("Some(a::Phase::Running { .. })").collect::<Vec<_>>(), ["Phase"]);
    assert_eq!(public_enums("pub enum A<'a> {\n    pub enum B {").collect::<Vec<_>>(), ["A", "B"]);
}
