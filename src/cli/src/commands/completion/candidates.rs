//! Candidates for the last word of a command line.

use super::host_names::{HostNames, Pod};
use super::values::values;
use crate::command_words;
use crate::commands::cp::Location;
use crate::globals::first_argument;
use gantry_model::PhaseName;

/// A word, and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) value: String,
    pub(super) about: String,
}

impl Candidate {
    pub(super) fn word(value: impl Into<String>) -> Self {
        Self { value: value.into(), about: String::new() }
    }
}

/// The candidates for a position.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) candidates: Vec<Candidate>,
    /// Whether file names are candidates, too.
    pub(super) files: bool,
}

impl Candidates {
    pub(super) fn from_words(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { candidates: words.into_iter().map(Candidate::word).collect(), files: false }
    }

    pub(super) fn files() -> Self {
        Self { candidates: Vec::new(), files: true }
    }

    /// Keeps the candidates with the typed prefix, without duplicates.
    fn starting_with(mut self, typed: &str) -> Self {
        self.candidates.retain(|candidate| candidate.value.starts_with(typed));
        let mut seen = std::collections::BTreeSet::new();
        self.candidates.retain(|candidate| seen.insert(candidate.value.clone()));
        self
    }

    /// Puts a prefix in front of each candidate.
    fn with_prefix(mut self, before: &str) -> Self {
        for candidate in &mut self.candidates {
            candidate.value.insert_str(0, before);
        }
        self
    }
}

/// A flag as completion sees it.
struct Flag {
    names: Vec<String>,
    short: Option<char>,
    takes_value: bool,
    /// Whether the value can only follow `=`.
    requires_equals: bool,
    hint: String,
    /// Values that clap knows.
    possible: Vec<String>,
    about: String,
}

/// The words for the last of `words`, which follow the program's name.
pub(super) fn complete(words: &[String], names: &dyn HostNames) -> Candidates {
    let Some((typed, before)) = words.split_last() else { return Candidates::default() };
    let mut root = crate::cli::full_command();
    root.build();
    let mut parent = root;
    let mut path: Vec<String> = Vec::new();
    let mut rest = before;
    // Descend into subcommands.
    while let Some(at) = first_argument(rest) {
        let group = path.last().map_or("", String::as_str);
        let Ok(name) = command_words::complete(&parent, group, &rest[at]) else { return Candidates::default() };
        let Some(command) = parent.find_subcommand(&name).cloned() else { return Candidates::default() };
        path.push(name);
        rest = &rest[at + 1..];
        parent = command;
        if !parent.has_subcommands() {
            break;
        }
    }
    if parent.has_subcommands() {
        let flags = flags(&parent);
        return match flag_value(&path.join(" "), &flags, rest, typed, names) {
            Some(answer) => answer,
            None if typed.starts_with('-') => flag_names(&flags, |_| false).starting_with(typed),
            None => commands(&parent).starting_with(typed),
        };
    }
    complete_command(&path.join(" "), &parent, rest, typed, names)
}

fn complete_command(
    name: &str,
    command: &clap::Command,
    before: &[String],
    typed: &str,
    names: &dyn HostNames,
) -> Candidates {
    let flags = flags(command);
    if before.iter().any(|word| word == "--") {
        // Arguments of an app cannot be completed.
        return Candidates::files();
    }
    if let Some(answer) = flag_value(name, &flags, before, typed, names) {
        return answer;
    }
    if typed.starts_with('-') {
        let has_values = |flag: &Flag| !value_of(name, flag, "", names).candidates.is_empty();
        return flag_names(&flags, |flag| flag.requires_equals && has_values(flag)).starting_with(typed);
    }
    positional(name, &words_of(&flags, before), typed, names).starting_with(typed)
}

