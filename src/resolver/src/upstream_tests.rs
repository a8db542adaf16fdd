//! Tests of the host's servers.

use proptest::prelude::*;

use super::*;

fn servers(text: &str) -> Vec<String> {
    parse_servers(text).filter_map(socket_address).map(|address| address.to_string()).collect()
}

#[test]
fn nameserver_lines_are_parsed() {
    for (text, want) in [
        ("", &[][..]),
        ("nameserver 192.0.2.1\n", &["192.0.2.1:53"]),
        ("  nameserver\t192.0.2.1 # mine\nsearch a b\n", &["192.0.2.1:53"]),
        ("nameserver 2001:db8::1\nnameserver 127.0.0.53", &["[2001:db8::1]:53", "127.0.0.53:53"]),
        (
            "nameserver 1.1.1.1\nnameserver 1.1.1.2\nnameserver 1.1.1.3\nnameserver 1.1.1.4",
            &["1.1.1.1:53", "1.1.1.2:53", "1.1.1.3:53"],
        ),
        (
            "nameserver\nnameserver x\nnameserver 1.2.3\n#nameserver 1.1.1.1\n;nameserver 1.1.1.1\nnameservers 1.1.1.1",
            &[],
        ),
        ("nameserver 0.0.0.0\nnameserver ::", &["127.0.0.1:53", "[::1]:53"]),
        (
            "nameserver fe80::1%3\nnameserver fe80::1%lo\nnameserver fe80::1%no-such-link",
            &["[fe80::1%3]:53", "[fe80::1%1]:53"],
        ),
        ("nameserver 1.1.1.1%lo", &[]),
    ] {
        assert_eq!(servers(text), want, "{text:?}");
    }
}

#[test]
fn changed_files_are_reread() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("resolv.conf");
    let mut host = HostFile::new(&path);
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    assert_eq!(host.news().unwrap(), Some(vec![address("127.0.0.1:53")]), "the one on this machine");
    assert_eq!(host.news().unwrap(), None);
    std::fs::write(&path, "nameserver 192.0.2.1\n").unwrap();
    assert_eq!(host.news().unwrap(), Some(vec![address("192.0.2.1:53")]));
    assert_eq!(host.news().unwrap(), None);
    // As most programs write it: another file in its place.
    std::fs::write(home.path().join("new"), "nameserver 192.0.2.2\n").unwrap();
    std::fs::rename(home.path().join("new"), &path).unwrap();
    assert_eq!(host.news().unwrap(), Some(vec![address("192.0.2.2:53")]));
    std::fs::write(&path, vec![b'\n'; 70_000]).unwrap();
    assert!(host.news().unwrap_err().to_string().contains("longer"));
    assert_eq!(host.news().unwrap(), None, "reported once");
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert!(host.news().unwrap_err().to_string().contains("regular"));
}

#[test]
fn unresponsive_servers_are_tried_last() {
    let all: Vec<SocketAddr> = ["1.1.1.1:53", "1.1.1.2:53", "1.1.1.3:53"].map(|text| text.parse().unwrap()).to_vec();
    let (mut silent, now) = (UnresponsiveServers::default(), Instant::now());
    assert_eq!(silent.order(&all, now), all);
    silent.insert(all[0], now);
    assert_eq!(silent.order(&all, now), [all[1], all[2], all[0]]);
    silent.insert(all[1], now + AVOID_TIME / 2);
    assert_eq!(silent.order(&all, now + AVOID_TIME / 2), [all[2], all[0], all[1]]);
    assert_eq!(silent.order(&all, now + AVOID_TIME), [all[0], all[2], all[1]]);
    silent.remove(all[1]);
    assert_eq!(silent.order(&all, now + AVOID_TIME), all);
}

proptest! {
    #[test]
    fn the_number_of_servers_is_limited(text in any::<String>(), lines in "(nameserver [0-9a-f:.%]{0,12}\n){0,5}") {
        prop_assert!(parse_servers(&text).count() <= MAX_SERVERS);
        prop_assert!(servers(&lines).len() <= MAX_SERVERS);
    }
}
