//! Access to the API: which clients can connect, what each can see, and that no client can block root.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_tests::api::{Api, Served, connect_unix_as, copy_environment};
use gantry_tests::{DEADLINE, Gantry, pod_id};
use serde_json::Value;

/// A user and a group without rights; only these tests use them.
const NOBODY: u32 = 65_534;
const GROUP: u32 = 54_321;
const SECRET: &str = "hunter2";

#[test]
fn gantryd_listens_on_its_unix_socket_by_default() {
    let g = Gantry::new();
    let served = Served::wait_ready(g.spawn_command(&mut g.daemon_with_default_listen(&[])));
    assert_eq!(served.addresses(), [format!("unix:{}", g.api_socket().display())]);
    served.end();
}

/// A prepared pod with a password in its environment.
fn pod_with_a_secret(g: &Gantry) -> String {
    let variable = format!("--environment=DB_PASSWORD={SECRET}");
    pod_id(&g.run(&["prepare", "--quiet", "--net=none", &variable, &g.fixture(), "--name=it", "--", "true"]).ok())
}

/// The password in a manifest; fails if the variable is missing.
fn password(manifest: &[u8]) -> String {
    let manifest: Value = serde_json::from_slice(manifest).unwrap();
    gantry_tests::appc::check_pod_manifest(&manifest).unwrap();
    let variables = manifest["apps"][0]["app"]["environment"].as_array().unwrap();
    let found = variables.iter().find(|variable| variable["name"] == "DB_PASSWORD").unwrap();
    found["value"].as_str().unwrap().to_owned()
}

#[test]
fn environment_values_are_hidden_over_tcp() {
    let g = Gantry::new();
    let pod = pod_with_a_secret(&g);
    let unix = format!("unix:{}", g.api_socket().display());
    let served = g.serve_on(&["--listen", &unix, "--listen", "127.0.0.1:0"]);
    for address in served.addresses() {
        let api = Api::connect(&address);
        let want = if address.starts_with("unix:") { SECRET } else { "" };
        assert_eq!(password(&api.inspect_pod(&pod).manifest), want, "{address}");
        for listed in api.list_pods(Vec::new(), true) {
            assert_eq!(password(&listed.manifest), want, "{address}");
        }
        // The same holds for the values in image manifests.
        let image = api.inspect_image(&g.fixture());
        let manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
        let variables = manifest["app"]["environment"].as_array().cloned().unwrap_or_default();
        assert!(want == SECRET || variables.iter().all(|variable| variable["value"] == ""), "{manifest}");
    }
    served.end();
}

/// A directory that every user can enter, for a socket.
struct Open(PathBuf);

impl Open {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("gantry-access-{}-{}", std::process::id(), gantry_tests::now_ns()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("api.sock")
    }

    fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The password, as InspectPod shows it to another user.
#[track_caller]
fn password_for(address: &str, pod: &str, gid: u32) -> String {
    password(&Api::connect_as(address, NOBODY, gid).inspect_pod(pod).manifest)
}

/// A gantryd with this file in place of /etc/group.
fn served_with_groups(g: &Gantry, open: &Open, groups: &str) -> Served {
    let file = g.write("group", groups);
    let daemon = g.daemon_with_default_listen(&["--listen", &open.address()]);
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        "mount --bind \"$0\" /etc/group && exec \"$@\"",
        &file,
    ]);
    copy_environment(&daemon, command.arg(daemon.get_program()).args(daemon.get_args()));
    Served::wait_ready(g.spawn_command(&mut command))
}

