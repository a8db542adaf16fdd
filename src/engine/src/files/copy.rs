//! `cp`: copies files between an app and the host.
//!
//! Source and destination follow docker's rules:
//!
//! | source | destination | result |
//! |---|---|---|
//! | file | does not exist | a file of that name; an error if the name ends with `/` |
//! | file | file | replaces it |
//! | file, directory | directory | a file or directory of the source's name in it |
//! | `DIR/.` | directory | the contents of the source in it |
//! | directory | does not exist | a directory of that name, with the contents of the source |
//! | directory | file | an error |

use std::io::{BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use gantry_fetch::transfer::{
    Confinement, Destination, ExtractOptions, Extracted, PackOptions, Packed, Source, TransferError, extract,
    kernel_file_system, pack,
};
use gantry_host::file_id::FileId;
use gantry_model::{AppName, PodId};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::root::{AppRoot, FileAccess, open_beneath};
use super::{failed, from_cause, invalid, refused};
use crate::error::need_root;
use crate::{Engine, EngineError};

/// Maximum number of symbolic links that a destination leads over, as in Linux.
const MAX_LINKS: usize = 40;
/// The owner and the group of files that are copied into an app.
const APP_OWNER: (u32, u32) = (0, 0);

/// How files are copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// Keep owner, group, set-user-ID and set-group-ID bits and extended attributes.
    pub archive: bool,
    /// Copy the target of a symbolic link that is the source, not the link.
    pub follow_link: bool,
}

