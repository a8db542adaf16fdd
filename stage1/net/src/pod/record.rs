//! The record of a pod's networks (`network.json` in its directory): written before the first resource is created,
//! removed after the last is deleted.
//!
//! The first line of JSON lists what is going to be created; it is written atomically (`rename(2)`). Then follows a
//! line for each change: the result, and that the pod is being detached. Lines are appended, because renaming over a
//! file makes ext4 write it to the disk, which takes milliseconds. A line that was cut short by a kill is ignored: its
//! change had not begun.
//!
//! Nothing is synced: a reboot ends the pod and its resources in the kernel. After a reboot, the record lists what
//! plugins may keep on disk. If a power loss has damaged it, garbage collection ([`super::collect_garbage`]) works
//! without it.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::files::{JOURNAL, NETWORK};
use gantry_contract::network::Host;
use gantry_host::boot::{BOOT_ID, read_boot_id};
use gantry_host::lock::{LockMode, try_lock};
use gantry_model::net::PodNetwork;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::entries::RecordedEntries;
use super::error::{NetworkError, Result};
use crate::config::{NetworkConfig, Source, files, is_name};
use crate::native;
use crate::netlink::Namespace;
use crate::nft::State;
use crate::plugin::Attachment;

/// The version of the format.
const VERSION: u32 = 1;
/// A record being written.
const NEW: &str = ".network.json.new";
/// The maximum size of a record: some networks, each with its configuration of up to a mebibyte.
const MAX_RECORD: usize = 16 * 1024 * 1024;
/// The maximum size of one line.
const MAX_LINE: usize = MAX_RECORD / 4;
/// The maximum number of pods of a host.
const MAX_PODS: usize = 1024 * 1024;

/// A pod's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// The boot that the record belongs to.
    pub(super) boot: String,
    pub(super) pod: String,
    /// When the pod was attached, in nanoseconds since the boot. If two pods conflict, the earlier one wins.
    #[serde(default)]
    pub(super) since: u64,
    #[serde(skip)]
    pub(super) state: RecordState,
    /// The settings of the supervisor.
    pub(super) host: Host,
    /// The pod's network namespace, while its supervisor lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<NamespacePath>,
    pub(super) networks: Vec<NetworkRecord>,
    #[serde(skip)]
    entries: RecordedEntries,
    /// The result, once all networks are attached.
    #[serde(skip)]
    pub(super) attached: Vec<PodNetwork>,
    /// A line was invalid, so the tables may contain more entries of the pod than the record.
    #[serde(skip)]
    pub(super) torn: bool,
}

/// Whether a pod's entries belong in the tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum RecordState {
    #[default]
    Up,
    /// The pod is being detached.
    Down,
}

/// A later line of a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    /// All networks are attached; the entries are added next.
    Got { entries: RecordedEntries, attached: Vec<PodNetwork> },
    /// The pod is being detached.
    Down {},
}

/// A path to a network namespace, and the identity of the namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamespacePath {
    pub(super) path: String,
    pub(super) device: u64,
    pub(super) inode: u64,
}

impl NamespacePath {
    /// Whether the path still leads to the same namespace: process ids are reused.
    pub(super) fn is_valid(&self) -> bool {
        let Ok(namespace) = Namespace::at(self.path.as_ref()) else { return false };
        rustix::fs::fstat(namespace.as_fd()).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }
}

/// A network in a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct NetworkRecord {
    pub(super) name: String,
    pub(super) interface: String,
    /// Created by plugins.
    pub(super) plugins: bool,
    /// The origin of the configuration, for people.
    #[serde(default)]
    pub(super) source: String,
    /// The configuration at the time of ADD.
    pub(super) text: String,
    #[serde(default)]
    pub(super) args: Vec<(String, String)>,
    #[serde(default)]
    pub(super) capability_args: Map<String, Value>,
    #[serde(default)]
    pub(super) cni_args: Map<String, Value>,
}

impl NetworkRecord {
    pub(super) fn config(&self) -> Result<NetworkConfig> {
        let source = if self.source == Source::BuiltIn.to_string() {
            Source::BuiltIn
        } else {
            Source::File(format!("{} (as kept with the pod)", self.source).into())
        };
        Ok(NetworkConfig::parse(&self.text, source)?)
    }

