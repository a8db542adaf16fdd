//! What a pod has of its networks, written down in its directory: before the first of it is made, until the last is gone.
//!
//! The file has a line of JSON with what is going to be made, which is there whole or not at all (`rename(2)`), and then a line for
//! each change: what came of it, and that it is being taken away. Lines are added and not replaced: to rename over a file makes
//! ext4 write it to the disk, which takes milliseconds. A line that a kill cut short says nothing, and what it would have said
//! was not done yet.
//!
//! Nothing is synced: a reboot ends the pod and what it had in this kernel. After one the file says what plugins may still keep
//! on disk; torn by a power loss it says nothing, and then [`super::sweep`] goes by what is there.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::files::NETWORK;
use gantry_contract::network::{Attached, Host};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::entries::Written;
use super::error::{NetworkError, Result};
use crate::config::{NetworkConfig, Source, files, is_name};
use crate::netlink::Namespace;
use crate::nft::State;
use crate::plugin::Attachment;

/// Of this form of a record.
const VERSION: u32 = 1;
/// A file being written.
const NEW: &str = ".network.json.new";
/// The most bytes of a record: some networks, each with its configuration of up to a mebibyte.
const MAX_RECORD: usize = 16 * 1024 * 1024;
/// The most bytes of one line of it.
const MAX_LINE: usize = MAX_RECORD / 4;
/// The most pods of a host.
const MAX_PODS: usize = 1024 * 1024;

/// A pod's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// The boot it is true within.
    pub(super) boot: String,
    pub(super) pod: String,
    /// When it was begun, in nanoseconds since the boot: of two that want the same, the first has it.
    #[serde(default)]
    pub(super) since: u64,
    #[serde(skip)]
    pub(super) state: Standing,
    /// As the supervisor was told.
    pub(super) host: Host,
    /// The pod's network namespace, while its supervisor lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<Place>,
    pub(super) networks: Vec<Joined>,
    #[serde(skip)]
    entries: Written,
    /// What it got, when all of it was there.
    #[serde(skip)]
    pub(super) attached: Vec<Attached>,
    /// A change was not understood, so that there may be more in the tables than this says.
    #[serde(skip)]
    pub(super) torn: bool,
}

/// Whether a pod's entries belong in the tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Standing {
    #[default]
    Up,
    /// It is being taken away.
    Down,
}

/// A later line of a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    /// Everything was made, and its entries are to be added.
    Got { entries: Written, attached: Vec<Attached> },
    /// It is being taken away.
    Down {},
}

/// A network namespace: a path to it, and how to know that it still is the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) path: String,
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl Place {
    /// Whether the path still leads to the namespace it did: a number of a process comes again.
    pub(super) fn is_there(&self) -> bool {
        let Ok(namespace) = Namespace::at(self.path.as_ref()) else { return false };
        rustix::fs::fstat(namespace.as_fd()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }
}

/// A network of the pod.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Joined {
    pub(super) name: String,
    pub(super) interface: String,
    /// Run by plugins, and not by us.
    pub(super) plugins: bool,
    /// Where it was configured, for people.
    #[serde(default)]
    pub(super) source: String,
    /// The configuration as it was then.
    pub(super) text: String,
    #[serde(default)]
    pub(super) args: Vec<(String, String)>,
    #[serde(default)]
    pub(super) capability_args: Map<String, Value>,
    #[serde(default)]
    pub(super) cni_args: Map<String, Value>,
}

impl Joined {
    pub(super) fn config(&self) -> Result<NetworkConfig> {
        Ok(NetworkConfig::parse(&self.text, Source::File(format!("{} (as kept with the pod)", self.source).into()))?)
    }

    /// The attachment as its ADD got it.
    pub(super) fn attachment(&self, pod: &str, netns: Option<String>) -> Attachment {
        Attachment {
            container_id: pod.to_owned(),
            netns,
            interface: self.interface.clone(),
            args: self.args.clone(),
            capability_args: self.capability_args.clone(),
            cni_args: self.cni_args.clone(),
        }
    }
}

