//! GetLogs: bounds alone and combined, all apps merged, running and exited pods, and output that is not text.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_proto::rkt::v1alpha::{GetLogsRequest, PodState};
use gantry_tests::api::Api;
use gantry_tests::{Gantry, nanos, now_ns, pod_id, wait_for};

/// The size limit of a stream's message.
const MAX_MESSAGE_BYTES: usize = 4 << 20;

fn request_for(pod: &str) -> GetLogsRequest {
    GetLogsRequest { pod_id: pod.to_owned(), ..GetLogsRequest::default() }
}

fn follow(pod: &str) -> GetLogsRequest {
    GetLogsRequest { follow: true, ..request_for(pod) }
}

/// The time and the text of an element; rkt's clients split it at `MESSAGE=`.
#[track_caller]
fn cut(element: &str) -> (i64, &str) {
    let Some((at, text)) = element.split_once(" +0000 UTC MESSAGE=") else { panic!("no time in '{element:.80}'") };
    assert_eq!(at.len(), 29, "nanoseconds: {at}");
    (nanos(at), text)
}

/// The texts of all elements, whose times must not decrease.
#[track_caller]
fn texts(elements: &[String]) -> Vec<&str> {
    let cut: Vec<_> = elements.iter().map(|element| cut(element)).collect();
    assert!(cut.is_sorted_by_key(|(at, _)| *at), "in the order of time");
    cut.into_iter().map(|(_, text)| text).collect()
}

/// Asserts equality; prints the first difference instead of all lines.
#[track_caller]
fn assert_equal<T: PartialEq<U> + std::fmt::Debug, U: std::fmt::Debug>(what: &str, got: &[T], want: &[U]) {
    let parts = got.iter().zip(want).position(|(got, want)| got != want);
    if parts.is_some() || got.len() != want.len() {
        let at = parts.unwrap_or_else(|| got.len().min(want.len()));
        let shown = |text: String| text.chars().take(200).collect::<String>();
        let (left, right) = (shown(format!("{:?}", got.get(at))), shown(format!("{:?}", want.get(at))));
        panic!("{what}: {} instead of {}; at {at}: {left} instead of {right}", got.len(), want.len());
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("line {i:06}")).collect()
}

#[test]
fn complete_logs_of_an_ended_pod_are_returned() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let begin = now_ns();
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=it", "--", "lines", "1000"]).ok());
    api.wait_state(&pod, PodState::Exited);
    let all = api.logs(request_for(&pod)).rest();
    assert_equal("all lines", &texts(&all), &numbered(1000));
    assert!(all.iter().all(|element| (begin..=now_ns()).contains(&cut(element).0)), "true times");
    // The same with the app's name, and with a unique prefix of the id.
    assert_equal("by name", &api.logs(GetLogsRequest { app_name: "it".into(), ..request_for(&pod) }).rest(), &all);
    assert_equal("by the beginning", &api.logs(request_for(&pod[..13].to_uppercase())).rest(), &all);
    // Following an exited pod ends.
    assert_equal("followed", &api.logs(follow(&pod)).rest(), &all);
    // A pod that never ran has no output.
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=it", "--", "true"]).ok());
    assert_eq!(api.logs(request_for(&prepared)).rest(), Vec::<String>::new());
    // The logs of a pod marked as garbage remain.
    g.run(&["gc", "--mark-only"]).succeeded();
    api.wait_state(&pod, PodState::Garbage);
    assert_equal("garbage", &api.logs(request_for(&pod)).rest(), &all);
    for (what, request) in [
        ("a missing app", GetLogsRequest { app_name: "other".into(), ..request_for(&pod) }),
        ("an invalid name", GetLogsRequest { app_name: "NO\nNAME".into(), ..request_for(&pod) }),
        ("a missing pod", request_for("00000000-0000-4000-8000-000000000000")),
    ] {
        let status = api.try_logs(request).map(|mut logs| logs.try_next()).unwrap_or_else(Err).unwrap_err();
        assert_eq!(status.code(), tonic::Code::NotFound, "{what}: {status}");
        assert!(!status.message().contains('\n'), "{what}: {status:?}");
    }
    drop(api);
    served.end();
}

