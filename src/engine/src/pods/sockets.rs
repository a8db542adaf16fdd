//! Sockets in the network namespace of a pod, for connections to its servers on 127.0.0.1 and ::1.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_model::{PhaseName, PodId};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};

use crate::Engine;
use crate::error::need_root;
use crate::pods::control::ControlError;
use crate::pods::exec::{ExecError, running};

/// TCP sockets that are not connected yet, non-blocking.
#[derive(Debug)]
pub struct PodSockets {
    /// For IPv4.
    pub v4: OwnedFd,
    /// For IPv6; `None`: the kernel has no IPv6.
    pub v6: Option<OwnedFd>,
}

impl Engine {
    /// Opens TCP sockets in the network namespace of a running pod. A socket stays in the namespace that it was opened
    /// in.
    ///
    /// # Errors
    /// [`ExecError`]: the pod does not run, or has just ended.
    pub fn pod_sockets(&self, id: PodId) -> Result<PodSockets, ExecError> {
        need_root("connect to a pod")?;
        let row = running(self.reconcile_pod(id)?)?;
        let failed = |attempt, source: io::Error| ControlError::Io { id, attempt, source };
        let ended = || ExecError::NotRunning { id, phase: PhaseName::Exited };
        let supervisor = self.supervisor_fd(&row)?.ok_or_else(ended)?;
        // The thread ends in that namespace, so no other work of this process happens there.
        let opening = std::thread::Builder::new().name("pod-sockets".to_owned()).spawn(move || {
            move_into_thread_name_spaces(supervisor.as_fd(), ThreadNameSpaceType::NETWORK)?;
            let open =
                |family| socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None);
            let v6 = match open(AddressFamily::INET6) {
                Err(rustix::io::Errno::AFNOSUPPORT) => None,
                other => Some(other?),
            };
            Ok::<_, rustix::io::Errno>(PodSockets { v4: open(AddressFamily::INET)?, v6 })
        });
        let opening = opening.map_err(|source| failed("start a thread in the network of", source))?;
        let opened = opening.join().map_err(|_| failed("open sockets in the network of", io::Error::other("panic")))?;
        Ok(opened.map_err(|errno| failed("open sockets in the network of", errno.into()))?)
    }
}
