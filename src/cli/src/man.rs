//! Generates the part of the man page that lists the flags of every command, from the definitions that parse them. A
//! test compares it with `docs/man/gantry.1`, and updates the page when `GANTRY_UPDATE_MAN` is set.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::grammar::{Arity, FLAGS, Scope};

const BEGIN: &str =
    ".\\\" The flags of commands are made by src/cli/src/man.rs: GANTRY_UPDATE_MAN=1 cargo test -p gantry-cli man\n";
const END: &str = ".\\\" End of the flags of commands.\n";

fn page() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man/gantry.1"))
}

/// The sections of all commands.
fn sections() -> String {
    let mut text = String::new();
    grammar_section(&mut text);
    let root = crate::cli::command();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        if matches!(command.get_name(), "run" | "prepare") {
            continue;
        }
        section(&mut text, command.get_name(), command);
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            section(&mut text, &format!("{} {}", command.get_name(), sub.get_name()), sub);
        }
    }
    text
}

/// The flags of one command, where it has some.
fn section(text: &mut String, name: &str, command: &clap::Command) {
    let shown = |argument: &&clap::Arg| {
        !argument.is_hide_set() && !argument.is_positional() && !argument.is_global_set() && argument.get_id() != "help"
    };
    let flags: Vec<&clap::Arg> = command.get_arguments().filter(shown).collect();
    if flags.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, ".Ss {name}\n.Bl -tag -width Ds");
    for flag in flags {
        let value = flag.get_value_names().filter(|_| flag.get_action().takes_values()).and_then(<[_]>::first);
        let possible: Vec<_> = flag.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
        let mut help = flag.get_help().map(ToString::to_string).unwrap_or_default();
        if flag.get_action().takes_values() && !possible.is_empty() {
            let names: Vec<_> = possible.iter().map(clap::builder::PossibleValue::get_name).collect();
            help.push_str(&format!(": {}", names.join(", ")));
        }
        if let Some(default) = flag.get_default_values().first().filter(|_| flag.get_action().takes_values()) {
            help.push_str(&format!(" (default {})", default.to_string_lossy()));
        }
        let longs = flag.get_long().into_iter().chain(flag.get_visible_aliases().unwrap_or_default());
        item(text, flag.get_short(), longs, value.map_or("", |value| value.as_str()), &help);
    }
    text.push_str(".El\n");
}

fn grammar_section(text: &mut String) {
    for (scope, title) in [(Scope::Pod, "run and prepare: the pod"), (Scope::App, "run and prepare: apps")] {
        let _ = writeln!(text, ".Ss {title}\n.Bl -tag -width Ds");
        for flag in FLAGS.iter().filter(|flag| flag.scope == scope) {
            let value = if flag.arity == Arity::Switch { "" } else { flag.value };
            item(text, flag.short, flag.longs(), value, flag.help);
        }
        text.push_str(".El\n");
    }
}

fn item<'a>(text: &mut String, short: Option<char>, longs: impl Iterator<Item = &'a str>, value: &str, help: &str) {
    let names: Vec<String> =
        short.map(|short| format!("Fl {short}")).into_iter().chain(longs.map(|long| format!("Fl -{long}"))).collect();
    let value = if value.is_empty() { String::new() } else { format!(" Ar {}", quoted(value)) };
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('\\', "\\e");
    // A line that begins with one of these would be a request.
    let guard = if help.starts_with(['.', '\'']) { "\\&" } else { "" };
    let _ = writeln!(text, ".It {}{value}\n{guard}{help}.", names.join(" , "));
}

/// A word that mdoc does not take for a macro or punctuation.
fn quoted(value: &str) -> String {
    value.split(' ').map(|word| format!("\\&{}", word.replace('\\', "\\e"))).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_man_page_has_the_flags_of_every_command() {
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
