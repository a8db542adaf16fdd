//! An image with Debian's systemd, made of the files that its packages have installed on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use gantry_fixtures::{Image, Layer};

/// The packages whose files the image has.
const PACKAGES: [&str; 2] = ["systemd", "libsystemd-shared"];

/// Programs of other packages.
const PROGRAMS: [&str; 6] = ["/bin/sh", "/bin/true", "/bin/sleep", "/bin/cat", "/bin/mount", "/bin/umount"];

/// Files of packages that no test needs, and those that a container does not have.
const LEFT_OUT: [&str; 4] = ["/usr/share/", "/var/", "/boot/", "/lib/modules-load.d/"];

/// A file of the image.
enum Content {
    Directory,
    Link(PathBuf),
    File(u32),
}

/// An image whose entrypoint is systemd, with a service of its own per name of `units` and its text.
///
/// # Panics
/// If a package is not installed (`./dev setup tests`), or a file cannot be read.
#[must_use]
#[track_caller]
pub fn systemd_image(units: &[(&str, &str)]) -> Image {
    let mut files = BTreeMap::new();
    let mut programs: BTreeSet<PathBuf> = PROGRAMS.iter().map(PathBuf::from).collect();
    for package in PACKAGES {
        for path in run("dpkg-query", &["--listfiles", package]).lines() {
            if path.starts_with('/') && path.len() > 2 && !LEFT_OUT.iter().any(|out| path.starts_with(out)) {
                add(&mut files, Path::new(path));
                programs.insert(path.into());
            }
        }
    }
    for library in libraries(&programs) {
        add(&mut files, &library);
    }
    for program in PROGRAMS {
        add(&mut files, Path::new(program));
    }
    let mut layer = Layer::new();
    for dir in ["etc", "usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var", "var/log", "root", "proc", "sys"] {
        layer = layer.dir(dir, 0o755);
    }
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        layer = layer.symlink(link, target);
    }
    for (path, content) in &files {
        let name = path.strip_prefix("/").unwrap_or(path).as_os_str().as_bytes();
        layer = match content {
            Content::Directory => layer.dir(name, 0o755),
            Content::Link(target) => layer.symlink(name, target.as_os_str().as_bytes()),
            Content::File(mode) => layer.file(name, read(path), *mode),
        };
    }
    let ids = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n";
    layer = layer.file("etc/passwd", ids, 0o644).file("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644);
    layer = layer.symlink("etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target");
    for (name, text) in units {
        layer = layer.file(format!("etc/systemd/system/{name}"), text, 0o644);
        layer = layer.symlink(
            format!("etc/systemd/system/multi-user.target.wants/{name}"),
            format!("/etc/systemd/system/{name}"),
        );
    }
    match Image::builder().layer(layer).entrypoint(&["/lib/systemd/systemd"]).build() {
        Ok(image) => image,
        Err(error) => panic!("cannot make the image of systemd: {error}"),
    }
}

#[track_caller]
fn run(program: &str, args: &[&str]) -> String {
    match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        other => panic!("{program} {args:?}: {other:?}; ./dev setup tests installs the packages"),
    }
}

#[track_caller]
fn read(path: &Path) -> Vec<u8> {
    match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => panic!("cannot read {}: {error}", path.display()),
    }
}

/// Adds a file of this machine by the path without links in its directories: /lib is a link to /usr/lib.
fn add(files: &mut BTreeMap<PathBuf, Content>, path: &Path) {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return };
    let Ok(parent) = parent.canonicalize() else { return };
    let path = parent.join(name);
    let Ok(found) = path.symlink_metadata() else { return };
    let content = if found.is_dir() {
        Content::Directory
    } else if found.is_symlink() {
        let Ok(target) = path.read_link() else { return };
        if parent.join(&target).exists() && !target.starts_with("/dev") {
            add(files, &parent.join(&target));
        }
        Content::Link(target)
    } else {
        Content::File(found.permissions().mode() & 0o777)
    };
    for dir in parent.ancestors().skip_while(|dir| *dir == Path::new("/")) {
        if dir != Path::new("/") {
            files.entry(dir.to_owned()).or_insert(Content::Directory);
        }
    }
    files.insert(path, content);
}

/// The shared libraries of these programs, and their interpreter.
fn libraries(programs: &BTreeSet<PathBuf>) -> BTreeSet<PathBuf> {
    let is_program =
        |path: &&PathBuf| path.is_file() && std::fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let mut libraries = BTreeSet::new();
    for program in programs.iter().filter(is_program) {
        // A static program has none, and ldd says so by its exit code.
        let Ok(output) = Command::new("ldd").arg(program).output() else { continue };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let paths = text.lines().flat_map(|line| line.split_whitespace()).filter(|word| word.starts_with('/'));
        libraries.extend(paths.map(PathBuf::from));
    }
    libraries
}
