//! `gantry completion`: scripts for shells. They call `gantry __complete WORD…`, which prints the candidates.

mod candidates;
mod host_names;
mod values;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::Failure;
use crate::globals::Globals;
use crate::render::{escape, json};
use std::io::Write as _;

/// Arguments of `completion`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completion {
    /// Shell
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

/// The command that the scripts call.
pub(crate) const COMPLETE_COMMAND: &str = "__complete";

/// A line of its output: file names are candidates, too.
const FILES_MARKER: &str = ":files";

/// Prints the script.
impl RunCommand for Completion {
    fn run(&self, _: &Context) -> Result<ExitStatus, Failure> {
        let script = match self.shell {
            Shell::Bash => BASH,
            Shell::Zsh => ZSH,
            Shell::Fish => FISH,
        };
        json::to_stdout(|out| out.write_all(script.as_bytes()))?;
        Ok(ExitStatus::OK)
    }
}

/// Prints the candidates for the last word, one per line, each followed by a tab and its description.
pub(crate) fn complete(words: &[String]) -> Result<ExitStatus, Failure> {
    let context = Context::new(globals(words), COMPLETE_COMMAND);
    let answer = candidates::complete(words, &host_names::StoreNames::new(&context));
    json::to_stdout(|out| {
        for candidate in &answer.candidates {
            let (value, about) = (escape::text(&candidate.value), escape::text(&candidate.about));
            // Omit words that would have to be escaped: the escaped word names something else.
            if *value == *candidate.value {
                writeln!(out, "{value}\t{about}")?;
            }
        }
        if answer.files { writeln!(out, "{FILES_MARKER}") } else { Ok(()) }
    })?;
    Ok(ExitStatus::OK)
}

/// The data directory and the configuration file of the command line.
fn globals(words: &[String]) -> Globals {
    let value = |flag: &str| {
        words.iter().enumerate().find_map(|(i, word)| match word.strip_prefix(flag)? {
            "" => words.get(i + 1).map(Into::into),
            rest => rest.strip_prefix('=').map(Into::into),
        })
    };
    Globals { dir: value("--dir"), config: value("--config"), ..Globals::default() }
}

const BASH: &str = r#"# completion of gantry for bash: source it, or install it as bash-completion/completions/gantry
_gantry() {
  local line="${COMP_LINE:0:COMP_POINT}" last="${COMP_WORDS[COMP_CWORD]}" value
  local -a words
  read -r -a words <<<"$line"
  [[ $line == *[[:space:]] ]] && words+=('')
  # bash splits words at '=' and ':'. The part before is on the line already and must not be completed again.
  [[ $last == [=:] ]] && last=''
  local before="${words[${#words[@]}-1]}"
  before="${before%"$last"}"
  COMPREPLY=()
  while IFS=$'\t' read -r value _; do
    if [[ $value == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r value; do COMPREPLY+=("$value"); done < <(compgen -f -- "$last")
    else
      COMPREPLY+=("${value#"$before"}")
    fi
  done < <(gantry __complete "${words[@]:1}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=:] ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -F _gantry gantry
"#;

const ZSH: &str = r#"#compdef gantry
# completion of gantry for zsh: install it as _gantry in a directory of $fpath, or source it after compinit
_gantry() {
  local line value files=0
  local -a open closed
  for line in "${(@f)$(gantry __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    [[ -z $line ]] && continue
    if [[ $line == :files ]]; then files=1; continue; fi
    value="${line%%$'\t'*}"
    line="${value//:/\\:}:${line#*$'\t'}"
    if [[ $value == *[=:] ]]; then open+=("$line"); else closed+=("$line"); fi
  done
  (( $#closed )) && _describe -V gantry closed
  (( $#open )) && _describe -V gantry open -S ''
  (( files )) && _files
  return 0
}
if [[ $funcstack[1] == _gantry ]]; then _gantry "$@"; else compdef _gantry gantry; fi
"#;

const FISH: &str = r#"# completion of gantry for fish: install it as completions/gantry.fish, or source it
function __gantry_ask
    set -l words (commandline -opc) (commandline -ct)
    gantry __complete $words[2..-1] 2>/dev/null
end
complete -c gantry -f -a '(__gantry_ask | string match -v :files)'
complete -c gantry -n '__gantry_ask | string match -q :files' -F
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that the bash script offers for a line, with a gantry that has networks and accepts files.
    fn completed(line: &str) -> String {
        let words: Vec<String> = line.replace('=', " = ").split(' ').map(|word| format!("'{word}'")).collect();
        let asked = format!(
            "{BASH}\ngantry() {{ [[ $1 == __complete ]] || return; echo \"$*\" >&2; case \"${{@: -1}}\" in \
             --net=*) printf '%s\\tabout\\n' --net=lan --net=wan ;; /*) echo :files ;; *) printf 'list\\tx y\\nlabel=\\tz\\n' ;; esac; }}\n\
             COMP_LINE='{line}' COMP_POINT={} COMP_WORDS=({}) COMP_CWORD={}\n_gantry; echo \"${{COMPREPLY[*]}}\"",
            line.len(),
            words.join(" "),
            words.len() - 1
        );
        let output = std::process::Command::new("bash").args(["-c", &asked]).output().unwrap();
        assert!(output.stderr.is_empty(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    #[test]
    fn bash_script_offers_candidates() {
        for (line, want) in [
            ("gantry l", "list label="),
            ("gantry run --net=", "lan wan"),
            ("gantry run --net=l", "lan wan"),
            ("gantry fetch /etc/hostnam", "/etc/hostname"),
        ] {
            assert_eq!(completed(line), want, "{line}");
        }
    }

    #[test]
    fn global_flags_of_the_line_are_parsed() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let found = globals(&words("--dir /x list --config=/y --debug"));
        assert_eq!((found.dir, found.config), (Some("/x".into()), Some("/y".into())));
        assert_eq!(globals(&words("list --directory --dir")).dir, None);
    }
}
