//! What of the WAL SQLite will not say: it takes the frames of a WAL up to the first that does not fit and is silent
//! about the rest, because after a power cut that is how a WAL ends. Where there was no power cut, it is damage.
//!
//! Only for a process that does not have the database open yet: closing a file drops the locks that the process holds
//! on it (fcntl(2)), and SQLite's are on these files.
//!
//! The formats are SQLite's (<https://sqlite.org/fileformat2.html#walformat> and <https://sqlite.org/walformat.html>).

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::{Layout, StoreError};

const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// Of the index in shared memory: one copy of its header, and where it says how much was copied into the database.
const INDEX_HEADER: usize = 48;
const BACKFILLED: usize = 96;

/// What was found before SQLite had a look; it renews the index when it opens the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wal {
    /// Nothing is missing as far as can be told.
    Whole,
    /// Its header is none, so SQLite will take it for empty.
    NoHeader,
    /// Frames are missing or damaged that were there: so many, if the host was not restarted since.
    Short(u32),
}

/// Looks at the WAL and its index. Writers may be at work.
pub(crate) fn look(layout: &Layout) -> Result<Wal, StoreError> {
    let path = layout.wal();
    // Before the frames are read: writers write frames first.
    let index = Index::read(&layout.wal_index())?;
    let (mut header, mut frames) = scan(&path)?;
    if header == Header::None {
        // Somebody may have been writing it.
        (header, frames) = scan(&path)?;
    }
    Ok(match (header, index) {
        (Header::None, _) => Wal::NoHeader,
        (_, Some(index)) if index.backfilled >= index.frames || index.frames <= frames => Wal::Whole,
        (Header::Absent, Some(index)) => Wal::Short(index.frames),
        (Header::Salted(salt), Some(index)) if salt == index.salt => Wal::Short(index.frames - frames),
        _ => Wal::Whole,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Header {
    /// No file, or less of it than a header: nothing was ever in it.
    Absent,
    /// Bytes that are none.
    None,
    Salted([u8; 8]),
}

/// The header, and the number of frames up to the last whole commit.
fn scan(path: &Path) -> Result<(Header, u32), StoreError> {
    let failed = || StoreError::io("read", path);
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Header::Absent, 0)),
        other => io::BufReader::new(other.map_err(failed())?),
    };
    let mut header = [0; WAL_HEADER];
    if !fill(&mut file, &mut header).map_err(failed())? {
        return Ok((Header::Absent, 0));
    }
    let (magic, page) = (be(&header, 0), be(&header, 8));
    let big = match magic {
        0x377f_0682 => false,
        0x377f_0683 => true,
        _ => return Ok((Header::None, 0)),
    };
    let mut sum = add([0, 0], &header[..24], big);
    if sum != [be(&header, 24), be(&header, 28)] || !(512..=65536).contains(&page) || !page.is_power_of_two() {
        return Ok((Header::None, 0));
    }
    let salt = [16, 17, 18, 19, 20, 21, 22, 23].map(|i: usize| header[i]);
    let mut frame = vec![0; FRAME_HEADER + page as usize];
    let (mut seen, mut committed) = (0, 0);
    while fill(&mut file, &mut frame).map_err(failed())? {
        sum = add(add(sum, &frame[..8], big), &frame[FRAME_HEADER..], big);
        if frame[8..16] != salt || sum != [be(&frame, 16), be(&frame, 20)] {
            break;
        }
        seen += 1;
        if be(&frame, 4) != 0 {
            committed = seen;
        }
    }
    Ok((Header::Salted(salt), committed))
}

