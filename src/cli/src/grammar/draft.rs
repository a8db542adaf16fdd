//! Collects the flags of a pod and its apps, and builds the pod from them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gantry_model::error::messages;
use gantry_model::mount_options::MountOptions;
use gantry_model::spec::{AppOptions, Capabilities, MountSpec, Seccomp, VolumeKind, VolumeSpec};
use gantry_model::user_namespace::{IdMappings, IdRange, UserNamespaceMode};
use gantry_model::{AppName, AppSpec, ImageRef, PodSpec, RequestedImage, VolumeName};

use super::network::NetDraft;
use super::{Caller, PodOptions, Pull, Request, UsageError, Verb};
use crate::globals::Globals;

/// The command line so far.
pub(super) struct Draft<'a> {
    pub(super) globals: Globals,
    pub(super) options: PodOptions,
    /// The policy of `--store-only` or `--no-store`, which `--pull-policy` may not contradict.
    pub(super) pull_switch: Option<Pull>,
    pub(super) volumes: Vec<VolumeSpec>,
    pub(super) network: NetDraft,
    /// Settings of the pod that reach it unchanged. Its apps, volumes and networks are added at the end.
    pub(super) pod: PodSpec,
    /// The ids of `--uidmap` and `--gidmap`.
    pub(super) id_maps: IdMapsDraft,
    /// App flags before the first image.
    pub(super) common: AppDraft,
    pub(super) apps: Vec<AppDraft>,
    /// The given flags that cannot be combined with a pod manifest.
    pub(super) not_with_manifest: Vec<String>,
    pub(super) caller: &'a Caller<'a>,
    verb: Verb,
    /// The running pod to which the app is added.
    pub(super) target: Option<String>,
}

/// The flags of an app, or of all apps.
#[derive(Default, Clone)]
pub(super) struct AppDraft {
    /// `None`: of the host's file system.
    pub(super) image: Option<RequestedImage>,
    pub(super) name: Option<AppName>,
    pub(super) exec: Option<String>,
    pub(super) args: Option<Vec<String>>,
    pub(super) user: Option<String>,
    pub(super) group: Option<String>,
    /// Supplementary groups. The app's own replace those of all apps.
    pub(super) groups: Option<SupplementaryGroups>,
    pub(super) working_dir: Option<String>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) mounts: Vec<MountSpec>,
    /// docker's `-v`: each becomes a volume and a mount.
    pub(super) binds: Vec<Bind>,
    /// The app's own replace those of all apps.
    pub(super) caps: CapsDraft,
    /// The file of its system call filter.
    pub(super) seccomp_file: Option<PathBuf>,
    pub(super) stop_signal: Option<u8>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) labels: BTreeMap<String, String>,
    /// Options that reach the app unchanged.
    pub(super) options: AppOptions,
}

/// The source of docker's `-v`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum BindSource {
    /// A file or directory of the host.
    Host(String),
    /// A named volume.
    Named(VolumeName),
    /// An anonymous volume, which is removed with the pod.
    Anonymous,
    /// The files of an image, or those at a path in it.
    Image {
        /// The image.
        image: String,
        /// The path; empty: all files.
        sub_path: String,
    },
}

/// A mount with its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) source: BindSource,
    pub(super) target: String,
    pub(super) read_only: bool,
    pub(super) options: MountOptions,
}

/// The flags of capabilities: rkt's (retain or remove) or docker's (add and drop).
#[derive(Default, Clone, PartialEq, Eq)]
pub(super) struct CapsDraft {
    pub(super) retain: Option<BTreeSet<String>>,
    pub(super) remove: Option<BTreeSet<String>>,
    pub(super) add: BTreeSet<String>,
    pub(super) drop: BTreeSet<String>,
}

impl CapsDraft {
    fn resolve(self) -> Result<Option<Capabilities>, UsageError> {
        let docker = !self.add.is_empty() || !self.drop.is_empty();
        match (self.retain, self.remove) {
            (Some(_), Some(_)) => {
                Err(UsageError::Conflict("--caps-retain and --caps-remove exclude each other in one app".into()))
            }
            (Some(_), None) | (None, Some(_)) if docker => Err(UsageError::Conflict(
                "--cap-add and --cap-drop cannot be combined with --caps-retain and --caps-remove in one app".into(),
            )),
            (Some(names), None) => Ok(Some(Capabilities::Retain(names))),
            (None, Some(names)) => Ok(Some(Capabilities::Remove(names))),
            (None, None) if docker => Ok(Some(Capabilities::Adjust { add: self.add, drop: self.drop })),
            (None, None) => Ok(None),
        }
    }
}