/// Replaces an exited pod's log of an app by lines with chosen times: seconds 0 to 9, `each` lines per second. Returns
/// the lines as (nanoseconds, text).
fn rewrite(g: &Gantry, pod: &str, app: &str, base: i64, each: i64, shift: i64) -> Vec<(i64, String)> {
    let path: PathBuf = g.dir().join("pods").join(pod).join("logs").join(app).join("0.log");
    let mut file = String::new();
    let mut all = Vec::new();
    for i in 0..10 * each {
        let at = base * 1_000_000_000 + i * (1_000_000_000 / each) + shift;
        let text = format!("{app} {i}");
        file.push_str(&format!("{} stdout F {text}\n", stamp(at)));
        all.push((at, text));
    }
    std::fs::write(path, file).unwrap();
    all
}

/// The RFC 3339 form of a time in January 2001.
fn stamp(at: i64) -> String {
    let since = at - nanos("2001-01-01T00:00:00.0Z");
    let (second, nano) = (since.div_euclid(1_000_000_000), since.rem_euclid(1_000_000_000));
    let (day, second) = (second / 86_400 + 1, second % 86_400);
    format!("2001-01-{day:02}T{:02}:{:02}:{:02}.{nano:09}Z", second / 3600, second / 60 % 60, second % 60)
}

#[test]
fn time_bounds_and_line_limits_combine() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let app = |name: &'static str| [image.clone(), format!("--name={name}"), "--".into(), "print".into(), "x".into()];
    let words = [app("a").to_vec(), vec!["---".to_owned()], app("b").to_vec()].concat();
    let words: Vec<&str> = ["run", "--net=none", "-d"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let pod = pod_id(&g.run(&words).ok());
    api.wait_state(&pod, PodState::Exited);
    let base = nanos("2001-01-02T03:04:05.0Z") / 1_000_000_000;
    let a = rewrite(&g, &pod, "a", base, 100, 0);
    let b = rewrite(&g, &pod, "b", base, 40, 1);
    let mut merged = [a.clone(), b].concat();
    merged.sort();
    let second = |n: i64| base + n;
    for (lines, since, until) in [
        (0, 0, 0),
        (1, 0, 0),
        (7, 0, 0),
        (5000, 0, 0),
        (0, second(0), 0),
        (0, second(5), 0),
        (0, second(9), 0),
        (0, second(10), 0),
        (0, 1, 0),
        (0, 0, second(0)),
        (0, 0, second(1)),
        (0, 0, second(5)),
        (0, 0, second(10)),
        (0, second(3), second(4)),
        (0, second(3), second(7)),
        (0, second(4), second(4)),
        (13, second(3), 0),
        (13, 0, second(4)),
        (13, second(3), second(4)),
        (9999, second(3), second(5)),
        (1, second(9), second(10)),
    ] {
        for (app_name, all) in [("a", &a), ("", &merged)] {
            let holds =
                |at: i64| (since == 0 || at >= since * 1_000_000_000) && (until == 0 || at < until * 1_000_000_000);
            let mut want: Vec<&(i64, String)> = all.iter().filter(|(at, _)| holds(*at)).collect();
            if lines > 0 {
                want.drain(..want.len().saturating_sub(usize::try_from(lines).unwrap()));
            }
            for follow in [false, true] {
                let app_name = app_name.to_owned();
                let request = GetLogsRequest {
                    app_name,
                    lines,
                    since_time: since,
                    until_time: until,
                    follow,
                    ..request_for(&pod)
                };
                let shown = format!("{request:?}");
                let got = api.logs(request).rest();
                let got: Vec<(i64, &str)> = got.iter().map(|element| cut(element)).collect();
                let want: Vec<(i64, &str)> = want.iter().map(|(at, text)| (*at, text.as_str())).collect();
                assert_equal(&shown, &got, &want);
            }
        }
    }
    drop(api);
    served.end();
}

#[test]
fn following_crosses_rotation_until_the_pod_ends() {
    const LINES: usize = 4000;
    let g = Gantry::new();
    let image = g.fixture();
    // Far more files than the follower may lag behind.
    let config = g.write("config.toml", "[log]\nmax-size = \"64Ki\"\nmax-files = 100\n");
    let served = g.serve(&[]);
    let api = served.api();
    let count = LINES.to_string();
    let pod = pod_id(
        &g.run(&[
            "prepare",
            "--config",
            &config,
            "--net=none",
            &image,
            "--name=it",
            "--",
            "lines",
            &count,
            "200",
            "4000",
        ])
        .ok(),
    );
    // A stream requested before the pod was started waits.
    let mut early = api.logs(follow(&pod));
    g.run(&["--config", &config, "run-prepared", "--detach", &pod]).succeeded();
    let first = early.take_one();
    let mut tail = api.logs(GetLogsRequest { lines: 1, ..follow(&pod) });
    let rest = early.rest();
    let all: Vec<String> = std::iter::once(first).chain(rest).collect();
    let all = texts(&all);
    assert_eq!(all.len(), LINES);
    for (line, want) in all.iter().zip(numbered(LINES)) {
        assert!(line.starts_with(&want), "{line} is not {want}");
    }
    let tail = tail.rest();
    let tail = texts(&tail);
    assert!(all.ends_with(&tail) && !tail.is_empty(), "from where it began to the end, without a gap");
    assert!(g.dir().join("pods").join(&pod).join("logs/it/0.log.1").exists(), "the test has seen a rotation");
    assert_equal("read again", &texts(&api.logs(request_for(&pod)).rest()), &all);
    drop((early, api));
    served.end();
}

