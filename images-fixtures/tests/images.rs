//! The images are reproducible, and Debian's tar reads back exactly the entries that were added.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

use std::path::Path;
use std::process::Command;

use gantry_fixtures::{Compression, Device, Image, Layer, big, standard_image, write_standard};

fn tar_lists(file: &Path) -> String {
    let out = Command::new("tar").arg("--numeric-owner").arg("-tvf").arg(file).env("TZ", "UTC").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn images_are_deterministic() {
    let (one, two) = (standard_image(b"app").unwrap(), standard_image(b"app").unwrap());
    assert_eq!(one.id(), two.id());
    assert_ne!(one.id(), standard_image(b"other").unwrap().id());
}

#[test]
fn gnu_tar_reads_layers() {
    let dir = tempfile::tempdir().unwrap();
    let long = "d/".repeat(70) + "file";
    for compression in [Compression::Gzip, Compression::Zstd, Compression::Plain] {
        let layer = Layer::new()
            .compression(compression)
            .dir("etc", 0o755)
            .owner(1000, 3_000_000)
            .xattr("user.note", b"x=\ny")
            .file("etc/file", b"twelve bytes", 0o4755)
            .symlink("etc/link", "file")
            .hardlink("etc/hard", "etc/file")
            .device("etc/null", Device::Char(1, 3), 0o666)
            .device("etc/fifo", Device::Fifo, 0o600)
            .whiteout("etc/gone")
            .opaque("etc")
            .file(&long, b"", 0o644);
        let file = dir.path().join("layer");
        std::fs::write(&file, layer.pack().unwrap().blob).unwrap();
        let list = tar_lists(&file);
        for want in [
            "drwxr-xr-x 0/0",
            "-rwsr-xr-x 1000/3000000",
            "12 2024-01-01 00:00 etc/file",
            "etc/link -> file",
            "etc/hard link to etc/file",
            "1,3 2024-01-01",
            "prw-------",
            "etc/.wh.gone",
            "etc/.wh..wh..opq",
            &long,
        ] {
            assert!(list.contains(want), "{compression:?}: {want} is missing in\n{list}");
        }
    }
}

#[test]
fn standard_image_has_expected_files() {
    let dir = tempfile::tempdir().unwrap();
    let image = write_standard(dir.path(), b"app").unwrap();
    for (digest, bytes) in image.blobs() {
        let path = dir.path().join("layout/blobs").join(digest.replace(':', "/"));
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{}", path.display());
    }
    assert!(tar_lists(&dir.path().join("oci.tar")).contains("index.json"));
    assert!(tar_lists(&dir.path().join("docker.tar")).contains("manifest.json"));
}

#[test]
fn inconsistent_images_can_be_built() {
    let honest = Image::builder().layer(Layer::new().file("a", b"a", 0o644)).build().unwrap();
    let liar = Image::builder()
        .layer(Layer::new().file("a", b"a", 0o644))
        .edit_config(|config| config["rootfs"]["diff_ids"] = serde_json::json!([]))
        .edit_manifest(|manifest| manifest["layers"][0]["size"] = 1.into())
        .build()
        .unwrap();
    assert_ne!(honest.config, liar.config);
    let manifest: serde_json::Value = serde_json::from_slice(&liar.manifest).unwrap();
    assert_eq!(manifest["layers"][0]["size"], 1);
    assert_eq!(manifest["config"]["digest"], gantry_fixtures::digest(&liar.config));
}

#[test]
fn big_images_have_the_requested_size() {
    let dir = tempfile::tempdir().unwrap();
    let size = big::Size { bytes: 20_000_000, files: 300, layers: 2, level: 6 };
    let made = big::write(dir.path(), size, None).unwrap();
    let padding = 300 * 512 * 2 + 20_000;
    assert!((20_000_000 - 300..20_000_000 + padding).contains(&made.uncompressed), "{made:?}");
    let ratio = made.uncompressed as f64 / made.compressed as f64;
    assert!((2.3..2.7).contains(&ratio), "ratio {ratio}");
    let again = tempfile::tempdir().unwrap();
    assert_eq!(big::write(again.path(), size, None).unwrap().id, made.id);
    let blobs = dir.path().join("blobs/sha256");
    let layers: Vec<_> = std::fs::read_dir(&blobs)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.metadata().unwrap().len() > 100_000)
        .collect();
    assert_eq!(layers.len(), 2);
    for layer in layers {
        assert_eq!(tar_lists(&layer).lines().filter(|line| line.starts_with('-')).count(), 150);
    }
}
