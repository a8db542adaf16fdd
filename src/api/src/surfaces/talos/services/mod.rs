//! The generated traits of Talos' services. Their methods forward the supported calls to methods of
//! [`super::node::Node`] in [`super::calls`], and refuse the others.

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
