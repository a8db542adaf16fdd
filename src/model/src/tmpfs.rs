//! File systems in memory (`--tmpfs`).

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::quantity;
use crate::spec::{SpecError, check_memory_size, check_path, out_of_range};

/// A file system in memory (tmpfs(5)), of one app. Neither device nodes nor set-user-ID bits have an effect in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TmpfsMount {
    /// Absolute path in the app's root, without `..`.
    pub target: String,
    /// The maximum size of its contents in bytes; `None`: the kernel's default, half of the memory.
    pub size: Option<u64>,
    /// Permission bits of its top directory.
    pub mode: u32,
    /// The owner of its top directory.
    pub uid: u32,
    /// The group of its top directory.
    pub gid: u32,
    /// Whether programs in it can be executed.
    pub exec: bool,
    /// Whether it is read-only.
    pub read_only: bool,
}

impl std::str::FromStr for TmpfsMount {
    type Err = SpecError;

    /// Parses docker's `TARGET[:OPTION,…]`.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (target, options) = text.split_once(':').unwrap_or((text, ""));
        let target = target.to_owned();
        let mut tmpfs = Self { target, size: None, mode: 0o1777, uid: 0, gid: 0, exec: false, read_only: false };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            let invalid = |expected: &str| SpecError::new(format!("'{}' is not {expected}", shown(option)));
            let number = || value.parse().map_err(|_| invalid("a number of a user or group, such as uid=1000"));
            match key {
                "size" => {
                    let size = quantity::memory(value).map_err(|error| SpecError::new(error.to_string()))?;
                    tmpfs.size = Some(size);
                }
                "mode" => {
                    let bits = u32::from_str_radix(value, 8).ok().filter(|_| !value.starts_with('+'));
                    tmpfs.mode = bits.ok_or_else(|| invalid("permission bits such as mode=1777"))?;
                }
                "uid" => tmpfs.uid = number()?,
                "gid" => tmpfs.gid = number()?,
                "exec" if value.is_empty() => tmpfs.exec = true,
                "noexec" if value.is_empty() => tmpfs.exec = false,
                "ro" if value.is_empty() => tmpfs.read_only = true,
                "rw" if value.is_empty() => tmpfs.read_only = false,
                // Always set.
                "nosuid" | "nodev" if value.is_empty() => {}
                _ => return Err(invalid("an option of a tmpfs: size, mode, uid, gid, exec, noexec, ro or rw")),
            }
        }
        tmpfs.validate()?;
        Ok(tmpfs)
    }
}

impl TmpfsMount {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        check_path("tmpfs target", &self.target)?;
        check_memory_size("tmpfs size", self.size)?;
        if self.mode > 0o7777 {
            return Err(out_of_range("tmpfs mode", format_args!("{:o}", self.mode), "0 to 7777"));
        }
        Ok(())
    }
}
