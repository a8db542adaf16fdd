//! Compares readers over generated files with a filter over all lines.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// A generated record of a log file: with a time and a tag, or a malformed line.
#[derive(Debug, Clone)]
struct Record {
    /// Nanoseconds after the one before; `None`: it has no time.
    step: Option<i64>,
    stderr: bool,
    tag: &'static str,
    length: usize,
    /// Whether a new file begins with it, and whether that file is of a new attempt.
    rotated: (bool, bool),
}

/// The expected result for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedLine {
    app: usize,
    at: Option<i64>,
    stderr: bool,
    piece: bool,
    text: String,
}

fn record() -> impl Strategy<Value = Record> {
    let step = prop_oneof![8 => (0i64..3).prop_map(|n| Some(n * 1_000_000_000)), 1 => Just(None)];
    let tag = prop_oneof![6 => Just("F"), 3 => Just("P"), 1 => Just("F:noeol")];
    let length = prop_oneof![20 => 0usize..60, 1 => 0usize..30_000];
    let rotated = (prop::bool::weighted(0.1), prop::bool::weighted(0.3));
    (step, any::<bool>(), tag, length, rotated).prop_map(|(step, stderr, tag, length, rotated)| Record {
        step,
        stderr,
        tag,
        length,
        rotated,
    })
}

/// Writes an app's files, each torn at its end if requested; returns their records.
fn write(dir: &Path, app: usize, records: &[Record], torn: bool) -> Vec<ExpectedLine> {
    let dir = dir.join(files::LOGS).join(name(app).as_str());
    std::fs::create_dir_all(&dir).unwrap();
    let (mut now, mut timed, mut seen) = (0, false, Vec::new());
    let mut attempts = vec![vec![String::new()]];
    for (i, record) in records.iter().enumerate() {
        match record.rotated {
            (true, true) => attempts.push(vec![String::new()]),
            (true, false) => attempts.last_mut().unwrap().push(String::new()),
            _ => {}
        }
        let mut text = format!("{i}{}", "\0x".repeat(record.length / 2));
        let file = attempts.last_mut().unwrap().last_mut().unwrap();
        if let Some(step) = record.step {
            (now, timed) = (now + step, true);
            let stream = if record.stderr { "stderr" } else { "stdout" };
            write!(file, "{} {stream} {} ", Timestamp(now).rfc3339().as_str(), record.tag).unwrap();
        } else {
            text = format!("strange {text}");
        }
        writeln!(file, "{text}").unwrap();
        let piece = record.step.is_some() && record.tag == "P";
        let stderr = record.step.is_some() && record.stderr;
        seen.push(ExpectedLine { app, at: timed.then_some(now), stderr, piece, text });
    }
    for (attempt, parts) in attempts.iter().enumerate() {
        for (age, text) in parts.iter().rev().enumerate() {
            let suffix = if age == 0 { String::new() } else { format!(".{age}") };
            let end = if torn { "1970-01-01T00:00:00.000000000Z stdout F torn" } else { "" };
            std::fs::write(dir.join(format!("{attempt}.log{suffix}")), format!("{text}{end}")).unwrap();
        }
    }
    seen
}

fn log_dir(pod: &Path, app: usize) -> LogDir {
    LogDir::new(pod, Path::new(files::LOGS).join(name(app).as_str()))
}

fn name(app: usize) -> AppName {
    format!("app{app}").parse().unwrap()
}

/// The records whose lines are among the last `most`, in the order given. A line is where its last piece is, or at the
/// end.
fn last(records: Vec<ExpectedLine>, most: Option<usize>) -> Vec<ExpectedLine> {
    let Some(most) = most else { return records };
    // For each record the place of its line.
    let line = |i: usize| {
        let end = records[i..].iter().position(|other| other.app == records[i].app && !other.piece);
        end.map_or((usize::MAX, records[i].app), |end| (i + end, 0))
    };
    let lines: Vec<(usize, usize)> = (0..records.len()).map(line).collect();
    let mut all = lines.clone();
    all.sort_unstable();
    all.dedup();
    let kept = &all[all.len().saturating_sub(most)..];
    records.into_iter().zip(lines).filter(|(_, line)| kept.contains(line)).map(|(record, _)| record).collect()
}

