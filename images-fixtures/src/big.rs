//! A large image for benchmarks: many files of very different sizes that compress like real ones (about 2.5 to 1 with
//! gzip). The same parameters give the same bytes. The image is written as a stream, with constant memory.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::image::{Style, media_types};
use crate::layer::Compression;
use crate::tar::{BLOCK, Header};

/// Parameters of the image.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Bytes of file data in all layers.
    pub bytes: u64,
    /// Files in all layers.
    pub files: u32,
    /// Layers.
    pub layers: u32,
    /// gzip level, 1 to 9.
    pub level: u32,
}

/// The written image.
#[derive(Debug, Clone)]
pub struct Made {
    /// Digest of the manifest.
    pub id: String,
    /// Bytes of all layers, compressed.
    pub compressed: u64,
    /// Bytes of all layers, uncompressed.
    pub uncompressed: u64,
}

/// Writes an OCI image layout with one image, tag `latest`, into `dir`. If the fixture app is given, it becomes
/// `/bin/app` of the first layer and the entrypoint.
///
/// # Errors
/// A file cannot be written, or `size` is empty.
pub fn write(dir: &Path, size: Size, app: Option<&[u8]>) -> io::Result<Made> {
    if size.layers == 0 || size.files < size.layers || size.level > 9 {
        let why = "a big image needs a layer, a file in each, and a gzip level up to 9";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let pools = Pools::new();
    let layers = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..size.layers)
            .map(|index| {
                let (blobs, pools) = (&blobs, &pools);
                let app = app.filter(|_| index == 0);
                scope.spawn(move || write_layer(blobs, pools, size, index, app))
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join().map_err(|_| io::Error::other("a layer's writer panicked"))?)
            .collect::<io::Result<Vec<_>>>()
    })?;
    let id = write_documents(dir, &layers, app.is_some())?;
    let sum = |of: fn(&WrittenLayer) -> u64| layers.iter().map(of).sum();
    Ok(Made { id, compressed: sum(|layer| layer.compressed), uncompressed: sum(|layer| layer.uncompressed) })
}

struct WrittenLayer {
    digest: String,
    diff_id: String,
    compressed: u64,
    uncompressed: u64,
}

/// Counts and hashes the bytes written.
struct Tee<W> {
    inner: W,
    hash: Sha256,
    count: u64,
}

impl<W: Write> Tee<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), count: 0 }
    }
}

impl<W: Write> Write for Tee<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        self.count += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn write_layer(blobs: &Path, pools: &Pools, size: Size, index: u32, app: Option<&[u8]>) -> io::Result<WrittenLayer> {
    let temporary = blobs.join(format!(".layer-{index}"));
    let file = Tee::new(BufWriter::with_capacity(1 << 20, File::create(&temporary)?));
    let mut tar = Tee::new(GzEncoder::new(file, flate2::Compression::new(size.level)));
    if let Some(app) = app {
        entry(&mut tar, b'5', "bin/", 0o755, 0)?;
        entry(&mut tar, b'0', "bin/app", 0o755, app.len() as u64)?;
        tar.write_all(app)?;
        pad(&mut tar, app.len() as u64)?;
    }
    write_files(&mut tar, pools, size, index)?;
    tar.write_all(&[0; 2 * BLOCK])?;
    let Tee { inner: gzip, hash, count: uncompressed } = tar;
    let Tee { inner: file, hash: packed, count: compressed } = gzip.finish()?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?;
    let digest = crate::digest_text(&packed.finalize());
    fs::rename(&temporary, blob_path(blobs, &digest))?;
    Ok(WrittenLayer { digest, diff_id: crate::digest_text(&hash.finalize()), compressed, uncompressed })
}

fn blob_path(blobs: &Path, digest: &str) -> PathBuf {
    blobs.join(digest.trim_start_matches("sha256:"))
}

fn write_files(tar: &mut impl Write, pools: &Pools, size: Size, index: u32) -> io::Result<()> {
    let share =
        |total: u64| total / u64::from(size.layers) + u64::from(u64::from(index) < total % u64::from(size.layers));
    let mut random = Random::new(u64::from(index) + 1);
    // Sizes over eleven powers of two, all equally likely: many small files, most bytes in few large ones.
    let weights: Vec<f64> = (0..share(size.files.into())).map(|_| (random.unit() * 11.0).exp2()).collect();
    let factor = share(size.bytes) as f64 / weights.iter().sum::<f64>();
    let mut directory = String::new();
    for (i, weight) in weights.iter().enumerate() {
        if i % 40 == 0 {
            directory = format!("usr/lib/layer{index}/package{:04}/", i / 40);
            entry(tar, b'5', &directory, 0o755, 0)?;
        }
        let length = (weight * factor) as u64;
        let mode = if i % 10 == 0 { 0o755 } else { 0o644 };
        entry(tar, b'0', &format!("{directory}file{i:05}"), mode, length)?;
        pools.write(tar, &mut random, length)?;
        pad(tar, length)?;
    }
    Ok(())
}