/// The flags of ids of a user namespace, podman's.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct IdMapsDraft {
    pub(super) uids: Option<IdRange>,
    pub(super) gids: Option<IdRange>,
}

impl IdMapsDraft {
    /// The user namespace; `mode` is that of `--userns`. One of the two flags is for the ids of both kinds.
    fn resolve(self, mode: UserNamespaceMode) -> Result<UserNamespaceMode, UsageError> {
        let (Some(uids), Some(gids)) = (self.uids.or(self.gids), self.gids.or(self.uids)) else { return Ok(mode) };
        if !mode.is_host() {
            return Err(UsageError::Conflict("--userns cannot be combined with --uidmap and --gidmap".into()));
        }
        Ok(UserNamespaceMode::Mapped(IdMappings { uids, gids }))
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(verb: Verb, caller: &'a Caller<'a>) -> Self {
        Self {
            globals: Globals::default(),
            options: PodOptions::default(),
            pull_switch: None,
            volumes: Vec::new(),
            network: NetDraft::default(),
            pod: PodSpec::default(),
            id_maps: IdMapsDraft::default(),
            common: AppDraft::default(),
            apps: Vec::new(),
            not_with_manifest: Vec::new(),
            caller,
            verb,
            target: None,
        }
    }

    /// The app to which an app flag applies: that of the image before it, or all apps.
    pub(super) fn app(&mut self) -> &mut AppDraft {
        match self.apps.last_mut() {
            Some(app) => app,
            None => &mut self.common,
        }
    }

    /// Adds an app of this image, with the flags of all apps as its own.
    pub(super) fn add_app(&mut self, image: Option<RequestedImage>) {
        self.apps.push(AppDraft {
            image,
            groups: None,
            binds: Vec::new(),
            caps: CapsDraft::default(),
            ..self.common.clone()
        });
    }

    /// Builds the request.
    pub(super) fn finish(self) -> Result<Request, UsageError> {
        if self.verb == Verb::Schedule && self.target.is_none() {
            return Err(UsageError::Conflict(
                "the name of the schedule is missing: gantry schedule enable NAME [flags] IMAGE [-- ARG…]".into(),
            ));
        }
        if self.options.pod_manifest.is_some() {
            return self.finish_with_manifest();
        }
        if self.verb == Verb::AddApp && self.target.is_none() {
            return Err(UsageError::Incomplete("the pod and the image are missing"));
        }
        if self.verb == Verb::AddApp && self.apps.is_empty() {
            return Err(UsageError::Incomplete("the image is missing"));
        }
        let userns = self.id_maps.resolve(self.pod.userns)?;
        let (insecure, stdin, terminal) = (self.globals.insecure(), self.options.stdin, self.options.terminal);
        let prefix = self.generated_names()?;
        let mut volumes = Volumes::new(self.volumes, prefix);
        let mut apps = Vec::with_capacity(self.apps.len());
        let common_mounts = volumes.add_mounts(&self.common.binds);
        let common_caps = self.common.caps.clone().resolve()?;
        for draft in self.apps {
            let mut app = draft.build(&self.common, &common_mounts, common_caps.as_ref(), &mut volumes)?;
            (app.options.stdin, app.options.terminal) = (stdin, terminal);
            if insecure.capabilities && app.capabilities == Capabilities::Default {
                app.capabilities = Capabilities::All;
            }
            if insecure.seccomp && app.options.seccomp == Seccomp::Default {
                app.options.seccomp = Seccomp::Unconfined;
            }
            apps.push(app);
        }
        let mut spec = PodSpec { apps, volumes: volumes.list, userns, ..self.pod };
        self.network.onto(&mut spec);
        spec.sandbox = self.verb == Verb::Sandbox;
        spec.privileged = spec.sandbox && self.common.options.privileged;
        // An added app may mount volumes of its pod: the engine validates it.
        if self.verb != Verb::AddApp {
            spec.validate()?;
        }
        Ok(Request { globals: self.globals, target: self.target, spec, options: self.options })
    }

    /// The prefix of generated names of volumes. Those of an added app must differ from those of its pod.
    fn generated_names(&self) -> Result<String, UsageError> {
        match self.apps.first() {
            Some(app) if self.verb == Verb::AddApp => {
                let name = match app.name.as_ref().or(self.common.name.as_ref()) {
                    Some(name) => name.clone(),
                    None => app.default_name()?,
                };
                // An AppName has 63 characters at most.
                Ok(format!("{}-", name.as_str().chars().take(40).collect::<String>()))
            }
            _ => Ok(String::new()),
        }
    }

    fn finish_with_manifest(self) -> Result<Request, UsageError> {
        let beside = match (self.apps.first(), self.not_with_manifest.first()) {
            (Some(AppDraft { image: Some(image), .. }), _) => {
                Some(format!("image '{}'", gantry_model::id::shown(image.as_str())))
            }
            (Some(_), _) => Some("the command after '--'".to_owned()),
            (None, flag) => flag.cloned(),
        };
        match beside {
            Some(beside) => Err(UsageError::Conflict(format!(
                "{beside} cannot be combined with --pod-manifest: the manifest describes the whole pod"
            ))),
            None => {
                let spec = PodSpec { sandbox: self.verb == Verb::Sandbox, ..PodSpec::default() };
                Ok(Request { globals: self.globals, target: self.target, spec, options: self.options })
            }
        }
    }
}

/// Supplementary groups of an app.
#[derive(Debug, Clone, Default)]
pub(super) struct SupplementaryGroups {
    /// By number.
    pub(super) gids: Vec<u32>,
    /// By name.
    pub(super) names: Vec<String>,
}

impl AppDraft {
    /// The name of an app without `--name`.
    fn default_name(&self) -> Result<AppName, UsageError> {
        match &self.image {
            Some(image) => default_name(image.as_str()),
            None => name_of_program(self.exec.as_deref(), self.args.as_deref()),
        }
    }