#[test]
fn only_group_members_see_environment_values() {
    let g = Gantry::new();
    let pod = pod_with_a_secret(&g);
    let open = Open::new();
    let let_all_in = |path: &Path| std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();

    // Without the group, another user that can connect sees no values.
    let served = served_with_groups(&g, &open, "root:x:0:\n");
    assert_eq!(open.socket().metadata().unwrap().gid(), 0);
    let_all_in(&open.socket());
    assert_eq!(password_for(served.address(), &pod, NOBODY), "");
    assert_eq!(password_for(served.address(), &pod, GROUP), "");
    assert_eq!(password(&served.api().inspect_pod(&pod).manifest), SECRET, "root");
    served.end();

    // With the group, the group owns the socket; its members see the values, other users do not.
    let served = served_with_groups(&g, &open, &format!("root:x:0:\ngantry:x:{GROUP}:\n"));
    let found = open.socket().metadata().unwrap();
    assert_eq!((found.gid(), found.mode() & 0o777), (GROUP, 0o660));
    assert_eq!(password_for(served.address(), &pod, GROUP), SECRET);
    let_all_in(&open.socket());
    assert_eq!(password_for(served.address(), &pod, NOBODY), "");
    served.end();

    // A member by name.
    let served = served_with_groups(&g, &open, &format!("root:x:0:\ngantry:x:{GROUP}:daemon,nobody\n"));
    let_all_in(&open.socket());
    assert_eq!(password_for(served.address(), &pod, NOBODY), SECRET);
    served.end();
}

/// The start of every HTTP/2 connection: the preface, and an empty settings frame.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

#[test]
fn tcp_connections_leave_room_for_local_ones() {
    const SHARE: usize = 512;
    let g = Gantry::new();
    let unix = format!("unix:{}", g.api_socket().display());
    let served = g.serve_on(&["--listen", &unix, "--listen", "127.0.0.1:0"]);
    let address = served.addresses().into_iter().find_map(|it| it.strip_prefix("tcp:").map(str::to_owned)).unwrap();
    let mut open: Vec<TcpStream> = (0..SHARE + 50)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream.write_all(GREETING).unwrap();
            stream
        })
        .collect();
    // The listener acquires a slot before it accepts: the first `SHARE` connections are served, the others wait.
    for (number, stream) in open.iter_mut().take(SHARE).enumerate() {
        stream.read_exact(&mut [0; 9]).unwrap_or_else(|error| panic!("connection {number}: {error}"));
    }
    for stream in &mut open[SHARE..] {
        stream.set_nonblocking(true).unwrap();
        let error = stream.read(&mut [0; 9]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "the share of TCP is used up");
    }
    let root: Vec<Api> = (0..20).map(|_| served.api()).collect();
    root.iter().for_each(|api| assert_eq!(api.info().api_version, "1.0.0-alpha"));
    drop(open.drain(..SHARE));
    for mut stream in open {
        stream.set_nonblocking(false).unwrap();
        stream.read_exact(&mut [0; 9]).unwrap();
    }
    drop(root);
    served.end();
}

#[test]
fn connections_are_limited_per_user_except_root() {
    const SHARE: usize = 128;
    let g = Gantry::new();
    let open = Open::new();
    let served = g.serve_on(&["--listen", &open.address()]);
    std::fs::set_permissions(open.socket(), Permissions::from_mode(0o666)).unwrap();
    // Whether the server replied on a connection; otherwise it closed the connection.
    let is_answered = |stream: &mut UnixStream| {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(GREETING).and_then(|()| stream.read_exact(&mut [0; 9])).is_ok()
    };
    let mut greedy = Vec::new();
    for uid in [NOBODY, NOBODY - 1] {
        let mut streams = connect_unix_as(&open.socket(), uid, NOBODY, 2 * SHARE);
        assert_eq!(streams.len(), 2 * SHARE);
        assert_eq!(streams.iter_mut().filter_map(|stream| is_answered(stream).then_some(())).count(), SHARE);
        greedy.extend(streams);
    }
    let root: Vec<Api> = (0..20).map(|_| served.api()).collect();
    root.iter().for_each(|api| assert_eq!(api.info().api_version, "1.0.0-alpha"));
    drop((greedy, root));
    served.end();
}
