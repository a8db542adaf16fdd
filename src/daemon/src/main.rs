//! The gantryd daemon: configuration, wiring, the keeper loop.
fn main() {}
