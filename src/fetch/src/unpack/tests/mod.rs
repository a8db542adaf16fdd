//! Real layers, valid and hostile, written to a real file system. Needs root, as the unpacker does.

pub(crate) mod build;
mod gnu_tar;
mod hostile;
mod stacked;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use tempfile::TempDir;

use super::{Compression, UnpackError, Unpacked, finish, layer};
use crate::caps::{Caps, ImageBytes};

/// A layer's directory inside another directory, so that an escape is detected.
struct UnpackDir {
    outer: TempDir,
    dir: OwnedFd,
}

impl UnpackDir {
    fn new() -> Self {
        let outer = tempfile::Builder::new().prefix("gantry-unpack-").tempdir().unwrap();
        std::fs::create_dir(outer.path().join("layer")).unwrap();
        std::fs::write(outer.path().join("outside"), "untouched").unwrap();
        let dir = std::fs::File::open(outer.path().join("layer")).unwrap().into();
        Self { outer, dir }
    }

    fn path(&self) -> std::path::PathBuf {
        self.outer.path().join("layer")
    }

    /// One line for each file of the layer, sorted.
    fn listing(&self) -> Vec<String> {
        let mut lines = Vec::new();
        list(&self.path(), "", &mut lines);
        lines
    }

    fn assert_confined(&self, case: &str) {
        let mut names: Vec<_> = std::fs::read_dir(self.outer.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["layer", "outside"], "{case}");
        assert_eq!(std::fs::read(self.outer.path().join("outside")).unwrap(), b"untouched", "{case}");
    }
}

fn list(dir: &Path, at: &str, lines: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(dir).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = format!("{at}{}", String::from_utf8_lossy(entry.file_name().as_bytes()));
        let meta = entry.path().symlink_metadata().unwrap();
        let kind = meta.file_type();
        if kind.is_dir() {
            let opaque = if opaque(&entry.path()) { " opaque" } else { "" };
            lines.push(format!("{path}/{opaque}"));
            list(&entry.path(), &format!("{path}/"), lines);
        } else if kind.is_symlink() {
            lines.push(format!("{path} -> {}", std::fs::read_link(entry.path()).unwrap().display()));
        } else if kind.is_char_device() && meta.rdev() == 0 {
            lines.push(format!("{path} gone"));
        } else if kind.is_char_device() || kind.is_block_device() {
            lines.push(format!("{path} device {:x}", meta.rdev()));
        } else if kind.is_fifo() {
            lines.push(format!("{path} fifo"));
        } else {
            let data = std::fs::read(entry.path()).unwrap();
            lines.push(format!("{path} {}", String::from_utf8_lossy(&data)));
        }
    }
}

fn opaque(path: &Path) -> bool {
    let mut value = [0u8; 8];
    rustix::fs::lgetxattr(path, "trusted.overlay.opaque", &mut value[..]).is_ok_and(|n| value[..n] == *b"y")
}

fn unpack(tar: &[u8], place: &UnpackDir) -> Result<Unpacked, UnpackError> {
    unpack_with(tar, place, &Caps::default())
}

fn unpack_with(tar: &[u8], place: &UnpackDir, caps: &Caps) -> Result<Unpacked, UnpackError> {
    let mut stream = tar;
    layer(&mut stream, Compression::Auto, &place.dir, caps, &ImageBytes::new(caps))
}

/// [`finish`] with the default limits.
fn finished(unpacked: &mut Unpacked, place: &UnpackDir, parents: &[OwnedFd]) -> Result<(), UnpackError> {
    finish(unpacked, &place.dir, parents, &Caps::default(), &|| false)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let hash = sha2::Sha256::digest(bytes);
    gantry_model::Digest::from_hash(gantry_model::id::Algorithm::Sha256, &hash).unwrap().to_string()
}

#[test]
fn compression_changes_neither_tree_nor_digest() {
    let big: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut tar = build::Tar::default().dir("d").file("d/big", &big).file("d/small", b"x").end();
    tar.extend_from_slice(&[0; 9000]);
    tar.extend_from_slice(b"trailing bytes belong to the digest");
    let two_members = [gzip(&tar[..100_000]), gzip(&tar[100_000..])].concat();
    let zeros_behind = [gzip(&tar), vec![0; 700]].concat();
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 9, 9][..], &zstd::encode_all(&tar[..], 3).unwrap()].concat();
    for (case, bytes) in [
        ("plain", tar.clone()),
        ("gzip", gzip(&tar)),
        ("two members", two_members),
        ("zeros behind", zeros_behind),
        ("zstd", zstd::encode_all(&tar[..], 3).unwrap()),
        ("zstd behind a skippable frame", skippable),
    ] {
        let place = UnpackDir::new();
        let unpacked = unpack(&bytes, &place).unwrap();
        assert_eq!(unpacked.diff_id.to_string(), sha256(&tar), "{case}");
        assert_eq!((unpacked.size, unpacked.entries), (5_000_001, 3), "{case}");
        assert!(std::fs::read(place.path().join("d/big")).unwrap() == big, "{case}");
    }
}

#[test]
fn zeros_become_holes() {
    // Data at both ends of a hole that begins and ends nowhere special, then zeros to the end.
    let mut file = vec![0; (8 << 20) + 1234];
    file[0] = 1;
    file[(3 << 20) + 7] = 1;
    let zeros = vec![0; 6 << 20];
    let tar = build::Tar::default().file("short", b"odd").file("zeros", &zeros).file("holes", &file).end();
    let place = UnpackDir::new();
    let unpacked = unpack(&tar, &place).unwrap();
    for (name, contents, most_blocks) in [("zeros", &zeros, 0), ("holes", &file, 400)] {
        let path = place.path().join(name);
        assert!(std::fs::read(&path).unwrap() == *contents, "{name}");
        let metadata = path.metadata().unwrap();
        assert!(metadata.blocks() <= most_blocks, "{name}: {} blocks", metadata.blocks());
        assert_eq!(unpacked.sums.get(&metadata.ino()), Some(&crc32fast::hash(contents)), "{name}");
    }
}

#[test]
fn read_errors_are_distinguished_from_damage() {
    struct Broken(usize);
    impl std::io::Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            if self.0 == 0 {
                return Err(std::io::ErrorKind::ConnectionReset.into());
            }
            let n = self.0.min(buffer.len());
            buffer[..n].fill(0x1f);
            self.0 -= n;
            Ok(n)
        }
    }
    for bytes in [0, 3, 5000] {
        let place = UnpackDir::new();
        let caps = Caps::default();
        let image_bytes = ImageBytes::new(&caps);
        let unpacked = layer(&mut Broken(bytes), Compression::Plain, &place.dir, &caps, &image_bytes);
        let error = unpacked.unwrap_err();
        let reset = matches!(&error, UnpackError::Read(e) if e.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(reset, "{bytes}: {error:?}");
    }
}
