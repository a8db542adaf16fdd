//! Runs one command of one plugin: its variables, its configuration, its result.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::error::PluginError;
use super::exec::{self, Failure, Output};
use super::find::find;
use super::result::NetworkResult;
use super::{MAX_OUTPUT, exec::text};
use crate::config::{CniVersion, NetworkConfig, PluginConfig, is_interface_name, is_name};

/// The error code of an incompatible version (CNI specification 1.1.0, section 5, error).
const INCOMPATIBLE: u64 = 1;

/// One interface of one container (CNI specification 1.1.0, section 2, parameters).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attachment {
    /// The container's id: the pod's.
    pub container_id: String,
    /// The path of its network namespace. `None` if it has ended, which DEL allows.
    pub netns: Option<String>,
    /// The interface's name in it.
    pub interface: String,
    /// `CNI_ARGS`, in order. `IgnoreUnknown=1` is added if it is missing, because no plugin knows the arguments of all
    /// others.
    pub args: Vec<(String, String)>,
    /// Values of capabilities (`portMappings`, `ips`, `mac`, …); a plugin gets those that it declares.
    pub capability_args: Map<String, Value>,
    /// Values for `args.cni`, which every plugin gets.
    pub cni_args: Map<String, Value>,
    /// Addresses to allocate if they are free and no other is requested; plugins do not get them.
    pub preferred_addresses: Vec<IpAddr>,
}

impl Attachment {
    /// Checks the values that become variables and file names.
    pub(super) fn check(&self) -> Result<(), PluginError> {
        let shown = gantry_model::id::shown;
        if !is_name(&self.container_id) {
            return Err(PluginError::invalid(format!("'{}' is not a valid container id", shown(&self.container_id))));
        }
        if !is_interface_name(&self.interface) {
            return Err(PluginError::invalid(format!("'{}' is not a valid interface name", shown(&self.interface))));
        }
        let plain = |text: &str| !text.contains([';', '\0', '\n']);
        if let Some((key, _)) = self.args.iter().find(|(key, value)| !plain(key) || key.contains('=') || !plain(value))
        {
            return Err(PluginError::invalid(format!("the argument '{}' contains invalid characters", shown(key))));
        }
        if self.netns.as_ref().is_some_and(|path| !path.starts_with('/') || path.contains('\0')) {
            return Err(PluginError::invalid("the path of a network namespace must be absolute"));
        }
        Ok(())
    }

    fn args(&self) -> String {
        let mut args: Vec<String> = self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        if !args.is_empty() && !self.args.iter().any(|(key, _)| key == "IgnoreUnknown") {
            args.insert(0, "IgnoreUnknown=1".into());
        }
        args.join(";")
    }
}

/// The directories of the plugins, and their timeout.
#[derive(Debug)]
pub(super) struct PluginHost {
    pub(super) dirs: Vec<PathBuf>,
    pub(super) limit: Duration,
}

/// A command for one plugin.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) command: &'static str,
    pub(super) network: &'a NetworkConfig,
    pub(super) plugin: &'a PluginConfig,
    pub(super) attachment: Option<&'a Attachment>,
    pub(super) previous: Option<&'a NetworkResult>,
    /// The valid attachments, for GC.
    pub(super) valid: Option<&'a Value>,
}

