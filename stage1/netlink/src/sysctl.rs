//! Sysctls of a network namespace: the files below `/proc/sys/net`.
//!
//! The kernel resolves `/proc/sys/net` in the network namespace of the thread that opens a file, wherever `/proc` was
//! mounted. To set a pod's sysctls, call inside [`crate::Namespace::enter`], or before the supervisor leaves the
//! pod's namespace. `/proc` must be mounted and writable.

use std::fmt;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::{Attempt, Error, Result};
use crate::namespace::check_name;

const PROC_SUPER_MAGIC: u64 = 0x9fa0;
/// The longest value read, in bytes.
const MAX_VALUE_LEN: usize = 4096;

/// A sysctl below `net`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sysctl<'a> {
    /// IPv4 forwarding. Setting it also resets other sysctls of the namespace to router defaults (RFC 1812), so set
    /// it first.
    ForwardV4,
    /// IPv6 forwarding. Disables router advertisements on interfaces where `accept_ra` is 1.
    ForwardV6,
    /// Route 127.0.0.0/8 through an interface, for ports published on 127.0.0.1.
    RouteLocalnet(&'a str),
    /// Send gratuitous ARP (RFC 5227) when the interface comes up or changes its hardware address.
    ArpNotify(&'a str),
    /// The same for IPv6, by unsolicited neighbour advertisements.
    NdiscNotify(&'a str),
    /// Duplicate address detection (RFC 4862 section 5.4): 0 off, 1 on.
    AcceptDad(&'a str),
    /// Accept router advertisements: 0 never, 1 unless forwarding, 2 always.
    AcceptRa(&'a str),
    /// Disable IPv6 on an interface.
    DisableV6(&'a str),
    /// Any other, as a path below `/proc/sys/net`: `ipv4/conf/eth0/rp_filter`.
    Other(&'a str),
}

impl fmt::Display for Sysctl<'_> {
    /// The path below `/proc/sys/net`, with slashes: interface names may contain dots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForwardV4 => f.write_str("ipv4/ip_forward"),
            Self::ForwardV6 => f.write_str("ipv6/conf/all/forwarding"),
            Self::RouteLocalnet(link) => write!(f, "ipv4/conf/{link}/route_localnet"),
            Self::ArpNotify(link) => write!(f, "ipv4/conf/{link}/arp_notify"),
            Self::NdiscNotify(link) => write!(f, "ipv6/conf/{link}/ndisc_notify"),
            Self::AcceptDad(link) => write!(f, "ipv6/conf/{link}/accept_dad"),
            Self::AcceptRa(link) => write!(f, "ipv6/conf/{link}/accept_ra"),
            Self::DisableV6(link) => write!(f, "ipv6/conf/{link}/disable_ipv6"),
            Self::Other(path) => f.write_str(path),
        }
    }
}

impl Sysctl<'_> {
    /// The validated path below `/proc/sys/net`: no empty component, no `.`, no `..`.
    fn path(&self) -> Result<String> {
        match self {
            Self::RouteLocalnet(link)
            | Self::ArpNotify(link)
            | Self::NdiscNotify(link)
            | Self::AcceptDad(link)
            | Self::AcceptRa(link)
            | Self::DisableV6(link) => check_name(link)?,
            Self::ForwardV4 | Self::ForwardV6 | Self::Other(_) => {}
        }
        let path = self.to_string();
        let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains('\0');
        if path.len() <= 255 && path.split('/').all(plain) {
            return Ok(path);
        }
        let what = format!("use '{}' as a sysctl", gantry_model::id::shown(&path));
        Err(Error::invalid(what, "it is not a plain path below /proc/sys/net"))
    }

    fn open(&self, flags: OFlags) -> Result<(String, OwnedFd)> {
        let path = self.path()?;
        let what = || format!("open /proc/sys/net/{}", path.escape_debug());
        let root = rustix::fs::openat(
            CWD,
            "/proc/sys/net",
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .attempt(what)?;
        if !u64::try_from(rustix::fs::fstatfs(&root).attempt(what)?.f_type).is_ok_and(|kind| kind == PROC_SUPER_MAGIC) {
            return Err(Error::invalid(what(), "/proc is not a procfs"));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let file = rustix::fs::openat2(&root, path.as_str(), flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        let file = file.attempt(what)?;
        Ok((path, file))
    }

    /// Sets the value in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`gantry_model::ErrorKind::NotFound`] if the interface is gone or the kernel lacks the sysctl; if `/proc` is
    /// read-only or the kernel rejects the value.
    pub fn set(&self, value: &str) -> Result<()> {
        let (path, file) = self.open(OFlags::WRONLY)?;
        let what = || format!("set /proc/sys/net/{} to '{}'", path, gantry_model::id::shown(value));
        let written = loop {
            match rustix::io::write(&file, value.as_bytes()) {
                Err(Errno::INTR) => {}
                other => break other.attempt(what)?,
            }
        };
        // A sysctl takes its value in one write; a second write would start over.
        if written == value.len() { Ok(()) } else { Err(Errno::IO).attempt(what) }
    }

    /// Reads the value in the calling thread's network namespace, without the newline.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn get(&self) -> Result<String> {
        let (path, file) = self.open(OFlags::RDONLY)?;
        // On the stack: a supervisor reads some 30 sysctls, and its arena rarely reuses memory.
        let mut bytes = [0; MAX_VALUE_LEN];
        let length = loop {
            match rustix::io::read(&file, &mut bytes[..]) {
                Err(Errno::INTR) => {}
                other => break other.attempt(|| format!("read /proc/sys/net/{path}"))?,
            }
        };
        Ok(String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_plain_paths_are_sysctls() {
        for path in
            ["", "/", "ipv4/../../kernel/core_pattern", "./ipv4", "ipv4//ip_forward", "ipv4/\0", "../kernel", "ipv4/"]
        {
            assert!(Sysctl::Other(path).path().is_err(), "{path}");
        }
        for link in ["", "..", ".", "a/b", "sixteen-letters-", "a b", "eth%d"] {
            assert!(Sysctl::RouteLocalnet(link).path().is_err(), "{link}");
        }
        assert_eq!(Sysctl::RouteLocalnet("eth0.100").path().unwrap(), "ipv4/conf/eth0.100/route_localnet");
    }

    proptest! {
        #[test]
        fn paths_never_leave_the_directory(text in ".{0,40}", link in "[./a%:]{0,6}") {
            for sysctl in [Sysctl::Other(&text), Sysctl::AcceptRa(&link)] {
                if let Ok(path) = sysctl.path() {
                    prop_assert!(path.split('/').all(|part| !matches!(part, "" | "." | "..")));
                }
            }
        }
    }
}
