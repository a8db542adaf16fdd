//! Whose an address is: one interface of one pod.

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
    /// The pod by its id (in CNI: the container's), the interface by its name in the pod.
    ///
    /// # Errors
    ///
    /// [`IpamError::Invalid`] when either has characters it may not have (CNI specification 1.1.0, section 2).
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

    /// The name of its record. Neither part has a colon.
    pub(super) fn file(&self) -> String {
        format!("{}:{}", self.pod, self.interface)
    }

    /// The owner a record's name says.
    pub(super) fn of_file(name: &str) -> Option<Self> {
        let (pod, interface) = name.split_once(':')?;
        Self::new(pod, interface).ok()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod {} ({})", self.pod, self.interface)
    }
}
