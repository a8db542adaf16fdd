//! The ids of pods as services, as ServiceList has them, for streams of events: events have the UUID of their pod.
//!
//! The store is read again when an event is newer than the ids: a pod may have been created or renamed before it. All
//! streams share what was read, and it is read at a limited rate: while there are many events, streams send them in
//! larger batches.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::Observer;
use gantry_engine::model::PodId;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tonic::Status;

use super::service_list::read_services;
use crate::bridge::Weight;
use crate::context::Context;

/// Minimum time between two reads of the store.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// The ids of pods as services, by UUID.
pub(super) type PodServiceIds = Arc<HashMap<String, String>>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct ServiceIds(Mutex<Option<CachedIds>>);

#[derive(Debug)]
struct CachedIds {
    ids: PodServiceIds,
    /// When they were read.
    read_at: Instant,
    /// The number of an event that was committed before they were read.
    position: u64,
}

impl ServiceIds {
    /// The ids as of the event with this number and of this time, or later.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn read(&self, context: &Context, position: u64, since: Instant) -> Result<PodServiceIds, Status> {
        let mut cached = self.0.lock().await;
        if let Some(cached) = &*cached {
            if cached.position >= position && cached.read_at >= since {
                return Ok(Arc::clone(&cached.ids));
            }
            tokio::time::sleep_until(cached.read_at + MIN_INTERVAL).await;
        }
        let read_at = Instant::now();
        let position = position.max(*context.hub.news().borrow());
        let config = context.config.clone();
        let read = move |observer: &Observer| {
            let services = read_services(observer, &config)?;
            let pods = services.into_iter().filter_map(|(id, service)| Some((service.pod()?, id)));
            Ok(pods.map(|(pod, id): (PodId, String)| (pod.to_string(), id)).collect::<HashMap<_, _>>())
        };
        let ids = Arc::new(context.reader.call_for_stream(Weight::Heavy, read).await?);
        *cached = Some(CachedIds { ids: Arc::clone(&ids), read_at, position });
        Ok(ids)
    }
}
