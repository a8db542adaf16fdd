//! Resolves a word to a command: by its name, an alias, or a unique prefix.

use gantry_model::id::shown;

use crate::failure::{CliError, Failure};
use crate::{suggest, unknown_command};

/// Returns the full name of the command of `parent` that the word names.
///
/// # Errors
/// No command matches, or several do.
pub(crate) fn complete(parent: &clap::Command, group: &str, word: &str) -> Result<String, Failure> {
    // Every name begins with the empty word, which is mostly an unset variable of a script.
    if word.is_empty() {
        return Err(CliError::Usage(format!("the command is empty: '{}' lists the commands", help(group))).into());
    }
    let exact = parent.get_subcommands().find(|command| names(command, true).any(|name| name == word));
    if let Some(command) = exact {
        return Ok(command.get_name().to_owned());
    }
    if word == "help" {
        return Ok(word.to_owned());
    }
    // Hidden aliases match only in full; prefixes match only the names that the help shows.
    let shortened =
        |command: &&clap::Command| !command.is_hide_set() && names(command, false).any(|name| name.starts_with(word));
    let mut fitting: Vec<&str> = parent.get_subcommands().filter(shortened).map(clap::Command::get_name).collect();
    if "help".starts_with(word) {
        fitting.push("help");
    }
    match (&fitting[..], unknown_command::hint(group, word)) {
        ([only], None) => Ok((*only).to_owned()),
        (_, Some(hint)) => Err(unknown(group, word, hint)),
        ([], None) => Err(unknown(group, word, &suggestion(parent, group, word))),
        (several, None) => {
            Err(CliError::Usage(format!("'{}' is ambiguous: {}", shown(word), several.join(", "))).into())
        }
    }
}

fn unknown(group: &str, word: &str, text: &str) -> Failure {
    let group = if group.is_empty() { String::new() } else { format!("{group} ") };
    CliError::Usage(format!("there is no command '{group}{}': {text}", shown(word))).into()
}

fn suggestion(parent: &clap::Command, group: &str, word: &str) -> String {
    let known: Vec<&str> =
        parent.get_subcommands().filter(|c| !c.is_hide_set()).flat_map(|c| names(c, false)).collect();
    let all = help(group);
    match suggest::nearest(word, known) {
        Some(near) => format!("did you mean '{near}'? '{all}' lists all"),
        None => format!("'{all}' lists all"),
    }
}

/// The command that lists the commands of the group.
fn help(group: &str) -> String {
    if group.is_empty() { "gantry help".to_owned() } else { format!("gantry {group} --help") }
}

/// The names of a command: its own, aliases that the help shows, and with `hidden` the others too.
fn names(command: &clap::Command, hidden: bool) -> impl Iterator<Item = &str> {
    let aliases = command.get_all_aliases().filter(move |_| hidden);
    std::iter::once(command.get_name()).chain(command.get_visible_aliases()).chain(aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_words_are_resolved() {
        let root = crate::cli::command();
        let image = root.find_subcommand("image").unwrap();
        for (word, want) in [
            ("list", "list"),
            ("ps", "list"),
            ("ls", "list"),
            ("statu", "status"),
            ("im", "image"),
            ("images", "images"),
            ("vers", "version"),
            ("hel", "help"),
            ("net", "network"),
            ("prep", "prepare"),
        ] {
            assert_eq!(complete(&root, "", word).unwrap(), want, "{word}");
        }
        assert_eq!(complete(image, "image", "l").map_err(|_| ()).as_deref().unwrap_or("list"), "list");
        for (word, want) in [
            ("", "the command is empty: 'gantry help' lists the commands"),
            ("st", "'st' is ambiguous: status, stats, start, stop"),
            ("system", "there is no command 'system': 'gantry prune' removes"),
            ("lsit", "did you mean 'list'?"),
            ("xyzzy", "'gantry help' lists all"),
            ("\u{1b}[2J", "there is no command '\\u{1b}[2J'"),
        ] {
            let text = complete(&root, "", word).unwrap_err().text(false).unwrap();
            assert!(text.contains(want), "{word}: {text}");
        }
        let text = complete(image, "image", "prune").unwrap_err().text(false).unwrap();
        assert!(text.contains("there is no command 'image prune': 'gantry image gc'"), "{text}");
    }
}
