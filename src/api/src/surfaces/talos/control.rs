//! Reboot and Shutdown. They are refused as in a container, unless the configuration permits them to administrators.
//! Then the host's own commands are executed, so that its service manager stops what runs before the kernel restarts.

use std::process::{Command, Stdio};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tonic::Status;
use tracing::warn;

use super::refusals::machine_control;
use super::roles::is_administrator;
use crate::peer::Peer;

/// The time that a command has. It asks the service manager and does not wait for the end.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The commands of Reboot and Shutdown, each a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineCommands {
    /// Reboots the host.
    pub reboot: Vec<String>,
    /// Powers the host off.
    pub shutdown: Vec<String>,
}

/// The permission to reboot and to power off. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct MachineControl(Arc<RwLock<Option<MachineCommands>>>);

/// A change of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MachineAction {
    /// Reboot.
    Reboot,
    /// Shutdown.
    Shutdown,
}

impl MachineControl {
    /// Permits the calls with these commands from now on; `None`: refuses them.
    pub fn set(&self, commands: Option<MachineCommands>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = commands;
    }

    /// Executes a command for an administrator. Returns when the service manager has accepted it.
    ///
    /// # Errors
    /// `UNIMPLEMENTED` with Talos' text if the configuration does not permit it, `PERMISSION_DENIED` if the peer is no
    /// administrator, `FAILED_PRECONDITION` if the command cannot be executed, `INTERNAL` if it fails, and
    /// `DEADLINE_EXCEEDED` if it does not end in time.
    pub(super) async fn execute(&self, peer: Peer, action: MachineAction) -> Result<(), Status> {
        let commands = self.0.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(machine_control)?;
        if !is_administrator(peer) {
            return Err(Status::permission_denied("not authorized"));
        }
        let (name, words) = match action {
            MachineAction::Reboot => ("reboot", commands.reboot),
            MachineAction::Shutdown => ("power off", commands.shutdown),
        };
        warn!("a client of the node API asked to {name} the host");
        let job = tokio::task::spawn_blocking(move || run_command(name, &words));
        match tokio::time::timeout(COMMAND_TIMEOUT, job).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(Status::internal(format!("cannot {name}: {error}"))),
            Err(_) => Err(Status::deadline_exceeded(format!("the command to {name} has not ended yet"))),
        }
    }
}

fn run_command(name: &str, words: &[String]) -> Result<(), Status> {
    let (program, arguments) = words.split_first().ok_or_else(|| Status::failed_precondition("there is no command"))?;
    // The service manager syncs again; if it cannot, the data of finished calls is on disk.
    rustix::fs::sync();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command
        .status()
        .map_err(|error| Status::failed_precondition(format!("cannot {name}: cannot execute {program}: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Status::internal(format!("cannot {name}: {program}: {status}")))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn execute(control: &MachineControl, peer: Peer, action: MachineAction) -> Result<(), Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(control.execute(peer, action))
    }

    #[test]
    fn only_administrators_execute_the_configured_commands() {
        let control = MachineControl::default();
        let operator = Peer::Certificate { hash: 1, administrator: false };
        let refused = execute(&control, Peer::Root, MachineAction::Reboot).unwrap_err();
        assert_eq!(refused.message(), "method is not supported in container mode");
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        control.set(Some(MachineCommands { reboot: words(&["true"]), shutdown: words(&["false"]) }));
        assert!(execute(&control, Peer::Root, MachineAction::Reboot).is_ok());
        assert!(execute(&control, Peer::Certificate { hash: 1, administrator: true }, MachineAction::Reboot).is_ok());
        let codes = [
            execute(&control, operator, MachineAction::Reboot),
            execute(&control, Peer::Root, MachineAction::Shutdown),
        ];
        assert_eq!(codes.map(|result| result.unwrap_err().code()), [Code::PermissionDenied, Code::Internal]);
        control.set(None);
        assert_eq!(execute(&control, Peer::Root, MachineAction::Reboot).unwrap_err().code(), Code::Unimplemented);
    }
}
