//! The names of the files of a log, from which their order follows.

use std::cmp::Reverse;

/// The highest number of a rotated file of a caller. Longer ones are dates.
const MAX_NUMBER: u64 = 9_999_999;
/// Digits of the date and time in the name of a rotated file: `20060102150405`.
const DATE_DIGITS: u32 = 14;

/// The names that the files of a log have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogNames {
    /// `ATTEMPT.log`, and older parts `ATTEMPT.log.1` (newest) to `.N`; of one start of the app, or of all.
    Attempts(Option<u32>),
    /// This name, for all starts. Older parts have the suffixes of logrotate (`.1`, `-20060102`) or the kubelet
    /// (`.20060102-150405`), or numbers in the order of their rotation. Compressed ones are not read.
    File(String),
}

/// A file of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LogFile {
    pub(crate) name: String,
    attempt: u32,
    /// 0 is the current one.
    age: u64,
    /// 0 until it is known.
    pub(crate) inode: u64,
}

impl LogFile {
    /// Whether that file is this one under a later name. A younger file can only have reused the inode of this one,
    /// which was deleted.
    pub(crate) fn may_become(&self, other: &Self) -> bool {
        (other.inode, other.attempt) == (self.inode, self.attempt) && other.age > self.age
    }

    /// Whether both are of the same start of the app, as far as each has its own files.
    pub(crate) fn has_attempt_of(&self, other: &Self) -> bool {
        self.attempt == other.attempt
    }

    /// The same with this inode.
    pub(crate) fn with_inode(self, inode: u64) -> Self {
        Self { inode, ..self }
    }

    /// Sorts the oldest first.
    fn order(&self) -> impl Ord + use<> {
        (self.attempt, Reverse(self.age))
    }

    fn has_number(&self) -> bool {
        (1..=MAX_NUMBER).contains(&self.age)
    }
}

impl LogNames {
    /// The file of this name, if it is one of the log.
    pub(crate) fn file(&self, name: &str) -> Option<LogFile> {
        let (attempt, age) = match self {
            Self::Attempts(only) => attempt_of(name).filter(|found| only.is_none_or(|attempt| attempt == found.0))?,
            Self::File(current) => (0, age_of(name.strip_prefix(current.as_str())?)?),
        };
        Some(LogFile { name: name.to_owned(), attempt, age, inode: 0 })
    }

    /// The files of a log, the oldest first, from pairs with the time of the last change.
    ///
    /// Callers number rotated files in two ways. As by logrotate, the number is the age: each rotation renames `.1` to
    /// `.2`. Or each rotated file gets the next number and keeps it, so that the highest is the newest. A rotated file
    /// is no longer written, so the times tell which it is.
    pub(crate) fn in_order<T: Ord>(&self, mut files: Vec<(LogFile, T)>) -> Vec<LogFile> {
        if matches!(self, Self::File(_)) {
            number_by_age(&mut files);
        }
        let mut files: Vec<_> = files.into_iter().map(|(file, _)| file).collect();
        files.sort_by_key(LogFile::order);
        files
    }
}

/// Sets the ages of files that are numbered in the order of their rotation: the newest is 1. A file only gets older by
/// it, as by a number that is an age. If the times do not differ, the numbers stay ages.
fn number_by_age<T: Ord>(files: &mut [(LogFile, T)]) {
    let mut numbered: Vec<_> = files.iter_mut().filter(|(file, _)| file.has_number()).collect();
    numbered.sort_by_key(|(file, _)| file.age);
    let is_in_order_of_rotation = numbered.is_sorted_by(|one, next| one.1 <= next.1)
        && numbered.first().zip(numbered.last()).is_some_and(|(first, last)| first.1 < last.1);
    if !is_in_order_of_rotation {
        return;
    }
    let highest = numbered.last().map_or(0, |(file, _)| file.age);
    for (file, _) in numbered {
        file.age = highest + 1 - file.age;
    }
}

/// `ATTEMPT.log` or `ATTEMPT.log.AGE`, with numbers in their only valid notation.
fn attempt_of(name: &str) -> Option<(u32, u64)> {
    let (digits, rest) = name.split_once(".log")?;
    let attempt: u32 = digits.parse().ok()?;
    let age = if rest.is_empty() { 0 } else { number(rest.strip_prefix('.')?)? };
    (attempt.to_string() == digits).then_some((attempt, age))
}

