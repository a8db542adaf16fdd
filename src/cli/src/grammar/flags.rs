//! The flags of `run` and `prepare`: names, values, effects, and their clap description.

use super::draft::{Bind, Draft};
use super::network;
use super::values::{self, ValueError};
use super::{Pull, Verb};

/// Whether a flag takes a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arity {
    /// No, but `--flag=false` is accepted.
    Switch,
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
    pub(super) run_only: bool,
    help: &'static str,
    pub(super) set: Setter,
}

impl Flag {
    /// Whether it is a flag of this command.
    pub(super) fn applies_to(&self, verb: Verb) -> bool {
        /// The flags of the pod that an added app has, too.
        const OF_ADDED_APP: [&str; 9] = [
            "volume",
            "platform",
            "pull-policy",
            "store-only",
            "no-store",
            "inherit-env",
            "set-env",
            "set-env-file",
            "quiet",
        ];
        /// The flags of pods with an interactive app.
        const INTERACTIVE: [&str; 3] = ["keep-stdin", "tty", "interactive"];
        match verb {
            Verb::Run => true,
            Verb::Prepare => !self.run_only,
            Verb::Sandbox => {
                self.scope == Scope::Pod
                    && (!self.run_only || self.long() == "rm")
                    && !INTERACTIVE.contains(&self.long())
            }
            Verb::AddApp => self.scope == Scope::App || OF_ADDED_APP.contains(&self.long()),
        }
    }

    pub(super) fn has_long(&self, name: &str) -> bool {
        self.names.contains(&name)
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
    Flag { names, short: None, arity: Arity::Switch, value: "", scope, in_manifest: false, run_only: false, help, set }
}

const fn valued(
    scope: Scope,
    names: &'static [&'static str],
    value: &'static str,
    help: &'static str,
    set: Setter,
) -> Flag {
    Flag { names, short: None, arity: Arity::Value, value, scope, in_manifest: false, run_only: false, help, set }
}

impl Flag {
    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }

    const fn run_only(self) -> Self {
        Self { run_only: true, ..self }
    }

    /// Marks a setting that a pod manifest has, too.
    const fn in_manifest(self) -> Self {
        Self { in_manifest: true, ..self }
    }

    const fn optional(self) -> Self {
        Self { arity: Arity::Optional, ..self }
    }
}

use Scope::{App, Pod};

