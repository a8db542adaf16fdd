//! Writes images to disk: OCI layout directory, OCI archive, docker-save archive.

use std::fs;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use crate::Compression;
use crate::image::Image;
use crate::layer::{Layer, PackedLayer};

/// Writes an OCI image layout directory (image-layout.md) with these images, each under its tag.
///
/// # Errors
/// When a file cannot be written.
pub fn write_layout(dir: &Path, images: &[(&Image, &str)]) -> io::Result<()> {
    for (path, bytes) in layout_files(images) {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, bytes)?;
    }
    Ok(())
}

/// Writes a [`write_layout`] layout into a tar file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_oci_archive(file: &Path, images: &[(&Image, &str)]) -> io::Result<()> {
    let mut tar = Layer::new();
    for (path, bytes) in layout_files(images) {
        tar = tar.file(path, bytes, 0o644);
    }
    fs::write(file, tar.tar())
}

/// The files of a layout, in order, each once.
fn layout_files(images: &[(&Image, &str)]) -> Vec<(String, Vec<u8>)> {
    let manifests: Vec<Value> = images
        .iter()
        .map(|(image, tag)| {
            let mut descriptor = image.descriptor();
            descriptor["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
            descriptor
        })
        .collect();
    let index = json!({
        "manifests": manifests,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "schemaVersion": 2,
    });
    let mut files = vec![
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ("index.json".to_owned(), index.to_string().into_bytes()),
    ];
    let mut blobs: Vec<(String, Vec<u8>)> = images
        .iter()
        .flat_map(|(image, _)| image.blobs())
        .map(|(digest, bytes)| (format!("blobs/{}", digest.replace(':', "/")), bytes.to_vec()))
        .collect();
    blobs.sort();
    blobs.dedup_by(|a, b| a.0 == b.0);
    files.append(&mut blobs);
    files
}

/// Writes a tar file like `docker save`: `manifest.json`, the configuration, one plain tar per layer.
///
/// # Errors
/// When the file cannot be written, or a gzip layer is not gzip.
pub fn write_docker_archive(file: &Path, image: &Image, name: &str) -> io::Result<()> {
    let config = format!("{}.json", crate::digest(&image.config).replace("sha256:", ""));
    let mut tar = Layer::new();
    let mut paths = Vec::new();
    for layer in &image.layers {
        let path = format!("{}/layer.tar", layer.diff_id.replace("sha256:", ""));
        if !paths.contains(&path) {
            tar = tar.file(&path, plain(layer)?, 0o644);
        }
        paths.push(path);
    }
    let manifest = json!([{ "Config": config, "Layers": paths, "RepoTags": [name] }]);
    tar = tar.file(&config, &image.config, 0o644).file("manifest.json", manifest.to_string(), 0o644);
    fs::write(file, tar.tar())
}

fn plain(layer: &PackedLayer) -> io::Result<Vec<u8>> {
    let mut tar = Vec::new();
    match layer.compression {
        Compression::Gzip => io::copy(&mut flate2::read::MultiGzDecoder::new(layer.blob.as_slice()), &mut tar)?,
        Compression::Zstd => io::copy(&mut zstd::Decoder::new(layer.blob.as_slice())?, &mut tar)?,
        Compression::Plain => io::copy(&mut layer.blob.as_slice(), &mut tar)?,
    };
    Ok(tar)
}