#[test]
fn following_ends_with_the_pod_or_deadline() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let two =
        ["run", "--net=none", "-d", &image, "--name=a", "--", "seq", "print", "one", "--", "sleep", "forever", "---"];
    let pod = pod_id(
        &g.run(&[&two[..], &[&image, "--name=b", "--", "seq", "print", "two", "--", "sleep", "forever"]].concat()).ok(),
    );
    let mut whole = api.logs(follow(&pod));
    let mut one = api.logs(GetLogsRequest { app_name: "b".into(), ..follow(&pod) });
    let mut both = [whole.take_one(), whole.take_one()];
    both.sort();
    assert_eq!(cut(&one.take_one()).1, "two");
    let until = now_ns().div_euclid(1_000_000_000) + 2;
    let mut timed = api.logs(GetLogsRequest { until_time: until, ..follow(&pod) });
    assert_eq!(timed.rest().len(), 2);
    let late = now_ns() - until * 1_000_000_000;
    assert!((0..10_000_000_000).contains(&late), "it ended {late} ns after its time");
    assert!(matches!(whole.next_within(Duration::from_millis(200)), Err(None)), "the pod runs on");
    g.run(&["kill", &pod]).succeeded();
    assert!(whole.rest().is_empty() && one.rest().is_empty());
    // A pod that is removed during following, and one that was never started.
    let prepared = pod_id(&g.run(&["prepare", "--net=none", &image, "--", "true"]).ok());
    let mut waits = api.logs(follow(&prepared));
    g.run(&["rm", &prepared]).succeeded();
    assert!(waits.rest().is_empty());
    drop((whole, one, timed, waits, api));
    served.end();
}

#[test]
fn arbitrary_output_is_returned() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let logs = |verb: &[&str]| {
        let pod = pod_id(&g.run(&[&["run", "--net=none", "-d", &image, "--name=it", "--"], verb].concat()).ok());
        api.wait_state(&pod, PodState::Exited);
        let mut logs = api.logs(request_for(&pod));
        let all = logs.rest();
        assert!(logs.largest < MAX_MESSAGE_BYTES, "{} bytes in one message", logs.largest);
        all
    };
    let binary = logs(&["binary"]);
    let bytes: Vec<u8> = (0..=255).collect();
    let want: Vec<_> = bytes.split(|&byte| byte == b'\n').map(String::from_utf8_lossy).collect();
    assert_eq!(texts(&binary), want, "only invalid UTF-8 is replaced");
    assert_eq!(texts(&logs(&["no-newline", "half a line"])), ["half a line"]);
    assert_eq!(texts(&logs(&["seq", "print", "", "--", "print", "MESSAGE=x"])), ["", "MESSAGE=x"]);
    let words = "ü".repeat(50_000);
    assert_equal("pieces of 16 KiB are one line again", &texts(&logs(&["print", &words])), &[words.as_str()]);
    long_lines(&logs(&["lines", "3", "2500000"]));
    assert_equal("a flood", &texts(&logs(&["flood", "8000000"])), &vec!["x".repeat(79); 100_000]);
    drop(api);
    served.end();
}

/// Three lines of 2 500 000 bytes: each in several elements, of which only the first starts with a time.
#[track_caller]
fn long_lines(elements: &[String]) {
    let mut lines: Vec<String> = Vec::new();
    for element in elements {
        assert!(element.len() <= (1 << 20) + 64, "{} bytes in one element", element.len());
        match element.contains(" UTC MESSAGE=") {
            true => lines.push(cut(element).1.to_owned()),
            false => lines.last_mut().unwrap().push_str(element),
        }
    }
    assert!(elements.len() > 3);
    assert_eq!(lines.len(), 3);
    for (i, line) in lines.iter().enumerate() {
        assert!(line.len() == 2_499_999 && line.starts_with(&format!("line {i:06} x")), "{}: {:.40}", line.len(), line);
        assert!(line[12..].bytes().all(|byte| byte == b'x'));
    }
}