    /// Whether plugins created it and the host may have to forward its packets. A configuration that can no longer be
    /// read may need that: only the plugins know the network.
    pub(super) fn may_be_forwarded_by_plugins(&self) -> bool {
        self.plugins && self.config().map_or(true, |network| native::may_be_forwarded(&network))
    }

    /// The attachment that was passed to ADD.
    pub(super) fn attachment(&self, pod: &str, netns: Option<String>) -> Attachment {
        Attachment {
            container_id: pod.to_owned(),
            netns,
            interface: self.interface.clone(),
            args: self.args.clone(),
            capability_args: self.capability_args.clone(),
            cni_args: self.cni_args.clone(),
            preferred_addresses: Vec::new(),
        }
    }
}

/// A record and its state when it was read.
#[derive(Debug)]
pub(super) enum RecordFile {
    Valid(Box<Record>),
    /// It is damaged; the problem.
    Damaged(String),
    /// A later gantry wrote it; its version.
    Newer(u32),
}

impl Record {
    /// Whether the pod is up in this boot.
    pub(super) fn is_up(&self, boot: &str) -> bool {
        self.state == RecordState::Up && self.boot == boot
    }

    /// A record from before anything is created.
    pub(super) fn new(pod: &str, host: &Host, boot: String, networks: Vec<NetworkRecord>) -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        let since =
            seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or_default());
        Self {
            version: VERSION,
            boot,
            pod: pod.to_owned(),
            since,
            state: RecordState::Up,
            host: host.clone(),
            namespace: None,
            networks,
            entries: RecordedEntries::default(),
            attached: Vec::new(),
            torn: false,
        }
    }

    /// Whether the host may have to forward packets of a network that plugins created for the pod.
    pub(super) fn may_be_forwarded_by_plugins(&self) -> bool {
        self.networks.iter().any(NetworkRecord::may_be_forwarded_by_plugins)
    }

    /// The firewall entries of the pod.
    pub(super) fn entries(&self) -> Result<State> {
        self.entries.to_state(&self.pod).map_err(|problem| NetworkError::damaged(&self.pod, &problem))
    }

    /// Writes the record into the pod's directory, replacing an earlier one. A kill may leave a temporary file, which
    /// the next writer replaces.
    pub(super) fn write(&self, dir: BorrowedFd<'_>) -> Result<()> {
        let text = self.to_line(self)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(dir, NEW, flags, Mode::RUSR | Mode::WUSR);
        let fd = fd.map_err(NetworkError::io(self.doing()))?;
        std::fs::File::from(fd).write_all(&text).map_err(NetworkError::io(self.doing()))?;
        rustix::fs::renameat(dir, NEW, dir, NETWORK).map_err(NetworkError::io(self.doing()))
    }

    /// Appends the result, before the entries are added to the tables.
    pub(super) fn append_result(
        &mut self,
        dir: BorrowedFd<'_>,
        entries: &State,
        attached: Vec<PodNetwork>,
    ) -> Result<()> {
        self.entries = RecordedEntries::from_state(entries);
        self.attached.clone_from(&attached);
        self.append(dir, &Change::Got { entries: self.entries.clone(), attached })
    }

    /// Appends that the pod is being detached, before its entries are removed.
    pub(super) fn append_down(&mut self, dir: BorrowedFd<'_>) -> Result<()> {
        if self.state == RecordState::Down {
            return Ok(());
        }
        self.state = RecordState::Down;
        self.append(dir, &Change::Down {})
    }

    fn append(&self, dir: BorrowedFd<'_>, change: &Change) -> Result<()> {
        // After a line that a kill may have cut short.
        let mut text = b"\n".to_vec();
        text.append(&mut self.to_line(change)?);
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat2(dir, NETWORK, flags, Mode::empty(), beneath());
        let fd = fd.map_err(NetworkError::io(self.doing()))?;
        std::fs::File::from(fd).write_all(&text).map_err(NetworkError::io(self.doing()))
    }

    fn to_line(&self, value: &impl Serialize) -> Result<Vec<u8>> {
        let text = serde_json::to_vec(value).map_err(NetworkError::io(self.doing()))?;
        if text.len() > MAX_LINE {
            let source = std::io::Error::new(std::io::ErrorKind::FileTooLarge, "its configurations are too long");
            return Err(NetworkError::io(self.doing())(source));
        }
        Ok(text)
    }

    fn doing(&self) -> String {
        format!("write the record of the networks of pod {}", self.pod)
    }

    fn apply(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Change>(line) {
            Ok(Change::Got { entries, attached }) => (self.entries, self.attached) = (entries, attached),
            Ok(Change::Down {}) => self.state = RecordState::Down,
            Err(_) => self.torn = true,
        }
    }
}

