//! Reading generated log files from anywhere, across rotations.

use std::io::Write as _;

use proptest::prelude::*;

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
    AppLog::new("a".parse().unwrap(), dir.to_owned())
}

fn rest(log: &mut AppLog) -> Vec<String> {
    let mut texts = Vec::new();
    while log.peek().unwrap().is_some() {
        texts.push(String::from_utf8(log.take().unwrap().text).unwrap());
    }
    texts
}

fn numbers(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|i| i.to_string()).collect()
}

#[test]
fn a_line_without_a_newline_counts_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let text = line(1, "F", "a") + &line(2, "F:noeol", "b") + &line(3, "F", "c");
    std::fs::write(dir.path().join("0.log"), text).unwrap();
    let mut log = log(dir.path());
    log.tail(2).unwrap();
    assert_eq!(rest(&mut log), ["b", "c"]);
}

#[test]
fn names_of_files() {
    for (text, want) in [
        ("0.log", Some((0, 0))),
        ("12.log.3", Some((12, 3))),
        ("0.log.0", None),
        ("0.log.", None),
        ("x.log", None),
        ("0.logx", None),
        ("0.txt", None),
    ] {
        assert_eq!(name(text), want, "{text}");
    }
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
fn rotation_while_reading_loses_and_doubles_nothing() {
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
fn files_that_are_deleted_behind_the_reader_are_read_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    generate(dir.path(), 40, 10);
    let mut log = log(dir.path());
    log.peek().unwrap();
    for age in 1..4 {
        std::fs::remove_file(dir.path().join(format!("0.log.{age}"))).unwrap();
    }
    assert_eq!(rest(&mut log), numbers(0..40));
}

#[test]
fn a_reader_that_comes_too_late_goes_on_with_the_oldest() {
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
fn unfinished_lines_wait_and_strange_ones_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    std::fs::write(&path, format!("{}strange\n1970-01-01T00:0", line(1, "P", "x"))).unwrap();
    let mut log = log(dir.path());
    assert!(log.peek().unwrap().unwrap().partial);
    log.take();
    assert_eq!(rest(&mut log), ["strange"]);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"0:05Z stderr F y\n").unwrap();
    let line = log.peek().unwrap().unwrap();
    assert_eq!((line.at, line.stderr, &line.text[..]), (at(5), true, &b"y"[..]));
}

#[test]
fn an_endless_line_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("0.log"), vec![b'x'; 3 * MOST_LINE]).unwrap();
    let mut log = log(dir.path());
    let longest = std::iter::from_fn(|| log.peek().unwrap().is_some().then(|| log.take().unwrap().text.len())).max();
    assert!(longest.unwrap() <= MOST_LINE + BLOCK);
}

#[test]
fn a_tail_counts_lines_and_not_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let pieces = [("F", "a"), ("P", "b1"), ("P", "b2"), ("F", "b3"), ("F", "c"), ("P", "d1")];
    let text: String = pieces.iter().zip(0..).map(|((tag, text), i)| line(i, tag, text)).collect();
    std::fs::write(dir.path().join("0.log"), text).unwrap();
    for (lines, want) in [
        (0, vec![]),
        (1, vec!["d1"]),
        (2, vec!["c", "d1"]),
        (3, vec!["b1", "b2", "b3", "c", "d1"]),
        (9, vec!["a", "b1", "b2", "b3", "c", "d1"]),
    ] {
        let mut log = log(dir.path());
        log.tail(lines).unwrap();
        assert_eq!(rest(&mut log), want, "{lines}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn since_and_tail_begin_where_reading_all_would(
        count in 0u32..3000, each in 1u32..800, since in 0u32..3100, tail in 0usize..3100,
    ) {
        let dir = tempfile::tempdir().unwrap();
        generate(dir.path(), count, each);
        let all = numbers(0..count);
        let from = since.min(count) as usize;
        let mut by_time = log(dir.path());
        by_time.since(at(since)).unwrap();
        prop_assert_eq!(&rest(&mut by_time)[..], &all[from..]);
        let last = all.len().saturating_sub(tail);
        let mut by_number = log(dir.path());
        by_number.tail(tail).unwrap();
        prop_assert_eq!(&rest(&mut by_number)[..], &all[last..]);
        let mut both = log(dir.path());
        both.since(at(since)).unwrap();
        both.tail(tail).unwrap();
        prop_assert_eq!(&rest(&mut both)[..], &all[from.max(last)..]);
    }
}

#[test]
fn the_end_of_a_log() {
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
        assert_eq!(ends_in_a_whole_line(dir.path()).unwrap(), want, "{text}");
    }
    assert!(ends_in_a_whole_line(Path::new("/nonexistent")).unwrap());
}
