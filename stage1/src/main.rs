//! The supervisor: one per running pod, single-threaded, static, as small as it can be.
fn main() {}
