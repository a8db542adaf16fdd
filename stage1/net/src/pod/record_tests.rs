//! Complete records, truncated ones, and other files.

use super::*;

fn host(dir: &std::path::Path) -> Host {
    Host {
        state_dir: "/s".into(),
        pods_dir: dir.display().to_string(),
        config_dirs: Vec::new(),
        plugin_dirs: Vec::new(),
        table: "gantry".into(),
        use_plugins: false,
        plugin_limit_ms: 1,
        resolver: false,
    }
}

#[test]
fn records_round_trip_and_reject_other_files() {
    let temp = tempfile::tempdir().unwrap();
    let host = host(temp.path());
    let records = Records::open(&host).unwrap();
    for pod in ["a", "b", "c", "d", "e", "f"] {
        std::fs::create_dir(temp.path().join(pod)).unwrap();
    }
    let dir = files::open_dir(&temp.path().join("a")).unwrap();
    assert!(read(dir.as_fd(), "a").unwrap().is_none() && !records.has("a").unwrap());
    let mut record = Record::new("a", &host, "boot".into(), Vec::new());
    record.write(dir.as_fd()).unwrap();
    let whole = || match read(dir.as_fd(), "a").unwrap() {
        Some(RecordFile::Valid(found)) => *found,
        other => panic!("{other:?}"),
    };
    assert_eq!(whole(), record);
    let mut entries = State::new();
    entries.networks.insert("net".into(), crate::nft::Network::default());
    record
        .append_result(dir.as_fd(), &entries, vec![PodNetwork { name: "net".into(), ..PodNetwork::default() }])
        .unwrap();
    assert_eq!((whole(), whole().entries().unwrap()), (record.clone(), entries));
    // A line that was cut short is ignored.
    let path = temp.path().join("a").join(NETWORK);
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"\n{\"got\":{\"entri").unwrap();
    assert_eq!(whole(), Record { torn: true, ..record.clone() });
    record.append_down(dir.as_fd()).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    record.append_down(dir.as_fd()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), length, "once");
    assert_eq!(whole(), Record { torn: true, ..record.clone() });
    assert_eq!(whole().state, RecordState::Down);
    assert!(records.has("a").unwrap() && !records.has("../a").unwrap() && !records.has("missing").unwrap());
    let of = |pod: &str| temp.path().join(pod).join(NETWORK);
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(of("a")).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::write(of("b"), "").unwrap();
    std::os::unix::fs::symlink(of("a"), of("c")).unwrap();
    std::fs::create_dir(of("d")).unwrap();
    std::fs::copy(of("a"), of("e")).unwrap();
    std::fs::write(of("f"), r#"{"version":2,"other":1}"#).unwrap();
    std::fs::write(temp.path().join("file"), "").unwrap();
    let all = records.all().unwrap();
    let sorts: String = all
        .iter()
        .map(|(pod, found)| match found {
            RecordFile::Valid(_) => format!("{pod} "),
            RecordFile::Damaged(_) => format!("-{pod} "),
            RecordFile::Newer(version) => format!("{pod}{version} "),
        })
        .collect();
    assert_eq!(sorts, "a -b -c -d -e f2 ");
    assert_eq!(records.valid().unwrap().len(), 1);
    std::fs::write(temp.path().join("a").join(NEW), "half").unwrap();
    remove(dir.as_fd()).unwrap();
    remove(dir.as_fd()).unwrap();
    assert_eq!(std::fs::read_dir(temp.path().join("a")).unwrap().count(), 0);
}
