//! A system call filter as a list of rules: what a profile of OCI runtimes (runtime specification, config-linux.md,
//! "Seccomp") means for one host and one set of capabilities.

use serde::{Deserialize, Serialize};

use crate::id::shown;
use crate::spec::{SpecError, check_count};

/// The most rules of a profile.
const MAX_RULES: usize = 2048;
/// The most names of system calls in a profile: it travels in one message to the supervisor.
const MAX_NAMES: usize = 4096;
/// The longest name of a system call, in bytes.
const MAX_NAME: usize = 64;

/// The action of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeccompAction {
    /// The call is executed.
    Allow,
    /// The call fails with this error number.
    Errno(u16),
    /// The call is executed and logged.
    Log,
    /// The thread gets SIGSYS.
    Trap,
    /// The thread is killed.
    KillThread,
    /// The process is killed.
    KillProcess,
    /// A tracer is notified, which gets this number; without one the call fails with ENOSYS.
    Trace(u16),
}

/// A comparison of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeccompTest {
    /// Not equal to.
    Ne(u64),
    /// Less than.
    Lt(u64),
    /// Less than or equal to.
    Le(u64),
    /// Equal to.
    Eq(u64),
    /// Greater than or equal to.
    Ge(u64),
    /// Greater than.
    Gt(u64),
    /// The bits of the mask are equal to the value.
    MaskedEq {
        /// The mask.
        mask: u64,
        /// The value.
        value: u64,
    },
}

/// A condition of a rule: the position of an argument, from 0 to 5, and what it is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompArgument {
    /// The position.
    pub index: u8,
    /// The comparison, of all 64 bits.
    pub test: SeccompTest,
}

/// A rule for some system calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompRule {
    /// Names; those that the host's architecture lacks have no effect.
    pub names: Vec<String>,
    /// Its action.
    pub action: SeccompAction,
    /// Conditions, which must all hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arguments: Vec<SeccompArgument>,
}

/// A filter: for each call, the first rule with conditions that hold, or else the first one without conditions, or else
/// the default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeccompProfile {
    /// The action for calls without a rule.
    pub default: SeccompAction,
    /// The rules, in the order of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<SeccompRule>,
}

impl SeccompProfile {
    /// Checks the number of rules, the names, and the positions of arguments.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn validate(&self) -> Result<(), SpecError> {
        check_count("rules of a seccomp profile", self.rules.len(), MAX_RULES)?;
        let names = || self.rules.iter().flat_map(|rule| &rule.names);
        check_count("names in a seccomp profile", names().count(), MAX_NAMES)?;
        let is_name = |name: &&String| {
            (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
        };
        if let Some(bad) = names().find(|name| !is_name(name)) {
            return Err(SpecError::new(format!("'{}' cannot be the name of a system call", shown(bad))));
        }
        match self.rules.iter().flat_map(|rule| &rule.arguments).find(|argument| argument.index > 5) {
            Some(argument) => {
                Err(SpecError::new(format!("a system call has no argument {}: they are 0 to 5", argument.index)))
            }
            None => Ok(()),
        }
    }
}
