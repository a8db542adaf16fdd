//! `DIR/sequence`: the high-water mark of event numbers and durable commits. A database with lower ones has lost
//! commits.
//!
//! SQLite treats a missing, truncated or overwritten WAL as an empty one, and a copy of `gantry.db` without its WAL as
//! a complete database. The newest commits are then silently lost, and event numbers would be used twice. So each
//! commit that allocates numbers, and each durable one, also writes the new mark to this file, after the commit and
//! without a sync:
//!
//! * Within one boot the page cache holds both, whatever process is killed. A database that is behind `next` was rolled
//!   back.
//! * After a power cut either may be older. Then `synced` counts, which is only raised after a sync of the WAL with all
//!   commits it covers. The numbers between the two may have been used: the first process of a new boot skips them all.
//! * Durable commits (`durable`) are counted separately, because some write no event: the removal of a volume or of an
//!   image's name. The count is part of the commit, and the mark follows the commit's sync. So a database that is
//!   behind `durable` was rolled back, in every boot.
//!
//! Writers update the mark without a lock, so it may be slightly behind. It is never ahead, because it is written after
//! the commit and read before the database. A missing or damaged mark is ignored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};

use gantry_model::BootId;

use crate::db::{Counters, Sync};
use crate::{Layout, Store, StoreError};

/// The size of the file, so that it is only ever written in place.
const LENGTH: usize = 256;

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HighWater {
    /// The boot in which it was written.
    pub(crate) boot: BootId,
    /// The boot that has finished the removals cut short by an earlier one.
    pub(crate) recovered: BootId,
    /// The number of the next event.
    pub(crate) next: u64,
    /// The number of the next event as of the last sync.
    pub(crate) synced: u64,
    /// The number of durable commits.
    pub(crate) durable: u64,
}

impl HighWater {
    /// The mark of a data directory. `None`: it does not exist, or was not written by gantry.
    pub(crate) fn load(layout: &Layout) -> Result<Option<Self>, StoreError> {
        let path = layout.sequence();
        match File::open(&path).and_then(|file| Self::read(&file)) {
            Ok(mark) => Ok(mark),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("read", &path)(error)),
        }
    }

    /// The mark of an open file. Writers replace all of it by one write, and so one read suffices.
    fn read(file: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; LENGTH];
        let length = file.read_at(&mut bytes, 0)?;
        Ok(bytes.get(..length).and_then(|bytes| std::str::from_utf8(bytes).ok()).and_then(Self::parse))
    }

    fn parse(text: &str) -> Option<Self> {
        let (line, sum) = text.trim_end().rsplit_once(' ')?;
        if u64::from_str_radix(sum, 16) != Ok(checksum(line)) {
            return None;
        }
        let fields: Vec<&str> = line.split(' ').collect();
        let &[_version, boot, recovered, next, synced, durable] = fields.as_slice() else { return None };
        let boot_id = |text: &str| BootId(text.trim_start_matches('=').to_owned());
        let (boot, recovered) = (boot_id(boot), boot_id(recovered));
        let (next, synced, durable) = (next.parse().ok()?, synced.parse().ok()?, durable.parse().ok()?);
        Some(Self { boot, recovered, next, synced, durable })
    }

    fn text(&self) -> String {
        let Self { boot, recovered, next, synced, durable } = self;
        let line = format!("1 ={} ={} {next} {synced} {durable}", boot.0, recovered.0);
        let mut text = format!("{line} {:016x}", checksum(&line));
        text.extend(std::iter::repeat_n(' ', (LENGTH - 1).saturating_sub(text.len())));
        text.push('\n');
        text
    }

    fn open(layout: &Layout) -> io::Result<File> {
        let mut file = OpenOptions::new();
        file.read(true).write(true).create(true).truncate(false).mode(0o600).open(layout.sequence())
    }

    fn save(&self, layout: &Layout) -> io::Result<File> {
        let file = Self::open(layout)?;
        self.write(&file)?;
        Ok(file)
    }

    fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(self.text().as_bytes(), 0)
    }

    /// Whether a database with these counters has lost commits, in this boot.
    pub(crate) fn is_ahead_of(&self, database: Counters, boot: &BootId) -> bool {
        let least = if self.boot == *boot { self.next } else { self.synced };
        database.next < least || database.durable < self.durable
    }
}

