//! Packs a layer's directory into a tar archive: converts overlayfs whiteouts to those of OCI archives, and several
//! names of one file to hard links. The same directory always gives the same bytes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write};
use std::os::fd::OwnedFd;

use gantry_host::file_id::FileId;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::holes;
use super::tar::{TarEntry, TarKind, write_end, write_header, write_padding, write_sparse_header};
use crate::unpack::entries::Meta;
use crate::unpack::{dirs, meta, names};

/// Writes the archive of the layer directory `root`.
pub(crate) fn write_layer(root: &OwnedFd, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = LayerWriter { root, out, seen: HashMap::new() };
    let mut ahead = vec![Vec::new()];
    while let Some(path) = ahead.pop() {
        let mut below = writer.directory(&path)?;
        // Popped from the end, so in order.
        below.reverse();
        ahead.extend(below);
    }
    write_end(writer.out)
}

struct LayerWriter<'a> {
    root: &'a OwnedFd,
    out: &'a mut dyn Write,
    /// Files with several names, with the first name of each.
    seen: HashMap<FileId, Vec<u8>>,
}

/// An empty file of the whiteout convention.
const WHITEOUT: Meta = Meta { mode: 0, uid: 0, gid: 0, mtime: (0, 0), xattrs: Vec::new() };

impl LayerWriter<'_> {
    /// Writes a directory and the files in it; returns its subdirectories.
    fn directory(&mut self, path: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let dir = dirs::open_real(self.root, path)?;
        let name = if path.is_empty() { b"./".to_vec() } else { [path, b"/"].concat() };
        self.entry(&name, TarKind::Directory, &meta::read(&dir)?, &[], (0, 0))?;
        if meta::is_opaque(&dir)? {
            self.entry(&names::join(path, b".wh..wh..opq"), TarKind::File, &WHITEOUT, &[], (0, 0))?;
        }
        let mut below = Vec::new();
        for element in sorted_names(&dir)? {
            // The layer is being removed concurrently, which ends the export.
            let stat = dirs::stat(&dir, &element)?.ok_or(Errno::NOENT)?;
            let path = names::join(path, &element);
            match dirs::kind(&stat) {
                FileType::Directory => below.push(path),
                _ if dirs::is_whiteout(&stat) => {
                    let name = [&path[..path.len() - element.len()], b".wh.", &element].concat();
                    self.entry(&name, TarKind::File, &WHITEOUT, &[], (0, 0))?;
                }
                _ => self.element(&dir, &element, &path, &stat)?,
            }
        }
        Ok(below)
    }

    fn element(&mut self, dir: &OwnedFd, element: &[u8], path: &[u8], stat: &Stat) -> io::Result<()> {
        if stat.st_nlink > 1 {
            let first = self.seen.entry(FileId::from(stat)).or_insert_with(|| path.to_vec()).clone();
            if first != path {
                return self.entry(path, TarKind::HardLink, &meta::of_stat(stat), &first, (0, 0));
            }
        }
        let device = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let plain = meta::of_stat(stat);
        match dirs::kind(stat) {
            FileType::RegularFile => self.file(dir, element, path),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, element, Vec::new())?;
                // Links have no mode of their own.
                self.entry(path, TarKind::Symlink, &Meta { mode: 0o777, ..plain }, target.as_bytes(), (0, 0))
            }
            FileType::CharacterDevice => self.entry(path, TarKind::Char, &plain, &[], device),
            FileType::BlockDevice => self.entry(path, TarKind::Block, &plain, &[], device),
            FileType::Fifo => self.entry(path, TarKind::Fifo, &plain, &[], (0, 0)),
            // Archives cannot hold sockets, so no layer contains one.
            _ => Ok(()),
        }
    }

    fn file(&mut self, dir: &OwnedFd, element: &[u8], path: &[u8]) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(dir, element, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let (meta, kind, link, device) = (meta::read(&file)?, TarKind::File, &b""[..], (0, 0));
        let mut file = File::from(file);
        let spans = holes::data_spans(&file, size)?;
        let stored: u64 = spans.iter().map(|(_, length)| length).sum();
        let entry = TarEntry { path, kind, meta: &meta, size: stored, link, device };
        let written = match stored {
            _ if stored == size => write_header(self.out, &entry).map(|()| size),
            _ => write_sparse_header(self.out, entry, size, &spans),
        }?;
        for (offset, length) in spans {
            file.seek(SeekFrom::Start(offset))?;
            if io::copy(&mut (&mut file).take(length), self.out)? != length {
                return Err(io::Error::other("a file of the layer became shorter while it was read"));
            }
        }
        write_padding(self.out, written)
    }

    fn entry(&mut self, path: &[u8], kind: TarKind, meta: &Meta, link: &[u8], device: (u32, u32)) -> io::Result<()> {
        write_header(self.out, &TarEntry { path, kind, meta, size: 0, link, device })
    }
}