/// What there is of a record.
#[derive(Debug)]
pub(super) enum Found {
    Whole(Box<Record>),
    /// Why it cannot be understood.
    Damaged(String),
    /// It is of this later version.
    Newer(u32),
}

impl Record {
    /// The intent.
    pub(super) fn new(pod: &str, host: &Host, boot: String, networks: Vec<Joined>) -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let since =
            seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default());
        Self {
            version: VERSION,
            boot,
            pod: pod.to_owned(),
            since,
            state: Standing::Up,
            host: host.clone(),
            namespace: None,
            networks,
            entries: Written::default(),
            attached: Vec::new(),
            torn: false,
        }
    }

    /// Its part of the tables.
    pub(super) fn entries(&self) -> Result<State> {
        let damaged = |problem| NetworkError::Damaged { pod: self.pod.clone(), problem };
        self.entries.state(&self.pod).map_err(damaged)
    }

    /// Writes it into the pod's directory, in the place of an earlier one. What a kill leaves: nothing, but perhaps a file that
    /// means nothing and that the next writer takes over.
    pub(super) fn write(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let text = self.line(self)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(dir, NEW, flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(NetworkError::errno(self.doing()))?;
        std::fs::File::from(fd).write_all(&text).map_err(NetworkError::file(self.doing()))?;
        rustix::fs::renameat(dir, NEW, dir, NETWORK).map_err(NetworkError::errno(self.doing()))
    }

    /// Adds what came of it, before the entries are added to the tables.
    pub(super) fn got(&mut self, dir: BorrowedFd<'_>, entries: &State, attached: Vec<Attached>) -> Result<()> {
        self.entries = Written::of(entries);
        self.attached.clone_from(&attached);
        self.add(dir, &Change::Got { entries: self.entries.clone(), attached })
    }

    /// Adds that it is being taken away, before the entries are.
    pub(super) fn down(&mut self, dir: BorrowedFd<'_>) -> Result<()> {
        if self.state == Standing::Down {
            return Ok(());
        }
        self.state = Standing::Down;
        self.add(dir, &Change::Down {})
    }

    fn add(&self, dir: BorrowedFd<'_>, change: &Change) -> Result<()> {
        // Behind what a kill may have cut short.
        let mut text = b"\n".to_vec();
        text.append(&mut self.line(change)?);
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat2(dir, NETWORK, flags, Mode::empty(), beneath());
        let fd = fd.map_err(NetworkError::errno(self.doing()))?;
        std::fs::File::from(fd).write_all(&text).map_err(NetworkError::file(self.doing()))
    }

    fn line(&self, what: &impl Serialize) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(what).map_err(|error| NetworkError::file(self.doing())(error.into()))?;
        if text.len() > MAX_LINE {
            let source = std::io::Error::new(std::io::ErrorKind::FileTooLarge, "its configurations are too long");
            return Err(NetworkError::File { doing: self.doing(), source });
        }
        Ok(text)
    }

    fn doing(&self) -> String {
        format!("write the record of the networks of pod {}", self.pod)
    }

    fn change(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Change>(line) {
            Ok(Change::Got { entries, attached }) => (self.entries, self.attached) = (entries, attached),
            Ok(Change::Down {}) => self.state = Standing::Down,
            Err(_) => self.torn = true,
        }
    }
}

/// Removes a pod's record, and what a killed writer left of one.
pub(super) fn remove(dir: BorrowedFd<'_>) -> Result<()> {
    for name in [NEW, NETWORK] {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(NetworkError::errno(format!("remove the file '{name}' of a pod"))(errno)),
        }
    }
    Ok(())
}

/// The record in a pod's directory; None if there is none.
pub(super) fn read(dir: BorrowedFd<'_>, pod: &str) -> Result<Option<Found>> {
    read_at(dir, NETWORK, pod)
}

