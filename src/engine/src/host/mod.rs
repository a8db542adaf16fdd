//! The engine's view of the host: processes, cgroups, networks.

pub(crate) mod cgroup;
pub(crate) mod devices;
pub(crate) mod interfaces;
pub(crate) mod lock_holder;
pub(crate) mod network;
pub(crate) mod process;
pub(crate) mod sandbox_network;
pub(crate) mod stage1;
mod user_namespace;
