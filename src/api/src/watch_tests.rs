//! Whoever follows a directory is woken by what happens in it, once for many changes.

use super::*;

fn inside(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(test);
}

/// Whether it is woken before it would look by itself.
async fn woken(subscription: &Subscription) -> bool {
    tokio::time::timeout(REST / 2, subscription.changed.notified()).await.is_ok()
}

#[test]
fn everybody_is_woken_and_the_last_one_lets_go() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let dirs = || vec![home.path().to_owned()];
        let watch = Watch::new();
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
fn a_directory_that_is_not_there_is_looked_for() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let dirs = vec![home.path().join("later")];
        let watch = Watch::new();
        let absent = watch.subscribe(dirs.clone());
        assert!(!absent.covers(&dirs));
        let begin = std::time::Instant::now();
        absent.changed().await;
        assert!(begin.elapsed() >= LOOK && begin.elapsed() < REST);

        std::fs::create_dir(&dirs[0]).unwrap();
        let there = watch.subscribe(dirs.clone());
        assert!(there.covers(&dirs));
        std::fs::remove_dir(&dirs[0]).unwrap();
        assert!(woken(&there).await, "its end is a change");
        assert!(!there.covers(&dirs));
    });
}

#[test]
fn without_the_kernels_help_it_is_looked() {
    inside(async {
        let home = tempfile::tempdir().unwrap();
        let watch = Watch::of(None);
        let subscription = watch.subscribe(vec![home.path().to_owned()]);
        assert!(!subscription.covers(&[home.path().to_owned()]));
        tokio::time::timeout(REST / 2, subscription.changed()).await.unwrap();
    });
}
