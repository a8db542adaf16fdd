//! Reading generated log files from any position, across rotations.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use super::*;

/// A line at second `second`, numbered.
fn line(second: u32, tag: &str, text: &str) -> String {
    format!("1970-01-01T{:02}:{:02}:{:02}.5Z stdout {tag} {text}\n", second / 3600, second / 60 % 60, second % 60)
}

fn at(second: u32) -> Timestamp {
    Timestamp(i64::from(second) * 1_000_000_000)
}

/// Writes `count` lines (one a second) into files of `each` lines, the newest being `0.log`.
fn generate(dir: &Path, count: u32, each: u32) {
    let files = count.div_ceil(each).max(1);
    for n in 0..files {
        let age = files - 1 - n;
        let name = if age == 0 { "0.log".to_owned() } else { format!("0.log.{age}") };
        let lines: String = (n * each..count.min((n + 1) * each)).map(|i| line(i, "F", &i.to_string())).collect();
        std::fs::write(dir.join(name), lines).unwrap();
    }
}

fn log(dir: &Path) -> AppLog {
    AppLog::new("a".parse().unwrap(), LogDir::new(dir.parent().unwrap(), dir.file_name().unwrap()), None, BLOCK)
}

/// The texts of all available lines.
fn rest(log: &mut AppLog) -> Vec<String> {
    let mut texts = Vec::new();
    log.wake();
    while log.poll().unwrap() {
        texts.push(String::from_utf8(log.line().unwrap().0.text.to_vec()).unwrap());
        log.pass();
    }
    texts
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|i| i.to_string()).collect()
}

#[test]
fn all_parts_and_attempts_are_one_stream() {
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path(), 25, 10);
    std::fs::write(dir.path().join("1.log"), line(90, "F", "again")).unwrap();
    std::fs::write(dir.path().join("junk"), "junk").unwrap();
    let mut want = numbers(0..25);
    want.push("again".to_owned());
    assert_eq!(rest(&mut log(dir.path())), want);
    assert_eq!(rest(&mut log(&dir.path().join("absent"))), Vec::<String>::new());
}

#[test]
fn rotation_while_reading_neither_loses_nor_repeats() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut file = File::create(path("0.log")).unwrap();
    let mut log = log(dir.path());
    let (mut wrote, mut got) = (0, Vec::new());
    for round in 0..40 {
        for _ in 0..round % 5 {
            file.write_all(line(wrote, "F", &wrote.to_string()).as_bytes()).unwrap();
            wrote += 1;
        }
        if round % 3 == 0 {
            got.extend(rest(&mut log));
        }
        if round % 4 == 0 {
            for age in (1..9).rev().filter(|age| path(&format!("0.log.{age}")).exists()) {
                std::fs::rename(path(&format!("0.log.{age}")), path(&format!("0.log.{}", age + 1))).unwrap();
            }
            std::fs::rename(path("0.log"), path("0.log.1")).unwrap();
            file = File::create(path("0.log")).unwrap();
        }
    }
    got.extend(rest(&mut log));
    assert_eq!(got, numbers(0..wrote));
}

#[test]
fn a_new_attempt_is_noticed_after_idle_time() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, second: u32| std::fs::write(dir.path().join(name), line(second, "F", name)).unwrap();
    let mut log = log(dir.path());
    assert_eq!(rest(&mut log), Vec::<String>::new());
    for name in ["0.log", "1.log", "2.log"] {
        write(name, 1);
        assert_eq!(rest(&mut log), [name]);
        // A directory whose time is trusted.
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        File::open(dir.path()).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(rest(&mut log), Vec::<String>::new());
        assert!(log.complete && !log.dir.changed().unwrap(), "it is not listed again");
    }
}

#[test]
fn open_files_are_read_after_deletion() {
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path(), 40, 10);
    let mut log = log(dir.path());
    assert!(log.poll().unwrap());
    for age in 1..4 {
        std::fs::remove_file(dir.path().join(format!("0.log.{age}"))).unwrap();
    }
    assert_eq!(rest(&mut log), numbers(0..40));
}

