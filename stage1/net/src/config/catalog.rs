//! The networks of this host: those in the configuration directories, then the built-in ones.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::network::{NetworkConfig, Source};
use super::{MAX_FILE, MAX_FILES, builtin, files};

/// One configuration.
#[derive(Debug)]
pub struct CatalogEntry {
    /// Its origin.
    pub source: Source,
    /// The network's name, if it could be read.
    pub name: Option<String>,
    /// The network, or why the configuration cannot be used.
    pub network: Result<NetworkConfig, ConfigError>,
    /// The earlier configuration of the same name, which is used instead.
    pub shadowed_by: Option<Source>,
}

/// The configurations in some directories, and the built-in ones. The first of each name is used.
#[derive(Debug)]
pub struct Catalog {
    entries: Vec<CatalogEntry>,
}

impl Catalog {
    /// Reads `*.conflist`, `*.conf` and `*.json` of each directory, sorted by name. A missing directory is empty. An
    /// invalid file is an error of [`Catalog::get`] and in [`Catalog::entries`], not here.
    ///
    /// # Errors
    ///
    /// When a directory cannot be read, or has more than [`MAX_FILES`] files.
    pub fn read(dirs: &[PathBuf]) -> Result<Self, ConfigError> {
        let mut entries = Vec::new();
        for dir in dirs {
            read_dir(dir, &mut entries)?;
        }
        for (name, text) in builtin::ALL {
            let network = NetworkConfig::parse(text, Source::BuiltIn);
            entries.push(CatalogEntry { source: Source::BuiltIn, name: Some(name.into()), network, shadowed_by: None });
        }
        for index in 1..entries.len() {
            let (before, rest) = entries.split_at_mut(index);
            let Some(entry) = rest.first_mut() else { break };
            let winner = before.iter().find(|earlier| earlier.name.is_some() && earlier.name == entry.name);
            entry.shadowed_by = winner.map(|winner| winner.source.clone());
        }
        Ok(Self { entries })
    }

    /// All configurations, in order of precedence.
    #[must_use]
    pub fn entries(&self) -> &[CatalogEntry] {
        &self.entries
    }

    /// The network of this name.
    ///
    /// # Errors
    ///
    /// [`ConfigError::NotFound`], which names the files whose network's name could not be read; or the error of the
    /// file that defines the network.
    pub fn get(self, name: &str) -> Result<NetworkConfig, ConfigError> {
        let broken = self.broken();
        match self.entries.into_iter().find(|entry| entry.name.as_deref() == Some(name)) {
            Some(entry) => entry.network,
            None => Err(ConfigError::NotFound { name: gantry_model::id::shown(name), broken }),
        }
    }

    /// All networks, one of each name (`--net=all`).
    ///
    /// # Errors
    ///
    /// The error of the first invalid file, since any of them may define a network.
    pub fn all(self) -> Result<Vec<NetworkConfig>, ConfigError> {
        self.entries.into_iter().filter(|entry| entry.shadowed_by.is_none()).map(|entry| entry.network).collect()
    }

    fn broken(&self) -> Vec<String> {
        let nameless = self.entries.iter().filter(|entry| entry.name.is_none());
        nameless.filter_map(|entry| entry.network.as_ref().err()).map(ToString::to_string).collect()
    }
}

/// The first configuration in a directory, by file name, as other runtimes of the CRI choose the network of pods;
/// `None`: there is no directory, or no configuration in it.
///
/// # Errors
///
/// The directory or that file cannot be read or is malformed. A later file is no substitute: it configures
/// another network.
pub fn first_in(dir: &Path) -> Result<Option<NetworkConfig>, ConfigError> {
    let Some((open, names)) = configurations(dir)? else { return Ok(None) };
    let Some(name) = names.first().map(Path::new) else { return Ok(None) };
    let path = dir.join(name);
    let text = read_text(&open, name, &path)?;
    NetworkConfig::parse(&text, Source::File(path)).map(Some)
}

fn read_dir(path: &Path, entries: &mut Vec<CatalogEntry>) -> Result<(), ConfigError> {
    let Some((dir, names)) = configurations(path)? else { return Ok(()) };
    for name in names {
        let name = Path::new(&name);
        let path = path.join(name);
        let source = Source::File(path.clone());
        let text = read_text(&dir, name, &path);
        let (name, network) = match text {
            Err(error) => (None, Err(error)),
            Ok(text) => {
                let network = NetworkConfig::parse(&text, source.clone());
                let name =
                    network.as_ref().map_or_else(|_| NetworkConfig::find_name(&text), |it| Some(it.name.clone()));
                (name, network)
            }
        };
        entries.push(CatalogEntry { source, name, network, shadowed_by: None });
    }
    Ok(())
}

