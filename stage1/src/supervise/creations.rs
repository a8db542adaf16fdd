//! Adds apps to the running pod, and makes the processes of apps that are started again, by a [`Maker`] each.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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

use super::Supervisor;
use super::apps::refuse;
use crate::app::creation::AppCreation;
use crate::app::launcher::MadeProcess;
use crate::app::maker::{Maker, MakerMessage};
use crate::app::removal;
use crate::app::terminal::AppStdio;
use crate::app::{App, Operation, StartRequest};
use crate::cgroup::devices::Device;
use crate::cgroup::limits::extra_controllers;
use crate::control;
use crate::failure::{Result, failure};
use crate::files::{image_volume, volumes};
use crate::pod::resources::AppResources;
use crate::pod::{Pod, jail};
use crate::table::{Table, Token};

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
    target: Target,
}

/// The processes of apps that are being made.
#[derive(Default)]
pub(super) struct Creations {
    all: Table<Creation>,
    /// Whether apps that may trace other processes are frozen, or may be.
    are_tracers_frozen: bool,
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
    app: App,
    /// Whether it is started once it is created.
    starts: bool,
    client: OwnedFd,
}

impl Pod {
    fn add_volume(
        &mut self,
        spec: &VolumeSpec,
        propagation: Propagation,
        trees: &mut impl Iterator<Item = OwnedFd>,
        added: &mut Vec<String>,
    ) -> Result<()> {
        // Also of a volume that the pod has: the next mount belongs to the next volume.
        let tree = match spec.kind {
            VolumeKind::Host { .. } | VolumeKind::Named { .. } => {
                let why = format!("volume '{}' came without a mount", spec.name);
                Some(trees.next().ok_or_else(|| failure(ErrorKind::Invalid, why))?)
            }
            VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => None,
        };
        if let Some(known) = self.plan.volumes.iter().find(|volume| volume.name == spec.name) {
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
        self.plan.volumes.push(spec.clone());
        added.push(spec.name.to_string());
        Ok(())
    }
}

impl Supervisor {
    pub(super) fn add_app(&mut self, request: &AddApp, fds: Vec<OwnedFd>, client: OwnedFd) {
        let name = &request.app.name;
        let begun = self.check_new(request).and_then(|number| {
            let volumes = self.add_volumes(request, fds)?;
            match self.prepare_new(request, number) {
                Ok((app, maker, stdio)) => Ok((App { volumes, ..app }, maker, stdio)),
                Err(why) => {
                    self.discard_app(name, None, volumes);
                    Err(why)
                }
            }
        });
        match begun {
            Ok((app, maker, stdio)) => {
                let new = NewApp { app, starts: request.start, client };
                self.insert_creation(maker, stdio, Target::New(Box::new(new)));
            }
            Err(why) => refuse(&client, name, why),
        }
    }

    /// The number of a new app.
    fn check_new(&mut self, request: &AddApp) -> Result<u16> {
        self.shutdown.check_is_open()?;
        let name = &request.app.name;
        let invalid = |error| failure(ErrorKind::Invalid, format!("'{}' cannot name an app: {error}", shown(name)));
        name.parse::<AppName>().map_err(invalid)?;
        if request.app.options.privileged && !self.pod.plan.privileged {
            let why = "a privileged app can be added only to a pod that was started with --privileged";
            return Err(failure(ErrorKind::Invalid, why));
        }
        if self.pod.find_app(name).is_ok() || self.creations.find_new(name).is_some() {
            return Err(failure(ErrorKind::AlreadyExists, format!("the pod has an app '{name}' already")));
        }
        if self.pod.resources.has_former_cgroup(name) {
            let why = format!("processes of a former app '{name}' have not ended yet");
            return Err(failure(ErrorKind::Busy, why));
        }
        if self.pod.apps.len() + self.creations.all.len() >= MAX_APPS {
            let why = format!("the pod has {MAX_APPS} apps already, which is the limit");
            return Err(failure(ErrorKind::Exhausted, why));
        }
        let why = "65535 apps were added to the pod, which is the limit; make a new pod";
        let number = self.pod.next_number.ok_or_else(|| failure(ErrorKind::Exhausted, why))?;
        self.pod.next_number = number.checked_add(1);
        Ok(number)
    }

    /// Ends the creation of an app that is being added; returns whether it is.
    pub(super) fn abort_add(&mut self, name: &str) -> bool {
        let Some(token) = self.creations.find_new(name) else { return false };
        self.fail_creation(token, failure(ErrorKind::Refused, "the app was removed"));
        self.proceed_with_creations();
        true
    }