fn read_at(dir: BorrowedFd<'_>, path: &str, pod: &str) -> Result<Option<Found>> {
    let doing = || format!("read the record of the networks of pod {pod}");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match rustix::fs::openat2(dir, path, flags, Mode::empty(), beneath()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => return Ok(Some(Found::Damaged("it is a link".into()))),
        other => other.map_err(NetworkError::errno(doing()))?,
    };
    let kind = rustix::fs::fstat(&fd).map_err(NetworkError::errno(doing()))?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Ok(Some(Found::Damaged("it is no regular file".into())));
    }
    let Some(bytes) = files::read(fd.into(), MAX_RECORD).map_err(NetworkError::file(doing()))? else {
        return Ok(Some(Found::Damaged(format!("it has more than {MAX_RECORD} bytes"))));
    };
    Ok(Some(parse(&bytes, pod)))
}

fn parse(bytes: &[u8], pod: &str) -> Found {
    /// What every version has.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match serde_json::from_slice::<Versioned>(first) {
        Ok(Versioned { version }) if version > VERSION => return Found::Newer(version),
        Ok(_) => {}
        Err(error) => return Found::Damaged(error.to_string()),
    }
    let mut record = match serde_json::from_slice::<Record>(first) {
        Ok(record) if record.pod != pod => return Found::Damaged("it is another pod's".into()),
        Ok(record) => record,
        Err(error) => return Found::Damaged(error.to_string()),
    };
    lines.for_each(|line| record.change(line));
    match record.entries() {
        Ok(_) => Found::Whole(Box::new(record)),
        Err(error) => Found::Damaged(error.to_string()),
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// The records of a gantry's pods.
pub(super) struct Records {
    /// None: there is no such directory, so there are no pods.
    dir: Option<OwnedFd>,
}

impl Records {
    pub(super) fn open(host: &Host) -> Result<Self> {
        match files::open_dir(host.pods_dir.as_ref()) {
            Ok(dir) => Ok(Self { dir: Some(dir) }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self { dir: None }),
            Err(error) => Err(NetworkError::file(format!("open the directory {}", host.pods_dir))(error)),
        }
    }

    /// Whether a pod has a record, looked up now.
    pub(super) fn has(&self, pod: &str) -> Result<bool> {
        let Some(dir) = self.dir.as_ref().filter(|_| is_name(pod)) else { return Ok(false) };
        match rustix::fs::statat(dir, format!("{pod}/{NETWORK}"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(NetworkError::errno(format!("look for the record of the networks of pod {pod}"))(errno)),
        }
    }

    /// The pods that have a directory.
    pub(super) fn pods(&self) -> Result<Vec<String>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let names = files::names(dir, MAX_PODS).map_err(NetworkError::file("list the pods"))?;
        let names = names.ok_or_else(|| {
            let source = std::io::Error::other(format!("there are more than {MAX_PODS}"));
            NetworkError::File { doing: "list the pods".into(), source }
        })?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.retain(|name| is_name(name));
        Ok(names)
    }

    /// All records, by pod. One that goes meanwhile is missing.
    pub(super) fn all(&self) -> Result<Vec<(String, Found)>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for pod in self.pods()? {
            if let Some(record) = read_at(dir.as_fd(), &format!("{pod}/{NETWORK}"), &pod)? {
                found.push((pod, record));
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// Those that can be understood, the oldest first.
    pub(super) fn whole(&self) -> Result<Vec<Record>> {
        Ok(self.sorted()?.0)
    }

    /// Those that can be understood, the oldest first; and the pods whose cannot, of which nothing is known but that they may
    /// be running.
    pub(super) fn sorted(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let (mut records, mut others) = (Vec::new(), Vec::new());
        for (pod, found) in self.all()? {
            match found {
                Found::Whole(record) => records.push(*record),
                Found::Damaged(_) | Found::Newer(_) => others.push(pod),
            }
        }
        records.sort_by_key(|record| record.since);
        Ok((records, others))
    }
}

/// This boot's id.
pub(super) fn boot() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    let text = std::fs::read_to_string(path).map_err(NetworkError::file(format!("read {path}")))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
