//! Verbs that attempt operations forbidden in a container, and print the kernel's result.
//!
//! They print `WHAT: allowed` and exit with 0, or `WHAT: ERRNO` and exit with 3.

use std::fs::OpenOptions;
use std::io;

use crate::output::put;
use crate::{Failure, OK, Outcome, REFUSED, number, sys};

/// The symbol of the error numbers that are likely here.
fn errno_name(error: &io::Error) -> String {
    const NAMES: &[(i32, &str)] = &[
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::EACCES, "EACCES"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENODEV, "ENODEV"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::EROFS, "EROFS"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EBUSY, "EBUSY"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ENOKEY, "ENOKEY"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::ENOTTY, "ENOTTY"),
    ];
    let number = error.raw_os_error().unwrap_or(0);
    NAMES.iter().find(|(n, _)| *n == number).map_or_else(|| format!("errno {number}"), |(_, name)| (*name).to_owned())
}

pub(crate) fn verdict(what: &str, result: io::Result<()>) -> Outcome {
    match result {
        Ok(()) => {
            put(format!("{what}: allowed\n").as_bytes())?;
            Ok(OK)
        }
        Err(error) => {
            put(format!("{what}: {}\n", errno_name(&error)).as_bytes())?;
            Ok(REFUSED)
        }
    }
}

fn path(args: &[String]) -> Result<&str, Failure> {
    args.first().map(String::as_str).ok_or(Failure::Usage)
}

pub(crate) fn open(args: &[String]) -> Outcome {
    let path = path(args)?;
    let read = verdict("read", OpenOptions::new().read(true).open(path).map(drop))?;
    let write = verdict("write", OpenOptions::new().write(true).open(path).map(drop))?;
    Ok(read.max(write))
}

pub(crate) fn mknod(args: &[String]) -> Outcome {
    let path = path(args)?;
    let (major, minor) = if args.len() > 1 { (number(args, 1)?, number(args, 2)?) } else { (1, 7) };
    let made = verdict("mknod", sys::make_device(path, major, minor))?;
    if made != OK {
        return Ok(made);
    }
    verdict("open", OpenOptions::new().write(true).open(path).map(drop))
}

pub(crate) fn mount(args: &[String]) -> Outcome {
    verdict("mount", sys::mount_tmpfs(args.first().map_or("/tmp", String::as_str)))
}

pub(crate) fn remount(args: &[String]) -> Outcome {
    verdict("remount", sys::clear_mount_flags(path(args)?))
}

pub(crate) fn unshare(_: &[String]) -> Outcome {
    verdict("unshare", sys::unshare_user())
}

pub(crate) fn keyctl(_: &[String]) -> Outcome {
    verdict("keyctl", sys::session_keyring())
}

pub(crate) fn session_key(_: &[String]) -> Outcome {
    verdict("session key", sys::find_session_key())
}

pub(crate) fn with_session_key(args: &[String]) -> Outcome {
    use std::os::unix::process::CommandExt as _;
    let (program, rest) = args.split_first().ok_or(Failure::Usage)?;
    sys::add_session_key()?;
    Err(std::process::Command::new(program).args(rest).exec().into())
}

pub(crate) fn io_uring(_: &[String]) -> Outcome {
    verdict("io_uring_setup", sys::io_uring())
}

pub(crate) fn bpf(_: &[String]) -> Outcome {
    verdict("bpf", sys::bpf_map())
}

pub(crate) fn syslog(_: &[String]) -> Outcome {
    verdict("syslog", sys::kernel_log_size())
}

pub(crate) fn perf(_: &[String]) -> Outcome {
    verdict("perf_event_open", sys::cpu_clock_event())
}

pub(crate) fn userfaultfd(_: &[String]) -> Outcome {
    verdict("userfaultfd", sys::userfaultfd())
}

pub(crate) fn socket(args: &[String]) -> Outcome {
    verdict("socket", sys::socket(number(args, 0)?, libc::SOCK_DGRAM, 0))
}

pub(crate) fn socketpair(args: &[String]) -> Outcome {
    verdict("socketpair", sys::socket_pair(number(args, 0)?))
}

pub(crate) fn ping_socket(_: &[String]) -> Outcome {
    verdict("ping", sys::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP))
}

pub(crate) fn bind(args: &[String]) -> Outcome {
    let port: u16 = number(args, 0)?;
    verdict("bind", std::net::TcpListener::bind(("0.0.0.0", port)).map(drop))
}

pub(crate) fn interfaces(args: &[String]) -> Outcome {
    verdict("interfaces", sys::list_interfaces(number(args, 0)?))
}
