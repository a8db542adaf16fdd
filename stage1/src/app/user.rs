//! Looks up users and groups in the image's passwd(5) and group(5), strictly.
//!
//! The files are hostile: opened beneath the root without following anything out of it, only regular files, at most
//! 1 MiB. Numbers are digits only and below 2^32 - 1 (containerd CVE-2024-40635); a name that two lines give different
//! numbers is refused.

use std::os::fd::OwnedFd;

use gantry_contract::plan::App;
use gantry_host::file::read_stream;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::spec::GroupsPolicy;
use rustix::fs::{FileType, OFlags};

use crate::failure::{Attempt, Result, failure};
use crate::files::root::open_in;
use crate::pod::user_namespace::UserNamespace;

/// Maximum size of passwd and group, in bytes.
const MAX_FILE_SIZE: i64 = 1 << 20;
/// Maximum number of supplementary groups of a process.
const MAX_GROUPS: usize = 1024;

/// The user and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    /// User number.
    pub(crate) uid: u32,
    /// Group number.
    pub(crate) gid: u32,
    /// Supplementary groups, sorted, without duplicates.
    pub(crate) groups: Vec<u32>,
    /// Home directory; `/` if the user is not in the image.
    pub(crate) home: String,
}

/// The user and groups that an app or an exec is to have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UserRequest<'a> {
    /// The user as in a plan; `None`: root.
    pub(crate) user: Option<&'a str>,
    /// The group as in a plan; `None`: the user's.
    pub(crate) group: Option<&'a str>,
    /// Supplementary groups.
    pub(crate) further: &'a [u32],
    /// The names of further ones.
    pub(crate) further_names: &'a [String],
    /// Which groups the image adds.
    pub(crate) policy: GroupsPolicy,
    /// The pod's user namespace, in which the ids must exist.
    pub(crate) namespace: Option<&'a UserNamespace>,
}

impl<'a> UserRequest<'a> {
    /// That of an app.
    pub(crate) fn of_app(app: &'a App, namespace: Option<&'a UserNamespace>) -> Self {
        Self {
            user: app.user.as_deref(),
            group: app.group.as_deref(),
            further: &app.options.supplementary_gids,
            further_names: &app.options.supplementary_groups,
            policy: app.options.groups_policy,
            namespace,
        }
    }
}

/// Resolves a user and groups in the image at `root`. The owners of files there are those of the host.
pub(crate) fn resolve(root: &OwnedFd, request: &UserRequest<'_>) -> Result<Ids> {
    let UserRequest { user, group, further, further_names, policy, namespace } = *request;
    let (user, own_group) = match user {
        Some(text) if !text.starts_with('/') => match text.split_once(':').filter(|parts| *parts != ("", "")) {
            // As with docker, an empty part has its default.
            Some((user, group)) => (Some(user).filter(|it| !it.is_empty()), Some(group).filter(|it| !it.is_empty())),
            None => (Some(text), None),
        },
        other => (other, None),
    };
    let given = group.or(own_group);
    let passwd = read_accounts(root, "etc/passwd", user.is_some_and(is_name))?;
    let groups = read_accounts(root, "etc/group", given.is_some_and(is_name) || !further_names.is_empty())?;
    let found = find_user(root, &passwd, user.unwrap_or("0"), namespace)?;
    let mut all: Vec<u32> = further.to_vec();
    for name in further_names {
        all.push(find_group(root, &groups, name, namespace)?);
    }
    let gid = match given {
        Some(text) => find_group(root, &groups, text, namespace)?,
        None => found.gid,
    };
    let has_memberships = match policy {
        // As with docker and podman, an explicit group excludes the user's other groups.
        GroupsPolicy::UnlessGroup => given.is_none(),
        GroupsPolicy::Merge => true,
        GroupsPolicy::Strict => false,
    };
    if has_memberships {
        all.extend(found.name.iter().flat_map(|name| memberships(&groups, name)));
    }
    // The primary group is a supplementary group too, as with docker and podman (CVE-2022-36109). Otherwise a process
    // could leave it through a set-group-ID program, and escape permissions that deny access to the group.
    all.push(gid);
    all.sort_unstable();
    all.dedup();
    if all.len() > MAX_GROUPS {
        return Err(failure(
            ErrorKind::Invalid,
            format!("{} supplementary groups are too many: {MAX_GROUPS} is the limit", all.len()),
        ));
    }
    let ids = Ids { uid: found.uid, gid, groups: all, home: found.home };
    namespace.map_or(Ok(()), |namespace| namespace.check(&ids))?;
    Ok(ids)
}

