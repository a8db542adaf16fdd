//! Objects of which one call of this process has the exclusive right at a time.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

/// The objects that are claimed. A sender is dropped with its entry when the claim ends.
pub(crate) struct Claims<K>(Mutex<BTreeMap<K, watch::Sender<()>>>);

impl<K: Ord + Clone> Claims<K> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Claims an object until the claim is dropped.
    ///
    /// # Errors
    /// Another call has claimed it. The receiver, to which nothing is sent, is closed when that claim ends.
    pub(crate) fn claim(&'static self, key: K) -> Result<Claim<K>, watch::Receiver<()>> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key) {
            Entry::Vacant(place) => {
                let key = place.key().clone();
                place.insert(watch::Sender::new(()));
                Ok(Claim { key, claims: self })
            }
            Entry::Occupied(claimed) => Err(claimed.get().subscribe()),
        }
    }
}

/// The claim of one object.
pub(crate) struct Claim<K: Ord + 'static> {
    /// The object.
    pub(crate) key: K,
    claims: &'static Claims<K>,
}

impl<K: Ord> Drop for Claim<K> {
    fn drop(&mut self) {
        self.claims.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}
