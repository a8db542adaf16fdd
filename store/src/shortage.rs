//! `DIR/wal-short`: that the WAL has lost pages, and how many.
//!
//! What says so is the index beside the WAL, and the first connection makes that anew from what is left ([`crate::wal`]).
//! So it is written down, durably, before there is one: a restore that fails or is killed is begun again by the next
//! start. It is about one file, in one boot: of another file it says nothing, should it be left.

use std::fs;
use std::io::ErrorKind;

use gantry_model::BootId;

use crate::db::FileId;
use crate::wal::{self, Wal};
use crate::{Layout, StoreError, record, reserve};

/// Looks at the WAL of a database of which this process has no connection yet, and at what was written down before.
pub(crate) fn look(layout: &Layout, file: FileId, boot: &BootId) -> Result<Wal, StoreError> {
    let found = wal::look(layout)?;
    match found {
        Wal::Short(frames) => note(layout, &text(file, boot, frames))?,
        Wal::NoHeader => {}
        Wal::Whole => {
            let Some(noted) = noted(layout)? else { return Ok(Wal::Whole) };
            let frames = noted.lines().next().and_then(|frames| frames.parse().ok());
            if let Some(frames) = frames.filter(|&frames| noted == text(file, boot, frames)) {
                return Ok(Wal::Short(frames));
            }
            // Left by a restore that was killed when all but this was done, or of another boot.
            forget(layout)?;
        }
    }
    Ok(found)
}

fn text(file: FileId, boot: &BootId, frames: u32) -> String {
    format!("{frames}\n{}\n{}\n", file.name(), boot.0)
}

fn note(layout: &Layout, text: &str) -> Result<(), StoreError> {
    match record::write(layout, &layout.wal_short(), text) {
        Err(error) if error.is_full() => {
            reserve::spend(layout)?;
            record::write(layout, &layout.wal_short(), text)
        }
        other => other,
    }
}

fn noted(layout: &Layout) -> Result<Option<String>, StoreError> {
    let path = layout.wal_short();
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        // What is no text is not what was written, and says nothing.
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(Some(String::new())),
        Err(error) => Err(StoreError::io("read", &path)(error)),
    }
}

/// The database was replaced, or pages are missing because the host was restarted.
pub(crate) fn forget(layout: &Layout) -> Result<(), StoreError> {
    let path = layout.wal_short();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(StoreError::io("remove", &path)(error)),
        _ => Ok(()),
    }
}
