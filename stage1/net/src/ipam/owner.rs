//! The owner of an address: one interface of one pod.

use std::fmt;

use super::error::IpamError;
use crate::config::{is_interface_name, is_name};

/// An interface of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pod: String,
    interface: String,
}

impl Owner {
    /// `pod` is the pod's id (the container id of CNI), `interface` the name of the interface in the pod.
    ///
    /// # Errors
    ///
    /// [`IpamError::Invalid`]: a name contains invalid characters (CNI specification 1.1.0, section 2).
    pub fn new(pod: &str, interface: &str) -> Result<Self, IpamError> {
        let shown = gantry_model::id::shown;
        if !is_name(pod) {
            return Err(IpamError::Invalid(format!("'{}' is not a pod's id", shown(pod))));
        }
        if !is_interface_name(interface) {
            return Err(IpamError::Invalid(format!("'{}' is not an interface's name", shown(interface))));
        }
        Ok(Self { pod: pod.to_owned(), interface: interface.to_owned() })
    }

    /// The pod's id.
    #[must_use]
    pub fn pod(&self) -> &str {
        &self.pod
    }

    /// The interface's name in the pod.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// The name of its record. Neither part contains a colon.
    pub(super) fn file_name(&self) -> String {
        format!("{}:{}", self.pod, self.interface)
    }

    /// The owner from the name of a record.
    pub(super) fn from_file_name(name: &str) -> Option<Self> {
        let (pod, interface) = name.split_once(':')?;
        Self::new(pod, interface).ok()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} ({})", self.pod, self.interface)
    }
}
