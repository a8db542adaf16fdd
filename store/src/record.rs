//! `DIR/restored`: the record of the last restore. `gantry doctor` shows it until an operator deletes the file. While
//! it exists, the event numbers of the next restore start above those it records.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use gantry_model::Timestamp;

use crate::lock::sync_dir;
use crate::{Layout, StoreError};

/// The record of a restored database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub at: Timestamp,
    /// The damage.
    pub damage: String,
    /// The backup, and its time; `None`: the database was filled from the directories of the pods alone.
    pub backup: Option<(PathBuf, Timestamp)>,
    /// The present path of the damaged database.
    pub aside: PathBuf,
    /// The first number of the events since.
    pub first_event: u64,
}

impl Record {
    /// The record of a data directory; `None`: nothing was restored, or the record was deleted. Fields that cannot be
    /// parsed are empty.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn load(layout: &Layout) -> Result<Option<Self>, StoreError> {
        let path = layout.restored();
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StoreError::io("read", &path)(error)),
        };
        let value = |key: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            line.unwrap_or_default().to_owned()
        };
        let time = |key: &str| Timestamp(value(key).split(' ').next().unwrap_or_default().parse().unwrap_or(0));
        let backup = value("backup");
        Ok(Some(Self {
            at: time("restored"),
            damage: value("damage"),
            backup: (!backup.is_empty()).then(|| (PathBuf::from(backup), time("backup-made"))),
            aside: PathBuf::from(value("damaged-database")),
            first_event: value("first-event").parse().unwrap_or(0),
        }))
    }

    /// Writes it, durably, in place of an older one.
    pub(crate) fn save(&self, layout: &Layout) -> Result<(), StoreError> {
        let time = |at: Timestamp| format!("{} ({})", at.0, at.rfc3339().as_str());
        let line = |key: &str, value: &str| format!("{key}={}\n", value.replace('\n', " "));
        let mut text = line("restored", &time(self.at)) + &line("damage", &self.damage);
        if let Some((path, at)) = &self.backup {
            text += &(line("backup", &path.to_string_lossy()) + &line("backup-made", &time(*at)));
        }
        text += &line("damaged-database", &self.aside.to_string_lossy());
        text += &line("first-event", &self.first_event.to_string());
        write(layout, &layout.restored(), &text)
    }
}

/// Writes a small file of the data directory, durably, in place of an older one.
pub(crate) fn write(layout: &Layout, path: &Path, text: &str) -> Result<(), StoreError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let temporary = path.with_file_name(name);
    let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(StoreError::io("write", &temporary))?;
    fs::rename(&temporary, path).map_err(StoreError::io("write", path))?;
    sync_dir(layout.root())
}
