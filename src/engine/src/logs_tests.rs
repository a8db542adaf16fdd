//! Merging the logs of several apps.

use super::*;

fn merged(files: &[(&str, &str)], until: Option<i64>) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut merge = Merge { id: PodId::from_random([0; 16]), logs: Vec::new(), until: until.map(Timestamp) };
    for (app, text) in files {
        let name: AppName = app.parse().unwrap();
        let at = dir.path().join(app);
        std::fs::create_dir(&at).unwrap();
        std::fs::write(at.join("0.log"), text).unwrap();
        merge.logs.push((name.clone(), AppLog::new(name, at)));
    }
    let mut got = Vec::new();
    let ended = merge.drain(&mut |line| {
        got.push(format!("{}:{}", line.app, String::from_utf8_lossy(&line.text)));
        Ok(if got.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    assert_eq!(ended.unwrap().is_break(), got.len() == 4);
    got
}

#[test]
fn apps_are_merged_by_time() {
    let a = "1970-01-01T00:00:01Z stdout F 1\n1970-01-01T00:00:03Z stdout F 3\n";
    let b = "1970-01-01T00:00:02Z stdout F 2\n";
    assert_eq!(merged(&[("a", a), ("b", b)], None), ["a:1", "b:2", "a:3"]);
    assert_eq!(merged(&[("a", a), ("b", b)], Some(2_000_000_000)), ["a:1", "b:2"]);
    assert_eq!(merged(&[], None), Vec::<String>::new());
}

#[test]
fn a_sink_may_break_off() {
    let lines = "1970-01-01T00:00:01Z stdout F x\n".repeat(9);
    assert_eq!(merged(&[("a", &lines)], None).len(), 4);
}

#[test]
fn a_watch_hears_of_writes_and_rotations() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    let apps: Vec<AppName> = vec!["a".parse().unwrap()];
    let watch = Watch::new(dir.path(), apps.iter());
    assert!(watch.complete);
    let fd = watch.fd.as_ref().unwrap();
    let path = dir.path().join("a/0.log");
    let acts: [&dyn Fn(); 3] = [
        &|| std::fs::write(&path, "x").unwrap(),
        &|| std::fs::rename(&path, dir.path().join("a/0.log.1")).unwrap(),
        &|| std::fs::write(&path, "").unwrap(),
    ];
    for act in acts {
        assert!(!is_readable(fd.as_fd()).unwrap());
        act();
        assert!(is_readable(fd.as_fd()).unwrap());
        watch.forget();
    }
    let missing: Vec<AppName> = vec!["b".parse().unwrap()];
    assert!(!Watch::new(dir.path(), missing.iter()).complete, "then it polls");
}