impl Call<'_> {
    /// The plugin's configuration for this call (CNI specification 1.1.0, section 3, deriving request configuration).
    fn configuration(&self, version: CniVersion) -> Value {
        let mut config = self.plugin.raw.clone();
        config.remove("capabilities");
        config.insert("cniVersion".into(), version.as_str().into());
        config.insert("name".into(), self.network.name.as_str().into());
        if let Some(attachment) = self.attachment {
            let declared = |name: &&String| self.plugin.capabilities.get(*name).copied().unwrap_or(false);
            let values = attachment.capability_args.iter().filter(|(name, _)| declared(name));
            let values: Map<String, Value> = values.map(|(name, value)| (name.clone(), value.clone())).collect();
            if !values.is_empty() {
                config.insert("runtimeConfig".into(), Value::Object(values));
            }
            merge_args(&mut config, &attachment.cni_args);
        }
        if let Some(previous) = self.previous {
            config.insert("prevResult".into(), previous.to_version(version));
        }
        if let Some(valid) = self.valid {
            config.insert("cni.dev/valid-attachments".into(), valid.clone());
            // The name in drafts of 1.1, which some plugins read.
            config.insert("cni.dev/attachments".into(), valid.clone());
        }
        Value::Object(config)
    }

    fn variables(&self, dirs: &[PathBuf]) -> Vec<(&'static str, OsString)> {
        let attached = self.attachment;
        let of = |get: fn(&Attachment) -> String| OsString::from(attached.map(get).unwrap_or_default());
        vec![
            ("CNI_COMMAND", self.command.into()),
            ("CNI_CONTAINERID", of(|it| it.container_id.clone())),
            ("CNI_NETNS", of(|it| it.netns.clone().unwrap_or_default())),
            ("CNI_IFNAME", of(|it| it.interface.clone())),
            ("CNI_ARGS", of(Attachment::args)),
            ("CNI_PATH", join_paths(dirs)),
            ("PATH", path_variable()),
        ]
    }
}

