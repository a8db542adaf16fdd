//! Starts a pod from its plan, as a list of steps. If one fails, the steps before it are undone.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::plan::{self, Net, Plan};
use gantry_contract::start::Ready;
use gantry_model::ErrorKind;
use gantry_model::net::{DnsSpec, HostsSpec};
use gantry_model::spec::PodFlavor;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Pid, Signal};

use crate::app::App;
use crate::app::creation::{AppCreation, LogSettings};
use crate::app::first_apps;
use crate::app::first_apps::{AppInCreation, CreatedApp};
use crate::app::launcher::reap_all;
use crate::cgroup::devices::{Device, DeviceConfinement};
use crate::cgroup::kernel_log::KernelLog;
use crate::cgroup::limits::{self, BlockDevices};
use crate::cgroup::updated_limits;
use crate::cgroup::{AppCgroup, Cgroups};
use crate::failure::{Attempt, OfApp, Result, failure};
use crate::files::root;
use crate::pod::init::{self, Init};
use crate::pod::jail::{self, Jail};
use crate::pod::network::{self, AttachError, PodNetwork};
use crate::pod::user_namespace::UserNamespace;
use crate::pod::{etc, inheritance, sysctl};
use crate::seccomp::FilterCache;
use crate::sys::SingleThreaded;
use crate::table::Table;

/// A pod whose apps were started.
pub(crate) struct Pod {
    /// Its plan.
    pub(crate) plan: Plan,
    /// Descriptors opened on the host or in the supervisor's mount tree.
    pub(crate) jail: Jail,
    /// Its cgroups.
    pub(crate) cgroups: Cgroups,
    /// The block devices whose input and output is limited.
    pub(crate) block_devices: BlockDevices,
    /// Its networks, if it has some of its own.
    pub(crate) network: Option<PodNetwork>,
    /// Its PID 1; `None` in a host pod, whose apps are in the host's PID namespace.
    pub(crate) init: Option<Init>,
    /// Its apps, in the order in which they were created.
    pub(crate) apps: Table<App>,
    /// The confinement of its devices; `None`: each app's are confined, or the host has no way to.
    pub(crate) devices: Option<DeviceConfinement>,
    /// The devices of the host that the pod may use.
    allowed_devices: Vec<Device>,
    /// The kernel log, if this host lets gantry read it.
    pub(crate) kernel_log: Option<KernelLog>,
    /// The number of the next app that is added; `None`: all were used.
    pub(crate) next_number: Option<u16>,
    /// The system call filters of its apps.
    pub(crate) filters: FilterCache,
    host: etc::HostFiles,
    thread: SingleThreaded,
}

/// Starts the pod of this plan. `lock` is the pod directory; terminals of apps get this size (rows, columns).
pub(crate) fn launch(
    thread: SingleThreaded,
    mut plan: Plan,
    lock: &OwnedFd,
    terminal_size: Option<(u16, u16)>,
) -> Result<Pod> {
    jail::check_kernel()?;
    if plan.version > gantry_contract::VERSION {
        let (known, version) = (gantry_contract::VERSION, plan.version);
        let why = format!("this supervisor knows plans up to version {known}, the plan has version {version}");
        return Err(failure(ErrorKind::Unavailable, why));
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).attempt(|| "cannot become not dumpable")?;
    updated_limits::load(&mut plan);
    // Before the pod's devices are confined, and this process with them.
    let kernel_log = KernelLog::open();
    let cgroups = Cgroups::make(&plan)?;
    let mut launch = Launch {
        thread,
        cgroups,
        block_devices: BlockDevices::new(),
        network: None,
        init: None,
        app_cgroups: Vec::new(),
        terminal_size,
        devices: None,
        allowed_devices: Vec::new(),
        filters: FilterCache::default(),
    };
    match launch.run(&plan, lock) {
        Ok((jail, apps, host)) => {
            let Launch { cgroups, block_devices, network, init, devices, allowed_devices, filters, .. } = launch;
            let next_number = u16::try_from(plan.apps.len()).ok();
            Ok(Pod {
                plan,
                jail,
                cgroups,
                block_devices,
                network,
                init,
                apps,
                thread,
                devices,
                allowed_devices,
                filters,
                kernel_log,
                host,
                next_number,
            })
        }
        Err(why) => {
            launch.undo();
            Err(why)
        }
    }
}

/// A start in progress: what has to be undone if it fails.
struct Launch {
    thread: SingleThreaded,
    cgroups: Cgroups,
    block_devices: BlockDevices,
    network: Option<PodNetwork>,
    init: Option<Init>,
    /// The names of the apps that have cgroups.
    app_cgroups: Vec<String>,
    terminal_size: Option<(u16, u16)>,
    devices: Option<DeviceConfinement>,
    allowed_devices: Vec<Device>,
    filters: FilterCache,
}