/// Removes a pod's record, and the temporary file of a killed writer.
pub(super) fn remove(dir: BorrowedFd<'_>) -> Result<()> {
    for name in [NEW, NETWORK] {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(NetworkError::io(format!("remove the file '{name}' of a pod"))(errno)),
        }
    }
    Ok(())
}

/// Reads the record in a pod's directory; `None` if there is none.
pub(super) fn read(dir: BorrowedFd<'_>, pod: &str) -> Result<Option<RecordFile>> {
    read_at(dir, NETWORK, pod)
}

fn read_at(dir: BorrowedFd<'_>, path: &str, pod: &str) -> Result<Option<RecordFile>> {
    let doing = || format!("read the record of the networks of pod {pod}");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = match rustix::fs::openat2(dir, path, flags, Mode::empty(), beneath()) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP) => return Ok(Some(RecordFile::Damaged("it is a link".into()))),
        other => other.map_err(NetworkError::io(doing()))?,
    };
    let kind = rustix::fs::fstat(&fd).map_err(NetworkError::io(doing()))?.st_mode;
    if FileType::from_raw_mode(kind) != FileType::RegularFile {
        return Ok(Some(RecordFile::Damaged("it is not a regular file".into())));
    }
    let Some(bytes) = files::read(fd.into(), MAX_RECORD).map_err(NetworkError::io(doing()))? else {
        return Ok(Some(RecordFile::Damaged(format!("it has more than {MAX_RECORD} bytes"))));
    };
    Ok(Some(parse(&bytes, pod)))
}

fn parse(bytes: &[u8], pod: &str) -> RecordFile {
    /// The part that every version has.
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    match serde_json::from_slice::<Versioned>(first) {
        Ok(Versioned { version }) if version > VERSION => return RecordFile::Newer(version),
        Ok(_) => {}
        Err(error) => return RecordFile::Damaged(error.to_string()),
    }
    let mut record = match serde_json::from_slice::<Record>(first) {
        Ok(record) if record.pod != pod => return RecordFile::Damaged("it belongs to another pod".into()),
        Ok(record) => record,
        Err(error) => return RecordFile::Damaged(error.to_string()),
    };
    lines.for_each(|line| record.apply(line));
    match record.entries() {
        Ok(_) => RecordFile::Valid(Box::new(record)),
        Err(error) => RecordFile::Damaged(error.to_string()),
    }
}

fn beneath() -> ResolveFlags {
    ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS
}

/// A locked pod whose supervisor is dead.
pub(super) struct DeadPod {
    /// Its directory. Closing it releases the lock.
    pub(super) dir: OwnedFd,
    pub(super) record: RecordFile,
}

/// The records of all pods.
pub(super) struct Records {
    /// `None`: the directory does not exist, so there are no pods.
    dir: Option<OwnedFd>,
}

impl Records {
    pub(super) fn open(host: &Host) -> Result<Self> {
        match files::open_dir(host.pods_dir.as_ref()) {
            Ok(dir) => Ok(Self { dir: Some(dir) }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self { dir: None }),
            Err(error) => Err(NetworkError::io(format!("open the directory {}", host.pods_dir))(error)),
        }
    }

    /// Looks up whether a pod has a record.
    pub(super) fn has(&self, pod: &str) -> Result<bool> {
        let Some(dir) = self.dir.as_ref().filter(|_| is_name(pod)) else { return Ok(false) };
        match rustix::fs::statat(dir, format!("{pod}/{NETWORK}"), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(NetworkError::io(format!("look for the record of the networks of pod {pod}"))(errno)),
        }
    }

    /// Whether the record of a pod says that it is up in this boot.
    pub(super) fn is_up(&self, pod: &str, boot: &str) -> Result<bool> {
        Ok(matches!(self.read(pod)?, Some(RecordFile::Valid(record)) if record.is_up(boot)))
    }

    fn read(&self, pod: &str) -> Result<Option<RecordFile>> {
        let Some(dir) = self.dir.as_ref().filter(|_| is_name(pod)) else { return Ok(None) };
        read_at(dir.as_fd(), &format!("{pod}/{NETWORK}"), pod)
    }

