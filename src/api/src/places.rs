//! How many streams of a sort there may be: each costs memory for what is on its way, whoever reads it.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// So many places.
pub(crate) struct Places {
    free: Arc<Semaphore>,
    most: usize,
}

/// A place, until it is dropped.
pub(crate) struct Place(#[expect(dead_code, reason = "it is there to be dropped")] OwnedSemaphorePermit);

impl Places {
    /// All of them free.
    pub(crate) fn new(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most }
    }

    /// Takes one.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when none is free.
    pub(crate) fn take(&self) -> Result<Place, Status> {
        let place = Arc::clone(&self.free).try_acquire_owned();
        place.map(Place).map_err(|_| {
            Status::resource_exhausted(format!("{} streams of this sort are open: close some, or try later", self.most))
        })
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.most - self.free.available_permits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_it_is_left() {
        let places = Places::new(1);
        let place = places.take().ok();
        assert_eq!((places.taken(), places.take().map(drop).unwrap_err().code()), (1, tonic::Code::ResourceExhausted));
        drop(place);
        assert_eq!((places.taken(), places.take().is_ok()), (0, true));
    }
}