/// A user of the image.
struct ImageUser {
    name: Option<String>,
    uid: u32,
    gid: u32,
    home: String,
}

/// An entry of passwd(5) or group(5).
struct AccountEntry<'a> {
    name: &'a str,
    id: u32,
    rest: Vec<&'a str>,
}

/// The entries of passwd(5) and group(5): `name:password:number:…`. Other lines are ignored.
fn entries(text: &str) -> impl Iterator<Item = AccountEntry<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let id = number(fields.nth(1)?)?;
        Some(AccountEntry { name, id, rest: fields.collect() })
    })
}

/// Parses a user or group number: digits only, and not 2^32 - 1, which means "unchanged" in system calls.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    text.parse().ok().filter(|&id| digits && id != u32::MAX)
}

/// Whether a user or a group is named, and not a number or the owner of a path.
fn is_name(text: &str) -> bool {
    !text.starts_with('/') && number(text).is_none()
}

/// The entry with this name; an error if several have different numbers.
fn by_name<'a>(text: &'a str, what: &str, name: &str) -> Result<Option<AccountEntry<'a>>> {
    let mut matching = entries(text).filter(|entry| entry.name == name);
    let first = matching.next();
    if let Some(entry) = &first
        && matching.any(|other| other.id != entry.id)
    {
        return Err(failure(
            ErrorKind::Invalid,
            format!("the image gives {what} '{}' two different numbers", shown(name)),
        ));
    }
    Ok(first)
}

fn find_user(root: &OwnedFd, passwd: &str, text: &str, namespace: Option<&UserNamespace>) -> Result<ImageUser> {
    if text.starts_with('/') {
        let (uid, gid) = owner(root, text, namespace)?;
        return Ok(ImageUser { name: None, uid, gid, home: home_of(passwd, uid) });
    }
    let all_digits = text.bytes().all(|c| c.is_ascii_digit());
    let entry = match number(text) {
        Some(uid) => entries(passwd).find(|entry| entry.id == uid),
        None if all_digits => return Err(unknown("user", text)),
        None => Some(by_name(passwd, "user", text)?.ok_or_else(|| unknown("user", text))?),
    };
    match (entry, number(text)) {
        (Some(entry), _) => Ok(ImageUser {
            name: Some(entry.name.to_owned()),
            uid: entry.id,
            gid: entry.rest.first().and_then(|text| number(text)).unwrap_or(0),
            home: checked_home(entry.rest.get(2).copied()),
        }),
        (None, Some(uid)) => Ok(ImageUser { name: None, uid, gid: 0, home: "/".to_owned() }),
        (None, None) => Err(unknown("user", text)),
    }
}

fn find_group(root: &OwnedFd, groups: &str, text: &str, namespace: Option<&UserNamespace>) -> Result<u32> {
    if text.starts_with('/') {
        return owner(root, text, namespace).map(|(_, gid)| gid);
    }
    if let Some(gid) = number(text) {
        return Ok(gid);
    }
    by_name(groups, "group", text)?.map(|entry| entry.id).ok_or_else(|| unknown("group", text))
}

fn memberships<'a>(groups: &'a str, user: &'a str) -> impl Iterator<Item = u32> + 'a {
    entries(groups)
        .filter(move |entry| entry.rest.first().is_some_and(|members| members.split(',').any(|name| name == user)))
        .map(|entry| entry.id)
}

