//! Kills a program that was executed in an app together with its descendants, also those that left its process group
//! or were orphaned. The app runs on.
//!
//! The program leads a session. Its processes are those that descend from it, and those of its session; a daemon that
//! left the session and lost its parent is the app's, and ends with it. Each process is stopped when it is found, so
//! that it forks no others, and examined again afterwards: a PID may have been reused. Only processes in the cgroup of
//! the program are touched.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gantry_model::AppOutcome;
use rustix::process::{Signal, pidfd_send_signal};

use crate::host::process::{self, Deadline};
use crate::pods::exec::{Exec, ExecError};

/// The time that finding and killing the processes may take: a fork bomb may be faster.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two looks at processes that were killed.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The fields of `/proc/PID/stat` that show where a process belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinship {
    parent: u32,
    session: u32,
    is_dead: bool,
}

/// A program that can be killed with its descendants.
#[derive(Debug)]
pub struct ExecTree {
    exec: Exec,
    /// The cgroups of the program; `None`: it ended at once.
    cgroup: Option<String>,
}

impl From<Exec> for ExecTree {
    /// Reads the cgroups of a program that was just started: later, another process may have its PID.
    fn from(exec: Exec) -> Self {
        let cgroup = read_cgroup(exec.pid);
        Self { exec, cgroup }
    }
}

impl AsFd for ExecTree {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.exec.as_fd()
    }
}

impl ExecTree {
    /// As [`Exec::wait`].
    ///
    /// # Errors
    /// As [`Exec::wait`].
    pub fn wait(self) -> Result<AppOutcome, ExecError> {
        self.exec.wait()
    }

    /// Kills the program and its descendants, and waits for its end.
    ///
    /// # Errors
    /// [`ExecError`]: the supervisor does not report the end in time.
    pub fn kill(self) -> Result<AppOutcome, ExecError> {
        let deadline = Deadline::after(KILL_TIMEOUT);
        let mut stopped: BTreeMap<u32, OwnedFd> = BTreeMap::new();
        // Without its cgroup, the program has ended already.
        while let Some(cgroup) = self.cgroup.as_deref().filter(|_| !deadline.passed()) {
            let found = find(self.exec.pid, cgroup, &stopped);
            if found.is_empty() {
                break;
            }
            let mut is_complete = true;
            for pid in found {
                if !stopped.contains_key(&pid)
                    && let Some(pidfd) = stop(pid, cgroup)
                {
                    stopped.insert(pid, pidfd);
                    is_complete = false;
                }
            }
            if is_complete {
                for pidfd in stopped.values() {
                    // The other processes are killed all the same.
                    let _unkillable = process::kill(pidfd);
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        for pidfd in stopped.values() {
            let _unkillable = process::kill(pidfd);
        }
        self.exec.end(KILL_TIMEOUT)
    }
}

/// The living processes of the program.
fn find(program: u32, cgroup: &str, known: &BTreeMap<u32, OwnedFd>) -> Vec<u32> {
    let all: BTreeMap<u32, Kinship> =
        list_pids().into_iter().filter_map(|pid| Some((pid, read_kinship(pid)?))).collect();
    let belongs = |mut pid: u32| {
        // A chain of parents is at most as long as the list.
        for _ in 0..=all.len() {
            if pid == program || known.contains_key(&pid) {
                return true;
            }
            match all.get(&pid) {
                Some(kinship) if kinship.session == program => return true,
                Some(kinship) => pid = kinship.parent,
                None => return false,
            }
        }
        false
    };
    let living = all.iter().filter(|(_, kinship)| !kinship.is_dead).map(|(pid, _)| *pid);
    living.filter(|pid| belongs(*pid) && read_cgroup(*pid).as_deref() == Some(cgroup)).collect()
}

/// Stops a process that was found; `None`: it has ended, and another may have its PID.
fn stop(pid: u32, cgroup: &str) -> Option<OwnedFd> {
    let pidfd = process::open_pid(pid).ok()?;
    // Read after the descriptor was opened.
    read_cgroup(pid).filter(|found| found == cgroup)?;
    pidfd_send_signal(&pidfd, Signal::STOP).ok()?;
    Some(pidfd)
}

fn list_pids() -> Vec<u32> {
    // Without a list, the program alone is killed.
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn read_kinship(pid: u32) -> Option<Kinship> {
    kinship(&process::read_stat(pid).ok()??)
}

/// The fields after the command's name: state, parent, process group, session (proc_pid_stat(5)).
fn kinship(stat: &str) -> Option<Kinship> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Kinship { parent, session, is_dead })
}

/// The cgroups of a process, as text; `None`: it has ended.
fn read_cgroup(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinship_is_read_after_any_command_name() {
        let read = |state: &str| kinship(&format!("7 (a) b (c) {state} 5 6 4 0 -1 4194560 1\n"));
        assert_eq!(read("S"), Some(Kinship { parent: 5, session: 4, is_dead: false }));
        assert_eq!(read("Z"), Some(Kinship { parent: 5, session: 4, is_dead: true }));
        assert_eq!(kinship("7 (a) S 1"), None);
        assert_eq!(kinship(""), None);
    }
}
