//! Reads system call filters in the JSON of OCI runtimes (runtime specification, config-linux.md, "Seccomp"), with the
//! conditions of docker's profiles (`includes`, `excludes`) and their `archMap`.
//!
//! A profile is resolved for this host and one set of capabilities when it is read, so that an app keeps its filter
//! when the file changes later. Programs of other architectures than the host's get ENOSYS for every call: the
//! architectures of a profile only decide whether it is meant for this host.

use std::collections::BTreeSet;
use std::path::Path;

use gantry_host::file::read_bounded;
use gantry_model::id::shown;
use gantry_model::seccomp_profile::{SeccompAction, SeccompArgument, SeccompProfile, SeccompRule, SeccompTest};
use gantry_model::spec::Capabilities;
use gantry_model::{ErrorKind, errno as errnos};
use serde::Deserialize;

use crate::EngineError;

/// The largest profile, in bytes.
const MAX_PROFILE: u64 = 1 << 20;

/// Reads the profile at a path for an app with these capabilities.
///
/// # Errors
/// [`EngineError`]: the file cannot be read, is larger than 1 MiB, or is not a profile that this host can apply.
pub fn read_seccomp_profile(path: &Path, capabilities: &Capabilities) -> Result<SeccompProfile, EngineError> {
    let shown = shown(&path.to_string_lossy());
    let text = read_bounded(path, MAX_PROFILE).map_err(|error| {
        EngineError::new(ErrorKind::of_io(&error), format!("cannot read the seccomp profile '{shown}'"))
            .caused_by(error)
    })?;
    let target = SeccompTarget { capabilities: &capabilities.names(), kernel: kernel_version() };
    parse(&text, &target).map_err(|why| {
        EngineError::new(ErrorKind::Invalid, format!("the seccomp profile '{shown}' cannot be used: {why}"))
    })
}

/// The major and minor number of the kernel's version.
fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The host and the app for which a profile is resolved.
#[derive(Debug, Clone, Copy)]
struct SeccompTarget<'a> {
    /// The capabilities of the app, such as `CAP_SYS_ADMIN`.
    capabilities: &'a BTreeSet<String>,
    /// The version of the kernel: major and minor number.
    kernel: (u32, u32),
}