fn home_of(passwd: &str, uid: u32) -> String {
    checked_home(entries(passwd).find(|entry| entry.id == uid).and_then(|entry| entry.rest.get(2).copied()))
}

/// The home directory if it can be the value of HOME, else `/`.
fn checked_home(home: Option<&str>) -> String {
    home.filter(|home| home.starts_with('/') && !home.chars().any(char::is_control)).unwrap_or("/").to_owned()
}

fn unknown(what: &str, text: &str) -> gantry_contract::Failure {
    failure(
        ErrorKind::Invalid,
        format!("{what} '{}' is neither in the image nor a number below 4294967295", shown(text)),
    )
}

fn owner(root: &OwnedFd, path: &str, namespace: Option<&UserNamespace>) -> Result<(u32, u32)> {
    let what = || format!("cannot look up the owner of '{}' in the image", shown(path));
    let fd = open_in(root, path, OFlags::PATH).attempt(what)?;
    let stat = rustix::fs::fstat(&fd).attempt(what)?;
    let Some(namespace) = namespace else { return Ok((stat.st_uid, stat.st_gid)) };
    let ids = (namespace.ids.uids.to_pod(stat.st_uid), namespace.ids.gids.to_pod(stat.st_gid));
    let why = "its owner has no id in the pod's user namespace";
    let (Some(uid), Some(gid)) = ids else {
        return Err(failure(ErrorKind::Invalid, format!("cannot run as the owner of '{}': {why}", shown(path))));
    };
    Ok((uid, gid))
}

/// Reads passwd or group. Without a name to look up, a file that cannot be read counts as missing: an app cannot keep
/// root out of it by replacing its own passwd.
fn read_accounts(root: &OwnedFd, path: &str, is_required: bool) -> Result<String> {
    match read(root, path) {
        Err(why) if !is_required => {
            tracing::warn!(why = why.message, "home directory and groups of the image are not used");
            Ok(String::new())
        }
        other => other,
    }
}

