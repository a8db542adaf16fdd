//! The limits that hold a hostile image down: every one is checked while bytes stream by, so a bomb is stopped
//! early and costs no more than its limit.

/// Limits of one layer. [`Caps::default`] takes every image that is not an attack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Most bytes of one layer after decompression.
    pub max_layer_bytes: u64,
    /// Most bytes after decompression for each byte before it, looked at from [`Caps::RATIO_FREE`] bytes on.
    /// Deflate alone reaches 1032.
    pub max_ratio: u64,
    /// Most files, directories, links and whiteouts of one layer, parents that no entry names included.
    pub max_entries: u64,
    /// Most bytes one file may claim, the holes of a sparse file included.
    pub max_file: u64,
    /// Most bytes of one extension header (PAX records, sparse map).
    pub max_pax: u64,
}

impl Caps {
    /// Decompressed bytes that are free of the ratio's limit: small layers of zeros are common.
    pub const RATIO_FREE: u64 = 64 << 20;
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_layer_bytes: 64 << 30,
            max_ratio: 1100,
            max_entries: 2_000_000,
            max_file: 64 << 30,
            max_pax: 1 << 20,
        }
    }
}
