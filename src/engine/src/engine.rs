//! The engine itself: a store, and how things are to be done.

use std::cell::{Cell, OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_contract::plan::LogLimits;
use gantry_model::{ErrorKind, Kind, NetMode};
use gantry_store::Store;
use thiserror::Error;

use crate::PodError;
use crate::host::cgroup::Hierarchy;

/// How an engine works. `Options::new` has the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory.
    pub dir: PathBuf,
    /// The supervisor's program; `None`: `$GANTRY_STAGE1`, next to the running program, or in `/usr/libexec/gantry`.
    pub stage1: Option<PathBuf>,
    /// How images are fetched.
    pub fetch: gantry_fetch::Config,
    /// Where pods' cgroups go, below each hierarchy's root.
    pub cgroup_parent: String,
    /// Rotation of log files.
    pub log: LogLimits,
    /// How many events stay when older ones are deleted.
    pub events_kept: u64,
    /// How long apps have between the stop signal and SIGKILL, when one of them failed.
    pub stop_grace: Duration,
    /// How pods get their networks.
    pub network: NetworkOptions,
}

/// How pods get their networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The networks of a pod of which nothing is said.
    pub default: NetMode,
    /// Directories of network configurations, absolute; the first that has a name counts.
    pub config_dirs: Vec<String>,
    /// Directories of plugins, absolute.
    pub plugin_dirs: Vec<String>,
    /// Run the plugins for every network of a file, also for those that gantry can do itself.
    pub use_plugins: bool,
    /// How long one plugin may take.
    pub plugin_limit: Duration,
    /// Names of pods are answered on their bridges.
    pub resolver: bool,
}

impl Default for NetworkOptions {
    /// rkt's network, `/etc/gantry/net.d` before the directory all share, and the plugins of the distributions.
    fn default() -> Self {
        let dirs = |dirs: &[&str]| dirs.iter().map(|&dir| dir.to_owned()).collect();
        Self {
            default: NetMode::default(),
            config_dirs: dirs(&["/etc/gantry/net.d", "/etc/cni/net.d"]),
            plugin_dirs: dirs(&["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]),
            use_plugins: false,
            plugin_limit: Duration::from_secs(60),
            resolver: true,
        }
    }
}

impl Options {
    /// The defaults, with this data directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            stage1: None,
            fetch: gantry_fetch::Config::default(),
            cgroup_parent: "/gantry".to_owned(),
            log: LogLimits::default(),
            events_kept: gantry_store::EVENTS_KEPT,
            stop_grace: Duration::from_secs(10),
            network: NetworkOptions::default(),
        }
    }
}

/// The engine could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] gantry_store::OpenError),
    /// The cgroup parent would leave its hierarchy, or be its root.
    #[error(
        "cgroup parent '{}' is not an absolute path of at least one name without '.' and '..': expected one such as /gantry",
        gantry_model::id::shown(.0)
    )]
    CgroupParent(String),
    /// Another gantryd keeps the directory.
    #[error(
        "another gantryd{} keeps {}: only one can; end it, or give --dir another directory",
        .pid.map_or(String::new(), |pid| format!(" (process {pid})")),
        .dir.display()
    )]
    Kept {
        /// The data directory.
        dir: PathBuf,
        /// Its process, as it wrote it down.
        pid: Option<u32>,
    },
    /// A damaged database could not be replaced.
    #[error("cannot restore the damaged database")]
    Recover(#[source] PodError),
}

impl Kind for OpenError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::CgroupParent(_) => ErrorKind::Invalid,
            Self::Kept { .. } => ErrorKind::Busy,
            Self::Recover(error) => error.kind(),
        }
    }
}

/// Everything that can be done with the pods and images of one data directory. One per thread.
pub struct Engine {
    pub(crate) store: Store,
    pub(crate) options: Options,
    /// Whether rows may be written; without it `reconcile` moves the rows it returns and leaves the stored ones alone.
    pub(crate) writes: Cell<bool>,
    /// Whether a row that cannot be written, because the disk is full or read-only, is moved for the caller alone.
    pub(crate) tolerant: bool,
    /// Why a row could not be written, the last time.
    pub(crate) unwritten: RefCell<Option<String>>,
    pub(crate) patience: Patience,
    pub(crate) hierarchies: OnceCell<Vec<Hierarchy>>,
}

/// How long is waited for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Patience {
    /// For the lock of a pod that somebody holds who only probes or deletes.
    pub(crate) lock: Duration,
    /// For the processes in a dead pod's cgroups to go after SIGKILL.
    pub(crate) cgroups: Duration,
    /// For a dead pod's networks to be taken away, where that can be left for `gc`: plugins may hang.
    pub(crate) network: Duration,
}

