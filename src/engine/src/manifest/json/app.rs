//! Converts the app of a manifest from and to its specification. Each direction names every field of both, so that a
//! field that one of them lacks does not compile.

use gantry_model::device::DeviceSpec;
use gantry_model::id::IdError;
use gantry_model::{AppName, AppSpec, RequestedImage, spec, ulimit};

use super::{App, Capabilities, Device, Mount, Seccomp, Tmpfs, Ulimit, Variable};
use crate::manifest::health::Health;

impl From<&AppSpec> for App {
    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    fn from(app: &AppSpec) -> Self {
        let AppSpec {
            name,
            // Each pod made from the manifest has its own.
            id: _,
            image,
            exec,
            args,
            user,
            group,
            working_dir,
            environment,
            mounts,
            capabilities,
            stop_signal,
            options,
            user_annotations,
            user_labels,
        } = app.clone();
        let spec::AppOptions {
            supplementary_gids,
            supplementary_groups,
            read_only_root,
            limits,
            seccomp,
            new_privileges,
            oom_score_adj,
            terminal,
            stdin,
            tmpfs,
            devices,
            ulimits,
            sdnotify,
            health,
            systemd,
            stop_timeout_ms,
            restart,
            privileged,
            pid,
            pid_target,
            storage_limit,
            log_path,
            groups_policy,
            masked_paths,
            read_only_paths,
        } = options;
        Self {
            name: name.to_string(),
            image: image.map(String::from).unwrap_or_default(),
            exec,
            args,
            user,
            group,
            supplementary_gids,
            supplementary_groups,
            working_dir,
            environment: environment.into_iter().map(|(name, value)| Variable { name, value }).collect(),
            mounts: mounts.into_iter().map(Mount::from).collect(),
            tmpfs: tmpfs.iter().map(Tmpfs::from).collect(),
            read_only_root,
            limits,
            devices: devices.iter().map(Device::from).collect(),
            ulimits: ulimits.iter().map(Ulimit::from).collect(),
            health: Health::from(&health),
            restart,
            capabilities: capabilities.into(),
            seccomp: Seccomp::from(&seccomp),
            new_privileges,
            oom_score_adj,
            stop_signal,
            stop_timeout_ms,
            privileged,
            pid,
            pid_target,
            storage_limit,
            log_path,
            groups_policy,
            masked_paths,
            read_only_paths,
            terminal,
            stdin,
            sdnotify,
            systemd,
            annotations: user_annotations,
            labels: user_labels,
        }
    }
}

impl TryFrom<App> for AppSpec {
    type Error = IdError;

    #[expect(clippy::too_many_lines, reason = "a line for each field")]
    fn try_from(app: App) -> Result<Self, IdError> {
        let App {
            name,
            image,
            exec,
            args,
            user,
            group,
            supplementary_gids,
            supplementary_groups,
            working_dir,
            environment,
            mounts,
            tmpfs,
            read_only_root,
            limits,
            devices,
            ulimits,
            health,
            restart,
            capabilities,
            seccomp,
            new_privileges,
            oom_score_adj,
            stop_signal,
            stop_timeout_ms,
            privileged,
            pid,
            pid_target,
            storage_limit,
            log_path,
            groups_policy,
            masked_paths,
            read_only_paths,
            terminal,
            stdin,
            sdnotify,
            systemd,
            annotations,
            labels,
        } = app;
        let options = spec::AppOptions {
            supplementary_gids,
            supplementary_groups,
            read_only_root,
            limits,
            seccomp: seccomp.into(),
            new_privileges,
            oom_score_adj,
            terminal,
            stdin,
            tmpfs: tmpfs.into_iter().map(spec::TmpfsMount::from).collect(),
            devices: devices.into_iter().map(DeviceSpec::from).collect(),
            ulimits: ulimits.into_iter().map(ulimit::Ulimit::from).collect(),
            sdnotify,
            health: health.into(),
            systemd,
            stop_timeout_ms,
            restart,
            privileged,
            pid,
            pid_target,
            storage_limit,
            log_path,
            groups_policy,
            masked_paths,
            read_only_paths,
        };
        Ok(Self {
            name: name.parse::<AppName>()?,
            id: None,
            image: RequestedImage::new(image),
            exec,
            args,
            user,
            group,
            working_dir,
            environment: environment.into_iter().map(|Variable { name, value }| (name, value)).collect(),
            mounts: mounts.into_iter().map(spec::MountSpec::try_from).collect::<Result<_, _>>()?,
            capabilities: capabilities.into(),
            stop_signal,
            options,
            user_annotations: annotations,
            user_labels: labels,
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
