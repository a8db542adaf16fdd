//! Waiting for more of a log.

use super::*;

#[test]
fn a_watch_hears_of_writes_and_rotations() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let watch = Watch::new(&[dir.path().join("a")]);
    assert!(watch.complete);
    let fd = watch.fd.as_ref().unwrap();
    let is_readable =
        |fd: &OwnedFd| process::readable(&[fd.as_fd()], Deadline::after(Duration::ZERO)).unwrap().is_some();
    let path = dir.path().join("a/0.log");
    let acts: [&dyn Fn(); 3] = [
        &|| std::fs::write(&path, "x").unwrap(),
        &|| std::fs::rename(&path, dir.path().join("a/0.log.1")).unwrap(),
        &|| std::fs::write(&path, "").unwrap(),
    ];
    for act in acts {
        assert!(!is_readable(fd));
        act();
        assert!(is_readable(fd));
        watch.forget();
    }
    assert!(!Watch::new(&[dir.path().join("a"), dir.path().join("b")]).complete, "then it polls");
}
