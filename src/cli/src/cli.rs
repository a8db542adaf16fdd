//! The commands, as clap knows them. `run` and `prepare` are here for their place in the help only: their words are
//! read by [`crate::grammar`] before clap sees them.

use clap::{Args, Parser, Subcommand};

use crate::commands;
use crate::globals::Globals;

/// gantry runs pods: groups of apps that share a network and a lifetime.
#[derive(Debug, Parser)]
#[command(
    name = "gantry",
    version,
    about = "Run pods of apps from OCI images on this host",
    infer_subcommands = true,
    subcommand_required = true,
    max_term_width = 100,
    args_override_self = true,
    after_help = "Commands may be shortened to what is unique. Exit codes: the app's own; 125 gantry failed, 126 and 127 \
                  the command could not be executed or found, 128+n signal n; 1 no such pod, image or network."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prepare a pod and run it
    #[command(disable_help_flag = true)]
    Run(Words),
    /// Prepare a pod and print its id
    #[command(disable_help_flag = true)]
    Prepare(Words),
    /// Run a prepared pod
    RunPrepared(commands::run::RunPrepared),
    /// Fetch images into the store and print their ids
    #[command(visible_alias = "pull")]
    Fetch(commands::fetch::Fetch),
    /// List pods
    #[command(visible_alias = "ps", alias = "ls")]
    List(commands::list::List),
    /// Show a pod's state, or wait for it
    Status(commands::status::Status),
    /// Wait until pods have ended, and print their exit codes
    Wait(commands::wait::Wait),
    /// Show what apps have written
    Logs(commands::logs::Logs),
    /// Show what has happened, and what happens
    Events(commands::events::Events),
    /// Run a program in an app
    #[command(visible_alias = "enter")]
    Exec(commands::exec::Exec),
    /// Connect to an app's terminal or stdin
    Attach(commands::attach::Attach),
    /// Stop running pods
    Stop(commands::stop::Stop),
    /// Send a signal to the apps of pods
    Kill(commands::stop::Kill),
    /// Remove pods that do not run
    Rm(commands::rm::Rm),
    /// Collect garbage: pods that ended or were never run
    Gc(commands::rm::Gc),
    /// Show all that is known of pods, as JSON
    Inspect(commands::inspect::Inspect),
    /// Show which ports of the host lead to a pod
    Port(commands::port::Port),
    /// Print a pod's manifest
    CatManifest(commands::inspect::CatManifest),
    /// Work with images
    #[command(subcommand, infer_subcommands = true)]
    Image(commands::image::Image),
    /// List images
    #[command(hide = true)]
    Images(commands::image::List),
    /// Remove images
    #[command(hide = true)]
    Rmi(commands::image::Rm),
    /// Write images into an archive
    #[command(hide = true)]
    Save(commands::image_archive::Save),
    /// Read an image from an archive
    #[command(hide = true)]
    Load(commands::image_archive::Load),
    /// Log in to a registry
    Login(commands::login::Login),
    /// Remove the login of a registry
    Logout(commands::login::Logout),
    /// Work with networks
    #[command(subcommand, infer_subcommands = true)]
    Network(commands::network::Network),
    /// Work with volumes that outlive pods
    #[command(subcommand, infer_subcommands = true)]
    Volume(commands::volume::Volume),
    /// Check the host and the data directory
    Doctor(commands::doctor::Doctor),
    /// Print a completion script for a shell
    Completion(commands::completion::Completion),
    /// Print the version
    Version(commands::version::Version),
}

/// Words that clap leaves alone.
#[derive(Debug, Args)]
pub(crate) struct Words {
    /// See the help of the command.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// clap's description of the whole command line, with the help of the grammar's two commands.
pub(crate) fn command() -> clap::Command {
    use crate::grammar::{Verb, help};
    use clap::CommandFactory as _;
    let width = crate::render::wrap::help_width();
    let mut command = Cli::command();
    for verb in [Verb::Run, Verb::Prepare] {
        command = command.mut_subcommand(verb.as_str(), |sub| sub.override_help(help(verb, width)));
    }
    command
}
