//! The pod that the supervisor starts: its namespaces, its mount tree, PID 1, networks and shared files.

pub(crate) mod attaching;
pub(crate) mod etc;
pub(crate) mod inheritance;
pub(crate) mod init;
pub(crate) mod jail;
pub(crate) mod launch;
pub(crate) mod network;
pub(crate) mod resources;
pub(crate) mod sysctl;
pub(crate) mod systemd;
pub(crate) mod user_namespace;

use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_contract::Failure;
use gantry_contract::plan::Plan;
use gantry_contract::start::Ready;
use gantry_model::ErrorKind;
use gantry_model::id::shown;

use crate::app::App;
use crate::failure::{Result, failure};
use crate::pod::init::Init;
use crate::pod::jail::Jail;
use crate::pod::resources::PodResources;
use crate::seccomp::FilterCache;
use crate::table::{Table, Token};

/// A pod whose namespaces were made.
pub(crate) struct Pod {
    /// Its plan.
    pub(crate) plan: Plan,
    /// Descriptors opened on the host or in the supervisor's mount tree.
    pub(crate) jail: Jail,
    /// What it has of the host.
    pub(crate) resources: PodResources,
    /// Its PID 1; `None` in a host pod, whose apps are in the host's PID namespace.
    pub(crate) init: Option<Init>,
    /// Its apps, in the order in which they were created.
    pub(crate) apps: Table<App>,
    /// The number of the next app that is added; `None`: all were used.
    pub(crate) next_number: Option<u16>,
    /// The system call filters of its apps.
    pub(crate) filters: FilterCache,
}

impl Pod {
    /// The app of this name, with its token.
    pub(crate) fn find_app(&self, name: &str) -> Result<(Token<App>, &App)> {
        self.apps.iter().find(|(_, app)| app.plan.name == name).ok_or_else(|| no_such_app(name))
    }

    /// The app of this name.
    pub(crate) fn app(&self, name: &str) -> Result<&App> {
        self.find_app(name).map(|(_, app)| app)
    }

    /// The app of this name.
    pub(crate) fn app_mut(&mut self, name: &str) -> Result<&mut App> {
        self.apps.values_mut().find(|app| app.plan.name == name).ok_or_else(|| no_such_app(name))
    }

    /// The pidfd of the pod's PID 1, if it has one.
    pub(crate) fn init_pidfd(&self) -> Option<&OwnedFd> {
        self.init.as_ref().map(|init| &init.pidfd)
    }

    /// The time that running apps get to stop: the longest of their own, or the pod's.
    pub(crate) fn stop_grace(&self) -> Duration {
        let running = self.apps.values().filter(|app| app.running.is_some());
        let times = running.map(|app| self.stop_grace_of(app));
        times.max().unwrap_or(Duration::from_millis(self.plan.stop_grace_ms))
    }

    /// The time that an app gets to stop: its own, or the pod's.
    pub(crate) fn stop_grace_of(&self, app: &App) -> Duration {
        Duration::from_millis(app.plan.options.stop_timeout_ms.unwrap_or(self.plan.stop_grace_ms))
    }

    /// Ends a pod whose start has failed, with its first apps. Mounts and namespaces end with this process.
    pub(crate) fn undo(mut self) {
        self.init.iter().for_each(Init::end);
        self.resources.release(&self.plan);
    }

    /// Removes the cgroups of a pod in which no process runs any more.
    pub(crate) fn remove_cgroups(&mut self) {
        self.resources.remove_cgroups(self.apps.values().map(|app| &app.plan));
    }

    /// The part of the start reply that describes the pod.
    pub(crate) fn ready(&self) -> Ready {
        let network = self.resources.network.as_ref();
        Ready {
            supervisor: std::process::id(),
            start_ticks: start_ticks().unwrap_or(0),
            init: self.init.as_ref().map_or(0, |init| init.pid.as_raw_nonzero().get().unsigned_abs()),
            apps: self.apps.values().filter_map(|app| app.started.clone()).collect(),
            networks: network.map(|network| network.attached().to_vec()).unwrap_or_default(),
            warnings: self.resources.cgroups.warnings(),
        }
    }
}

pub(crate) fn no_such_app(name: &str) -> Failure {
    failure(ErrorKind::NotFound, format!("the pod has no app '{}'", shown(name)))
}

/// This process's start time in clock ticks since boot.
fn start_ticks() -> Option<u64> {
    gantry_contract::start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)
}