/// Reads a small text file of the image, with replacements for invalid UTF-8. A missing file is empty.
fn read(root: &OwnedFd, path: &str) -> Result<String> {
    let what = || format!("cannot read /{path} of the image");
    let fd = match open_in(root, path, OFlags::RDONLY) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(String::new()),
        other => other.attempt(what)?,
    };
    let stat = rustix::fs::fstat(&fd).attempt(what)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failure(ErrorKind::Invalid, format!("/{path} of the image is not a regular file")));
    }
    if stat.st_size > MAX_FILE_SIZE {
        return Err(failure(
            ErrorKind::Invalid,
            format!("/{path} of the image has {} bytes; {MAX_FILE_SIZE} is the limit", stat.st_size),
        ));
    }
    let bytes = read_stream(std::fs::File::from(fd), MAX_FILE_SIZE.unsigned_abs()).attempt(what)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:1000:1001::/home/web:/bin/sh\ntwin:x:5:5::/:\ntwin:x:6:6::/:\nbad:x:4294967295:1::/:\nevil:x:9:9::/a\x01b:\n";
    const GROUP: &str = "root:x:0:\nwww:x:33:web,other\nweb:x:1001:\nplugdev:x:46:web\n";

    fn named(user: &str) -> UserRequest<'_> {
        UserRequest { user: Some(user), ..UserRequest::default() }
    }

    fn image() -> (std::path::PathBuf, OwnedFd) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("gantry-user-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("etc")).unwrap();
        std::fs::write(dir.join("etc/passwd"), PASSWD).unwrap();
        std::fs::write(dir.join("etc/group"), GROUP).unwrap();
        let fd = rustix::fs::open(&dir, OFlags::DIRECTORY, Mode::empty()).unwrap();
        (dir, fd)
    }

    #[test]
    fn users_and_groups_are_resolved() {
        let (dir, root) = image();
        type Want<'a> = (u32, u32, &'a [u32], &'a str);
        let rows: [(Option<&str>, Option<&str>, Option<Want<'_>>); 21] = [
            (None, None, Some((0, 0, &[0], "/root"))),
            (Some("web"), None, Some((1000, 1001, &[33, 46, 1001], "/home/web"))),
            (Some("1000"), None, Some((1000, 1001, &[33, 46, 1001], "/home/web"))),
            (Some("web:www"), None, Some((1000, 33, &[33], "/home/web"))),
            (Some("web:7"), None, Some((1000, 7, &[7], "/home/web"))),
            (Some("4000"), None, Some((4000, 0, &[0], "/"))),
            (Some("web"), Some("root"), Some((1000, 0, &[0], "/home/web"))),
            (Some("evil"), None, Some((9, 9, &[9], "/"))),
            (Some("4294967295"), None, None),
            (Some("4294967296"), None, None),
            (Some("-1"), None, None),
            (Some(""), None, None),
            (Some("web:"), None, Some((1000, 1001, &[33, 46, 1001], "/home/web"))),
            (Some(":33"), None, Some((0, 33, &[33], "/root"))),
            (Some(":nogroup"), None, None),
            (Some(":"), None, None),
            (Some("0x0"), None, None),
            (Some("root\n"), None, None),
            (Some("nobody"), None, None),
            (Some("twin"), None, None),
            (Some("web"), Some("nogroup"), None),
        ];
        for (user, group, want) in rows {
            let got = resolve(&root, &UserRequest { user, group, ..UserRequest::default() }).ok();
            let want =
                want.map(|(uid, gid, groups, home)| Ids { uid, gid, groups: groups.to_vec(), home: home.to_owned() });
            assert_eq!(got, want, "{user:?} {group:?}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn policy_decides_on_groups_of_image() {
        let (dir, root) = image();
        for (policy, group, want) in [
            (GroupsPolicy::UnlessGroup, Some("1001"), &[5, 1001][..]),
            (GroupsPolicy::UnlessGroup, None, &[5, 33, 46, 1001]),
            (GroupsPolicy::Merge, Some("1001"), &[5, 33, 46, 1001]),
            (GroupsPolicy::Strict, None, &[5, 1001]),
        ] {
            let user = Some("1000");
            let request = UserRequest { user, group, further: &[5], policy, ..UserRequest::default() };
            assert_eq!(resolve(&root, &request).unwrap().groups, want, "{policy:?} {group:?}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn further_groups_are_found_by_name() {
        let (dir, root) = image();
        let groups = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let request = UserRequest { further: &[5], further_names: &names, ..UserRequest::default() };
            resolve(&root, &request).map(|ids| ids.groups)
        };
        assert_eq!(groups(&["www", "plugdev"]).ok(), Some(vec![0, 5, 33, 46]));
        let why = groups(&["www", "absent"]).unwrap_err().message;
        assert!(why.contains("group 'absent' is neither in the image"), "{why}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_hostile_passwd_neither_blocks_nor_escapes() {
        let (dir, root) = image();
        let passwd = dir.join("etc/passwd");
        std::fs::remove_file(&passwd).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &passwd, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(resolve(&root, &named("web")).is_err(), "a FIFO");
        assert_eq!(
            resolve(&root, &named("1000:7")).ok().map(|ids| (ids.uid, ids.gid, ids.groups)),
            Some((1000, 7, vec![7]))
        );
        std::fs::remove_file(&passwd).unwrap();
        std::os::unix::fs::symlink("/etc/shadow", &passwd).unwrap();
        assert!(resolve(&root, &named("root")).is_err(), "a link to a file that the image lacks");
        std::fs::remove_file(&passwd).unwrap();
        std::fs::File::create(&passwd).unwrap().set_len(2 << 20).unwrap();
        assert!(resolve(&root, &named("web")).is_err(), "too large");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
