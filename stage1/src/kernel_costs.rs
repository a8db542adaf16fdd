//! Work-arounds for operations that the kernel makes expensive: three that take milliseconds, and memory that it keeps.
//!
//! # Waits for a grace period
//!
//! Some operations wait until every CPU has passed through a quiescent state (an RCU grace period, 8 to 20 ms on a
//! small host). `run` would spend most of its time in them. The supervisor therefore has other processes wait:
//!
//! * **Moving a process to another cgroup** ([`CgroupMove`]). A write to `cgroup.procs` takes
//!   `cgroup_threadgroup_rwsem` for writing, which waits for a grace period, also if the process is in the cgroup
//!   already. It does not wait if another writer had the lock in the last 10 ms or so. Measured on Linux 6.18, hybrid,
//!   2 CPUs: 8 to 16 ms for a first move, 0.1 ms for the moves after it. Two ways avoid the lock. On v1 a single thread
//!   that moves itself, by writing 0 to `tasks`, takes none: 0.1 ms. On v2 a process can be born in its cgroup
//!   (`clone3` with `CLONE_INTO_CGROUP`). The makers of apps and the helpers of execs do both.
//!   `cgroup.threads` is no way: it refuses to leave a domain (EOPNOTSUPP).
//!
//!   Only the supervisor itself still has to be moved on v2, unless it was started in the root cgroup of a hybrid host.
//!   A helper process moves it while the makers work. It is not cloned into its cgroup when it executes itself again
//!   (`CLONE_INTO_CGROUP` with `CLONE_PARENT`), because the engine would have to learn a second PID before the start
//!   reply, and to kill and reap both processes.
//! * **Closing nftables sockets** and **removing the bridge and rules that no pod needs any more**
//!   ([`finish_in_background`]). Both wait for one or two grace periods, at the end of the supervisor, which the caller
//!   of `run` waits for.
//!
//! # Memory
//!
//! Starting the apps touches most pages of the program, and the kernel counts them to every supervisor that has touched
//! them. A supervisor idles for most of its life, so it drops the clean ones, and the stack that the start has used
//! ([`sys::ProcessMemory`]). PID 1 drops its copy of the supervisor's heap, too.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use gantry_net::pod::unused;
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, Signal, WaitId, WaitIdOptions, waitid};

use crate::sys::{self, SingleThreaded};

/// A helper process that moves the supervisor into cgroups.
pub(crate) struct CgroupMove {
    helper: OwnedFd,
}

impl CgroupMove {
    /// Starts moving this process into the cgroups with these open `cgroup.procs` files.
    pub(crate) fn start(thread: SingleThreaded, groups: &[OwnedFd]) -> io::Result<Self> {
        let supervisor = std::process::id().to_string();
        let helper = sys::fork(thread, 0, |_| {
            // Without it the helper of a killed supervisor fails on its own: the PID does not exist any more.
            let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let moved = groups.iter().all(|group| rustix::io::write(group, supervisor.as_bytes()).is_ok());
            sys::exit_now(i32::from(!moved))
        })?;
        Ok(Self { helper: rustix::process::pidfd_open(helper, PidfdFlags::empty())? })
    }

    /// Waits for the helper; returns whether it has moved the supervisor into all cgroups.
    pub(crate) fn wait(self) -> io::Result<bool> {
        let status = waitid(WaitId::PidFd(self.helper.as_fd()), WaitIdOptions::EXITED)?;
        Ok(status.and_then(|status| status.exit_status()) == Some(0))
    }
}

/// Points stdin, stdout and stderr to /dev/null, so that no file opened later becomes one of them. Without /dev/null
/// (the supervisor may be in its jail) they become the reading end of a pipe, which cannot be written to.
fn release_stdio(pipe: &OwnedFd) {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let null = rustix::fs::open("/dev/null", flags, Mode::empty());
    let file = null.as_ref().unwrap_or(pipe);
    // None fails: the descriptor is open, and dup2 replaces open descriptors.
    let _cannot_fail = rustix::stdio::dup2_stdin(file);
    let _cannot_fail = rustix::stdio::dup2_stdout(file);
    let _cannot_fail = rustix::stdio::dup2_stderr(file);
}

/// Starts a process that closes the cached nftables sockets and removes bridges and rules which no pod uses, so that
/// the end of this process does not wait for it.
pub(crate) fn finish_in_background(thread: SingleThreaded) {
    let (sockets, mut leftovers) = (gantry_net::nft::socket_cache::drain(), unused::take_shared());
    leftovers.retain(unused::SharedResources::may_be_unused);
    if sockets.is_empty() && leftovers.is_empty() {
        return;
    }
    // If the process cannot be started, the end of this one closes the sockets, and gc removes the rest.
    let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else { return };
    let namespaces = leftovers.iter().map(|left| left.descriptor().as_raw_fd());
    let kept: Vec<_> = sockets.iter().chain([&writer]).map(std::os::fd::AsRawFd::as_raw_fd).chain(namespaces).collect();
    let started = sys::fork(thread, 0, |child| {
        // Standard output may be the pipe of the start reply, whose end the engine waits for.
        release_stdio(&reader);
        if child.close_all_but(&kept).is_ok() {
            // If it fails, the supervisor sees the end of the pipe instead.
            let _told = rustix::io::write(&writer, b"+");
            if !leftovers.is_empty() {
                std::thread::sleep(unused::LINGER);
            }
            for left in &leftovers {
                // It has no caller to report an error to. The next pod that ends, or gc, tries again.
                let _left_for_gc = left.remove(unused::LOCK_TIMEOUT);
            }
        }
        sys::exit_now(0)
    });
    drop(writer);
    if started.is_ok() {
        // Until it has closed its copy of the pod directory's descriptor, the pod's lock is held.
        let _byte_or_end = rustix::io::retry_on_intr(|| rustix::io::read(&reader, &mut [0u8; 1]));
    }
}
