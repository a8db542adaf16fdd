//! How gantry works here: flags win over the environment, which wins over one optional configuration file.
//!
//! ```toml
//! # /etc/gantry/config.toml
//! dir = "/var/lib/gantry"
//! default-registry = "docker.io"   # completes short names such as alpine; none by default
//! cgroup-parent = "/gantry"
//! stop-grace = "10s"
//! [log]
//! max-size = "10Mi"                # a log file of an app is rotated at this size
//! max-files = 5                    # and so many are kept, the current one included
//! ```

use std::io::Read as _;
use std::path::{Path, PathBuf};

use gantry_engine::{Insecure, LogLimits, Options};
use serde::Deserialize;

use crate::failure::{CliError, Failure};
use crate::globals::Globals;

const DEFAULT_DIR: &str = "/var/lib/gantry";
const DEFAULT_CONFIG: &str = "/etc/gantry/config.toml";
/// A configuration file is never bigger; whatever is, is something else.
const MOST_CONFIG: u64 = 1 << 20;

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    dir: Option<PathBuf>,
    default_registry: Option<String>,
    cgroup_parent: Option<String>,
    stop_grace: Option<String>,
    #[serde(default)]
    log: Log,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Log {
    max_size: Option<String>,
    max_files: Option<u32>,
}

/// The options of the engine that flags, environment and file come to.
pub(crate) fn options(globals: &Globals) -> Result<Options, Failure> {
    let environment = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let named = globals.config.clone().or_else(|| environment("GANTRY_CONFIG").map(PathBuf::from));
    let path = named.clone().unwrap_or_else(|| DEFAULT_CONFIG.into());
    let file = match read(&path)? {
        Some(text) => parse(&text).map_err(|why| CliError::Content { path: path.clone(), why })?,
        None if named.is_some() => {
            return Err(crate::failure::io("read configuration", path.display().to_string())(std::io::Error::from(
                std::io::ErrorKind::NotFound,
            )));
        }
        None => File::default(),
    };
    let registry = match environment("GANTRY_DEFAULT_REGISTRY") {
        Some(text) => {
            Some(text.into_string().map_err(|_| CliError::Usage("GANTRY_DEFAULT_REGISTRY is not UTF-8".to_owned()))?)
        }
        None => file.default_registry.clone(),
    };
    let dir = globals.dir.clone().or_else(|| environment("GANTRY_DIR").map(PathBuf::from)).or(file.dir.clone());
    let mut options = Options::new(absolute(dir.unwrap_or_else(|| DEFAULT_DIR.into()))?);
    let insecure = globals.insecure();
    options.fetch.default_registry = registry;
    options.fetch.insecure = Insecure { http: insecure.http, tls: insecure.tls };
    apply(file, &mut options).map_err(|why| CliError::Content { path, why })?;
    Ok(options)
}

fn absolute(dir: PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(&dir).map_err(crate::failure::io("use data directory", dir.display().to_string()))
}

/// The file's text; `None` when there is no such file.
fn read(path: &Path) -> Result<Option<String>, Failure> {
    let failed = || crate::failure::io("read configuration", path.display().to_string());
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed()(error)),
    };
    let mut text = String::new();
    let read = file.take(MOST_CONFIG + 1).read_to_string(&mut text).map_err(failed())?;
    if read as u64 > MOST_CONFIG {
        let why = format!("is longer than {MOST_CONFIG} bytes: it cannot be a configuration of gantry");
        return Err(CliError::Content { path: path.to_owned(), why }.into());
    }
    Ok(Some(text))
}

fn parse(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("is not a configuration of gantry: line {line}: {}", error.message())
    })
}

/// What the file says beyond what flags and environment can.
fn apply(file: File, options: &mut Options) -> Result<(), String> {
    let wrong = |key: &'static str| move |error: gantry_model::quantity::QuantityError| format!("{key}: {error}");
    if let Some(parent) = file.cgroup_parent {
        options.cgroup_parent = parent;
    }
    if let Some(grace) = file.stop_grace {
        options.stop_grace = gantry_model::quantity::duration(&grace).map_err(wrong("stop-grace"))?;
    }
    let defaults = LogLimits::default();
    let max_bytes = file.log.max_size.map(|size| gantry_model::quantity::bytes(&size).map_err(wrong("log.max-size")));
    let max_bytes = max_bytes.transpose()?.unwrap_or(defaults.max_bytes);
    let max_files = file.log.max_files.unwrap_or(defaults.max_files);
    if max_bytes < 4096 || !(1..=1000).contains(&max_files) {
        return Err("log: max-size must be at least 4Ki, and max-files 1 to 1000".to_owned());
    }
    options.log = LogLimits { max_bytes, max_files };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn applied(text: &str) -> Result<Options, String> {
        let mut options = Options::new("/x");
        apply(parse(text)?, &mut options).map(|()| options)
    }

    #[test]
    fn a_whole_file() {
        let options =
            applied("cgroup-parent = '/a/b'\nstop-grace = '3s'\n[log]\nmax-size = '1Mi'\nmax-files = 2\n").unwrap();
        assert_eq!((options.cgroup_parent.as_str(), options.stop_grace), ("/a/b", Duration::from_secs(3)));
        assert_eq!((options.log.max_bytes, options.log.max_files), (1 << 20, 2));
        assert_eq!(applied("").unwrap().log, LogLimits::default());
        assert_eq!(parse("default-registry = 'docker.io'").unwrap().default_registry.as_deref(), Some("docker.io"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, want) in [
            ("\nstop-grce = '3s'", "line 2"),
            ("stop-grace = 'x'", "stop-grace"),
            ("stop-grace = 3", "line 1"),
            ("[log]\nmax-files = 0", "max-files"),
            ("[log]\nmax-size = '1'", "max-size"),
            ("= =", "line 1"),
        ] {
            let why = applied(text).unwrap_err();
            assert!(why.contains(want), "{text:?}: {why}");
        }
    }
}