/// The JSON of a profile. Any other field, such as `listenerPath`, is an error: ignoring it could change the meaning of
/// the profile.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    default_action: String,
    #[serde(default)]
    default_errno_ret: Option<u32>,
    #[serde(default, alias = "defaultErrno")]
    default_errno: Option<serde_json::Value>,
    #[serde(default)]
    architectures: Option<Vec<String>>,
    #[serde(default)]
    arch_map: Option<Vec<ArchMap>>,
    #[serde(default)]
    flags: Option<Vec<String>>,
    #[serde(default)]
    syscalls: Option<Vec<Call>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ArchMap {
    architecture: String,
    #[serde(default, rename = "subArchitectures")]
    _sub: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Call {
    #[serde(default)]
    names: Option<Vec<String>>,
    /// The form of docker's first profiles.
    #[serde(default)]
    name: Option<String>,
    action: String,
    #[serde(default)]
    errno_ret: Option<u32>,
    #[serde(default)]
    errno: Option<serde_json::Value>,
    #[serde(default)]
    args: Option<Vec<Argument>>,
    #[serde(default, rename = "comment")]
    _comment: Option<String>,
    #[serde(default)]
    includes: Option<Conditions>,
    #[serde(default)]
    excludes: Option<Conditions>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Argument {
    index: u64,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Conditions {
    #[serde(default)]
    caps: Option<Vec<String>>,
    #[serde(default)]
    arches: Option<Vec<String>>,
    #[serde(default)]
    min_kernel: Option<String>,
}

/// Parses the JSON of a profile and resolves it.
fn parse(text: &[u8], target: &SeccompTarget<'_>) -> Result<SeccompProfile, String> {
    let file: File = serde_json::from_slice(text).map_err(|error: serde_json::Error| error.to_string())?;
    if let Some(flag) = file.flags.iter().flatten().find(|flag| !is_known_flag(flag)) {
        return Err(format!("the flag '{}' is not supported", shown(flag)));
    }
    let mapped = file.arch_map.iter().flatten().map(|map| &map.architecture);
    let mut meant_for = file.architectures.iter().flatten().chain(mapped).peekable();
    if meant_for.peek().is_some() && !meant_for.any(|name| is_own_architecture(name)) {
        return Err(format!("it is not for this host's architecture ({})", std::env::consts::ARCH));
    }
    let default_errno = errno(file.default_errno_ret, file.default_errno.as_ref())?;
    let mut profile = SeccompProfile { default: action(&file.default_action, default_errno)?, rules: Vec::new() };
    for call in file.syscalls.into_iter().flatten() {
        let is_used = call.includes.as_ref().map_or(Ok(true), |on| on.all_hold(target))?
            && !call.excludes.as_ref().map_or(Ok(false), |on| on.any_holds(target))?;
        // Also those without effect here are checked.
        let rules = rules(call)?;
        if is_used {
            profile.rules.extend(rules);
        }
    }
    profile.validate().map_err(|error| error.to_string())?;
    Ok(profile)
}

/// The rules of an entry: one rule, or one per condition if two conditions test the same argument. These are then
/// alternatives, as in other runtimes: `personality` may have one of several values.
fn rules(call: Call) -> Result<Vec<SeccompRule>, String> {
    let names: Vec<String> = call.names.into_iter().flatten().chain(call.name).collect();
    if names.is_empty() {
        return Err("an entry of 'syscalls' has no names".to_owned());
    }
    let errno = errno(call.errno_ret, call.errno.as_ref())?;
    let action = action(&call.action, errno)?;
    let arguments = call.args.into_iter().flatten().map(argument).collect::<Result<Vec<_>, _>>()?;
    let rule = |arguments: Vec<SeccompArgument>| SeccompRule { names: names.clone(), action, arguments };
    let is_repeated = |n: usize| arguments[..n].iter().any(|other| other.index == arguments[n].index);
    if (0..arguments.len()).any(is_repeated) {
        return Ok(arguments.iter().map(|argument| rule(vec![*argument])).collect());
    }
    Ok(vec![rule(arguments)])
}

fn argument(argument: Argument) -> Result<SeccompArgument, String> {
    let Argument { index, value, value_two, op } = argument;
    let index = u8::try_from(index).ok().filter(|index| *index < 6);
    let index = index.ok_or_else(|| "the index of an argument is not 0 to 5".to_owned())?;
    let test = match op.as_str() {
        "SCMP_CMP_NE" => SeccompTest::Ne(value),
        "SCMP_CMP_LT" => SeccompTest::Lt(value),
        "SCMP_CMP_LE" => SeccompTest::Le(value),
        "SCMP_CMP_EQ" => SeccompTest::Eq(value),
        "SCMP_CMP_GE" => SeccompTest::Ge(value),
        "SCMP_CMP_GT" => SeccompTest::Gt(value),
        // libseccomp's datum_a is the mask.
        "SCMP_CMP_MASKED_EQ" => SeccompTest::MaskedEq { mask: value, value: value_two },
        _ => return Err(format!("'{}' is not a comparison", shown(&op))),
    };
    Ok(SeccompArgument { index, test })
}

/// The error number of an action. docker's profiles repeat it by name in `errno`.
fn errno(number: Option<u32>, name: Option<&serde_json::Value>) -> Result<u16, String> {
    let by_name = name.and_then(serde_json::Value::as_str).and_then(errnos::number);
    match (number, by_name) {
        (Some(number), _) => {
            u16::try_from(number).map_err(|_| format!("the error number {number} is out of range: at most 65535"))
        }
        (None, Some(number)) => Ok(number),
        // EPERM, as the specification demands.
        (None, None) => Ok(1),
    }
}

fn action(name: &str, errno: u16) -> Result<SeccompAction, String> {
    match name {
        "SCMP_ACT_ALLOW" => Ok(SeccompAction::Allow),
        "SCMP_ACT_ERRNO" => Ok(SeccompAction::Errno(errno)),
        "SCMP_ACT_LOG" => Ok(SeccompAction::Log),
        "SCMP_ACT_TRAP" => Ok(SeccompAction::Trap),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(SeccompAction::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(SeccompAction::KillProcess),
        "SCMP_ACT_TRACE" => Ok(SeccompAction::Trace(errno)),
        "SCMP_ACT_NOTIFY" => Err("the action SCMP_ACT_NOTIFY needs an agent, which gantry does not start".to_owned()),
        _ => Err(format!("'{}' is not an action", shown(name))),
    }
}

/// Flags of seccomp(2) that change no decision of the filter.
fn is_known_flag(flag: &str) -> bool {
    matches!(flag, "SECCOMP_FILTER_FLAG_LOG" | "SECCOMP_FILTER_FLAG_SPEC_ALLOW" | "SECCOMP_FILTER_FLAG_TSYNC")
}

fn is_own_architecture(name: &str) -> bool {
    match std::env::consts::ARCH {
        "x86_64" => name == "SCMP_ARCH_X86_64",
        "aarch64" => name == "SCMP_ARCH_AARCH64",
        _ => false,
    }
}

impl Conditions {
    /// Whether every kind of condition in use holds: one of the architectures, all of the capabilities, and the
    /// minimum version of the kernel.
    fn all_hold(&self, target: &SeccompTarget<'_>) -> Result<bool, String> {
        let arches = self.arches.as_deref().unwrap_or_default();
        let caps = self.caps.as_deref().unwrap_or_default();
        Ok((arches.is_empty() || arches.iter().any(|arch| is_go_architecture(arch)))
            && caps.iter().all(|name| target.capabilities.contains(name))
            && self.is_new_kernel(target)?.unwrap_or(true))
    }

    /// Whether one of the conditions holds.
    fn any_holds(&self, target: &SeccompTarget<'_>) -> Result<bool, String> {
        let arches = self.arches.as_deref().unwrap_or_default();
        let caps = self.caps.as_deref().unwrap_or_default();
        Ok(arches.iter().any(|arch| is_go_architecture(arch))
            || caps.iter().any(|name| target.capabilities.contains(name))
            || self.is_new_kernel(target)?.unwrap_or(false))
    }

    fn is_new_kernel(&self, target: &SeccompTarget<'_>) -> Result<Option<bool>, String> {
        let Some(text) = self.min_kernel.as_deref().filter(|text| !text.is_empty()) else { return Ok(None) };
        let version = text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let version: (u32, u32) = version.ok_or_else(|| format!("'{}' is not a kernel version", shown(text)))?;
        Ok(Some(target.kernel >= version))
    }
}

/// Architectures as Go and docker name them.
fn is_go_architecture(name: &str) -> bool {
    match std::env::consts::ARCH {
        "x86_64" => name == "amd64",
        "aarch64" => name == "arm64",
        _ => false,
    }
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
mod tests;
