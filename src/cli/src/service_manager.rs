//! The service manager of this process (sd_notify(3)): systemd, when a unit of Type=notify runs `gantry run`.

use std::collections::BTreeSet;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use gantry_engine::{Engine, Notification, Running};
use gantry_model::spec::AppSpec;
use gantry_model::systemd::SdNotify;
use gantry_model::{AppName, PodSpec};

use crate::failure::Failure;

/// The connection to the service manager.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    socket: UnixDatagram,
    /// The source of the readiness of each app of the pod.
    sources: Vec<(AppName, SdNotify)>,
}

impl ServiceManager {
    /// Connects to the socket named by NOTIFY_SOCKET. `None`: there is none, or no app of the pod is to be reported.
    pub(crate) fn connect(sources: Vec<(AppName, SdNotify)>) -> Option<Self> {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        if !sources.is_empty() && sources.iter().all(|(_, source)| *source == SdNotify::None) {
            return None;
        }
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let socket = UnixDatagram::unbound().and_then(|socket| {
            socket.connect_addr(&address?)?;
            Ok(socket)
        });
        socket
            .inspect_err(|error| tracing::debug!("cannot connect to the service manager: {error}"))
            .ok()
            .map(|socket| Self { socket, sources })
    }

    /// For the pod of a specification. Its apps that report their readiness get the unit's watchdog interval: their
    /// `WATCHDOG=1` is forwarded.
    pub(crate) fn connect_for(spec: &mut PodSpec) -> Option<Self> {
        let manager = Self::connect(spec.apps.iter().map(|app| (app.name.clone(), app.options.sdnotify)).collect())?;
        let is_own = std::env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        if let Some(interval) = std::env::var("WATCHDOG_USEC").ok().filter(|_| is_own) {
            let notifies = |app: &&mut AppSpec| app.options.sdnotify == SdNotify::App;
            for app in spec.apps.iter_mut().filter(notifies) {
                app.environment.push(("WATCHDOG_USEC".to_owned(), interval.clone()));
            }
        }
        Some(manager)
    }

    fn send(&self, text: &str) {
        // The service manager may have gone; the pod runs on.
        if let Err(error) = self.socket.send(text.as_bytes()) {
            tracing::debug!("cannot notify the service manager: {error}");
        }
    }

    fn notifying(&self) -> BTreeSet<usize> {
        let sources = self.sources.iter().enumerate();
        sources.filter(|(_, (_, source))| *source == SdNotify::App).map(|(number, _)| number).collect()
    }

    /// Reports a pod in the foreground: this process is the main process of the service. It is ready with the last app
    /// that reports its readiness, or else now.
    pub(crate) fn report_foreground(self, running: &mut Running) {
        let starting = self.notifying();
        let ready = format!("READY=1\nMAINPID={}", std::process::id());
        match &mut running.output {
            Some(output) if !starting.is_empty() => {
                let mut forwarder = Forwarder { manager: self, starting, ready };
                output.on_notification(move |notification| forwarder.forward(notification));
            }
            _ => self.send(&ready),
        }
    }

    /// Reports a detached pod: its supervisor is the main process of the service. Waits until the pod is ready.
    pub(crate) fn report_detached(&self, engine: &Engine, running: &Running) -> Result<(), Failure> {
        if !self.notifying().is_empty() {
            let view = engine.pod_wait(running.id).apps_ready(None)?;
            if view.is_some_and(|view| !view.is_ready()) {
                return Ok(());
            }
        }
        self.send(&format!("MAINPID={}\nREADY=1", running.ready.supervisor));
        Ok(())
    }
}

/// The sources of readiness in a manifest as returned by [`Engine::manifest`].
pub(crate) fn readiness_sources(manifest: &serde_json::Value) -> Vec<(AppName, SdNotify)> {
    let apps = manifest["apps"].as_array().map_or(&[][..], Vec::as_slice);
    let source = |app: &serde_json::Value| {
        let source = app["sdnotify"].as_str().and_then(|word| word.parse().ok()).unwrap_or_default();
        Some((app["name"].as_str()?.parse().ok()?, source))
    };
    apps.iter().filter_map(source).collect()
}

/// Forwards the notifications of apps to the service manager.
#[derive(Debug)]
struct Forwarder {
    manager: ServiceManager,
    /// The numbers of the apps that have not reported that they are ready.
    starting: BTreeSet<usize>,
    /// The message that the pod is ready.
    ready: String,
}

impl Forwarder {
    fn forward(&mut self, notification: Notification<'_>) {
        for message in self.messages(notification) {
            self.manager.send(&message);
        }
    }

    fn messages(&mut self, notification: Notification<'_>) -> Vec<String> {
        let mut messages = Vec::new();
        for (name, value) in notification.text.lines().filter_map(|line| line.split_once('=')) {
            match (name, value) {
                ("READY", "1") if self.starting.remove(&notification.app) && self.starting.is_empty() => {
                    messages.push(self.ready.clone());
                }
                ("STATUS", text) => messages.push(match self.manager.sources.get(notification.app) {
                    Some((app, _)) if self.manager.sources.len() > 1 => format!("STATUS={app}: {text}"),
                    _ => format!("STATUS={text}"),
                }),
                ("STOPPING" | "WATCHDOG" | "WATCHDOG_USEC" | "EXTEND_TIMEOUT_USEC" | "ERRNO", _) => {
                    messages.push(format!("{name}={value}"));
                }
                // RELOADING=1 would need the time of this process's clock as well.
                _ => {}
            }
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_ready_with_its_last_app() {
        let name = |text: &str| text.parse::<AppName>().unwrap();
        let sources = vec![(name("a"), SdNotify::App), (name("b"), SdNotify::Ready), (name("c"), SdNotify::App)];
        let manager = ServiceManager { socket: UnixDatagram::unbound().unwrap(), sources };
        let starting = manager.notifying();
        let mut forwarder = Forwarder { manager, starting, ready: "READY".to_owned() };
        let mut messages = |app, text| forwarder.messages(Notification { app, text });
        assert_eq!(messages(0, "READY=1\nSTATUS=up\n"), ["STATUS=a: up"]);
        assert!(messages(0, "READY=1\n").is_empty());
        assert_eq!(messages(2, "READY=1\n"), ["READY"]);
        assert_eq!(messages(2, "WATCHDOG=1\nRELOADING=1\n"), ["WATCHDOG=1"]);
    }

    #[test]
    fn sources_are_read_from_manifests() {
        let manifest = serde_json::json!({ "apps": [{ "name": "a", "sdnotify": "app" }, { "name": "b" }] });
        let sources: Vec<_> = readiness_sources(&manifest).into_iter().map(|(_, source)| source).collect();
        assert_eq!(sources, [SdNotify::App, SdNotify::Ready]);
    }
}