/// Adds to `args.cni`, replacing values of the configuration.
fn merge_args(config: &mut Map<String, Value>, more: &Map<String, Value>) {
    if more.is_empty() {
        return;
    }
    let args = config.entry("args").or_insert_with(|| json!({}));
    if !args.is_object() {
        *args = json!({});
    }
    let Some(args) = args.as_object_mut() else { return };
    let cni = args.entry("cni").or_insert_with(|| json!({}));
    if !cni.is_object() {
        *cni = json!({});
    }
    if let Some(cni) = cni.as_object_mut() {
        cni.extend(more.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}

fn join_paths(dirs: &[PathBuf]) -> OsString {
    let mut all = OsString::new();
    for (index, dir) in dirs.iter().enumerate() {
        if index > 0 {
            all.push(":");
        }
        all.push(dir);
    }
    all
}

/// Plugins start other programs (iptables), so they need `PATH`.
fn path_variable() -> OsString {
    std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into())
}

impl PluginHost {
    /// Runs a command, which exists since the version `since`, in the network's version. A plugin that does not support
    /// this version fails before it does anything. Then it is run in the greatest version that it supports below the
    /// network's. `None` if that version has no such command, so there is nothing to do.
    pub(super) fn call(&self, call: Call<'_>, since: CniVersion) -> Result<Option<Value>, PluginError> {
        match self.call_in(call, call.network.cni_version) {
            // An old plugin may reject a new command with any code.
            Err(error @ PluginError::Reported { code, .. }) if code == INCOMPATIBLE || since >= CniVersion::V1_1_0 => {
                self.call_in_older(call, since, error)
            }
            other => other.map(Some),
        }
    }

    fn call_in_older(
        &self,
        call: Call<'_>,
        since: CniVersion,
        failed: PluginError,
    ) -> Result<Option<Value>, PluginError> {
        let wanted = call.network.cni_version;
        let speaks = self.versions(&call.plugin.kind)?;
        if speaks.contains(&wanted) {
            return Err(failed);
        }
        match speaks.iter().copied().filter(|version| *version < wanted).max() {
            None => Err(incompatible(&call.plugin.kind, &speaks, call.network)),
            Some(version) if version < since => Ok(None),
            Some(version) => self.call_in(call, version).map(Some),
        }
    }

    fn call_in(&self, call: Call<'_>, version: CniVersion) -> Result<Value, PluginError> {
        let kind = &call.plugin.kind;
        let input = call.configuration(version).to_string();
        let ended = self.run(kind, call.command, &call.variables(&self.dirs), input.as_bytes())?;
        parse_output(kind, call.command, ended)
    }

    fn run(
        &self,
        kind: &str,
        command: &'static str,
        variables: &[(&'static str, OsString)],
        input: &[u8],
    ) -> Result<Output, PluginError> {
        let program = find(&self.dirs, kind)?;
        exec::run(&program, variables, input, self.limit).map_err(|failure| match failure {
            Failure::System(doing, source) => PluginError::run(doing, kind, source),
            Failure::TimedOut { stderr } => PluginError::timed_out(kind, command, self.limit.as_millis(), &stderr),
            Failure::TooMuch { stderr } => {
                let problem = format!("more than {MAX_OUTPUT} bytes, and was killed");
                PluginError::bad_output(kind, command, problem, &stderr)
            }
        })
    }

    /// The versions that both the plugin and gantry support, oldest first.
    pub(super) fn versions(&self, kind: &str) -> Result<Vec<CniVersion>, PluginError> {
        let command = "VERSION";
        let mut variables = vec![
            ("CNI_COMMAND", OsString::from(command)),
            ("CNI_PATH", join_paths(&self.dirs)),
            ("PATH", path_variable()),
        ];
        // Old plugins require these variables for every command.
        variables.extend(["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"].map(|name| (name, OsString::from("dummy"))));
        let input = json!({"cniVersion": CniVersion::V1_1_0.as_str()}).to_string();
        let value = parse_output(kind, command, self.run(kind, command, &variables, input.as_bytes())?)?;
        let listed = value.get("supportedVersions").and_then(Value::as_array);
        let bad = || PluginError::bad_output(kind, command, "no list supportedVersions", "");
        let texts = listed.ok_or_else(bad)?.iter().filter_map(Value::as_str);
        let mut versions: Vec<CniVersion> = texts.filter_map(|text| text.parse().ok()).collect();
        versions.sort_unstable();
        versions.dedup();
        Ok(versions)
    }
}

fn incompatible(kind: &str, speaks: &[CniVersion], network: &NetworkConfig) -> PluginError {
    let list = |versions: &[CniVersion]| {
        let words = versions.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if words.is_empty() { "no version that gantry supports".to_owned() } else { words }
    };
    PluginError::version(kind, &list(speaks), &network.name, &list(&network.cni_versions))
}

/// The result in a plugin's output, `null` if it printed nothing, or its error.
fn parse_output(kind: &str, command: &'static str, ended: Output) -> Result<Value, PluginError> {
    let stderr = ended.stderr;
    let value = if ended.stdout.iter().all(u8::is_ascii_whitespace) {
        Ok(Value::Null)
    } else {
        serde_json::from_slice::<Value>(&ended.stdout)
    };
    if let Some((code, message)) = value.as_ref().ok().and_then(|value| parse_error(value, ended.status.success())) {
        return Err(PluginError::Reported { plugin: kind.to_owned(), command, code, message, stderr });
    }
    if !ended.status.success() {
        let said = [stderr, text(&ended.stdout)].into_iter().find(|said| !said.is_empty()).unwrap_or_default();
        return Err(PluginError::crashed(kind, command, ended.status, &said));
    }
    value.map_err(|error| {
        let beginning: String = text(&ended.stdout).chars().take(60).collect();
        PluginError::bad_output(kind, command, format!("invalid JSON ({error}): {beginning}"), &stderr)
    })
}

/// Code and message of an error object. If the plugin succeeded, only an unambiguous error object counts.
fn parse_error(value: &Value, succeeded: bool) -> Option<(u64, String)> {
    let code = value.get("code").and_then(Value::as_u64);
    let message = value.get("msg").and_then(Value::as_str);
    let results = ["interfaces", "ips", "supportedVersions"];
    if succeeded && (code.unwrap_or(0) == 0 || results.iter().any(|key| value.get(key).is_some())) {
        return None;
    }
    if code.is_none() && message.is_none() {
        return None;
    }
    let details = value.get("details").and_then(Value::as_str).filter(|details| !details.is_empty());
    let mut words = text(message.unwrap_or("without a message").as_bytes());
    if let Some(details) = details {
        words = format!("{words}: {}", text(details.as_bytes()));
    }
    Some((code.unwrap_or(0), words))
}
