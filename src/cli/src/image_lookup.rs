//! Checks in the store and in the host's file system whether a word of `run` is an image.

use std::fs::File;
use std::path::Path;

use gantry_model::{ErrorKind, ImageRef, Kind as _};

use crate::context::Context;
use crate::globals::Globals;
use crate::grammar::ImageLookup;

/// Looks the image up. On errors the word counts as an image, as in rkt's grammar, and running it reports the error.
/// Logs nothing: logging starts after the command line is parsed.
pub(crate) fn look_up(globals: &Globals, reference: &ImageRef) -> ImageLookup {
    match reference {
        ImageRef::Path(path) if is_image(path) => ImageLookup::Found,
        ImageRef::Path(_) => ImageLookup::NotFound,
        // Every other form is a name or an id.
        _ => look_up_in_store(globals, reference),
    }
}

fn look_up_in_store(globals: &Globals, reference: &ImageRef) -> ImageLookup {
    let Ok(engine) = Context::new(globals.clone(), "run").open_to_look_up() else { return ImageLookup::Found };
    match engine.image_find(reference) {
        Err(error) if error.kind() == ErrorKind::NotFound => match engine.options().fetch.default_registry {
            Some(_) => ImageLookup::Fetchable,
            None => ImageLookup::NotFound,
        },
        _ => ImageLookup::Found,
    }
}

/// The position of the magic `ustar` in a tar archive (POSIX.1-2017, pax).
const TAR: std::ops::Range<usize> = 257..262;
/// The magics of gzip, zstd, bzip2 and xz.
const COMPRESSED: [&[u8]; 4] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"];

/// Whether the path is an image layout or an archive. A program such as `/bin/sh` is neither.
fn is_image(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    if metadata.is_dir() {
        return path.join("oci-layout").exists();
    }
    // Opening anything else, such as a FIFO, could block.
    metadata.is_file() && File::open(path).is_ok_and(is_archive)
}

fn is_archive(file: File) -> bool {
    let Ok(head) = gantry_host::file::read_truncated(file, TAR.end as u64) else { return false };
    COMPRESSED.iter().any(|magic| head.starts_with(magic)) || head.get(TAR) == Some(b"ustar")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_paths_are_recognized() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut tar = vec![0; 512];
        tar[TAR].copy_from_slice(b"ustar");
        for (name, content, want) in
            [("a.tar", &tar[..], true), ("gz", b"\x1f\x8b\x08", true), ("sh", b"\x7fELF", false), ("empty", b"", false)]
        {
            std::fs::write(path(name), content).unwrap();
            assert_eq!(is_image(&path(name)), want, "{name}");
        }
        std::fs::create_dir(path("layout")).unwrap();
        assert!(!is_image(&path("layout")));
        std::fs::write(path("layout/oci-layout"), "{}").unwrap();
        assert!(is_image(&path("layout")) && !is_image(&path("missing")) && !is_image(Path::new("/dev/null")));
    }
}