#[test]
fn a_late_reader_continues_with_the_oldest_file() {
    let dir = tempfile::tempdir().unwrap();
    let lines: String = (0..10).map(|i| line(i, "F", &i.to_string())).collect();
    std::fs::write(dir.path().join("0.log"), lines).unwrap();
    let mut log = log(dir.path());
    assert_eq!(rest(&mut log), numbers(0..10));
    std::fs::remove_file(dir.path().join("0.log")).unwrap();
    generate(dir.path(), 20, 10);
    assert_eq!(rest(&mut log), numbers(0..20));
}

#[test]
fn unfinished_lines_wait_and_malformed_ones_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    std::fs::write(&path, format!("{}strange\n1970-01-01T00:0", line(1, "P", "x"))).unwrap();
    let mut log = log(dir.path());
    assert!(log.poll().unwrap() && log.line().unwrap().0.partial);
    log.pass();
    assert_eq!(rest(&mut log), ["strange"]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"0:05Z stderr F y\n").unwrap();
    log.wake();
    assert!(log.poll().unwrap());
    let line = log.line().unwrap().0;
    assert_eq!((line.at, line.stderr, line.text), (at(5), true, &b"y"[..]));
}

#[test]
fn a_truncated_torn_line_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let whole = line(1, "F", "a");
    std::fs::write(&path, format!("{whole}1970-01-01T00:00:01Z stdout F to")).unwrap();
    let mut log = log(dir.path());
    assert_eq!(rest(&mut log), ["a"]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.set_len(whole.len() as u64).unwrap();
    file.write_all(line(2, "F", "b").as_bytes()).unwrap();
    assert_eq!(rest(&mut log), ["b"]);
}

#[test]
fn joined_pieces_restore_lines_of_any_length() {
    let dir = tempfile::tempdir().unwrap();
    let lengths =
        [0, 1, FIRST_BLOCK - 41, FIRST_BLOCK, BLOCK + 1, MAX_LINE - 41, MAX_LINE - 40, MAX_LINE, 3 * MAX_LINE];
    let mut file = File::create(dir.path().join("0.log")).unwrap();
    for (second, length) in (0..).zip(lengths) {
        let head = format!("1970-01-01T00:00:{second:02}.000000000Z stderr F ");
        file.write_all(&[head.into_bytes(), vec![b'a' + second; length], b"\n".to_vec()].concat()).unwrap();
    }
    let mut log = log(dir.path());
    let mut joined: Vec<Vec<u8>> = vec![Vec::new()];
    while log.poll().unwrap() {
        let (line, size) = log.line().unwrap();
        assert!(size <= MAX_LINE + 1 && line.stderr && line.piece == line.partial);
        assert_eq!(line.at.seconds() as usize, joined.len() - 1);
        joined.last_mut().unwrap().extend(line.text);
        if !line.piece {
            joined.push(Vec::new());
        }
        log.pass();
    }
    joined.pop();
    for (second, (text, length)) in (0..).zip(joined.iter().zip(lengths)) {
        assert!(text.len() == length && text.iter().all(|c| *c == b'a' + second), "{second}: {}", text.len());
    }
    assert_eq!(joined.len(), lengths.len());
    assert_eq!(log.buffer.bytes.len(), 0, "a log that is waited for holds no memory");
}

#[test]
fn an_endless_line_is_split() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("0.log"), vec![b'x'; 3 * MAX_LINE + 7]).unwrap();
    let mut log = log(dir.path());
    for _ in 0..3 {
        assert!(log.poll().unwrap());
        let line = log.line().unwrap().0;
        assert!(line.text.len() == MAX_LINE && line.piece);
        log.pass();
    }
    assert!(!log.poll().unwrap());
    assert!(log.buffer.bytes.capacity() < 5 * MAX_LINE);
    let mut file = std::fs::OpenOptions::new().append(true).open(dir.path().join("0.log")).unwrap();
    file.write_all(b"\n").unwrap();
    assert_eq!(rest(&mut log), ["x".repeat(7)]);
}

