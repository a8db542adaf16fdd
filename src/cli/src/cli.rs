//! The command line as clap describes it. The arguments of `run`, `prepare`, `app sandbox` and `app add` are parsed by
//! [`crate::grammar`]; clap has these commands for the help, the completions and the manual page.

use clap::builder::Resettable;
use clap::{ArgMatches, Args, CommandFactory as _, FromArgMatches, Parser, Subcommand};

use crate::commands::{self, RunCommand};
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::globals::Globals;

/// The command line: global flags and a command.
pub(crate) type Cli = CommandLine<Command>;

/// Global flags and one of these commands.
#[derive(Debug, Parser)]
#[command(
    name = "gantry",
    version,
    about = "Run pods of apps from OCI images on this host",
    infer_subcommands = true,
    subcommand_required = true,
    max_term_width = 100,
    args_override_self = true,
    after_help = "Commands may be abbreviated to a unique prefix. Exit codes: the app's own; 125: gantry failed; 126, 127: \
                  the command could not be executed, or was not found; 128+n: signal n; 1: no such pod, app, image, network, volume or schedule (125 from run, prepare, \
                  run-prepared, app add, exec, attach, fetch, image load and schedule enable), or doctor found an error."
)]
pub(crate) struct CommandLine<C: Subcommand> {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: C,
}

/// The arguments of a command, which the derived description of [`Cli`] leaves out: [`DESCRIBE`] adds them, to all
/// commands or to the one that is used.
#[derive(Debug)]
pub(crate) struct Undescribed<T>(T);

impl<T: FromArgMatches> FromArgMatches for Undescribed<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl<T: Args> Args for Undescribed<T> {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl<T: Subcommand> Subcommand for Undescribed<T> {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        command
    }

    fn has_subcommand(name: &str) -> bool {
        T::has_subcommand(name)
    }
}

/// Adds the arguments of a command to its description.
type Describe = fn(clap::Command) -> clap::Command;

