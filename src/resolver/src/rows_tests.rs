//! Tests of the follower. Rows of real pods are tested from outside (`network_names`).

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use gantry_engine::Engine;
use gantry_tests::wait_for;

use super::*;
use crate::fixtures::{WEB, network, pod};

/// A follower of a data directory and a resolv.conf of its own.
struct Following {
    home: tempfile::TempDir,
    state: watch::Receiver<Arc<ResolverState>>,
    notes: mpsc::Receiver<String>,
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Following {
    fn start(prepare: impl FnOnce(&Path)) -> Self {
        let home = tempfile::tempdir().unwrap();
        prepare(home.path());
        let (tell, state) = watch::channel(Arc::default());
        let (say, notes) = mpsc::channel();
        let notify: NoteSink = Arc::new(move |note| drop(say.send(note.to_string())));
        let follower = Follower::new(config(home.path(), home.path().join("resolv.conf")), notify, tell);
        let ended = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ended);
        Self { home, state, notes, ended, thread: thread::spawn(move || follower.run(&theirs)) }
    }

    fn servers(&self, want: &str) {
        wait_for("the servers of the host", || (self.state.borrow().servers == [want.parse().unwrap()]).then_some(()));
    }

    fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn config(home: &Path, resolv_conf: PathBuf) -> Config {
    let options = Options::new(data(home));
    let commits = CommitWatcher::start(&options).unwrap();
    Config { options, commits, resolv_conf }
}

fn data(home: &Path) -> PathBuf {
    home.join("data")
}

#[test]
fn upstream_servers_follow_resolv_conf() {
    let following = Following::start(|home| {
        std::fs::write(home.join("resolv.conf"), "nameserver 192.0.2.1\n").unwrap();
        drop(Engine::open(Options::new(data(home))).unwrap());
    });
    following.servers("192.0.2.1:53");
    let path = following.home.path().join("resolv.conf");
    std::fs::write(&path, "nameserver 192.0.2.99\n").unwrap();
    following.servers("192.0.2.99:53");
    std::fs::remove_file(&path).unwrap();
    following.servers("127.0.0.1:53");
    std::fs::create_dir(&path).unwrap();
    let said = following.notes.recv_timeout(gantry_tests::DEADLINE).unwrap();
    assert!(said.contains("resolver: cannot read the servers of this host: it is not a regular file"), "{said}");
    following.servers("127.0.0.1:53");
    following.end();
}

#[test]
fn missing_database_is_not_fatal() {
    let following = Following::start(|_| {});
    let said = following.notes.recv_timeout(gantry_tests::DEADLINE).unwrap();
    assert!(said.starts_with("resolver: cannot read the rows of pods: "), "{said}");
    // The servers do not wait for it.
    following.servers("127.0.0.1:53");
    following.end();
}

#[test]
fn added_and_removed_apps_change_names() {
    let changing: Vec<EventKind> = EventKind::ALL.into_iter().filter(|kind| changes_names(*kind)).collect();
    let want = [
        EventKind::PodStarted,
        EventKind::PodExited,
        EventKind::PodGarbageCollected,
        EventKind::AppCreated,
        EventKind::AppRemoved,
    ];
    assert_eq!(changing, want);
}

#[test]
fn only_changes_are_published() {
    let (tell, mut state) = watch::channel(Arc::default());
    let home = tempfile::tempdir().unwrap();
    let follower = Follower::new(config(home.path(), home.path().to_owned()), Arc::new(|_| {}), tell);
    let running = || gateways(&[pod(WEB, "web", &[], vec![network("n", &["10.0.0.2/24 via 10.0.0.1"])])]);
    let server: SocketAddr = "192.0.2.1:53".parse().unwrap();
    for (gateways, servers, want) in [
        (Some(running()), None, true),
        (Some(running()), None, false),
        (None, Some(vec![server]), true),
        (Some(running()), Some(vec![server]), false),
        (Some(Gateways::default()), None, true),
    ] {
        follower.publish(gateways, servers);
        assert_eq!(state.has_changed().unwrap(), want);
        state.mark_unchanged();
    }
    assert_eq!(state.borrow().servers, [server]);
}