fn naive(apps: &[Vec<ExpectedLine>], query: &LogQuery) -> Vec<ExpectedLine> {
    let fits = |record: &ExpectedLine| {
        query.stderr.is_none_or(|stderr| record.stderr == stderr)
            && query.since.is_none_or(|since| record.at >= Some(since.0))
            && query.until.is_none_or(|until| record.at < Some(until.0))
    };
    let within =
        |app: &Vec<ExpectedLine>| last(app.iter().filter(|record| fits(record)).cloned().collect(), query.tail);
    let mut merged: Vec<ExpectedLine> = apps.iter().flat_map(within).collect();
    merged.sort_by_key(|record| (record.at, record.app));
    last(merged, query.tail_total)
}

fn reader(dir: &Path, apps: usize, query: &LogQuery) -> LogReader {
    let id = PodId::from_random([0; 16]);
    let mut opening = Opening { query, id, is_snapshot: true, logs: Vec::new() };
    (0..apps).for_each(|app| opening.add(&name(app), log_dir(dir, app)).unwrap());
    let merge =
        Merge { id, logs: opening.finish().unwrap(), stderr: query.stderr, since: query.since, until: query.until };
    LogReader {
        id,
        boot: BootId("x".to_owned()),
        merge,
        until: None,
        stage: Stage::Over,
        followed: None,
        changes: 0,
        start: None,
    }
}

#[test]
fn unreadable_log_directories_are_errors() {
    let pod = tempfile::tempdir().unwrap();
    let find = || FollowedApps::after(pod.path(), &[], &LogQuery::default()).find(|| Ok(None));
    assert!(find().unwrap().new.is_empty());
    std::fs::write(pod.path().join(files::LOGS), "").unwrap();
    assert!(matches!(find(), Err(PodError::Io { .. })));
}

/// All lines that a reader returns, and the number of pulls.
fn all(reader: &mut LogReader, most: usize) -> (Vec<ExpectedLine>, usize) {
    let mut seen = Vec::new();
    for pulls in 1.. {
        let pulled = reader.pull(|| Ok(None), most, &mut |line| {
            let app = line.app.as_str().strip_prefix("app").unwrap().parse().unwrap();
            let text = String::from_utf8(line.text.to_vec()).unwrap();
            seen.push(ExpectedLine { app, at: Some(line.at.0), stderr: line.stderr, piece: line.piece, text });
        });
        match pulled.unwrap() {
            Pulled::More => {}
            Pulled::End => return (seen, pulls),
            other => panic!("no line can follow, but the result is {other:?}"),
        }
    }
    unreachable!("pulls end");
}

/// The line as shown: one without a time is at the beginning of time.
fn shown(records: Vec<ExpectedLine>) -> Vec<ExpectedLine> {
    records.into_iter().map(|record| ExpectedLine { at: Some(record.at.unwrap_or(0)), ..record }).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]
    #[test]
    fn the_reader_agrees_with_a_simple_filter(
        apps in prop::collection::vec((prop::collection::vec(record(), 0..60), any::<bool>()), 1..4),
        bounds in (prop::option::of(0i64..70), prop::option::of(0i64..70)),
        tails in (prop::option::of(0usize..70), prop::option::of(0usize..70)),
        stderr in prop::option::of(any::<bool>()),
        most in 1usize..5000,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let written: Vec<Vec<ExpectedLine>> =
            apps.iter().enumerate().map(|(app, (records, torn))| write(dir.path(), app, records, *torn)).collect();
        let time = |second: i64| Timestamp(second * 1_000_000_000);
        let query = LogQuery {
            stderr,
            since: bounds.0.map(time),
            until: bounds.1.map(time),
            tail: tails.0,
            tail_total: tails.1,
            ..LogQuery::default()
        };
        let (got, _) = all(&mut reader(dir.path(), apps.len(), &query), most);
        prop_assert_eq!(got, shown(naive(&written, &query)), "{:?}", query);
    }
}

/// The texts that a query gives of apps with these files.
fn texts(apps: &[&str], query: &LogQuery) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (app, text) in apps.iter().enumerate() {
        let logs = dir.path().join(files::LOGS).join(name(app).as_str());
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(logs.join("0.log"), text).unwrap();
    }
    let (seen, _) = all(&mut reader(dir.path(), apps.len(), query), 1);
    seen.into_iter().map(|record| record.text).collect()
}

