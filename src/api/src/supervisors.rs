//! The supervisors that calls of the APIs have started. They are children of gantryd, which has to reap them.

use gantry_engine::Running;
use tokio::runtime::Handle;
use tracing::warn;

use crate::dir_watch::readable;

/// Reaps each supervisor when it ends, so that no zombie is left: a task waits for each one, because no call can be
/// relied on to come later.
#[derive(Debug, Clone)]
pub(crate) struct Supervisors(Handle);

impl Supervisors {
    /// Waits in this runtime.
    pub(crate) fn new(runtime: Handle) -> Self {
        Self(runtime)
    }

    /// Keeps a supervisor until it has ended.
    pub(crate) fn keep(&self, running: Running) {
        self.0.spawn(async move {
            let id = running.id;
            if let Err(error) = reap(running).await {
                warn!("cannot reap the supervisor of pod {id}: {error}");
            }
        });
    }
}

async fn reap(mut running: Running) -> std::io::Result<()> {
    let pidfd = std::os::fd::AsFd::as_fd(&running).try_clone_to_owned()?;
    wait_readable(pidfd).await?;
    // It has ended, so this does not block.
    running.reap()
}

/// Returns when a pidfd is readable: its process has ended.
async fn wait_readable(pidfd: std::os::fd::OwnedFd) -> std::io::Result<()> {
    readable(pidfd)?.readable().await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn an_ended_process_makes_its_pidfd_readable() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        runtime.block_on(async {
            let mut ended = std::pin::pin!(wait_readable(pidfd));
            tokio::select! {
                biased;
                result = &mut ended => panic!("it still runs: {result:?}"),
                () = std::future::ready(()) => {}
            }
            drop(child.stdin.take());
            ended.await.unwrap();
        });
        assert!(child.try_wait().unwrap().is_some(), "reaping would block");
    }
}
