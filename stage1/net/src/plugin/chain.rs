//! A network's plugins as one: in order to add, in reverse to delete (CNI specification 1.1.0, section 3).

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::cache::{Cache, CacheEntry};
use super::error::PluginError;
use super::invoke::{Attachment, Call, Host, incompatible};
use super::result::NetworkResult;
use crate::config::{CniVersion, NetworkConfig, PluginConfig};

/// Runs the plugins of networks.
#[derive(Debug)]
pub struct Runtime {
    host: Host,
    cache: Cache,
}

impl Runtime {
    /// `plugin_dirs` are searched in order; `limit` is how long one plugin may take for one command.
    #[must_use]
    pub fn new(plugin_dirs: Vec<PathBuf>, cache: Cache, limit: Duration) -> Self {
        Self { host: Host { dirs: plugin_dirs, limit }, cache }
    }

    /// What is remembered.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// ADD: attaches an interface. Before anything is done, the attachment is in the cache, and when this returns, its
    /// result is. When a plugin fails, those that ran and the one that failed are undone in reverse.
    ///
    /// # Errors
    ///
    /// What the plugin said. With [`PluginError::NotUndone`] the entry stays in the cache for a later DEL.
    pub fn add_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<NetworkResult, PluginError> {
        attachment.check()?;
        if attachment.netns.is_none() {
            return Err(PluginError::Invalid("an interface is added to a network namespace, and none is given".into()));
        }
        if self.entry(network, attachment)?.is_some() {
            return Err(PluginError::Attached { attachment: shown(network, attachment) });
        }
        self.cache.put(&CacheEntry::new(network, attachment, None))?;
        let mut result: Option<NetworkResult> = None;
        for (index, plugin) in network.plugins.iter().enumerate() {
            match self.add(network, plugin, attachment, result.as_ref()) {
                Ok(next) => result = Some(next),
                Err(cause) => {
                    let ran = index + usize::from(!cause.is_before_start());
                    return Err(self.undo(network, ran, attachment, result.as_ref(), cause));
                }
            }
        }
        let result = result.unwrap_or_default();
        match self.cache.put(&CacheEntry::new(network, attachment, Some(&result))) {
            Ok(()) => Ok(result),
            Err(cause) => Err(self.undo(network, network.plugins.len(), attachment, Some(&result), cause)),
        }
    }

    fn add(
        &self,
        network: &NetworkConfig,
        plugin: &PluginConfig,
        attachment: &Attachment,
        previous: Option<&NetworkResult>,
    ) -> Result<NetworkResult, PluginError> {
        let call = Call { command: "ADD", network, plugin, attachment: Some(attachment), previous, valid: None };
        let value = self.host.call(call, CniVersion::V0_3_1)?.unwrap_or_default();
        let bad = |problem| PluginError::BadOutput {
            kind: plugin.kind.clone(),
            command: "ADD",
            problem,
            stderr: String::new(),
        };
        if value.is_null() {
            return Err(bad("nothing".into()));
        }
        NetworkResult::read(value).map_err(bad)
    }

    /// Deletes what the first `count` plugins did, as the consequence of `cause`.
    fn undo(
        &self,
        network: &NetworkConfig,
        count: usize,
        attachment: &Attachment,
        previous: Option<&NetworkResult>,
        cause: PluginError,
    ) -> PluginError {
        let undone = self.delete(network, count, attachment, previous).and_then(|()| self.forget(network, attachment));
        match undone {
            Ok(()) => cause,
            Err(undo) => PluginError::NotUndone { cause: Box::new(cause), undo: Box::new(undo) },
        }
    }

    /// DEL: detaches an interface, with the result of its ADD. Goes on after failures. May be called again, and for what
    /// was never added; the namespace may be gone (`netns` is `None`).
    ///
    /// # Errors
    ///
    /// What the plugins said; then the entry stays in the cache.
    pub fn del_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<(), PluginError> {
        attachment.check()?;
        // What cannot be read is deleted without it: a plugin must be able to.
        let entry = match self.entry(network, attachment) {
            Err(PluginError::Damaged { .. }) => None,
            other => other?,
        };
        let previous = entry.and_then(|entry| entry.result().ok().flatten());
        self.delete(network, network.plugins.len(), attachment, previous.as_ref())?;
        self.forget(network, attachment)
    }

    /// DEL of what the cache says: the network as it was configured at ADD. `netns`: its namespace, if it still exists
    /// for certain. The path that was given to ADD is not used: by now it may be another's (a process id comes again).
    ///
    /// # Errors
    ///
    /// As [`Runtime::del_list`]; or the entry is damaged.
    pub fn del_entry(&self, entry: &CacheEntry, netns: Option<String>) -> Result<(), PluginError> {
        self.del_list(&entry.network()?, &Attachment { netns, ..entry.attachment() })
    }

    /// DEL of the first `count` plugins, last first.
    fn delete(
        &self,
        network: &NetworkConfig,
        count: usize,
        attachment: &Attachment,
        previous: Option<&NetworkResult>,
    ) -> Result<(), PluginError> {
        // Since 0.4.0.
        let previous = previous.filter(|_| network.cni_version >= CniVersion::V0_4_0);
        let mut errors = Vec::new();
        for plugin in network.plugins.iter().take(count).rev() {
            let call = Call { command: "DEL", network, plugin, attachment: Some(attachment), previous, valid: None };
            errors.extend(self.host.call(call, CniVersion::V0_3_1).err());
        }
        PluginError::all(errors)
    }

