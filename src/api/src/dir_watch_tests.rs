//! Subscriptions wake once for many changes.

use super::*;

fn inside(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// Whether it wakes before it would poll.
async fn woken(subscription: &DirSubscription) -> bool {
    tokio::time::timeout(MAX_INTERVAL / 2, subscription.changed.notified()).await.is_ok()
}

#[test]
fn subscriptions_share_one_watch() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let dirs = || vec![home.path().to_owned()];
        let watch = DirWatch::new();
        let (first, second) = (watch.subscribe(dirs()), watch.subscribe(dirs()));
        assert!(first.covers(&dirs()) && !first.covers(&[]));
        for name in ["a", "b"] {
            std::fs::write(home.path().join(name), "x").unwrap();
        }
        assert!(woken(&first).await && woken(&second).await);
        drop(first);
        assert_eq!(watch.shared.lock().watches.len(), 1);
        std::fs::write(home.path().join("a"), "more").unwrap();
        assert!(woken(&second).await);
        drop(second);
        assert!(watch.shared.lock().watches.is_empty());
    });
}

#[test]
fn an_absent_directory_is_polled() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let dirs = vec![home.path().join("later")];
        let watch = DirWatch::new();
        let absent = watch.subscribe(dirs.clone());
        assert!(!absent.covers(&dirs));
        let begin = std::time::Instant::now();
        absent.changed().await;
        assert!(begin.elapsed() >= POLL_INTERVAL && begin.elapsed() < MAX_INTERVAL);

        std::fs::create_dir(&dirs[0]).unwrap();
        let there = watch.subscribe(dirs.clone());
        assert!(there.covers(&dirs));
        std::fs::remove_dir(&dirs[0]).unwrap();
        assert!(woken(&there).await, "its deletion is a change");
        assert!(!there.covers(&dirs));
    });
}

#[test]
fn without_inotify_directories_are_polled() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let watch = DirWatch::with(None);
        let subscription = watch.subscribe(vec![home.path().to_owned()]);
        assert!(!subscription.covers(&[home.path().to_owned()]));
        tokio::time::timeout(MAX_INTERVAL / 2, subscription.changed()).await.unwrap();
    });
}