#[test]
fn bounds_and_tails_combine() {
    let a = "1970-01-01T00:00:01Z stdout F a\n1970-01-01T00:00:02Z stdout P b\n1970-01-01T00:00:03Z stdout F c\n";
    let b = "1970-01-01T00:00:02Z stderr F x\n1970-01-01T00:00:02.5Z stdout F y\n1970-01-01T00:00:09Z stdout P z\n";
    let second = |second: i64| Some(Timestamp(second * 1_000_000_000));
    let query = LogQuery::default;
    for (query, want) in [
        (query(), "abxycz"),
        (LogQuery { since: second(2), ..query() }, "bxycz"),
        (LogQuery { until: second(2), ..query() }, "a"),
        (LogQuery { since: second(2), until: second(3), ..query() }, "bxy"),
        (LogQuery { since: second(3), until: second(2), ..query() }, ""),
        (LogQuery { since: second(10), ..query() }, ""),
        (LogQuery { stderr: Some(true), ..query() }, "x"),
        (LogQuery { stderr: Some(true), tail_total: Some(5), ..query() }, "x"),
        (LogQuery { stderr: Some(false), tail: Some(1), ..query() }, "bcz"),
        (LogQuery { stderr: Some(false), tail_total: Some(3), ..query() }, "bycz"),
        (LogQuery { tail: Some(1), ..query() }, "bcz"),
        (LogQuery { tail: Some(0), ..query() }, ""),
        (LogQuery { tail_total: Some(0), ..query() }, ""),
        (LogQuery { tail_total: Some(1), ..query() }, "z"),
        (LogQuery { tail_total: Some(2), ..query() }, "bcz"),
        (LogQuery { tail_total: Some(3), ..query() }, "bycz"),
        (LogQuery { tail_total: Some(9), ..query() }, "abxycz"),
        (LogQuery { tail_total: Some(2), until: second(3), ..query() }, "by"),
        (LogQuery { tail_total: Some(2), since: second(2), until: second(9), ..query() }, "byc"),
        (LogQuery { tail: Some(1), tail_total: Some(1), ..query() }, "z"),
    ] {
        assert_eq!(texts(&[a, b], &query), want, "{query:?}");
    }
    assert_eq!(texts(&[], &query()), "");
    assert_eq!(texts(&["", "strange\n"], &query()), "strange");
}

#[test]
fn a_pull_stops_at_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let records = vec![Record { step: Some(1), stderr: false, tag: "F", length: 0, rotated: (false, false) }; 100];
    write(dir.path(), 0, &records, false);
    let query = LogQuery::default();
    let (seen, pulls) = all(&mut reader(dir.path(), 1, &query), 1);
    assert_eq!((seen.len(), pulls), (100, 101), "one line a pull: empty lines count too");
    let (seen, pulls) = all(&mut reader(dir.path(), 1, &query), 1 << 20);
    assert_eq!((seen.len(), pulls), (100, 1));
    // Skipped lines count as well: no pull takes long.
    let none = LogQuery { until: Some(Timestamp(1)), ..LogQuery::default() };
    let mut follower = reader(dir.path(), 1, &query);
    follower.merge.until = none.until;
    assert_eq!(all(&mut follower, 1), (Vec::new(), 101));
}

#[test]
fn an_app_without_output_has_an_empty_log() {
    let dir = tempfile::tempdir().unwrap();
    let query = LogQuery { tail: Some(3), since: Some(Timestamp(5)), ..LogQuery::default() };
    assert_eq!(all(&mut reader(dir.path(), 2, &query), 100), (Vec::new(), 1));
}