/// The candidates if the value of a flag of the command is typed, after `=` or as a word of its own.
fn flag_value(
    command: &str,
    flags: &[Flag],
    before: &[String],
    typed: &str,
    names: &dyn HostNames,
) -> Option<Candidates> {
    if let Some((flag, value)) = typed.strip_prefix("--").and_then(|word| word.split_once('=')) {
        let known = flags.iter().find(|known| known.names.iter().any(|name| name == flag));
        let answer = known.map(|known| value_of(command, known, value, names).with_prefix(&format!("--{flag}=")));
        return Some(answer.unwrap_or_default());
    }
    let flag = before.last().and_then(|word| flags.iter().find(|flag| takes_next_word(flag, word)))?;
    Some(value_of(command, flag, typed, names))
}

/// The values of a flag that begin as typed; of a list, those of its last element.
fn value_of(command: &str, flag: &Flag, typed: &str, names: &dyn HostNames) -> Candidates {
    let main = flag.names.first().map_or("", String::as_str);
    let answer = match flag.possible.is_empty() {
        true => values(command, main, &flag.hint, typed, names),
        false => Candidates::from_words(flag.possible.clone()),
    };
    match typed.rsplit_once(',') {
        Some((listed, last)) => answer.starting_with(last).with_prefix(&format!("{listed},")),
        None => answer.starting_with(typed),
    }
}

/// Whether the word is this flag, and its value is the next word.
fn takes_next_word(flag: &Flag, word: &str) -> bool {
    let named = match word.strip_prefix("--") {
        Some(name) => flag.names.iter().any(|known| known == name),
        // In a cluster such as -it the last one takes the value.
        None => word
            .strip_prefix('-')
            .is_some_and(|cluster| cluster.chars().next_back() == flag.short && flag.short.is_some()),
    };
    named && flag.takes_value && !flag.requires_equals
}

/// The words that are neither flags nor values of flags.
fn words_of<'a>(flags: &[Flag], before: &'a [String]) -> Vec<&'a str> {
    let mut words = Vec::new();
    let mut is_value = false;
    for word in before {
        if std::mem::take(&mut is_value) {
            continue;
        }
        if word.starts_with('-') && word.len() > 1 {
            is_value = flags.iter().any(|flag| takes_next_word(flag, word));
        } else {
            words.push(word.as_str());
        }
    }
    words
}

/// Candidates for a positional argument of the command.
fn positional(name: &str, words: &[&str], typed: &str, names: &dyn HostNames) -> Candidates {
    let is = |phases: &'static [PhaseName]| move |pod: &Pod| phases.contains(&pod.phase);
    match (name, words.len()) {
        ("run" | "prepare" | "fetch", _) => Candidates { files: true, ..Candidates::from_words(names.images()) },
        ("exec", 1..) | ("generate units", _) => Candidates::files(),
        ("cp", 0 | 1) => copy_sides(typed, names),
        (
            "restart" | "pause" | "unpause" | "update" | "diff" | "app start" | "app stop" | "app rm" | "app status",
            _,
        ) => apps(names),
        ("app add", 1) => Candidates { files: true, ..Candidates::from_words(names.images()) },
        ("app list" | "rename" | "generate systemd", 0) => pods(names, |_| true),
        ("app add", 0) | ("stop" | "kill" | "stats", _) | ("exec" | "attach" | "port" | "top", 0) => {
            pods(names, is(&[PhaseName::Running]))
        }
        ("start", _) => pods(names, is(&[PhaseName::Exited, PhaseName::Prepared])),
        ("run-prepared", 0) => pods(names, is(&[PhaseName::Prepared])),
        ("status" | "wait" | "inspect" | "cat-manifest" | "rm", _) | ("logs", 0) => pods(names, |_| true),
        ("completion", 0) => Candidates::from_words(["bash", "zsh", "fish"]),
        ("volume inspect" | "volume rm", _) => Candidates::from_words(names.volumes()),
        ("schedule enable", 0) | ("schedule disable" | "schedule destroy" | "schedule cat", _) => schedules(names),
        ("schedule enable", 1) => Candidates { files: true, ..Candidates::from_words(names.images()) },
        ("network inspect", _) => Candidates::from_words(names.networks()),
        ("image fetch", _) => Candidates { files: true, ..Candidates::from_words(names.images()) },
        ("rmi" | "save", _) => Candidates::from_words(names.images()),
        (name, _) if name.starts_with("image ") && !matches!(name, "image list" | "image gc" | "image load") => {
            Candidates::from_words(names.images())
        }
        ("help", 0) => commands(&crate::cli::names()),
        _ => Candidates::default(),
    }
}