/// Fills the buffer; `false` when the file ends before.
fn fill(file: &mut impl io::Read, buffer: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

fn be(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// SQLite's checksum, over a multiple of eight bytes.
fn add(mut sum: [u32; 2], bytes: &[u8], big: bool) -> [u32; 2] {
    let word = |b: &[u8]| {
        let four = [b[0], b[1], b[2], b[3]];
        if big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    for pair in bytes.chunks_exact(8) {
        sum[0] = sum[0].wrapping_add(word(pair)).wrapping_add(sum[1]);
        sum[1] = sum[1].wrapping_add(word(&pair[4..])).wrapping_add(sum[0]);
    }
    sum
}

/// What the index says; `None` when it is none, or is being changed.
#[derive(Debug, Clone, Copy)]
struct Index {
    frames: u32,
    backfilled: u32,
    salt: [u8; 8],
}

impl Index {
    fn read(path: &Path) -> Result<Option<Self>, StoreError> {
        let failed = || StoreError::io("read", path);
        let mut bytes = Vec::new();
        match File::open(path) {
            Ok(file) => file.take(BACKFILLED as u64 + 4).read_to_end(&mut bytes).map_err(failed())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed()(error)),
        };
        if bytes.len() < BACKFILLED + 4 {
            return Ok(None);
        }
        let native = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let sum = add([0, 0], &bytes[..40], cfg!(target_endian = "big"));
        // Two copies that differ: a writer is between them.
        let whole = sum == [native(40), native(44)] && bytes[..INDEX_HEADER] == bytes[INDEX_HEADER..BACKFILLED];
        let salt = [32, 33, 34, 35, 36, 37, 38, 39].map(|i: usize| bytes[i]);
        Ok((whole && bytes[12] == 1).then(|| Self { frames: native(16), backfilled: native(BACKFILLED), salt }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use std::os::unix::fs::FileExt as _;

    /// A store with some commits in its WAL, closed.
    fn written() -> (tempfile::TempDir, Layout) {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        for n in 0..20 {
            store.conn.execute("INSERT INTO feature VALUES (?1, 'compatible')", [format!("feature {n}")]).unwrap();
        }
        let layout = store.layout().clone();
        (home, layout)
    }

    #[test]
    fn each_damage_is_seen_and_none_where_there_is_none() {
        let whole = |_: &Layout| {};
        let header = |layout: &Layout| std::fs::write(layout.wal(), [7; 100_000]).unwrap();
        let zeros = |layout: &Layout| std::fs::write(layout.wal(), [0; 100_000]).unwrap();
        let middle = |layout: &Layout| {
            let file = File::options().write(true).open(layout.wal()).unwrap();
            file.write_all_at(&[7; 4096], 32 + 2 * 4120).unwrap();
        };
        let half = |layout: &Layout| {
            let file = File::options().write(true).open(layout.wal()).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        };
        let gone = |layout: &Layout| std::fs::remove_file(layout.wal()).unwrap();
        let empty = |layout: &Layout| drop(File::create(layout.wal()).unwrap());
        type Hit<'a> = (&'a dyn Fn(&Layout), fn(Wal) -> bool);
        let rows: [Hit<'_>; 7] = [
            (&whole, |wal| wal == Wal::Whole),
            (&header, |wal| wal == Wal::NoHeader),
            (&zeros, |wal| wal == Wal::NoHeader),
            (&middle, |wal| matches!(wal, Wal::Short(1..))),
            (&half, |wal| matches!(wal, Wal::Short(1..))),
            (&gone, |wal| matches!(wal, Wal::Short(20..))),
            (&empty, |wal| matches!(wal, Wal::Short(20..))),
        ];
        for (row, (hit, fits)) in rows.into_iter().enumerate() {
            let (_home, layout) = written();
            hit(&layout);
            let found = look(&layout).unwrap();
            assert!(fits(found), "row {row}: {found:?}");
        }
    }

    #[test]
    fn what_was_copied_into_the_database_is_not_missed() {
        let (_home, layout) = written();
        let store = Store::open(layout.root()).unwrap();
        store.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        assert_eq!(look(&layout).unwrap(), Wal::Whole);
        store.conn.execute("INSERT INTO feature VALUES ('another', 'compatible')", []).unwrap();
        assert_eq!(look(&layout).unwrap(), Wal::Whole);
        drop(store);
        std::fs::remove_file(layout.wal().with_file_name("gantry.db-shm")).unwrap();
        std::fs::remove_file(layout.wal()).unwrap();
        assert_eq!(look(&layout).unwrap(), Wal::Whole, "nobody can tell");
    }
}
