//! What a pod has of the host: cgroups, devices, networks, and copies of the host's files. It is acquired before the
//! pod's mount tree is entered, and released when no process of the pod runs any more.

use std::os::fd::OwnedFd;

use gantry_contract::plan::{self, Net, Plan};
use gantry_model::net::{DnsSpec, HostsSpec};
use gantry_model::spec::{Limits, PodFlavor};

use crate::app::App;
use crate::cgroup::devices::{Device, DeviceConfinement};
use crate::cgroup::kernel_log::KernelLog;
use crate::cgroup::limits::{self, BlockDevices};
use crate::cgroup::{AppCgroup, Cgroups};
use crate::failure::{OfApp as _, Result};
use crate::files::root;
use crate::pod::network::{self, AttachError, PodNetwork};
use crate::pod::user_namespace::UserNamespace;
use crate::pod::{etc, inheritance};
use crate::sys::SingleThreaded;

/// What a pod has of the host.
pub(crate) struct PodResources {
    thread: SingleThreaded,
    /// Its cgroups.
    pub(crate) cgroups: Cgroups,
    /// The cgroups of removed apps that were not empty, by the names of the apps.
    former_cgroups: Vec<String>,
    /// The block devices whose input and output is limited.
    pub(crate) block_devices: BlockDevices,
    /// The kernel log, if this host lets gantry read it.
    pub(crate) kernel_log: Option<KernelLog>,
    /// Its networks, if it has some of its own.
    pub(crate) network: Option<PodNetwork>,
    /// The confinement of its devices; `None`: each app's are confined, or the host has no way to.
    confinement: Option<DeviceConfinement>,
    /// The devices of the host that the pod may use, if they are confined.
    allowed_devices: Vec<Device>,
    /// The host's files that the apps' /etc needs.
    host_files: etc::HostFiles,
}

/// What an app has of the host.
pub(crate) struct AppResources {
    /// Its cgroups.
    pub(crate) cgroup: AppCgroup,
    /// The devices of the host that it gets.
    pub(crate) devices: Vec<Device>,
}

impl PodResources {
    /// The resources of a pod before [`Self::make_apps`] and [`Self::enter_network`].
    pub(crate) fn new(thread: SingleThreaded, cgroups: Cgroups, kernel_log: Option<KernelLog>) -> Self {
        Self {
            thread,
            cgroups,
            former_cgroups: Vec::new(),
            block_devices: BlockDevices::new(),
            kernel_log,
            network: None,
            confinement: None,
            allowed_devices: Vec::new(),
            host_files: etc::HostFiles::default(),
        }
    }

    /// Makes the cgroups of the pod's first apps, and confines its devices. Returns the apps' resources, in order.
    pub(crate) fn make_apps(&mut self, plan: &Plan) -> Result<Vec<AppResources>> {
        let devices = plan.apps.iter().map(|app| match plan.flavor {
            PodFlavor::Container => Device::read_all(app).of_app(&app.name),
            // Its /dev is the host's.
            PodFlavor::Host => Ok(Vec::new()),
        });
        let devices = devices.collect::<Result<Vec<_>>>()?;
        if !plan.privileged {
            self.allowed_devices = devices.concat();
            self.confinement = self.cgroups.confine_devices(&self.allowed_devices);
        }
        self.block_devices = limits::read_block_devices(plan)?;
        for limits in plan.apps.iter().map(|app| &app.options.limits).chain([&plan.limits]) {
            self.cgroups.require_view(limits)?;
        }
        let apps = plan.apps.iter().zip(devices).map(|(app, devices)| {
            let cgroup = self.cgroups.app(&app.name).of_app(&app.name)?;
            Ok(AppResources { cgroup, devices })
        });
        apps.collect()
    }

    /// Enters the pod's network namespace, begins to attach its networks, and reads the host's files while they are
    /// reachable. `lock` is the pod directory.
    pub(crate) fn enter_network(&mut self, plan: &Plan, user: Option<&UserNamespace>, lock: &OwnedFd) -> Result<()> {
        self.network = network::enter(self.thread, plan, user, lock)?;
        self.cgroups.join_v1_groups()?;
        self.host_files = read_host_files(plan, self.network.is_some());
        Ok(())
    }

    /// The files of /etc that the first apps are made with. While networks are pending, only those that can be changed
    /// later.
    pub(crate) fn initial_etc(&mut self, plan: &Plan) -> Result<Vec<etc::File>> {
        if plan.apps.iter().any(copies_etc) {
            self.finish_attaching()?;
        }
        let mut etc = self.etc_files(plan)?;
        if matches!(self.network, Some(PodNetwork::Pending(_))) {
            // Without DNS settings of the networks, the image's own file must stay.
            etc.retain(|file| file.name != etc::RESOLV);
        }
        Ok(etc)
    }