/// An open directory and the names of the configurations in it, in order; `None`: it does not exist.
fn configurations(path: &Path) -> Result<Option<(OwnedFd, Vec<OsString>)>, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let dir = match files::open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(failed)?,
    };
    let Some(mut names) = files::names(&dir, MAX_FILES).map_err(failed)? else {
        return Err(ConfigError::TooLarge { path: path.to_owned(), limit: format!("at most {MAX_FILES} files") });
    };
    let ending = |name: &OsString| Path::new(name).extension().and_then(OsStr::to_str).map(str::to_owned);
    names.retain(|name| matches!(ending(name).as_deref(), Some("conflist" | "conf" | "json")));
    names.sort();
    Ok(Some((dir, names)))
}

fn read_text(dir: &OwnedFd, name: &Path, path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let file = files::open_file(dir, name).map_err(failed)?;
    let Some(bytes) = files::read(file, MAX_FILE).map_err(failed)? else {
        return Err(ConfigError::TooLarge { path: path.to_owned(), limit: "at most 1 MiB".into() });
    };
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        ConfigError::Malformed { origin: path.display().to_string(), problem: format!("not UTF-8 at line {line}") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn net(name: &str) -> String {
        format!(r#"{{"cniVersion":"1.0.0","name":"{name}","plugins":[{{"type":"loopback"}}]}}"#)
    }

    #[test]
    fn the_first_configuration_of_a_name_is_used() {
        let temp = tempfile::tempdir().unwrap();
        let (one, two) = (temp.path().join("one"), temp.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        fs::write(one.join("20-b.conflist"), net("a")).unwrap();
        fs::write(one.join("10-a.json"), net("a")).unwrap();
        fs::write(one.join("notes.txt"), "no").unwrap();
        fs::write(two.join("00.conf"), r#"{"cniVersion":"0.4.0","name":"default","type":"ptp"}"#).unwrap();
        let dirs = [one.clone(), temp.path().join("missing"), two.clone()];
        let catalog = Catalog::read(&dirs).unwrap();
        let shadowed: Vec<bool> = catalog.entries().iter().map(|entry| entry.shadowed_by.is_some()).collect();
        assert_eq!(shadowed, [false, true, false, true, false]);
        assert_eq!(catalog.entries()[1].shadowed_by, Some(Source::File(one.join("10-a.json"))));
        let names: Vec<String> = catalog.all().unwrap().into_iter().map(|network| network.name).collect();
        assert_eq!(names, ["a", "default", "default-restricted"]);
        let default = Catalog::read(&dirs).unwrap().get("default").unwrap();
        assert_eq!((default.plugins.len(), default.plugins[0].kind.as_str()), (1, "ptp"));
    }

    #[test]
    fn an_invalid_file_fails_only_its_network() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().to_path_buf();
        let broken = "{\n\"cniVersion\": \"1.0.0\",\n\"name\": \"bad\",\n\"plugins\": [{\"type\": \"../x\"}]}";
        fs::write(dir.join("bad.conflist"), broken).unwrap();
        fs::write(dir.join("worse.conflist"), "{\n\n").unwrap();
        let read = || Catalog::read(std::slice::from_ref(&dir)).unwrap();
        read().get("default").unwrap();
        let error = read().get("bad").unwrap_err().to_string();
        assert!(error.contains("bad.conflist: plugins[0].type: must be the name"), "{error}");
        let error = read().get("other").unwrap_err().to_string();
        assert!(
            error.contains("'other' not found; invalid files: ")
                && error.contains("worse.conflist: not JSON")
                && error.contains("line 3"),
            "{error}"
        );
        assert!(read().all().is_err());
        fs::write(dir.join("mine.conflist"), "{\n\"name\" : \"default\",\n\"plugins\": [,]}").unwrap();
        let error = read().get("default").unwrap_err().to_string();
        assert!(
            error.contains("mine.conflist: not JSON") && error.contains("line 3"),
            "the built-in one is not used in its place: {error}"
        );
    }

    #[test]
    fn configurations_are_small_regular_files_inside_the_directory() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("d");
        fs::create_dir(&dir).unwrap();
        fs::write(temp.path().join("out.conflist"), net("out")).unwrap();
        fs::write(dir.join("in.file"), net("in")).unwrap();
        std::os::unix::fs::symlink("../out.conflist", dir.join("a.conflist")).unwrap();
        std::os::unix::fs::symlink("in.file", dir.join("b.conflist")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("c.conf"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        fs::create_dir(dir.join("d.json")).unwrap();
        fs::write(dir.join("e.conflist"), vec![b' '; MAX_FILE + 1]).unwrap();
        fs::write(dir.join("f.conflist"), b"\n\xff").unwrap();
        let catalog = Catalog::read(&[dir]).unwrap();
        let usable: Vec<bool> = catalog.entries().iter().map(|entry| entry.network.is_ok()).collect();
        assert_eq!(usable, [false, true, false, false, false, false, true, true]);
        let error = catalog.entries()[5].network.as_ref().unwrap_err().to_string();
        assert!(error.contains("f.conflist: not UTF-8 at line 2"), "{error}");
    }
}
