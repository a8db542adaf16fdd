//! The ids that pods had as services before they were removed: events of them are shown under these.
//!
//! Each id that was read for a stream is remembered. The names of other removed pods are in the events of their
//! removals, which follow all other events of a pod; that history is searched once, and then what was added to it.

use std::collections::HashMap;

use gantry_engine::Observer;
use gantry_model::{EventKind, NewEvent};
use tonic::Status;

use super::service_list::is_part_id;
use crate::bridge::Weight;
use crate::context::Context;
use crate::status;

/// Maximum ids: more than the removals that the history has, since a pod has an event of its preparation, too.
const MAX_IDS: usize = 1 << 16;
/// Events that are read at once.
const PAGE_SIZE: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LastIds {
    /// The ids by UUID.
    ids: HashMap<String, String>,
    searched: Option<SearchedEvents>,
}

/// The events that were searched for removals.
#[derive(Debug, Clone, Copy)]
struct SearchedEvents {
    /// The number before the first one.
    after: u64,
    /// The number of the last one.
    to: u64,
}

impl LastIds {
    /// The last id of a pod; its UUID if nothing else is known.
    pub(super) fn get(&self, pod: &str) -> String {
        self.ids.get(pod).map_or(pod, String::as_str).to_owned()
    }

    /// Whether the id of this pod was remembered.
    pub(super) fn know(&self, pod: &str) -> bool {
        self.ids.contains_key(pod)
    }

    /// Remembers the ids of existing pods.
    pub(super) fn remember(&mut self, ids: &HashMap<String, String>) {
        let named = ids.iter().filter(|(pod, id)| pod != id);
        named.for_each(|(pod, id)| self.insert(pod.clone(), id.clone()));
    }

    /// Looks for the removals of pods after the event with this number.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(super) async fn search(&mut self, context: &Context, after: u64) -> Result<(), Status> {
        let mut searched = match self.searched {
            Some(searched) if searched.after <= after => searched,
            Some(_) | None => SearchedEvents { after, to: after },
        };
        loop {
            let from = searched.to;
            let read = move |observer: &Observer| {
                observer.events_after(from, PAGE_SIZE).map_err(|error| status::from_error(&error))
            };
            let page = context.reader.call_for_stream(Weight::Heavy, read).await?;
            if page.events.is_empty() {
                break;
            }
            let is_taken = |name: &str| is_part_id(&context.config, name);
            page.events.iter().for_each(|record| self.note_removal(&record.event, is_taken));
            searched.to = page.cursor;
        }
        self.searched = Some(searched);
        Ok(())
    }

    /// Remembers the name in the event of a removal, unless a part of gantryd has it.
    fn note_removal(&mut self, event: &NewEvent, is_taken: impl Fn(&str) -> bool) {
        match event.kind {
            // It has lost its name, which the event of its removal still has.
            EventKind::PodPrepareAborted => self.insert(event.id.clone(), event.id.clone()),
            EventKind::PodGarbageCollected if !self.know(&event.id) && !is_taken(&event.name) => {
                self.insert(event.id.clone(), event.name.clone());
            }
            // Other events do not tell that a pod was removed.
            _ => {}
        }
    }

    fn insert(&mut self, pod: String, id: String) {
        if self.ids.len() >= MAX_IDS {
            *self = Self::default();
        }
        self.ids.insert(pod, id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gantry_model::Timestamp;

    use super::*;

    fn note(ids: &mut LastIds, kind: EventKind, id: &str, name: &str) {
        let event = NewEvent { kind, at: Timestamp(0), id: id.into(), name: name.into(), data: BTreeMap::new() };
        ids.note_removal(&event, |name| name == "gantryd");
    }

    #[test]
    fn removed_pods_keep_their_last_ids() {
        let mut ids = LastIds::default();
        ids.remember(&HashMap::from([("1".to_owned(), "shop/web".to_owned()), ("2".to_owned(), "2".to_owned())]));
        for (id, name) in [("1", "web"), ("2", "2"), ("3", "old"), ("4", "gantryd")] {
            note(&mut ids, EventKind::PodExited, id, "another");
            note(&mut ids, EventKind::PodGarbageCollected, id, name);
        }
        note(&mut ids, EventKind::PodPrepareAborted, "5", "aborted");
        note(&mut ids, EventKind::PodGarbageCollected, "5", "aborted");
        assert_eq!(["1", "2", "3", "4", "5", "6"].map(|pod| ids.get(pod)), ["shop/web", "2", "old", "4", "5", "6"]);
        assert!(ids.know("2") && !ids.know("4"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut ids = LastIds::default();
        for number in 0..=MAX_IDS {
            note(&mut ids, EventKind::PodGarbageCollected, &number.to_string(), "web");
        }
        assert!(ids.ids.len() <= MAX_IDS && ids.know(&MAX_IDS.to_string()));
    }
}
