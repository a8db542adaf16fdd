//! Parsers for the values of flags.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use gantry_model::mount_options::{MountOptions, Propagation};
use gantry_model::spec::{
    ALL_CAPABILITIES, CpusetList, DeviceIoRate, HugePageSize, Seccomp, VolumeKind, VolumeSpec, check_group_name,
};
use gantry_model::{AppName, VolumeName, id::shown, quantity};

use super::draft::{Bind, BindSource, SupplementaryGroups};

/// The error of parsing a value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// The value is invalid.
    Invalid(String),
    /// The value is not supported; what to use instead.
    Unsupported(&'static str),
}

impl From<quantity::QuantityError> for ValueError {
    fn from(error: quantity::QuantityError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<gantry_model::id::IdError> for ValueError {
    fn from(error: gantry_model::id::IdError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<gantry_model::spec::SpecError> for ValueError {
    fn from(error: gantry_model::spec::SpecError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// The message of an error.
pub(crate) fn message(error: ValueError) -> String {
    match error {
        ValueError::Invalid(why) => why,
        ValueError::Unsupported(instead) => instead.to_owned(),
    }
}

pub(super) fn invalid<T>(value: &str, expected: &str) -> Result<T, ValueError> {
    Err(ValueError::Invalid(format!("'{}' is not {expected}", shown(value))))
}

/// A boolean, in the spellings that Go accepts, and yes, no, on, off.
pub(super) fn boolean(value: &str) -> Result<bool, ValueError> {
    match value {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => invalid(value, "true or false"),
    }
}

pub(crate) fn number<T: std::str::FromStr>(value: &str, expected: &str) -> Result<T, ValueError> {
    // FromStr accepts a plus sign; the other values have none.
    if value.starts_with('+') {
        return invalid(value, expected);
    }
    value.parse().or_else(|_| invalid(value, expected))
}

/// A limit or a weight; 0 is none, or the default.
pub(crate) fn limit(value: &str, expected: &str) -> Result<Option<u64>, ValueError> {
    Ok(Some(number(value, expected)?).filter(|limit| *limit > 0))
}

/// Microseconds of CPU time; 0, and docker's -1, are no limit.
pub(crate) fn cpu_quota(value: &str) -> Result<Option<u64>, ValueError> {
    if value == "-1" { Ok(None) } else { limit(value, "a number of microseconds") }
}

/// A number of processes; 0, and docker's -1, are no limit, which is stored as 0: without a number, the default limit
/// applies.
pub(crate) fn pids_limit(value: &str) -> Result<u64, ValueError> {
    if value == "-1" { Ok(0) } else { number(value, "a number of processes") }
}

/// Processors or memory nodes; empty: all.
pub(crate) fn cpuset(value: &str) -> Result<Option<CpusetList>, ValueError> {
    if value.is_empty() { Ok(None) } else { Ok(Some(value.parse()?)) }
}

/// A non-empty text.
pub(super) fn text(value: &str) -> Result<String, ValueError> {
    if value.is_empty() { Err(ValueError::Invalid("it must not be empty".into())) } else { Ok(value.to_owned()) }
}

/// A word without spaces, for a line of several.
pub(super) fn word(value: &str) -> Result<String, ValueError> {
    if value.chars().any(|c| c.is_whitespace() || c.is_control() || c == ',') {
        return invalid(value, "one word; the flag can be repeated");
    }
    text(value)
}

/// `NAME=VALUE`.
pub(super) fn pair(value: &str) -> Result<(String, String), ValueError> {
    match value.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => invalid(value, "NAME=VALUE"),
    }
}

/// `NAME=VALUE`, or `NAME` for an empty value, as docker takes labels.
pub(super) fn label(value: &str) -> Result<(String, String), ValueError> {
    match value.contains('=') || value.is_empty() {
        true => pair(value),
        false => Ok((value.to_owned(), String::new())),
    }
}

/// `NAME=VALUE`, or `NAME` for the caller's variable of that name. `None`: the caller has none, and as in docker the
/// app gets none.
pub(super) fn variable(
    value: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(String, String)>, ValueError> {
    let (name, value) = match value.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (value, lookup(value)),
    };
    check_variable_name(name)?;
    Ok(value.map(|value| (name.to_owned(), value)))
}

/// Checks the name of a variable that a user wrote. White space and quotes are mistakes there: quotes that a shell
/// would have removed, or spaces around `=`. Images and API clients may have such names.
///
/// # Errors
/// [`ValueError::Invalid`]
pub(crate) fn check_variable_name(name: &str) -> Result<(), ValueError> {
    let why = match name.chars().find(|c| c.is_whitespace() || matches!(c, '"' | '\'')) {
        Some(c) if c.is_whitespace() => "contains white space",
        Some(_) => "contains a quote",
        None => return Ok(gantry_model::spec::environment_name(name)?),
    };
    Err(ValueError::Invalid(format!("the name of a variable, '{}', {why}: write NAME=VALUE", shown(name))))
}

/// An amount of memory; 0 is no limit.
pub(crate) fn memory_limit(value: &str) -> Result<Option<u64>, ValueError> {
    Ok(Some(quantity::memory(value)?).filter(|bytes| *bytes > 0))
}

/// Cpu in thousandths of a core; 0 is no limit.
pub(crate) fn cpu_limit(value: &str) -> Result<Option<u64>, ValueError> {
    Ok(quantity::cpu_limit(value)?)
}

/// An amount of memory, or -1; 0 is as if it was not given.
pub(crate) fn memory_swap(value: &str) -> Result<Option<i64>, ValueError> {
    if value == "-1" {
        return Ok(Some(-1));
    }
    let bytes = i64::try_from(quantity::memory(value)?).or_else(|_| invalid(value, "less than 8 EiB"))?;
    Ok(Some(bytes).filter(|bytes| *bytes != 0))
}

/// A weight of docker's and cgroup v1's (10 to 1000) as one of cgroup v2, as runc converts it; 0 is the default.
pub(crate) fn blkio_weight(value: &str) -> Result<Option<u64>, ValueError> {
    match number::<u64>(value, "a weight")? {
        0 => Ok(None),
        weight @ 10..=1000 => Ok(Some(1 + (weight - 10) * 9999 / 990)),
        _ => invalid(value, "a weight of 10 to 1000"),
    }
}

/// `PATH:RATE`.
pub(crate) fn device_rate(value: &str, rate: DeviceIoRate) -> Result<(String, u64), ValueError> {
    let Some((path, limit)) = value.rsplit_once(':').filter(|(path, _)| path.starts_with('/')) else {
        return invalid(value, "the path of a block device and a rate: expected one such as /dev/sda:1mb");
    };
    let limit = match rate {
        DeviceIoRate::ReadBps | DeviceIoRate::WriteBps => quantity::memory(limit)?,
        DeviceIoRate::ReadIops | DeviceIoRate::WriteIops => number(limit, "a number of operations per second")?,
    };
    Ok((path.to_owned(), limit))
}

/// `SIZE=BYTES`.
pub(crate) fn hugetlb_limit(value: &str) -> Result<(HugePageSize, u64), ValueError> {
    let (size, bytes) = pair(value)?;
    Ok((size.parse()?, quantity::memory(&bytes)?))
}

/// Names of capabilities, with or without `CAP_`, in any case, comma-separated.
pub(super) fn capabilities(value: &str, all: bool) -> Result<BTreeSet<String>, ValueError> {
    let one = |name: &str| {
        let upper = name.trim().to_ascii_uppercase();
        let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
        let known = gantry_model::spec::CAPABILITIES.contains(&full.as_str()) || (all && full == ALL_CAPABILITIES);
        if known { Ok(full) } else { invalid(name, "a capability: expected a name such as CAP_NET_RAW") }
    };
    // The list may be empty: --caps-retain= retains no capability.
    value.split(',').filter(|name| !name.is_empty()).map(one).collect()
}

/// The value of --volume: rkt's `NAME,kind=…` defines a volume; docker's `HOST:APP[:ro]`, `NAME:APP[:ro]` and `APP`
/// mount a directory of the host, a named volume, or an anonymous volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Volume {
    Named(VolumeSpec),
    Bind(Bind),
}

/// Parses --volume; relative paths of the host refer to `directory`.
pub(super) fn volume(value: &str, directory: Option<&Path>) -> Result<Volume, ValueError> {
    if value.contains(",kind=") {
        return named_volume(value).map(Volume::Named);
    }
    let mut parts = value.split(':');
    let (first, target) = (parts.next().unwrap_or_default(), parts.next());
    let (source, target) = match (target, host_path(first, directory)?) {
        (None, _) if first.starts_with('/') => (BindSource::Anonymous, first),
        (Some(target), Some(source)) => (BindSource::Host(source), target),
        (Some(target), None) if target.starts_with('/') && first.parse::<VolumeName>().is_ok() => {
            (BindSource::Named(first.parse()?), target)
        }
        _ => {
            return Err(ValueError::Invalid(format!(
                "'{}' is neither /host/path:/path/in/app[:ro], VOLUME:/path/in/app[:ro], /path/in/app, nor \
                 NAME,kind=host,source=/path, NAME,kind=named or NAME,kind=empty",
                shown(value)
            )));
        }
    };
    let (mut read_only, mut propagation) = (false, Propagation::Private);
    for option in parts.flat_map(|options| options.split(',')) {
        match option {
            "ro" => read_only = true,
            // Ignored: SELinux labels (z, Z), the defaults of binds, and docker's hints for other systems.
            "rw" | "rbind" | "z" | "Z" | "cached" | "delegated" | "consistent" => {}
            "private" | "rprivate" | "slave" | "rslave" | "shared" | "rshared" => propagation = option.parse()?,
            _ => return invalid(option, "an option of a mount: ro, rw, rslave or rshared"),
        }
    }
    // Later mounts of the host below a volume are as writable as there.
    let options = MountOptions { propagation, writable_submounts: propagation.propagates() };
    Ok(Volume::Bind(Bind { source, target: target.to_owned(), read_only, options }))
}

/// The absolute path of a path of the host; `None`: it is a name.
fn host_path(source: &str, directory: Option<&Path>) -> Result<Option<String>, ValueError> {
    if source.starts_with('/') {
        return Ok(Some(source.to_owned()));
    }
    if !matches!(source.split('/').next(), Some("." | "..")) {
        return Ok(None);
    }
    let joined = directory.map(|directory| without_dots(&directory.join(source)));
    match joined.as_deref().map(Path::to_str) {
        Some(Some(path)) => Ok(Some(path.to_owned())),
        Some(None) => {
            Err(ValueError::Invalid(format!("'{}': the working directory's path is not UTF-8", shown(source))))
        }
        None => Err(ValueError::Invalid(format!("'{}': the working directory does not exist", shown(source)))),
    }
}

/// The path without `.` and `..`, resolved lexically as in docker: symbolic links are not followed.
fn without_dots(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

fn named_volume(value: &str) -> Result<VolumeSpec, ValueError> {
    let mut parts = value.split(',');
    let name: AppName = parts.next().unwrap_or_default().parse()?;
    let (mut kind, mut source, mut read_only, mut recursive) = (None, None, false, true);
    let (mut mode, mut uid, mut gid) = (0o755, 0, 0);
    let (mut host_key, mut empty_key) = (None, None);
    for part in parts {
        let (key, value) = pair(part)?;
        match key.as_str() {
            "kind" => kind = Some(value),
            "readOnly" => read_only = boolean(&value)?,
            "source" => source = Some(text(&value)?),
            "recursive" => recursive = boolean(&value)?,
            "mode" => mode = octal(&value)?,
            "uid" => uid = number(&value, "a user number")?,
            "gid" => gid = number(&value, "a group number")?,
            _ => return invalid(&key, "a key of a volume: kind, source, readOnly, recursive, mode, uid or gid"),
        }
        match key.as_str() {
            "source" => {}
            "recursive" => host_key = Some(key),
            "mode" | "uid" | "gid" => empty_key = Some(key),
            _ => {}
        }
    }
    let kind = match (kind.as_deref(), host_key, empty_key) {
        (Some("host"), _, None) => match source {
            Some(source) => VolumeKind::Host { source, recursive },
            None => return Err(ValueError::Invalid("a volume of kind host needs source=/path".into())),
        },
        (Some("empty"), None, _) if source.is_none() => VolumeKind::Empty { mode, uid, gid },
        (Some("named"), None, None) => {
            VolumeKind::Named { volume: source.unwrap_or_else(|| name.to_string()).parse()? }
        }
        (Some(kind @ ("host" | "empty" | "named")), host_key, empty_key) => {
            let key = if kind == "host" { empty_key } else { host_key.or(empty_key) };
            let key = key.unwrap_or_else(|| "source".to_owned());
            return Err(ValueError::Invalid(format!("{key}= has no meaning for a volume of kind {kind}")));
        }
        (kind, _, _) => return invalid(kind.unwrap_or_default(), "a kind of volume: host, named or empty"),
    };
    Ok(VolumeSpec { name, kind, read_only })
}

fn octal(value: &str) -> Result<u32, ValueError> {
    let mode = value.bytes().all(|c| (b'0'..=b'7').contains(&c)).then(|| u32::from_str_radix(value, 8).ok()).flatten();
    match mode.filter(|mode| *mode <= 0o7777) {
        Some(mode) => Ok(mode),
        None => invalid(value, "permission bits such as 0755"),
    }
}

/// rkt's `mode=retain|remove[,errno=E],name,name…`.
pub(super) fn seccomp(value: &str) -> Result<Seccomp, ValueError> {
    if value == "unconfined" {
        return Ok(Seccomp::Unconfined);
    }
    let (mut mode, mut errno, mut names) = (None, 1, BTreeSet::new());
    for part in value.split(',') {
        match part.split_once('=') {
            Some(("mode", value)) => mode = Some(value),
            Some(("errno", value)) => errno = error_number(value)?,
            Some((key, _)) => return invalid(key, "a key of --seccomp: mode or errno"),
            None if part.starts_with('@') => {
                return Err(ValueError::Unsupported("groups of system calls are not supported: name the calls"));
            }
            None => {
                let fits = (1..=64).contains(&part.len())
                    && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
                if !fits {
                    return invalid(part, "the name of a system call");
                }
                names.insert(part.to_owned());
            }
        }
    }
    match mode {
        Some("retain" | "remove") if names.is_empty() => Err(ValueError::Invalid("it names no system call".into())),
        Some("retain") => Ok(Seccomp::Retain { names, errno }),
        Some("remove") => Ok(Seccomp::Remove { names, errno }),
        _ => invalid(
            mode.unwrap_or(value),
            "a mode of --seccomp: unconfined, or mode=retain or mode=remove and the names of system calls",
        ),
    }
}

fn error_number(value: &str) -> Result<u16, ValueError> {
    let named = gantry_model::errno::number(value);
    let numbered = || number::<u16>(value, "").ok().filter(|n| (1..4096).contains(n));
    match named.or_else(numbered) {
        Some(number) => Ok(number),
        None => invalid(value, "an error such as EPERM or ENOSYS, or its number"),
    }
}

/// A signal by number or name, with or without `SIG`; real-time signals as `RTMIN+n` and `RTMAX-n`.
pub(super) fn stop_signal(value: &str) -> Result<u8, ValueError> {
    gantry_model::signal::parse(value).map_err(|error| ValueError::Invalid(error.to_string()))
}

/// Adds groups, comma-separated: numbers, or names that the image defines.
pub(super) fn add_groups(value: &str, groups: &mut SupplementaryGroups) -> Result<(), ValueError> {
    for group in value.split(',') {
        if !group.is_empty() && group.bytes().all(|c| c.is_ascii_digit()) {
            groups.gids.push(number(group, "a group number")?);
        } else {
            check_group_name(group).map_err(|error| ValueError::Invalid(error.to_string()))?;
            groups.names.push(group.to_owned());
        }
    }
    Ok(())
}
