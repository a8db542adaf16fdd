//! The ids of pods as services, as ServiceList has them, for streams of events: events have the UUID of their pod.
//!
//! The store is read again when an event is newer than the ids: a pod may have been created or renamed before it. All
//! streams share what was read. Names of pods are unique, so reading the rows of an event's pods is enough. The ids of
//! pods that a kubelet made are not: which of several has it depends on all pods, which are read at a limited rate, and
//! streams send larger batches meanwhile. A pod that was removed has the name in the event of its removal; a sandbox of
//! a kubelet, the id that a stream has read last.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::Observer;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::Status;

use super::service_list::{is_part_id, read_all_service_ids, read_service_ids};
use crate::bridge::Weight;
use crate::context::Context;
use crate::status::from_error;

/// Minimum time between two reads of all pods.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum sandboxes whose ids are remembered; beyond it, they are forgotten.
const MAX_SANDBOXES: usize = 4096;

/// The ids of pods as services, by UUID.
pub(super) type PodServiceIds = Arc<HashMap<String, String>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ServiceIds(Mutex<IdCache>);

#[derive(Debug, Default)]
struct IdCache {
    last: Option<CachedIds>,
    /// When all pods were read last.
    all_read_at: Option<Instant>,
    /// The ids of sandboxes of kubelets, which may have been removed since.
    sandboxes: HashMap<String, String>,
}

#[derive(Debug)]
struct CachedIds {
    ids: PodServiceIds,
    /// When they were read.
    read_at: Instant,
    /// The number of an event that was committed before they were read.
    position: u64,
}

impl IdCache {
    /// Remembers the ids of sandboxes of kubelets, which the events of their removals do not have.
    fn remember_sandboxes(&mut self, ids: &HashMap<String, String>) {
        for (pod, id) in ids.iter().filter(|(_, id)| id.contains('/')) {
            if self.sandboxes.len() >= MAX_SANDBOXES {
                self.sandboxes.clear();
            }
            self.sandboxes.insert(pod.clone(), id.clone());
        }
    }
}

impl ServiceIds {
    /// The ids of these pods as of the event with the number `position` and of this time, or later. A pod that is no
    /// service has its last id, else its UUID.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn read(
        &self,
        context: &Context,
        pods: BTreeSet<String>,
        position: u64,
        since: Instant,
    ) -> Result<PodServiceIds, Status> {
        let mut cache = self.0.lock().await;
        if let Some(last) = &cache.last
            && last.position >= position
            && last.read_at >= since
            && pods.iter().all(|pod| last.ids.contains_key(pod))
        {
            return Ok(Arc::clone(&last.ids));
        }
        let mut read_at = Instant::now();
        let mut position = position.max(*context.hub.news().borrow());
        let (config, wanted) = (context.config.clone(), pods.clone());
        let few = move |observer: &Observer| read_service_ids(observer, &config, &wanted);
        let mut ids = match context.reader.call_for_stream(Weight::Light, few).await? {
            Some(ids) => ids,
            None => {
                if let Some(last) = cache.all_read_at {
                    tokio::time::sleep_until(last + MIN_INTERVAL).await;
                }
                read_at = Instant::now();
                position = position.max(*context.hub.news().borrow());
                let config = context.config.clone();
                let all = move |observer: &Observer| read_all_service_ids(observer, &config);
                let ids = context.reader.call_for_stream(Weight::Heavy, all).await?;
                cache.all_read_at = Some(read_at);
                ids
            }
        };
        cache.remember_sandboxes(&ids);
        let gone: BTreeSet<String> = pods.into_iter().filter(|pod| !ids.contains_key(pod)).collect();
        if !gone.is_empty() {
            let removed = gone.clone();
            let names =
                move |observer: &Observer| observer.names_at_removal(&removed).map_err(|error| from_error(&error));
            let names = context.reader.call_for_stream(Weight::Heavy, names).await?;
            ids.extend(gone.into_iter().map(|pod| {
                let known = cache.sandboxes.get(&pod).or_else(|| names.get(&pod));
                let id = known.filter(|id| !is_part_id(&context.config, id)).unwrap_or(&pod).clone();
                (pod, id)
            }));
        }
        let ids = Arc::new(ids);
        cache.last = Some(CachedIds { ids: Arc::clone(&ids), read_at, position });
        Ok(ids)
    }
}
