//! The mounted cgroup hierarchies.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::Cgroup;

/// The version of a hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller, or per set of controllers.
    V1,
    /// The unified hierarchy. On a hybrid host it has only the controllers that no v1 hierarchy has.
    V2,
}

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point: of several, the first that leads to its root.
    pub root: PathBuf,
    /// Its version.
    pub version: Version,
    /// The controllers of a v1 hierarchy as the kernel names them (`cpu`, `cpuacct`, or `name=systemd` for one without
    /// controllers); empty for v2.
    pub controllers: Vec<String>,
    /// The device number of its file system.
    device: u64,
}

/// The cgroup hierarchies of this process's mount namespace.
///
/// # Errors
/// Of reading `/proc/self/mountinfo`.
pub fn mounted_hierarchies() -> io::Result<Vec<Hierarchy>> {
    let mounts = parse_mounts(&crate::file::read_lossy("/proc/self/mountinfo")?);
    Ok(choose_mounts(mounts, |hierarchy| hierarchy.open_dir().is_ok()))
}

/// The cgroup hierarchies in the text of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)), each once. Other lines and
/// malformed ones are skipped.
#[must_use]
pub fn parse_mountinfo(text: &str) -> Vec<Hierarchy> {
    choose_mounts(parse_mounts(text), |_| true)
}

/// One mount of each hierarchy: the first of its root that can be reached, or of a part of it, or else the first.
fn choose_mounts(mounts: Vec<(Hierarchy, bool)>, is_reachable: impl Fn(&Hierarchy) -> bool) -> Vec<Hierarchy> {
    let mut chosen: Vec<Hierarchy> = Vec::new();
    for (hierarchy, _) in &mounts {
        if chosen.iter().any(|other| other.device == hierarchy.device) {
            continue;
        }
        let same = || mounts.iter().filter(|(other, _)| other.device == hierarchy.device);
        // A single mount is not tried: its user finds out.
        let best = match same().nth(1) {
            None => None,
            Some(_) => {
                let whole = same().filter(|(_, is_whole)| *is_whole);
                let mut candidates = whole.chain(same().filter(|(_, is_whole)| !is_whole)).map(|(mount, _)| mount);
                candidates.find(|mount| is_reachable(mount))
            }
        };
        chosen.push(best.unwrap_or(hierarchy).clone());
    }
    chosen
}

fn parse_mounts(text: &str) -> Vec<(Hierarchy, bool)> {
    text.lines().filter_map(parse_mount).collect()
}

/// A mount of a hierarchy, and whether it is of its root.
fn parse_mount(line: &str) -> Option<(Hierarchy, bool)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut file_system = file_system.split(' ');
    let version = match file_system.next()? {
        "cgroup2" => Version::V2,
        "cgroup" => Version::V1,
        _ => return None,
    };
    let mut mount = mount.split(' ').skip(2);
    let (major, minor) = mount.next()?.split_once(':')?;
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let is_whole = mount.next()? == "/";
    let root = PathBuf::from(unescape(mount.next()?));
    let options = file_system.nth(1).unwrap_or("");
    let is_controller = |name: &&str| !matches!(*name, "rw" | "ro" | "xattr" | "noprefix" | "clone_children" | "");
    let controllers = match version {
        Version::V1 => options.split(',').filter(is_controller).map(str::to_owned).collect(),
        Version::V2 => Vec::new(),
    };
    Some((Hierarchy { root, version, controllers, device }, is_whole))
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = text.to_owned();
    for (code, c) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        out = out.replace(code, c);
    }
    out
}

