//! The engine itself: a store and its options.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

use gantry_contract::plan::LogLimits;
use gantry_host::cgroup::Hierarchy;
use gantry_model::cgroup::CgroupParent;
use gantry_model::user_namespace::IdRange;
use gantry_model::{ErrorKind, Kind, NetMode};
use gantry_store::Store;
use thiserror::Error;

use crate::PodError;
use crate::host::sandbox_network::SandboxNetworkChoice;
use crate::pods::journal_cache::JournalCache;
use crate::row_writes::RowWrites;

/// The options of an engine. `Options::new` has the defaults.
#[derive(Debug, Clone)]
pub struct Options {
    /// The data directory.
    pub dir: PathBuf,
    /// The supervisor's program; `None`: `$GANTRY_STAGE1`, next to the running program, or in `/usr/libexec/gantry`.
    pub stage1: Option<PathBuf>,
    /// Options of fetching images.
    pub fetch: gantry_fetch::Config,
    /// The parent of the cgroups of pods that name none.
    pub cgroup_parent: CgroupParent,
    /// The ids of the host that pods with `--userns=auto` get; `None`: those of /etc/subuid and /etc/subgid, or
    /// [`gantry_model::user_namespace::DEFAULT_POOL`].
    pub user_ids: Option<IdRange>,
    /// Rotation of log files.
    pub log: LogLimits,
    /// The number of events that are kept when older ones are deleted.
    pub events_kept: u64,
    /// The time between the stop signal and SIGKILL for the other apps when one has failed.
    pub stop_grace: Duration,
    /// Options of networks.
    pub network: NetworkOptions,
    /// The journals that the engines with these options keep.
    pub(crate) journals: JournalCache,
}

/// Options of networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkOptions {
    /// The networks of a pod that names none.
    pub default: NetMode,
    /// Directories of network configurations, absolute; the first configuration of a name counts.
    pub config_dirs: Vec<String>,
    /// Directories of plugins, absolute.
    pub plugin_dirs: Vec<String>,
    /// Run CNI plugins also for networks that gantry implements natively.
    pub use_plugins: bool,
    /// The timeout of one plugin.
    pub plugin_limit: Duration,
    /// The resolver listens on the pods' bridges.
    pub resolver: bool,
    /// The network of the sandboxes of a kubelet.
    pub sandbox: SandboxNetworkChoice,
    /// The directory whose first configuration is the network of sandboxes, absolute.
    pub sandbox_config_dir: PathBuf,
}

impl Default for NetworkOptions {
    /// rkt's default network, `/etc/gantry/net.d` before the directory that all CNI runtimes share, the distributions'
    /// plugin directories.
    fn default() -> Self {
        let dirs = |dirs: &[&str]| dirs.iter().map(|&dir| dir.to_owned()).collect();
        Self {
            default: NetMode::default(),
            config_dirs: dirs(&["/etc/gantry/net.d", "/etc/cni/net.d"]),
            plugin_dirs: dirs(&["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"]),
            use_plugins: false,
            plugin_limit: Duration::from_secs(60),
            resolver: true,
            sandbox: SandboxNetworkChoice::default(),
            sandbox_config_dir: PathBuf::from("/etc/cni/net.d"),
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
            cgroup_parent: CgroupParent::default(),
            user_ids: None,
            log: LogLimits::default(),
            events_kept: gantry_store::EVENTS_KEPT,
            stop_grace: Duration::from_secs(10),
            network: NetworkOptions::default(),
            journals: JournalCache::default(),
        }
    }

    /// The same options for a daemon: the engines that are opened with them, or with copies of them, share a few
    /// journals that were read.
    #[must_use]
    pub fn sharing_journals(self) -> Self {
        Self { journals: JournalCache::of_daemon(), ..self }
    }
}

