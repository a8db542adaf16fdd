//! Listening sockets: parses addresses, makes socket files, and takes over sockets that a service manager passed.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use gantry_host::file_id::FileId;
use gantry_host::lock::{LockMode, lock_within};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use thiserror::Error;

/// Which users may connect to a socket file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketAccess {
    /// The permission bits of the file.
    pub mode: u32,
    /// The group of the file, if that group exists; else the group of the process.
    pub group: Option<&'static str>,
}

/// Connections that the kernel queues until they are accepted.
const BACKLOG: i32 = 1024;
/// Timeout of waiting for another process that replaces a socket file in the same directory. Any user who may open the
/// directory can lock it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum sockets that a service manager passes. A larger `LISTEN_FDS` is not from one.
const MAX_PASSED: usize = 64;

/// An address to listen on: `HOST:PORT`, `tcp:HOST:PORT` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port. Port 0: any free port.
    Tcp(String, u16),
    /// The absolute path of a socket file.
    Unix(PathBuf),
}

/// The text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{}' is not an address: {why}; expected one such as 127.0.0.1:15441, [::1]:15441 or unix:/run/gantry/api.sock",
    shown(text)
)]
pub struct AddressError {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let refuse = |why| AddressError { text: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC clients accept both `unix:/path` and `unix:///path`.
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
                return Err(refuse("the path of a socket file must be absolute"));
            }
            return Ok(Self::Unix(path.into()));
        }
        let rest = text.strip_prefix("tcp:").unwrap_or(text);
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| refuse("it has no port"))?;
        let port = port.parse().map_err(|_| refuse("its port is not a number from 0 to 65535"))?;
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || inner.is_some_and(str::is_empty) {
            return Err(refuse("it has no host"));
        }
        if inner.is_none() && host.contains([':', '[', ']', '/']) {
            return Err(refuse("an IPv6 address needs brackets"));
        }
        Ok(Self::Tcp(inner.unwrap_or(host).to_owned(), port))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket cannot be opened.
#[derive(Debug, Error)]
pub enum ListenError {
    /// A system call failed.
    #[error("cannot {attempt} {name}")]
    Io {
        /// The attempted operation.
        attempt: &'static str,
        /// The address.
        name: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another process listens on the address.
    #[error("cannot listen on {0}: another process listens there; end it, or give another address")]
    Taken(String),
    /// The path is a file that is not a socket. It is never removed.
    #[error("cannot listen on {0}: there is a file that is not a socket; remove it, or give another address")]
    NotASocket(String),
    /// A passed descriptor is not a listening socket.
    #[error("the service manager passed descriptor {number}, which is not a listening TCP or unix stream socket")]
    Passed {
        /// The number of the descriptor.
        number: usize,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// `LISTEN_FDS` is too large.
    #[error("LISTEN_FDS says {0} sockets; at most {MAX_PASSED} can be passed")]
    TooMany(usize),
}

impl Kind for ListenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Taken(_) => ErrorKind::Busy,
            Self::NotASocket(_) => ErrorKind::Refused,
            Self::Passed { .. } | Self::TooMany(_) => ErrorKind::Invalid,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    pub(crate) socket: Socket,
    name: String,
    pub(crate) file: Option<SocketFile>,
}

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on an address; on all addresses of a host name. `access` applies to socket files.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn open(address: &Address, access: SocketAccess) -> Result<Vec<Self>, ListenError> {
        match address {
            Address::Tcp(host, port) => open_tcp(address, host, *port),
            Address::Unix(path) => open_unix(address, path, access).map(|listener| vec![listener]),
        }
    }

    /// Takes over the sockets that a service manager passed (sd_listen_fds(3)). Removes their variables from the
    /// environment: call it once, before starting threads.
    ///
    /// # Errors
    /// [`ListenError`], if one of them is not a listening socket.
    pub fn passed() -> Result<Vec<Self>, ListenError> {
        let mut passed = listenfd::ListenFd::from_env();
        if passed.len() > MAX_PASSED {
            return Err(ListenError::TooMany(passed.len()));
        }
        (0..passed.len()).map(|index| take_passed(&mut passed, index)).collect()
    }

    /// Its address, as logged: `tcp:127.0.0.1:15441`, `unix:/run/gantry/api.sock`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn take_passed(passed: &mut listenfd::ListenFd, index: usize) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Passed { number: index + 3, source };
    let nothing = || failed(io::ErrorKind::NotFound.into());
    let socket = match passed.take_tcp_listener(index) {
        Ok(tcp) => Socket::Tcp(tcp.ok_or_else(nothing)?),
        Err(_) => Socket::Unix(passed.take_unix_listener(index).map_err(failed)?.ok_or_else(nothing)?),
    };
    let (listening, name) = match &socket {
        Socket::Tcp(tcp) => (is_listening(tcp), tcp.local_addr().map(|address| format!("tcp:{address}"))),
        Socket::Unix(unix) => (is_listening(unix), unix.local_addr().map(|address| unix_name(&address))),
    };
    if !listening.map_err(failed)? {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen")));
    }
    // The service manager removes the file of its socket.
    Ok(Listener { socket, name: name.map_err(failed)?, file: None })
}