/// Every flag of `run` and `prepare`.
pub(crate) static FLAGS: &[Flag] = &[
    // The pod.
    valued(Pod, &["net"], "NET,…", "Networks: none, host, all, or NAME[:KEY=VALUE[;KEY=VALUE…]]; without a value: default", |d, v| {
        d.network.net(v)
    })
    .in_manifest()
    .optional(),
    valued(Pod, &["network"], "NET,…", "Alias of --net, as in docker", |d, v| d.network.net(&values::text(v)?)).in_manifest(),
    valued(
        Pod,
        &["port", "publish"],
        "PORT",
        "Publish a port: NAME:[HOSTIP:]HOSTPORT for a port that an image declares, or \
         [HOSTIP:]HOSTPORT[-END]:PODPORT[-END][/tcp|udp|sctp]; without HOSTPORT, a free port of the host is chosen; IPv6 \
         addresses in brackets",
        |d, v| d.network.port(v),
    )
    .short('p')
    .in_manifest(),
    switch(Pod, &["publish-all"], "Publish every port that the images declare, each on a free port of the host", |d, v| {
        d.network.publish_all(values::boolean(v)?);
        Ok(())
    })
    .short('P')
    .in_manifest(),
    valued(Pod, &["dns"], "IP,…|host|none", "Name servers; host: the host's resolv.conf; none: the image's", |d, v| {
        d.network.dns(v)
    })
    .in_manifest(),
    valued(Pod, &["dns-search"], "DOMAIN", "Search domain for short names", |d, v| {
        let domain = network::domain(v)?;
        d.network.given()?.search.push(domain);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["dns-opt", "dns-option"], "OPTION", "Resolver option, such as ndots:2", |d, v| {
        let option = values::word(v)?;
        d.network.given()?.options.push(option);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["dns-domain"], "DOMAIN", "Local domain", |d, v| {
        let domain = network::domain(v)?;
        d.network.given()?.domain = Some(domain);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["hosts-entry"], "IP=NAME,…|host", "Lines of /etc/hosts; host: the host's file", |d, v| {
        d.network.hosts_entry(v)
    })
    .in_manifest(),
    valued(Pod, &["add-host"], "NAME:IP", "Add a line to /etc/hosts, as in docker", |d, v| d.network.add_host(v)).in_manifest(),
    valued(
        Pod,
        &["volume"],
        "VOLUME",
        "Define a volume: NAME,kind=host,source=/path[,readOnly=true][,recursive=false], or NAME,kind=empty[,mode=0755][,uid=0][,gid=0], \
         or NAME,kind=named[,source=VOLUME] for a named volume; \
         or /host/path:/path/in/app[:ro], VOLUME:/path/in/app[:ro] or /path/in/app to define and mount a volume",
        set_volume,
    )
    .short('v')
    .in_manifest(),
    valued(Pod, &["hostname"], "NAME", "Host name of the pod (default: gantry- and the first 8 digits of its id)", |d, v| {
        d.pod.hostname = Some(values::text(v)?);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["shm-size"], "BYTES", "Size of /dev/shm, which the apps share (default 64Mi)", |d, v| {
        d.pod.shm_size = Some(gantry_model::quantity::memory(v)?);
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["sysctl"],
        "NAME=VALUE",
        "Set a kernel setting of the pod's namespaces: net.*, fs.mqueue.*, kernel.shm*, kernel.msg*, kernel.sem",
        |d, v| {
            d.pod.sysctls.extend([gantry_model::sysctl::parse_setting(v)?]);
            Ok(())
        },
    )
    .in_manifest(),
    valued(Pod, &["pod-name"], "NAME", "Name of the pod: letters, digits, '_', '.' and '-'; no other pod may have it", |d, v| {
        d.options.pod_name = Some(v.parse()?);
        Ok(())
    }),
    switch(Pod, &["detach"], "Print the pod's id when it is ready, and exit", |d, v| {
        d.options.detach = values::boolean(v)?;
        Ok(())
    })
    .short('d')
    .run_only(),
    switch(Pod, &["rm"], "Remove the pod when it has exited", |d, v| {
        d.options.remove = values::boolean(v)?;
        Ok(())
    })
    .run_only(),
    switch(Pod, &["sig-proxy"], "Forward signals to the apps (default true)", |d, v| {
        d.options.no_sig_proxy = !values::boolean(v)?;
        Ok(())
    })
    .run_only(),
    valued(Pod, &["detach-keys"], "KEYS", "Key sequence to detach from a terminal (default ctrl-p,ctrl-q); empty: none", |d, v| {
        d.options.detach_keys = v.parse().map_err(ValueError::Invalid)?;
        Ok(())
    })
    .run_only(),
    switch(Pod, &["keep-stdin"], "Keep standard input open and forward it to the app", |d, v| {
        d.options.stdin = values::boolean(v)?;
        Ok(())
    })
    .short('i')
    .in_manifest(),
    switch(Pod, &["tty"], "Allocate a terminal for the app", |d, v| {
        d.options.terminal = values::boolean(v)?;
        Ok(())
    })
    .short('t')
    .in_manifest(),
    switch(Pod, &["interactive"], "Same as -i and -t", |d, v| {
        d.options.stdin = values::boolean(v)?;
        d.options.terminal = d.options.stdin;
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["platform"], "OS/ARCH", "Platform to select from multi-platform images, such as linux/arm64", |d, v| {
        d.options.platform = Some(v.parse().map_err(|error: gantry_engine::PlatformError| ValueError::Invalid(error.to_string()))?);
        Ok(())
    }),
    valued(Pod, &["pull-policy", "pull"], "never|new|update|newer", "When to contact the registry (default new: if the image is not in the store)", |d, v| {
        d.options.pull = Some(pull(v)?);
        Ok(())
    }),
    switch(Pod, &["store-only"], "Same as --pull-policy=never, as in rkt", |d, v| {
        d.options.pull = values::boolean(v)?.then_some(Pull::Never).or(d.options.pull);
        Ok(())
    }),
    switch(Pod, &["no-store"], "Same as --pull-policy=update, as in rkt", |d, v| {
        d.options.pull = values::boolean(v)?.then_some(Pull::Update).or(d.options.pull);
        Ok(())
    }),
    switch(Pod, &["inherit-env"], "Pass the caller's environment to the apps, except PATH, HOME, PWD and OLDPWD", |d, v| {
        d.options.inherit_env = values::boolean(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["set-env"], "NAME=VALUE", "Set an environment variable of every app", |d, v| {
        let variable = values::variable(v, d.caller.variable)?;
        d.options.set_env.extend(variable);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["set-env-file", "env-file"], "FILE", "Set environment variables of every app from a file of NAME=VALUE lines", |d, v| {
        d.options.env_files.push(values::text(v)?.into());
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["pod-manifest"], "FILE", "Read the whole pod from this file, as printed by 'gantry cat-manifest'", |d, v| {
        d.options.pod_manifest = Some(values::text(v)?.into());
        Ok(())
    }),
    valued(Pod, &["uuid-file-save", "cidfile"], "FILE", "Write the pod's id to this file as soon as it exists", |d, v| {
        d.options.uuid_file = Some(values::text(v)?.into());
        Ok(())
    }),
    valued(Pod, &["label"], "NAME=VALUE", "A free-form label of the pod", |d, v| {
        d.pod.user_labels.extend([values::pair(v)?]);
        Ok(())
    })
    .short('l')
    .in_manifest(),
    valued(Pod, &["ipc"], "private", "IPC namespace; accepted for docker, always private", |_, v| match v {
        "private" | "auto" => Ok(()),
        _ => Err(ValueError::Unsupported("every pod has its own IPC namespace")),
    }),
    switch(Pod, &["quiet"], "Suppress progress output", |d, v| {
        d.options.quiet = values::boolean(v)?;
        Ok(())
    })
    .short('q'),
    // The apps.
    valued(App, &["name"], "NAME", "Name of the app (default: the last element of the image's name)", |d, v| {
        d.app().name = Some(v.parse()?);
        Ok(())
    }),
    valued(App, &["exec", "entrypoint"], "PROGRAM", "Replace the image's entrypoint and arguments; empty: none", |d, v| {
        d.app().exec = Some(v.to_owned());
        Ok(())
    }),
    valued(App, &["user"], "USER[:GROUP]", "User and group by name or id, or the owner of an absolute path in the image", |d, v| {
        d.app().user = Some(values::text(v)?);
        Ok(())
    })
    .short('u'),
    valued(App, &["group"], "GROUP", "Group by name or id, or that of an absolute path in the image", |d, v| {
        d.app().group = Some(values::text(v)?);
        Ok(())
    }),
    valued(App, &["supplementary-gids", "group-add"], "GID[,GID]", "Supplementary group ids", |d, v| {
        let gids = values::gids(v)?;
        d.app().gids.get_or_insert_default().extend(gids);
        Ok(())
    }),
    valued(App, &["working-dir", "workdir"], "DIR", "Working directory (absolute)", |d, v| {
        d.app().working_dir = Some(values::text(v)?);
        Ok(())
    })
    .short('w'),
    valued(App, &["environment", "env"], "NAME=VALUE", "Set an environment variable; NAME alone: to the caller's value", |d, v| {
        let variable = values::variable(v, d.caller.variable)?;
        d.app().environment.extend(variable);
        Ok(())
    })
    .short('e'),
    valued(App, &["mount"], "MOUNT", "Mount a volume or a directory: volume=NAME,target=/path[,readOnly=true], type=bind,source=/host,target=/path, or type=volume,source=VOLUME,target=/path", set_mount),
    valued(
        App,
        &["tmpfs"],
        "TARGET[:OPTION,…]",
        "Mount an empty file system in memory; options: size=64Mi (default: half of the memory), mode=0755 (default 1777), \
         uid=N, gid=N, exec, ro",
        |d, v| {
            d.app().options.tmpfs.push(v.parse()?);
            Ok(())
        },
    ),
    switch(App, &["readonly-rootfs", "read-only"], "Mount the root file system read-only", |d, v| {
        d.app().options.read_only_root = values::boolean(v)?;
        Ok(())
    }),
    valued(App, &["memory"], "BYTES", "Memory limit: 64Mi, 50M, 1Gi", |d, v| {
        d.app().options.limits.memory = Some(gantry_model::quantity::memory(v)?);
        Ok(())
    })
    .short('m'),
    valued(App, &["memory-swap"], "BYTES", "Limit of memory and swap together; -1: none (default: no swap with --memory)", |d, v| {
        d.app().options.limits.memory_swap = Some(values::memory_swap(v)?);
        Ok(())
    }),
    valued(App, &["cpu", "cpus"], "CORES", "CPU limit in cores: 2, 0.5 or 500m", |d, v| {
        d.app().options.limits.cpu_milli = Some(gantry_model::quantity::millicpu(v)?);
        Ok(())
    }),
    valued(App, &["cpu-shares"], "N", "Relative CPU weight, 2 to 262144", |d, v| {
        d.app().options.limits.cpu_shares = Some(values::number(v, "a number of shares")?);
        Ok(())
    }),
    valued(App, &["pids-limit"], "N", "Limit of processes and threads (default 4096; 0: none)", |d, v| {
        d.app().options.limits.pids = Some(values::number(v, "a number of processes")?);
        Ok(())
    }),
    valued(
        App,
        &["device"],
        "HOST[:CONTAINER][:ACCESS]",
        "Give the app a device of the host: /dev/fuse, /dev/sdb:/dev/disk:r; ACCESS is r, w or rw (default rw)",
        |d, v| {
            d.app().options.devices.push(v.parse()?);
            Ok(())
        },
    ),
    valued(
        App,
        &["ulimit"],
        "NAME=SOFT[:HARD]",
        "Resource limit of each process, as in setrlimit(2): nofile, nproc, core, memlock, stack …; -1: none",
        |d, v| {
            d.app().options.set_ulimit(v.parse()?);
            Ok(())
        },
    ),
    valued(App, &["caps-retain", "cap-retain"], "CAP,…", "Retain exactly these capabilities", |d, v| {
        let names = values::capabilities(v, false)?;
        d.app().caps.retain.get_or_insert_default().extend(names);
        Ok(())
    }),
    valued(App, &["caps-remove", "cap-remove"], "CAP,…", "Retain the default capabilities except these", |d, v| {
        let names = values::capabilities(v, false)?;
        d.app().caps.remove.get_or_insert_default().extend(names);
        Ok(())
    }),
    valued(App, &["cap-add"], "CAP", "Add a capability to the default ones (or ALL)", |d, v| {
        let names = values::capabilities(v, true)?;
        d.app().caps.add.extend(names);
        Ok(())
    }),
    valued(App, &["cap-drop"], "CAP", "Drop a capability from the default ones (or ALL)", |d, v| {
        let names = values::capabilities(v, true)?;
        d.app().caps.drop.extend(names);
        Ok(())
    }),
    valued(App, &["seccomp"], "mode=…", "Seccomp filter: mode=retain or mode=remove[,errno=EPERM],CALL,…; or unconfined", |d, v| {
        d.app().options.seccomp = values::seccomp(v)?;
        Ok(())
    }),
    valued(App, &["security-opt"], "OPT", "no-new-privileges[=BOOL] or seccomp=unconfined", set_security),
    switch(App, &["no-new-privileges"], "Let execve(2) grant no privileges (default true)", |d, v| {
        d.app().options.new_privileges = !values::boolean(v)?;
        Ok(())
    }),
    valued(App, &["oom-score-adj", "oom-score-adjust"], "N", "Score for the OOM killer, -1000 to 1000", |d, v| {
        d.app().options.oom_score_adj = Some(values::number(v, "a number from -1000 to 1000")?);
        Ok(())
    }),
    valued(App, &["stop-signal"], "SIGNAL", "Signal that asks the app to stop (default: the image's, or SIGTERM)", |d, v| {
        d.app().stop_signal = Some(values::stop_signal(v)?);
        Ok(())
    }),
    valued(App, &["user-annotation", "annotation"], "NAME=VALUE", "A free-form annotation of the app", |d, v| {
        d.app().annotations.extend([values::pair(v)?]);
        Ok(())
    }),
    valued(App, &["user-label"], "NAME=VALUE", "A free-form label of the app", |d, v| {
        d.app().labels.extend([values::pair(v)?]);
        Ok(())
    }),
];

fn pull(value: &str) -> Result<Pull, ValueError> {
    <Pull as clap::ValueEnum>::from_str(value, false)
        .map_err(|_| ValueError::Invalid(format!("'{}' is not never, new or update", gantry_model::id::shown(value))))
}

fn set_volume(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match values::volume(value, draft.caller.directory.as_deref())? {
        values::Volume::Named(volume) => draft.volumes.push(volume),
        values::Volume::Bind(bind) => push_bind(draft, bind),
    }
    Ok(())
}

fn set_mount(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match values::mount(value)? {
        values::Mount::Volume(mount) => draft.app().mounts.push(mount),
        values::Mount::Bind(bind) => push_bind(draft, bind),
    }
    Ok(())
}

fn push_bind(draft: &mut Draft<'_>, bind: Bind) {
    draft.app().binds.push(bind);
}

fn set_security(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match value.split_once(['=', ':']).unwrap_or((value, "true")) {
        ("no-new-privileges", value) => draft.app().options.new_privileges = !values::boolean(value)?,
        ("seccomp", "unconfined") => draft.app().options.seccomp = values::seccomp("unconfined")?,
        _ => return Err(ValueError::Unsupported("supported are no-new-privileges and seccomp=unconfined")),
    }
    Ok(())
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
            Arity::Optional => {
                arg.action(clap::ArgAction::Append).value_name(self.value).num_args(0..=1).require_equals(true)
            }
        }
    }
}

/// Adds the flags and the texts of a command with a parser of its own to its description, from which the help, the
/// completions and the manual page are made. clap does not parse these commands: see [`super`].
pub(crate) fn describe(command: clap::Command, verb: Verb) -> clap::Command {
    let flags = FLAGS.iter().filter(|flag| flag.applies_to(verb));
    let name = verb.as_str();
    let (usage, notes) = match verb {
        Verb::Run | Verb::Prepare => (
            format!(
                "gantry {name} [flags] IMAGE [COMMAND ARG…]\n       \
                 gantry {name} [flags] IMAGE [app flags] [-- ARG… [---]] [IMAGE …]"
            ),
            RUN_NOTES,
        ),
        Verb::Sandbox => (
            format!("gantry {name} [flags]"),
            "The pod runs until 'gantry stop' stops it, also while it has no apps and when one of its apps fails.",
        ),
        Verb::AddApp => (
            format!(
                "gantry {name} [flags] POD IMAGE [COMMAND ARG…]\n       gantry {name} [flags] POD IMAGE [flags] -- ARG…"
            ),
            "The app is created and not started: 'gantry app start POD/NAME' starts it. It may mount volumes that the pod \
             was created with, and brings along those of its own flags.\n\n\
             Exit codes: 126, 127: the command cannot be executed, or was not found in the image; 125: gantry failed.",
        ),
    };
    command
        .override_usage(usage)
        .args(flags.map(Flag::to_arg))
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
             name, or the word has a registry, tag or digest.\n\n\
             Exit codes: that of the first app that failed, else 0; 125: gantry failed; 126, 127: the command could not be \
             executed, or was not found; 128+n: the app was killed by signal n.";
