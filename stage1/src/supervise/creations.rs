//! Adds apps to the running pod, and makes the processes of apps that are started again, by a [`Maker`] each.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_contract::Failure;
use gantry_contract::control::{AddApp, Reply};
use gantry_contract::journal::Fact;
use gantry_contract::plan;
use gantry_model::ErrorKind;
use gantry_model::id::{AppName, shown};
use gantry_model::mount_options::Propagation;
use gantry_model::spec::{Limits, VolumeKind, VolumeSpec};
use rustix::thread::CapabilitySet;

use super::Supervisor;
use super::apps::refuse;
use crate::app::creation::{AppCreation, LogSettings, PreparedApp, make_stdio};
use crate::app::launcher::MadeProcess;
use crate::app::maker::{Maker, MakerMessage};
use crate::app::removal;
use crate::app::terminal::AppStdio;
use crate::app::{App, AppInput, Operation, OutputSource, StartRequest};
use crate::cgroup::devices::Device;
use crate::cgroup::limits::extra_controllers;
use crate::control;
use crate::failure::{Attempt, Result, failure};
use crate::files::{image_volume, volumes};
use crate::pod::jail;
use crate::table::Token;

/// Maximum number of apps in a running pod: their status fits into one message.
const MAX_APPS: usize = 256;

/// Timeout of freezing the apps that may trace other processes.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(1);

/// How often the freezing is polled.
const FREEZE_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How often the removal of a cgroup is tried whose processes were killed.
const CGROUP_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A process of an app that is being made.
pub(super) struct Creation {
    pub(super) maker: Maker,
    phase: Phase,
    stdio: AppStdio,
    program: String,
    target: Target,
}

/// The progress of a creation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The volumes are being filled.
    Fill,
    /// They are filled; another creation has to end first.
    Wait,
    /// The process is being made, and the apps that could trace it are frozen.
    Make,
}

/// The app whose process is made.
enum Target {
    /// An app that is being added.
    New(Box<NewApp>),
    /// An app of the pod, for a start.
    Old(Token<App>, StartRequest),
}

/// An app that is being added.
struct NewApp {
    app: PreparedApp,
    volumes: Vec<String>,
    terminal_size: Option<(u16, u16)>,
    /// Whether it is started once it is created.
    starts: bool,
    client: OwnedFd,
}

impl Supervisor {
    pub(super) fn add_app(&mut self, request: &AddApp, fds: Vec<OwnedFd>, client: OwnedFd) {
        let name = &request.app.name;
        let begun = self.check_new(request).and_then(|number| {
            let volumes = self.add_volumes(request, fds)?;
            self.prepare_new(request, number)
                .map(|(app, maker, stdio)| (volumes.clone(), app, maker, stdio))
                .inspect_err(|_| self.discard_app(name, None, volumes))
        });
        match begun {
            Ok((volumes, app, maker, stdio)) => {
                let program = app.plan.argv.first().cloned().unwrap_or_default();
                let (terminal_size, starts) = (request.terminal_size, request.start);
                let new = NewApp { app, volumes, terminal_size, starts, client };
                self.insert_creation(maker, stdio, program, Target::New(Box::new(new)));
            }
            Err(why) => refuse(&client, name, why),
        }
    }

    /// The number of a new app.
    fn check_new(&mut self, request: &AddApp) -> Result<u16> {
        self.check_is_open()?;
        let name = &request.app.name;
        let invalid = |error| failure(ErrorKind::Invalid, format!("'{}' cannot name an app: {error}", shown(name)));
        name.parse::<AppName>().map_err(invalid)?;
        if request.app.options.privileged && !self.pod.plan.privileged {
            let why = "a privileged app can be added only to a pod that was started with --privileged";
            return Err(failure(ErrorKind::Invalid, why));
        }
        if self.find_app(name).is_ok() || self.is_being_added(name) {
            return Err(failure(ErrorKind::AlreadyExists, format!("the pod has an app '{name}' already")));
        }
        if self.old_cgroups.contains(name) {
            let why = format!("processes of a former app '{name}' have not ended yet");
            return Err(failure(ErrorKind::Busy, why));
        }
        if self.pod.apps.len() + self.creations.len() >= MAX_APPS {
            let why = format!("the pod has {MAX_APPS} apps already, which is the limit");
            return Err(failure(ErrorKind::Exhausted, why));
        }
        let why = "65535 apps were added to the pod, which is the limit; make a new pod";
        let number = self.pod.next_number.ok_or_else(|| failure(ErrorKind::Exhausted, why))?;
        self.pod.next_number = number.checked_add(1);
        Ok(number)
    }

