//! `gantry completion`: scripts for shells, made from the same descriptions that parse the command line.

use std::fmt::Write as _;

use gantry_model::EventKind;

use super::events::filter::KEYS;
use crate::exit;
use crate::failure::Failure;
use crate::grammar::FLAGS;

/// Arguments of `completion`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completion {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Shells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// A command and the words that can follow it.
struct Entry {
    /// `list`, or `image list`.
    path: String,
    about: String,
    flags: Vec<String>,
}

/// Prints the script.
pub(crate) fn completion(args: &Completion) -> Result<u8, Failure> {
    let script = script(args.shell);
    crate::render::json::to_stdout(|out| out.write_all(script.as_bytes()))?;
    Ok(exit::OK)
}

fn script(shell: Shell) -> String {
    let entries = entries();
    match shell {
        Shell::Bash => bash(&entries),
        // zsh runs bash's completions by its own bridge.
        Shell::Zsh => format!("#compdef gantry\nautoload -U +X bashcompinit && bashcompinit\n{}", bash(&entries)),
        Shell::Fish => fish(&entries),
    }
}

fn entries() -> Vec<Entry> {
    let mut root = crate::cli::command();
    // Brings the global flags to every command.
    root.build();
    let mut entries = Vec::new();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        entries.push(entry("", command));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            entries.push(entry(&format!("{} ", command.get_name()), sub));
        }
    }
    entries
}

fn entry(parent: &str, command: &clap::Command) -> Entry {
    let ours = matches!(command.get_name(), "run" | "prepare");
    let flags = if ours {
        FLAGS.iter().map(|flag| format!("--{}", flag.long())).collect()
    } else {
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        shown.filter_map(clap::Arg::get_long).map(|long| format!("--{long}")).collect()
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    Entry { path: format!("{parent}{}", command.get_name()), about, flags }
}

fn bash(entries: &[Entry]) -> String {
    let names = |depth: usize, parent: &str| {
        let of = |entry: &&Entry| entry.path.split(' ').count() == depth && entry.path.starts_with(parent);
        entries.iter().filter(of).filter_map(|entry| entry.path.rsplit(' ').next()).collect::<Vec<_>>().join(" ")
    };
    let subs = entries.iter().filter_map(|entry| entry.path.split_once(' '));
    let groups: std::collections::BTreeSet<_> = subs.map(|(group, _)| group).collect();
    let groups: Vec<_> = groups.into_iter().collect();
    let mut subs = String::new();
    for group in &groups {
        // Writing to a String cannot fail.
        let _ = writeln!(
            subs,
            "      {group}) COMPREPLY=($(compgen -W '{}' -- \"$current\")); return ;;",
            names(2, &format!("{group} "))
        );
    }
    let mut cases = String::new();
    for entry in entries {
        // Writing to a String cannot fail.
        let _ = writeln!(cases, "    '{}') flags='{}' ;;", entry.path, entry.flags.join(" "));
    }
    format!(
        r#"# completion of gantry for bash: source it, or install it as bash-completion/completions/gantry
_gantry() {{
  local word command='' sub='' flags='' current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[*]:0:COMP_CWORD}}" i
  local last="$before"
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{COMP_WORDS[i]}}"
    [[ $word == -* ]] && continue
    if [[ -z $command ]]; then command=$word; elif [[ -z $sub && ' {groups} ' == *" $command "* ]]; then sub=$word; fi
  done
  if [[ -z $command && $current != -* ]]; then
    COMPREPLY=($(compgen -W '{commands}' -- "$current")); return
  fi
  if [[ -z $sub && $current != -* ]]; then
    case "$command" in
{subs}    esac
  fi
  case "$command${{sub:+ $sub}}" in
{cases}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current")); return
  fi
  # bash takes '=' for a word of its own.
  [[ $current == = ]] && last+=' ='
  case "$last" in
    *' --net ='|*' --network ='|*' --network')
      COMPREPLY=($(compgen -W "none host all $(gantry network list -q 2>/dev/null)" -- "${{current#=}}")); return ;;
  esac
  case "$command" in
    run|prepare) COMPREPLY=($(compgen -f -- "$current")) ;;
    events)
      [[ $current == = ]] && before+=' =' current=''
      case "$before" in
        *' --filter type =') COMPREPLY=($(compgen -W '{types}' -- "$current")) ;;
        *' --filter') COMPREPLY=($(compgen -S = -W '{keys}' -- "$current")); compopt -o nospace ;;
      esac ;;
    network) COMPREPLY=($(compgen -W "$(gantry network list -q 2>/dev/null)" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$(gantry list -q --full 2>/dev/null)" -- "$current")) ;;
  esac
}}
complete -o default -F _gantry gantry
"#,
        commands = names(1, ""),
        groups = groups.join(" "),
        types = EventKind::ALL.map(EventKind::as_str).join(" "),
        keys = KEYS.join(" "),
    )
}

