//! The gantry command: parse, one engine call, exit code.
//!
//! May import `gantry_model` and `gantry_engine`. Holds no policy: what can be done is the engine's, what it means for
//! a user is here. Start reading at [`dispatch`]; then [`grammar`] (what `run` understands), [`commands`] (one file
//! per group), [`foreground`] (a pod in front of the user), [`exit`] (the one place that knows exit codes).
#![forbid(unsafe_code)]

mod cli;
mod command_words;
mod commands;
mod context;
mod dispatch;
mod environment;
mod exit;
mod failure;
mod foreground;
mod globals;
mod grammar;
mod image_lookup;
mod live_output;
#[cfg(test)]
mod man;
mod pod_filter;
mod pods;
mod printer;
mod progress;
mod relay;
mod render;
mod settings;
mod signal_name;
mod signals;
mod suggest;
mod terminal;
mod unknown_command;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = dispatch::run(std::env::args_os().skip(1));
    terminal::restore();
    ExitCode::from(code)
}
