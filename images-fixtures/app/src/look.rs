//! Verbs that report the state of the process: credentials, namespaces, limits, descriptors.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use crate::output::put;
use crate::{Failure, Outcome, sys};

fn print_file(path: &str) -> Outcome {
    put(&fs::read(path).map_err(|error| Failure::Failed(format!("{path}: {error}")))?)
}

/// The lines of /proc/self/status that begin with one of `fields`.
fn status_fields(fields: &[&str]) -> Outcome {
    let status = fs::read_to_string("/proc/self/status")?;
    let wanted = |line: &&str| line.split(':').next().is_some_and(|name| fields.contains(&name));
    let mut text = String::new();
    for line in status.lines().filter(wanted) {
        text.push_str(&line.split_whitespace().collect::<Vec<_>>().join(" "));
        text.push('\n');
    }
    put(text.as_bytes())
}

pub(crate) fn args(args: &[String]) -> Outcome {
    let quoted: Vec<String> = args.iter().map(|arg| json_string(arg)).collect();
    put(format!("[{}]\n", quoted.join(",")).as_bytes())
}

/// A JSON string (RFC 8259 section 7).
fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' || c == '\u{7f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

pub(crate) fn env(_: &[String]) -> Outcome {
    let mut lines: Vec<Vec<u8>> =
        std::env::vars_os().map(|(key, value)| [key.as_bytes(), b"=", value.as_bytes(), b"\n"].concat()).collect();
    lines.sort();
    put(&lines.concat())
}

pub(crate) fn ids(_: &[String]) -> Outcome {
    status_fields(&["Uid", "Gid", "Groups"])
}

pub(crate) fn caps(_: &[String]) -> Outcome {
    status_fields(&["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"])
}

pub(crate) fn sigmask(_: &[String]) -> Outcome {
    status_fields(&["SigBlk", "SigIgn", "SigCgt"])
}

pub(crate) fn mounts(_: &[String]) -> Outcome {
    print_file("/proc/self/mountinfo")
}

pub(crate) fn limits(_: &[String]) -> Outcome {
    print_file("/proc/self/limits")
}

pub(crate) fn cgroup(_: &[String]) -> Outcome {
    print_file("/proc/self/cgroup")
}

pub(crate) fn oom_adj(_: &[String]) -> Outcome {
    print_file("/proc/self/oom_score_adj")
}

pub(crate) fn hostname(_: &[String]) -> Outcome {
    print_file("/proc/sys/kernel/hostname")
}

pub(crate) fn sysctl(args: &[String]) -> Outcome {
    let name = args.first().ok_or(Failure::Usage)?;
    let path = if name.contains('/') { name.clone() } else { name.replace('.', "/") };
    print_file(&format!("/proc/sys/{path}"))
}

pub(crate) fn rlimits(_: &[String]) -> Outcome {
    // The numbers of asm-generic/resource.h, identical on every supported architecture.
    const NAMES: [&str; 16] = [
        "cpu",
        "fsize",
        "data",
        "stack",
        "core",
        "rss",
        "nproc",
        "nofile",
        "memlock",
        "as",
        "locks",
        "sigpending",
        "msgqueue",
        "nice",
        "rtprio",
        "rttime",
    ];
    let mut text = String::new();
    for (resource, name) in (0..).zip(NAMES) {
        let (soft, hard) = sys::limit(resource)?;
        text.push_str(&format!("{name} {soft} {hard}\n"));
    }
    put(text.as_bytes())
}

pub(crate) fn namespaces(_: &[String]) -> Outcome {
    let mut lines = Vec::new();
    for entry in fs::read_dir("/proc/self/ns")? {
        let entry = entry?;
        let target = fs::read_link(entry.path())?;
        lines.push(format!("{} {}\n", entry.file_name().display(), target.display()));
    }
    lines.sort();
    put(lines.concat().as_bytes())
}

pub(crate) fn cwd(_: &[String]) -> Outcome {
    put(format!("{}\n", std::env::current_dir()?.display()).as_bytes())
}

pub(crate) fn pids(_: &[String]) -> Outcome {
    let mut rows = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // The process exited in between; skip it.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let (Some(open), Some(close)) = (stat.find('('), stat.rfind(')')) else { continue };
        let mut rest = stat[close + 1..].split_whitespace();
        let (state, parent) = (rest.next().unwrap_or("?"), rest.next().unwrap_or("?"));
        rows.push((pid, format!("{pid} {parent} {state} {}\n", &stat[open + 1..close])));
    }
    rows.sort();
    put(rows.into_iter().map(|(_, row)| row).collect::<String>().as_bytes())
}

pub(crate) fn fds(_: &[String]) -> Outcome {
    let mut rows = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let target = fs::read_link(entry.path())?;
        // Skip the descriptor of this very directory: it was not inherited.
        let own = target.to_str().is_some_and(|text| text.starts_with("/proc/") && text.ends_with("/fd"));
        if !own {
            rows.push((fd, format!("{fd} {}\n", target.display())));
        }
    }
    rows.sort();
    put(rows.into_iter().map(|(_, row)| row).collect::<String>().as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(super::json_string("a\"b\\c\n\u{1}ä"), "\"a\\\"b\\\\c\\u000a\\u0001ä\"");
    }
}