#[test]
fn a_slow_reader_does_not_block_the_app() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let narrow = Api::connect_with_small_window(served.address());
    let pod = pod_id(&g.run(&["prepare", "--net=none", &image, "--name=it", "--", "flood", "40000000"]).ok());
    let mut logs = narrow.logs(follow(&pod));
    let before = served.rss_kib();
    let begin = Instant::now();
    g.run(&["run-prepared", "--detach", &pod]).succeeded();
    api.wait_state(&pod, PodState::Exited);
    println!("40 MB written beside a reader that does not read: {:?}", begin.elapsed());
    let grown = served.rss_kib().saturating_sub(before);
    assert!(grown < 32 * 1024, "{grown} KiB more for one reader that does not read");
    // The stream sends the remaining lines and ends.
    let rest = logs.rest();
    assert!(!rest.is_empty() && rest.iter().all(|line| cut(line).1.len() == 79));
    drop((logs, narrow, api));
    served.end();
}

#[test]
fn stalled_streams_take_little_memory_and_return_it() {
    const STREAMS: usize = 60;
    const MAX_KIB_PER_STREAM: u64 = 512;
    const MAX_KIB_AFTER: u64 = 16 << 10;
    let g = Gantry::new();
    let served = g.serve(&[]);
    let line = ["run", "-d", "--stage1=host", "--", "sh", "-c", "seq 1 300000; sleep 600"];
    let pod = pod_id(&g.run(&line).ok());
    g.wait_log(&pod, "\n300000\n");
    let before = served.memory_kib("RssAnon:");
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| {
            let narrow = Api::connect_with_small_window(served.address());
            let mut logs = narrow.logs(follow(&pod));
            let _first = [logs.take_one(), logs.take_one()];
            (narrow, logs)
        })
        .collect();
    let stalled = served.memory_kib("RssAnon:");
    drop(streams);
    println!("{before} KiB, with {STREAMS} stalled streams {stalled} KiB");
    assert!(stalled.saturating_sub(before) < STREAMS as u64 * MAX_KIB_PER_STREAM, "{before} KiB, then {stalled} KiB");
    wait_for("the memory to be given back", || (served.memory_kib("RssAnon:") < MAX_KIB_AFTER).then_some(()));
    g.run(&["rm", "--force", &pod]).succeeded();
    served.end();
}

#[test]
fn foreign_files_in_log_directories_are_ignored() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=it", "--", "print", "x"]).ok());
    api.wait_state(&pod, PodState::Exited);
    let file = g.dir().join("pods").join(&pod).join("logs/it/0.log");
    let secret = g.write("secret", "2001-01-02T03:04:05.000000000Z stdout F secret\n");
    for kind in ["garbage", "torn", "directory", "fifo", "link", "absent"] {
        let _ = std::fs::remove_file(&file);
        match kind {
            "garbage" => std::fs::write(&file, vec![0xff; 3 << 20]).unwrap(),
            "torn" => std::fs::write(&file, "2001-01-02T03:04:05.000000000Z stdout F whole\n2001-01-02T03:0").unwrap(),
            "directory" => std::fs::create_dir(&file).unwrap(),
            "fifo" => rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
            "link" => std::os::unix::fs::symlink(&secret, &file).unwrap(),
            _ => {}
        }
        for follow in [false, true] {
            let begin = Instant::now();
            let mut logs = api.logs(GetLogsRequest { follow, ..request_for(&pod) });
            // Both an error and an empty stream are valid.
            let mut heard = Vec::new();
            while let Ok(Some(line)) = logs.try_next() {
                heard.push(line);
            }
            assert!(begin.elapsed() < gantry_tests::DEADLINE, "{kind}: {:?}", begin.elapsed());
            assert!(!heard.iter().any(|line| line.contains("secret")), "{kind}: {heard:?}");
            assert!(kind != "torn" || heard.first().is_some_and(|line| cut(line).1 == "whole"), "{heard:?}");
        }
        assert_eq!(api.info().api_version, "1.0.0-alpha");
        let _ = std::fs::remove_dir(&file);
    }
    drop(api);
    served.end();
}
