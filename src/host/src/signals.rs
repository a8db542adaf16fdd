//! The signal dispositions that a program inherits from its caller.

use crate::sys;

/// Gives SIGCHLD its default action, and ignores SIGXFSZ. Call it before the first child process is started.
///
/// A caller that ignores SIGCHLD (`trap '' CHLD` in a shell) passes that on. The kernel then reaps children when they
/// exit, and their exit codes are lost (wait(2), NOTES). SIGXFSZ would kill the process at a write beyond the caller's
/// limit of file sizes (`ulimit -f`); ignored, that write fails with EFBIG (setrlimit(2)). Programs that this process
/// executes ignore it, too.
pub fn set_dispositions() {
    sys::set_dispositions();
}
