//! Waiting for more of a log.

use super::*;

#[test]
fn a_watch_reports_writes_and_rotations() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let own = || process::open_pid(std::process::id()).into_iter().collect();
    let watch = Watch::new(own(), &[dir.path().join("a")], 0).unwrap();
    assert!(watch.complete);
    let is_readable = |watch: &Watch| {
        let inotify = watch.inotify.as_ref().unwrap();
        process::readable(&[inotify.as_fd()], Deadline::after(Duration::ZERO)).unwrap().is_some()
    };
    let path = dir.path().join("a/0.log");
    let acts: [&dyn Fn(); 3] = [
        &|| std::fs::write(&path, "x").unwrap(),
        &|| std::fs::rename(&path, dir.path().join("a/0.log.1")).unwrap(),
        &|| std::fs::write(&path, "").unwrap(),
    ];
    for act in acts {
        assert!(!is_readable(&watch));
        act();
        assert!(is_readable(&watch));
        assert!(!watch.forget());
    }
    std::fs::remove_dir_all(dir.path().join("a")).unwrap();
    assert!(watch.forget(), "another directory may get its path");
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let two = Watch::new(own(), &[dir.path().join("a"), dir.path().join("b")], 0).unwrap();
    assert!(!two.complete, "then it polls");
}

#[test]
fn a_watch_ends_with_the_last_writer() {
    let dir = tempfile::tempdir().unwrap();
    let dirs = [dir.path().to_owned()];
    assert!(Watch::new(Vec::new(), &dirs, 0).is_none());
    let mut children: Vec<_> = (0..2)
        .map(|_| std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap())
        .collect();
    let writers = children.iter().filter_map(|child| process::open_pid(child.id()).ok()).collect();
    let mut watch = Watch::new(writers, &dirs, 0).unwrap();
    for left in [2, 1, 0] {
        assert_eq!((watch.has_writers(), watch.writers.len()), (left > 0, left));
        let Some(mut child) = children.pop() else { break };
        drop(child.stdin.take());
        let ended = watch.writers.pop().unwrap();
        assert!(process::readable(&[ended.as_fd()], Deadline::after(Duration::from_secs(60))).unwrap().is_some());
        watch.writers.push(ended);
        child.wait().unwrap();
    }
}
