//! The calls that gantryd does not serve, with the texts of Talos.

use tonic::Status;

/// Calls that control the machine.
pub(super) fn machine_control() -> Status {
    Status::unimplemented("method is not supported in container mode")
}

/// Calls for members of a Kubernetes control plane.
pub(super) fn control_plane(call: &str) -> Status {
    Status::unimplemented(format!("{call} is only available on control plane nodes"))
}

/// Calls that have no counterpart here yet.
pub(super) fn not_served(call: &str) -> Status {
    Status::unimplemented(format!("{call} is not implemented"))
}