    /// Builds the app. `common` has the flags of all apps, of which the draft began as a copy.
    fn build(
        self,
        common: &AppDraft,
        common_mounts: &[MountSpec],
        common_caps: Option<&Capabilities>,
        volumes: &mut Volumes,
    ) -> Result<AppSpec, UsageError> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => self.default_name()?,
        };
        let mut app = AppSpec::new(name, self.image);
        app.exec = self.exec;
        app.args = self.args.unwrap_or_default();
        if app.exec.as_deref() == Some("") {
            // As in docker, an empty entrypoint drops the image's: the command is executed itself.
            if app.args.is_empty() {
                return Err(UsageError::NoCommand(app.name.to_string()));
            }
            app.exec = Some(app.args.remove(0));
        }
        app.user = self.user;
        app.group = self.group;
        app.working_dir = self.working_dir;
        app.environment = merged_environment([&self.environment[..]]);
        app.mounts = [common_mounts, &self.mounts, &volumes.add_mounts(&self.binds)].concat();
        app.capabilities = self.caps.resolve()?.or_else(|| common_caps.cloned()).unwrap_or_default();
        app.stop_signal = self.stop_signal;
        app.options = self.options;
        if let Some(path) = &self.seccomp_file {
            let profile = gantry_engine::read_seccomp_profile(path, &app.capabilities).map_err(|error| {
                UsageError::Value { flag: "--security-opt".into(), why: messages(&error).join(": ") }
            })?;
            app.options.seccomp = Seccomp::Profile(Box::new(profile));
        }
        let groups = self.groups.or_else(|| common.groups.clone()).unwrap_or_default();
        app.options.supplementary_gids = groups.gids;
        app.options.supplementary_groups = groups.names;
        app.user_annotations = self.annotations;
        app.user_labels = self.labels;
        Ok(app)
    }
}

/// Merges lists of variables. A later variable replaces an earlier one of the same name, in its position.
pub(crate) fn merged_environment<'a>(parts: impl IntoIterator<Item = &'a [(String, String)]>) -> Vec<(String, String)> {
    let mut merged: Vec<(String, String)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, value) in parts.into_iter().flatten() {
        match places.get(name.as_str()) {
            Some(&place) => merged[place].1.clone_from(value),
            None => {
                places.insert(name, merged.len());
                merged.push((name.clone(), value.clone()));
            }
        }
    }
    merged
}

