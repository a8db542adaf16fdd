//! Linux primitives that several crates use: each kernel interface is wrapped once.
//!
//! Imports nothing of the workspace and knows no pods.
#![forbid(unsafe_code)]

pub mod file;
pub mod inotify;
pub mod stamp;