/// The age that follows from the suffix of a rotated file. The later a date, the younger; any date is older than any
/// number.
fn age_of(suffix: &str) -> Option<u64> {
    let Some(rest) = suffix.strip_prefix(['.', '-']) else { return suffix.is_empty().then_some(0) };
    if let Some(age) = number(rest).filter(|age| suffix.starts_with('.') && *age <= MAX_NUMBER) {
        return Some(age);
    }
    let digits: String = rest.split('-').collect();
    let length = u32::try_from(digits.len()).ok().filter(|length| (8..=DATE_DIGITS).contains(length))?;
    let is_date = rest.starts_with(|c: char| c.is_ascii_digit()) && digits.bytes().all(|c| c.is_ascii_digit());
    let date = digits.parse::<u64>().ok().filter(|_| is_date)?;
    Some(u64::MAX - date * 10_u64.pow(DATE_DIGITS - length))
}

/// A number above 0 in its only valid notation.
fn number(text: &str) -> Option<u64> {
    text.parse::<u32>().ok().filter(|number| *number > 0 && number.to_string() == text).map(u64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attempts_are_parsed() {
        for (text, want) in [
            ("0.log", Some((0, 0))),
            ("12.log.3", Some((12, 3))),
            ("0.log.0", None),
            ("0.log.01", None),
            ("00.log", None),
            ("+1.log", None),
            ("0.log.", None),
            ("x.log", None),
            ("0.logx", None),
            ("0.txt", None),
        ] {
            let found = LogNames::Attempts(None).file(text).map(|file| (file.attempt, file.age));
            assert_eq!(found, want, "{text}");
        }
        assert!(LogNames::Attempts(Some(1)).file("0.log").is_none());
    }

    #[test]
    fn rotated_files_of_callers_are_ordered() {
        let names = LogNames::File("0.log".into());
        for text in ["1.log", "0.logx", "0.log.", "0.log.gz", "0.log.20261124-010203.gz", "0.log.-20261124", "0.log.0"]
        {
            assert!(names.file(text).is_none(), "{text}");
        }
        for sorted in [
            &["0.log.10", "0.log.9", "0.log.1", "0.log"][..],
            &["0.log.20251231-235959", "0.log.20261124-010203", "0.log.20261124-010204", "0.log"],
            &["0.log-20261123", "0.log-20261124", "0.log.1", "0.log"],
        ] {
            // Also if all were changed at the same time.
            let files = names.in_order(sorted.iter().rev().map(|text| (names.file(text).unwrap(), 0)).collect());
            assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), sorted);
            assert!(files.windows(2).all(|pair| pair[1].may_become(&pair[0]) && !pair[0].may_become(&pair[1])));
        }
    }

    #[test]
    fn numbers_in_rotation_order_are_told_from_ages() {
        let names = LogNames::File("0.log".into());
        let order = |files: &[(&str, u32)]| {
            let files = names.in_order(files.iter().map(|(text, at)| (names.file(text).unwrap(), *at)).collect());
            files.into_iter().map(|file| file.name).collect::<Vec<_>>()
        };
        for (files, want) in [
            (&[("0.log", 40), ("0.log.1", 10), ("0.log.2", 20), ("0.log.10", 30)][..], "1 2 10 "),
            (&[("0.log.1", 30), ("0.log.2", 20), ("0.log.10", 10), ("0.log", 40)], "10 2 1 "),
            // Rotated within one tick of the clock.
            (&[("0.log.3", 20), ("0.log.1", 10), ("0.log.2", 10), ("0.log", 20)], "1 2 3 "),
            (&[("0.log.1", 10), ("0.log.2", 10), ("0.log", 10)], "2 1 "),
            // An older one was edited: the numbers are ages.
            (&[("0.log.1", 30), ("0.log.2", 20), ("0.log.3", 40), ("0.log", 50)], "3 2 1 "),
            (&[("0.log.7", 10), ("0.log", 20)], "7 "),
        ] {
            let want: Vec<_> =
                want.split(' ').map(|age| format!("0.log.{age}").trim_end_matches('.').to_owned()).collect();
            assert_eq!(order(files), want, "{files:?}");
        }
        let attempts = LogNames::Attempts(None);
        let files = [("0.log.1", 10), ("0.log.2", 20)].map(|(text, at)| (attempts.file(text).unwrap(), at));
        assert_eq!(attempts.in_order(files.to_vec())[0].name, "0.log.2", "a supervisor's numbers are ages");
    }
}
