//! Runs the plugins of a network: in order for ADD, in reverse for DEL (CNI specification 1.1.0, section 3).

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::cache::{Cache, CacheEntry};
use super::error::PluginError;
use super::invoke::{Attachment, Call, PluginHost};
use super::result::NetworkResult;
use crate::config::{CniVersion, NetworkConfig, PluginConfig};

/// Runs the plugins of networks.
#[derive(Debug)]
pub struct Runtime {
    host: PluginHost,
    cache: Cache,
}

impl Runtime {
    /// `plugin_dirs` are searched in order; `limit` is the timeout of one plugin for one command.
    #[must_use]
    pub fn new(plugin_dirs: Vec<PathBuf>, cache: Cache, limit: Duration) -> Self {
        Self { host: PluginHost { dirs: plugin_dirs, limit }, cache }
    }

    /// The cache of results.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// ADD: attaches an interface. Caches the attachment before the first plugin runs, and the result at the end. If a
    /// plugin fails, it and the earlier ones are undone in reverse order.
    ///
    /// # Errors
    ///
    /// The error of the plugin. If undoing failed too, the entry stays in the cache for a later DEL.
    pub fn add_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<NetworkResult, PluginError> {
        attachment.check()?;
        if attachment.netns.is_none() {
            return Err(PluginError::invalid("ADD needs a network namespace"));
        }
        if self.entry(network, attachment)?.is_some() {
            return Err(PluginError::attached(shown(network, attachment)));
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
        let bad = |problem: String| PluginError::bad_output(&plugin.kind, "ADD", problem, "");
        if value.is_null() {
            return Err(bad("nothing".into()));
        }
        NetworkResult::read(value).map_err(bad)
    }

    /// Runs DEL of the first `count` plugins after ADD has failed because of `cause`.
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
            Err(undo) => PluginError::not_undone(&cause, &undo),
        }
    }

    /// DEL: detaches an interface, with the result of its ADD. Continues after failures. Idempotent, even without an
    /// ADD; the namespace may have ended (`netns` is `None`).
    ///
    /// # Errors
    ///
    /// The errors of the plugins; then the entry stays in the cache.
    pub fn del_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<(), PluginError> {
        attachment.check()?;
        // If the entry is damaged, DEL runs without the result, which plugins must support.
        let entry = match self.entry(network, attachment) {
            Err(PluginError::Damaged { .. }) => None,
            other => other?,
        };
        let previous = entry.and_then(|entry| entry.result().ok().flatten());
        self.delete(network, network.plugins.len(), attachment, previous.as_ref())?;
        self.forget(network, attachment)
    }

    /// DEL of a cached attachment, with the configuration from its ADD. `netns`: its namespace, if it certainly still
    /// exists. The path from ADD is not used: process ids are reused, so it may lead to another namespace.
    ///
    /// # Errors
    ///
    /// As [`Runtime::del_list`]; or the entry is damaged.
    pub fn del_entry(&self, entry: &CacheEntry, netns: Option<String>) -> Result<(), PluginError> {
        self.del_list(&entry.network()?, &Attachment { netns, ..entry.attachment() })
    }

    /// Runs DEL of the first `count` plugins, last first.
    fn delete(
        &self,
        network: &NetworkConfig,
        count: usize,
        attachment: &Attachment,
        previous: Option<&NetworkResult>,
    ) -> Result<(), PluginError> {
        // DEL has prevResult since 0.4.0.
        let previous = previous.filter(|_| network.cni_version >= CniVersion::V0_4_0);
        let mut errors = Vec::new();
        for plugin in network.plugins.iter().take(count).rev() {
            let call = Call { command: "DEL", network, plugin, attachment: Some(attachment), previous, valid: None };
            errors.extend(self.host.call(call, CniVersion::V0_3_1).err());
        }
        PluginError::all(errors)
    }

    /// CHECK: verifies that the attachment is as ADD left it. Runs nothing if the network disables it.
    ///
    /// # Errors
    ///
    /// The error of the first plugin that fails; the network is older than 0.4.0; there is no attachment.
    pub fn check_list(&self, network: &NetworkConfig, attachment: &Attachment) -> Result<(), PluginError> {
        let command = "CHECK";
        attachment.check()?;
        if network.cni_version < CniVersion::V0_4_0 {
            return Err(PluginError::unsupported(&network.name, network.cni_version.as_str(), command));
        }
        if network.disable_check {
            return Ok(());
        }
        let result = self.entry(network, attachment)?.map(|entry| entry.result()).transpose()?.flatten();
        let Some(result) = result else {
            return Err(PluginError::not_attached(shown(network, attachment)));
        };
        for plugin in &network.plugins {
            let (attachment, previous) = (Some(attachment), Some(&result));
            self.host.call(Call { command, network, plugin, attachment, previous, valid: None }, CniVersion::V0_4_0)?;
        }
        Ok(())
    }

    /// GC: deletes cached attachments that are not among the `valid` ones (container and interface), then runs GC of
    /// the plugins with the valid ones (since 1.1.0, unless the network disables it).
    ///
    /// # Errors
    ///
    /// All errors; the rest was done.
    pub fn gc_list(&self, network: &NetworkConfig, valid: &[(String, String)]) -> Result<(), PluginError> {
        let known: HashSet<(&str, &str)> =
            valid.iter().map(|(id, interface)| (id.as_str(), interface.as_str())).collect();
        let is_valid = |container: &str, interface: &str| known.contains(&(container, interface));
        let mut errors = Vec::new();
        for (net, container_id, interface) in self.cache.names()? {
            if net == network.name && !is_valid(&container_id, &interface) {
                errors.extend(self.delete_invalid(network, &container_id, &interface).err());
            }
        }
        errors.extend(self.cache.remove_temporary(&network.name, is_valid).err());
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

    fn delete_invalid(&self, network: &NetworkConfig, container: &str, interface: &str) -> Result<(), PluginError> {
        match self.cache.get(&network.name, container, interface) {
            Ok(None) => Ok(()),
            Ok(Some(entry)) if entry.network().is_ok() => self.del_entry(&entry, None),
            // The entry is damaged: only its name and the present configuration are known.
            Ok(Some(_)) | Err(PluginError::Damaged { .. }) => {
                let (container_id, interface) = (container.to_owned(), interface.to_owned());
                self.del_list(network, &Attachment { container_id, interface, ..Attachment::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// STATUS: whether ADD is possible now. Networks older than 1.1.0 have no STATUS and count as ready.
    ///
    /// # Errors
    ///
    /// The error of the first plugin that is not ready, with code 50 (not available) or 51 (and existing attachments
    /// have limited connectivity).
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
