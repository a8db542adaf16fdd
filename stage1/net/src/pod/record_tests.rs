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

/// A record of version 1, as one was written: it must be read as long as a pod of that version may run. Not changed; a
/// field added later has a default.
const VERSION_1: &str = r#"{"version":1,"boot":"b0071d00-0000-4000-8000-000000000000","pod":"a","since":12345,"host":{"state_dir":"/var/lib/gantry/net","pods_dir":"/var/lib/gantry/pods","config_dirs":["/etc/gantry/net.d"],"plugin_dirs":["/usr/lib/cni"],"table":"gantry","use_plugins":false,"plugin_limit_ms":60000,"resolver":true},"namespace":{"path":"/proc/100/ns/net","device":4,"inode":4026532000},"networks":[{"name":"net","interface":"eth0","plugins":true,"source":"/etc/gantry/net.d/net.conflist","text":"{\"cniVersion\":\"1.0.0\",\"name\":\"net\",\"plugins\":[{\"type\":\"bridge\"}]}","args":[["IP","10.1.0.2"]],"capability_args":{"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]},"cni_args":{"labels":[]}}]}
{"got":{"entries":{"networks":{"net":{"prefixes":["10.1.0.0/16"],"masquerade":true}},"interfaces":{"br0":{"network":"net","access":"restricted"},"gt0":{"network":"net","addresses":["10.1.0.2"],"access":"open"}},"ports":[{"address":"0.0.0.0","protocol":"tcp","port":8080,"to":"10.1.0.2:80","count":2}],"guards":{"gt0":{"mac":"01:02:03:04:05:06","addresses":["10.1.0.2"]}}},"attached":[{"name":"net","interface":"eth0","mac":"01:02:03:04:05:06","addresses":[{"address":"10.1.0.2","prefix":16,"gateway":"10.1.0.1"}],"routes":[],"dns":{"servers":[],"search":[],"options":[],"domain":null},"ports":[]}]}}
"#;

#[test]
fn a_record_of_version_1_is_read() {
    let valid = |text: &str| match parse(text.as_bytes(), "a") {
        RecordFile::Valid(record) => *record,
        other => panic!("{other:?}"),
    };
    let record = valid(VERSION_1);
    assert!(!record.torn && record.state == RecordState::Up && record.since == 12345);
    assert_eq!(record.namespace.as_ref().map(|it| it.inode), Some(4_026_532_000));
    let network = &record.networks[0];
    assert_eq!((network.args.len(), network.capability_args.len(), network.cni_args.len()), (1, 1, 1));
    assert!(network.plugins && network.text.contains("bridge"));
    let entries = record.entries().unwrap();
    assert_eq!((entries.networks.len(), entries.interfaces.len(), entries.ports.len()), (1, 2, 2));
    assert_eq!((entries.anti_spoofing.len(), record.attached[0].addresses.len()), (1, 1));
    assert_eq!(valid(&format!("{VERSION_1}{{\"down\":{{}}}}\n")).state, RecordState::Down);
    // Fields that the first records did not have.
    let mut short: Value = serde_json::from_str(VERSION_1.lines().next().unwrap()).unwrap();
    ["since", "namespace"].iter().for_each(|name| drop(short.as_object_mut().unwrap().remove(*name)));
    let network = short["networks"][0].as_object_mut().unwrap();
    ["source", "args", "capability_args", "cni_args"].iter().for_each(|name| drop(network.remove(*name)));
    ["use_plugins", "resolver"].iter().for_each(|name| drop(short["host"].as_object_mut().unwrap().remove(*name)));
    assert_eq!(valid(&short.to_string()).networks[0].args, []);
}