#[test]
fn later_lines_are_merged_by_time() {
    use std::io::Write as _;
    let dir = tempfile::tempdir().unwrap();
    let records = [Record { step: Some(1), stderr: false, tag: "F", length: 0, rotated: (false, false) }];
    write(dir.path(), 0, &records, false);
    write(dir.path(), 1, &[], false);
    let id = PodId::from_random([0; 16]);
    let query = LogQuery { follow: true, ..LogQuery::default() };
    let mut opening = Opening { query: &query, id, is_snapshot: false, logs: Vec::new() };
    (0..2).for_each(|app| opening.add(&name(app), log_dir(dir.path(), app)).unwrap());
    let merge = Merge { id, logs: opening.finish().unwrap(), stderr: None, since: None, until: None };
    let mut reader = LogReader {
        id,
        boot: BootId("x".to_owned()),
        merge,
        until: None,
        stage: Stage::Waiting,
        followed: None,
        changes: 0,
        start: None,
    };
    let append = |app: usize, second: i64| {
        let path = dir.path().join(files::LOGS).join(name(app).as_str()).join("0.log");
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        let at = Timestamp(second * 1_000_000_000);
        writeln!(file, "{} stdout F {second}", at.rfc3339().as_str()).unwrap();
    };
    // The supervisor writes between our reading the one log and the other.
    let mut seen = Vec::new();
    let mut wrote = false;
    let pulled = reader.merge.merge_until(|app, line, _| {
        let text = String::from_utf8(line.unwrap().text.to_vec()).unwrap();
        if !std::mem::replace(&mut wrote, true) {
            append(1, 4);
            append(0, 5);
            append(1, 6);
        }
        seen.push((app, text));
        true
    });
    assert!(!pulled.unwrap());
    assert_eq!(seen, [(0, "0"), (1, "4"), (0, "5"), (1, "6")].map(|(app, text)| (app, text.to_owned())));
    let waiting = row_of(id, Phase::Preparing);
    assert_eq!(reader.pull(|| Ok(Some(waiting.clone())), 100, &mut |_| {}).unwrap(), Pulled::Waiting);
    append(0, 7);
    let mut last = 0;
    let pulled = reader.pull(|| Ok(None), 100, &mut |line| last = line.at.seconds());
    assert_eq!((pulled.unwrap(), last), (Pulled::End, 7), "the output of a removed pod is still returned");
}

fn row_of(id: PodId, phase: Phase) -> PodRow {
    PodRow {
        id,
        generation: gantry_model::Generation(0),
        phase,
        created: Timestamp(0),
        prepared: None,
        net: gantry_model::NetMode::None,
        networks: gantry_store::Networks::default(),
        hostname: String::new(),
        name: None,
        namespace: Default::default(),
        sandbox: false,
        cgroup: "/gantry/6733c088-a507-4694-aabf-ec79c0a8ac9a".into(),
        log_dir: None,
        limit_changes: 0,
        paused: false,
        apps: Vec::new(),
        user_annotations: std::collections::BTreeMap::new(),
        user_labels: std::collections::BTreeMap::new(),
        restart: Default::default(),
    }
}

#[test]
fn readers_are_send() {
    fn is_send<T: Send>() {}
    is_send::<LogReader>();
}

#[test]
fn apps_are_chosen_by_name() {
    let mut row = row_of(PodId::from_random([0; 16]), Phase::Preparing);
    row.apps = [2, 1].map(app_row).into();
    for (requested, want) in [(&[][..], &[2, 1][..]), (&[1], &[1]), (&[1, 2, 1], &[2, 1])] {
        let requested: Vec<AppName> = requested.iter().copied().map(name).collect();
        assert_eq!(chosen(&row, &requested).unwrap(), want.iter().copied().map(name).collect::<Vec<_>>());
    }
    assert!(matches!(chosen(&row, &[name(3)]), Err(LogsError::NoSuchApp { app, .. }) if app == name(3)));
}

fn app_row(app: usize) -> gantry_store::AppRow {
    let image = gantry_model::Digest::from_hash(gantry_model::id::Algorithm::Sha256, &[0; 32]).unwrap();
    gantry_store::AppRow {
        name: name(app),
        image: Some(image),
        image_name: "x".to_owned(),
        id: gantry_model::AppId::from_random([1; 32]),
        labels: std::collections::BTreeMap::new(),
        added: None,
        paused: false,
        health: gantry_store::HealthRecord::default(),
        oom: gantry_store::OomRecord::default(),
        limit_changes: 0,
        log_path: None,
        restart: Default::default(),
        state: gantry_model::AppState::Waiting,
        readiness: None,
        annotations: std::collections::BTreeMap::new(),
    }
}

