//! Processes: all processes of the host.

use std::io::Read as _;

use gantry_proto::talos::machine::{Process, ProcessInfo};
use tonic::Status;

/// Maximum bytes of the arguments of a process.
const MAX_ARGS: usize = 4096;
/// Maximum bytes of the arguments of all processes; those of further ones are left out.
const MAX_ALL_ARGS: usize = 1 << 20;

/// Reads the processes. One that ends meanwhile is left out.
///
/// # Errors
/// `INTERNAL` if /proc cannot be read.
pub(in super::super) fn read() -> Result<Process, Status> {
    let found = procfs::process::all_processes().map_err(super::unreadable("/proc"))?;
    let mut left = MAX_ALL_ARGS;
    let processes = found.filter_map(|process| {
        let mut info = process_info(&process.ok()?)?;
        match left.checked_sub(info.args.len()) {
            Some(rest) => left = rest,
            None => info.args.clear(),
        }
        Some(info)
    });
    let processes = processes.collect();
    Ok(Process { metadata: None, processes })
}

#[expect(clippy::cast_precision_loss, reason = "ticks of 10 ms: exact for millions of years")]
fn process_info(process: &procfs::process::Process) -> Option<ProcessInfo> {
    let stat = process.stat().ok()?;
    let executable = process.exe().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    Some(ProcessInfo {
        pid: stat.pid,
        ppid: stat.ppid,
        state: stat.state.to_string(),
        threads: i32::try_from(stat.num_threads).unwrap_or(i32::MAX),
        cpu_time: (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
        virtual_memory: stat.vsize,
        resident_memory: stat.rss.saturating_mul(procfs::page_size()),
        command: stat.comm,
        executable,
        args: args(&command_line(process)),
        label: String::new(),
    })
}

/// The beginning of the arguments: an app can make them megabytes long.
fn command_line(process: &procfs::process::Process) -> Vec<String> {
    let mut bytes = Vec::new();
    let Ok(file) = std::fs::File::open(format!("/proc/{}/cmdline", process.pid())) else { return Vec::new() };
    if file.take(MAX_ARGS as u64).read_to_end(&mut bytes).is_err() {
        return Vec::new();
    }
    split_words(&bytes)
}

/// The words of `/proc/PID/cmdline`, which a process can overwrite.
fn split_words(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

/// The arguments, joined by blanks. talosctl panics if they are only blanks.
fn args(words: &[String]) -> String {
    let mut args = words.join(" ");
    args.truncate(args.floor_char_boundary(MAX_ARGS));
    if args.trim().is_empty() { String::new() } else { args }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_arguments_are_shown(bytes in proptest::collection::vec(any::<u8>(), 0..2 * MAX_ARGS)) {
            let shown = args(&split_words(&bytes));
            prop_assert!(shown.len() <= MAX_ARGS && !shown.contains('\0'));
            prop_assert!(shown.is_empty() || !shown.trim().is_empty());
        }

        #[test]
        fn words_are_split_again(words in proptest::collection::vec("[^\0]{1,12}", 1..8)) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.bytes().chain([0])).collect();
            prop_assert_eq!(split_words(&bytes), words);
        }
    }

    #[test]
    fn this_process_is_listed() {
        let own = i32::try_from(std::process::id()).unwrap();
        let list = read().unwrap();
        let found = list.processes.iter().find(|process| process.pid == own).unwrap();
        assert!(found.resident_memory > 0 && !found.executable.is_empty() && !found.args.is_empty());
    }

    #[test]
    fn blank_arguments_are_left_out() {
        assert_eq!(args(&[String::new(), " ".into()]), "");
        assert_eq!(args(&["a".into(), "b".into()]), "a b");
        assert_eq!(args(&["ü".repeat(MAX_ARGS)]).len(), MAX_ARGS);
    }
}