    /// Whether an app of this name is being added.
    pub(super) fn is_being_added(&self, name: &str) -> bool {
        self.creations.values().any(|creation| creation.new_app().is_some_and(|new| new.app.plan.name == name))
    }

    /// Ends the creation of an app that is being added; returns whether it is.
    pub(super) fn abort_add(&mut self, name: &str) -> bool {
        let is_of_app = |creation: &Creation| creation.new_app().is_some_and(|new| new.app.plan.name == name);
        let Some(token) = self.creations.iter().find(|(_, it)| is_of_app(it)).map(|(token, _)| token) else {
            return false;
        };
        self.fail_creation(token, failure(ErrorKind::Refused, "the app was removed"));
        self.proceed_with_creations();
        true
    }

    fn prepare_new(&mut self, request: &AddApp, number: u16) -> Result<(PreparedApp, Maker, AppStdio)> {
        // The app's limits follow in `complete_add`.
        self.pod.cgroups.require_controllers(&extra_controllers(&request.app.options.limits).collect::<Vec<_>>())?;
        self.pod.cgroups.require_view(&request.app.options.limits)?;
        self.pod.block_devices.extend(request.block_devices.clone());
        let cgroup = self.pod.cgroups.app(&request.app.name)?;
        let etc = self.pod.etc_files()?;
        let devices = Device::from_request(&request.devices)?;
        self.pod.allow_devices(&devices)?;
        let devices_confined = self.pod.confine_app(&request.app, &cgroup, &devices);
        let log = LogSettings::of_pod(&self.pod.plan, &self.pod.jail);
        let creation = AppCreation {
            app: &request.app,
            pod: &self.pod.plan.pod,
            number,
            devices,
            devices_confined,
            etc: &etc,
            log,
            host: self.pod.jail.host.as_ref(),
            user: self.pod.jail.user.as_ref(),
            filters: &self.pod.filters,
        };
        let app = creation.prepare(cgroup)?;
        let mut stdio = make_stdio(&app.plan, &self.pod.jail.null, app.host_uid()?)?;
        let given = stdio.given.take();
        let target = self.pid_target_of(&app.plan)?;
        let inputs = app.process_inputs(&self.pod.plan, target.as_ref().map(AsFd::as_fd));
        let maker = Maker::start(inputs, &app.cgroup, given, true)?;
        Ok((app, maker, stdio))
    }

    /// The pidfd of a process in the PID namespace that an app joins: of the pod's PID 1, or of the main process of the
    /// app's target.
    fn pid_target_of(&self, app: &plan::App) -> Result<Option<OwnedFd>> {
        let process = match &app.options.pid_target {
            None => self.pod.init_pidfd(),
            Some(target) => Some(self.app(self.find_app(target.as_str())?)?.running.as_ref().ok_or_else(|| {
                let name = &app.name;
                let why = format!("app '{name}' cannot join the PID namespace of app '{target}', which does not run");
                failure(ErrorKind::Refused, why)
            })?),
        };
        process
            .map(|process| rustix::io::fcntl_dupfd_cloexec(process, 0))
            .transpose()
            .attempt(|| "cannot open a process")
    }

