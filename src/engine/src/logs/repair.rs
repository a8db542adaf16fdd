//! Repairs logs after a supervisor was killed while writing them, so that they end in a complete line.
//!
//! If the writer is killed, the kernel can cut a long write(2) short at a page boundary, so the file may end within a
//! record. Also, the last record may be a partial line (tag `P`) whose rest was never written. An incomplete record is
//! truncated; a partial line becomes the last part of its line (tag `F`) in place. Neither needs disk space.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use gantry_store::PodRow;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::logs::files::LogDir;
use crate::logs::line;
use crate::logs::names::LogFile;

/// The maximum distance from the end of a log in which the last record of each stream is searched.
const MAX_TAIL: u64 = 4 << 20;

/// Repairs the logs of every app of the pod in this row, with this directory. The caller holds the pod's lock: nothing
/// writes them, except another pod to a file at a chosen path, which is left alone.
///
/// # Errors
/// The first file that could not be repaired; the others are.
pub(crate) fn repair(pod_dir: &Path, row: &PodRow) -> io::Result<()> {
    let mut outcome = Ok(());
    for app in &row.apps {
        let repaired = repair_log(LogDir::of_app(pod_dir, row, &app.name));
        outcome = outcome.and(repaired);
    }
    outcome
}

/// Repairs the files of all starts of an app; returns the first failure, after the others were repaired.
fn repair_log(mut dir: LogDir) -> io::Result<()> {
    let parts = dir.parts()?;
    let mut outcome = Ok(());
    for of_start in parts.chunk_by(LogFile::has_attempt_of) {
        let repaired = repair_parts(&dir, of_start);
        outcome = outcome.and(repaired);
    }
    outcome
}

/// The newest file, and the one before it for a stream without a record in the newest.
fn repair_parts(dir: &LogDir, parts: &[LogFile]) -> io::Result<()> {
    // Standard output, standard error: whether the end of the stream was found.
    let mut seen = [false, false];
    for part in parts.iter().rev().take(2) {
        let Some(file) = dir.open_to_repair(part)? else { continue };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(()),
            // A file system without locks.
            Ok(()) | Err(_) => repair_file(&file, &mut seen)?,
        }
        if seen == [true, true] {
            break;
        }
    }
    Ok(())
}

fn repair_file(file: &File, seen: &mut [bool; 2]) -> io::Result<()> {
    let size = file.metadata()?.len();
    let from = size.saturating_sub(MAX_TAIL);
    let mut bytes = vec![0; usize::try_from(size - from).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)?;
    let whole = memchr::memrchr(b'\n', &bytes).map_or(0, |at| at + 1);
    if whole < bytes.len() && (whole > 0 || from == 0) {
        file.set_len(from + whole as u64)?;
    }
    let mut end = whole;
    while end > 0 && *seen != [true, true] {
        let line = &bytes[..end - 1];
        let start = memchr::memrchr(b'\n', line).map_or(0, |at| at + 1);
        let line = &line[start..];
        if let Some(parsed) = line::parse(line) {
            let known = std::mem::replace(&mut seen[usize::from(parsed.stderr)], true);
            if let (false, true, Some(tag)) = (known, parsed.piece, tag_of(line)) {
                file.write_all_at(b"F", from + (start + tag) as u64)?;
            }
        }
        end = start;
    }
    Ok(())
}

/// The position of a record's tag: after the second blank.
fn tag_of(line: &[u8]) -> Option<usize> {
    memchr::memchr_iter(b' ', line).nth(1).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: &str = "2026-11-22T10:00:00.123456789Z";

    fn record(text: &str) -> String {
        format!("{TIME} {text}\n")
    }

    /// The files of a log (newest first) before and after.
    #[track_caller]
    fn check(before: &[String], after: &[String]) {
        let dir = tempfile::tempdir().unwrap();
        let app = dir.path().join("app");
        std::fs::create_dir(&app).unwrap();
        let name = |i: usize| app.join(if i == 0 { "0.log".to_owned() } else { format!("0.log.{i}") });
        for (i, text) in before.iter().enumerate() {
            std::fs::write(name(i), text).unwrap();
        }
        for _ in 0..2 {
            repair_log(LogDir::new(dir.path(), "app")).unwrap();
            for (i, text) in after.iter().enumerate() {
                assert_eq!(std::fs::read_to_string(name(i)).unwrap(), *text, "file {i} of {before:?}");
            }
        }
    }

    #[test]
    fn torn_and_unfinished_lines_are_completed() {
        let (out, err) = (record("stdout F one"), record("stderr F bad"));
        let rows = [
            (String::new(), String::new()),
            (out.clone(), out.clone()),
            (format!("{out}{TIME} stdo"), out.clone()),
            (TIME.to_owned(), String::new()),
            (format!("{out}{}", record("stdout P piece")), format!("{out}{}", record("stdout F piece"))),
            (format!("{}{err}", record("stdout P a")), format!("{}{err}", record("stdout F a"))),
            (
                format!("{}{}{TIME} stdout P torn", record("stdout P a"), record("stderr P b")),
                format!("{}{}", record("stdout F a"), record("stderr F b")),
            ),
            (format!("{}{out}", record("stdout P one ")), format!("{}{out}", record("stdout P one "))),
            ("no log\nof ours\n".to_owned(), "no log\nof ours\n".to_owned()),
        ];
        for (before, after) in rows {
            check(&[before], &[after]);
        }
    }

    #[test]
    fn lines_split_by_rotation_are_completed() {
        let (out, err) = (record("stdout F one"), record("stderr P bad"));
        check(&[out.clone(), err.clone()], &[out.clone(), record("stderr F bad")]);
        check(&[err.clone(), record("stderr P before")], &[record("stderr F bad"), record("stderr P before")]);
        check(&[format!("{TIME} st"), err], &[String::new(), record("stderr F bad")]);
    }

    #[test]
    fn an_app_without_logs_needs_no_repair() {
        repair_log(LogDir::new(tempfile::tempdir().unwrap().path(), "app")).unwrap();
    }

    #[test]
    fn the_logs_of_all_starts_are_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let torn = format!("{}{TIME} stdo", record("stdout F one"));
        for attempt in 0..3 {
            std::fs::write(dir.path().join(format!("{attempt}.log")), &torn).unwrap();
        }
        repair_log(LogDir::new(dir.path(), ".")).unwrap();
        for attempt in 0..3 {
            let text = std::fs::read_to_string(dir.path().join(format!("{attempt}.log"))).unwrap();
            assert_eq!(text, record("stdout F one"));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_log_ends_in_a_complete_line(bytes: Vec<u8>) {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("0.log"), &bytes).unwrap();
            repair_log(LogDir::new(dir.path(), ".")).unwrap();
            let after = std::fs::read(dir.path().join("0.log")).unwrap();
            proptest::prop_assert!(after.is_empty() || after.ends_with(b"\n"));
            proptest::prop_assert!(bytes.len() >= after.len());
        }
    }
}