fn fish(entries: &[Entry]) -> String {
    let mut script = String::from("# completion of gantry for fish\ncomplete -c gantry -f\n");
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('\'', "\\'");
    for entry in entries {
        let (condition, name) = match entry.path.split_once(' ') {
            None => ("__fish_use_subcommand".to_owned(), entry.path.as_str()),
            Some((parent, name)) => (format!("__fish_seen_subcommand_from {parent}"), name),
        };
        let _ = writeln!(script, "complete -c gantry -n '{condition}' -a {name} -d '{}'", quoted(&entry.about));
        for flag in &entry.flags {
            let long = flag.trim_start_matches('-');
            let _ = writeln!(script, "complete -c gantry -n '__fish_seen_subcommand_from {name}' -l {long}");
        }
    }
    for flag in ["net", "network"] {
        let _ = writeln!(
            script,
            "complete -c gantry -n '__fish_seen_subcommand_from run prepare run-prepared' -l {flag} -x -a 'none host all \
             (gantry network list -q 2>/dev/null)'"
        );
    }
    let types = EventKind::ALL.map(|kind| format!("type={}", kind.as_str()));
    let keys = KEYS.iter().filter(|key| **key != "type").map(|key| format!("{key}="));
    let words: Vec<_> = types.into_iter().chain(keys).collect();
    let _ = writeln!(
        script,
        "complete -c gantry -n '__fish_seen_subcommand_from events' -l filter -x -a '{}'",
        words.join(" ")
    );
    script
        .push_str("complete -c gantry -n '__fish_seen_subcommand_from status stop rm logs exec kill attach inspect' ");
    script.push_str("-a '(gantry list -q --full 2>/dev/null)'\n");
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_every_flag_of_run_is_in_every_script() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell);
            for word in [
                "run-prepared",
                "cat-manifest",
                "doctor",
                "image",
                "gc",
                "events",
                "filter",
                "pod-exited",
                "network",
                "reload",
            ] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
            for flag in FLAGS {
                assert!(script.contains(flag.long()), "{shell:?}: {}", flag.long());
            }
        }
    }

    #[test]
    fn bash_completes_groups_and_networks() {
        let completed = |words: &str| {
            let words: Vec<_> = words.split('|').collect();
            let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
            let asked = format!(
                "{}\ngantry() {{ [[ $* == 'network list -q' ]] && echo lan wan; }}\nCOMP_WORDS=({}) COMP_CWORD={}\n\
                 _gantry; echo \"${{COMPREPLY[*]}}\"",
                script(Shell::Bash),
                quoted.join(" "),
                words.len() - 1
            );
            let output = std::process::Command::new("bash").args(["-c", &asked]).output().unwrap();
            assert!(output.stderr.is_empty(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        for (words, want) in [
            ("gantry|net", "network"),
            ("gantry|network|", "list inspect reload"),
            ("gantry|image|l", "list"),
            ("gantry|network|inspect|w", "wan"),
            ("gantry|run|--net|=", "none host all lan wan"),
            ("gantry|run|--net|=|l", "lan"),
            ("gantry|run-prepared|--network|h", "host"),
            ("gantry|run|--dns-s", "--dns-search"),
        ] {
            assert_eq!(completed(words), want, "{words}");
        }
    }

    #[test]
    fn bash_accepts_its_script() {
        let mut bash =
            std::process::Command::new("bash").arg("-n").stdin(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut bash.stdin.take().unwrap(), script(Shell::Bash).as_bytes()).unwrap();
        assert!(bash.wait().unwrap().success());
    }
}
