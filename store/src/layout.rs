//! The paths below the data directory. No I/O. For an overview see `lib.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_model::{Digest, PodId, VolumeName};

/// The paths of one data directory. Clones share one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: Arc<Path>,
}

impl Layout {
    /// The paths below `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// The data directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The database file. SQLite keeps two more beside it (`-wal`, `-shm`).
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.root.join("gantry.db")
    }

    /// The WAL of the database. It changes with every commit.
    #[must_use]
    pub fn wal(&self) -> PathBuf {
        self.root.join("gantry.db-wal")
    }

    /// SQLite's index of the WAL, in memory that processes share.
    #[must_use]
    pub(crate) fn wal_index(&self) -> PathBuf {
        self.root.join("gantry.db-shm")
    }

    /// The high-water mark of event numbers.
    #[must_use]
    pub(crate) fn sequence(&self) -> PathBuf {
        self.root.join("sequence")
    }

    /// Copies of the database: from before each migration, and those gantryd makes.
    #[must_use]
    pub fn backups_dir(&self) -> PathBuf {
        self.root.join("backups")
    }

    /// Damaged databases that were replaced, one directory each.
    #[must_use]
    pub fn damaged_dir(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// Pod directories that could not become pods again after the database was lost.
    #[must_use]
    pub fn lost_pods_dir(&self) -> PathBuf {
        self.root.join("lost-pods")
    }

    /// The record of the last restore, until an operator deletes it.
    #[must_use]
    pub fn restored(&self) -> PathBuf {
        self.root.join("restored")
    }

    /// Why writing is refused; exists while gantryd serves a damaged database.
    #[must_use]
    pub fn read_only(&self) -> PathBuf {
        self.root.join("read-only")
    }

    /// One directory per pod.
    #[must_use]
    pub fn pods_dir(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// One directory per named volume.
    #[must_use]
    pub fn volumes_dir(&self) -> PathBuf {
        self.root.join("volumes")
    }

    /// The directory of a named volume.
    #[must_use]
    pub fn volume_dir(&self, name: &VolumeName) -> PathBuf {
        self.volumes_dir().join(name.as_str())
    }

    /// The directory of a named volume that apps see. Its parent's mode keeps it from other users.
    #[must_use]
    pub fn volume_data(&self, name: &VolumeName) -> PathBuf {
        self.volume_dir(name).join("data")
    }

    /// Exists until the first app mounts a named volume, which may fill it from its image.
    #[must_use]
    pub fn volume_fresh(&self, name: &VolumeName) -> PathBuf {
        self.volume_dir(name).join("fresh")
    }

    /// Leases of addresses and results of plugins; made and read by stage1 alone.
    #[must_use]
    pub fn net_dir(&self) -> PathBuf {
        self.root.join("net")
    }

    /// The pod CIDR of a Kubernetes node.
    #[must_use]
    pub(crate) fn pod_cidr(&self) -> PathBuf {
        self.root.join("pod-cidr")
    }

    /// The directory of a pod.
    #[must_use]
    pub fn pod_dir(&self, id: &PodId) -> PathBuf {
        self.pods_dir().join(id.to_string())
    }

    /// One directory per layer.
    #[must_use]
    pub fn trees_dir(&self) -> PathBuf {
        self.root.join("trees")
    }

    /// The directory of a layer, by its chain id (OCI image specification, config, "Layer `ChainID`").
    #[must_use]
    pub fn tree_dir(&self, chain: &Digest) -> PathBuf {
        self.trees_dir().join(Self::tree_name(chain))
    }

    /// The lists of the layers' files.
    #[must_use]
    pub(crate) fn contents_dir(&self) -> PathBuf {
        self.root.join("contents")
    }

    /// The name of a layer's directory: the first 128 bits of its chain id in lower-case base32 (RFC 4648 section 6,
    /// no padding), 26 characters. Short, because overlayfs takes all lower directories in one page of options.
    #[must_use]
    pub fn tree_name(chain: &Digest) -> String {
        base32(&chain.hex().as_bytes()[..32])
    }

    /// The first 32 hexadecimal digits of the chain ids whose directory has this name; `None`: no layer's directory has
    /// it.
    pub(crate) fn hex_of_tree(name: &str) -> Option<String> {
        let mut bits = 0u128;
        for (at, c) in name.bytes().enumerate() {
            let five = ALPHABET.iter().position(|&known| known == c)? as u128;
            // The last digit holds three bits, and two of padding.
            bits = if at < 25 { bits << 5 | five } else { bits << 3 | five >> 2 };
        }
        let hex = format!("{bits:032x}");
        (base32(hex.as_bytes()) == name).then_some(hex)
    }

    /// Manifests and configs, in one directory per algorithm.
    #[must_use]
    pub fn blobs_dir(&self) -> PathBuf {
        self.root.join("blobs")
    }

    /// The file of a blob.
    #[must_use]
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs_dir().join(digest.algorithm().as_str()).join(digest.hex())
    }

    /// Files and directories being created or deleted.
    #[must_use]
    pub fn tmp_dir(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Empty files to lock.
    #[must_use]
    pub fn locks_dir(&self) -> PathBuf {
        self.root.join("locks")
    }

    /// The lock for creating and removing named volumes.
    #[must_use]
    pub(crate) fn volumes_lock(&self) -> PathBuf {
        self.locks_dir().join(VOLUMES_LOCK)
    }

    /// The lock that protects unreferenced blobs.
    #[must_use]
    pub(crate) fn blobs_lock(&self) -> PathBuf {
        self.locks_dir().join("blobs")
    }
}

/// The name of [`Layout::volumes_lock`].
pub(crate) const VOLUMES_LOCK: &str = "volumes";

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Base32 of bytes given as pairs of lower-case hexadecimal digits.
fn base32(hex: &[u8]) -> String {
    let mut out = String::with_capacity(hex.len() * 4 / 5 + 1);
    let (mut bits, mut held) = (0u32, 0u32);
    for &c in hex {
        let nibble = if c.is_ascii_digit() { c - b'0' } else { c - b'a' + 10 };
        bits = bits << 4 | u32::from(nibble);
        held += 4;
        if held >= 5 {
            held -= 5;
            out.push(char::from(ALPHABET[(bits >> held & 31) as usize]));
        }
    }
    if held > 0 {
        out.push(char::from(ALPHABET[(bits << (5 - held) & 31) as usize]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base32_matches_rfc_4648() {
        // RFC 4648 section 10, lower-cased and without padding.
        let rows = [("", ""), ("66", "my"), ("666f", "mzxq"), ("666f6f", "mzxw6"), ("666f6f626172", "mzxw6ytboi")];
        for (hex, want) in rows {
            assert_eq!(base32(hex.as_bytes()), want, "{hex}");
        }
    }

    #[test]
    fn tree_names_have_26_characters_and_differ() {
        let digest = |c: &str| format!("sha256:{}", c.repeat(64)).parse::<Digest>().unwrap();
        let (zero, full) = (Layout::tree_name(&digest("0")), Layout::tree_name(&digest("f")));
        assert_eq!((zero.len(), full.len()), (26, 26));
        assert_eq!(zero, "a".repeat(26));
        assert_eq!(full, format!("{}4", "7".repeat(25)));
    }

    #[test]
    fn tree_names_encode_the_chain_id() {
        for start in ["0".repeat(32), "f".repeat(32), "0123456789abcdef".repeat(2), format!("8{}1", "0".repeat(30))] {
            let chain = format!("sha256:{start}{}", "a".repeat(32)).parse::<Digest>().unwrap();
            assert_eq!(Layout::hex_of_tree(&Layout::tree_name(&chain)), Some(start));
        }
        let padded = format!("{}5", "7".repeat(25));
        for name in ["", "orphan", "A", "a b", &"a".repeat(25), &"a".repeat(27), &"a".repeat(99), &padded] {
            assert_eq!(Layout::hex_of_tree(name), None, "{name}");
        }
    }
}
