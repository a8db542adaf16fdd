//! Parses the command line, runs the command, and turns its result into an exit code.
//!
//! `run`, `prepare`, `app sandbox`, `app add` and `schedule enable` have a parser of their own ([`crate::grammar`]).
//! For `run` and `prepare`, clap's description of the other commands is not built, which would take longer than
//! everything else on the command line's side of a `run`.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::Write as _;

use clap::FromArgMatches as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;
use crate::commands;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::globals::first_argument;
use crate::grammar::{self, Caller, Parsed, Verb};
use crate::{command_words, foreign_flags, image_lookup, suggest};

/// Runs the command line (without the program's name), prints a failure, and returns the exit code.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitStatus {
    let mut words = Vec::new();
    for (i, argument) in arguments.enumerate() {
        match argument.into_string() {
            Ok(word) => words.push(word),
            Err(_) => return failed(&CliError::NotText(i + 1).into(), CommandKind::Action, false),
        }
    }
    if words.first().is_some_and(|word| word == commands::completion::COMPLETE_COMMAND) {
        return commands::completion::complete(&words[1..])
            .unwrap_or_else(|failure| failed(&failure, CommandKind::Action, false));
    }
    let debug = words.iter().take_while(|word| *word != "--").any(|word| word == "--debug");
    let Some(at) = first_argument(&words) else { return other(crate::cli::names(), words, None, debug) };
    if let Some(verb) = verb(&words[at]) {
        return run_or_prepare(verb, words, at);
    }
    // Before clap's description of the group is built, which takes a twentieth of an `app add`.
    if let Some(code) = run_group_verb(&mut words, at) {
        return code;
    }
    let description = match complete(&mut words, at) {
        Ok(description) => description,
        Err(failure) => return failed(&failure, CommandKind::Action, debug),
    };
    // The words may have been abbreviated.
    if let Some(code) = run_group_verb(&mut words, at) {
        return code;
    }
    match verb(&words[at]) {
        Some(verb) => run_or_prepare(verb, words, at),
        None if words[at] == "exec" => {
            separate_program(&description, &mut words, at + 1);
            other(description, words, Some(at), debug)
        }
        None if words[at] == "help" => other(crate::cli::full_command(), words, Some(at), debug),
        None => other(description, words, Some(at), debug),
    }
}

/// Replaces the abbreviated command at this index by its full name; the subcommand of a group, and the words after
/// `help`, likewise. Returns the description of the command.
fn complete(words: &mut [String], at: usize) -> Result<clap::Command, Failure> {
    let description = match crate::cli::only(&words[at]) {
        Some(description) => description,
        None => {
            let names = crate::cli::names();
            words[at] = command_words::complete(&names, "", &words[at])?;
            crate::cli::describe_command(names, &words[at])
        }
    };
    if words[at] == "help" {
        complete_topic(&crate::cli::command(), "", &mut words[at + 1..])?;
    }
    let group = description.find_subcommand(&words[at]).filter(|command| command.has_subcommands());
    if let Some((group, more)) = group.zip(first_argument(&words[at + 1..])) {
        let at = at + 1 + more;
        words[at] = command_words::complete(group, group.get_name(), &words[at])?;
        if words[at] == "help" {
            complete_topic(group, group.get_name(), &mut words[at + 1..])?;
        }
    }
    Ok(description)
}

/// Replaces the abbreviated commands after `help` by their full names; the first one is a command of `parent`.
fn complete_topic(parent: &clap::Command, group: &str, words: &mut [String]) -> Result<(), Failure> {
    let Some(at) = first_argument(words).filter(|_| parent.has_subcommands()) else { return Ok(()) };
    words[at] = command_words::complete(parent, group, &words[at])?;
    match parent.find_subcommand(&words[at]) {
        Some(command) => complete_topic(command, command.get_name(), &mut words[at + 1..]),
        None => Ok(()),
    }
}

/// Inserts `--` before the program of `exec` if a flag selects the pod. clap would take the program for the pod, and
/// flags after it for flags of gantry.
fn separate_program(description: &clap::Command, words: &mut Vec<String>, mut at: usize) {
    let Some(exec) = description.find_subcommand("exec") else { return };
    let mut selects_pod = false;
    while let Some(flag) = words.get(at).filter(|word| word.starts_with('-') && word.len() > 1 && *word != "--") {
        let used = exec_flag(exec, flag);
        selects_pod |= used.selects_pod;
        at += if used.takes_next_word { 2 } else { 1 };
    }
    if selects_pod && words.get(at).is_some_and(|word| word != "--") {
        words.insert(at, "--".to_owned());
    }
}

