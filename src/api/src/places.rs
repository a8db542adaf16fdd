//! How many of a thing there may be, connections or streams of a sort, and how many of them one client may have: each costs
//! memory for what is on its way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tonic::Status;

use crate::peer::Peer;

/// So many places.
pub(crate) struct Places {
    most: usize,
    shared: Arc<Shared>,
}

struct Shared {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    root: usize,
    network: usize,
    users: usize,
    by_user: HashMap<u32, usize>,
}

/// A place, until it is dropped.
pub(crate) struct Place {
    shared: Arc<Shared>,
    peer: Peer,
}

impl Places {
    /// All of them free.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, shared: Arc::new(Shared { taken: Mutex::default(), freed: Notify::new() }) }
    }

    /// Takes one of the client's share.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when none is free.
    pub(crate) fn take(&self, peer: Peer) -> Result<Place, Status> {
        let mut taken = self.shared.lock();
        let (used, share) = match peer {
            Peer::Root => (0, usize::MAX),
            Peer::Network => (taken.network, self.most / 2),
            Peer::User { .. } if taken.users >= self.most / 2 => (taken.users, self.most / 2),
            Peer::User { uid, .. } => (taken.by_user.get(&uid).copied().unwrap_or(0), self.most / 8),
        };
        if used >= share {
            return Err(Status::resource_exhausted(format!(
                "{share} of these are open for this client or for others like it: close some, or try later"
            )));
        }
        taken.count(peer, 1);
        Ok(Place { shared: Arc::clone(&self.shared), peer })
    }

    /// Takes one as soon as one is free.
    pub(crate) async fn wait(&self, peer: Peer) -> Place {
        loop {
            // Before it is looked: a place that becomes free in between counts.
            let freed = self.shared.freed.notified();
            if let Ok(place) = self.take(peer) {
                return place;
            }
            freed.await;
        }
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        let taken = self.shared.lock();
        taken.root + taken.network + taken.users
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Adds to the count of a client, or takes away from it.
    fn count(&mut self, peer: Peer, change: isize) {
        let add = |count: &mut usize| *count = count.saturating_add_signed(change);
        match peer {
            Peer::Root => add(&mut self.root),
            Peer::Network => add(&mut self.network),
            Peer::User { uid, .. } => {
                add(&mut self.users);
                let of_user = self.by_user.entry(uid).or_default();
                add(of_user);
                if *of_user == 0 {
                    self.by_user.remove(&uid);
                }
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.shared.lock().count(self.peer, -1);
        self.shared.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32) -> Peer {
        Peer::User { uid, member: false }
    }

    #[test]
    fn each_client_has_a_share_and_root_is_never_refused() {
        let places = Places::new(16);
        let take = |peer, count: usize| (0..count).filter_map(|_| places.take(peer).ok()).collect::<Vec<_>>();
        let network = take(Peer::Network, 20);
        let first = take(user(1), 20);
        let others: Vec<_> = (2..20).flat_map(|uid| take(user(uid), 20)).collect();
        let root = take(Peer::Root, 100);
        assert_eq!((network.len(), first.len(), others.len(), root.len()), (8, 2, 6, 100));
        assert_eq!(places.taken(), 116);
        let refused = places.take(user(1)).map(drop).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        drop(first);
        assert_eq!(take(user(30), 20).len(), 2, "a place is free again when it is left");
        drop((network, others, root));
        assert_eq!(places.taken(), 0);
        assert!(places.shared.lock().by_user.is_empty());
    }

    #[test]
    fn a_place_can_be_waited_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let places = Places::new(2);
            let place = places.take(Peer::Network).ok();
            let mut waiting = std::pin::pin!(places.wait(Peer::Network));
            let mut waker = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waiting.as_mut().poll(&mut waker).is_pending());
            drop(place);
            drop(waiting.await);
        });
    }
}