    fn prepare_new(&mut self, request: &AddApp, number: u16) -> Result<(App, Maker, AppStdio)> {
        let limits = &request.app.options.limits;
        let resources = &mut self.pod.resources;
        // The app's limits follow in `complete_add`.
        resources.cgroups.require_controllers(&extra_controllers(limits).collect::<Vec<_>>())?;
        resources.cgroups.require_view(limits)?;
        resources.block_devices.extend(request.block_devices.clone());
        let cgroup = resources.cgroups.app(&request.app.name)?;
        let etc = resources.etc_files(&self.pod.plan)?;
        let devices = Device::from_request(&request.devices)?;
        resources.allow_devices(&devices)?;
        let pod = &self.pod;
        let (resources, terminal_size) = (AppResources { cgroup, devices }, request.terminal_size);
        let creation = AppCreation { pod, app: &request.app, number, resources, etc: &etc, terminal_size };
        let (app, _written) = creation.prepare()?;
        let (maker, stdio) = start_maker(pod, &app)?;
        Ok((app, maker, stdio))
    }

    /// Makes a process for an app in whose cgroup no process is.
    pub(super) fn begin_creation(&mut self, token: Token<App>, start: StartRequest) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        if let Some(notify) = &mut app.notify {
            notify.reset();
        }
        let Some(app) = self.pod.apps.get(token) else { return };
        match start_maker(&self.pod, app) {
            Ok((maker, stdio)) => {
                if let Some(app) = self.pod.apps.get_mut(token) {
                    app.operation = Some(Operation::Create);
                }
                self.insert_creation(maker, stdio, Target::Old(token, start));
            }
            Err(why) => self.fail_start(token, start, why),
        }
    }

    /// Lets the maker make its process at once if it has no volumes to fill, and nothing to wait for.
    fn insert_creation(&mut self, mut maker: Maker, stdio: AppStdio, target: Target) {
        let is_alone = self.creations.is_idle() && !self.pod.apps.values().any(App::is_tracer);
        let may_proceed = is_alone && self.plan_of(&target).is_some_and(|app| app.mounts.is_empty());
        // A maker that has died is reported by its socket.
        let phase = if may_proceed && maker.proceed().is_ok() { Phase::Make } else { Phase::Fill };
        self.creations.all.insert(Creation { maker, phase, stdio, target });
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
        let Some(creation) = self.creations.all.get_mut(token) else { return };
        match creation.maker.receive() {
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
            if self.creations.is_in_phase(Phase::Make) {
                return;
            }
            let next = self.creations.tokens_in_phase(Phase::Wait).next();
            // Between two creations the apps run.
            self.creations.thaw_tracers(&self.pod.apps);
            let Some(token) = next else { return };
            if let Err(why) = self.creations.freeze_tracers(&self.pod.apps) {
                // Another attempt would block the event loop for the same time.
                return self.fail_waiting_creations(&why);
            }
            let Some(creation) = self.creations.all.get_mut(token) else { return };
            creation.phase = Phase::Make;
            if let Err(why) = creation.maker.proceed() {
                self.fail_creation(token, why);
            }
        }
    }

    fn complete_creation(&mut self, token: Token<Creation>, made: MadeProcess) {
        let Some(Creation { maker, stdio, target, .. }) = self.creations.all.remove(token) else { return };
        // The maker is in the app's cgroup, and would count as the app.
        let is_limited = self.plan_of(&target).is_some_and(|app| app.options.limits != Limits::default());
        let mut maker = Some(maker);
        self.reaper.add_all(maker.take_if(|_| is_limited).map(Maker::finish));
        match target {
            Target::New(new) => self.complete_add(*new, stdio, made),
            Target::Old(token, start) => self.complete_restart(token, start, stdio, made),
        }
        // It exits while the program is executed. The app is a child before its exit is handled.
        self.reaper.add_all(maker.map(Maker::finish));
    }