impl Hierarchy {
    /// Whether it is a v1 hierarchy with this controller.
    #[must_use]
    pub fn has_v1_controller(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    /// Opens its root cgroup.
    ///
    /// # Errors
    /// Of open(2); [`io::ErrorKind::NotFound`] also if another file system is mounted over it.
    pub fn open_root(self: &Arc<Self>) -> io::Result<Cgroup> {
        Ok(Cgroup::new(Arc::clone(self), String::new(), self.open_dir()?))
    }

    fn open_dir(&self) -> io::Result<OwnedFd> {
        let dir = rustix::fs::open(&self.root, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        if rustix::fs::fstat(&dir)?.st_dev != self.device {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another file system is mounted over it"));
        }
        Ok(dir)
    }

    /// The path of a process's cgroup in this hierarchy, from the text of its `/proc/PID/cgroup`.
    #[must_use]
    pub fn find_path<'a>(&self, proc_cgroup: &'a str) -> Option<&'a str> {
        proc_cgroup.lines().find_map(|line| {
            let (_, membership) = line.split_once(':')?;
            let (controllers, path) = membership.split_once(':')?;
            let is_this = match self.version {
                Version::V1 => controllers.split(',').any(|name| self.has_v1_controller(name)),
                Version::V2 => controllers.is_empty(),
            };
            is_this.then_some(path)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:5 master:1 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
48 1 0:38 / /run/agent/cgroupv2 rw - cgroup2 none rw
50 1 0:40 / /mnt/cgroup rw - tmpfs cgroup rw
";

    #[test]
    fn finds_each_hierarchy_once() {
        let show = |text: &str| -> Vec<String> {
            let show = |h: &Hierarchy| format!("{} {:?} {}", h.root.display(), h.version, h.controllers.join("+"));
            parse_mountinfo(text).iter().map(show).collect()
        };
        let want = [
            "/sys/fs/cgroup/cpu,cpuacct V1 cpu+cpuacct",
            "/sys/fs/cgroup/memory V1 memory",
            "/sys/fs/cgroup/systemd V1 name=systemd",
            "/sys/fs/cgroup/unified V2 ",
        ];
        assert_eq!(show(HYBRID), want);
        let pure =
            "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";
        assert_eq!(show(pure), ["/sys/fs/cgroup V2 "]);
        assert_eq!(show("1 2 0:3 / /a\\040b rw - cgroup2 none rw"), ["/a b V2 "]);
        assert!(show("garbage\n - \n1 2 3 - cgroup\n1 2 x:y / /a rw - cgroup2 none rw").is_empty());
    }

    #[test]
    fn a_mount_that_can_be_reached_is_preferred() {
        let text = "1 2 0:3 /part /part rw - cgroup2 none rw
1 2 0:3 / /covered rw - cgroup2 none rw
1 2 0:3 / /whole rw - cgroup2 none rw
1 2 0:4 /only /only rw - cgroup cgroup rw,cpu
";
        let roots = |reachable: &[&str]| -> Vec<String> {
            let is_reachable = |mount: &Hierarchy| reachable.iter().any(|path| mount.root == PathBuf::from(path));
            let chosen = choose_mounts(parse_mounts(text), is_reachable);
            chosen.iter().map(|mount| mount.root.display().to_string()).collect()
        };
        assert_eq!(roots(&["/part", "/whole"]), ["/whole", "/only"]);
        assert_eq!(roots(&["/part"]), ["/part", "/only"]);
        assert_eq!(roots(&[]), ["/part", "/only"]);
    }

    #[test]
    fn finds_the_path_of_a_process() {
        let own = "5:cpu,cpuacct:/\n4:memory:/session:1\n3:pids,name=x:/p\n0::/x\n";
        let paths: Vec<_> = parse_mountinfo(HYBRID).iter().map(|hierarchy| hierarchy.find_path(own)).collect();
        assert_eq!(paths, [Some("/"), Some("/session:1"), None, Some("/x")]);
    }

    #[test]
    fn a_covered_mount_point_is_not_found() {
        let (mount, _) = parse_mount("1 2 0:3 / /tmp rw - cgroup2 none rw").unwrap();
        assert_eq!(Arc::new(mount).open_root().unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
