//! Limits on what pods ask of the resolver: a query rate per pod, and for all pods together a budget of forwarded
//! queries in flight and one of TCP connections. Queries and connections beyond a limit are dropped; clients retry, as
//! after packet loss. The budgets are separate, so that idle connections leave room for queries (RFC 7766 section
//! 6.2.3).
//!
//! A budget is shared by dynamic thresholds (Choudhury and Hahne, 1998): a pod may hold as many permits as are free.
//! So n pods that flood hold an nth each, and as much stays free for the next one, however many they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of queries of one pod within [`RATE_INTERVAL`].
const MAX_QUERIES: u32 = 1000;
/// See [`MAX_QUERIES`].
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of forwarded queries in flight for one pod, and maximum number of its TCP connections.
pub(crate) const MAX_PERMITS_PER_POD: usize = 64;
/// Maximum number of forwarded queries in flight for all pods, and of TCP connections. Each takes a socket.
const MAX_PERMITS: usize = 512;
/// Maximum number of pods with recent activity. A pod that can take any address of a large subnet appears as several;
/// beyond this number new ones are not served.
const MAX_PODS: usize = 8192;

/// The load of one pod.
#[derive(Debug, Default)]
struct PodLoad {
    /// Start of the interval in which `queries` are counted.
    since: Option<Instant>,
    queries: u32,
    forwards: PodPermits,
    connections: PodPermits,
}

/// The permits of one pod from one budget. Cloned into each of them, so that the reference count is their number plus
/// one.
#[derive(Debug, Default)]
struct PodPermits(Arc<()>);

impl PodPermits {
    fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

impl PodLoad {
    fn permits(&self, kind: PermitKind) -> &PodPermits {
        match kind {
            PermitKind::Forward => &self.forwards,
            PermitKind::Connection => &self.connections,
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.forwards.count() + self.connections.count() == 0
            && self.since.is_none_or(|since| now.saturating_duration_since(since) >= RATE_INTERVAL)
    }
}

/// The limits. The address identifies a pod; see `ClientNames::key`.
#[derive(Debug)]
pub(crate) struct Limits {
    forwards: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    pods: Mutex<HashMap<IpAddr, PodLoad>>,
}

/// The budget that a permit is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitKind {
    /// A query that is forwarded to a server of the host.
    Forward,
    /// A TCP connection, from its acceptance to its end.
    Connection,
}

/// The right to one forwarded query or connection; returned on drop.
#[derive(Debug)]
pub(crate) struct Permit {
    _budget: OwnedSemaphorePermit,
    _pod: Arc<()>,
}

impl Default for Limits {
    fn default() -> Self {
        let budget = || Arc::new(Semaphore::new(MAX_PERMITS));
        Self { forwards: budget(), connections: budget(), pods: Mutex::default() }
    }
}

impl Limits {
    /// Counts a query, and returns whether it is within the rate of its pod.
    pub(crate) fn admits_query(&self, pod: IpAddr, now: Instant) -> bool {
        let admitted = self.with_pod(pod, now, |load| {
            if load.since.is_none_or(|since| now.saturating_duration_since(since) >= RATE_INTERVAL) {
                (load.since, load.queries) = (Some(now), 0);
            }
            load.queries = load.queries.saturating_add(1);
            load.queries <= MAX_QUERIES
        });
        admitted.unwrap_or(false)
    }

    /// Acquires a permit; `None` if the pod or all pods together are at the limit.
    pub(crate) fn try_acquire(&self, kind: PermitKind, pod: IpAddr, now: Instant) -> Option<Permit> {
        let budget = match kind {
            PermitKind::Forward => &self.forwards,
            PermitKind::Connection => &self.connections,
        };
        let acquire = |load: &mut PodLoad| {
            let permits = load.permits(kind);
            if permits.count() >= MAX_PERMITS_PER_POD.min(budget.available_permits()) {
                return None;
            }
            let permit = Arc::clone(budget).try_acquire_owned().ok()?;
            Some(Permit { _budget: permit, _pod: Arc::clone(&permits.0) })
        };
        self.with_pod(pod, now, acquire).flatten()
    }

    /// Calls `act` with the load of a pod; `None` if there are too many pods.
    fn with_pod<T>(&self, pod: IpAddr, now: Instant, act: impl FnOnce(&mut PodLoad) -> T) -> Option<T> {
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if pods.len() >= MAX_PODS && !pods.contains_key(&pod) {
            pods.retain(|_, load| !load.is_idle(now));
            if pods.len() >= MAX_PODS {
                return None;
            }
        }
        Some(act(pods.entry(pod).or_default()))
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