    /// Executes the program in the process that was made for an app of the pod.
    fn complete_restart(&mut self, token: Token<App>, start: StartRequest, stdio: AppStdio, made: MadeProcess) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        app.operation = None;
        match app.adopt(made, stdio).and_then(|()| self.pod.resources.set_app_limits(app)) {
            Ok(()) => self.begin_execute(token, start),
            Err(why) => {
                self.fail_start(token, start, why);
                self.end_waiting(token);
            }
        }
    }

    fn complete_add(&mut self, new: NewApp, stdio: AppStdio, made: MadeProcess) {
        let NewApp { mut app, starts, client } = new;
        let name = app.plan.name.clone();
        match app.adopt(made, stdio).and_then(|()| self.pod.resources.set_app_limits(&app)) {
            Ok(()) => {
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
                self.reaper.add_all(app.waiting.map(|waiting| waiting.pidfd));
                self.discard_app(&name, Some(app.root), app.volumes);
                refuse(&client, &name, why);
            }
        }
    }

    /// Ends a creation and all of its processes.
    fn fail_creation(&mut self, token: Token<Creation>, why: Failure) {
        let Some(creation) = self.creations.all.remove(token) else { return };
        match creation.target {
            Target::New(new) => {
                self.reaper.add_all(creation.maker.kill(&new.app.cgroup));
                let name = new.app.plan.name;
                self.discard_app(&name, Some(new.app.root), new.app.volumes);
                refuse(&new.client, &name, why);
            }
            Target::Old(token, start) => {
                let Some(app) = self.pod.apps.get_mut(token) else { return };
                self.reaper.add_all(creation.maker.kill(&app.cgroup));
                app.operation = None;
                self.fail_start(token, start, why);
            }
        }
    }

    /// Ends the creations whose processes are not being made yet.
    fn fail_waiting_creations(&mut self, why: &Failure) {
        for token in self.creations.tokens_in_phase(Phase::Wait).collect::<Vec<_>>() {
            self.fail_creation(token, why.clone());
        }
        self.creations.thaw_tracers(&self.pod.apps);
    }

    /// Ends all creations.
    pub(super) fn abort_creations(&mut self, why: &Failure) {
        for token in self.creations.all.tokens() {
            self.fail_creation(token, why.clone());
        }
        self.creations.thaw_tracers(&self.pod.apps);
    }

    /// Times out creations, and removes the cgroups of apps that could not be removed yet.
    pub(super) fn check_creations(&mut self, now: Instant) {
        let late = self.creations.all.iter().filter(|(_, creation)| creation.maker.deadline <= now);
        let late: Vec<_> = late.map(|(token, creation)| (token, creation.phase)).collect();
        for (token, phase) in late {
            let what = match phase {
                Phase::Fill => "its volumes were not filled in time",
                Phase::Wait | Phase::Make => "its process was not made in time",
            };
            self.fail_creation(token, failure(ErrorKind::TimedOut, what));
            self.proceed_with_creations();
        }
        self.pod.resources.remove_former_cgroups();
        if !self.creations.is_in_phase(Phase::Make) {
            self.creations.thaw_tracers(&self.pod.apps);
        }
    }

    /// When [`Self::check_creations`] has work.
    pub(super) fn creation_deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        let has_cgroup_work = self.pod.resources.has_former_cgroups() || self.creations.are_tracers_frozen;
        let cgroups = has_cgroup_work.then(|| now + CGROUP_POLL_INTERVAL);
        self.creations.all.values().map(|creation| creation.maker.deadline).chain(cgroups)
    }

    /// Removes what a failed add has made.
    fn discard_app(&mut self, name: &str, root: Option<OwnedFd>, volumes: Vec<String>) {
        let volumes = self.release_volumes(name, volumes);
        match removal::move_files(name, &mut self.reaper) {
            Ok(trash) => self.reaper.add_all(trash.delete(&volumes, root)),
            Err(why) => tracing::warn!("{}", why.message),
        }
        self.pod.resources.remove_app_cgroup(name);
        self.restrict_devices();
    }

    /// Denies the pod the devices of an app that was removed, or whose add has failed.
    pub(super) fn restrict_devices(&mut self) {
        let of_apps = self.pod.apps.values().flat_map(|app| &app.devices);
        let new = self.creations.all.values().filter_map(Creation::new_app);
        let used = of_apps.chain(new.flat_map(|new| &new.app.devices)).cloned().collect();
        self.pod.resources.restrict_devices(used);
    }

    /// Adds the volumes that came with a new app; returns their names.
    fn add_volumes(&mut self, request: &AddApp, fds: Vec<OwnedFd>) -> Result<Vec<String>> {
        let mut trees = fds.into_iter();
        let mut added = Vec::new();
        for spec in &request.volumes {
            let propagation = plan::propagation(&request.app.mounts, spec);
            if let Err(why) = self.pod.add_volume(spec, propagation, &mut trees, &mut added) {
                let _of_a_failed_add = self.release_volumes("", added);
                return Err(why);
            }
        }
        Ok(added)
    }

    /// Removes the volumes that were added with an app from the pod, unless another app mounts them, to which they
    /// belong from now on. Returns the directories to delete.
    pub(super) fn release_volumes(&mut self, app: &str, names: Vec<String>) -> Vec<PathBuf> {
        let mut dirs = Vec::new();
        for name in names {
            let mounts = |plan: &plan::App| plan.name != app && plan.mounts.iter().any(|mount| mount.volume == name);
            if let Some(other) = self.pod.apps.values_mut().find(|other| mounts(&other.plan)) {
                other.volumes.push(name);
                continue;
            }
            let new = self.creations.all.values_mut().filter_map(Creation::new_app_mut);
            if let Some(other) = { new }.find(|other| mounts(&other.app.plan)) {
                other.app.volumes.push(name);
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

impl Creations {
    /// Whether no process is being made.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether no process is being made, and no app is frozen for one.
    fn is_idle(&self) -> bool {
        self.is_empty() && !self.are_tracers_frozen
    }

    /// Whether apps that may trace other processes are frozen, or may be.
    pub(super) fn are_tracers_frozen(&self) -> bool {
        self.are_tracers_frozen
    }

    /// The sockets of makers to poll.
    pub(super) fn watched(&self) -> impl Iterator<Item = (Token<Creation>, BorrowedFd<'_>)> {
        self.all.iter().map(|(token, creation)| (token, creation.maker.socket.as_fd()))
    }

    /// The creation of an app of this name that is being added.
    fn find_new(&self, name: &str) -> Option<Token<Creation>> {
        let is_of_app = |creation: &Creation| creation.new_app().is_some_and(|new| new.app.plan.name == name);
        self.all.iter().find(|(_, creation)| is_of_app(creation)).map(|(token, _)| token)
    }

    fn is_in_phase(&self, phase: Phase) -> bool {
        self.tokens_in_phase(phase).next().is_some()
    }

    fn tokens_in_phase(&self, phase: Phase) -> impl Iterator<Item = Token<Creation>> {
        self.all.iter().filter(move |(_, creation)| creation.phase == phase).map(|(token, _)| token)
    }

    /// Freezes the apps that may trace other processes: a process is safe from them when it is locked down
    /// ([`crate::app::maker`]). A cgroup with a maker has no process of an app.
    fn freeze_tracers(&mut self, apps: &Table<App>) -> Result<()> {
        let deadline = Instant::now() + FREEZE_TIMEOUT;
        self.are_tracers_frozen = true;
        let has_maker = |app: &App| matches!(app.operation, Some(Operation::Create));
        for app in apps.values().filter(|app| app.is_tracer() && !has_maker(app)) {
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

    /// Thaws them, unless they are paused. If that fails (the process is out of descriptors), it is tried again by
    /// [`Supervisor::check_creations`].
    pub(super) fn thaw_tracers(&mut self, apps: &Table<App>) {
        if self.are_tracers_frozen {
            let mut tracers = apps.values().filter(|app| app.is_tracer() && !app.is_paused);
            self.are_tracers_frozen = !tracers.all(|app| app.cgroup.set_frozen(false).is_ok());
        }
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

/// Starts to make a process for an app, with its stdio.
fn start_maker(pod: &Pod, app: &App) -> Result<(Maker, AppStdio)> {
    let mut stdio = app.make_stdio(&pod.jail.null)?;
    let pid_target = pid_target(pod, &app.plan)?;
    let inputs = app.process_inputs(&pod.plan, pid_target.map(OwnedFd::as_fd));
    let maker = Maker::start(inputs, stdio.given.take(), true)?;
    Ok((maker, stdio))
}

/// The pidfd of a process in the PID namespace that an app joins: of the pod's PID 1, or of the main process of the
/// app's target.
fn pid_target<'p>(pod: &'p Pod, app: &plan::App) -> Result<Option<&'p OwnedFd>> {
    let Some(target) = &app.options.pid_target else { return Ok(pod.init_pidfd()) };
    pod.app(target.as_str())?.running.as_ref().map(Some).ok_or_else(|| {
        let name = &app.name;
        let why = format!("app '{name}' cannot join the PID namespace of app '{target}', which does not run");
        failure(ErrorKind::Refused, why)
    })
}
