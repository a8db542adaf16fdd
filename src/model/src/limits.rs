//! Resource limits of an app.

use serde::{Deserialize, Serialize};

use crate::spec::{SpecError, out_of_range};

/// Resource limits of an app; `None` is no limit, and so is a field that is missing in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Bytes of memory; at least 4096.
    pub memory: Option<u64>,
    /// Bytes of memory and swap together, at least `memory`; -1 is no limit of swap. `None`: no swap if `memory` is
    /// given.
    #[serde(default)]
    pub memory_swap: Option<i64>,
    /// Thousandths of a core (CFS quota).
    pub cpu_milli: Option<u64>,
    /// Relative weight as in cgroup v1 `cpu.shares`, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// Number of processes and threads; 0 is no limit, `None` [`DEFAULT_PIDS_LIMIT`].
    pub pids: Option<u64>,
}

/// The limit of processes and threads of an app for which none is given: a fork bomb must not take the host's process
/// numbers. Ignored where the kernel cannot limit them. podman's default is 2048.
pub const DEFAULT_PIDS_LIMIT: u64 = 4096;

impl Limits {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
        let range = |what, value: Option<u64>, low: u64, high: u64, range| match value {
            Some(v) if v < low || v > high => Err(out_of_range(what, v, range)),
            _ => Ok(()),
        };
        range("--memory", self.memory, 4096, i64::MAX.unsigned_abs(), "at least 4096 bytes")?;
        match (self.memory_swap, self.memory) {
            (Some(_), None) => return Err(SpecError::new("--memory-swap needs --memory")),
            (Some(swap), Some(memory)) if swap != -1 && u64::try_from(swap).map_or(true, |swap| swap < memory) => {
                return Err(out_of_range("--memory-swap", swap, "-1 (unlimited), or at least --memory"));
            }
            _ => {}
        }
        range("--cpu-shares", self.cpu_shares, 2, 262_144, "2 to 262144")?;
        range("--pids-limit", self.pids, 0, 4_194_304, "0 (none) to 4194304")
    }
}
