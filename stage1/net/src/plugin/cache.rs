//! The cache of inputs and results of ADD: one file for each network, container and interface.
//!
//! ```text
//! results/               0700
//!   NET:CONTAINER:IFNAME 0600, JSON; written as .new:NET:CONTAINER:IFNAME and renamed
//! ```
//!
//! The keys are those of libcni's cache (`kind`, `containerId`, `ifName`, `networkName`, `cniArgs`, `capabilityArgs`,
//! `config`, `result`), but `config` is text instead of base64, and the file names are unambiguous. An entry is written
//! before ADD, without `result`: from then on, there is something to delete. Nothing is synced: a power loss ends the
//! pod too. DEL, with the configuration in the pod's record, or GC cleans up after stale, damaged or missing entries.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::PluginError;
use super::invoke::Attachment;
use super::result::NetworkResult;
use crate::config::{CniVersion, MAX_FILE, NetworkConfig, Source, files, is_interface_name, is_name};

const KIND: &str = "gantryCacheV1";
/// The maximum size of an entry: a configuration, a result and arguments of up to a mebibyte each, with escapes.
const MAX_ENTRY: usize = 8 * MAX_FILE;
/// The maximum number of attachments of a host.
const MAX_ENTRIES: usize = 1024 * 1024;
/// The maximum length of the three names together: a file name has at most 255 bytes.
const MAX_NAMES: usize = 240;

/// The cache.
#[derive(Debug)]
pub struct Cache {
    dir: OwnedFd,
}

/// One attachment: the input of ADD, and its result once ADD is done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheEntry {
    kind: String,
    container_id: String,
    if_name: String,
    network_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    netns: Option<String>,
    #[serde(default)]
    cni_args: Vec<(String, String)>,
    #[serde(default)]
    capability_args: Map<String, Value>,
    #[serde(default)]
    args: Map<String, Value>,
    config: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl CacheEntry {
    pub(super) fn new(network: &NetworkConfig, attachment: &Attachment, result: Option<&NetworkResult>) -> Self {
        Self {
            kind: KIND.into(),
            container_id: attachment.container_id.clone(),
            if_name: attachment.interface.clone(),
            network_name: network.name.clone(),
            netns: attachment.netns.clone(),
            cni_args: attachment.args.clone(),
            capability_args: attachment.capability_args.clone(),
            args: attachment.cni_args.clone(),
            config: network.text.clone(),
            result: result.map(|result| result.to_version(CniVersion::V1_1_0)),
        }
    }

    /// The network's name.
    #[must_use]
    pub fn network_name(&self) -> &str {
        &self.network_name
    }

    /// The attachment that was passed to ADD.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        Attachment {
            container_id: self.container_id.clone(),
            netns: self.netns.clone(),
            interface: self.if_name.clone(),
            args: self.cni_args.clone(),
            capability_args: self.capability_args.clone(),
            cni_args: self.args.clone(),
            preferred_addresses: Vec::new(),
        }
    }

    /// The configuration of the network at ADD.
    ///
    /// # Errors
    ///
    /// [`PluginError::Damaged`].
    pub fn network(&self) -> Result<NetworkConfig, PluginError> {
        NetworkConfig::parse(&self.config, Source::BuiltIn).map_err(|error| self.damaged(error.to_string()))
    }

    /// The result of ADD; `None` if ADD did not end.
    ///
    /// # Errors
    ///
    /// [`PluginError::Damaged`].
    pub fn result(&self) -> Result<Option<NetworkResult>, PluginError> {
        let result = self.result.clone().map(NetworkResult::read).transpose();
        result.map_err(|problem| self.damaged(problem))
    }

    fn damaged(&self, problem: String) -> PluginError {
        PluginError::Damaged { file: format!("{}:{}:{}", self.network_name, self.container_id, self.if_name), problem }
    }
}

