//! Rules for names and comments: they must be understandable out of context.

use crate::source::{code, files, has_word, none, split};

/// Type names without a meaning of their own.
const BANNED_TYPES: &[&str] = &[
    "Who", "What", "Why", "How", "Which", "Was", "Where", "When", "Found", "Asked", "Wanted", "Place", "Document",
    "Known", "Answer", "Left", "Earlier", "Making", "Filling", "Word", "Seen", "Due",
];

/// Banned prefixes of constants, and their replacements.
const BANNED_CONSTANTS: &[(&str, &str)] = &[
    ("MOST", "MAX_…"),
    ("LEAST", "MIN_…"),
    ("LONGEST", "MAX_…_LENGTH"),
    ("LOOK", "…_INTERVAL"),
    ("BREATH", "…_INTERVAL"),
    ("REST", "…_INTERVAL"),
    ("PAUSE", "…_INTERVAL or …_BACKOFF"),
    ("DEAF", "…_BACKOFF"),
    ("PATIENCE", "…_TIMEOUT"),
];

/// Banned prefixes of test names: a test is named after its subject and the expected behaviour.
const BANNED_TEST_PREFIXES: &[&str] =
    &["what_", "who_", "whoever_", "whatever_", "nothing_", "nobody_", "somebody_", "everybody_"];

/// The maximum number of words in a test name.
const MAX_TEST_WORDS: usize = 8;

/// The maximum width of a comment, in columns; rustfmt wraps code, not comments.
const MAX_COMMENT_WIDTH: usize = 120;

#[test]
fn type_names_are_meaningful() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        for (i, line) in code(&text).lines().enumerate() {
            let declares = ["struct", "enum", "trait", "type"].iter().any(|keyword| has_word(line, keyword));
            let banned = BANNED_TYPES.iter().find(|name| declares && declared(line) == Some(**name));
            found.extend(banned.map(|name| format!("{path}:{}: {name}", i + 1)));
        }
    }
    none(&found, "a type is a noun that grep finds and that makes sense out of context");
}

/// The name of the type that a line declares.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty());
    words.by_ref().find(|word| matches!(*word, "struct" | "enum" | "trait" | "type"))?;
    words.next()
}

#[test]
fn constant_names_follow_conventions() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        for (i, line) in code(&text).lines().enumerate().filter(|(_, line)| has_word(line, "const")) {
            let name = line.split("const ").nth(1).and_then(|rest| rest.split(':').next()).unwrap_or_default().trim();
            let begins = |prefix: &str| name == prefix || name.starts_with(&format!("{prefix}_"));
            let banned = BANNED_CONSTANTS.iter().find(|(prefix, _)| begins(prefix));
            found.extend(banned.map(|(_, instead)| format!("{path}:{}: {name}, better {instead}", i + 1)));
        }
    }
    none(&found, "the conventions are MAX_, MIN_, _TIMEOUT, _INTERVAL, _BACKOFF");
}

#[test]
fn test_names_state_the_expectation() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        let mut is_test = false;
        for (i, line) in code(&text).lines().enumerate() {
            let line = line.trim_start();
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let Some(name) = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()) else { continue };
            let banned = BANNED_TEST_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            if is_test && (banned || name.split('_').count() > MAX_TEST_WORDS) {
                found.push(format!("{path}:{}: {name}", i + 1));
            }
            is_test = false;
        }
    }
    let reason = "a test is named after its subject and the expected behaviour (`record_round_trips`)";
    none(&found, &format!("{reason}, in at most {MAX_TEST_WORDS} words"));
}

#[test]
fn comments_fit_the_width_of_code() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        // Drawings and tables cannot be wrapped.
        let mut drawing = false;
        for (i, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            drawing ^= comment.starts_with("```");
            let columns = line.chars().count();
            if columns > MAX_COMMENT_WIDTH && !drawing && !comment.starts_with('|') {
                found.push(format!("{path}:{}: {columns} columns", i + 1));
            }
        }
    }
    none(&found, &format!("comments have at most {MAX_COMMENT_WIDTH} columns, as code does"));
}

#[test]
fn discarded_results_have_a_reason() {
    let mut found = Vec::new();
    for (path, text) in files(".rs") {
        let (production, _) = split(&path, &code(&text));
        let lines: Vec<&str> = text.lines().collect();
        let comment = |i: usize| lines.get(i).is_some_and(|line| line.trim_start().starts_with("//"));
        let bare = production
            .iter()
            .filter(|(i, line)| line.trim_start().starts_with("let _ =") && !comment(i.saturating_sub(2)));
        found.extend(bare.map(|(i, _)| format!("{path}:{i}")));
    }
    none(&found, "a discarded result is named after the reason (`let _left_for_gc =`), or has it in the comment above");
}