/// A word that begins with a dash, as a flag of `exec` or several short ones.
#[derive(Debug, Default, PartialEq, Eq)]
struct ExecFlag {
    takes_next_word: bool,
    /// Whether it takes the place of the argument POD.
    selects_pod: bool,
}

fn exec_flag(exec: &clap::Command, word: &str) -> ExecFlag {
    let selects_pod = |flag: &clap::Arg| matches!(flag.get_id().as_str(), "latest" | "uuid_file");
    let takes_value = |flag: &clap::Arg| flag.get_action().takes_values() && !flag.is_require_equals_set();
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or(long);
        let named = |flag: &&clap::Arg| {
            flag.get_long() == Some(name) || flag.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        };
        let flag = exec.get_arguments().find(named);
        let takes = flag.map_or_else(|| crate::globals::takes_next_word(name).unwrap_or(false), takes_value);
        let takes_next_word = takes && !long.contains('=');
        return ExecFlag { takes_next_word, selects_pod: flag.is_some_and(selects_pod) };
    }
    let mut used = ExecFlag::default();
    let mut letters = word[1..].chars();
    while let Some(letter) = letters.next() {
        let Some(flag) = exec.get_arguments().find(|flag| flag.get_short() == Some(letter)) else { break };
        used.selects_pod |= selects_pod(flag);
        if takes_value(flag) {
            // The value is the rest of the word, or the next one.
            used.takes_next_word = letters.as_str().is_empty();
            break;
        }
    }
    used
}

/// `run` or `prepare`, if the word is one of them.
fn verb(word: &str) -> Option<Verb> {
    [Verb::Run, Verb::Prepare].into_iter().find(|verb| verb.as_str() == word)
}

/// `app sandbox`, `app add` or `schedule enable`, with the index of the second word; both words are names in full.
fn group_verb(words: &[String], at: usize) -> Option<(Verb, usize)> {
    let of_group = at + 1 + first_argument(&words[at + 1..])?;
    let verb = [Verb::Sandbox, Verb::AddApp, Verb::Schedule]
        .into_iter()
        .find(|verb| verb.as_str().split_once(' ') == Some((&words[at], &words[of_group])))?;
    Some((verb, of_group))
}

/// Runs the subcommand of a group that has a parser of its own, if the words name one.
fn run_group_verb(words: &mut Vec<String>, at: usize) -> Option<ExitStatus> {
    let (verb, of_group) = group_verb(words, at)?;
    words.remove(of_group);
    Some(run_or_prepare(verb, std::mem::take(words), at))
}

/// Runs one of the commands with a parser of their own; its name is at this index.
fn run_or_prepare(verb: Verb, mut words: Vec<String>, at: usize) -> ExitStatus {
    words.remove(at);
    let debug = words.iter().take_while(|word| *word != "--").any(|word| word == "--debug");
    let lookups = RefCell::new(Vec::new());
    let caller = Caller {
        variable: &|name| std::env::var(name).ok(),
        directory: std::env::current_dir().ok(),
        look_up_image: &|globals, reference| {
            let lookup = image_lookup::look_up(globals, reference);
            lookups.borrow_mut().push((reference.to_string(), lookup));
            lookup
        },
    };
    let parsed = grammar::parse(verb, &words, &caller);
    let outcome = match parsed {
        Ok(Parsed::Help) => print(&help(verb)).map(|()| ExitStatus::OK),
        Ok(Parsed::Pod(request)) => request.globals.start_logging().and_then(|()| {
            // They were needed to parse the flags that logging depends on.
            for (image, lookup) in lookups.into_inner() {
                tracing::debug!(image, ?lookup, "looked up the word after the first image");
            }
            match verb {
                Verb::Run => commands::run::run(*request),
                Verb::Prepare => commands::run::prepare(*request),
                Verb::Sandbox => commands::run::sandbox(*request),
                Verb::AddApp => commands::run::add_app(*request),
                Verb::Schedule => commands::schedule::enable(*request),
            }
        }),
        Err(error) => Err(error.into()),
    };
    outcome.unwrap_or_else(|failure| failed(&failure, CommandKind::Action, debug))
}

/// The help text of a command with a parser of its own.
fn help(verb: Verb) -> String {
    let mut description = crate::cli::full_command();
    description.build();
    let mut words = verb.as_str().split(' ');
    let command = words.try_fold(&mut description, |group, word| group.find_subcommand_mut(word));
    command.map(|command| command.render_help().to_string()).unwrap_or_default()
}

