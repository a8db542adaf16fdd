//! Kills by the OOM killer in the kernel log (`/dev/kmsg`): the process that was killed, and the cgroup whose limit was
//! reached. The kernel writes the line before it kills (`dump_oom_victim` in mm/oom_kill.c), at most ten in five
//! seconds:
//!
//! ```text
//! oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=web,mems_allowed=0,oom_memcg=/gantry/POD/web,
//!     task_memcg=/gantry/POD/web,task=app,pid=23665,uid=0
//! ```

use std::os::fd::OwnedFd;

use gantry_model::{OomLevel, OomVictim};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

/// The maximum number of records read at a time. The log has about as many if it is large, and more records than the
/// kernel keeps are never behind the reader.
const MAX_RECORDS: usize = 1 << 14;

/// The maximum length of a record (`CONSOLE_EXT_LOG_MAX` in printk.c).
const MAX_RECORD: usize = 8192;

/// The kernel log, from the start of the pod on.
pub(crate) struct KernelLog {
    fd: OwnedFd,
    /// Kills in this pod that no app has taken yet.
    kills: Vec<OomKill>,
}

/// A kill by the OOM killer in this pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OomKill {
    /// The app of the process.
    app: String,
    /// The limit that was reached.
    pub(crate) level: OomLevel,
    /// The process.
    pub(crate) victim: OomVictim,
}

impl KernelLog {
    /// Opens the log at its end; `None`: it cannot be read, as in most containers.
    pub(crate) fn open() -> Option<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::open("/dev/kmsg", flags, Mode::empty()).ok()?;
        rustix::fs::seek(&fd, SeekFrom::End(0)).ok()?;
        Some(Self { fd, kills: Vec::new() })
    }

    /// The last kill in an app of this pod since the last call.
    pub(crate) fn take_last_kill(&mut self, pod: &str, app: &str) -> Option<OomKill> {
        self.read(pod);
        let last = self.kills.iter().rfind(|kill| kill.app == app).cloned();
        self.kills.retain(|kill| kill.app != app);
        last
    }

    /// Reads the records since the last call; never blocks.
    fn read(&mut self, pod: &str) {
        let mut buffer = [0; MAX_RECORD];
        for _ in 0..MAX_RECORDS {
            let read = match rustix::io::read(&self.fd, &mut buffer) {
                Ok(read) => read,
                // The kernel has overwritten records: the next read returns the oldest that is left.
                Err(Errno::PIPE | Errno::INTR) => continue,
                // The end, or a device that is no kernel log.
                Err(_) => return,
            };
            let record = buffer.get(..read).and_then(|record| std::str::from_utf8(record).ok());
            if let Some(kill) = record.and_then(|record| parse_record(record, pod)) {
                // One per app is enough.
                self.kills.retain(|other| other.app != kill.app);
                self.kills.push(kill);
            }
            if read == 0 {
                return;
            }
        }
    }
}

/// Parses a record if it is the kill of a process of this pod. Its format is in
/// `Documentation/ABI/testing/dev-kmsg`.
fn parse_record(record: &str, pod: &str) -> Option<OomKill> {
    let (head, text) = record.lines().next()?.split_once(';')?;
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    // The facility of the kernel is 0. Records of programs have another one.
    if priority >> 3 != 0 {
        return None;
    }
    let text = text.strip_prefix("oom-kill:")?;
    // The names of cgroups and of the process may contain anything. A line with two such fields is ambiguous.
    let (before, rest) = split_once_only(text, ",task_memcg=")?;
    let (cgroup, rest) = split_once_only(rest, ",task=")?;
    let (rest, _uid) = rest.rsplit_once(",uid=")?;
    let (name, pid) = rest.rsplit_once(",pid=")?;
    let (app, _below) = split_app(path_below_pod(cgroup, pod)?)?;
    let level = match split_once_only(before, ",oom_memcg=").and_then(|(_, limited)| path_below_pod(limited, pod)) {
        Some("") => OomLevel::Pod,
        Some(_) => OomLevel::App,
        None => OomLevel::Host,
    };
    let victim = OomVictim { name: name.to_owned(), pid: pid.parse().ok()? };
    Some(OomKill { app: app.to_owned(), level, victim })
}