impl Cache {
    /// Opens the cache below a directory, creating it if necessary.
    ///
    /// # Errors
    ///
    /// The directory cannot be created or opened.
    pub fn open(data: BorrowedFd<'_>) -> Result<Self, PluginError> {
        let failed = |source: Errno| failed("create the directory 'results'", source);
        match rustix::fs::mkdirat(data, "results", Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let dir = rustix::fs::openat2(data, "results", flags, Mode::empty(), resolve).map_err(failed)?;
        Ok(Self { dir })
    }

    /// Writes an entry, replacing an earlier one.
    pub(super) fn put(&self, entry: &CacheEntry) -> Result<(), PluginError> {
        let name = file_name(&entry.network_name, &entry.container_id, &entry.if_name)?;
        let new = format!(".new:{name}");
        let what = |error: io::Error| failed(&format!("write '{name}'"), error);
        let text = serde_json::to_vec(entry).map_err(|error| what(error.into()))?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let fd = rustix::fs::openat(&self.dir, &new, flags, Mode::RUSR | Mode::WUSR).map_err(|e| what(e.into()))?;
        let mut file = std::fs::File::from(fd);
        let written = file.write_all(&text);
        let placed = written.and_then(|()| Ok(rustix::fs::renameat(&self.dir, &new, &self.dir, &name)?));
        if let Err(error) = placed {
            self.unlink(&new)?;
            return Err(what(error));
        }
        Ok(())
    }

    /// Reads the entry of an attachment.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is damaged.
    pub fn get(&self, network: &str, container: &str, interface: &str) -> Result<Option<CacheEntry>, PluginError> {
        self.read(&file_name(network, container, interface)?)
    }

    fn read(&self, name: &str) -> Result<Option<CacheEntry>, PluginError> {
        let what = |error| failed(&format!("read '{name}'"), error);
        let file = match files::open_file(self.dir.as_fd(), Path::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(what)?,
        };
        let damaged = |problem: String| PluginError::Damaged { file: name.to_owned(), problem };
        let bytes = files::read(file, MAX_ENTRY).map_err(what)?.ok_or_else(|| damaged("too large".into()))?;
        let entry: CacheEntry = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let expected = file_name(&entry.network_name, &entry.container_id, &entry.if_name)?;
        if entry.kind != KIND || expected != name {
            return Err(damaged("it belongs to another attachment".into()));
        }
        Ok(Some(entry))
    }

    /// The names of all entries: network, container and interface. An entry may be damaged, or removed before it is
    /// read.
    ///
    /// # Errors
    ///
    /// The directory cannot be read.
    pub fn names(&self) -> Result<Vec<(String, String, String)>, PluginError> {
        Ok(self.files()?.into_iter().filter_map(|name| parts(&name)).collect())
    }

    /// Removes an entry, and the temporary file of a killed writer.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove(&self, network: &str, container: &str, interface: &str) -> Result<(), PluginError> {
        let name = file_name(network, container, interface)?;
        self.unlink(&name)?;
        self.unlink(&format!(".new:{name}"))
    }

    /// Removes temporary files of killed writers for this network, except for attachments that may be being written.
    pub(super) fn remove_temporary(&self, network: &str, keep: impl Fn(&str, &str) -> bool) -> Result<(), PluginError> {
        for file in self.files()? {
            let left = file.strip_prefix(".new:").and_then(parts);
            if left.is_some_and(|(net, container, interface)| net == network && !keep(&container, &interface)) {
                self.unlink(&file)?;
            }
        }
        Ok(())
    }

    fn files(&self) -> Result<Vec<String>, PluginError> {
        let names = files::names(&self.dir, MAX_ENTRIES).map_err(|error| failed("list the entries", error))?;
        let names = names.ok_or_else(|| PluginError::invalid(format!("more than {MAX_ENTRIES} attachments")))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    fn unlink(&self, name: &str) -> Result<(), PluginError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(&format!("remove '{name}'"), error)),
        }
    }
}

fn failed(doing: &str, source: impl Into<io::Error>) -> PluginError {
    PluginError::cache(doing, source.into())
}

