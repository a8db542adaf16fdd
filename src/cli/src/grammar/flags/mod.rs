//! The flags of `run` and `prepare`: names, values, effects, and their clap description.

mod app;
mod health;
mod pod;
mod pod_limits;
mod privileges;
mod resources;
mod restart;
mod schedule;
mod systemd;

use super::Verb;
use super::draft::{Bind, Draft};
use super::values::ValueError;

/// Whether a flag takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    /// No, but `--flag=false` is accepted.
    Switch,
    /// No, and `--flag=false` is its use, which the help shows.
    OnByDefault,
    /// Yes: `--flag=value` or `--flag value`.
    Value,
    /// Optionally, as `--flag=value`.
    Optional,
}

/// What a flag applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The pod.
    Pod,
    /// The app of the image before it; before the first image, every app.
    App,
}

type Setter = fn(&mut Draft<'_>, &str) -> Result<(), ValueError>;

/// A flag.
pub(crate) struct Flag {
    /// Its name without dashes, then its aliases.
    names: &'static [&'static str],
    pub(super) short: Option<char>,
    pub(super) arity: Arity,
    pub(super) value: &'static str,
    pub(super) scope: Scope,
    /// Whether a pod manifest has this setting, so that the flag cannot be combined with one.
    pub(super) in_manifest: bool,
    /// The commands that have it.
    verbs: &'static [Verb],
    /// Whether a pod file may have it: false for what its service has, and what needs a caller.
    pub(crate) in_pod_file: bool,
    help: &'static str,
    pub(super) set: Setter,
}

impl Flag {
    /// Whether it is a flag of this command.
    pub(super) fn applies_to(&self, verb: Verb) -> bool {
        self.verbs.contains(&verb)
    }

    pub(super) fn has_long(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Whether it is a flag of the pod, and not of an app.
    pub(crate) fn is_of_pod(&self) -> bool {
        self.scope == Scope::Pod
    }

    /// Whether it takes no value, or a boolean one.
    pub(crate) fn is_switch(&self) -> bool {
        matches!(self.arity, Arity::Switch | Arity::OnByDefault)
    }

    /// Its name and aliases.
    pub(crate) fn longs(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.iter().copied()
    }

    /// Its name.
    pub(crate) fn long(&self) -> &'static str {
        self.names[0]
    }
}

const fn switch(scope: Scope, names: &'static [&'static str], help: &'static str, set: Setter) -> Flag {
    Flag { arity: Arity::Switch, ..valued(scope, names, "", help, set) }
}

const fn valued(
    scope: Scope,
    names: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    set: Setter,
) -> Flag {
    let verbs = match scope {
        Scope::Pod => OF_POD,
        Scope::App => OF_APP,
    };
    let (arity, short, in_manifest, in_pod_file) = (Arity::Value, None, false, true);
    Flag { names, short, arity, value, scope, in_manifest, verbs, in_pod_file, help, set }
}

/// The commands that have the flags of a pod, unless a flag says otherwise ([`Flag::of`]).
const OF_POD: &[Verb] = &[Run, Prepare, Sandbox, Schedule];
/// The commands that have the flags of an app.
const OF_APP: &[Verb] = &[Run, Prepare, AddApp, Schedule];
const OF_ALL: &[Verb] = &[Run, Prepare, Sandbox, AddApp, Schedule];
/// How images are fetched. The images of a schedule are fetched by gantryd if the store lacks them.
const OF_FETCH: &[Verb] = &[Run, Prepare, Sandbox, AddApp];
/// What a new pod has, and the pods of a schedule have not.
const OF_NEW_POD: &[Verb] = &[Run, Prepare, Sandbox];
/// Pods with an interactive app.
const OF_INTERACTIVE: &[Verb] = &[Run, Prepare, AddApp];

impl Flag {
    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    /// Sets the commands that have it.
    const fn of(self, verbs: &'static [Verb]) -> Self {
        Self { verbs, ..self }
    }

    const fn not_in_pod_file(self) -> Self {
        Self { in_pod_file: false, ..self }
    }

    /// Marks a setting that a pod manifest has, too.
    const fn in_manifest(self) -> Self {
        Self { in_manifest: true, ..self }
    }

    /// Marks a switch that is on unless it is `--flag=false`.
    const fn on_by_default(self) -> Self {
        Self { arity: Arity::OnByDefault, value: "BOOL", ..self }
    }

    const fn optional(self) -> Self {
        Self { arity: Arity::Optional, ..self }
    }
}

use Scope::Pod;
use Verb::{AddApp, Prepare, Run, Sandbox, Schedule};