/// The names in a directory, in the order of their bytes.
pub(crate) fn sorted_names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push(name.to_vec());
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::caps::{Caps, ImageBytes};
    use crate::unpack::{Compression, Unpacked, layer};

    fn open(path: &Path) -> OwnedFd {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).unwrap()
    }

    fn packed(path: &Path) -> Vec<u8> {
        let mut out = Vec::new();
        write_layer(&open(path), &mut out).unwrap();
        out
    }

    fn unpack(archive: &[u8], into: &Path) -> Unpacked {
        let caps = Caps::default();
        layer(&mut &*archive, Compression::Auto, &open(into), &caps, &ImageBytes::new(&caps)).unwrap()
    }

    /// A directory with every kind of file that a layer can have.
    fn plant(dir: &Path) {
        use rustix::fs::{CWD, XattrFlags, mknodat};
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let at = |name: &str| dir.join(name);
        let long = "long-name-".repeat(15);
        std::fs::create_dir_all(at("sub").join(&long)).unwrap();
        std::fs::write(at("sub").join(&long).join("file"), vec![7; 1500]).unwrap();
        std::fs::hard_link(at("sub").join(&long).join("file"), at("another name")).unwrap();
        std::fs::write(at("setuid"), "x").unwrap();
        std::os::unix::fs::chown(at("setuid"), Some(3_000_000), Some(12)).unwrap();
        std::fs::set_permissions(at("setuid"), std::fs::Permissions::from_mode(0o4755)).unwrap();
        rustix::fs::setxattr(at("setuid"), "user.note", b"v=\n\0w", XattrFlags::empty()).unwrap();
        symlink("t".repeat(200), at("link")).unwrap();
        let device = |kind, number| {
            mknodat(CWD, at(&format!("node-{number}")), kind, Mode::from_raw_mode(0o640), number).unwrap()
        };
        device(FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        device(FileType::Fifo, 0);
        mknodat(CWD, at("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        std::fs::create_dir(at("replaced")).unwrap();
        std::fs::write(at("replaced/new"), "").unwrap();
        rustix::fs::setxattr(at("replaced"), "trusted.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
    }

    #[test]
    fn layers_round_trip() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        plant(one.path());
        let archive = packed(one.path());
        let unpacked = unpack(&archive, two.path());
        assert!(unpacked.deferred.is_empty(), "{:?}", unpacked.deferred);
        assert_eq!(packed(two.path()), archive, "the unpacked tree yields a different archive");
        assert_eq!(std::fs::metadata(two.path().join("another name")).unwrap().len(), 1500);
        let mut note = [0; 8];
        let length = rustix::fs::getxattr(two.path().join("setuid"), "user.note", &mut note[..]).unwrap();
        assert_eq!(&note[..length], b"v=\n\0w");
        let mut value = [0; 8];
        let length =
            rustix::fs::getxattr(two.path().join("replaced"), "trusted.overlay.opaque", &mut value[..]).unwrap();
        assert_eq!(&value[..length], b"y");
    }

    #[test]
    fn sparse_files_stay_sparse() {
        use std::os::unix::fs::{FileExt as _, MetadataExt as _};
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = File::create(one.path().join("sparse")).unwrap();
        file.set_len(10 << 30).unwrap();
        file.write_all_at(b"in the middle", (5 << 30) + 7).unwrap();
        let archive = packed(one.path());
        assert!(archive.len() < 20_000, "{}", archive.len());
        unpack(&archive, two.path());
        let again = File::open(two.path().join("sparse")).unwrap();
        let mut text = [0; 13];
        again.read_exact_at(&mut text, (5 << 30) + 7).unwrap();
        let facts = again.metadata().unwrap();
        assert_eq!((&text, facts.len()), (b"in the middle", 10 << 30));
        assert!(facts.blocks() < 100, "{}", facts.blocks());
    }

    #[test]
    fn gnu_tar_reads_exported_layers() {
        let one = tempfile::tempdir().unwrap();
        plant(one.path());
        File::create(one.path().join("sparse")).unwrap().set_len(3 << 20).unwrap();
        let file = one.path().join("../archive-of-a-test.tar");
        std::fs::write(&file, packed(one.path())).unwrap();
        let listed = std::process::Command::new("tar").arg("-tf").arg(&file).output().unwrap();
        std::fs::remove_file(&file).unwrap();
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.status.success() && listed.stderr.is_empty(), "{}", String::from_utf8_lossy(&listed.stderr));
        for name in [".wh.gone", "replaced/.wh..wh..opq", "another name", "link", "sparse"] {
            assert!(text.lines().any(|line| line == name), "{name}: {text}");
        }
    }
}