/// Confines the devices of an app, unless those of its pod are, or it is privileged; returns whether they are confined.
/// A privileged app may use all.
pub(crate) fn confine_app(
    plan: &Plan,
    pod: Option<&DeviceConfinement>,
    app: &plan::App,
    cgroup: &AppCgroup,
    devices: &[Device],
) -> bool {
    match plan.privileged {
        true => app.options.privileged || cgroup.confine_devices(devices),
        false => pod.is_some(),
    }
}

impl Launch {
    fn run(&mut self, plan: &Plan, lock: &OwnedFd) -> Result<(Jail, Table<App>, etc::HostFiles)> {
        let devices = plan.apps.iter().map(|app| match plan.flavor {
            PodFlavor::Container => Device::read_all(app).of_app(&app.name),
            // Its /dev is the host's.
            PodFlavor::Host => Ok(Vec::new()),
        });
        let devices = devices.collect::<Result<Vec<_>>>()?;
        if !plan.privileged {
            self.allowed_devices = devices.concat();
            self.devices = self.cgroups.confine_devices(&self.allowed_devices);
        }
        self.block_devices = limits::read_block_devices(plan)?;
        let mut cgroups = Vec::with_capacity(plan.apps.len());
        for limits in plan.apps.iter().map(|app| &app.options.limits).chain([&plan.limits]) {
            self.cgroups.require_view(limits)?;
        }
        for app in &plan.apps {
            self.app_cgroups.push(app.name.clone());
            cgroups.push(self.cgroups.app(&app.name).of_app(&app.name)?);
        }
        // The networks come before the jail: they need the host's files, such as the plugins.
        let user = UserNamespace::make(self.thread, plan)?;
        self.network = network::enter(self.thread, plan, user.as_ref(), lock)?;
        self.cgroups.join_v1_groups()?;
        let host = read_host_files(plan, self.network.is_some());
        let etc = self.initial_etc(plan, &host)?;
        let jail = jail::enter(plan, user)?;
        if plan.flavor == PodFlavor::Container {
            self.init = Some(init::start(self.thread, jail.user.as_deref())?);
        }
        let mut begun = Vec::with_capacity(plan.apps.len());
        let result =
            (0..).zip(&plan.apps).zip(cgroups).zip(devices).try_for_each(|(((number, app), cgroup), devices)| {
                let _span = tracing::info_span!("app", app = app.name).entered();
                let devices_confined = confine_app(plan, self.devices.as_ref(), app, &cgroup, &devices);
                let log = LogSettings::of_pod(plan, &jail);
                let (pod, etc) = (plan.pod.as_str(), etc.as_slice());
                let (host, user) = (jail.host.as_ref(), jail.user.as_ref());
                let filters = &self.filters;
                let creation =
                    AppCreation { app, pod, number, devices, devices_confined, etc, log, host, user, filters };
                begun.push(
                    AppInCreation::begin(
                        plan,
                        &jail,
                        self.init.as_ref().map(|init| init.pidfd.as_fd()),
                        creation,
                        cgroup,
                    )
                    .of_app(&app.name)?,
                );
                Ok(())
            });
        // Not before the makers were forked into their cgroups, which would wait for it.
        let result = result.and_then(|()| self.cgroups.start_move(self.thread));
        // All apps are locked down before the first is executed, which may have the right to trace the others.
        let created = first_apps::finish(result, begun, self.terminal_size)?;
        self.init.as_ref().map_or(Ok(()), Init::wait_until_ready)?;
        self.cgroups.finish_move(self.init_pid())?;
        self.set_limits(plan, &created)?;
        let apps = self.execute(plan, &jail, &host, created)?;
        Ok((jail, apps, host))
    }

    fn init_pid(&self) -> Option<Pid> {
        self.init.as_ref().map(|init| init.pid)
    }

    /// Sets the limits of the pod and its apps: not before the apps' processes were made, which takes more memory and
    /// processes than they may get.
    fn set_limits(&self, plan: &Plan, apps: &[CreatedApp]) -> Result<()> {
        let ineffective = self.cgroups.set_pod_limits(None, &plan.limits, &self.block_devices);
        self.cgroups.warn(&ineffective?);
        for app in apps.iter().map(|app| &app.prepared) {
            let ineffective = app.cgroup.set_limits(&app.plan.options.limits, &self.block_devices);
            self.cgroups.warn(&ineffective.of_app(&app.plan.name)?);
        }
        Ok(())
    }

