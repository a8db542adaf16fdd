//! Notifies the service manager (sd_notify(3)): one datagram to the socket in `NOTIFY_SOCKET`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Sends a state if `NOTIFY_SOCKET` is set. Logs a failure: pods do not depend on it.
pub(crate) fn send_state(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        warn!("cannot send '{state}' to the service manager: {error}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    // A service manager that does not read must not block gantryd.
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notify_reaches_path_and_abstract_sockets() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notify");
        let name = format!("gantryd-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            send(&socket, "READY=1").unwrap();
            let mut bytes = [0; 16];
            let count = manager.recv(&mut bytes).unwrap();
            assert_eq!(&bytes[..count], b"READY=1");
        }
        assert!(send(OsStr::new("/no/such/socket"), "READY=1").is_err());
    }
}
