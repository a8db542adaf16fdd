//! rtnetlink against the kernel, in network namespaces that end with the test.

mod address_tests;
mod cost_tests;
mod link_tests;
mod parse_tests;
mod talk_tests;
