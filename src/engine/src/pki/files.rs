//! The files of certificates and keys: PEM (RFC 7468).

use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::str::Lines;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use gantry_host::file::{NewFile, read_bounded, sync_dir};
use gantry_model::ErrorKind;
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use crate::EngineError;

/// Maximum bytes of a file.
const MAX_FILE: u64 = 1 << 20;
/// Characters of a line of PEM.
const LINE_LENGTH: usize = 64;
/// The mode of a file with a key.
const SECRET: Mode = Mode::from_raw_mode(0o600);
/// The mode of other files.
const PUBLIC: Mode = Mode::from_raw_mode(0o644);

/// A file to be written.
pub(super) struct PemFile {
    name: String,
    text: String,
    mode: Mode,
}

impl PemFile {
    /// `NAME.key`.
    pub(super) fn key(name: &str, pkcs8: &[u8]) -> Self {
        Self { name: format!("{name}.key"), text: encode_pem("PRIVATE KEY", pkcs8), mode: SECRET }
    }

    /// `NAME.crt`.
    pub(super) fn certificate(name: &str, der: &[u8]) -> Self {
        Self { name: format!("{name}.crt"), text: encode_pem("CERTIFICATE", der), mode: PUBLIC }
    }

    /// Another file that contains a key.
    pub(super) fn secret(name: String, text: String) -> Self {
        Self { name, text, mode: SECRET }
    }
}

/// Encodes DER as PEM.
pub(super) fn encode_pem(label: &str, der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(LINE_LENGTH).filter_map(|line| str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Reads the first item of a PEM file whose label ends with this one: Talos labels keys `ED25519 PRIVATE KEY`.
///
/// # Errors
/// The file cannot be read or has no such item.
pub(super) fn read_pem(path: &Path, label: &str) -> Result<Vec<u8>, EngineError> {
    let text = read_text(path)?;
    decode_pem(&mut text.lines(), label).ok_or_else(|| has_no_item(path, label))
}

/// Reads all certificates of a PEM file.
///
/// # Errors
/// The file cannot be read or has no certificate.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<Vec<u8>>, EngineError> {
    let (text, label) = (read_text(path)?, "CERTIFICATE");
    let mut lines = text.lines();
    let certificates: Vec<Vec<u8>> = std::iter::from_fn(|| decode_pem(&mut lines, label)).collect();
    if certificates.is_empty() { Err(has_no_item(path, label)) } else { Ok(certificates) }
}

fn read_text(path: &Path) -> Result<String, EngineError> {
    let bytes = read_bounded(path, MAX_FILE).map_err(|error| {
        EngineError::new(ErrorKind::of_io(&error), format!("cannot use {}: {error}", path.display()))
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn has_no_item(path: &Path, label: &str) -> EngineError {
    EngineError::new(ErrorKind::Invalid, format!("cannot use {}: it has no {label} in PEM", path.display()))
}

/// Decodes the next item with this label.
fn decode_pem(lines: &mut Lines<'_>, label: &str) -> Option<Vec<u8>> {
    let is_begin = |line: &str| {
        let label_of_line = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----"));
        label_of_line.is_some_and(|found| found == label || found.ends_with(&format!(" {label}")))
    };
    let mut lines = lines.map(str::trim);
    lines.find(|line| is_begin(line))?;
    let mut encoded = String::new();
    loop {
        match lines.next()? {
            line if line.starts_with("-----END ") => return STANDARD.decode(encoded).ok(),
            line => encoded.push_str(line),
        }
    }
}

/// Makes the directory of an authority.
///
/// # Errors
/// It cannot be made.
pub(super) fn make_dir(dir: &Path) -> Result<(), EngineError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))
}

/// Writes files durably, which get their names in this order when all are complete. Returns their paths.
///
/// # Errors
/// A file exists and `replace` is not set; nothing was written. A file cannot be written.
pub(super) fn write_files(dir: &Path, files: &[PemFile], replace: bool) -> Result<Vec<PathBuf>, EngineError> {
    let paths: Vec<PathBuf> = files.iter().map(|file| dir.join(&file.name)).collect();
    if !replace && let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(already_exists(path));
    }
    let open_dir = File::open(dir).map_err(failed("open", dir))?;
    let complete = files.iter().zip(&paths).map(|(file, path)| write_unnamed(&open_dir, file, path));
    let complete: Vec<NewFile<'_>> = complete.collect::<Result<_, _>>()?;
    for ((new, file), path) in complete.into_iter().zip(files).zip(&paths) {
        let named = if replace { new.publish(&file.name[..]) } else { new.publish_new(&file.name[..]) };
        named.map_err(|errno| match errno {
            Errno::EXIST => already_exists(path),
            _ => failed("write", path)(errno.into()),
        })?;
    }
    sync_dir(&open_dir).map_err(failed("sync", dir))?;
    Ok(paths)
}

