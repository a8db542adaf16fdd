//! From the words of the command line to one command, and from its outcome to an exit code.
//!
//! `run` and `prepare` take the short way: their grammar is ours, and clap's description of all the others is never built.

use std::ffi::OsString;
use std::io::Write as _;

use clap::FromArgMatches as _;
use clap::error::{ContextKind, ErrorKind};

use crate::cli::{Cli, Command};
use crate::commands;
use crate::context::Context;
use crate::exit::{self, Asking};
use crate::failure::{CliError, Failure};
use crate::grammar::{self, Arity, Caller, FLAGS, Parsed, Scope, Verb};
use crate::render::wrap;
use crate::{command_words, known_image};

/// Runs the command line (without the program's name) and returns the exit code. Failures have been said by then.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> u8 {
    let mut words = Vec::new();
    for (i, argument) in arguments.enumerate() {
        match argument.into_string() {
            Ok(word) => words.push(word),
            Err(_) => return failed(&CliError::NotText(i + 1).into(), Asking::Action, false),
        }
    }
    if words.first().is_some_and(|word| word == commands::completion::ASK) {
        return commands::completion::answer(&words[1..])
            .unwrap_or_else(|failure| failed(&failure, Asking::Action, false));
    }
    let debug = words.iter().take_while(|word| *word != "--").any(|word| word == "--debug");
    let Some(at) = command_at(&words) else { return other(crate::cli::command(), words, None, debug) };
    if let Some(verb) = verb(&words[at]) {
        return run_or_prepare(verb, words, at);
    }
    let description = crate::cli::command();
    if let Err(failure) = complete(&description, &mut words, at) {
        return failed(&failure, Asking::Action, debug);
    }
    match verb(&words[at]) {
        Some(verb) => run_or_prepare(verb, words, at),
        None => other(description, words, Some(at), debug),
    }
}

/// Writes the command at this place in full, and the one behind it where it is one of a group.
fn complete(description: &clap::Command, words: &mut [String], at: usize) -> Result<(), Failure> {
    words[at] = command_words::complete(description, "", &words[at])?;
    let group = description.find_subcommand(&words[at]).filter(|command| command.has_subcommands());
    let Some((group, more)) = group.zip(command_at(&words[at + 1..])) else { return Ok(()) };
    let at = at + 1 + more;
    words[at] = command_words::complete(group, group.get_name(), &words[at])?;
    Ok(())
}

/// Where the command stands: the first word that is neither a global flag nor the value of one.
fn command_at(words: &[String]) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if !word.starts_with('-') || word.len() == 1 {
            return Some(at);
        }
        let takes_next = word.strip_prefix("--").is_some_and(|name| {
            FLAGS.iter().any(|flag| flag.scope == Scope::Global && flag.arity == Arity::Value && flag.long() == name)
        });
        at += if takes_next { 2 } else { 1 };
    }
    None
}

/// The command of our own grammar that this word names.
fn verb(word: &str) -> Option<Verb> {
    [Verb::Run, Verb::Prepare].into_iter().find(|verb| verb.as_str() == word)
}

fn run_or_prepare(verb: Verb, mut words: Vec<String>, at: usize) -> u8 {
    words.remove(at);
    let debug = words.iter().take_while(|word| *word != "--").any(|word| word == "--debug");
    let caller = Caller {
        variable: &|name| std::env::var(name).ok(),
        directory: std::env::current_dir().ok(),
        image: &known_image::known,
    };
    let parsed = grammar::parse(verb, &words, &caller);
    let outcome = match parsed {
        Ok(Parsed::Help) => print(&grammar::help(verb, wrap::help_width())).map(|()| exit::OK),
        Ok(Parsed::Pod(request)) => match verb {
            Verb::Run => commands::run::run(*request),
            Verb::Prepare => commands::run::prepare(*request),
        },
        Err(error) => Err(error.into()),
    };
    outcome.unwrap_or_else(|failure| failed(&failure, Asking::Action, debug))
}

fn other(description: clap::Command, words: Vec<String>, at: Option<usize>, debug: bool) -> u8 {
    let name = at.map(|at| words[at].clone()).unwrap_or_default();
    let parsed = description
        .try_get_matches_from(std::iter::once("gantry".to_owned()).chain(words))
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => {
            // Nowhere to tell that standard error is gone.
            let _ = write!(std::io::stderr(), "{}", crate::cli::command().render_help());
            return exit::FAILED;
        }
        Err(error) => return shown_by_clap(error),
    };
    let asking = asking(&cli.command);
    command(Context::new(cli.globals, name), cli.command).unwrap_or_else(|failure| failed(&failure, asking, debug))
}

/// Help and version go to standard output; a usage error to standard error, as any failure of ours.
fn shown_by_clap(mut error: clap::Error) -> u8 {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nowhere to tell that standard error is gone.
        let _ = std::io::stderr().write_all(error.to_string().as_bytes());
        return exit::FAILED;
    }
    if error.use_stderr() {
        if error.kind() == ErrorKind::UnknownArgument {
            // clap advises to pass the flag as a value behind '--', which no command here takes.
            error.remove(ContextKind::Suggested);
        }
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let shown: Vec<_> = text.trim_end().lines().map(crate::render::escape::text).collect();
        // Nowhere to tell that standard error is gone.
        let _ = writeln!(std::io::stderr(), "gantry: {}", shown.join("\n"));
        return exit::FAILED;
    }
    match print(&error.to_string()) {
        Ok(()) => exit::OK,
        Err(failure) => failed(&failure, Asking::Action, false),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    crate::render::json::to_stdout(|out| out.write_all(text.as_bytes()))
}