    /// Locks a pod whose supervisor is dead, and reads its record. `None`: its supervisor lives, another process is
    /// just detaching or starting it, or it has no record.
    pub(super) fn take_dead(&self, pod: &str) -> Result<Option<DeadPod>> {
        let Some(dir) = self.lock_dead(pod)? else { return Ok(None) };
        let record = read(dir.as_fd(), pod)?;
        Ok(record.map(|record| DeadPod { dir, record }))
    }

    /// Locks a pod whose supervisor is dead; a live one holds the lock. `None`: the pod is locked, or has no directory.
    /// Closing the returned directory releases the lock.
    pub(super) fn lock_dead(&self, pod: &str) -> Result<Option<OwnedFd>> {
        let Some(parent) = self.dir.as_ref().filter(|_| is_name(pod)) else { return Ok(None) };
        let doing = || format!("lock the directory of pod {pod}");
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = match rustix::fs::openat2(parent, pod, flags, Mode::empty(), beneath()) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.map_err(NetworkError::io(doing()))?,
        };
        let is_locked = try_lock(&dir, LockMode::Exclusive).map_err(NetworkError::io(doing()))?;
        Ok(is_locked.then_some(dir))
    }

    /// Whether a pod has a journal and no supervisor that keeps it. A starting pod has no journal yet.
    pub(super) fn is_dead(&self, pod: &str) -> Result<bool> {
        Ok(self.is_journal_kept(pod)? == Some(false))
    }

    /// Whether a pod has been attached to all its networks, and its supervisor lives.
    pub(super) fn is_running(&self, pod: &str) -> Result<bool> {
        Ok(self.is_journal_kept(pod)? == Some(true))
    }

    /// Whether a supervisor keeps the journal of a pod: it holds a record lock (fcntl(2)) on it. In contrast to
    /// [`Self::lock_dead`], this takes no lock that others may wait for. `None`: the pod has no journal.
    fn is_journal_kept(&self, pod: &str) -> Result<Option<bool>> {
        let Some(parent) = self.dir.as_ref().filter(|_| is_name(pod)) else { return Ok(None) };
        let doing = || format!("look at the journal of pod {pod}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let journal = match rustix::fs::openat2(parent, format!("{pod}/{JOURNAL}"), flags, Mode::empty(), beneath()) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            other => other.map_err(NetworkError::io(doing()))?,
        };
        let held = fcntl_getlk(&journal, &Flock::from(FlockType::WriteLock)).map_err(NetworkError::io(doing()))?;
        Ok(Some(held.is_some()))
    }

    /// The pods that have a directory.
    pub(super) fn pods(&self) -> Result<Vec<String>> {
        let Some(dir) = &self.dir else { return Ok(Vec::new()) };
        let names = files::names(dir, MAX_PODS).map_err(NetworkError::io("list the pods"))?;
        let names = names.ok_or_else(|| {
            let source = std::io::Error::other(format!("there are more than {MAX_PODS}"));
            NetworkError::io("list the pods")(source)
        })?;
        let mut names: Vec<String> = names.into_iter().filter_map(|name| name.into_string().ok()).collect();
        names.retain(|name| is_name(name));
        Ok(names)
    }

    /// Reads all records, by pod. A record that is removed during the call is missing.
    pub(super) fn all(&self) -> Result<Vec<(String, RecordFile)>> {
        let mut found = Vec::new();
        for pod in self.pods()? {
            if let Some(record) = self.read(&pod)? {
                found.push((pod, record));
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// The valid records, oldest first.
    pub(super) fn valid(&self) -> Result<Vec<Record>> {
        Ok(self.partition()?.0)
    }

    /// The valid records, oldest first; and the pods with other records, which may be running.
    pub(super) fn partition(&self) -> Result<(Vec<Record>, Vec<String>)> {
        let (mut records, mut others) = (Vec::new(), Vec::new());
        for (pod, found) in self.all()? {
            match found {
                RecordFile::Valid(record) => records.push(*record),
                RecordFile::Damaged(_) | RecordFile::Newer(_) => others.push(pod),
            }
        }
        records.sort_by_key(|record| record.since);
        Ok((records, others))
    }
}

/// The id of this boot.
pub(super) fn boot() -> Result<String> {
    read_boot_id().map_err(NetworkError::io(format!("read {BOOT_ID}")))
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