fn already_exists(path: &Path) -> EngineError {
    let text = format!("{} exists already; --force replaces it", path.display());
    EngineError::new(ErrorKind::AlreadyExists, text)
}

/// The file has no name until it is complete, so that a `kill -9` leaves no part of it.
fn write_unnamed<'d>(dir: &'d File, file: &PemFile, path: &Path) -> Result<NewFile<'d>, EngineError> {
    let temporary = format!(".{}.new", file.name);
    // Of an attempt that was killed.
    match rustix::fs::unlinkat(dir, &temporary[..], AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed("replace", path)(errno.into())),
    }
    let write = || -> io::Result<NewFile<'d>> {
        let new = NewFile::create(dir.as_fd(), temporary, SECRET)?;
        new.file().write_all(file.text.as_bytes())?;
        // The umask must not decide.
        rustix::fs::fchmod(new.file(), file.mode)?;
        new.file().sync_all()?;
        Ok(new)
    };
    write().map_err(failed("write", path))
}

fn failed(attempt: &'static str, path: &Path) -> impl Fn(io::Error) -> EngineError {
    let path = path.display().to_string();
    move |error| {
        let kind = ErrorKind::of_io(&error);
        EngineError::new(kind, format!("cannot {attempt} {path}")).caused_by(error)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use gantry_model::Kind as _;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pem_is_read_back(bytes: Vec<u8>, before: String) {
            let before: String = before.replace('-', "");
            for label in ["PRIVATE KEY", "ED25519 PRIVATE KEY"] {
                let text = format!("{before}\n{}", encode_pem(label, &bytes));
                prop_assert_eq!(decode_pem(&mut text.lines(), "PRIVATE KEY"), Some(bytes.clone()));
                prop_assert_eq!(decode_pem(&mut text.lines(), "CERTIFICATE"), None);
            }
        }

        #[test]
        fn decoder_never_panics(text: String) {
            let _item = decode_pem(&mut format!("-----BEGIN CERTIFICATE-----\n{text}").lines(), "CERTIFICATE");
        }
    }

    #[test]
    fn files_are_replaced_only_on_request() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, text) = (temp.path(), |path: &Path| std::fs::read_to_string(path).unwrap());
        let files = |der: &[u8]| [PemFile::key("a", der), PemFile::certificate("a", der)];
        let paths = write_files(dir, &files(b"one"), false).unwrap();
        assert_eq!(write_files(dir, &files(b"two"), false).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(text(&paths[0]), encode_pem("PRIVATE KEY", b"one"));
        // A kill left it.
        std::fs::write(dir.join(".a.crt.new"), "half").unwrap();
        assert_eq!(write_files(dir, &files(b"two"), true).unwrap(), paths);
        assert_eq!(text(&paths[1]), encode_pem("CERTIFICATE", b"two"));
        let mode = |path: &PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(&paths[0]), mode(&paths[1])], [0o600, 0o644]);
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 2);
    }

    #[test]
    fn no_file_changes_before_all_are_complete() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        let files = |der: &[u8]| [PemFile::key("a", der), PemFile::certificate("a", der)];
        let paths = write_files(dir, &files(b"one"), false).unwrap();
        // It can be neither removed nor replaced.
        std::fs::create_dir(dir.join(".a.crt.new")).unwrap();
        write_files(dir, &files(b"two"), true).unwrap_err();
        assert_eq!(std::fs::read_to_string(&paths[0]).unwrap(), encode_pem("PRIVATE KEY", b"one"));
    }
}