/// The source of a copy on the host.
pub enum CopySource<'a> {
    /// A file or directory.
    Path(&'a Path),
    /// A tar archive.
    Archive(&'a mut (dyn Read + Send)),
}

/// The destination of a copy on the host.
pub enum CopyTarget<'a> {
    /// A file or directory.
    Path(&'a Path),
    /// A tar archive.
    Archive(&'a mut (dyn Write + Send)),
}

impl Engine {
    /// Copies a file or directory of an app to the host. Returns warnings about what was left out.
    ///
    /// # Errors
    /// [`EngineError`]; a part of the files may be copied then.
    pub fn copy_from_app(
        &self,
        id: PodId,
        app: &AppName,
        path: &str,
        to: CopyTarget<'_>,
        options: CopyOptions,
    ) -> Result<Vec<String>, EngineError> {
        need_root("copy files of a pod").map_err(from_cause)?;
        let packing = PackOptions { keep_privileges: options.archive, ..PackOptions::default() };
        // The thread that mounts the app's root has another working directory.
        let to = match to {
            CopyTarget::Path(path) => Ok(absolute(path)?),
            CopyTarget::Archive(out) => Err(out),
        };
        self.with_app_root(id, app, FileAccess::Read, |AppRoot { file: root, ids, .. }, warnings| {
            let packing = PackOptions { ids: *ids, ..packing };
            let from = find_source(&Side::App(root), path, options.follow_link)?;
            match to {
                Err(out) => {
                    let packed = pack(from.source, packing, out).map_err(from_cause)?;
                    warn_packed(&packed, warnings);
                }
                Ok(path) => {
                    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                    let owner = (!options.archive).then_some(owner);
                    let extracting = ExtractOptions { owner, is_new: false, ids: None };
                    copy_tree(from, &Side::Host, &path, packing, extracting, warnings)?;
                }
            }
            Ok(std::mem::take(warnings))
        })
    }

    /// Copies a file or directory of the host, or the files of a tar archive, into an app. Returns warnings about what
    /// was left out.
    ///
    /// # Errors
    /// [`EngineError`]; a part of the files may be copied then.
    pub fn copy_to_app(
        &self,
        id: PodId,
        app: &AppName,
        from: CopySource<'_>,
        path: &str,
        options: CopyOptions,
    ) -> Result<Vec<String>, EngineError> {
        need_root("copy files into a pod").map_err(from_cause)?;
        let owner = (!options.archive).then_some(APP_OWNER);
        let packing = PackOptions { keep_privileges: options.archive, ..PackOptions::default() };
        let from = match from {
            CopySource::Path(path) => {
                Ok(find_source(&Side::Host, path.to_string_lossy().as_ref(), options.follow_link)?)
            }
            CopySource::Archive(input) => Err(input),
        };
        self.with_app_root(id, app, FileAccess::Write, |root, warnings| {
            let (to, path) = (Side::App(&root.file), Path::new(path));
            let extracting = ExtractOptions { owner, is_new: false, ids: root.ids };
            let copied = match from {
                Ok(from) => copy_tree(from, &to, path, packing, extracting, warnings),
                Err(input) => extract_archive(input, &to, path, extracting, warnings),
            };
            copied.map_err(|error| root.explain_refusal(path, error))?;
            Ok(std::mem::take(warnings))
        })
    }
}

/// Copies the files of an archive into a directory of an app.
fn extract_archive(
    input: &mut (dyn Read + Send),
    to: &Side<'_>,
    path: &Path,
    extracting: ExtractOptions,
    warnings: &mut Vec<String>,
) -> Result<(), EngineError> {
    let Resolved { path: directory, stat, .. } = to.resolve(path)?;
    if stat.is_none_or(|stat| kind(&stat) != FileType::Directory) {
        return Err(refused(format!(
            "'{}' is not a directory of the app, which the files of an archive are copied into",
            shown(&directory)
        )));
    }
    let destination = to.destination(&directory)?;
    warn_extracted(&extract(input, &destination, extracting).map_err(from_cause)?, warnings);
    Ok(())
}

/// Where a path is looked up.
enum Side<'a> {
    /// Beneath the root of an app.
    App(&'a OwnedFd),
    /// On the host.
    Host,
}

/// A file or directory to copy.
struct CopiedSource {
    source: Source,
    stat: Stat,
    /// Whether only its contents are copied: the path ends with `/.`, or is the root.
    contents: bool,
}

/// A path whose last element is no symbolic link, or one to an open descriptor.
struct Resolved {
    path: PathBuf,
    /// `None`: the file does not exist.
    stat: Option<Stat>,
    /// Whether the path is a link of a process of the host to a file that it has open, as `/dev/stdout` is. Others
    /// write to the file, which must not be replaced; and only the process may see what the link leads to.
    is_descriptor: bool,
}

impl Side<'_> {
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        match self {
            Self::App(root) => open_beneath(root, path.as_os_str(), flags),
            Self::Host => rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()),
        }
    }

    /// Follows the symbolic links that the last element of a path is.
    fn resolve(&self, path: &Path) -> Result<Resolved, EngineError> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            let file = match self.open(&path, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(file) => file,
                Err(Errno::NOENT) => return Ok(Resolved { path, stat: None, is_descriptor: false }),
                Err(error) => return Err(failed("open", &path.to_string_lossy(), error)),
            };
            let inspect = |error| failed("inspect", &path.to_string_lossy(), error);
            let stat = rustix::fs::fstat(&file).map_err(inspect)?;
            let is_link = kind(&stat) == FileType::Symlink;
            let is_descriptor = is_link && matches!(self, Self::Host) && leads_to_open_file(&file, &path);
            if is_descriptor || !is_link {
                return Ok(Resolved { path, stat: Some(stat), is_descriptor });
            }
            let target = rustix::fs::readlinkat(&file, c"", Vec::new()).map_err(inspect)?;
            let target = Path::new(std::ffi::OsStr::from_bytes(target.as_bytes()));
            // An absolute target replaces the path.
            path = path.parent().unwrap_or(Path::new("/")).join(target);
        }
        Err(failed("open", &path.to_string_lossy(), Errno::LOOP))
    }

    fn destination(&self, directory: &Path) -> Result<Destination, EngineError> {
        let open = |flags| {
            let opened = self.open(directory, flags | OFlags::DIRECTORY);
            opened.map_err(|error| failed("open the directory", &directory.to_string_lossy(), error))
        };
        let directory_fd = open(OFlags::PATH)?;
        check_file_system(&directory_fd, directory)?;
        match self {
            Self::App(root) => {
                let root = root.try_clone().map_err(|error| failed("open", "the app's root", error))?;
                let path = directory.as_os_str().as_bytes();
                let path = path.iter().position(|byte| *byte != b'/').map_or(&b""[..], |start| &path[start..]);
                Ok(Destination { root, path: path.to_vec(), confinement: Confinement::Root })
            }
            Self::Host => Ok(Destination { root: directory_fd, path: Vec::new(), confinement: Confinement::Directory }),
        }
    }
}

