//! Generates the part of the manual page that lists the flags of every command. A test compares it with
//! `docs/man/gantry.1`, and updates the page if `GANTRY_UPDATE_MAN` is set.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::grammar::{APP_FLAGS, POD_FLAGS};

const BEGIN: &str =
    ".\\\" The flags of commands are made by src/cli/src/man.rs: GANTRY_UPDATE_MAN=1 cargo test -p gantry-cli man\n";
const END: &str = ".\\\" End of the flags of commands.\n";

fn page() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/gantry.1"))
}

/// The sections of all commands.
fn sections() -> String {
    let mut text = String::new();
    let mut root = crate::cli::full_command();
    root.build();
    let run = root.find_subcommand("run").expect("there is a command 'run'");
    for (heading, title) in [(POD_FLAGS, "run and prepare: the pod"), (APP_FLAGS, "run and prepare: apps")] {
        section(&mut text, title, run.get_arguments().filter(|flag| flag.get_help_heading() == Some(heading)));
    }
    // In the full command, those that were completed come last.
    let ordered = crate::cli::command();
    let order = |names: &clap::Command, full: &clap::Command| -> Vec<clap::Command> {
        let names = names.get_subcommands().map(clap::Command::get_name);
        names.filter_map(|name| full.find_subcommand(name)).filter(|command| !command.is_hide_set()).cloned().collect()
    };
    for command in order(&ordered, &root) {
        if matches!(command.get_name(), "run" | "prepare" | "help") {
            continue;
        }
        let names = ordered.find_subcommand(command.get_name()).expect("the names are those of the full command");
        section(&mut text, command.get_name(), command.get_arguments());
        for sub in order(names, &command).into_iter().filter(|sub| sub.get_name() != "help") {
            // Their flags are those of run.
            if command.get_name() == "app" && matches!(sub.get_name(), "sandbox" | "add") {
                continue;
            }
            let title = format!("{} {}", command.get_name(), sub.get_name());
            let has_flags_of_run = title == "schedule enable";
            let is_own = |flag: &&clap::Arg| !has_flags_of_run || !has_flag(run, flag);
            section(&mut text, &title, sub.get_arguments().filter(is_own));
        }
    }
    text
}

fn has_flag(command: &clap::Command, flag: &clap::Arg) -> bool {
    command.get_arguments().any(|other| other.get_id() == flag.get_id())
}

/// A section with those of the arguments that are flags of the command, if there are any.
fn section<'a>(text: &mut String, title: &str, arguments: impl Iterator<Item = &'a clap::Arg>) {
    let is_shown = |argument: &&clap::Arg| {
        !argument.is_hide_set()
            && !argument.is_positional()
            && !argument.is_global_set()
            && !matches!(argument.get_id().as_str(), "help" | "version")
    };
    let flags: Vec<&clap::Arg> = arguments.filter(is_shown).collect();
    if flags.is_empty() {
        return;
    }
    writeln!(text, ".Ss {title}\n.Bl -tag -width Ds").expect("a String takes all that is written");
    for flag in flags {
        let value = flag.get_value_names().filter(|_| flag.get_action().takes_values()).and_then(<[_]>::first);
        let possible: Vec<_> = flag.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
        let mut help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        if flag.get_action().takes_values() && !possible.is_empty() {
            let names: Vec<_> = possible.iter().map(clap::builder::PossibleValue::get_name).collect();
            help.push_str(&format!(": {}", names.join(", ")));
        }
        let has_default = flag.get_action().takes_values() && !flag.is_hide_default_value_set();
        if let Some(default) = flag.get_default_values().first().filter(|_| has_default) {
            help.push_str(&format!(" (default {})", default.to_string_lossy()));
        }
        let longs = flag.get_long().into_iter().chain(flag.get_visible_aliases().unwrap_or_default());
        let value = match value.map(|value| quoted(value.as_str())) {
            Some(value) if flag.is_require_equals_set() => format!(" Ns Op = Ns Ar {value}"),
            Some(value) => format!(" Ar {value}"),
            None => String::new(),
        };
        item(text, flag.get_short(), longs, &value, &help);
    }
    text.push_str(".El\n");
}

/// `value`: that of the flag, as a macro of mdoc.
fn item<'a>(text: &mut String, short: Option<char>, longs: impl Iterator<Item = &'a str>, value: &str, help: &str) {
    let names: Vec<String> =
        short.map(|short| format!("Fl {short}")).into_iter().chain(longs.map(|long| format!("Fl -{long}"))).collect();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('\\', "\\e");
    // A line that begins with one of these would be a request.
    let guard = if help.starts_with(['.', '\'']) { "\\&" } else { "" };
    writeln!(text, ".It {}{value}\n{guard}{help}.", names.join(" , ")).expect("a String takes all that is written");
}

/// A word that mdoc does not take for a macro or punctuation.
fn quoted(value: &str) -> String {
    value.split(' ').map(|word| format!("\\&{}", word.replace('\\', "\\e"))).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_man_page_lists_every_flag() {
    let page = page();
    let text = std::fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the man page has a place for the flags");
    let (listed, after) = rest.split_once(END).expect("the place for the flags has an end");
    let want = sections();
    if std::env::var_os("GANTRY_UPDATE_MAN").is_some() {
        std::fs::write(&page, format!("{before}{BEGIN}{want}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(listed, want, "run it again with GANTRY_UPDATE_MAN=1, which writes the flags into {}", page.display());
}

#[test]
fn the_man_page_describes_every_command() {
    let text = std::fs::read_to_string(page()).unwrap();
    let (_, rest) = text.split_once(".Sh COMMANDS\n").unwrap();
    let (commands, _) = rest.split_once(".Sh ").unwrap();
    let headings = commands.lines().filter_map(|line| line.strip_prefix(".It Cm "));
    let described: Vec<Vec<&str>> = headings
        .flat_map(|heading| heading.split(" , "))
        .map(|heading| heading.trim_start_matches("Cm ").split(' ').collect())
        .collect();
    let mut root = crate::cli::command();
    root.build();
    let is_shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
    let mut last = 0;
    for command in root.get_subcommands().filter(is_shown) {
        let name = command.get_name();
        let at = described.iter().position(|words| words.first() == Some(&name));
        let at = at.unwrap_or_else(|| panic!("{name} is not described"));
        assert!(at >= last || name == "cat-manifest", "{name} is not where 'gantry --help' has it");
        last = at.max(last);
        for sub in command.get_subcommands().filter(is_shown) {
            let words = [name, sub.get_name()];
            assert!(described.iter().any(|described| described.starts_with(&words)), "{words:?} is not described");
        }
    }
}

#[test]
fn the_man_page_names_what_schedules_lack() {
    let text = std::fs::read_to_string(page()).unwrap();
    let (_, rest) = text.split_once("It also takes the flags of\n.Cm run ,\nexcept\n").unwrap();
    let (listed, _) = rest.split_once(".It Cm").unwrap();
    let listed: BTreeSet<&str> = listed.split_whitespace().filter_map(|word| word.strip_prefix('-')).collect();
    let mut root = crate::cli::full_command();
    root.build();
    let run = root.find_subcommand("run").unwrap();
    let enable = root.find_subcommand("schedule").unwrap().find_subcommand("enable").unwrap();
    let lacks = |flag: &&clap::Arg| !flag.is_positional() && !has_flag(enable, flag);
    let want: BTreeSet<&str> = run.get_arguments().filter(lacks).filter_map(clap::Arg::get_long).collect();
    assert_eq!(listed, want);
}