    /// Executes the programs of the apps as soon as the pod's networks are attached.
    fn execute(
        &mut self,
        plan: &Plan,
        jail: &Jail,
        host: &etc::HostFiles,
        mut created: Vec<CreatedApp>,
    ) -> Result<Table<App>> {
        self.wait_for_networks(plan, host, &mut created)?;
        sysctl::apply(self.thread, plan, jail.user.as_deref())?;
        let mut apps = Table::default();
        for app in created {
            let name = app.prepared.plan.name.clone();
            apps.insert(app.execute().of_app(&name)?);
        }
        Ok(apps)
    }

    /// The files of /etc that the apps are made with. While networks are pending, only those that can be changed later.
    fn initial_etc(&mut self, plan: &Plan, host: &etc::HostFiles) -> Result<Vec<etc::File>> {
        if plan.apps.iter().any(copies_etc) {
            self.finish_attaching()?;
        }
        let mut etc = etc_files(plan, host, self.network.as_ref())?;
        if matches!(self.network, Some(PodNetwork::Pending(_))) {
            // Without DNS settings of the networks, the image's own file must stay.
            etc.retain(|file| file.name != etc::RESOLV);
        }
        Ok(etc)
    }

    /// Waits for pending networks, and updates the files of /etc in all apps.
    fn wait_for_networks(&mut self, plan: &Plan, host: &etc::HostFiles, apps: &mut [CreatedApp]) -> Result<()> {
        if !self.finish_attaching()? {
            return Ok(());
        }
        let etc = etc_files(plan, host, self.network.as_ref())?;
        apps.iter_mut().try_for_each(|app| {
            let name = app.prepared.plan.name.clone();
            app.update_etc(plan, &etc).of_app(&name)
        })
    }

    /// Waits for pending networks; returns whether there were any.
    fn finish_attaching(&mut self) -> Result<bool> {
        match self.network.take() {
            Some(PodNetwork::Pending(network)) => match network.wait() {
                Ok(network) => {
                    self.network = Some(PodNetwork::Attached(network));
                    Ok(true)
                }
                Err(AttachError { failure, remains }) => {
                    self.network = remains.map(|network| PodNetwork::Attached(*network));
                    Err(failure)
                }
            },
            other => {
                self.network = other;
                Ok(false)
            }
        }
    }

    /// Kills what was started, detaches the networks and removes the cgroups. Mounts and namespaces end with this
    /// process.
    fn undo(mut self) {
        self.init.iter().for_each(end_init);
        detach_networks(self.thread, self.network.take(), &mut self.cgroups);
        for name in &self.app_cgroups {
            let _left_for_engine = self.cgroups.remove(name);
        }
        self.cgroups.leave_and_remove();
    }
}

/// Whether a volume of the app gets a copy of its /etc when it is made.
fn copies_etc(app: &plan::App) -> bool {
    app.mounts.iter().any(|mount| mount.seed && gantry_model::spec::normal(&mount.target) == "/etc")
}

/// Whether the pod uses DNS servers of the host: those of its resolv.conf, or gantry's resolver.
fn uses_host_dns(plan: &Plan) -> bool {
    match &plan.resolv {
        DnsSpec::None => false,
        DnsSpec::Host => true,
        DnsSpec::Given(dns) => dns.servers.is_empty() && plan.net != Net::None,
        DnsSpec::Network => plan.net != Net::None,
    }
}

/// Reads the host's files that the apps' /etc needs, while they are reachable.
fn read_host_files(plan: &Plan, has_networks: bool) -> etc::HostFiles {
    let mut host = etc::HostFiles::default();
    if uses_host_dns(plan) {
        host.resolv = root::read_host_file("/etc/resolv.conf");
        host.upstream_resolv = has_networks.then(|| root::read_host_file("/run/systemd/resolve/resolv.conf")).flatten();
    }
    if plan.hosts == HostsSpec::Host {
        host.hosts = root::read_host_file("/etc/hosts");
    }
    host
}

/// The files of the apps' /etc, as far as the networks are attached.
fn etc_files(plan: &Plan, host: &etc::HostFiles, network: Option<&PodNetwork>) -> Result<Vec<etc::File>> {
    let resolver = network.filter(|_| uses_host_dns(plan)).and_then(PodNetwork::resolver);
    etc::files(plan, host, network.map(PodNetwork::attached).unwrap_or_default(), resolver)
}

