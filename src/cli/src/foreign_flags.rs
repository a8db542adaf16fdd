//! Hints for flags of docker and podman that a command lacks: how gantry writes the same.

/// How to write an unknown flag of the command `words[0]`; `flag` is the one that is unknown, as in `-v` of `-fv`.
pub(crate) fn hint(words: &[String], flag: &str) -> Option<String> {
    let name = flag.split('=').next().unwrap_or(flag);
    match (words.first()?.as_str(), name) {
        ("kill", flag) if !flag.starts_with("--") => signal(words).map(|signal| format!("write --signal={signal}")),
        ("rm", "-v" | "--volumes") => Some("leave it out: anonymous volumes are removed with the pod".to_owned()),
        ("inspect", "-f" | "--format") => {
            Some("select fields of the JSON with jq, or use 'gantry list --format' with --filter=id=POD".to_owned())
        }
        ("update", _) => {
            let limit = name.strip_prefix("--pod-").filter(|limit| has_flag("update", limit))?;
            Some(format!("write --pod --{limit}={}", value(words, name)))
        }
        _ => None,
    }
}

/// Whether the command has a flag of this long name.
fn has_flag(command: &str, long: &str) -> bool {
    let root = crate::cli::command();
    let flags = root.find_subcommand(command).into_iter().flat_map(clap::Command::get_arguments);
    flags.into_iter().any(|flag| flag.get_long() == Some(long))
}

/// The signal of a word as kill(1) takes it: `-9`, `-HUP`.
fn signal(words: &[String]) -> Option<&str> {
    words.iter().filter_map(|word| word.strip_prefix('-')).find(|word| gantry_model::signal::parse(word).is_ok())
}

/// The value that a flag has in the words.
fn value<'a>(words: &'a [String], flag: &str) -> &'a str {
    let Some(at) = words.iter().position(|word| word.split('=').next() == Some(flag)) else { return "VALUE" };
    let attached = words[at].split_once('=').map(|(_, value)| value);
    attached.or_else(|| words.get(at + 1).map(String::as_str)).unwrap_or("VALUE")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_docker_have_hints() {
        for (line, flag, want) in [
            ("kill -9 web", "-9", "write --signal=9"),
            ("kill -HUP web", "-H", "write --signal=HUP"),
            ("rm -fv web", "-v", "leave it out"),
            ("inspect -f {{.State}} web", "-f", "jq"),
            ("inspect --format={{.State}} web", "--format", "jq"),
            ("update --pod-memory 32m web", "--pod-memory", "write --pod --memory=32m"),
            ("update --pod-memory=32m web", "--pod-memory", "write --pod --memory=32m"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let hint = hint(&words, flag).unwrap_or_default();
            assert!(hint.contains(want), "{line}: {hint}");
        }
        for (line, flag) in [
            ("kill --sginal web", "--sginal"),
            ("kill --sginal -9 web", "--sginal"),
            ("update --pod-foo web", "--pod-foo"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(hint(&words, flag), None, "{line}");
        }
    }
}
