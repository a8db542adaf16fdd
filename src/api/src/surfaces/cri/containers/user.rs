//! The user of a container, as the kernel has it while the container runs.

use gantry_model::AppState;
use gantry_proto::cri::v1::{ContainerUser, LinuxContainerUser};

/// The user of a container's main process; `None` if it does not run. The requested user is no substitute: parts of it
/// may come from the image.
pub(super) fn read(state: AppState) -> Option<ContainerUser> {
    match state {
        AppState::Started { pid, .. } => Some(ContainerUser { linux: Some(read_process(pid)?) }),
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => None,
    }
}

/// `None`: the process has ended meanwhile.
fn read_process(pid: u32) -> Option<LinuxContainerUser> {
    let read = |file: &str| gantry_host::file::read_lossy(format!("/proc/{pid}/{file}")).ok();
    let (uids, gids) = (parse_map(&read("uid_map")?), parse_map(&read("gid_map")?));
    let LinuxContainerUser { uid, gid, supplemental_groups } = parse(&read("status")?)?;
    let groups = supplemental_groups.into_iter().map(|gid| inside(gid, &gids)).collect();
    Some(LinuxContainerUser { uid: inside(uid, &uids), gid: inside(gid, &gids), supplemental_groups: groups })
}

/// The real ids in `/proc/PID/status` (proc_pid_status(5)), which are those of the host.
fn parse(status: &str) -> Option<LinuxContainerUser> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let first = |name: &str| field(name)?.split_ascii_whitespace().next()?.parse().ok();
    let groups = field("Groups:")?.split_ascii_whitespace().map(|gid| gid.parse().ok()).collect::<Option<_>>()?;
    Some(LinuxContainerUser { uid: first("Uid:")?, gid: first("Gid:")?, supplemental_groups: groups })
}

/// The lines of `/proc/PID/uid_map` (user_namespaces(7)): the first id in the namespace, that on the host, the length.
fn parse_map(map: &str) -> Vec<[i64; 3]> {
    let numbers = |line: &str| line.split_ascii_whitespace().map(|text| text.parse().ok()).collect::<Option<Vec<_>>>();
    map.lines().filter_map(|line| <[i64; 3]>::try_from(numbers(line)?).ok()).collect()
}

/// An id of the host in the user namespace; one that the namespace lacks is shown as it is.
fn inside(id: i64, map: &[[i64; 3]]) -> i64 {
    let mapped = |[first, host, length]: &[i64; 3]| (*host..host + length).contains(&id).then(|| first + id - host);
    map.iter().find_map(mapped).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_process() {
        let status = "Name:\ta\nUid:\t1001\t0\t0\t0\nGid:\t1002\t0\t0\t0\nGroups:\t1002 1234 \n";
        let user = LinuxContainerUser { uid: 1001, gid: 1002, supplemental_groups: vec![1002, 1234] };
        assert_eq!(parse(status), Some(user));
        assert_eq!(parse("Name:\ta\n"), None);
        let map = parse_map("         0     100000      65536\n     70000  4000 1\n");
        assert_eq!([inside(100_000, &map), inside(101_001, &map), inside(4000, &map)], [0, 1001, 70_000]);
        assert_eq!(inside(99_999, &map), 99_999);
        assert_eq!(inside(7, &parse_map("         0          0 4294967295\n")), 7);
    }
}