/// The flags, by file.
static GROUPS: &[&[Flag]] = &[
    pod::FLAGS,
    pod_limits::FLAGS,
    app::FLAGS,
    resources::FLAGS,
    restart::FLAGS,
    privileges::FLAGS,
    systemd::FLAGS,
    health::FLAGS,
    schedule::FLAGS,
];

/// Every flag of `run`, `prepare`, `app sandbox`, `app add` and `schedule enable`.
pub(crate) fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().copied().flatten()
}

fn push_bind(draft: &mut Draft<'_>, bind: Bind) {
    draft.app().binds.push(bind);
}

/// The heading of the flags of the pod in the help.
pub(crate) const POD_FLAGS: &str = "Flags of the pod";
/// The heading of the flags of apps in the help.
pub(crate) const APP_FLAGS: &str = "Flags of an app";

impl Flag {
    /// The flag as clap describes it.
    fn to_arg(&self) -> clap::Arg {
        let arg = clap::Arg::new(self.long())
            .long(self.long())
            .visible_aliases(self.longs().skip(1))
            .help(self.help)
            .help_heading(if self.scope == Pod { POD_FLAGS } else { APP_FLAGS });
        let arg = match self.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        match self.arity {
            Arity::Switch => arg.action(clap::ArgAction::SetTrue),
            Arity::Value => arg.action(clap::ArgAction::Append).value_name(self.value),
            Arity::OnByDefault | Arity::Optional => {
                arg.action(clap::ArgAction::Append).value_name(self.value).num_args(0..=1).require_equals(true)
            }
        }
    }
}

/// Adds the flags and the texts of a command with a parser of its own to its description, from which the help, the
/// completions and the manual page are made. clap does not parse these commands: see [`super`].
pub(crate) fn describe(command: clap::Command, verb: Verb) -> clap::Command {
    let flags = all().filter(|flag| flag.applies_to(verb));
    let name = verb.as_str();
    let (usage, notes) = match verb {
        Verb::Run | Verb::Prepare => (
            format!(
                "gantry {name} [flags] IMAGE [COMMAND ARG…]\n       \
                 gantry {name} [flags] IMAGE [app flags] [-- ARG… [---]] [IMAGE …]"
            ),
            RUN_NOTES,
        ),
        Verb::Schedule => (
            format!("gantry {name} NAME [flags] IMAGE [-- ARG…]"),
            "Without a timer, the pod runs until the schedule is disabled: its apps are started again when they end, and \
             gantryd starts the pod again when it is lost, removed, or the host was restarted. With a timer, gantryd \
             starts a pod at each time; one run that was missed while gantryd was down is caught up. The last three pods \
             that have ended are kept for their logs.\n\n\
             Enabling a schedule again with the same content changes nothing. Other content replaces its pods.",
        ),
        Verb::Sandbox => (
            format!("gantry {name} [flags]"),
            "The pod runs until 'gantry stop' stops it, also while it has no apps and when one of its apps fails.",
        ),
        Verb::AddApp => (
            format!(
                "gantry {name} [flags] POD IMAGE [COMMAND ARG…]\n       gantry {name} [flags] POD IMAGE [flags] -- ARG…"
            ),
            "Without --start, the app is created and not started: 'gantry app start POD/NAME' starts it. It may mount \
             volumes that the pod was created with, and brings along those of its own flags.\n\n\
             Exit codes: 126, 127: the command cannot be executed, or was not found in the image; 125: gantry failed.",
        ),
    };
    let command = command.override_usage(usage).args(flags.map(Flag::to_arg));
    let command = match verb {
        // Its apps are added later.
        Verb::Sandbox => command.mut_arg("privileged", |arg| arg.help("Allow apps with --privileged")),
        _ => command,
    };
    command
        .disable_help_flag(true)
        .arg(
            clap::Arg::new("help")
                .short('h')
                .long("help")
                .action(clap::ArgAction::HelpShort)
                .help("Print help")
                .help_heading(crate::globals::HEADING),
        )
        .next_line_help(true)
        .after_help(notes)
}

const RUN_NOTES: &str = "Flags of an app apply to the image before them; flags before the first image apply to every app. '--' begins \
             the arguments of an app, '---' ends them so that another image can follow.\n\n\
             Without '--', a word after the first image is the command of its app, unless the store has an image of this \
             name, or the word has a registry, tag or digest. With '--' anywhere later on the line, every word before it \
             is an image or a flag: a command with '--' among its arguments needs another '--' directly after the image \
             and its flags, as in IMAGE -- sh -c 'echo $1' -- x.\n\n\
             Exit codes: that of the first app that failed, else 0; 125: gantry failed; 126, 127: the command could not be \
             executed, or was not found; 128+n: the app was killed by signal n.";
