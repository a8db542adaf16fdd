//! Where is listened: addresses as written, socket files that are ours, sockets that a service manager passed.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gantry_engine::model::id::shown;
use gantry_engine::model::{ErrorKind, Kind};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use thiserror::Error;

/// Who may connect to a socket file: its owner and its group, `gantry` where there is one.
const SOCKET_MODE: u32 = 0o660;
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1024;
/// A service manager passes a handful of sockets. Whatever says more is not one.
const MOST_PASSED: usize = 64;

/// An address to listen on, as written: `HOST:PORT`, `tcp:HOST:PORT` or `unix:/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host name or IP address, and port. Port 0: any that is free.
    Tcp(String, u16),
    /// The absolute path of a socket file.
    Unix(PathBuf),
}

/// A text is not an address.
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
            // Both `unix:/path` and `unix:///path`, as gRPC's clients have it.
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

/// It cannot be listened.
#[derive(Debug, Error)]
pub enum ListenError {
    /// The system refused.
    #[error("cannot {attempt} {name}")]
    Io {
        /// What was attempted.
        attempt: &'static str,
        /// The address.
        name: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Somebody answers there.
    #[error("cannot listen on {0}: another process listens there; end it, or give another address")]
    Taken(String),
    /// There is a file that is no socket. It is never removed.
    #[error("cannot listen on {0}: there is a file that is not a socket; remove it, or give another address")]
    NotASocket(String),
    /// What a service manager passed is no socket to listen on.
    #[error("the service manager passed descriptor {number}, which is not a listening TCP or unix stream socket")]
    Passed {
        /// Its number, as it was passed.
        number: usize,
        /// What is wrong with it.
        #[source]
        source: io::Error,
    },
    /// More than anybody passes.
    #[error("LISTEN_FDS says {0} sockets; at most {MOST_PASSED} can be passed")]
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

/// A socket that listens.
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
    /// Listens on an address; on all of them where a host name has several.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn open(address: &Address) -> Result<Vec<Self>, ListenError> {
        match address {
            Address::Tcp(host, port) => open_tcp(address, host, *port),
            Address::Unix(path) => open_unix(address, path).map(|listener| vec![listener]),
        }
    }

    /// Takes the sockets that a service manager passed (sd_listen_fds(3)), and the variables that tell of them out of
    /// the environment; so it is to be called once, before there is another thread.
    ///
    /// # Errors
    /// [`ListenError`], when one of them cannot be listened on.
    pub fn passed() -> Result<Vec<Self>, ListenError> {
        let mut passed = listenfd::ListenFd::from_env();
        if passed.len() > MOST_PASSED {
            return Err(ListenError::TooMany(passed.len()));
        }
        (0..passed.len()).map(|index| take(&mut passed, index)).collect()
    }

    /// Where it listens, as it is said at start: `tcp:127.0.0.1:15441`, `unix:/run/gantry/api.sock`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn take(passed: &mut listenfd::ListenFd, index: usize) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Passed { number: index + 3, source };
    let nothing = || failed(io::ErrorKind::NotFound.into());
    let socket = match passed.take_tcp_listener(index) {
        Ok(tcp) => Socket::Tcp(tcp.ok_or_else(nothing)?),
        Err(_) => Socket::Unix(passed.take_unix_listener(index).map_err(failed)?.ok_or_else(nothing)?),
    };
    let (listens, name) = match &socket {
        Socket::Tcp(tcp) => (listens(tcp), tcp.local_addr().map(|address| format!("tcp:{address}"))),
        Socket::Unix(unix) => (listens(unix), unix.local_addr().map(|address| unix_name(&address))),
    };
    if !listens.map_err(failed)? {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen")));
    }
    // Whoever made its file removes it: not we.
    Ok(Listener { socket, name: name.map_err(failed)?, file: None })
}

fn listens(socket: impl AsFd) -> io::Result<bool> {
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
            // A name such as localhost may stand for an address that this host does not have: no IPv6.
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

/// An IPv6 address is that alone: `[::]` leaves IPv4 to whoever is asked for `0.0.0.0`.
fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // As std does it: what a server that has just ended left behind does not count.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

fn open_unix(address: &Address, path: &Path) -> Result<Listener, ListenError> {
    let name = address.to_string();
    let failed = |attempt| {
        let name = name.clone();
        move |source: io::Error| ListenError::Io { attempt, name, source }
    };
    let dir = path.parent().unwrap_or(Path::new("/"));
    // Two that find the same stale file must not both replace it: the second would take away what the first one made.
    let dir = std::fs::File::open(dir).map_err(failed("open the directory of"))?;
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::LockExclusive)
        .map_err(|errno| failed("lock the directory of")(errno.into()))?;
    let socket = match bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path, &name)?;
            bind(path)
        }
        other => other,
    };
    let socket = socket.map_err(failed("listen on"))?;
    if let Some(group) = crate::peer::group() {
        let group = Some(rustix::fs::Gid::from_raw(group));
        rustix::fs::chown(path, None, group).map_err(|errno| failed("give to its group")(errno.into()))?;
    }
    let file = SocketFile::of(path).map_err(failed("look at"))?;
    Ok(Listener { socket: Socket::Unix(socket), name, file: Some(file) })
}

/// Makes the socket with its mode from the first moment on: Linux gives the file that of the socket, less the umask.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let mode = Mode::from_raw_mode(SOCKET_MODE);
    let socket: OwnedFd =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::fs::fchmod(&socket, mode)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // A umask may have taken away from it what the group is to have.
    rustix::fs::chmod(path, mode)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Removes a socket file at which nobody listens.
fn remove_stale(path: &Path, name: &str) -> Result<(), ListenError> {
    let failed = |attempt, source| ListenError::Io { attempt, name: name.to_owned(), source };
    let found = path.symlink_metadata().map_err(|source| failed("look at", source))?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket(name.to_owned()));
    }
    match knock(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|source| failed("remove what nobody listens on at", source))
        }
        // Too busy to answer: somebody is there.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(failed("find out who listens on", error)),
        Ok(()) | Err(_) => Err(ListenError::Taken(name.to_owned())),
    }
}

/// Connects, without waiting for a server that has no time.
fn knock(path: &Path) -> io::Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

/// A socket file that we made.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let found = path.symlink_metadata()?;
        Ok(Self { path: path.to_owned(), identity: (found.dev(), found.ino()) })
    }

    /// Removes it if it is still the one that we made. To be called while it is still listened: until then nobody takes
    /// it for a stale one, and the number of its inode is not given to another.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match Self::of(&self.path) {
            Ok(now) if now.identity == self.identity => std::fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[path = "listen_tests.rs"]
mod tests;
