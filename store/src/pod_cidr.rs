//! `DIR/pod-cidr`: the address ranges of the node's pods, as the kubelet gave them last.

use std::io;
use std::sync::{Mutex, PoisonError};

use gantry_host::file::read_bounded;

use crate::{Store, StoreError, record};

/// The longest file, in bytes.
const MAX_FILE: u64 = 4096;

/// Two writers would share a temporary file. Only gantryd writes.
static WRITING: Mutex<()> = Mutex::new(());

impl Store {
    /// The text that [`Self::set_pod_cidr`] stored; `None`: it never did.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn pod_cidr(&self) -> Result<Option<String>, StoreError> {
        let path = self.layout().pod_cidr();
        match read_bounded(&path, MAX_FILE) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path)(error)),
        }
    }

    /// Stores the text, durably.
    ///
    /// # Errors
    /// [`StoreError::Io`]; then the earlier one counts.
    pub fn set_pod_cidr(&self, text: &str) -> Result<(), StoreError> {
        let _one_writer = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        record::write(self.layout(), &self.layout().pod_cidr(), &format!("{text}\n"))
    }
}