/// Splits at a separator that occurs once.
fn split_once_only<'a>(text: &'a str, separator: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(separator).filter(|(_, after)| !after.contains(separator))
}

/// The path of a cgroup below that of the pod. The kernel's paths begin at the root of the hierarchy, gantry's at that
/// of the container that it may run in; the pod's UUID is in both.
fn path_below_pod<'a>(path: &'a str, pod: &str) -> Option<&'a str> {
    let (_, below) = path.split_once(&format!("/{pod}"))?;
    (below.is_empty() || below.starts_with('/')).then_some(below)
}

/// Splits the path of an app's cgroup below the pod into the app's name and the rest.
fn split_app(below: &str) -> Option<(&str, &str)> {
    let path = below.strip_prefix('/')?;
    Some(path.split_once('/').unwrap_or((path, "")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "6,1234,52299947045,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=web,mems_allowed=0";

    fn parse(rest: &str) -> Option<OomKill> {
        parse_record(&format!("{HEAD}{rest}\n SUBSYSTEM=x\n"), "uuid")
    }

    fn kill(app: &str, level: OomLevel, name: &str) -> Option<OomKill> {
        Some(OomKill { app: app.into(), level, victim: OomVictim { name: name.into(), pid: 7 } })
    }

    #[test]
    fn kills_of_the_pod_are_parsed() {
        for (rest, want) in [
            (
                ",oom_memcg=/gantry/uuid/web,task_memcg=/gantry/uuid/web,task=app,pid=7,uid=0",
                kill("web", OomLevel::App, "app"),
            ),
            (
                ",oom_memcg=/gantry/uuid,task_memcg=/gantry/uuid/web,task=app,pid=7,uid=0",
                kill("web", OomLevel::Pod, "app"),
            ),
            (",oom_memcg=/gantry,task_memcg=/gantry/uuid/web,task=app,pid=7,uid=0", kill("web", OomLevel::Host, "app")),
            (",global_oom,task_memcg=/gantry/uuid/web,task=app,pid=7,uid=0", kill("web", OomLevel::Host, "app")),
            (
                ",oom_memcg=/c/gantry/uuid/web/_delegated/x,task_memcg=/c/gantry/uuid/web/_delegated/x,task=a,pid=9,uid,pid=7,uid=0",
                kill("web", OomLevel::App, "a,pid=9,uid"),
            ),
            (",oom_memcg=/gantry/other/web,task_memcg=/gantry/other/web,task=app,pid=7,uid=0", None),
            (",oom_memcg=/gantry/uuid2/web,task_memcg=/gantry/uuid2/web,task=app,pid=7,uid=0", None),
            (",task_memcg=/gantry/uuid/a,task_memcg=/gantry/uuid/b,task=app,pid=7,uid=0", None),
            (",task_memcg=/gantry/uuid/a,task=app,pid=many,uid=0", None),
            (",task_memcg=/gantry/uuid/a,task=app", None),
        ] {
            assert_eq!(parse(rest), want, "{rest}");
        }
    }

    #[test]
    fn records_of_programs_are_ignored() {
        let line = "oom-kill:constraint=X,global_oom,task_memcg=/g/uuid/web,task=app,pid=7,uid=0";
        assert!(parse_record(&format!("6,1,1,-;{line}"), "uuid").is_some());
        assert!(parse_record(&format!("14,1,1,-;{line}"), "uuid").is_none());
        assert!(parse_record(line, "uuid").is_none());
    }

    proptest::proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _ = parse(&text);
            let _ = parse_record(&text, "uuid");
        }
    }
}
