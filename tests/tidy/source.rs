//! Reads the sources of the workspace: files, their code without comments and literals, production and test lines.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// A manifest, parsed.
pub(crate) fn manifest(path: &Path) -> Table {
    read(path).parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files of the workspace with this ending, as (path from the root, text), without build output and hidden files.
pub(crate) fn files(ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = vec![root()];
    while let Some(dir) = rest.pop() {
        let entries = fs::read_dir(&dir).unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()));
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Cargo marks only directories that it created itself; this one is the default for build output.
            let built = path.join("CACHEDIR.TAG").exists() || path == root().join("target");
            let skipped = name.starts_with('.') || built || path.is_symlink();
            if path.is_dir() && !skipped {
                rest.push(path);
            } else if name.ends_with(ending) && !skipped {
                let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
                found.push((shown, read(&path)));
            }
        }
    }
    // Documents may be missing from a partial checkout; code may not.
    assert!(
        !found.is_empty() || ending == ".md",
        "no {ending} files below {}: this test looks in the wrong place",
        root().display()
    );
    found.sort();
    found
}

/// Fails with all findings and the reason of the rule.
#[track_caller]
pub(crate) fn none(found: &[String], reason: &str) {
    let list = found.iter().fold(String::new(), |mut text, line| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {line}");
        text
    });
    assert!(found.is_empty(), "{reason}:{list}");
}

/// The code of a file: comments and the contents of string and character literals are blanked, lines keep their
/// numbers.
pub(crate) fn code(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < chars.len() {
        let end = skipped(&chars, i);
        if end > i {
            out.extend(chars[i..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            i = end;
        } else {
            out.push(chars[i]);
            i += 1;
        }
    }
    out
}

/// The end of the comment, string or character literal that begins at `i`; `i` if none does.
fn skipped(chars: &[char], i: usize) -> usize {
    let at = |n: usize| chars.get(i + n).copied().unwrap_or('\0');
    let find = |from: usize, what: &[char]| {
        let found = chars[from.min(chars.len())..].windows(what.len()).position(|window| window == what);
        found.map_or(chars.len(), |n| from + n + what.len())
    };
    match (at(0), at(1)) {
        ('/', '/') => find(i, &['\n']) - usize::from(find(i, &['\n']) < chars.len()),
        ('/', '*') => find(i + 2, &['*', '/']),
        ('"', _) => end_of_text(chars, i + 1, '"'),
        ('\'', '\\') => end_of_text(chars, i + 1, '\''),
        ('\'', _) if at(2) == '\'' => i + 3,
        ('r', '"' | '#') if i == 0 || !is_word(chars[i - 1]) || chars[i - 1] == 'b' => {
            let hashes = chars[i + 1..].iter().take_while(|&&c| c == '#').count();
            if at(hashes + 1) != '"' {
                return i;
            }
            let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            find(i + hashes + 2, &close)
        }
        _ => i,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_text(chars: &[char], mut i: usize, quote: char) -> usize {
    while i < chars.len() && chars[i] != quote {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

/// Lines with their numbers.
pub(crate) type Lines = Vec<(usize, String)>;

/// Splits a file into production and test lines: modules behind `#[cfg(test)]` and files of tests are test lines.
pub(crate) fn split(path: &str, code: &str) -> (Lines, Lines) {
    let name = path.rsplit('/').next().unwrap_or(path);
    let all_tests = path.split('/').any(|part| part == "tests") || name == "tests.rs" || name.ends_with("_tests.rs");
    let (mut production, mut tests) = (Vec::new(), Vec::new());
    let mut inside = false;
    let lines: Vec<&str> = code.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        let opens = line.trim_end() == "#[cfg(test)]"
            && lines[i + 1..]
                .iter()
                .find(|next| !next.starts_with("#["))
                .is_some_and(|next| next.trim_end().ends_with('{'));
        inside |= opens;
        if inside || all_tests { &mut tests } else { &mut production }.push((i + 1, (*line).to_owned()));
        inside &= *line != "}";
    }
    (production, tests)
}

/// Whether a line contains a word as a whole, not as a part of another.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_word);
        let after = line[at + word.len()..].chars().next().is_some_and(is_word);
        !before && !after
    })
}

#[test]
fn the_scanner_sees_code_only() {
    let text =
        "let a = \"unsafe\"; // unsafe\nlet b = r#\"unsafe \" \"#; /* unsafe\n */ let c = '\\''; let d: &'a str = x;\n";
    let blanked = code(text);
    assert!(!blanked.contains("unsafe"), "{blanked}");
    assert!(blanked.contains("let c =") && blanked.contains("let d: &'a str = x;"), "{blanked}");
    assert_eq!(blanked.lines().count(), text.lines().count());
    assert!(has_word("    unsafe {", "unsafe") && has_word("#[unsafe(no_mangle)]", "unsafe"));
    assert!(!has_word("unsafe_code", "unsafe"));
    let file = "fn a() {\n}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
    let (production, tests) = split("src/x.rs", file);
    assert_eq!((production.len(), tests.len()), (3, 4));
    assert_eq!(split("tests/x.rs", file).0.len(), 0);
    assert_eq!(split("src/x.rs", "#[cfg(test)]\nmod tests;\nfn a() {}\n").0.len(), 3);
}
