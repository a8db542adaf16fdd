//! The signal dispositions that a program inherits from its caller.

use crate::sys;

/// Gives SIGCHLD its default action. Call it before the first child process is started.
///
/// A caller that ignores SIGCHLD (`trap '' CHLD` in a shell) passes that on. The kernel then reaps children when they
/// exit, and their exit codes are lost (wait(2), NOTES).
pub fn restore_child_signal() {
    sys::restore_child_signal();
}
