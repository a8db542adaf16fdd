//! Converts the app of a manifest from and to its specification. Each direction names every field of its result, so
//! that a field that the other side lacks does not compile.

use gantry_model::device::DeviceSpec;
use gantry_model::id::IdError;
use gantry_model::{AppName, AppSpec, RequestedImage, spec, ulimit};

use super::{App, Capabilities, Device, Mount, Seccomp, Tmpfs, Ulimit, Variable};
use crate::manifest::health::Health;

impl From<&AppSpec> for App {
    fn from(app: &AppSpec) -> Self {
        // Without the id: each pod made from the manifest has its own.
        let app = app.clone();
        let options = app.options;
        Self {
            name: app.name.to_string(),
            image: app.image.map(String::from).unwrap_or_default(),
            exec: app.exec,
            args: app.args,
            user: app.user,
            group: app.group,
            supplementary_gids: options.supplementary_gids,
            supplementary_groups: options.supplementary_groups,
            working_dir: app.working_dir,
            environment: app.environment.into_iter().map(|(name, value)| Variable { name, value }).collect(),
            mounts: app.mounts.into_iter().map(Mount::from).collect(),
            tmpfs: options.tmpfs.iter().map(Tmpfs::from).collect(),
            read_only_root: options.read_only_root,
            limits: options.limits,
            devices: options.devices.iter().map(Device::from).collect(),
            ulimits: options.ulimits.iter().map(Ulimit::from).collect(),
            health: Health::from(&options.health),
            restart: options.restart,
            capabilities: app.capabilities.into(),
            seccomp: Seccomp::from(&options.seccomp),
            new_privileges: options.new_privileges,
            oom_score_adj: options.oom_score_adj,
            stop_signal: app.stop_signal,
            stop_timeout_ms: options.stop_timeout_ms,
            privileged: options.privileged,
            pid: options.pid,
            pid_target: options.pid_target,
            storage_limit: options.storage_limit,
            log_path: options.log_path,
            groups_policy: options.groups_policy,
            masked_paths: options.masked_paths,
            read_only_paths: options.read_only_paths,
            terminal: options.terminal,
            stdin: options.stdin,
            sdnotify: options.sdnotify,
            systemd: options.systemd,
            annotations: app.user_annotations,
            labels: app.user_labels,
        }
    }
}

impl TryFrom<App> for AppSpec {
    type Error = IdError;

    fn try_from(app: App) -> Result<Self, IdError> {
        let options = spec::AppOptions {
            supplementary_gids: app.supplementary_gids,
            supplementary_groups: app.supplementary_groups,
            read_only_root: app.read_only_root,
            limits: app.limits,
            seccomp: app.seccomp.into(),
            new_privileges: app.new_privileges,
            oom_score_adj: app.oom_score_adj,
            terminal: app.terminal,
            stdin: app.stdin,
            tmpfs: app.tmpfs.into_iter().map(spec::TmpfsMount::from).collect(),
            devices: app.devices.into_iter().map(DeviceSpec::from).collect(),
            ulimits: app.ulimits.into_iter().map(ulimit::Ulimit::from).collect(),
            sdnotify: app.sdnotify,
            health: app.health.into(),
            systemd: app.systemd,
            stop_timeout_ms: app.stop_timeout_ms,
            restart: app.restart,
            privileged: app.privileged,
            pid: app.pid,
            pid_target: app.pid_target,
            storage_limit: app.storage_limit,
            log_path: app.log_path,
            groups_policy: app.groups_policy,
            masked_paths: app.masked_paths,
            read_only_paths: app.read_only_paths,
        };
        Ok(Self {
            name: app.name.parse::<AppName>()?,
            id: None,
            image: RequestedImage::new(app.image),
            exec: app.exec,
            args: app.args,
            user: app.user,
            group: app.group,
            working_dir: app.working_dir,
            environment: app.environment.into_iter().map(|Variable { name, value }| (name, value)).collect(),
            mounts: app.mounts.into_iter().map(spec::MountSpec::try_from).collect::<Result<_, _>>()?,
            capabilities: app.capabilities.into(),
            stop_signal: app.stop_signal,
            options,
            user_annotations: app.annotations,
            user_labels: app.labels,
        })
    }
}

impl From<spec::MountSpec> for Mount {
    fn from(mount: spec::MountSpec) -> Self {
        let spec::MountSpec { volume, target, read_only, options } = mount;
        Self { volume: volume.to_string(), target, read_only, options }
    }
}

impl TryFrom<Mount> for spec::MountSpec {
    type Error = IdError;

    fn try_from(mount: Mount) -> Result<Self, IdError> {
        let Mount { volume, target, read_only, options } = mount;
        Ok(Self { volume: volume.parse()?, target, read_only, options })
    }
}

impl From<spec::Capabilities> for Capabilities {
    fn from(capabilities: spec::Capabilities) -> Self {
        match capabilities {
            spec::Capabilities::Default => Self::Default,
            spec::Capabilities::Retain(names) => Self::Retain(names),
            spec::Capabilities::Remove(names) => Self::Remove(names),
            spec::Capabilities::Adjust { add, drop } => Self::Adjust { add, drop },
            spec::Capabilities::Kubernetes { add, drop, ambient } => Self::Kubernetes { add, drop, ambient },
            spec::Capabilities::All => Self::All,
        }
    }
}

impl From<Capabilities> for spec::Capabilities {
    fn from(capabilities: Capabilities) -> Self {
        match capabilities {
            Capabilities::Default => Self::Default,
            Capabilities::Retain(names) => Self::Retain(names),
            Capabilities::Remove(names) => Self::Remove(names),
            Capabilities::Adjust { add, drop } => Self::Adjust { add, drop },
            Capabilities::Kubernetes { add, drop, ambient } => Self::Kubernetes { add, drop, ambient },
            Capabilities::All => Self::All,
        }
    }
}