/// A row that names `child` as the supervisor.
fn running(child: &std::process::Child, boot: &BootId) -> PodRow {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let start_ticks = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().parse().unwrap();
    let supervisor = gantry_model::Process { pid: child.id(), start_ticks, boot: boot.clone() };
    let phase = Phase::Running { since: Timestamp(0), supervisor };
    PodRow { apps: vec![app_row(0)], ..row_of(PodId::from_random([0; 16]), phase) }
}

#[test]
fn following_delivers_the_last_lines_of_the_supervisor() {
    use std::process::{Command, Stdio};
    let dir = tempfile::tempdir().unwrap();
    let lines = |n: usize| {
        let record = Record { step: Some(1), stderr: false, tag: "F", length: 0, rotated: (false, false) };
        write(dir.path(), 0, &vec![record; n], false)
    };
    lines(2);
    let boot = BootId("x".to_owned());
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let row = running(&child, &boot);
    let query = LogQuery { follow: true, tail: Some(1), ..LogQuery::default() };
    let mut reader = LogReader::open(&row, dir.path(), &boot, &query).unwrap();
    let mut pull = || {
        let mut seen = 0;
        // A follower of a running pod no longer needs its row.
        let pulled = reader.pull(|| panic!("it asks for the row"), 1 << 20, &mut |_| seen += 1).unwrap();
        (pulled, seen, reader.supervisor().is_some())
    };
    assert_eq!(pull(), (Pulled::Drained, 1, true));
    lines(5);
    assert_eq!(pull(), (Pulled::Drained, 3, true));
    lines(6);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(pull(), (Pulled::End, 1, false));
    assert_eq!(pull(), (Pulled::End, 0, false));
    let mut late = LogReader::open(&row, dir.path(), &boot, &query).unwrap();
    assert_eq!(
        late.pull(|| Ok(None), 1 << 20, &mut |_| {}).unwrap(),
        Pulled::End,
        "the row's phase is Running, but the supervisor has ended"
    );
}

/// Makes the log of an app, with one line.
fn add_app(dir: &Path, app: usize) {
    let record = Record { step: Some(1), stderr: false, tag: "F", length: 0, rotated: (false, false) };
    write(dir, app, &[record], false);
}

/// Removes an app as a supervisor does: its log is deleted under another name.
fn remove_app(dir: &Path, app: usize, trash: &Path) {
    std::fs::rename(dir.join(files::LOGS).join(name(app).as_str()), trash).unwrap();
    std::fs::remove_dir_all(trash).unwrap();
}

