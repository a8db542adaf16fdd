//! The services. A call that is served is a method of [`super::node::Node`] in [`super::calls`].

mod machine;
mod os;
mod others;

pub(super) use machine::Machine;
pub(super) use os::Os;
pub(super) use others::Others;