/// Detaches a pod in which no process runs any more. A failure leaves the pod's record, and the engine tries again.
fn detach_networks(thread: SingleThreaded, network: Option<PodNetwork>, cgroups: &mut Cgroups) {
    let Some(network) = network else { return };
    if network.has_plugins() {
        // Plugins take longer than the move, which then costs nothing.
        cgroups.start_leaving(thread);
        let _plugins_keep_that_of_supervisor = inheritance::reset_oom_score();
    }
    if let Err(why) = network.detach() {
        tracing::warn!("{}", why.message);
    }
}

/// Timeout of the end of a PID namespace: a process may be stuck in the kernel.
const INIT_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often children are reaped while PID 1 exits.
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Kills PID 1, and with it every process of the pod, and waits until they are gone.
pub(crate) fn end_init(init: &Init) {
    let deadline = Instant::now() + INIT_EXIT_TIMEOUT;
    // It fails only if PID 1 has exited.
    let _already_ended = rustix::process::pidfd_send_signal(&init.pidfd, Signal::KILL);
    while Instant::now() < deadline {
        // PID 1 exits when every process of its namespace was reaped; apps and execs are children of this process.
        reap_all();
        let mut fds = [PollFd::new(&init.pidfd, PollFlags::IN)];
        if poll(&mut fds, Some(&REAP_INTERVAL)).is_ok_and(|ready| ready > 0) {
            reap_all();
            return;
        }
    }
}

impl Pod {
    /// Ends a pod whose journal or control socket cannot be made.
    pub(crate) fn undo(mut self) {
        self.init.iter().for_each(end_init);
        self.detach_networks();
        self.remove_cgroups();
    }

    /// Detaches a pod in which no process runs any more. Afterwards this process is in the host's namespaces.
    pub(crate) fn detach_networks(&mut self) {
        detach_networks(self.thread, self.network.take(), &mut self.cgroups);
    }

    /// The pidfd of the pod's PID 1, if it has one.
    pub(crate) fn init_pidfd(&self) -> Option<&OwnedFd> {
        self.init.as_ref().map(|init| &init.pidfd)
    }

    /// Removes the cgroups of a pod in which no process runs any more.
    pub(crate) fn remove_cgroups(&mut self) {
        for app in self.apps.values() {
            let _left_for_engine = self.cgroups.remove(&app.plan.name);
        }
        self.cgroups.leave_and_remove();
    }

    /// Allows the devices of an app that is added to a pod whose devices are confined as one, until
    /// [`Self::restrict_devices`]. Only this app gets nodes of them.
    pub(crate) fn allow_devices(&mut self, new: &[Device]) -> Result<()> {
        let Some(confinement) = self.devices.as_mut().filter(|_| !new.is_empty()) else { return Ok(()) };
        let mut all = self.allowed_devices.clone();
        all.extend(new.iter().filter(|device| !self.allowed_devices.contains(device)).cloned());
        self.cgroups.extend_devices(confinement, &all)?;
        self.allowed_devices = all;
        Ok(())
    }

    /// Denies the devices that no app has any more; `used` are those of the apps in the pod. After a failure, the next
    /// removal tries again.
    pub(crate) fn restrict_devices(&mut self, used: Vec<Device>) {
        let Some(confinement) = &mut self.devices else { return };
        if self.allowed_devices.iter().all(|device| used.contains(device)) {
            return;
        }
        match self.cgroups.restrict_devices(confinement, &self.allowed_devices, &used) {
            Ok(()) => self.allowed_devices = used,
            Err(error) => tracing::warn!("cannot deny the pod the devices of a removed app: {error}"),
        }
    }

    /// Confines the devices of an app in a new cgroup, as [`confine_app`].
    pub(crate) fn confine_app(&self, app: &plan::App, cgroup: &AppCgroup, devices: &[Device]) -> bool {
        confine_app(&self.plan, self.devices.as_ref(), app, cgroup, devices)
    }

    /// The files of /etc of an app that is added.
    pub(crate) fn etc_files(&self) -> Result<Vec<etc::File>> {
        etc_files(&self.plan, &self.host, self.network.as_ref())
    }

    /// The part of the start reply that describes the pod.
    pub(crate) fn ready(&self) -> Ready {
        Ready {
            supervisor: std::process::id(),
            start_ticks: start_ticks().unwrap_or(0),
            init: self.init.as_ref().map_or(0, |init| init.pid.as_raw_nonzero().get().unsigned_abs()),
            apps: self.apps.values().filter_map(|app| app.started.clone()).collect(),
            networks: self.network.as_ref().map(|network| network.attached().to_vec()).unwrap_or_default(),
            warnings: self.cgroups.warnings(),
        }
    }
}

/// This process's start time in clock ticks since boot.
fn start_ticks() -> Option<u64> {
    gantry_contract::start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)
}