fn other(description: clap::Command, words: Vec<String>, at: Option<usize>, debug: bool) -> ExitStatus {
    let name = at.map(|at| words[at].clone()).unwrap_or_default();
    let parsed = description
        .try_get_matches_from(std::iter::once("gantry".to_owned()).chain(words.iter().cloned()))
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::UnknownArgument => {
            return match foreign_flag(&error, &words, at) {
                Some(failure) => failed(&failure, CommandKind::Action, debug),
                None => shown_by_clap(with_nearest_flag(error, &words, at)),
            };
        }
        Err(error) if error.kind() == ErrorKind::MissingSubcommand => {
            crate::failure::print_stderr(&crate::cli::names().render_help().to_string());
            return ExitStatus::FAILED;
        }
        Err(error) => return shown_by_clap(error),
    };
    let context = Context::new(cli.globals, name);
    let outcome = context.globals.start_logging().and_then(|()| cli.command.run(&context));
    outcome.unwrap_or_else(|failure| failed(&failure, cli.command.kind(), debug))
}

/// The failure of a flag that another tool has, with gantry's form of it.
fn foreign_flag(error: &clap::Error, words: &[String], at: Option<usize>) -> Option<Failure> {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    let command = &words[at?..];
    let hint = foreign_flags::hint(command, flag)?;
    Some(Failure::usage(format!("'gantry {}' has no flag {}: {hint}", command[0], gantry_model::id::shown(flag))))
}

/// Names the flag of the command that is nearest to the unknown one, as the parser of `run` does. clap finds some only.
fn with_nearest_flag(mut error: clap::Error, words: &[String], at: Option<usize>) -> clap::Error {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else { return error };
    let unknown = unknown.split('=').next().unwrap_or_default().to_owned();
    let mut root = crate::cli::command();
    root.build();
    let mut command = &root;
    for word in at.map_or(&[][..], |at| &words[at..]).iter().filter(|word| !word.starts_with('-')).take(2) {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let near = match unknown.strip_prefix("--") {
        Some(long) => {
            let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
            let longs: Vec<&str> =
                flags.flat_map(|flag| flag.get_long_and_visible_aliases().unwrap_or_default()).collect();
            suggest::nearest(long, longs).map(|near| format!("--{near}"))
        }
        None => {
            let other_case = |short: &char| {
                unknown[1..].chars().next().is_some_and(|c| c != *short && c.eq_ignore_ascii_case(short))
            };
            let shorts = command.get_arguments().filter_map(clap::Arg::get_short);
            shorts.into_iter().find(other_case).map(|near| format!("-{near}"))
        }
    };
    if let Some(near) = near {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(near));
    }
    error
}

/// Prints help and version to standard output, and usage errors to standard error in the form of all other failures.
fn shown_by_clap(mut error: clap::Error) -> ExitStatus {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        crate::failure::print_stderr(&error.to_string());
        return ExitStatus::FAILED;
    }
    if error.use_stderr() {
        if error.kind() == ErrorKind::UnknownArgument {
            // clap suggests to pass the flag as a value after '--', which no command here accepts.
            error.remove(ContextKind::Suggested);
        }
        let text = error.to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let shown: Vec<_> = text.trim_end().lines().map(crate::render::escape::text).collect();
        crate::failure::print_stderr(&format!("gantry: {}\n", shown.join("\n")));
        return ExitStatus::FAILED;
    }
    match print(&error.to_string()) {
        Ok(()) => ExitStatus::OK,
        Err(failure) => failed(&failure, CommandKind::Action, false),
    }
}

fn print(text: &str) -> Result<(), Failure> {
    crate::render::json::to_stdout(|out| out.write_all(text.as_bytes()))
}

