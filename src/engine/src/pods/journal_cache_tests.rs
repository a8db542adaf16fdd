//! Tests of the cache of journals.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::*;
use gantry_contract::journal::{Fact, Record};

fn append(path: &Path, bytes: &[u8]) {
    File::options().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn line(fact: Fact) -> Vec<u8> {
    journal::line(&Record { at: 1, fact }).unwrap()
}

fn created(app: &str) -> Vec<u8> {
    line(Fact::AppCreated { app: app.into() })
}

/// A cache that keeps journals, and a directory with the path of one.
fn cache() -> (JournalCache, tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let mut cache = JournalCache::default();
    cache.enable();
    (cache, dir, path)
}

/// The apps that the journal names, and the number of damaged lines.
fn read(cache: &JournalCache, path: &Path) -> (Vec<String>, usize) {
    let parsed = cache.read(File::open(path).unwrap()).unwrap();
    (parsed.records.iter().filter_map(|record| record.fact.app().map(str::to_owned)).collect(), parsed.damaged)
}

fn is_kept(cache: &JournalCache) -> bool {
    cache.last.borrow().is_some()
}

#[test]
fn appended_lines_are_added() {
    let (cache, _dir, path) = cache();
    append(&path, b"");
    assert_eq!(read(&cache, &path), (vec![], 0));
    append(&path, &created("a"));
    append(&path, b"damaged\n{\"at\":1,");
    assert_eq!(read(&cache, &path), (vec!["a".to_owned()], 1));
    assert_eq!(read(&cache, &path), (vec!["a".to_owned()], 1));
    let former = cache.read(File::open(&path).unwrap()).unwrap();
    // The rest of the torn line.
    append(&path, &created("b")[b"{\"at\":1,".len()..]);
    append(&path, &created("c"));
    assert_eq!(read(&cache, &path), (["a", "b", "c"].map(str::to_owned).to_vec(), 1));
    assert_eq!(former.records.len(), 1, "a former result does not change");
}

#[test]
fn only_appended_lines_are_parsed() {
    let (cache, _dir, path) = cache();
    append(&path, &created("a"));
    read(&cache, &path);
    // No supervisor does this; it shows what is parsed.
    std::fs::write(&path, [created("x"), created("b")].concat()).unwrap();
    assert_eq!(read(&cache, &path).0, ["a", "b"]);
    cache.forget();
    assert_eq!(read(&cache, &path).0, ["x", "b"]);
}

#[test]
fn another_file_is_read_anew() {
    let (cache, dir, path) = cache();
    let other = dir.path().join("journal.new");
    append(&path, &[created("a"), created("b")].concat());
    assert_eq!(read(&cache, &path).0, ["a", "b"]);
    // Each as long as the one before: of another pod, a compacted one, and one of a pod that was started again.
    append(&other, &[created("c"), created("d")].concat());
    assert_eq!(read(&cache, &other).0, ["c", "d"]);
    assert_eq!(read(&cache, &path).0, ["a", "b"]);
    std::fs::rename(&other, &path).unwrap();
    assert_eq!(read(&cache, &path).0, ["c", "d"]);
    std::fs::remove_file(&path).unwrap();
    append(&path, &[created("e"), created("f")].concat());
    assert_eq!(read(&cache, &path).0, ["e", "f"]);
    std::fs::write(&path, created("g")).unwrap();
    assert_eq!(read(&cache, &path).0, ["g"], "a shorter one");
    assert!(cache.read(File::open(dir.path()).unwrap()).is_err(), "a directory");
    assert_eq!(read(&cache, &path).0, ["g"]);
}

#[test]
fn ended_and_forgotten_journals_are_closed() {
    let (cache, _dir, path) = cache();
    append(&path, &created("a"));
    read(&cache, &path);
    assert!(is_kept(&cache));
    cache.forget();
    assert!(!is_kept(&cache));
    read(&cache, &path);
    append(&path, &line(Fact::Ended));
    assert_eq!(read(&cache, &path).0, ["a"]);
    assert!(!is_kept(&cache), "the pod has ended");
    let disabled = JournalCache::default();
    assert_eq!(read(&disabled, &path).0, ["a"]);
    assert!(!is_kept(&disabled));
}

#[test]
fn too_long_journals_are_invalid() {
    let (cache, _dir, path) = cache();
    append(&path, &created("a"));
    read(&cache, &path);
    File::options().write(true).open(&path).unwrap().set_len(MAX_JOURNAL + 1).unwrap();
    let error = cache.read(File::open(&path).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert_eq!(error.to_string(), format!("it is longer than {MAX_JOURNAL} bytes"));
}