/// The engine could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store could not be opened.
    #[error(transparent)]
    Store(#[from] gantry_store::OpenError),
    /// Another gantryd owns the directory.
    #[error(
        "another gantryd{} keeps {}: only one can; end it, or give --dir another directory",
        .pid.map_or(String::new(), |pid| format!(" (process {pid})")),
        .dir.display()
    )]
    Kept {
        /// The data directory.
        dir: PathBuf,
        /// The process id that it recorded.
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
            Self::Kept { .. } => ErrorKind::Busy,
            Self::Recover(error) => error.kind(),
        }
    }
}

/// All operations on the pods and images of one data directory. One per thread.
pub struct Engine {
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) row_writes: RowWrites,
    pub(crate) timeouts: Timeouts,
    pub(crate) hierarchies: OnceCell<Vec<Hierarchy>>,
}

/// How long the engine waits for other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// For the lock of a pod that another process probes or deletes.
    pub(crate) lock: Duration,
    /// For the processes in a dead pod's cgroups to end after SIGKILL.
    pub(crate) cgroups: Duration,
    /// For the removal of a dead pod's networks, where that can be left for `gc`: plugins may hang.
    pub(crate) network: Duration,
}

impl Timeouts {
    /// Of a command, which has one pod to wait for.
    const fn foreground() -> Self {
        Self { lock: Duration::from_secs(3), cgroups: Duration::from_secs(2), network: Duration::from_secs(10) }
    }

    /// The timeout of a loop over many pods. Probing takes less than a millisecond; anything longer may take for ever,
    /// and the loop returns to that pod later.
    const fn background() -> Self {
        Self { lock: Duration::from_millis(5), cgroups: Duration::from_millis(100), network: Duration::from_secs(2) }
    }
}

impl Engine {
    /// Opens the data directory; creates it if it does not exist.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options) -> Result<Self, OpenError> {
        let store = Store::open(&options.dir)?;
        let engine = Self::from_store(store, options);
        // The next process that opens the directory tries again.
        let _left_for_the_next = engine.finish_cut_removals();
        Ok(engine)
    }

    pub(crate) fn from_store(store: Store, options: Options) -> Self {
        Self {
            store,
            options,
            row_writes: RowWrites::where_possible(),
            timeouts: Timeouts::foreground(),
            hierarchies: OnceCell::new(),
        }
    }

    /// Opens the data directory as [`Self::open`] does; read-only where nothing can be written, because gantryd serves
    /// a damaged database, or the disk is full or read-only.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_to_read(options: Options) -> Result<Self, OpenError> {
        use gantry_store::{DatabaseFailure, OpenError as Opening, StoreError};
        match Self::open(options.clone()) {
            Err(OpenError::Store(
                Opening::ReadOnly { .. }
                | Opening::Store(StoreError::Database { failure: DatabaseFailure::ReadOnly, .. }),
            )) => Self::open_read_only(options),
            // If reading fails too, report the first failure.
            Err(error) if error.kind() == ErrorKind::Exhausted => Self::open_read_only(options).map_err(|_| error),
            other => other,
        }
    }

    /// Opens an existing data directory read-only.
    ///
    /// # Errors
    /// [`OpenError`], also when the store does not exist.
    pub fn open_read_only(options: Options) -> Result<Self, OpenError> {
        let store = Store::open_read_only(&options.dir)?;
        Ok(Self { row_writes: RowWrites::disabled(), ..Self::from_store(store, options) })
    }

    /// The same engine for a loop over many pods, which returns to each: it waits for no pod for long, and a row that
    /// cannot be written is an error.
    #[must_use]
    pub fn into_background(self) -> Self {
        Self { timeouts: Timeouts::background(), row_writes: self.row_writes.into_required(), ..self }
    }

    /// The same engine for one command: it keeps the last journal that it has read.
    #[must_use]
    pub fn into_command(mut self) -> Self {
        self.options.journals = JournalCache::of_command();
        self
    }

    /// Why the last change to a pod's row could not be written and was only shown. The next command that can write
    /// records it.
    #[must_use]
    pub fn unwritten(&self) -> Option<String> {
        self.row_writes.failure()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }
}
