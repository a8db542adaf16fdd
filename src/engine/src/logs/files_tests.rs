//! Finding files, and positions in them.

use std::os::unix::fs::symlink;

use super::*;

fn line(second: u32, tag: &str, text: &str) -> String {
    format!("1970-01-01T{:02}:{:02}:{:02}.5Z stdout {tag} {text}\n", second / 3600, second / 60 % 60, second % 60)
}

fn at(second: i64) -> Timestamp {
    Timestamp(second * 1_000_000_000)
}

fn text_from(place: &LogPosition) -> String {
    let size = place.size().unwrap();
    let mut bytes = vec![0; usize::try_from(size - place.offset).unwrap()];
    place.file.read_exact_at(&mut bytes, place.offset).unwrap();
    String::from_utf8(bytes).unwrap().lines().map(|line| line.rsplit(' ').next().unwrap_or_default()).collect()
}

#[test]
fn only_regular_files_inside_the_directory_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(path("logs/a/0.log")).unwrap();
    std::fs::write(path("secret"), line(1, "F", "secret")).unwrap();
    symlink(path("secret"), path("logs/a/1.log")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, path("logs/a/2.log"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    std::fs::write(path("logs/a/3.log"), line(1, "F", "x")).unwrap();
    symlink(path("logs/a"), path("logs/b")).unwrap();
    symlink(path("logs"), path("link")).unwrap();
    let mut good = LogDir::new(dir.path(), "logs/a");
    let parts = good.parts().unwrap();
    assert_eq!(parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>(), ["3.log"]);
    // As if it had been put there between the listing and the opening.
    let fd = good.fd.as_ref().unwrap();
    for name in ["0.log", "1.log", "2.log", "9.log"] {
        assert!(open_file(fd, name).unwrap().is_none(), "{name}");
    }
    for bad in ["logs/b", "link/a", "secret"] {
        assert!(LogDir::new(dir.path(), bad).parts().is_err(), "{bad}");
    }
    assert_eq!(LogDir::new(dir.path(), "logs/absent").parts().unwrap(), []);
    assert_eq!(LogDir::new(path("absent"), "logs/a").parts().unwrap(), []);
}

#[test]
fn changes_of_a_directory_are_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let mut logs = LogDir::new(dir.path(), ".");
    assert!(logs.changed().unwrap(), "never looked at");
    logs.parts().unwrap();
    assert!(logs.changed().unwrap(), "it was just made, and the clock of a file system is coarse");
    File::open(dir.path()).unwrap().set_modified(long_ago).unwrap();
    logs.parts().unwrap();
    assert!(!logs.changed().unwrap());
    std::fs::write(dir.path().join("0.log"), "x").unwrap();
    assert!(logs.changed().unwrap());
}

#[test]
fn renamed_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("0.log"), line(1, "F", "x")).unwrap();
    let mut logs = LogDir::new(dir.path(), ".");
    let parts = logs.parts().unwrap();
    std::fs::rename(path("0.log"), path("0.log.1")).unwrap();
    std::fs::write(path("0.log"), line(2, "F", "y")).unwrap();
    assert_eq!(text_from(&logs.open(&parts[0]).unwrap().unwrap()), "x");
    std::fs::remove_file(path("0.log.1")).unwrap();
    assert!(logs.open(&parts[0]).unwrap().is_none());
}

/// A writer that rotates away the oldest file, whose inode the file system gives to the new one at once.
#[test]
fn reused_inodes_are_not_confused() {
    let temp = tempfile::tempdir().unwrap();
    let path = |age: u32| temp.path().join(if age == 0 { "0.log".to_owned() } else { format!("0.log.{age}") });
    for age in 0..4 {
        std::fs::write(path(age), line(10 - age, "F", &format!("old{age}"))).unwrap();
    }
    let mut dir = LogDir::new(temp.path().parent().unwrap(), temp.path().file_name().unwrap());
    let span = dir.span(None, None).unwrap().unwrap();
    let parts = dir.parts().unwrap();
    std::fs::remove_file(path(3)).unwrap();
    // The next oldest becomes the newest.
    std::fs::rename(path(2), temp.path().join("aside")).unwrap();
    for age in [1, 0] {
        std::fs::rename(path(age), path(age + 2)).unwrap();
    }
    std::fs::rename(temp.path().join("aside"), path(0)).unwrap();
    std::fs::write(path(0), line(20, "F", "new")).unwrap();
    let opened: Vec<_> = parts.iter().map(|part| dir.open(part).unwrap().map(|place| text_from(&place))).collect();
    assert_eq!(opened, [None, None, Some("old1".to_owned()), Some("old0".to_owned())]);
    // old0 and old1. old3 is held open as the span's start, but old2, which came after it, is gone.
    let last = dir.tail(&span, 3, None).unwrap();
    assert_eq!((last.count, last.complete, text_from(&last.start).as_str()), (2, false, "old1"));
}

