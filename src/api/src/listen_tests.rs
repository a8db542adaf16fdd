//! Addresses as written, and the owners of socket files.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use super::*;

const ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some("gantry") };

#[test]
fn addresses_are_parsed() {
    let tcp = |host: &str, port| Some(Address::Tcp(host.to_owned(), port));
    let unix = |path: &str| Some(Address::Unix(path.into()));
    for (text, want, shown) in [
        ("127.0.0.1:15441", tcp("127.0.0.1", 15441), "tcp:127.0.0.1:15441"),
        ("tcp:localhost:0", tcp("localhost", 0), "tcp:localhost:0"),
        ("tcp://localhost:1", tcp("localhost", 1), "tcp:localhost:1"),
        ("[::1]:15441", tcp("::1", 15441), "tcp:[::1]:15441"),
        ("tcp:[::]:1", tcp("::", 1), "tcp:[::]:1"),
        ("unix:/run/a.sock", unix("/run/a.sock"), "unix:/run/a.sock"),
        ("unix:///run/a.sock", unix("/run/a.sock"), "unix:/run/a.sock"),
        ("", None, ""),
        ("localhost", None, ""),
        (":15441", None, ""),
        ("[]:1", None, ""),
        ("::1:15441", None, ""),
        ("localhost:65536", None, ""),
        ("localhost:http", None, ""),
        ("http://localhost:1", None, ""),
        ("unix:api.sock", None, ""),
        ("unix:/run/", None, ""),
        ("unix:/a\0b", None, ""),
    ] {
        let read = text.parse::<Address>();
        assert_eq!(read.as_ref().ok(), want.as_ref(), "{text:?}");
        match read {
            Ok(address) => assert_eq!(address.to_string(), shown),
            Err(error) => assert!(error.to_string().contains("is not an address"), "{error}"),
        }
    }
}

fn open(path: &Path) -> Result<Listener, ListenError> {
    let mut all = Listener::open(&Address::Unix(path.to_owned()), ACCESS)?;
    assert_eq!(all.len(), 1);
    Ok(all.remove(0))
}

#[test]
fn only_stale_sockets_are_replaced() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("api.sock");
    let first = open(&path).unwrap();
    assert_eq!(first.name(), format!("unix:{}", path.display()));
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    assert!(UnixStream::connect(&path).is_ok());
    assert!(matches!(open(&path), Err(ListenError::Taken(_))), "a live one stays");
    // As left by a kill.
    drop(first);
    let second = open(&path).unwrap();
    assert!(UnixStream::connect(&path).is_ok());
    // The file was removed, and another process listens there.
    std::fs::remove_file(&path).unwrap();
    let third = open(&path).unwrap();
    second.file.as_ref().unwrap().remove().unwrap();
    assert!(path.exists(), "the file of another one stays");
    third.file.as_ref().unwrap().remove().unwrap();
    assert!(!path.exists());
    second.file.as_ref().unwrap().remove().unwrap();

    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(open(&path), Err(ListenError::NotASocket(_))));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(home.path().join("elsewhere"), &path).unwrap();
    assert!(matches!(open(&path), Err(ListenError::NotASocket(_))));
    assert!(open(&home.path().join("none/api.sock")).is_err());
    assert!(open(&home.path().join("x".repeat(200))).is_err());
}

#[test]
fn the_chosen_port_is_reported() {
    let listeners = Listener::open(&Address::Tcp("127.0.0.1".to_owned(), 0), ACCESS).unwrap();
    let name = listeners[0].name().to_owned();
    let address: Address = name.parse().unwrap();
    assert!(!name.ends_with(":0"), "{name}");
    assert!(matches!(Listener::open(&address, ACCESS), Err(ListenError::Taken(_))));
}

#[test]
fn wildcard_addresses_bind_one_family() {
    let any = Listener::open(&"0.0.0.0:0".parse().unwrap(), ACCESS).unwrap();
    let port = any[0].name().rsplit(':').next().unwrap().to_owned();
    // The same port, which is still free there.
    let both = Listener::open(&format!("[::]:{port}").parse().unwrap(), ACCESS);
    match both {
        Ok(both) => assert_eq!(both[0].name(), format!("tcp:[::]:{port}")),
        // A host without IPv6.
        Err(ListenError::Io { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