/// `POD:` and the files of this host; none after `POD:`, because files of apps are not looked up.
fn copy_sides(typed: &str, names: &dyn HostNames) -> Candidates {
    if matches!(Location::parse(typed), Location::App { .. }) {
        return Candidates::default();
    }
    let mut sides = Candidates { files: true, ..pods(names, |_| true) };
    sides.candidates.iter_mut().for_each(|side| side.value.push(':'));
    sides
}

/// Pods by their names and the beginnings of their ids, and by the names of their apps where only one pod has them.
fn pods(names: &dyn HostNames, fits: impl Fn(&Pod) -> bool) -> Candidates {
    let pods: Vec<Pod> = names.pods().into_iter().filter(|pod| fits(pod)).collect();
    let mut candidates = Vec::new();
    for pod in &pods {
        let about = format!("{} of {}, {}", pod.apps.join(","), pod.image, pod.phase);
        if let Some(name) = &pod.name {
            candidates.push(Candidate { value: name.clone(), about: about.clone() });
        }
        for app in &pod.apps {
            if pods.iter().filter(|other| other.apps.contains(app)).count() == 1 {
                candidates.push(Candidate { value: app.clone(), about: about.clone() });
            }
        }
        candidates.push(Candidate { value: pod.short_id().to_owned(), about });
    }
    Candidates { candidates, files: false }
}

/// The names of schedules that are one word: the scripts insert candidates without quoting them.
fn schedules(names: &dyn HostNames) -> Candidates {
    let is_word = |name: &String| name.bytes().all(|c| c.is_ascii_alphanumeric() || b"._@%+/:-".contains(&c));
    Candidates::from_words(names.schedules().into_iter().filter(is_word))
}

/// The apps of running pods as `POD/APP`.
fn apps(names: &dyn HostNames) -> Candidates {
    let running = names.pods().into_iter().filter(|pod| pod.phase == PhaseName::Running);
    let candidates = running.flat_map(|pod| {
        let id = pod.short_id().to_owned();
        let about = format!("app of {id}, {}", pod.image);
        pod.apps.into_iter().map(move |app| Candidate { value: format!("{id}/{app}"), about: about.clone() })
    });
    Candidates { candidates: candidates.collect(), files: false }
}

fn commands(parent: &clap::Command) -> Candidates {
    // A group has 'help', too; '--help' is among its flags.
    let is_group = parent.get_name() != "gantry";
    let shown = parent.get_subcommands().filter(|command| !command.is_hide_set());
    let shown = shown.filter(|command| !is_group || command.get_name() != "help");
    let named = shown.flat_map(|command| {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let names = std::iter::once(command.get_name()).chain(command.get_visible_aliases());
        names.map(|name| Candidate { value: name.to_owned(), about: about.clone() }).collect::<Vec<_>>()
    });
    Candidates { candidates: named.collect(), files: false }
}

/// The names of the flags; those for which `with_equals` holds with the `=` that precedes their value.
fn flag_names(flags: &[Flag], with_equals: impl Fn(&Flag) -> bool) -> Candidates {
    let named = flags.iter().flat_map(|flag| {
        let sign = if with_equals(flag) { "=" } else { "" };
        flag.names.iter().map(move |name| Candidate { value: format!("--{name}{sign}"), about: flag.about.clone() })
    });
    Candidates { candidates: named.collect(), files: false }
}

