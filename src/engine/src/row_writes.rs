//! Whether an engine writes the rows of pods that it reconciles. Otherwise it returns them as they would be.

use std::cell::{Cell, RefCell};

use gantry_model::error::chain;

use crate::PodError;

/// See the module.
#[derive(Debug)]
pub(crate) struct RowWrites {
    are_enabled: Cell<bool>,
    are_required: bool,
    /// See [`Self::failure`].
    failure: RefCell<Option<String>>,
}

impl RowWrites {
    /// Rows are written, but one that cannot be, because the disk is full or read-only, is only shown to the caller.
    pub(crate) fn where_possible() -> Self {
        Self { are_enabled: Cell::new(true), are_required: false, failure: RefCell::default() }
    }

    /// The same, but a row that cannot be written is an error.
    pub(crate) fn into_required(self) -> Self {
        Self { are_required: true, ..self }
    }

    /// No row is written.
    pub(crate) fn disabled() -> Self {
        Self { are_enabled: Cell::new(false), ..Self::where_possible() }
    }

    /// Whether rows are written now.
    pub(crate) fn are_enabled(&self) -> bool {
        self.are_enabled.get()
    }

    /// Whether a row that cannot be written is an error.
    pub(crate) fn are_required(&self) -> bool {
        self.are_required
    }

    /// Calls `preview`, during which no row is written.
    pub(crate) fn suspend<T>(&self, preview: impl FnOnce() -> T) -> T {
        let were_enabled = self.are_enabled.replace(false);
        let result = preview();
        self.are_enabled.set(were_enabled);
        result
    }

    /// Why the last row that could not be written was only shown.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Keeps why a row could not be written.
    pub(crate) fn keep_failure(&self, error: &PodError) {
        self.failure.replace(Some(chain(error)));
    }

    /// Forgets earlier failures.
    pub(crate) fn forget_failure(&self) {
        self.failure.replace(None);
    }
}
