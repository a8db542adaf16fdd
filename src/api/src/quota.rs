//! Limits on connections and streams, in all and per client. Each costs memory for the data it has in flight.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tonic::Status;

use crate::peer::Peer;

/// A limited number of connections, or of streams of one kind.
pub(crate) struct Quota {
    limit: usize,
    shared: Arc<Shared>,
}

struct Shared {
    used: Mutex<Used>,
    freed: Notify,
}

#[derive(Default)]
struct Used {
    root: usize,
    network: usize,
    users: usize,
    certificates: usize,
    by_certificate: HashMap<u64, usize>,
    by_user: HashMap<u32, usize>,
}

/// One of them, released when dropped.
pub(crate) struct QuotaPermit {
    shared: Arc<Shared>,
    peer: Peer,
}

impl Quota {
    /// An unused quota with this limit.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, shared: Arc::new(Shared { used: Mutex::default(), freed: Notify::new() }) }
    }

    /// Takes one from the client's share.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the share is used up.
    pub(crate) fn acquire(&self, peer: Peer) -> Result<QuotaPermit, Status> {
        let mut used = self.shared.lock();
        let (count, share) = match peer {
            Peer::Root => (0, usize::MAX),
            Peer::Network => (used.network, self.limit / 2),
            Peer::Certificate { .. } if used.certificates >= self.limit / 2 => (used.certificates, self.limit / 2),
            Peer::Certificate { hash, .. } => (used.by_certificate.get(&hash).copied().unwrap_or(0), self.limit / 8),
            Peer::User { .. } if used.users >= self.limit / 2 => (used.users, self.limit / 2),
            Peer::User { uid, .. } => (used.by_user.get(&uid).copied().unwrap_or(0), self.limit / 8),
        };
        if count >= share {
            return Err(Status::resource_exhausted(format!(
                "this client, or all clients of its kind together, have reached the limit of {share} connections or \
                 streams: close some, or try again later"
            )));
        }
        used.count(peer, 1);
        Ok(QuotaPermit { shared: Arc::clone(&self.shared), peer })
    }

    /// Waits until the client's share has one, and takes it.
    pub(crate) async fn acquire_when_free(&self, peer: Peer) -> QuotaPermit {
        loop {
            // Before the attempt, so that a release in between is not missed.
            let freed = self.shared.freed.notified();
            if let Ok(permit) = self.acquire(peer) {
                return permit;
            }
            freed.await;
        }
    }

    /// The number in use.
    pub(crate) fn used(&self) -> usize {
        let used = self.shared.lock();
        used.root + used.network + used.certificates + used.users
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    /// Changes the count of a client.
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
            Peer::Certificate { hash, .. } => {
                add(&mut self.certificates);
                let of_certificate = self.by_certificate.entry(hash).or_default();
                add(of_certificate);
                if *of_certificate == 0 {
                    self.by_certificate.remove(&hash);
                }
            }
        }
    }
}

impl Drop for QuotaPermit {
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
    fn each_client_has_a_share_except_root() {
        let quota = Quota::new(16);
        let take = |peer, count: usize| (0..count).filter_map(|_| quota.acquire(peer).ok()).collect::<Vec<_>>();
        let network = take(Peer::Network, 20);
        let first = take(user(1), 20);
        let others: Vec<_> = (2..20).flat_map(|uid| take(user(uid), 20)).collect();
        let certificates: Vec<_> =
            (0..20).flat_map(|hash| take(Peer::Certificate { hash, administrator: true }, 20)).collect();
        let root = take(Peer::Root, 100);
        assert_eq!((network.len(), first.len(), others.len(), root.len()), (8, 2, 6, 100));
        assert_eq!(certificates.len(), 8);
        assert_eq!(quota.used(), 124);
        let refused = quota.acquire(user(1)).map(drop).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!(refused.message().contains("the limit of 8 connections or streams"), "{refused}");
        drop(first);
        assert_eq!(take(user(30), 20).len(), 2, "a dropped permit is free again");
        drop((network, others, certificates, root));
        assert_eq!(quota.used(), 0);
        assert!(quota.shared.lock().by_user.is_empty());
    }

    #[test]
    fn waiting_clients_get_a_released_permit() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let quota = Quota::new(2);
            let permit = quota.acquire(Peer::Network).ok();
            let mut waiting = std::pin::pin!(quota.acquire_when_free(Peer::Network));
            let mut waker = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(waiting.as_mut().poll(&mut waker).is_pending());
            drop(permit);
            drop(waiting.await);
        });
    }
}
