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

/// A cache of a daemon, and a directory with the path of one.
fn cache() -> (JournalCache, tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    (JournalCache::of_daemon(), dir, path)
}

/// The id of the pod with this number.
fn pod(number: u8) -> PodId {
    format!("00000000-0000-4000-8000-0000000000{number:02x}").parse().unwrap()
}

/// The apps that the journal names, and the number of damaged lines.
fn read(cache: &JournalCache, path: &Path) -> (Vec<String>, usize) {
    read_of(cache, 0, path)
}

fn read_of(cache: &JournalCache, number: u8, path: &Path) -> (Vec<String>, usize) {
    let parsed = cache.read(pod(number), File::open(path).unwrap()).unwrap();
    (parsed.records.iter().filter_map(|record| record.fact.app().map(str::to_owned)).collect(), parsed.damaged)
}

/// The pods whose journals are kept, the last one that was read last.
fn kept(cache: &JournalCache) -> Vec<PodId> {
    cache.0.iter().flat_map(|shared| shared.lock().iter().map(|cached| cached.pod).collect::<Vec<_>>()).collect()
}

fn is_kept(cache: &JournalCache) -> bool {
    !kept(cache).is_empty()
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
    let former = cache.read(pod(0), File::open(&path).unwrap()).unwrap();
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
    cache.forget(pod(0));
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
    assert!(cache.read(pod(0), File::open(dir.path()).unwrap()).is_err(), "a directory");
    assert_eq!(read(&cache, &path).0, ["g"]);
}

#[test]
fn ended_and_forgotten_journals_are_closed() {
    let (cache, _dir, path) = cache();
    append(&path, &created("a"));
    read(&cache, &path);
    assert!(is_kept(&cache));
    cache.forget(pod(0));
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
    let error = cache.read(pod(0), File::open(&path).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert_eq!(error.to_string(), format!("it is longer than {MAX_JOURNAL} bytes"));
}

#[test]
fn the_last_journals_within_the_limits_are_kept() {
    let (_, dir, path) = cache();
    append(&path, &created("a"));
    let length = path.metadata().unwrap().len();
    let cache = JournalCache::within(CacheLimits { journals: 3, bytes: 4 * length });
    for number in [1, 2, 3, 1, 4] {
        read_of(&cache, number, &path);
    }
    assert_eq!(kept(&cache), [3, 1, 4].map(pod));
    cache.forget(pod(1));
    assert_eq!(kept(&cache), [3, 4].map(pod));
    let long = dir.path().join("long");
    append(&long, &created("a").repeat(3));
    read_of(&cache, 5, &long);
    assert_eq!(kept(&cache), [4, 5].map(pod), "as many bytes as allowed");
    append(&long, &created("a").repeat(2));
    assert_eq!(read_of(&cache, 5, &long).0.len(), 5);
    assert_eq!(kept(&cache), [pod(4)], "it is too long, and replaces no other");
    assert_eq!(read_of(&JournalCache::of_command(), 5, &long).0.len(), 5);
}

#[test]
fn threads_share_journals_that_grow() {
    let (cache, _dir, path) = cache();
    append(&path, b"");
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let (cache, path) = (cache.clone(), path.clone());
            std::thread::spawn(move || {
                let app = format!("{:?}", std::thread::current().id());
                for number in 1..=200 {
                    append(&path, &created(&app));
                    let (apps, damaged) = read(&cache, &path);
                    let mine = apps.iter().filter(|name| **name == app).count();
                    assert_eq!((mine, damaged), (number, 0), "each fact once, the last one included");
                }
            })
        })
        .collect();
    for reader in readers {
        reader.join().unwrap();
    }
    assert_eq!(read(&cache, &path).0.len(), 800);
    assert_eq!(kept(&cache), [pod(0)]);
}