/// Declares the commands: the variants of [`Command`], their descriptions, and the dispatch to the arguments of each.
/// A `group` has subcommands.
macro_rules! commands {
    (@arguments group $arguments:ty) => { $arguments };
    (@arguments $arguments:ty) => { $arguments };
    (@describe group $arguments:ty) => { <$arguments as Subcommand>::augment_subcommands };
    (@describe $arguments:ty) => { <$arguments as Args>::augment_args };
    ($($(#[$attribute:meta])* $name:ident($($arguments:tt)+),)*) => {
        /// A command.
        #[derive(Debug, Subcommand)]
        pub(crate) enum Command {
            $($(#[$attribute])* $name(Undescribed<commands!(@arguments $($arguments)+)>),)*
        }

        /// The descriptions of the commands, in their order.
        const DESCRIBE: &[Describe] = &[$(commands!(@describe $($arguments)+),)*];

        /// The names of the variants of [`Command`], and how to add the command of each.
        const ADD: &[(&str, Describe)] = &[$((stringify!($name), |parent| {
            #[derive(Debug, Subcommand)]
            enum Only {
                $(#[$attribute])* $name(Undescribed<commands!(@arguments $($arguments)+)>),
            }
            Only::augment_subcommands(parent)
        }),)*];

        impl Command {
            /// The kind of the command.
            pub(crate) fn kind(&self) -> CommandKind {
                match self {
                    $(Self::$name(arguments) => arguments.0.kind(),)*
                }
            }

            /// Runs the command.
            pub(crate) fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
                match self {
                    $(Self::$name(arguments) => arguments.0.run(context),)*
                }
            }
        }
    };
}

commands! {
    /// Prepare a pod and run it
    Run(RawArguments),
    /// Prepare a pod and print its id
    Prepare(RawArguments),
    /// Run a prepared pod
    RunPrepared(commands::run::RunPrepared),
    /// Fetch images into the store and print their ids
    #[command(visible_alias = "pull")]
    Fetch(commands::fetch::Fetch),
    /// List pods
    #[command(visible_alias = "ps", alias = "ls")]
    List(commands::list::List),
    /// Show the state of pods, or wait for them
    Status(commands::status::Status),
    /// Wait until pods have exited and print their exit codes
    Wait(commands::wait::Wait),
    /// Show the resource usage of running pods
    Stats(commands::stats::Stats),
    /// List the processes of a pod, or show all running pods live
    Top(commands::top::Top),
    /// Show the output of apps
    Logs(commands::logs::Logs),
    /// Show events
    Events(commands::events::Events),
    /// Run a program in an app
    #[command(visible_alias = "enter")]
    Exec(commands::exec::Exec),
    /// Copy files between a pod and this host
    Cp(commands::cp::Cp),
    /// List the files of an app that differ from its image
    Diff(commands::diff::Diff),
    /// Attach to the output of a pod and the input of an app
    Attach(commands::attach::Attach),
    /// Start exited and prepared pods
    Start(commands::start::Start),
    /// Stop running pods
    Stop(commands::stop::Stop),
    /// Restart apps of running pods, or exited pods
    Restart(commands::app::Restart),
    /// Freeze the processes of pods or apps
    Pause(commands::pause::Pause),
    /// Thaw the processes of pods or apps
    Unpause(commands::pause::Unpause),
    /// Send a signal to the apps of pods
    Kill(commands::stop::Kill),
    /// Change the limits of running pods and apps
    Update(commands::update::Update),
    /// Rename a pod
    Rename(commands::rename::Rename),
    /// Remove pods that are not running
    Rm(commands::rm::Rm),
    /// Remove exited and expired pods after a grace period
    Gc(commands::rm::Gc),
    /// Remove ended pods and images without a name; --all and --volumes remove more
    Prune(commands::prune::Prune),
    /// Show the disk usage of images, pods and volumes
    Df(commands::df::Df),
    /// Show the complete record of pods as JSON
    Inspect(commands::inspect::Inspect),
    /// Show the published ports of a pod
    Port(commands::port::Port),
    /// Print a pod's manifest
    CatManifest(commands::inspect::CatManifest),
    /// Manage the apps of running pods
    #[command(subcommand, infer_subcommands = true)]
    App(group commands::app::App),
    /// Manage images
    #[command(subcommand, infer_subcommands = true)]
    Image(group commands::image::Image),
    /// List images
    #[command(hide = true)]
    Images(commands::image::List),
    /// Remove images
    #[command(hide = true)]
    Rmi(commands::image::Rm),
    /// Save images to an archive
    #[command(hide = true)]
    Save(commands::image_archive::Save),
    /// Load an image from an archive
    #[command(hide = true)]
    Load(commands::image_archive::Load),
    /// Log in to a registry
    Login(commands::login::Login),
    /// Remove the login of a registry
    Logout(commands::login::Logout),
    /// Manage networks
    #[command(subcommand, infer_subcommands = true)]
    Network(group commands::network::Network),
    /// Manage named volumes
    #[command(subcommand, infer_subcommands = true)]
    Volume(group commands::volume::Volume),
    /// Manage pods that gantryd keeps running or starts on a timer
    #[command(subcommand, infer_subcommands = true)]
    Schedule(group commands::schedule::Schedule),
    /// Generate systemd units that run pods
    #[command(subcommand, infer_subcommands = true)]
    Generate(group commands::generate::Generate),
    /// Create certificates for the Talos node API and Aurae's API
    #[command(subcommand, infer_subcommands = true)]
    Pki(group commands::pki::Pki),
    /// Show facts about the host and the data directory
    Info(commands::info::Info),
    /// Check the host and the data directory
    Doctor(commands::doctor::Doctor),
    /// Print a completion script for a shell
    Completion(commands::completion::Completion),
    /// Print the version
    Version(commands::version::Version),
}

/// The arguments of `run`, `prepare`, `app sandbox` and `app add`, which clap does not parse.
#[derive(Debug, Args)]
pub(crate) struct RawArguments {
    /// See the help of the command
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<String>,
}

impl RunCommand for RawArguments {
    /// Not reached: [`crate::dispatch`] parses these commands itself.
    fn run(&self, _: &Context) -> Result<ExitStatus, Failure> {
        Err(Failure::usage("write the name of the command in full"))
    }
}

/// clap's description of the command line with the global flags and the names of the commands, without their
/// arguments: describing all of them would take longer than parsing the command line.
pub(crate) fn names() -> clap::Command {
    Cli::command()
}

/// clap's description of the command line with one command, whose name is given in full. `None`: there is no such name.
/// Other commands are left out, because clap copies the global flags to each: that takes longer than all the rest of
/// `gantry version`.
pub(crate) fn only(name: &str) -> Option<clap::Command> {
    let at = ADD.iter().position(|(variant, _)| is_name_of(variant, name))?;
    let (_, add) = ADD.get(at)?;
    let describe = DESCRIBE.get(at)?;
    let command = add(CommandLine::<Undescribed<Command>>::command());
    command.find_subcommand(name)?;
    Some(command.mut_subcommand(name, |command| add_arguments(command, *describe)))
}

/// Adds the arguments of a command, whose own description stays: with the arguments, clap adds the doc comment of their
/// type.
fn add_arguments(command: clap::Command, describe: Describe) -> clap::Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    describe(command).about(Resettable::from(about)).long_about(Resettable::from(long_about))
}

/// `run-prepared` as `RunPrepared`.
pub(crate) fn camel_case(name: &str) -> impl Iterator<Item = char> {
    name.split('-').flat_map(|word| {
        let mut letters = word.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters)
    })
}

/// Whether a command of this name has this variant: `run-prepared` has `RunPrepared`.
fn is_name_of(variant: &str, name: &str) -> bool {
    camel_case(name).eq(variant.chars()) && name.chars().all(|letter| letter == '-' || letter.is_ascii_lowercase())
}

/// Adds the arguments of one command to [`names`].
pub(crate) fn describe_command(names: clap::Command, name: &str) -> clap::Command {
    describe_commands(names, |command| command.get_name() == name)
}

/// The description with the arguments of all commands but those of `run`, `prepare`, `app sandbox` and `app add`.
pub(crate) fn command() -> clap::Command {
    describe_commands(names(), |_| true)
}

/// [`command`] with all flags: for the help, the completions and the manual page.
pub(crate) fn full_command() -> clap::Command {
    use crate::grammar::{Verb, describe};
    [Verb::Run, Verb::Prepare]
        .into_iter()
        .fold(command(), |full, verb| full.mut_subcommand(verb.as_str(), |command| describe(command, verb)))
        .mut_subcommand("app", |app| {
            app.mut_subcommand("sandbox", |command| describe(command, Verb::Sandbox))
                .mut_subcommand("add", |command| describe(command, Verb::AddApp))
        })
        .mut_subcommand("schedule", |schedule| {
            schedule.mut_subcommand("enable", |command| describe(command, Verb::Schedule))
        })
}

fn describe_commands(names: clap::Command, is_described: impl Fn(&clap::Command) -> bool) -> clap::Command {
    let mut descriptions = DESCRIBE.iter();
    names.mut_subcommands(|command| match descriptions.next() {
        Some(describe) if is_described(&command) => add_arguments(command, *describe),
        _ => command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_begins_with_the_description_of_the_command() {
        for named in names().get_subcommands() {
            let about = named.get_about().unwrap().to_string();
            let mut alone = only(named.get_name()).unwrap();
            let help = alone.find_subcommand_mut(named.get_name()).unwrap().render_long_help().to_string();
            assert!(help.starts_with(&about), "{}: {help}", named.get_name());
            assert!(!about.contains('`'), "{about}");
        }
    }

    #[test]
    fn short_forms_have_the_same_exit_codes() {
        let kind = |line: &str| {
            let matches = command().try_get_matches_from(line.split(' ')).unwrap();
            Cli::from_arg_matches(&matches).unwrap().command.kind()
        };
        for (short, whole, want) in [
            ("load -i x", "image load -i x", CommandKind::Action),
            ("fetch x", "image fetch x", CommandKind::Action),
            ("save x", "image save x", CommandKind::Query),
            ("rmi x", "image rm x", CommandKind::Query),
            ("images", "image list", CommandKind::Query),
        ] {
            for line in [short, whole] {
                assert_eq!(kind(&format!("gantry {line}")), want, "{line}");
            }
        }
    }

    #[test]
    fn a_command_alone_is_described_alike() {
        let mut all = command();
        all.build();
        for described in names().get_subcommands() {
            let name = described.get_name();
            let mut alone = only(name).unwrap_or_else(|| panic!("{name} is not found"));
            alone.build();
            let help =
                |root: &mut clap::Command| root.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            assert_eq!(help(&mut alone), help(&mut all), "{name}");
        }
        for absent in ["", "-", "List", "LIST", "list-", "li-st", "ls", "lis", "run_prepared", "runprepared", "help"] {
            assert!(only(absent).is_none(), "{absent}");
        }
    }
}