fn failed(failure: &Failure, asking: Asking, debug: bool) -> u8 {
    crate::terminal::restore();
    failure.print(debug);
    failure.code(asking)
}

/// Whether absence is an answer to this command.
fn asking(command: &Command) -> Asking {
    match command {
        Command::Status(_)
        | Command::Rm(_)
        | Command::Stop(_)
        | Command::Kill(_)
        | Command::Logs(_)
        | Command::Wait(_)
        | Command::Inspect(_)
        | Command::Port(_)
        | Command::CatManifest(_)
        | Command::Image(_)
        | Command::Rmi(_)
        | Command::Images(_)
        | Command::Network(_)
        | Command::Volume(_)
        | Command::List(_) => Asking::Existence,
        Command::Run(_)
        | Command::Prepare(_)
        | Command::RunPrepared(_)
        | Command::Fetch(_)
        | Command::Events(_)
        | Command::Exec(_)
        | Command::Attach(_)
        | Command::Gc(_)
        | Command::Doctor(_)
        | Command::Login(_)
        | Command::Save(_)
        | Command::Load(_)
        | Command::Logout(_)
        | Command::Completion(_)
        | Command::Version(_) => Asking::Action,
    }
}

fn command(context: Context, command: Command) -> Result<u8, Failure> {
    match command {
        // Reached only by 'gantry help run' and the like, which clap answers itself.
        Command::Run(_) | Command::Prepare(_) => Err(Failure::usage("write 'gantry run' or 'gantry prepare' in full")),
        Command::RunPrepared(args) => commands::run::run_prepared(&context, &args),
        Command::Fetch(args) => commands::fetch::fetch(&context, &args),
        Command::List(args) => commands::list::list(&context, &args),
        Command::Status(args) => commands::status::status(&context, &args),
        Command::Wait(args) => commands::wait::wait(&context, &args),
        Command::Logs(args) => commands::logs::logs(&context, &args),
        Command::Events(args) => commands::events::events(&context, &args),
        Command::Exec(args) => commands::exec::exec(&context, args),
        Command::Attach(args) => commands::attach::attach(&context, &args),
        Command::Stop(args) => commands::stop::stop(&context, &args),
        Command::Kill(args) => commands::stop::kill(&context, &args),
        Command::Rm(args) => commands::rm::rm(&context, &args),
        Command::Gc(args) => commands::rm::gc(&context, &args),
        Command::Inspect(args) => commands::inspect::inspect(&context, &args),
        Command::Port(args) => commands::port::port(&context, &args),
        Command::CatManifest(args) => commands::inspect::cat_manifest(&context, &args),
        Command::Image(image) => commands::image::image(&context, &image),
        Command::Images(args) => commands::image::list(&context, &args),
        Command::Rmi(args) => commands::image::rm(&context, &args),
        Command::Save(args) => commands::image_archive::save(&context, &args),
        Command::Load(args) => commands::image_archive::load(&context, &args),
        Command::Login(args) => commands::login::login(&context, &args),
        Command::Logout(args) => commands::login::logout(&context, &args),
        Command::Network(network) => commands::network::network(&context, &network),
        Command::Volume(volume) => commands::volume::volume(&context, &volume),
        Command::Doctor(args) => commands::doctor::doctor(&context, &args),
        Command::Completion(args) => commands::completion::completion(&args),
        Command::Version(args) => commands::version::version(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_is_found_behind_global_flags() {
        for (line, want) in [
            ("run x", Some((0, Some(Verb::Run)))),
            ("--dir /x --debug run x", Some((3, Some(Verb::Run)))),
            ("--dir=/x prepare x", Some((1, Some(Verb::Prepare)))),
            ("--dir run", None),
            ("--insecure-options all --progress none prepare", Some((4, Some(Verb::Prepare)))),
            ("list run", Some((0, None))),
            ("run-prepared x", Some((0, None))),
            ("p", Some((0, None))),
            ("--version", None),
        ] {
            let words = words(line);
            assert_eq!(command_at(&words).map(|at| (at, verb(&words[at]))), want, "{line}");
        }
    }

    #[test]
    fn clap_accepts_its_own_description_and_every_alias() {
        crate::cli::command().debug_assert();
        for (line, want) in [
            ("ps", "List"),
            ("ls -q", "List"),
            ("pull x", "Fetch"),
            ("enter 12", "Exec"),
            ("images", "Images"),
            ("rmi x", "Rmi"),
            ("image ls", "Image"),
            ("stat 12", "Status"),
            ("vers", "Version"),
            ("events -f --filter type=pod-exited --filter app=x", "Events"),
            ("ev", "Events"),
            ("network ls -q", "Network"),
            ("net inspect a b", "Network"),
            ("network reload", "Network"),
            ("volume create a b", "Volume"),
            ("vol ls -q", "Volume"),
        ] {
            let matches = crate::cli::command().try_get_matches_from(words(&format!("gantry {line}"))).unwrap();
            let cli = Cli::from_arg_matches(&matches).unwrap();
            assert!(format!("{:?}", cli.command).starts_with(want), "{line}: {:?}", cli.command);
        }
        for (line, want) in [("lsit", "list"), ("rmm 1", "rm"), ("stopp 1", "stop")] {
            let error = crate::cli::command().try_get_matches_from(words(&format!("gantry {line}"))).unwrap_err();
            assert!(error.to_string().contains(&format!("'{want}'")), "{line}: {error}");
        }
    }
}
