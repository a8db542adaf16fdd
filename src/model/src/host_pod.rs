//! The rules of a host pod ([`PodFlavor::Host`]): settings of a container have no effect there and are refused.

use crate::AppSpec;
use crate::namespaces::{IpcMode, PidMode, UtsMode};
use crate::net::{DnsSpec, HostsSpec, NetMode};
use crate::spec::{Capabilities, PodFlavor, PodSpec, Seccomp, SpecError};
use crate::systemd::{SdNotify, SystemdMode};

/// Checks that the specification fits the pod's flavor.
pub(crate) fn check(spec: &PodSpec) -> Result<(), SpecError> {
    match spec.flavor {
        PodFlavor::Container => match spec.apps.iter().find(|app| app.image.is_none()) {
            Some(app) => Err(SpecError::new(format!("app '{}' has no image", app.name))),
            None => Ok(()),
        },
        PodFlavor::Host => {
            let refused = refused_of_pod(spec).or_else(|| spec.apps.iter().find_map(refused_of_app));
            refused.map_or(Ok(()), |setting| {
                Err(SpecError::new(format!(
                    "{setting} cannot be combined with --stage1=host: its apps run in the host's namespaces and file \
                     system"
                )))
            })
        }
    }
}

/// The first setting of the pod that a host pod cannot have.
fn refused_of_pod(spec: &PodSpec) -> Option<&'static str> {
    let settings = [
        (spec.sandbox, "a sandbox"),
        (!spec.volumes.is_empty(), "--volume"),
        (!spec.ports.is_empty(), "--port"),
        (!matches!(spec.net, None | Some(NetMode::Host)), "a network other than --net=host"),
        (spec.dns != DnsSpec::default(), "--dns"),
        (spec.hosts != HostsSpec::default(), "--hosts-entry"),
        (spec.hostname.is_some(), "--hostname"),
        (spec.ipc != IpcMode::default(), "--ipc"),
        (spec.uts != UtsMode::default(), "--uts"),
        (!spec.userns.is_host(), "--userns"),
        (spec.shm_size.is_some(), "--shm-size"),
        (!spec.sysctls.is_empty(), "--sysctl"),
        (spec.privileged, "--privileged"),
    ];
    settings.into_iter().find_map(|(is_set, name)| is_set.then_some(name))
}

/// The first setting of an app that one of a host pod cannot have.
fn refused_of_app(app: &AppSpec) -> Option<&'static str> {
    let options = &app.options;
    let settings = [
        (app.image.is_some(), "an image"),
        (!app.mounts.is_empty(), "--mount"),
        (app.capabilities != Capabilities::Default, "a choice of capabilities"),
        (options.seccomp != Seccomp::Default, "--seccomp"),
        (options.read_only_root, "--readonly-rootfs"),
        (options.terminal, "--tty"),
        (!options.tmpfs.is_empty(), "--tmpfs"),
        (!options.devices.is_empty(), "--device"),
        (options.sdnotify == SdNotify::App, "--sdnotify"),
        (options.systemd == SystemdMode::Always, "--systemd"),
        (options.privileged, "--privileged"),
        (options.pid != PidMode::default(), "--pid"),
        (options.storage_limit.is_some(), "--storage-limit"),
    ];
    settings.into_iter().find_map(|(is_set, name)| is_set.then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_containers_are_refused() {
        let pod = |edit: fn(&mut PodSpec)| {
            let app = AppSpec::new("a".parse().unwrap(), None);
            let mut spec = PodSpec { apps: vec![app], flavor: PodFlavor::Host, ..PodSpec::default() };
            edit(&mut spec);
            spec.validate().map_err(|error| error.to_string())
        };
        assert_eq!(pod(|_| {}), Ok(()));
        assert_eq!(pod(|spec| spec.net = Some(NetMode::Host)), Ok(()));
        assert!(pod(|spec| spec.net = Some(NetMode::None)).unwrap_err().contains("a network other than"));
        assert!(pod(|spec| spec.hostname = Some("x".into())).unwrap_err().contains("--hostname"));
        assert!(pod(|spec| spec.apps[0].image = crate::RequestedImage::new("x")).unwrap_err().contains("an image"));
        assert!(pod(|spec| spec.apps[0].options.terminal = true).unwrap_err().contains("--tty"));
        assert!(pod(|spec| spec.flavor = PodFlavor::Container).unwrap_err().contains("has no image"));
    }
}