/// The default name of an app, as in rkt: the last element of the image's name.
fn default_name(image: &str) -> Result<AppName, UsageError> {
    let reference: ImageRef =
        image.parse().map_err(|error: gantry_model::image_ref::RefError| UsageError::Image(error.to_string()))?;
    let file_name = |path: &std::path::Path| {
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        stem.trim_end_matches(".tar").to_owned()
    };
    let name = match &reference {
        ImageRef::Registry(registry) => registry.repository.clone(),
        ImageRef::Short(short) => short.repository.clone(),
        ImageRef::Id(hex) => hex.chars().take(12).collect(),
        ImageRef::Layout(path, _)
        | ImageRef::OciArchive(path, _)
        | ImageRef::DockerArchive(path, _)
        | ImageRef::Path(path) => file_name(path),
        ImageRef::Stdin => "stdin".to_owned(),
    };
    let last = name.rsplit('/').next().unwrap_or(&name);
    AppName::sanitized(last).ok_or_else(|| UsageError::NoName(image.to_owned()))
}

/// The default name of an app of a host pod: the file name of its program.
fn name_of_program(exec: Option<&str>, args: Option<&[String]>) -> Result<AppName, UsageError> {
    let first = args.unwrap_or_default().first().map(String::as_str);
    let program = exec.filter(|exec| !exec.is_empty()).or(first);
    let program = program.ok_or(UsageError::Incomplete("the command of the app is missing: write it after --"))?;
    let last = program.rsplit('/').next().unwrap_or(program);
    AppName::sanitized(last).ok_or_else(|| UsageError::NoName(program.to_owned()))
}

/// The volumes of the pod. Each bind gets a volume with a generated name.
struct Volumes {
    list: Vec<VolumeSpec>,
    binds: usize,
    /// The beginning of generated names.
    prefix: String,
}

impl Volumes {
    fn new(list: Vec<VolumeSpec>, prefix: String) -> Self {
        Self { list, binds: 0, prefix }
    }

    fn add_mounts(&mut self, binds: &[Bind]) -> Vec<MountSpec> {
        binds.iter().map(|bind| self.add_mount(bind)).collect()
    }

    fn add_mount(&mut self, bind: &Bind) -> MountSpec {
        let (kind, read_only) = match &bind.source {
            BindSource::Host(source) => (VolumeKind::Host { source: source.clone(), recursive: true }, bind.read_only),
            BindSource::Named(volume) => (VolumeKind::Named { volume: volume.clone() }, false),
            BindSource::Anonymous => (VolumeKind::Anonymous, false),
            BindSource::Image { image, sub_path } => {
                let (image, sub_path) = (image.clone(), sub_path.clone());
                (VolumeKind::Image { image, sub_path, layers: Vec::new() }, true)
            }
        };
        let known = self.list.iter().find(|known| matches!(kind, VolumeKind::Named { .. }) && known.kind == kind);
        let volume = match known {
            Some(known) => known.name.clone(),
            None => {
                let name = self.free_name(&bind.source);
                self.list.push(VolumeSpec { name: name.clone(), kind, read_only });
                name
            }
        };
        MountSpec { volume, target: bind.target.clone(), read_only: bind.read_only, options: bind.options }
    }

    /// A name that no other volume of the pod has; for a named volume its own name if possible.
    fn free_name(&mut self, source: &BindSource) -> AppName {
        let base = if matches!(source, BindSource::Host(_)) { "bind" } else { "volume" };
        let mut own = match source {
            BindSource::Named(volume) => AppName::sanitized(&format!("{}{volume}", self.prefix)),
            BindSource::Host(_) | BindSource::Anonymous | BindSource::Image { .. } => None,
        };
        loop {
            let name = own.take().or_else(|| {
                self.binds += 1;
                AppName::sanitized(&format!("{}{base}-{}", self.prefix, self.binds))
            });
            if let Some(free) = name.filter(|name| self.list.iter().all(|volume| volume.name != *name)) {
                return free;
            }
        }
    }
}