fn is_listening(socket: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::socket_acceptconn(socket)?)
}

fn unix_name(address: &std::os::unix::net::SocketAddr) -> String {
    use std::os::linux::net::SocketAddrExt as _;
    match (address.as_pathname(), address.as_abstract_name()) {
        (Some(path), _) => format!("unix:{}", path.display()),
        (None, Some(name)) => format!("unix:@{}", shown(&String::from_utf8_lossy(name))),
        (None, None) => "unix:(unnamed)".to_owned(),
    }
}

fn open_tcp(address: &Address, host: &str, port: u16) -> Result<Vec<Listener>, ListenError> {
    let failed = |attempt, source| ListenError::Io { attempt, name: address.to_string(), source };
    let mut found: Vec<SocketAddr> =
        (host, port).to_socket_addrs().map_err(|source| failed("find the address of", source))?.collect();
    found.sort_unstable();
    found.dedup();
    let mut listeners = Vec::new();
    let mut absent = None;
    for one in found {
        match bind_tcp(one).and_then(|socket| Ok((socket.local_addr()?, socket))) {
            Ok((at, socket)) => {
                listeners.push(Listener { socket: Socket::Tcp(socket), name: format!("tcp:{at}"), file: None });
            }
            // A name such as localhost may resolve to an address that this host lacks: no IPv6.
            Err(error) if matches!(error.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported) => {
                absent = Some(error);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(ListenError::Taken(format!("tcp:{one}")));
            }
            Err(error) => return Err(failed("listen on", error)),
        }
    }
    match absent {
        Some(error) if listeners.is_empty() => Err(failed("listen on", error)),
        None if listeners.is_empty() => Err(failed("find the address of", io::ErrorKind::NotFound.into())),
        Some(_) | None => Ok(listeners),
    }
}

/// IPv6 sockets do not accept IPv4 connections, so that `[::]` and `0.0.0.0` can be given together.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections of an earlier server in TIME_WAIT must not block the address.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn open_unix(address: &Address, path: &Path, access: SocketAccess) -> Result<Listener, ListenError> {
    let name = address.to_string();
    let failed = |attempt| {
        let name = name.clone();
        move |source: io::Error| ListenError::Io { attempt, name, source }
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    // Two processes that find the same stale file must not both replace it: the second would remove the first one's
    // socket.
    let dir = std::fs::File::open(dir).map_err(failed("open the directory of"))?;
    let locked = lock_within(&dir, LockMode::Exclusive, LOCK_TIMEOUT, |_| Ok(()));
    if !locked.map_err(failed("lock the directory of"))? {
        return Err(failed("lock the directory of")(io::ErrorKind::TimedOut.into()));
    }
    let socket = match bind_unix(path, access.mode) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path, &name)?;
            bind_unix(path, access.mode)
        }
        other => other,
    };
    let socket = socket.map_err(failed("listen on"))?;
    if let Some(group) = access.group.and_then(crate::peer::group_id) {
        let group = Some(rustix::fs::Gid::from_raw(group));
        rustix::fs::chown(path, None, group).map_err(|errno| failed("give to its group")(errno.into()))?;
    }
    let file = SocketFile::identify(path).map_err(failed("look at"))?;
    Ok(Listener { socket: Socket::Unix(socket), name, file: Some(file) })
}

/// Binds a socket file that has its mode from the start: Linux gives the file the mode of the socket, less the umask.
fn bind_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let mode = Mode::from_raw_mode(mode);
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // The umask may have removed the group's permissions.
    rustix::fs::chmod(path, mode)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket file without a listening process.
fn remove_stale(path: &Path, name: &str) -> Result<(), ListenError> {
    let failed = |attempt, source| ListenError::Io { attempt, name: name.to_owned(), source };
    let found = path.symlink_metadata().map_err(|source| failed("look at", source))?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(name.to_owned()));
    }
    match try_connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| failed("remove the stale socket of", source))
        }
        // A full queue: a process listens.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(failed("connect to", error)),
        Ok(()) | Err(_) => Err(ListenError::Taken(name.to_owned())),
    }
}

/// Connects without waiting for a busy server.
fn try_connect(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

/// A socket file that this process made.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    id: FileId,
}

impl SocketFile {
    fn identify(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: FileId::from(&path.symlink_metadata()?) })
    }

    /// Removes the file if it is still the one that this process made. Call it before the socket is closed: until then
    /// no process takes it for stale, and the kernel does not reuse its inode number.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match Self::identify(&self.path) {
            Ok(now) if now.id == self.id => std::fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
