//! The images of the tests, the documentation and the benchmarks, built offline around the fixture app.
//!
//! The crate imports nothing of gantry, so that an error in gantry cannot cancel out in the tests. It must not use the
//! network. The same calls give the same bytes, so digests are reproducible.
//!
//! Start reading at [`Image::builder`]; [`Layer`] builds layers, valid ones by its named methods and hostile ones with
//! [`Layer::raw_header`] and [`Layer::raw`]; [`standard_image`] is the image of most tests, [`big`] the one for
//! benchmarks.

pub mod app;
pub mod big;
mod image;
mod layer;
mod standard;
mod tar;
mod write;

pub use image::{Image, ImageBuilder, Style};
pub use layer::{Compression, Device, Layer, PackedLayer};
pub use standard::{STANDARD_NAME, standard_image, write_standard};
pub use tar::Header;
pub use write::{write_docker_archive, write_layout, write_oci_archive};

/// `sha256:…` of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    digest_text(&sha2::Sha256::digest(bytes))
}

/// A finished SHA-256 in OCI's notation.
pub(crate) fn digest_text(hash: &[u8]) -> String {
    use std::fmt::Write as _;
    hash.iter().fold(String::from("sha256:"), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