/// FNV-1a, to detect torn and foreign files.
fn checksum(line: &str) -> u64 {
    line.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Store {
    /// Records that a commit left the database with these counters; with [`Sync::Now`], that it survives a power cut,
    /// and so does all before it. A mark that cannot be written (the disk is full, and the file does not exist) only
    /// detects less.
    pub(crate) fn raise_high_water(&self, counters: Counters, sync: Sync) {
        if self.file.is_none() {
            return;
        }
        let Ok(file) = HighWater::open(&self.layout) else { return };
        let known = HighWater::read(&file).ok().flatten();
        let none = BootId(String::new());
        let mut mark =
            known.clone().unwrap_or(HighWater { boot: none.clone(), recovered: none, next: 0, synced: 0, durable: 0 });
        mark.next = mark.next.max(counters.next);
        if sync == Sync::Now {
            mark.synced = mark.synced.max(counters.next);
            mark.durable = mark.durable.max(counters.durable);
        }
        mark.boot = self.boot.clone();
        if known.as_ref() != Some(&mark) {
            let _says_less = mark.write(&file);
        }
    }

    /// Whether removals that an earlier boot cut short may be unfinished: a power cut can undo the row's last step and
    /// preserve the removal of the directory.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn needs_recovery(&self) -> Result<bool, StoreError> {
        Ok(HighWater::load(&self.layout)?.is_some_and(|mark| mark.recovered != self.boot))
    }

    /// Records that this boot has finished the removals of earlier boots.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn note_recovery(&self) -> Result<(), StoreError> {
        let Some(mark) = HighWater::load(&self.layout)? else { return Ok(()) };
        let path = self.layout.sequence();
        let mark = HighWater { recovered: self.boot.clone(), ..mark };
        mark.save(&self.layout).map(drop).map_err(StoreError::io("write", &path))
    }
}

/// Writes the mark of a boot that was just entered with these counters, which are synced; once per boot the mark is
/// synced, too. As always, a failure to write it only detects less.
pub(crate) fn enter_boot(layout: &Layout, boot: &BootId, recovered: Option<&BootId>, counters: Counters) {
    let recovered = recovered.cloned().unwrap_or(BootId(String::new()));
    let Counters { next, durable } = counters;
    let mark = HighWater { boot: boot.clone(), recovered, next, synced: next, durable };
    let _says_less = mark.save(layout).and_then(|file| file.sync_all());
}

/// Resets the mark, for a database with a different numbering, which counts its durable commits from 0.
pub(crate) fn replace(layout: &Layout, boot: &BootId, next: u64) -> Result<(), StoreError> {
    let path = layout.sequence();
    let mark = HighWater { boot: boot.clone(), recovered: boot.clone(), next, synced: next, durable: 0 };
    mark.save(layout).and_then(|file| file.sync_all()).map_err(StoreError::io("write", &path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mark(boot: &str, next: u64, synced: u64, durable: u64) -> HighWater {
        HighWater { boot: BootId(boot.into()), recovered: BootId(String::new()), next, synced, durable }
    }

    #[test]
    fn lost_commits_are_detected() {
        let boot = |name: &str| BootId(name.into());
        // Boot, next number and durable commits of the database, whether it has lost commits.
        for (of, next, durable, lost) in [
            ("a", 20, 4, false),
            ("a", 21, 5, false),
            ("a", 19, 4, true),
            ("a", 20, 3, true),
            ("a", 21, 3, true),
            ("b", 15, 4, false),
            ("b", 14, 4, true),
            ("b", 15, 3, true),
            ("b", 0, 0, true),
        ] {
            let database = Counters { next, durable };
            assert_eq!(mark("a", 20, 15, 4).is_ahead_of(database, &boot(of)), lost, "{of} {database:?}");
        }
    }

    proptest! {
        #[test]
        fn mark_round_trips(boot in "[a-z0-9-]{0,36}", next: u64, synced: u64, durable: u64) {
            let mark = mark(&boot, next, synced, durable);
            prop_assert_eq!(mark.text().len(), LENGTH);
            prop_assert_eq!(HighWater::parse(&mark.text()), Some(mark));
        }

        #[test]
        fn damaged_marks_are_ignored(next: u64, at in 0..60usize, byte in b' '..b'~') {
            let text = mark("boot", next, 3, 2).text();
            let mut bytes = text.clone().into_bytes();
            bytes[at] = byte;
            let read = HighWater::parse(&String::from_utf8(bytes).unwrap());
            prop_assert!(read.is_none() || read == HighWater::parse(&text), "{read:?}");
        }

        #[test]
        fn parser_never_panics(text in "\\PC{0,300}") {
            drop(HighWater::parse(&text));
        }
    }
}