/// An absolute path; a slash at its end stays.
fn absolute(path: &Path) -> Result<PathBuf, EngineError> {
    if path.as_os_str().is_empty() {
        return Err(invalid("the path of the destination is empty"));
    }
    let whole = std::path::absolute(path).map_err(|error| failed("find", &path.to_string_lossy(), error))?;
    let is_directory = path.as_os_str().as_bytes().ends_with(b"/.");
    Ok(if is_directory { whole.join("") } else { whole })
}

/// Whether this symbolic link of the host is one of proc, and leads to anything but a directory.
fn leads_to_open_file(link: &OwnedFd, path: &Path) -> bool {
    let is_of_proc = kernel_file_system(link).is_ok_and(|system| system == Some("proc"));
    is_of_proc && !rustix::fs::stat(path).is_ok_and(|stat| kind(&stat) == FileType::Directory)
}

fn check_file_system(file: &OwnedFd, path: &Path) -> Result<(), EngineError> {
    match kernel_file_system(file).map_err(|error| failed("inspect", &path.to_string_lossy(), error))? {
        Some(system) => Err(refused(format!("'{}' is on {system}, a file system of the kernel", shown(path)))),
        None => Ok(()),
    }
}

/// Opens the source of a copy. Its name is the last element of its path.
fn find_source(side: &Side<'_>, path: &str, follow_link: bool) -> Result<CopiedSource, EngineError> {
    if path.is_empty() {
        return Err(invalid("the path of the source is empty"));
    }
    let is_directory = path.ends_with('/') || path.ends_with("/.") || path == ".";
    let follow = if is_directory || follow_link { OFlags::empty() } else { OFlags::NOFOLLOW };
    // Elsewhere than in /dev, a link to one that is not followed is copied as a link.
    let is_followed = follow_link || path.starts_with("/dev/") || path.starts_with("/proc/");
    if is_followed && matches!(side, Side::Host) && side.resolve(Path::new(path))?.is_descriptor {
        let path = gantry_model::id::shown(path);
        return Err(refused(format!(
            "'{path}' is an open file of a process; '-' reads an archive from standard input"
        )));
    }
    let error = |error| failed("open", path, error);
    let file = side.open(Path::new(path), OFlags::PATH | follow).map_err(error)?;
    let stat = rustix::fs::fstat(&file).map_err(error)?;
    if is_directory && kind(&stat) != FileType::Directory {
        return Err(failed("open", path, Errno::NOTDIR));
    }
    // Before the destination is made.
    check_file_system(&file, Path::new(path))?;
    let name = match Path::new(path).components().next_back() {
        Some(Component::Normal(name)) if !path.ends_with("/.") => name.as_bytes().to_vec(),
        _ => Vec::new(),
    };
    Ok(CopiedSource { contents: name.is_empty(), source: Source { file, name }, stat })
}

/// Finds the directory to copy into, and gives the source its name there.
fn find_target(
    side: &Side<'_>,
    path: &Path,
    from: &mut CopiedSource,
) -> Result<(Destination, PathBuf, bool), EngineError> {
    let text = path.as_os_str().as_bytes();
    if text.is_empty() {
        return Err(invalid("the path of the destination is empty"));
    }
    let must_be_directory = text.ends_with(b"/") || text.ends_with(b"/.");
    // Without a slash at the end, which would make the kernel follow a link.
    let target = side.resolve(&path.components().collect::<PathBuf>())?;
    if target.is_descriptor {
        let path = shown(path);
        return Err(refused(format!(
            "'{path}' is an open file of a process; '-' writes an archive to standard output"
        )));
    }
    let Resolved { path, stat, .. } = target;
    let source_is_directory = kind(&from.stat) == FileType::Directory;
    let refuse = |why: &str| Err(refused(format!("'{}' {why}", shown(&path))));
    match stat.map(|stat| kind(&stat)) {
        Some(FileType::Directory) => {
            if from.contents {
                from.source.name.clear();
            }
            let destination = side.destination(&path)?;
            Ok((destination, path, false))
        }
        Some(FileType::RegularFile) if source_is_directory => {
            refuse("is a file, which a directory cannot be copied to")
        }
        Some(FileType::RegularFile) | None if must_be_directory && !source_is_directory => {
            refuse("is not a directory that exists")
        }
        Some(FileType::RegularFile) | None => {
            let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
                return refuse("cannot be made");
            };
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let destination = side.destination(above)?;
            if !source_is_directory {
                from.source.name = name.as_bytes().to_vec();
                return Ok((destination, above.to_owned(), false));
            }
            let doing = |error| failed("make directory", &path.to_string_lossy(), error);
            let directory = side.open(above, OFlags::RDONLY | OFlags::DIRECTORY).map_err(doing)?;
            rustix::fs::mkdirat(&directory, name, Mode::RWXU).map_err(doing)?;
            from.source.name.clear();
            let destination = side.destination(&path)?;
            Ok((destination, path, true))
        }
        Some(_) => refuse("is neither a file nor a directory; '-' writes an archive to standard output"),
    }
}

