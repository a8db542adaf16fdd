//! The gantry command: parse, one engine call, exit code.
fn main() {}
