//! The services. A call that is served is a method of [`super::node::Node`] in [`super::calls`].

mod health;
mod machine;
mod network;
mod os;
mod others;
mod resource;
mod storage;
mod time;

pub(super) use health::NodeHealth;
pub(super) use machine::Machine;
pub(super) use network::Network;
pub(super) use os::Os;
pub(super) use others::Others;
pub(super) use resource::Resources;
pub(super) use storage::Storage;
pub(super) use time::Clock;