impl Patience {
    pub(crate) const OF_COMMANDS: Self =
        Self { lock: Duration::from_secs(3), cgroups: Duration::from_secs(2), network: Duration::from_secs(10) };
    /// Probing takes less than a millisecond and dying some; what takes longer may take for ever.
    pub(crate) const OF_A_KEEPER: Self =
        Self { lock: Duration::from_millis(5), cgroups: Duration::from_millis(100), network: Duration::from_secs(2) };
}

impl Engine {
    /// Opens the data directory, making it if it is not there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options) -> Result<Self, OpenError> {
        check_parent(&options.cgroup_parent)?;
        let store = Store::open(&options.dir)?;
        let engine = Self::of(store, options);
        // What cannot be finished now is tried again by the next who opens.
        let _left_for_the_next = engine.finish_cut_removals();
        Ok(engine)
    }

    pub(crate) fn of(store: Store, options: Options) -> Self {
        Self {
            store,
            options,
            writes: Cell::new(true),
            tolerant: true,
            unwritten: RefCell::default(),
            patience: Patience::OF_COMMANDS,
            hierarchies: OnceCell::new(),
        }
    }

    /// Opens it as [`Self::open`] does, and for looking only where nothing can be written: gantryd serves a damaged
    /// database, or the disk is full or read-only.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_to_look(options: Options) -> Result<Self, OpenError> {
        use gantry_store::{OpenError as Opening, StoreError};
        match Self::open(options.clone()) {
            Err(OpenError::Store(Opening::ReadOnly { .. } | Opening::Store(StoreError::ReadOnly { .. }))) => {
                Self::open_read_only(options)
            }
            // Where not even reading works, the first failure is the one to tell of.
            Err(error) if error.kind() == ErrorKind::Exhausted => Self::open_read_only(options).map_err(|_| error),
            other => other,
        }
    }

    /// Opens a data directory that is there, for looking only.
    ///
    /// # Errors
    /// [`OpenError`], also when there is none.
    pub fn open_read_only(options: Options) -> Result<Self, OpenError> {
        check_parent(&options.cgroup_parent)?;
        let store = Store::open_read_only(&options.dir)?;
        Ok(Self { writes: Cell::new(false), ..Self::of(store, options) })
    }

    /// The same for one who looks after many pods and comes back to each: it waits for no single one of them for long, and
    /// fails where a row cannot be written.
    #[must_use]
    pub fn hasty(self) -> Self {
        Self { patience: Patience::OF_A_KEEPER, tolerant: false, ..self }
    }

    /// Why the end of a pod, or anything else that was found of it, could not be written down the last time; it was only
    /// shown. The next command that can write does it.
    #[must_use]
    pub fn unwritten(&self) -> Option<String> {
        self.unwritten.borrow().clone()
    }

    /// The store behind it.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How it works.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The supervisor's program: where it is, or the places where it was looked for.
    pub(crate) fn stage1(&self) -> Result<PathBuf, Vec<PathBuf>> {
        if let Some(path) = &self.options.stage1 {
            return if path.is_file() { Ok(path.clone()) } else { Err(vec![path.clone()]) };
        }
        if let Some(path) = std::env::var_os("GANTRY_STAGE1").filter(|path| !path.is_empty()).map(PathBuf::from) {
            return if path.is_file() { Ok(path) } else { Err(vec![path]) };
        }
        let exe = std::env::current_exe().ok();
        let own = exe.as_deref().and_then(Path::parent);
        // Beside the program (a build), below its prefix (/usr/local), in the system's place (a package).
        let places = own.into_iter().flat_map(|dir| [dir.join("gantry-stage1"), dir.join(BELOW_PREFIX)]);
        let places: Vec<PathBuf> = places.chain([PathBuf::from(LIBEXEC)]).collect();
        places.iter().find(|path| Path::is_file(path)).cloned().ok_or(places)
    }
}

const BELOW_PREFIX: &str = "../libexec/gantry/gantry-stage1";
const LIBEXEC: &str = "/usr/libexec/gantry/gantry-stage1";

pub(crate) fn check_parent(parent: &str) -> Result<(), OpenError> {
    let named = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(['\0', '\n']);
    let fits = parent.strip_prefix('/').is_some_and(|rest| rest.split('/').all(named)) && parent.len() < 1024;
    if fits { Ok(()) } else { Err(OpenError::CgroupParent(parent.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_parents() {
        for good in ["/gantry", "/a/b", "/a.slice"] {
            assert!(check_parent(good).is_ok(), "{good}");
        }
        for bad in ["", "/", "gantry", "/a/", "/../a", "/a//b", "/a\nb", "/./a"] {
            assert!(check_parent(bad).is_err(), "{bad:?}");
        }
    }
}