    /// Makes a process for an app in whose cgroup no process is.
    pub(super) fn begin_creation(&mut self, token: Token<App>, start: StartRequest) {
        let Some(target) = self.pod.apps.get(token).map(|app| self.pid_target_of(&app.plan)) else { return };
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        if let Some(notify) = &mut app.notify {
            notify.reset();
        }
        let plan = &self.pod.plan;
        let stdio = app.host_uid().and_then(|uid| make_stdio(&app.plan, &self.pod.jail.null, uid));
        let begun = target.and_then(|target| {
            let mut stdio = stdio?;
            let given = stdio.given.take();
            let inputs = app.process_inputs(plan, target.as_ref().map(AsFd::as_fd));
            Ok((Maker::start(inputs, &app.cgroup, given, true)?, stdio))
        });
        match begun {
            Ok((maker, stdio)) => {
                app.operation = Some(Operation::Create);
                let program = app.plan.argv.first().cloned().unwrap_or_default();
                self.insert_creation(maker, stdio, program, Target::Old(token, start));
            }
            Err(why) => self.fail_start(token, start, why),
        }
    }

    /// Lets the maker make its process at once if it has no volumes to fill, and nothing to wait for.
    fn insert_creation(&mut self, mut maker: Maker, stdio: AppStdio, program: String, target: Target) {
        let is_alone = self.creations.is_empty() && !self.are_tracers_frozen && !self.pod.apps.values().any(is_tracer);
        let may_proceed = is_alone && self.plan_of(&target).is_some_and(|app| app.mounts.is_empty());
        // A maker that has died is reported by its socket.
        let phase = if may_proceed && maker.proceed().is_ok() { Phase::Make } else { Phase::Fill };
        self.creations.insert(Creation { maker, phase, stdio, program, target });
    }

    /// The plan of the app whose process is made; `None`: the app was removed.
    fn plan_of<'a>(&'a self, target: &'a Target) -> Option<&'a plan::App> {
        match target {
            Target::New(new) => Some(&new.app.plan),
            Target::Old(token, _) => self.pod.apps.get(*token).map(|app| &app.plan),
        }
    }

    /// A maker has sent a message or has died.
    pub(super) fn handle_creation(&mut self, token: Token<Creation>) {
        let Some(creation) = self.creations.get_mut(token) else { return };
        match creation.maker.receive(&creation.program) {
            None => return,
            Some(Ok(MakerMessage::Filled)) if creation.phase == Phase::Make => return,
            Some(Ok(MakerMessage::Filled)) => creation.phase = Phase::Wait,
            Some(Ok(MakerMessage::Created(made))) => self.complete_creation(token, made),
            Some(Err(why)) => self.fail_creation(token, why),
        }
        self.proceed_with_creations();
    }

    /// Lets the next maker make its process. One at a time: a maker is in the cgroup of its app, which another creation
    /// may have to freeze.
    fn proceed_with_creations(&mut self) {
        loop {
            if self.creations.values().any(|creation| creation.phase == Phase::Make) {
                return;
            }
            let next =
                self.creations.iter().find(|(_, creation)| creation.phase == Phase::Wait).map(|(token, _)| token);
            // Between two creations the apps run.
            self.thaw_tracers();
            let Some(token) = next else { return };
            if let Err(why) = self.freeze_tracers() {
                // Another attempt would block the event loop for the same time.
                return self.fail_waiting_creations(&why);
            }
            let Some(creation) = self.creations.get_mut(token) else { return };
            creation.phase = Phase::Make;
            if let Err(why) = creation.maker.proceed() {
                self.fail_creation(token, why);
            }
        }
    }

    fn complete_creation(&mut self, token: Token<Creation>, made: MadeProcess) {
        let Some(Creation { maker, stdio, target, .. }) = self.creations.remove(token) else { return };
        // The maker is in the app's cgroup, and would count as the app.
        let is_limited = self.plan_of(&target).is_some_and(|app| app.options.limits != Limits::default());
        let mut maker = Some(maker);
        self.ending.extend(maker.take_if(|_| is_limited).map(Maker::finish));
        match target {
            Target::New(new) => self.complete_add(*new, stdio, made),
            Target::Old(token, start) => self.complete_restart(token, start, stdio, made),
        }
        // It exits while the program is executed. The app is a child before its exit is handled.
        self.ending.extend(maker.map(Maker::finish));
    }

