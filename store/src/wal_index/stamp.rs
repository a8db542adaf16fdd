//! The stamp of the index: which database and WAL it describes. With it, the next opener need not read the WAL.
//!
//! SQLite keeps the index correct whatever process is killed, as long as another process has it open. That no process
//! has it open in between changes nothing, as long as nobody else changes the files and the page cache holds them. So
//! the last process to close the database stamps the index with the boot, and with the identity, length and change time
//! of the database and the WAL. The first opener that finds all of that unchanged uses the index as it is.
//!
//! | since the stamp | stamp | index |
//! |---|---|---|
//! | nothing | matches | uses it as it is |
//! | a process that had the database open was killed | times differ, because SQLite sets owners | SQLite rebuilds it |
//! | a power cut, a reboot | the boot differs | SQLite rebuilds it |
//! | files were restored, truncated or overwritten | identity, length or time differ | SQLite rebuilds it |
//! | another SQLite, or the disk lost the WAL's last frame | version or checksum differ | SQLite rebuilds it |
//!
//! The stamp is behind the regions of the index. SQLite overwrites it when a WAL needs a third one; such an index gets
//! no stamp.

use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use gantry_model::BootId;

use super::{LENGTH, REGIONS};
use crate::Layout;

/// The size of the stamp, which is written at once.
pub(super) const STAMP: u64 = 512;

/// The WAL's header and that of each frame (<https://sqlite.org/fileformat2.html#walformat>).
const WAL_HEADER: u64 = 32;
const FRAME_HEADER: u64 = 24;

/// What an index describes.
#[derive(Debug, PartialEq, Eq)]
struct Stamp([u8; STAMP as usize]);

impl Stamp {
    /// The stamp that describes the present files.
    fn of_files(layout: &Layout, boot: &BootId) -> io::Result<Self> {
        let [db, wal] = [layout.db(), layout.wal()].map(std::fs::symlink_metadata);
        let mut text = format!("1 {} {}", boot.0, rusqlite::version());
        for file in [db?, wal?] {
            describe(&mut text, &file).map_err(io::Error::other)?;
        }
        let mut bytes = [0; STAMP as usize];
        let place = bytes.get_mut(..text.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        place.copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }

    fn read(index: &File) -> io::Result<Self> {
        if index.metadata()?.len() != LENGTH {
            return Err(io::Error::other("it has a third region"));
        }
        let mut bytes = [0; STAMP as usize];
        index.read_exact_at(&mut bytes, REGIONS)?;
        Ok(Self(bytes))
    }
}

fn describe(text: &mut String, file: &Metadata) -> std::fmt::Result {
    write!(text, " {}:{}:{}:{}.{:09}", file.dev(), file.ino(), file.len(), file.ctime(), file.ctime_nsec())
}

/// Stamps an index that no process has open. The caller holds the exclusive lock.
pub(super) fn write(index: &File, layout: &Layout, boot: &BootId) -> io::Result<()> {
    if index.metadata()?.len() != LENGTH {
        return Ok(());
    }
    index.write_all_at(&Stamp::of_files(layout, boot)?.0, REGIONS)
}

/// Whether the index describes the present files. The caller holds the exclusive lock.
pub(super) fn matches(index: &File, layout: &Layout, boot: &BootId) -> io::Result<bool> {
    let files = Stamp::of_files(layout, boot)?;
    Ok(Stamp::read(index)? == files && has_last_frame(index, &File::open(layout.wal())?)?)
}

/// Whether the WAL has the last frame that the index knows. The frame's checksum covers those before it.
fn has_last_frame(index: &File, wal: &File) -> io::Result<bool> {
    // `WalIndexHdr` (<https://sqlite.org/walformat.html>): in the byte order of this machine, except for the salt.
    let mut header = [0; 48];
    index.read_exact_at(&mut header, 0)?;
    let field = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let page = u64::from(u16::from_ne_bytes([header[14], header[15]]));
    let (is_filled, frames, checksum) = (header[12] == 1, u64::from(field(16)), [field(24), field(28)]);
    if frames == 0 {
        return Ok(is_filled);
    }
    let mut frame = [0; FRAME_HEADER as usize];
    wal.read_exact_at(&mut frame, WAL_HEADER + (frames - 1) * (FRAME_HEADER + page))?;
    let known = checksum.map(u32::to_be_bytes).concat();
    Ok(is_filled && frame[8..16] == header[32..40] && frame[16..24] == known[..])
}