/// The output of a reader of all available lines when `meanwhile` happens before its first read.
fn bounded(dir: &Path, meanwhile: impl FnOnce()) -> Vec<String> {
    let mut files = LogDir::new(dir, ".");
    let span = files.span(None, None).unwrap().unwrap();
    let mut log = AppLog::new("a".parse().unwrap(), files, Some(span.start), BLOCK).ending(Some(span.end));
    meanwhile();
    let got = rest(&mut log);
    assert!(log.is_drained() && log.open.is_none() && rest(&mut log).is_empty(), "reading does not start over");
    got
}

/// A file that is rotated away between the listing and the opening takes no newer file with it, whether or not the new
/// file has got the inode of the deleted one.
#[test]
fn a_rotated_file_hides_no_newer_file() {
    for (reused, ends) in [(false, false), (false, true), (true, false), (true, true)] {
        let temp = tempfile::tempdir().unwrap();
        let path = |name: &str| temp.path().join(name);
        generate(temp.path(), 40, 10);
        let mut dir = LogDir::new(temp.path().parent().unwrap(), temp.path().file_name().unwrap());
        let span = dir.span(None, None).unwrap().unwrap();
        let mut log = AppLog::new("a".parse().unwrap(), dir.reopen(), Some(span.start), BLOCK);
        if ends {
            log = log.ending(Some(span.end));
        }
        let parts = log.dir.parts().unwrap();
        std::fs::rename(path("0.log.2"), path("aside")).unwrap();
        for (from, to) in [("0.log.1", "0.log.2"), ("0.log", "0.log.1")] {
            std::fs::rename(path(from), path(to)).unwrap();
        }
        if reused {
            std::fs::rename(path("aside"), path("0.log")).unwrap();
        }
        std::fs::write(path("0.log"), line(40, "F", "40")).unwrap();
        log.open_newer(&parts).unwrap();
        assert_eq!(log.ahead.len(), 2, "{reused} {ends}");
        let mut want = [numbers(0..10), numbers(20..40)].concat();
        want.extend((!ends).then(|| "40".to_owned()));
        assert_eq!(rest(&mut log), want, "{reused} {ends}");
    }
}

#[test]
fn a_bounded_reader_does_not_follow_rotation() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    generate(dir.path(), 30, 10);
    let write_on = || {
        let mut file = std::fs::OpenOptions::new().append(true).open(path("0.log")).unwrap();
        file.write_all(line(30, "F", "too late").as_bytes()).unwrap();
    };
    let rotated = bounded(dir.path(), || {
        write_on();
        for age in (1..3).rev() {
            std::fs::rename(path(&format!("0.log.{age}")), path(&format!("0.log.{}", age + 1))).unwrap();
        }
        std::fs::rename(path("0.log"), path("0.log.1")).unwrap();
        std::fs::write(path("0.log"), line(31, "F", "later still")).unwrap();
    });
    assert_eq!(rotated, numbers(0..30));
}

#[test]
fn a_bounded_reader_ends_despite_deletion() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    generate(dir.path(), 30, 10);
    let deleted = bounded(dir.path(), || {
        for name in ["0.log.2", "0.log.1", "0.log"] {
            std::fs::remove_file(path(name)).unwrap();
        }
        std::fs::write(path("0.log"), line(31, "F", "later")).unwrap();
    });
    assert_eq!(deleted, [numbers(0..10), numbers(20..30)].concat(), "those held open: the first and the last");
    std::fs::write(path("0.log"), line(31, "F", "x")).unwrap();
    let truncated = bounded(dir.path(), || std::fs::write(path("0.log"), "").unwrap());
    assert_eq!(truncated, Vec::<String>::new());
}