    /// Executes the program in the process that was made for an app of the pod.
    fn complete_restart(&mut self, token: Token<App>, start: StartRequest, stdio: AppStdio, made: MadeProcess) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        app.operation = None;
        app.waiting = Some(made.waiting);
        app.null = Some(made.null);
        let ends = stdio.supervisor_ends(made.terminal, app.terminal_size);
        let limited = app.cgroup.set_limits(&app.plan.options.limits, &self.pod.block_devices);
        match ends.and_then(|ends| limited.map(|ineffective| (ends, ineffective))) {
            Ok(((sources, input), ineffective)) => {
                self.pod.cgroups.warn(&ineffective);
                for source in sources {
                    app.output.sources.insert(source);
                }
                app.input = input;
                self.begin_execute(token, start);
            }
            Err(why) => {
                self.fail_start(token, start, why);
                self.end_waiting(token);
            }
        }
    }

    fn complete_add(&mut self, new: NewApp, stdio: AppStdio, made: MadeProcess) {
        let MadeProcess { waiting, null, terminal } = made;
        let NewApp { app, volumes, terminal_size, starts, client } = new;
        let name = app.plan.name.clone();
        let limited = app.cgroup.set_limits(&app.plan.options.limits, &self.pod.block_devices);
        let ends: Result<(Vec<OutputSource>, AppInput)> = limited.and_then(|ineffective| {
            self.pod.cgroups.warn(&ineffective);
            stdio.supervisor_ends(terminal, terminal_size)
        });
        match ends {
            Ok(ends) => {
                let mut app = app.into_app(null, ends, terminal_size);
                app.waiting = Some(waiting);
                app.volumes = volumes;
                self.pod.apps.insert(app);
                self.watch_child_exits();
                self.journal.append(Fact::AppCreated { app: name.clone() });
                if starts {
                    self.start_app(&name, StartRequest { attempt: 0, client: Some(client) });
                } else {
                    control::reply(&client, &Reply::Done, None);
                }
            }
            Err(why) => {
                app.cgroup.kill();
                self.ending.push(waiting.pidfd);
                self.discard_app(&name, Some(app.root), volumes);
                refuse(&client, &name, why);
            }
        }
    }

    /// Ends a creation and all of its processes.
    fn fail_creation(&mut self, token: Token<Creation>, why: Failure) {
        let Some(creation) = self.creations.remove(token) else { return };
        match creation.target {
            Target::New(new) => {
                self.ending.extend(creation.maker.kill(&new.app.cgroup));
                let name = new.app.plan.name;
                self.discard_app(&name, Some(new.app.root), new.volumes);
                refuse(&new.client, &name, why);
            }
            Target::Old(token, start) => {
                let Some(app) = self.pod.apps.get_mut(token) else { return };
                self.ending.extend(creation.maker.kill(&app.cgroup));
                app.operation = None;
                self.fail_start(token, start, why);
            }
        }
    }

    /// Ends the creations whose processes are not being made yet.
    fn fail_waiting_creations(&mut self, why: &Failure) {
        let waiting = self.creations.iter().filter(|(_, creation)| creation.phase == Phase::Wait);
        for token in waiting.map(|(token, _)| token).collect::<Vec<_>>() {
            self.fail_creation(token, why.clone());
        }
        self.thaw_tracers();
    }

    /// Ends all creations.
    pub(super) fn abort_creations(&mut self, why: &Failure) {
        for token in self.creations.iter().map(|(token, _)| token).collect::<Vec<_>>() {
            self.fail_creation(token, why.clone());
        }
        self.thaw_tracers();
    }

    /// Times out creations, and removes the cgroups of apps that could not be removed yet.
    pub(super) fn check_creations(&mut self, now: Instant) {
        let late = self.creations.iter().filter(|(_, creation)| creation.maker.deadline <= now);
        let late: Vec<_> = late.map(|(token, creation)| (token, creation.phase)).collect();
        for (token, phase) in late {
            let what = match phase {
                Phase::Fill => "its volumes were not filled in time",
                Phase::Wait | Phase::Make => "its process was not made in time",
            };
            self.fail_creation(token, failure(ErrorKind::TimedOut, what));
            self.proceed_with_creations();
        }
        self.remove_old_cgroups();
        if self.are_tracers_frozen && self.creations.values().all(|creation| creation.phase != Phase::Make) {
            self.thaw_tracers();
        }
    }

    /// Removes the cgroups of former apps whose processes have ended.
    pub(super) fn remove_old_cgroups(&mut self) {
        let cgroups = &self.pod.cgroups;
        self.old_cgroups.retain(|name| !cgroups.remove(name));
    }

    /// When [`Self::check_creations`] has work.
    pub(super) fn creation_deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        let has_cgroup_work = !self.old_cgroups.is_empty() || self.are_tracers_frozen;
        let cgroups = has_cgroup_work.then(|| now + CGROUP_POLL_INTERVAL);
        self.creations.values().map(|creation| creation.maker.deadline).chain(cgroups)
    }

    /// Removes what a failed add has made.
    fn discard_app(&mut self, name: &str, root: Option<OwnedFd>, volumes: Vec<String>) {
        let volumes = self.release_volumes(name, volumes);
        match removal::move_files(name, &mut self.ending) {
            Ok(trash) => self.ending.extend(trash.delete(&volumes, root)),
            Err(why) => tracing::warn!("{}", why.message),
        }
        self.remove_cgroup_later(name);
        self.restrict_devices();
    }

    /// Denies the pod the devices of an app that was removed, or whose add has failed.
    pub(super) fn restrict_devices(&mut self) {
        let of_apps = self.pod.apps.values().flat_map(|app| &app.devices);
        let new = self.creations.values().filter_map(Creation::new_app);
        let used = of_apps.chain(new.flat_map(|new| &new.app.devices)).cloned().collect();
        self.pod.restrict_devices(used);
    }

    /// Removes the cgroup of an app, as soon as the processes in it have ended.
    pub(super) fn remove_cgroup_later(&mut self, name: &str) {
        if !self.pod.cgroups.remove(name) {
            self.old_cgroups.push(name.to_owned());
        }
    }

    /// Freezes the apps that may trace other processes: a process is safe from them when it is locked down
    /// ([`crate::app::maker`]). A cgroup with a maker has no process of an app.
    fn freeze_tracers(&mut self) -> Result<()> {
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        self.are_tracers_frozen = true;
        let has_maker = |app: &App| matches!(app.operation, Some(Operation::Create));
        for app in self.pod.apps.values().filter(|app| is_tracer(app) && !has_maker(app)) {
            let cannot = |why: &str| {
                let subject = format!("app '{}', which has CAP_SYS_PTRACE, cannot be frozen meanwhile", app.plan.name);
                failure(ErrorKind::Unavailable, format!("cannot make a process beside a running app: {subject}: {why}"))
            };
            app.cgroup.set_frozen(true).map_err(|error| cannot(&error.to_string()))?;
            while !app.cgroup.is_frozen().map_err(|error| cannot(&error.to_string()))? {
                if Instant::now() >= deadline {
                    return Err(cannot("its processes do not freeze"));
                }
                std::thread::sleep(FREEZE_POLL_INTERVAL);
            }
        }
        Ok(())
    }

    /// Thaws them. If that fails (the process is out of descriptors), it is tried again by [`Self::check_creations`].
    pub(super) fn thaw_tracers(&mut self) {
        if self.are_tracers_frozen {
            let mut tracers = self.pod.apps.values().filter(|app| is_tracer(app) && !app.is_paused);
            self.are_tracers_frozen = !tracers.all(|app| app.cgroup.set_frozen(false).is_ok());
        }
    }

    /// Adds the volumes that came with a new app; returns their names.
    fn add_volumes(&mut self, request: &AddApp, fds: Vec<OwnedFd>) -> Result<Vec<String>> {
        let mut trees = fds.into_iter();
        let mut added = Vec::new();
        for spec in &request.volumes {
            let propagation = plan::propagation(&request.app.mounts, spec);
            if let Err(why) = self.add_volume(spec, propagation, &mut trees, &mut added) {
                let _of_a_failed_add = self.release_volumes("", added);
                return Err(why);
            }
        }
        Ok(added)
    }

    fn add_volume(
        &mut self,
        spec: &VolumeSpec,
        propagation: Propagation,
        trees: &mut impl Iterator<Item = OwnedFd>,
        added: &mut Vec<String>,
    ) -> Result<()> {
        let tree = match spec.kind {
            VolumeKind::Host { .. } | VolumeKind::Named { .. } => {
                let why = format!("volume '{}' came without a mount", spec.name);
                Some(trees.next().ok_or_else(|| failure(ErrorKind::Invalid, why))?)
            }
            VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => None,
        };
        if let Some(known) = self.pod.plan.volumes.iter().find(|volume| volume.name == spec.name) {
            let why = format!("the pod has another volume '{}'", spec.name);
            return if known == spec { Ok(()) } else { Err(failure(ErrorKind::AlreadyExists, why)) };
        }
        let tree = match &spec.kind {
            VolumeKind::Image { layers, sub_path, .. } => Some(image_volume::open(layers, sub_path)?),
            VolumeKind::Host { .. } | VolumeKind::Named { .. } | VolumeKind::Anonymous | VolumeKind::Empty { .. } => {
                tree
            }
        };
        if let Some(tree) = tree {
            jail::add_volume(spec.name.as_str(), &tree, propagation)?;
        }
        self.pod.plan.volumes.push(spec.clone());
        added.push(spec.name.to_string());
        Ok(())
    }

    /// Removes the volumes that were added with an app from the pod, unless another app mounts them, to which they
    /// belong from now on. Returns the directories to delete.
    pub(super) fn release_volumes(&mut self, app: &str, names: Vec<String>) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        for name in names {
            let mounts = |plan: &gantry_contract::plan::App| {
                plan.name != app && plan.mounts.iter().any(|mount| mount.volume == name)
            };
            if let Some(other) = self.pod.apps.values_mut().find(|other| mounts(&other.plan)) {
                other.volumes.push(name);
                continue;
            }
            let new = self.creations.values_mut().filter_map(Creation::new_app_mut);
            if let Some(other) = { new }.find(|other| mounts(&other.app.plan)) {
                other.volumes.push(name);
                continue;
            }
            let known = &mut self.pod.plan.volumes;
            let Some(at) = known.iter().position(|volume| volume.name.as_str() == name) else { continue };
            let volume = known.remove(at);
            match volume.kind {
                VolumeKind::Host { .. } | VolumeKind::Named { .. } | VolumeKind::Image { .. } => {
                    jail::remove_volume(&name);
                }
                VolumeKind::Anonymous | VolumeKind::Empty { .. } => {
                    dirs.extend([volumes::source(&volume).into(), volumes::temporary(&volume, app).into()]);
                }
            }
        }
        dirs
    }
}

impl Creation {
    fn new_app(&self) -> Option<&NewApp> {
        match &self.target {
            Target::New(new) => Some(new),
            Target::Old(..) => None,
        }
    }

    fn new_app_mut(&mut self) -> Option<&mut NewApp> {
        match &mut self.target {
            Target::New(new) => Some(new),
            Target::Old(..) => None,
        }
    }
}

/// Whether the app may trace processes of other apps, and has any process.
pub(super) fn is_tracer(app: &App) -> bool {
    app.confinement.capabilities.contains(CapabilitySet::SYS_PTRACE) && !app.cgroup.is_empty()
}