    /// CHECK: whether everything is as ADD left it. Nothing is run when the network disables it.
    ///
    /// # Errors
    ///
    /// What the first plugin that objects said; [`PluginError::Unsupported`] before 0.4.0; [`PluginError::NotAttached`].
    pub fn check_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<(), PluginError> {
        let command = "CHECK";
        attachment.check()?;
        if network.cni_version < CniVersion::V0_4_0 {
            let (network, version) = (network.name.clone(), network.cni_version.as_str());
            return Err(PluginError::Unsupported { network, version, command });
        }
        if network.disable_check {
            return Ok(());
        }
        let result = self.entry(network, attachment)?.map(|entry| entry.result()).transpose()?.flatten();
        let Some(result) = result else {
            return Err(PluginError::NotAttached { attachment: shown(network, attachment) });
        };
        for plugin in &network.plugins {
            let (attachment, previous) = (Some(attachment), Some(&result));
            self.host.call(Call { command, network, plugin, attachment, previous, valid: None }, CniVersion::V0_4_0)?;
        }
        Ok(())
    }

    /// GC: deletes the cached attachments that are not among the `valid` ones (container and interface), then tells the
    /// plugins which are, so that they free what they keep for others (since 1.1.0, and unless the network disables it).
    ///
    /// # Errors
    ///
    /// Everything that failed; the rest was done.
    pub fn gc_list(&self, network: &NetworkConfig, valid: &[(String, String)]) -> Result<(), PluginError> {
        let known: HashSet<(&str, &str)> =
            valid.iter().map(|(id, interface)| (id.as_str(), interface.as_str())).collect();
        let is_valid = |container: &str, interface: &str| known.contains(&(container, interface));
        let mut errors = Vec::new();
        for (net, container_id, interface) in self.cache.names()? {
            if net == network.name && !is_valid(&container_id, &interface) {
                errors.extend(self.collect(network, &container_id, &interface).err());
            }
        }
        errors.extend(self.cache.sweep(&network.name, is_valid).err());
        if network.cni_version >= CniVersion::V1_1_0 && !network.disable_gc {
            let list: Vec<Value> =
                valid.iter().map(|(id, interface)| json!({"containerID": id, "ifname": interface})).collect();
            let list = Value::Array(list);
            for plugin in &network.plugins {
                let valid = Some(&list);
                let call = Call { command: "GC", network, plugin, attachment: None, previous: None, valid };
                errors.extend(self.host.call(call, CniVersion::V1_1_0).err());
            }
        }
        PluginError::all(errors)
    }

    fn collect(&self, network: &NetworkConfig, container: &str, interface: &str) -> Result<(), PluginError> {
        match self.cache.get(&network.name, container, interface) {
            Ok(None) => Ok(()),
            Ok(Some(entry)) if entry.network().is_ok() => self.del_entry(&entry, None),
            // Damaged: its name is all there is, and the network as it is now.
            Ok(Some(_)) | Err(PluginError::Damaged { .. }) => {
                let (container_id, interface) = (container.to_owned(), interface.to_owned());
                self.del_list(network, &Attachment { container_id, interface, ..Attachment::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// STATUS: whether the network can take an ADD now. A network before 1.1.0 cannot be asked, and is taken for able.
    ///
    /// # Errors
    ///
    /// What the first plugin that cannot said; its code is 50 (not able) or 51 (and what is there has no connection).
    pub fn status(&self, network: &NetworkConfig) -> Result<(), PluginError> {
        if network.cni_version < CniVersion::V1_1_0 {
            return Ok(());
        }
        for plugin in &network.plugins {
            let call = Call { command: "STATUS", network, plugin, attachment: None, previous: None, valid: None };
            self.host.call(call, CniVersion::V1_1_0)?;
        }
        Ok(())
    }

    /// VERSION: the greatest version that the network is written for and all its plugins speak.
    ///
    /// # Errors
    ///
    /// [`PluginError::Version`] names a plugin that speaks none of those the others leave.
    pub fn version(&self, network: &NetworkConfig) -> Result<CniVersion, PluginError> {
        let mut left = network.cni_versions.clone();
        for plugin in &network.plugins {
            let speaks = self.host.versions(&plugin.kind)?;
            left.retain(|version| speaks.contains(version));
            if left.is_empty() {
                return Err(incompatible(&plugin.kind, &speaks, network));
            }
        }
        Ok(left.into_iter().max().unwrap_or(network.cni_version))
    }

    fn entry(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<Option<CacheEntry>, PluginError> {
        self.cache.get(&network.name, &attachment.container_id, &attachment.interface)
    }

    fn forget(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<(), PluginError> {
        self.cache.remove(&network.name, &attachment.container_id, &attachment.interface)
    }
}

fn shown(network: &NetworkConfig, attachment: &Attachment) -> String {
    format!("interface {} of {} in network '{}'", attachment.interface, attachment.container_id, network.name)
}