fn failed(failure: &Failure, kind: CommandKind, debug: bool) -> ExitStatus {
    crate::terminal::restore();
    failure.print(debug);
    failure.exit_status(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_follows_global_flags() {
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
            assert_eq!(first_argument(&words).map(|at| (at, verb(&words[at]))), want, "{line}");
        }
    }

    #[test]
    fn words_after_the_exec_program_are_arguments() {
        for (line, want) in [
            ("exec -l prog --log-level info", "exec -l -- prog --log-level info"),
            ("exec -itl -u app prog -l", "exec -itl -u app -- prog -l"),
            ("exec -luapp prog --debug", "exec -luapp -- prog --debug"),
            ("exec --uuid-file /f --dir /d prog -x", "exec --uuid-file /f --dir /d -- prog -x"),
            ("exec --uuid-file=/f --working-dir / prog", "exec --uuid-file=/f --working-dir / -- prog"),
            ("exec --latest -- prog -x", "exec --latest -- prog -x"),
            ("exec --latest", "exec --latest"),
            ("exec pod -u app prog --debug", "exec pod -u app prog --debug"),
        ] {
            let mut words = words(line);
            separate_program(&crate::cli::command(), &mut words, 1);
            assert_eq!(words.join(" "), want, "{line}");
        }
    }

    #[test]
    fn words_after_help_may_be_abbreviated() {
        for (line, want) in [
            ("help statu", "help status"),
            ("hel ps", "help list"),
            ("help im sav", "help image save"),
            ("image help sav", "image help save"),
            ("help", "help"),
            ("help hel", "help help"),
            ("--debug help net ls", "--debug help network list"),
        ] {
            let mut words = words(line);
            let at = first_argument(&words).unwrap();
            complete(&mut words, at).unwrap();
            assert_eq!(words.join(" "), want, "{line}");
        }
        for (line, want) in [
            ("help lsit", "there is no command 'lsit': did you mean 'list'?"),
            ("help st", "'st' is ambiguous"),
            ("help image tga", "there is no command 'image tga': did you mean 'tag'?"),
        ] {
            let mut words = words(line);
            let text = complete(&mut words, 0).unwrap_err().text(false).unwrap();
            assert!(text.contains(want), "{line}: {text}");
        }
    }

    /// The commands without subcommands, with the words that name them.
    fn leaves<'a>(command: &'a clap::Command, words: Vec<String>, into: &mut Vec<(Vec<String>, &'a clap::Command)>) {
        if !command.has_subcommands() {
            into.push((words, command));
            return;
        }
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            leaves(below, [&words[..], &[below.get_name().to_owned()]].concat(), into);
        }
    }

    /// The error of a flag that the command lacks.
    fn refusal(root: &clap::Command, words: &[String], flag: &str) -> String {
        let words = [words, &[flag.to_owned()]].concat();
        let error =
            root.clone().try_get_matches_from(std::iter::once("gantry".to_owned()).chain(words.iter().cloned()));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownArgument, "{words:?}");
        with_nearest_flag(error, &words, Some(0)).to_string()
    }

    #[test]
    fn misspelt_flags_are_refused_with_the_nearest_one() {
        let (mut root, plain) = (crate::cli::command(), crate::cli::command());
        root.build();
        let mut commands = Vec::new();
        leaves(&root, Vec::new(), &mut commands);
        // Not those of the other parser, which has its own test.
        commands.retain(|(_, command)| command.get_arguments().all(|flag| flag.get_id().as_str() != "words"));
        let mut tried = 0;
        for (words, command) in commands {
            let flags = || command.get_arguments().filter(|flag| !flag.is_hide_set());
            let longs: Vec<&str> =
                flags().flat_map(|flag| flag.get_long_and_visible_aliases().unwrap_or_default()).collect();
            for long in longs.iter().filter(|long| long.len() > 3 && !long.starts_with("no-")) {
                let misspelt = format!("--{}{}", &long[..1], &long[2..]);
                for flag in [misspelt.clone(), format!("{misspelt}=value")] {
                    let text = refusal(&plain, &words, &flag);
                    assert!(text.contains("a similar argument exists: '--"), "{words:?} {flag}: {text}");
                    tried += 1;
                }
            }
            let shorts: Vec<char> = flags().filter_map(clap::Arg::get_short).collect();
            for short in shorts.iter().filter(|short| short.is_ascii_lowercase()) {
                let upper = short.to_ascii_uppercase();
                if !shorts.contains(&upper) {
                    let text = refusal(&plain, &words, &format!("-{upper}"));
                    assert!(text.contains(&format!("a similar argument exists: '-{short}'")), "{words:?}: {text}");
                }
            }
            let text = refusal(&plain, &words, "--xyzzyx");
            assert!(!text.contains("a similar argument exists"), "{words:?}: {text}");
        }
        assert!(tried > 300, "only {tried} flags were tried");
    }

    #[test]
    fn every_alias_is_a_command() {
        crate::cli::full_command().debug_assert();
        for (line, want) in [
            ("ps", "List"),
            ("ls -q", "List"),
            ("pull x", "Fetch"),
            ("enter 12", "Exec"),
            ("images", "Images"),
            ("rmi x", "Rmi"),
            ("image ls", "Image"),
            ("statu 12", "Status"),
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