/// Copies a file or tree to a path of the other side.
fn copy_tree(
    mut from: CopiedSource,
    to: &Side<'_>,
    path: &Path,
    packing: PackOptions,
    extracting: ExtractOptions,
    warnings: &mut Vec<String>,
) -> Result<(), EngineError> {
    let (destination, directory, is_new) = find_target(to, path, &mut from)?;
    let into = to.open(&directory, OFlags::PATH).and_then(rustix::fs::fstat);
    let into = into.map_err(|error| failed("inspect", &directory.to_string_lossy(), error))?;
    // A volume may have the destination below the source.
    let into = FileId::from(&into);
    if kind(&from.stat) == FileType::Directory && FileId::from(&from.stat) == into {
        return Err(refused(format!("'{}' is the directory to copy", shown(&directory))));
    }
    let packing = PackOptions { skip: Some(into), ..packing };
    let extracting = ExtractOptions { is_new, ..extracting };
    let (packed, extracted) = transfer(from.source, packing, &destination, extracting).map_err(from_cause)?;
    warn_packed(&packed, warnings);
    warn_extracted(&extracted, warnings);
    Ok(())
}

/// Packs in one thread and extracts in another.
fn transfer(
    source: Source,
    packing: PackOptions,
    destination: &Destination,
    extracting: ExtractOptions,
) -> Result<(Packed, Extracted), TransferError> {
    let (mut reader, writer) = std::io::pipe().map_err(TransferError::pipe)?;
    std::thread::scope(|scope| {
        let packing = scope.spawn(move || pack(source, packing, &mut BufWriter::with_capacity(64 << 10, writer)));
        let extracted = extract(&mut reader, destination, extracting);
        // Ends the packing after an error.
        drop(reader);
        let packed = packing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (packed, extracted) {
            (Ok(packed), Ok(extracted)) => Ok((packed, extracted)),
            (Err(error), _) if !error.is_broken_pipe() => Err(error),
            (_, Err(error)) | (Err(error), Ok(_)) => Err(error),
        }
    })
}

fn warn_packed(packed: &Packed, warnings: &mut Vec<String>) {
    let Packed {
        special_files,
        first_special,
        changed_files,
        first_changed,
        kernel_file_systems,
        unreachable_files,
        first_unreachable,
    } = packed;
    warn_special(*special_files, first_special.as_deref(), warnings);
    if let Some(first) = first_changed {
        let first = gantry_model::id::shown(first);
        warnings.push(match changed_files {
            1 => format!("'{first}' changed while it was copied, or cannot be read"),
            _ => format!(
                "{changed_files} files changed while they were copied, or cannot be read; the first is '{first}'"
            ),
        });
    }
    if let Some(first) = kernel_file_systems.first() {
        let first = gantry_model::id::shown(first);
        warnings.push(match kernel_file_systems.len() {
            1 => format!("'{first}' is left out: it is on a file system of the kernel"),
            count => format!("{count} file systems of the kernel are left out, as '{first}'"),
        });
    }
    if let Some(first) = first_unreachable {
        let first = gantry_model::id::shown(first);
        let why = "because their paths are longer than 4095 bytes or deeper than 1000 directories";
        warnings.push(format!("{unreachable_files} files and directories are left out, {why}; the first is '{first}'"));
    }
}

fn warn_extracted(extracted: &Extracted, warnings: &mut Vec<String>) {
    warn_special(extracted.special_files, extracted.first_special.as_deref(), warnings);
}

fn warn_special(count: u64, first: Option<&str>, warnings: &mut Vec<String>) {
    if let Some(first) = first {
        let first = gantry_model::id::shown(first);
        warnings.push(match count {
            1 => format!("'{first}' is left out: it is a device, FIFO or socket"),
            _ => format!("{count} devices, FIFOs and sockets are left out; the first is '{first}'"),
        });
    }
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn shown(path: &Path) -> String {
    gantry_model::id::shown(&path.to_string_lossy())
}
