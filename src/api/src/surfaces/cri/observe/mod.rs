//! What a kubelet observes: statistics, metrics and events of sandboxes and containers.

mod events;
mod metrics;
mod sandbox_events;
mod stats;

pub(super) use self::events::ContainerEvents;
pub(super) use self::metrics::{descriptors, list as list_metrics};
pub(super) use self::stats::{StatsFilter, container, list_containers, list_sandboxes, sandbox_stats};
