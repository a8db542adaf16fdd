//! The gantry command: parses the command line, calls the engine, prints the result, and sets the exit code.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). It leaves all policy to the engine. Start
//! reading at [`dispatch`]; then [`cli`] (the commands), [`grammar`] (the arguments of `run` and `prepare`),
//! [`commands`] (a file per command or group), [`foreground`] (a pod in the foreground) and [`exit`] (the exit codes).
#![forbid(unsafe_code)]

mod app_filter;
mod cli;
mod command_words;
mod commands;
mod context;
mod dispatch;
mod environment;
mod exit;
mod failure;
mod foreground;
mod foreign_flags;
mod globals;
mod grammar;
mod image_lookup;
mod image_names;
mod live_output;
#[cfg(test)]
mod man;
mod pod_file;
mod pod_filter;
mod pods;
mod printer;
mod progress;
mod relay;
mod render;
mod service_manager;
mod settings;
mod signals;
mod suggest;
mod targets;
mod terminal;
mod units;
mod unknown_command;

use std::process::ExitCode;

// Replaces musl's memcpy and memmove.
use gantry_memcpy as _;

/// musl's allocator maps and unmaps pages for most allocations, which costs a short process more than its work.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: gantry_host::memory::Heap = gantry_host::memory::Heap::empty();

fn main() -> ExitCode {
    #[cfg(target_env = "musl")]
    ALLOCATOR.adopt_thread();
    gantry_host::memory::keep_freed();
    gantry_host::signals::set_dispositions();
    let status = dispatch::run(std::env::args_os().skip(1));
    terminal::restore();
    status.into()
}
