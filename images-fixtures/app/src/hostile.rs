//! Commands of the fixture app that attack the processes it can see.

use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::SystemTime;

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::output::put;
use crate::tries::verdict;
use crate::{FAILED, Failure, OK, Outcome, network, sys};

/// The contents written over a program.
const SCRIPT: &[u8] = b"#!/bin/sh\nexit 66\n";

/// The program of a process, if it can be opened and differs from this one.
fn foreign_program(pid: &str, own: (u64, u64)) -> Option<File> {
    let program = File::open(format!("/proc/{pid}/exe")).ok()?;
    let meta = program.metadata().ok()?;
    ((meta.dev(), meta.ino()) != own).then_some(program)
}

/// The program of the process, or of the first other process whose program is foreign; `any` searches until one is
/// found.
fn steal(pid: &str) -> Result<File, Failure> {
    let own = std::fs::metadata("/proc/self/exe")?;
    let own = (own.dev(), own.ino());
    if pid != "any" {
        return foreign_program(pid, own).ok_or_else(|| Failure::Failed(format!("/proc/{pid}/exe cannot be opened")));
    }
    loop {
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| name.bytes().all(|c| c.is_ascii_digit())) else { continue };
            if let Some(program) = foreign_program(name, own) {
                return Ok(program);
            }
        }
    }
}

pub(crate) fn change_program(args: &[String]) -> Outcome {
    let pid = args.first().ok_or(Failure::Usage)?;
    let program = steal(pid)?;
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    put(b"opened a foreign program\n")?;
    if args.get(1).is_some_and(|word| word == "overwrite") {
        return overwrite(&path);
    }
    let open = |options: &mut OpenOptions| options.open(&path).and_then(|mut file| file.write_all(SCRIPT));
    let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    verdict("chmod", std::fs::set_permissions(&path, Permissions::from_mode(0o4777)))?;
    verdict("chown", std::os::unix::fs::chown(&path, Some(1000), Some(1000)))?;
    verdict("user xattr", sys::set_xattr(&path, "user.gantry-fixture"))?;
    verdict("trusted xattr", sys::set_xattr(&path, "trusted.gantry-fixture"))?;
    verdict("times", program.set_times(times))?;
    verdict("write", open(OpenOptions::new().write(true)))?;
    verdict("truncate", open(OpenOptions::new().write(true).truncate(true)))?;
    verdict("append", open(OpenOptions::new().append(true)))?;
    put(b"tried everything\n")?;
    stay()
}

/// Sleeps until killed with its pod.
fn stay() -> ! {
    loop {
        std::thread::park();
    }
}

/// Retries until the file can be written: when no process executes it any more.
fn overwrite(path: &str) -> Outcome {
    loop {
        match OpenOptions::new().write(true).open(path) {
            Ok(mut file) => {
                file.write_all(SCRIPT)?;
                put(b"overwrote it\n")?;
                return Ok(OK);
            }
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => {}
            Err(error) => {
                // On a read-only file system, no retry can succeed.
                verdict("overwrite", Err(error))?;
                stay()
            }
        }
    }
}

/// The kernel's facts about a process that an app should not find.
struct ProcessStatus {
    seccomp: bool,
    effective: u64,
}

fn look_at(pid: i32) -> Option<ProcessStatus> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let effective = u64::from_str_radix(field("CapEff:")?, 16).ok()?;
    Some(ProcessStatus { seccomp: field("Seccomp:")? != "0", effective })
}

/// How far beyond the last process id to search: some processes exit before they are caught.
const AHEAD: i32 = 256;

pub(crate) fn catch(args: &[String]) -> Outcome {
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let own = look_at(own_pid).ok_or_else(|| Failure::Failed("cannot read /proc/self/status".to_owned()))?;
    let rounds: u32 = crate::number(args, 0)?;
    put(b"catching\n")?;
    // Starts after PID 1, so that existing processes count too.
    let (mut next, mut caught) = (2, 0);
    while caught < rounds {
        let Some(pid) = (next..next + AHEAD).find(|&pid| pid != own_pid && sys::seize(pid).is_ok()) else { continue };
        report(pid, &own)?;
        // The process may have exited by itself.
        let _ = sys::let_go(pid);
        (next, caught) = (pid + 1, caught + 1);
    }
    put(b"caught enough\n")?;
    stay()
}

/// The descriptors above stdio of a process. A program is executed without any.
fn take_descriptors(pid: i32) -> Vec<OwnedFd> {
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let numbers = numbers.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let take = |number: i32| pidfd_getfd(process.as_ref()?, number, PidfdGetfdFlags::empty()).ok();
    numbers.filter(|&number| number > 2).filter_map(take).collect()
}

pub(crate) fn send_lingering(args: &[String]) -> Outcome {
    let own_pid = i32::try_from(std::process::id()).unwrap_or(0);
    let rounds: u32 = crate::number(args, 0)?;
    let (socket, _peer) = network::lingering_socket()?;
    let mut socket = Some(socket);
    put(b"catching\n")?;
    let (mut next, mut caught) = (2, 0);
    while caught < rounds {
        let Some(pid) = (next..next + AHEAD).find(|&pid| pid != own_pid && sys::seize(pid).is_ok()) else { continue };
        let taken = take_descriptors(pid);
        for fd in &taken {
            let sent = socket.as_ref().map(|socket| network::send_descriptor(fd.as_fd(), b"x", socket.as_fd()));
            if sent.is_some_and(|sent| sent.is_ok()) {
                put(format!("sent a socket through a descriptor of process {pid}\n").as_bytes())?;
                // From here on the message has the last reference.
                socket = None;
            }
        }
        // The process may have exited by itself.
        let _ = sys::let_go(pid);
        (next, caught) = (pid + 1, caught + u32::from(!taken.is_empty()));
    }
    put(b"caught enough\n")?;
    stay()
}

pub(crate) fn exit_traced(args: &[String]) -> Outcome {
    let code: u8 = crate::number(args, 0)?;
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let (mut reader, mut writer) = io::pipe()?;
    sys::allow_tracers();
    if sys::fork()?.is_none() {
        if sys::trace(own).and_then(|()| writer.write_all(b"+")).is_err() {
            sys::exit_now(FAILED);
        }
        stay();
    }
    drop(writer);
    match reader.read(&mut [0]) {
        Ok(1) => put(b"traced\n").map(|_| code),
        _ => Err(Failure::Failed("cannot be traced".to_owned())),
    }
}

fn report(pid: i32, own: &ProcessStatus) -> io::Result<()> {
    let Some(seen) = look_at(pid) else { return Ok(()) };
    let mut text = String::new();
    if own.seccomp && !seen.seccomp {
        text.push_str(&format!("process {pid} has no seccomp filter\n"));
    }
    let more = seen.effective & !own.effective;
    if more != 0 {
        text.push_str(&format!("process {pid} has capabilities {more:x} more than this one\n"));
    }
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}