#[test]
fn a_tail_counts_whole_lines() {
    let pieces = [("F", "a"), ("P", "b1"), ("P", "b2"), ("F", "b3"), ("F:noeol", "c"), ("P", "d1")];
    let text: String = pieces.iter().zip(0..).map(|((tag, text), i)| line(i, tag, text)).collect();
    let dir = tempfile::tempdir().unwrap();
    // In one file, and with every piece in its own.
    std::fs::write(dir.path().join("0.log"), &text).unwrap();
    let split = tempfile::tempdir().unwrap();
    for (age, line) in text.lines().rev().enumerate() {
        let name = if age == 0 { "0.log".to_owned() } else { format!("0.log.{age}") };
        std::fs::write(split.path().join(name), format!("{line}\n")).unwrap();
    }
    for (lines, want, place) in
        [(0, 0, ""), (1, 1, "d1"), (2, 2, "cd1"), (3, 3, "b1b2b3cd1"), (4, 4, "ab1b2b3cd1"), (9, 4, "ab1b2b3cd1")]
    {
        for dir in [&dir, &split] {
            let mut logs = LogDir::new(dir.path(), ".");
            let span = logs.span(None, None).unwrap().unwrap();
            let LastLines { count, start: found, complete } = logs.tail(&span, lines, None).unwrap();
            assert!(complete);
            assert_eq!(count, want, "{lines}");
            assert!(place.starts_with(&text_from(&found)), "{lines}: {}", text_from(&found));
        }
    }
}

/// A tail never continues past a deleted file into older ones.
#[test]
fn a_tail_ends_at_deleted_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for (name, second) in [("0.log.2", 0), ("0.log.1", 2), ("0.log", 4)] {
        let lines = [line(second, "F", &second.to_string()), line(second + 1, "F", &(second + 1).to_string())];
        std::fs::write(path(name), lines.concat()).unwrap();
    }
    let mut logs = LogDir::new(dir.path(), ".");
    let span = logs.span(None, None).unwrap().unwrap();
    std::fs::remove_file(path("0.log.2")).unwrap();
    let last = logs.tail(&span, 5, None).unwrap();
    assert_eq!((last.count, last.complete, text_from(&last.start).as_str()), (5, true, "1"), "it is held open");
    std::fs::remove_file(path("0.log.1")).unwrap();
    let last = logs.tail(&span, 3, None).unwrap();
    assert_eq!((last.count, last.complete, text_from(&last.start).as_str()), (2, false, "45"));
    let last = logs.tail(&span, 1, None).unwrap();
    assert_eq!((last.count, last.complete, text_from(&last.start).as_str()), (1, true, "5"));
}

#[test]
fn time_bounds_fall_between_lines() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(dir.path().join(name), text).unwrap();
    write("0.log.2", line(1, "F", "a") + "untimed1\n" + &line(3, "F", "b"));
    write("0.log.1", "untimed2\nuntimed3\n".to_owned());
    write("0.log", "untimed4\n".to_owned() + &line(5, "F", "c") + &line(7, "F", "d") + "untimed5\ntorn");
    let mut logs = LogDir::new(dir.path(), ".");
    for (second, want) in [
        (0, "auntimed1b"),
        (1, "auntimed1b"),
        (2, "b"),
        (3, "b"),
        // A line without a time counts as the one before it: the next line with a time is in the newest file.
        (4, "cduntimed5torn"),
        (6, "duntimed5torn"),
        (8, "torn"),
    ] {
        let span = logs.span(Some(at(second)), None).unwrap().unwrap();
        assert_eq!(text_from(&span.start), want, "since {second}");
        let span = logs.span(None, Some(at(second))).unwrap().unwrap();
        let want = if second == 8 { "" } else { want };
        assert_eq!(text_from(&span.end), want, "until {second}");
        let span = logs.span(Some(at(6)), Some(at(second))).unwrap().unwrap();
        assert!(second > 6 || (span.start.inode, span.start.offset) == (span.end.inode, span.end.offset), "{second}");
    }
}

#[test]
fn a_clock_set_back_affects_only_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = [1, 2, 9, 3, 4, 5].iter().map(|second| line(*second, "F", &second.to_string())).collect();
    std::fs::write(dir.path().join("0.log"), lines).unwrap();
    let mut logs = LogDir::new(dir.path(), ".");
    let whole = logs.span(None, None).unwrap().unwrap();
    assert_eq!(text_from(&whole.start), "129345");
    for second in 0..12 {
        let span = logs.span(Some(at(second)), None).unwrap().unwrap();
        let from = text_from(&span.start);
        assert!("129345".ends_with(&from), "a place in the log: {from}");
        assert!(second < 3 || !from.starts_with('1'), "since {second}: {from}");
    }
}

#[test]
fn complete_logs_are_recognized() {
    for (text, want) in [
        (String::new(), true),
        (line(1, "F", "x"), true),
        (line(1, "F:noeol", "x"), true),
        (line(1, "F", "x") + &line(2, "P", "y"), false),
        (line(1, "F", "x") + "torn", false),
        ("strange\n".to_owned(), false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("0.log"), &text).unwrap();
        assert_eq!(ends_in_a_whole_line(LogDir::new(dir.path(), ".")).unwrap(), want, "{text}");
    }
    assert!(ends_in_a_whole_line(LogDir::new("/nonexistent", "x")).unwrap());
}
