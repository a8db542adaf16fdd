//! rtnetlink against the kernel, in network namespaces that a test makes and that end with it.

mod address_tests;
mod cost_tests;
mod link_tests;
mod parse_tests;
#[allow(dead_code, reason = "gantry-net has it too, for its own tests")]
pub(crate) mod support;
mod talk_tests;