#[test]
fn followers_forget_removed_apps() {
    use std::process::{Command, Stdio};
    let (dir, trash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let boot = BootId("x".to_owned());
    let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let row = PodRow { apps: [0, 1].map(app_row).into(), ..running(&child, &boot) };
    (0..2).for_each(|app| add_app(dir.path(), app));
    let open = |apps: &[usize]| {
        let apps = apps.iter().copied().map(name).collect();
        LogReader::open(&row, dir.path(), &boot, &LogQuery { follow: true, apps, ..LogQuery::default() }).unwrap()
    };
    let (mut all, mut one, mut both) = (open(&[]), open(&[0]), open(&[0, 1]));
    let pull = |reader: &mut LogReader| {
        let mut seen = 0;
        let pulled = reader.pull(|| Ok(Some(row.clone())), 1 << 20, &mut |_| seen += 1).unwrap();
        (pulled, seen, reader.dirs().len())
    };
    for (reader, lines) in [(&mut all, 2), (&mut one, 1), (&mut both, 2)] {
        assert_eq!(pull(reader), (Pulled::Drained, lines, lines + 1));
    }
    let mut late = open(&[0]);
    remove_app(dir.path(), 0, &trash.path().join("first"));
    assert_eq!(pull(&mut late).0, Pulled::End);
    assert_eq!(pull(&mut one), (Pulled::End, 0, 1), "its app is gone");
    assert_eq!(pull(&mut both), (Pulled::Drained, 0, 2));
    assert_eq!(pull(&mut all), (Pulled::Drained, 0, 2));
    add_app(dir.path(), 0);
    assert_eq!(pull(&mut all), (Pulled::Drained, 1, 3), "another app with its name");
    // Between two pulls. The former directory keeps its inode meanwhile.
    let logs = dir.path().join(files::LOGS);
    std::fs::rename(logs.join(name(0).as_str()), trash.path().join("second")).unwrap();
    add_app(dir.path(), 0);
    for reader in [&mut all, &mut both] {
        let changes = reader.dir_changes();
        assert_eq!(pull(reader), (Pulled::Drained, 1, 3));
        assert!(reader.dir_changes() > changes, "the directories have the same paths");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(pull(&mut all).0, Pulled::End);
}

#[test]
fn following_ends_at_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let boot = BootId("x".to_owned());
    let row = PodRow { apps: vec![app_row(0)], ..row_of(PodId::from_random([0; 16]), Phase::Preparing) };
    let open = |until: Timestamp| {
        let query = LogQuery { follow: true, until: Some(until), ..LogQuery::default() };
        LogReader::open(&row, dir.path(), &boot, &query).unwrap()
    };
    let mut past = open(gantry_store::now().before(Duration::from_secs(1)));
    assert_eq!(past.pull(|| Ok(Some(row.clone())), 100, &mut |_| {}).unwrap(), Pulled::End);
    let mut future = open(Timestamp(gantry_store::now().0 + 1_000_000_000));
    assert_eq!(future.dirs(), [dir.path().join("logs/app0"), dir.path().join("logs")]);
    let mut wait = future.wait_at_most();
    assert!(wait.is_some_and(|wait| wait > Duration::from_millis(10)), "{wait:?}");
    while future.pull(|| Ok(Some(row.clone())), 100, &mut |_| {}).unwrap() == Pulled::Waiting {
        assert!(process::readable(&[], Deadline::from(wait)).unwrap().is_none());
        wait = future.wait_at_most();
    }
    assert!(wait.is_none_or(|wait| wait <= WRITE_DELAY + Duration::from_millis(1)), "it ended in time: {wait:?}");
}

#[test]
fn an_observer_reports_missing_pods() {
    let dir = tempfile::tempdir().unwrap();
    let options = crate::Options::new(dir.path().join("data"));
    let engine = Engine::open(options.clone()).unwrap();
    let id = PodId::from_random([7; 16]);
    let observer = Observer::open(options).unwrap();
    for opened in [observer.open_logs(id, &LogQuery::default()), engine.open_logs(id, &LogQuery::default())] {
        assert!(matches!(opened, Err(LogsError::Pod(PodError::NotFound(_)))));
    }
}

/// Prints MB/s; for a release build: `cargo test --release -p gantry-engine --lib log_speed -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn log_speed() {
    const LINES: usize = 4_000_000;
    let dir = tempfile::tempdir().unwrap();
    let mut sizes = Vec::new();
    for app in 0..3 {
        let logs = dir.path().join(files::LOGS).join(name(app).as_str());
        std::fs::create_dir_all(&logs).unwrap();
        let mut text = Vec::new();
        for i in 0..LINES {
            let at = Timestamp(1_700_000_000_000_000_000 + (i * 3 + app) as i64 * 100_000);
            text.extend(at.rfc3339().as_bytes());
            text.extend(format!(" stdout F line {i:09} {}\n", "x".repeat(45)).as_bytes());
        }
        std::fs::write(logs.join("0.log"), &text).unwrap();
        sizes.push(text.len());
    }
    let middle = Timestamp(1_700_000_000_000_000_000 + (LINES * 3 / 2) as i64 * 100_000);
    let query = LogQuery::default;
    let cases = [
        ("one app", 1, query()),
        ("three apps", 3, query()),
        ("one app since the middle", 1, LogQuery { since: Some(middle), ..query() }),
        ("the last million of three apps", 3, LogQuery { tail_total: Some(1_000_000), ..query() }),
    ];
    for (what, apps, query) in cases {
        for _ in 0..3 {
            let begin = std::time::Instant::now();
            let mut reader = reader(dir.path(), apps, &query);
            let opened = begin.elapsed();
            let (mut bytes, mut lines) = (0, 0);
            while reader
                .pull(|| Ok(None), 1 << 20, &mut |line| {
                    bytes += line.text.len() + 41;
                    lines += 1;
                })
                .unwrap()
                == Pulled::More
            {}
            let took = begin.elapsed();
            let speed = bytes as f64 / took.as_secs_f64() / 1e6;
            println!("{what}: {lines} lines, {bytes} bytes, open {opened:?}, {took:?}, {speed:.0} MB/s");
        }
    }
}