/// None of the names contains a colon.
fn file_name(network: &str, container: &str, interface: &str) -> Result<String, PluginError> {
    if !is_name(network) || !is_name(container) || !is_interface_name(interface) {
        return Err(PluginError::invalid("a name of the attachment is invalid"));
    }
    if network.len() + container.len() + interface.len() > MAX_NAMES {
        return Err(PluginError::invalid(format!(
            "the names of network, container and interface are longer than {MAX_NAMES} bytes together"
        )));
    }
    Ok(format!("{network}:{container}:{interface}"))
}

fn parts(name: &str) -> Option<(String, String, String)> {
    let mut parts = name.split(':').map(str::to_owned);
    let all = (parts.next()?, parts.next()?, parts.next()?);
    (parts.next().is_none() && file_name(&all.0, &all.1, &all.2).is_ok()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"x"}]}"#;

    fn attachment() -> Attachment {
        Attachment {
            container_id: "pod-1".into(),
            netns: Some("/proc/1/ns/net".into()),
            interface: "eth0".into(),
            args: vec![("IP".into(), "10.0.0.1".into())],
            ..Attachment::default()
        }
    }

    #[test]
    fn entries_round_trip() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(files::open_dir(temp.path()).unwrap().as_fd()).unwrap();
        let network = NetworkConfig::parse(TEXT, Source::BuiltIn).unwrap();
        assert_eq!(cache.get("net", "pod-1", "eth0").unwrap(), None);
        cache.put(&CacheEntry::new(&network, &attachment(), None)).unwrap();
        let entry = cache.get("net", "pod-1", "eth0").unwrap().unwrap();
        assert_eq!(
            (entry.attachment(), entry.network().unwrap(), entry.result().unwrap()),
            (attachment(), network.clone(), None)
        );
        cache.put(&CacheEntry::new(&network, &attachment(), Some(&NetworkResult::default()))).unwrap();
        let entry = cache.get("net", "pod-1", "eth0").unwrap().unwrap();
        assert_eq!(entry.result().unwrap(), Some(NetworkResult::default()));
        assert_eq!(cache.names().unwrap(), [("net".to_owned(), "pod-1".to_owned(), "eth0".to_owned())]);
        cache.remove("net", "pod-1", "eth0").unwrap();
        cache.remove("net", "pod-1", "eth0").unwrap();
        assert!(cache.names().unwrap().is_empty());
    }

    #[test]
    fn files_of_killed_writers_are_recognized() {
        let temp = tempfile::tempdir().unwrap();
        let cache = Cache::open(files::open_dir(temp.path()).unwrap().as_fd()).unwrap();
        let results = temp.path().join("results");
        std::fs::write(results.join("net:pod-1:eth0"), "").unwrap();
        std::fs::write(results.join(".new:net:pod-2:eth0"), "{").unwrap();
        std::fs::write(results.join(".new:net:pod-3:eth0"), "{").unwrap();
        std::fs::write(results.join("odd"), "{").unwrap();
        assert!(matches!(cache.get("net", "pod-1", "eth0"), Err(PluginError::Damaged { .. })));
        assert_eq!(cache.names().unwrap().len(), 1);
        cache.remove_temporary("net", |container, _| container == "pod-3").unwrap();
        let mut left: Vec<String> = cache.files().unwrap();
        left.sort();
        assert_eq!(left, [".new:net:pod-3:eth0", "net:pod-1:eth0", "odd"]);
        let network = NetworkConfig::parse(TEXT, Source::BuiltIn).unwrap();
        let text = serde_json::to_string(&CacheEntry::new(&network, &attachment(), None)).unwrap();
        std::fs::write(results.join("net:other:eth0"), text).unwrap();
        assert!(cache.get("net", "other", "eth0").unwrap_err().to_string().contains("another"));
        assert!(
            cache.get("../net", "a", "eth0").is_err() && cache.get(&"n".repeat(120), &"c".repeat(120), "eth0").is_err()
        );
    }
}