fn flags(command: &clap::Command) -> Vec<Flag> {
    let arguments = command.get_arguments().filter(|argument| !argument.is_hide_set() && !argument.is_positional());
    let flag = |argument: &clap::Arg| Flag {
        names: names(argument),
        short: argument.get_short(),
        takes_value: argument.get_action().takes_values(),
        requires_equals: argument.is_require_equals_set(),
        hint: argument.get_value_names().and_then(<[_]>::first).map(ToString::to_string).unwrap_or_default(),
        possible: argument
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set() && argument.get_action().takes_values())
            .map(|value| value.get_name().to_owned())
            .collect(),
        about: argument.get_help().map(ToString::to_string).unwrap_or_default(),
    };
    arguments.map(flag).collect()
}

fn names(argument: &clap::Arg) -> Vec<String> {
    argument
        .get_long()
        .into_iter()
        .chain(argument.get_visible_aliases().unwrap_or_default())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Here;

    impl HostNames for Here {
        fn pods(&self) -> Vec<Pod> {
            let pod = |id: &str, phase, apps: &[&str]| Pod {
                id: format!("{id}-0000"),
                name: (id == "bbbbbbbb").then(|| "batch".to_owned()),
                phase,
                apps: apps.iter().map(|&app| app.to_owned()).collect(),
                image: "nginx".to_owned(),
            };
            vec![
                pod("aaaaaaaa", PhaseName::Running, &["web", "log"]),
                pod("bbbbbbbb", PhaseName::Prepared, &["job"]),
                pod("cccccccc", PhaseName::Exited, &["web"]),
            ]
        }

        fn images(&self) -> Vec<String> {
            ["docker.io/library/nginx:1", "127.0.0.1:5000/fixture:1"].map(str::to_owned).into()
        }

        fn networks(&self) -> Vec<String> {
            ["default", "lan"].map(str::to_owned).into()
        }

        fn volumes(&self) -> Vec<String> {
            vec!["data".to_owned()]
        }

        fn schedules(&self) -> Vec<String> {
            ["backup", "nightly", "/bin/sleep 9"].map(str::to_owned).into()
        }
    }

    fn completed(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let answer = complete(&words, &Here);
        let mut words: Vec<String> = answer.candidates.into_iter().map(|candidate| candidate.value).collect();
        if answer.files {
            words.push(":files".to_owned());
        }
        words.join(" ")
    }

    /// The order is that of the help and of the list; here it does not matter.
    #[track_caller]
    fn assert_completed(rows: &[(&str, &str)]) {
        let sorted = |words: &str| {
            let mut words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            words.sort_unstable();
            words
        };
        for (line, want) in rows {
            assert_eq!(sorted(&completed(line)), sorted(want), "{line:?}");
        }
    }

    #[test]
    fn candidates_depend_on_the_position() {
        assert_completed(&[
            ("rename b", "batch bbbbbbbb"),
            ("net", "network"),
            ("p", "pause pki prepare prune pull ps port"),
            ("network ", "list ls inspect reload"),
            ("--dir /x image l", "list load ls"),
            ("network inspect l", "lan"),
            ("volume rm ", "data"),
            ("schedule rm ", "backup nightly"),
            ("schedule cat backup n", "nightly"),
            ("schedule disable b", "backup"),
            ("schedule enable n", "nightly"),
            ("schedule enable --every 1h n", "nightly"),
            ("schedule enable nightly 127", "127.0.0.1:5000/fixture:1 :files"),
            ("run ", "docker.io/library/nginx:1 127.0.0.1:5000/fixture:1 :files"),
            ("pull doc", "docker.io/library/nginx:1 :files"),
            ("rmi 127", "127.0.0.1:5000/fixture:1"),
            ("run --dns-s", "--dns-search"),
            ("run x -- ", ":files"),
            ("stop ", "web log aaaaaaaa"),
            ("exec w", "web"),
            ("enter -it ", "web log aaaaaaaa"),
            ("exec web ", ":files"),
            ("run-prepared ", "batch job bbbbbbbb"),
            ("update w", ""),
            ("update a", "aaaaaaaa/web aaaaaaaa/log"),
            ("update --pod a", "aaaaaaaa/web aaaaaaaa/log"),
            ("generate systemd b", "batch bbbbbbbb"),
            ("generate units ", ":files"),
            ("cp ba", "batch: :files"),
            ("cp ./x b", "batch: bbbbbbbb: :files"),
            ("cp batch:/e", ""),
            ("cp ./a:b", ":files"),
            ("image rm 127", "127.0.0.1:5000/fixture:1"),
            ("image tag 127", "127.0.0.1:5000/fixture:1"),
            ("image save 127", "127.0.0.1:5000/fixture:1"),
            ("save 127", "127.0.0.1:5000/fixture:1"),
            ("image load ", ""),
            ("image pull 127", "127.0.0.1:5000/fixture:1 :files"),
            ("help ima", "image"),
            ("status ", "log aaaaaaaa batch job bbbbbbbb cccccccc"),
            ("completion ", "bash zsh fish"),
            ("list ", ""),
            ("nonsense ", ""),
        ]);
    }

    #[test]
    fn candidates_are_values_of_the_flag() {
        assert_completed(&[
            ("run --net=", "--net=none --net=host --net=all --net=default --net=lan"),
            ("run --network l", "lan"),
            ("run --net=lan,d", "--net=lan,default"),
            ("run --pull-policy=up", "--pull-policy=update"),
            ("exec --app ", "web log job"),
            ("image save -o ", ":files"),
            ("image load -i ", ":files"),
            ("run --restart=", "--restart=no --restart=on-failure --restart=always"),
            ("run --restart o", "on-failure"),
            ("--progress p", "plain"),
            ("--log-format=", "--log-format=text --log-format=json"),
            ("--log-level w", "warning"),
            ("--dir ", ":files"),
            ("image --progress=p", "--progress=plain"),
            ("list --log-level=o", "--log-level=off"),
            ("kill -s SIGK", "SIGKILL"),
            (
                "kill --signal=SIGT",
                "--signal=SIGTRAP --signal=SIGTERM --signal=SIGTSTP --signal=SIGTTIN --signal=SIGTTOU",
            ),
            ("ps -o js", "json json-lines"),
            ("ps --phase=exited,ru", "--phase=exited,running"),
            ("list --filter st", "state="),
            ("events --filter type=pod-e", "type=pod-exited"),
            ("list --filter state=p", "state=preparing state=prepared state=paused"),
            ("run --cap-add NET_A", "NET_ADMIN"),
            ("events --filter=app=j", "--filter=app=job"),
            ("--insecure-options all-f", "all-fetch"),
            ("--insecure-options=http,all-f", "--insecure-options=http,all-fetch"),
            ("list --insecure-options all-f", "all-fetch"),
        ]);
    }

    #[test]
    fn candidates_describe_pods() {
        let answer = complete(&["stop".to_owned(), "a".to_owned()], &Here);
        assert_eq!(answer.candidates[0].about, "web,log of nginx, running");
    }

    #[test]
    fn every_command_and_flag_has_a_description() {
        let root = complete(&[String::new()], &Here);
        assert!(root.candidates.iter().all(|candidate| !candidate.about.is_empty()), "{root:?}");
        let mut command = crate::cli::full_command();
        command.build();
        check_flags(&command, &mut Vec::new());
    }

    /// Every long name of every flag that the help shows is offered, in this command and those below it.
    fn check_flags(command: &clap::Command, path: &mut Vec<String>) {
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            path.push(below.get_name().to_owned());
            check_flags(below, path);
            path.pop();
        }
        let words: Vec<String> = path.iter().cloned().chain(["--".to_owned()]).collect();
        let offered = complete(&words, &Here).candidates;
        for flag in command.get_arguments().filter(|flag| !flag.is_hide_set() && !flag.is_positional()) {
            for name in names(flag) {
                let word = format!("--{name}");
                let candidate = offered.iter().find(|candidate| candidate.value.trim_end_matches('=') == word);
                let about = candidate.map(|candidate| candidate.about.as_str());
                assert!(about.is_some_and(|about| !about.is_empty()), "{words:?}: {word}: {about:?}");
            }
        }
    }
}