    /// The files of an app's /etc, as far as the networks are attached.
    pub(crate) fn etc_files(&self, plan: &Plan) -> Result<Vec<etc::File>> {
        let network = self.network.as_ref();
        let resolver = network.filter(|_| uses_host_dns(plan)).and_then(PodNetwork::resolver);
        etc::files(plan, &self.host_files, network.map(PodNetwork::attached).unwrap_or_default(), resolver)
    }

    /// Waits for pending networks; returns whether there were any.
    pub(crate) fn finish_attaching(&mut self) -> Result<bool> {
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

    /// Confines the devices of an app in a new cgroup, unless those of its pod are, or it is privileged; returns
    /// whether they are confined. A privileged app may use all.
    pub(crate) fn confine_app(&self, plan: &Plan, app: &plan::App, cgroup: &AppCgroup, devices: &[Device]) -> bool {
        match plan.privileged {
            true => app.options.privileged || cgroup.confine_devices(devices),
            false => self.confinement.is_some(),
        }
    }

    /// Allows the devices of an app that is added to a pod whose devices are confined as one, until
    /// [`Self::restrict_devices`]. Only this app gets nodes of them.
    pub(crate) fn allow_devices(&mut self, new: &[Device]) -> Result<()> {
        let Some(confinement) = self.confinement.as_mut().filter(|_| !new.is_empty()) else { return Ok(()) };
        let mut all = self.allowed_devices.clone();
        all.extend(new.iter().filter(|device| !self.allowed_devices.contains(device)).cloned());
        self.cgroups.extend_devices(confinement, &all)?;
        self.allowed_devices = all;
        Ok(())
    }

    /// Denies the devices that no app has any more; `used` are those of the apps in the pod. After a failure, the next
    /// removal tries again.
    pub(crate) fn restrict_devices(&mut self, used: Vec<Device>) {
        let Some(confinement) = &mut self.confinement else { return };
        if self.allowed_devices.iter().all(|device| used.contains(device)) {
            return;
        }
        match self.cgroups.restrict_devices(confinement, &self.allowed_devices, &used) {
            Ok(()) => self.allowed_devices = used,
            Err(error) => tracing::warn!("cannot deny the pod the devices of a removed app: {error}"),
        }
    }

    /// Sets the limits of the pod: not before the processes of its first apps were made, which takes more memory and
    /// processes than they may get.
    pub(crate) fn set_pod_limits(&self, limits: &Limits) -> Result<()> {
        let ineffective = self.cgroups.set_pod_limits(None, limits, &self.block_devices)?;
        self.cgroups.warn(&ineffective);
        Ok(())
    }

    /// Sets the limits of an app: not before its process was made, as those of the pod. Logs those without effect.
    pub(crate) fn set_app_limits(&self, app: &App) -> Result<()> {
        let mut ineffective = app.cgroup.set_limits(&app.plan.options.limits, &self.block_devices)?;
        ineffective.extend(app.ineffective_oom_score());
        self.cgroups.warn(&ineffective);
        Ok(())
    }

    /// Removes the cgroups of an app that was removed, as soon as the processes in them have ended.
    pub(crate) fn remove_app_cgroup(&mut self, name: &str) {
        if !self.cgroups.remove(name) {
            self.former_cgroups.push(name.to_owned());
        }
    }

    /// Removes the cgroups of former apps whose processes have ended meanwhile.
    pub(crate) fn remove_former_cgroups(&mut self) {
        self.former_cgroups.retain(|name| !self.cgroups.remove(name));
    }

    /// Whether [`Self::remove_former_cgroups`] has work.
    pub(crate) fn has_former_cgroups(&self) -> bool {
        !self.former_cgroups.is_empty()
    }

    /// Whether processes of a former app of this name have not ended yet.
    pub(crate) fn has_former_cgroup(&self, name: &str) -> bool {
        self.former_cgroups.iter().any(|former| former == name)
    }

    /// Detaches a pod in which no process runs any more. A failure leaves the pod's record, and the engine tries again.
    /// Afterwards this process is in the host's namespaces.
    pub(crate) fn detach_networks(&mut self) {
        let Some(network) = self.network.take() else { return };
        if network.has_plugins() {
            // Plugins take longer than the move, which then costs nothing.
            self.cgroups.start_leaving(self.thread);
            let _plugins_keep_that_of_supervisor = inheritance::reset_oom_score();
        }
        if let Err(why) = network.detach() {
            tracing::warn!("{}", why.message);
        }
    }

    /// Removes the cgroups of a pod with these apps in which no process runs any more.
    pub(crate) fn remove_cgroups<'a>(&mut self, apps: impl IntoIterator<Item = &'a plan::App>) {
        for app in apps {
            let _left_for_engine = self.cgroups.remove(&app.name);
        }
        self.cgroups.leave_and_remove();
    }

    /// Releases all after a failed start. Mounts and namespaces end with this process.
    pub(crate) fn release(&mut self, plan: &Plan) {
        self.detach_networks();
        self.remove_cgroups(&plan.apps);
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
