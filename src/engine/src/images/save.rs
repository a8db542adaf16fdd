//! `image save`: exports images to an archive.

use std::io::Write;
use std::path::Path;

use gantry_fetch::export::{self, ArchiveFormat, ExportError};
use gantry_model::{ErrorKind, ImageRef, Kind};
use gantry_store::ImageRow;
use thiserror::Error;

use crate::error::need_root;
use crate::{Engine, ImageError};

/// Images could not be saved.
#[derive(Debug, Error)]
pub enum ImageSaveError {
    /// An image was not found.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The archive cannot be written.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl Kind for ImageSaveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Image(error) => error.kind(),
            Self::Export(error) => error.kind(),
        }
    }
}

impl Engine {
    /// Writes images into one archive, each once. An image given by names has those names in the archive; one given by
    /// its id has all of its names. Temporary files are unnamed, in the directory `spool`.
    ///
    /// # Errors
    /// [`ImageSaveError`]; the output is incomplete then.
    pub fn image_save(
        &self,
        references: &[ImageRef],
        format: ArchiveFormat,
        spool: &Path,
        out: &mut dyn Write,
    ) -> Result<(), ImageSaveError> {
        // Layers hold files that only root may read.
        need_root("save an image").map_err(ImageError::from)?;
        let mut images: Vec<(ImageRow, Vec<String>)> = Vec::new();
        for reference in references {
            let (image, named) = self.find(reference)?;
            let names = if named.is_empty() { image.names.clone() } else { named };
            match images.iter_mut().find(|(known, _)| known.id == image.id) {
                Some((_, known)) => {
                    let new: Vec<_> = names.into_iter().filter(|name| !known.contains(name)).collect();
                    known.extend(new);
                }
                None => images.push((image, names)),
            }
        }
        Ok(export::write_archive(self.store(), &images, format, spool, out)?)
    }
}
