//! Whether this host can run pods with a user namespace.

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use gantry_contract::Failure;

use crate::host::process::Deadline;
use crate::host::stage1::{self, Attempt, EXIT_TIMEOUT, Line};
use crate::{Engine, EngineError};

/// Maximum length of the reply, in bytes.
const MAX_REPLY: usize = 16 << 10;

impl Engine {
    /// Checks that the kernel and the file system of the data directory support pods with a user namespace. It starts
    /// a process, which takes some milliseconds; the result changes only with the kernel and the mounts.
    ///
    /// # Errors
    /// [`EngineError`]: what is missing.
    pub fn check_user_namespaces(&self) -> Result<(), EngineError> {
        let attempt = Attempt("run pods with a user namespace".to_owned());
        let program = self.stage1().map_err(|places| attempt.missing(&places))?;
        let mut command = Command::new(program);
        command
            .arg("user-namespace")
            .arg(self.store.layout().root())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(Stdio::piped());
        let spawned = stage1::spawn_exclusively(|| command.spawn());
        let mut child = spawned.map_err(|source| attempt.io("execute gantry-stage1", source))?;
        let line = match child.stdout.take().map(OwnedFd::from) {
            Some(stdout) => stage1::read_line(&stdout, Deadline::after(EXIT_TIMEOUT), MAX_REPLY),
            None => Ok(Line::Ended),
        };
        // It has replied, or never will.
        let ended = child.kill().and_then(|()| child.wait());
        ended.map_err(|source| attempt.io("end gantry-stage1", source))?;
        match line.map_err(|source| attempt.io("read from gantry-stage1", source))? {
            Line::Whole(bytes) => match serde_json::from_slice::<Result<(), Failure>>(&bytes) {
                Ok(Ok(())) => Ok(()),
                Ok(Err(failure)) => Err(attempt.failed(&failure)),
                Err(source) => Err(attempt.not_understood(Some(source))),
            },
            Line::Ended => Err(attempt.silent("")),
            Line::Late => Err(attempt.timed_out("gantry-stage1 did not reply in time")),
        }
    }
}