fn entry(tar: &mut impl Write, kind: u8, name: &str, mode: u64, size: u64) -> io::Result<()> {
    tar.write_all(&Header { mode, size, mtime: 1_704_067_200, ..Header::new(kind, name) }.to_block())
}

fn pad(tar: &mut impl Write, length: u64) -> io::Result<()> {
    let rest = usize::try_from(length % BLOCK as u64).unwrap_or(0);
    tar.write_all(&[0; BLOCK][..(BLOCK - rest) % BLOCK])
}

fn write_documents(dir: &Path, layers: &[WrittenLayer], app: bool) -> io::Result<String> {
    let types = media_types(Style::Oci);
    let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.diff_id.as_str()).collect();
    let entrypoint: &[&str] = if app { &["/bin/app"] } else { &[] };
    let config = json!({
        "architecture": "amd64",
        "config": { "Entrypoint": entrypoint, "Env": ["PATH=/bin"] },
        "created": "2024-01-01T00:00:00Z",
        "os": "linux",
        "rootfs": { "diff_ids": diff_ids, "type": "layers" },
    });
    let config = config.to_string();
    let descriptors: Vec<_> = layers
        .iter()
        .map(|layer| {
            json!({
                "digest": layer.digest,
                "mediaType": types.layer(Compression::Gzip),
                "size": layer.compressed,
            })
        })
        .collect();
    let manifest = json!({
        "config": { "digest": crate::digest(config.as_bytes()), "mediaType": types.config, "size": config.len() },
        "layers": descriptors,
        "mediaType": types.manifest,
        "schemaVersion": 2,
    });
    let manifest = manifest.to_string();
    let id = crate::digest(manifest.as_bytes());
    let index = json!({
        "manifests": [{
            "annotations": { "org.opencontainers.image.ref.name": "latest" },
            "digest": id,
            "mediaType": types.manifest,
            "platform": { "architecture": "amd64", "os": "linux" },
            "size": manifest.len(),
        }],
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "schemaVersion": 2,
    });
    let blobs = dir.join("blobs/sha256");
    fs::write(blob_path(&blobs, &crate::digest(config.as_bytes())), config)?;
    fs::write(blob_path(&blobs, &id), manifest)?;
    fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    fs::write(dir.join("index.json"), index.to_string())?;
    Ok(id)
}

/// Text and noise to cut files from. Far larger than gzip's window, so a cut compresses like new data.
struct Pools {
    text: Vec<u8>,
    noise: Vec<u8>,
}

impl Pools {
    const SIZE: usize = 8 << 20;

    fn new() -> Self {
        let mut random = Random::new(0);
        let mut noise = Vec::with_capacity(Self::SIZE);
        while noise.len() < Self::SIZE {
            noise.extend_from_slice(&random.next().to_le_bytes());
        }
        let words: Vec<Vec<u8>> = (0..1024)
            .map(|_| (0..3 + random.below(8)).map(|_| b"etaoinshrdlucmfwypvbgkqjxz"[random.skewed(26)]).collect())
            .collect();
        let mut text = Vec::with_capacity(Self::SIZE + 16);
        while text.len() < Self::SIZE {
            text.extend_from_slice(&words[random.skewed(words.len())]);
            text.push(b" \n_(.;,="[random.skewed(8)]);
        }
        Self { text, noise }
    }

    /// Writes `length` bytes: pieces of a few kilobytes, about one in eight of them noise.
    fn write(&self, out: &mut impl Write, random: &mut Random, length: u64) -> io::Result<()> {
        let mut left = usize::try_from(length).map_err(io::Error::other)?;
        while left > 0 {
            let pool = if random.below(100) < 12 { &self.noise } else { &self.text };
            let piece = (512 + random.below(4096)).min(left);
            let at = random.below(Self::SIZE - piece);
            out.write_all(&pool[at..at + piece])?;
            left -= piece;
        }
        Ok(())
    }
}

/// splitmix64 (Steele, Lea, Flood 2014): small, fast, the same everywhere.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// At least 0, less than 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, limit: usize) -> usize {
        ((self.unit() * limit as f64) as usize).min(limit.saturating_sub(1))
    }

    /// Below `limit`, small numbers far more likely.
    fn skewed(&mut self, limit: usize) -> usize {
        let unit = self.unit();
        ((unit.powi(4) * limit as f64) as usize).min(limit - 1)
    }
}
