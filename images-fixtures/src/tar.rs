//! Tar headers (POSIX.1-1988 ustar, and POSIX.1-2001 "pax" records where a field does not fit).

/// Bytes in a block.
pub(crate) const BLOCK: usize = 512;

/// A raw header of a tar archive, unchecked, so that it can be invalid.
#[derive(Debug, Clone)]
pub struct Header {
    /// Name field, up to 100 bytes; truncated beyond.
    pub name: Vec<u8>,
    /// Permission bits, as written (8 bytes, octal).
    pub mode: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// The claimed size of the data.
    pub size: u64,
    /// Modification time, seconds since 1970.
    pub mtime: u64,
    /// The type: `b'0'` file, `b'1'` hard link, `b'2'` symbolic link, `b'3'` character, `b'4'` block device, `b'5'`
    /// directory, `b'6'` FIFO, `b'x'` pax records for the next entry, `b'g'` for all, `b'L'`/`b'K'` GNU long name/link.
    pub kind: u8,
    /// Link target field, up to 100 bytes; truncated beyond.
    pub link: Vec<u8>,
    /// Magic and version, 8 bytes.
    pub magic: [u8; 8],
    /// Device numbers.
    pub device: (u64, u64),
    /// Name prefix field, up to 155 bytes.
    pub prefix: Vec<u8>,
    /// Raw bytes written over the header at these offsets before the checksum is computed (base-256 numbers, garbage).
    pub patches: Vec<(usize, Vec<u8>)>,
    /// The checksum; `None` for the correct one.
    pub checksum: Option<u64>,
}

impl Header {
    /// A header of this type and name, all other fields zero, magic `ustar`.
    #[must_use]
    pub fn new(kind: u8, name: impl AsRef<[u8]>) -> Self {
        Self {
            name: name.as_ref().to_vec(),
            mode: 0o644,
            uid: 0,
            gid: 0,
            size: 0,
            mtime: 0,
            kind,
            link: Vec::new(),
            magic: *b"ustar\x0000",
            device: (0, 0),
            prefix: Vec::new(),
            patches: Vec::new(),
            checksum: None,
        }
    }

    /// The header as 512 bytes.
    #[must_use]
    pub fn to_block(&self) -> [u8; BLOCK] {
        let mut block = [0u8; BLOCK];
        let mut text = |at: usize, most: usize, bytes: &[u8]| {
            let n = bytes.len().min(most);
            block[at..at + n].copy_from_slice(&bytes[..n]);
        };
        text(0, 100, &self.name);
        text(100, 8, &octal(self.mode, 8));
        text(108, 8, &octal(self.uid, 8));
        text(116, 8, &octal(self.gid, 8));
        text(124, 12, &octal(self.size, 12));
        text(136, 12, &octal(self.mtime, 12));
        text(156, 1, &[self.kind]);
        text(157, 100, &self.link);
        text(257, 8, &self.magic);
        text(329, 8, &octal(self.device.0, 8));
        text(337, 8, &octal(self.device.1, 8));
        text(345, 155, &self.prefix);
        for (at, bytes) in &self.patches {
            text(*at, BLOCK.saturating_sub(*at), bytes);
        }
        block[148..156].fill(b' ');
        let sum = self.checksum.unwrap_or_else(|| block.iter().map(|&byte| u64::from(byte)).sum());
        block[148..156].copy_from_slice(format!("{:06o}\0 ", sum & 0o777_777).as_bytes());
        block
    }
}

/// A number field: octal digits and a NUL, or GNU's base-256 for larger numbers.
fn octal(value: u64, width: usize) -> Vec<u8> {
    let digits = format!("{value:0width$o}", width = width - 1);
    if digits.len() < width {
        return digits.into_bytes();
    }
    let mut field = vec![0u8; width];
    let bytes = value.to_be_bytes();
    let n = bytes.len().min(width);
    field[width - n..].copy_from_slice(&bytes[bytes.len() - n..]);
    field[0] |= 0x80;
    field
}

/// One pax record: `LENGTH KEY=VALUE\n`; the length includes itself.
pub(crate) fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

/// Appends data, padded with zeros to a whole block.
pub(crate) fn pad_into(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_include_their_own_length() {
        for n in [1, 5, 80, 91, 92, 93, 985, 990, 9_990] {
            let record = pax_record("k", &vec![b'v'; n]);
            let text = String::from_utf8(record.clone()).unwrap();
            assert_eq!(text.split(' ').next().unwrap().parse::<usize>().unwrap(), record.len(), "{n}");
        }
    }

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(octal(0o644, 8), b"0000644");
        assert_eq!(octal(0o7_777_777, 8), b"7777777");
        assert_eq!(octal(0o10_000_000, 8), [0x80, 0, 0, 0, 0, 0x20, 0, 0]);
    }
}
