//! What ends a response: a commit, another file, another database, and the limit of all.

use bytes::Bytes;
use gantry_engine::Engine;

use super::*;

struct Home {
    temp: tempfile::TempDir,
    options: Options,
    engine: Engine,
    cache: PodCache,
}

impl Home {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let options = Options::new(temp.path().join("data"));
        let engine = Engine::open(options.clone()).unwrap();
        std::fs::create_dir(temp.path().join("pod")).unwrap();
        let cache = PodCache::new(options.clone());
        Self { temp, options, engine, cache }
    }

    fn commit(&self) {
        assert!(self.engine.volume_create(&"data".parse().unwrap(), &Default::default()).unwrap());
        self.engine.volume_rm(&"data".parse().unwrap()).unwrap();
    }

    fn inspected(&self, length: usize) -> Inspected {
        let dir = self.temp.path().join("pod");
        let stamp = PodFilesStamp::read(&dir).unwrap();
        Inspected { response: Encoded(Bytes::from(vec![7; length])), dir, stamp }
    }

    /// Keeps a response to this request.
    fn keep(&self, number: u8) {
        let epoch = self.cache.begin().unwrap();
        self.cache.keep(epoch, request(number), self.inspected(100));
    }

    fn finds(&self, number: u8) -> bool {
        self.cache.find(&request(number)).is_some()
    }
}

fn request(number: u8) -> Request {
    Request { id: format!("{number:036}"), shows_secrets: true }
}

#[test]
fn commits_end_all_responses() {
    let home = Home::new();
    assert!(!home.finds(1));
    home.keep(1);
    home.keep(2);
    assert!(home.finds(1) && home.finds(2) && !home.finds(3));
    assert_eq!(home.cache.find(&Request { shows_secrets: false, ..request(1) }), None, "another client");
    home.commit();
    assert!(!home.finds(1) && !home.finds(2));
    let epoch = home.cache.begin().unwrap();
    home.commit();
    home.cache.keep(epoch, request(1), home.inspected(100));
    assert!(!home.finds(1), "a commit while it was made");
    home.keep(1);
    assert!(home.finds(1));
}

#[test]
fn another_file_ends_a_response() {
    let home = Home::new();
    for name in ["plan.json", "added.json", "limits.json"] {
        home.keep(1);
        assert!(home.finds(1));
        std::fs::write(home.temp.path().join("pod").join(name), "{}").unwrap();
        assert!(!home.finds(1), "{name}");
    }
}

#[test]
fn another_database_ends_all_responses() {
    let home = Home::new();
    home.keep(1);
    let data = &home.options.dir;
    std::fs::rename(data, home.temp.path().join("old")).unwrap();
    assert!(!home.finds(1));
    assert_eq!(home.cache.begin(), None, "there is none");
    let _other = Engine::open(home.options.clone()).unwrap();
    assert!(!home.finds(1));
    home.keep(1);
    assert!(home.finds(1));
}

#[test]
fn kept_responses_are_bounded() {
    let home = Home::new();
    let epoch = home.cache.begin().unwrap();
    home.cache.keep(epoch, request(0), home.inspected(MAX_CACHE));
    assert!(!home.finds(0), "too large");
    home.cache.keep(epoch, Request { id: "0".into(), shows_secrets: true }, home.inspected(1));
    assert_eq!(home.cache.lock().pods.len(), 0, "the beginning of an id");
    for number in 1..=100 {
        home.cache.keep(epoch, request(number), home.inspected(MAX_CACHE / 20));
        assert!(home.cache.lock().bytes <= MAX_CACHE);
    }
    let entries = home.cache.lock();
    assert_eq!(entries.bytes, entries.pods.values().map(|inspected| inspected.size()).sum::<usize>());
    assert_eq!(entries.pods.len(), 19);
}
