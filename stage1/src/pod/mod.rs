//! The pod that the supervisor starts: its namespaces, its mount tree, PID 1, networks and shared files.

pub(crate) mod attaching;
pub(crate) mod etc;
pub(crate) mod inheritance;
pub(crate) mod init;
pub(crate) mod jail;
pub(crate) mod launch;
pub(crate) mod network;
pub(crate) mod sysctl;
pub(crate) mod systemd;
pub(crate) mod user_namespace;
