//! The flags of `run` and `prepare`: names, values, effects, and their clap description.

use super::Pull;
use super::draft::{Bind, Draft};
use super::network;
use super::values::{self, ValueError};

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
    /// Its name without dashes, then other names it goes by.
    names: &'static [&'static str],
    pub(super) short: Option<char>,
    pub(super) arity: Arity,
    pub(super) value: &'static str,
    pub(super) scope: Scope,
    /// A pod flag whose place a pod manifest takes.
    pub(super) in_manifest: bool,
    pub(super) run_only: bool,
    help: &'static str,
    pub(super) set: Setter,
}

impl Flag {
    pub(super) fn has_long(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    /// Its names, the usual one first.
    pub(crate) fn longs(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.names.iter().copied()
    }

    /// The usual name.
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

    /// It says something about the pod that a pod manifest says too.
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
    valued(Pod, &["net"], "NET,…", "none, host, all, or networks: NAME[:KEY=VALUE[;KEY=VALUE…]]; alone: default", |d, v| {
        d.network.net(v)
    })
    .in_manifest()
    .optional(),
    valued(Pod, &["network"], "NET,…", "the same, as docker spells it", |d, v| d.network.net(&values::text(v)?)).in_manifest(),
    valued(
        Pod,
        &["port", "publish"],
        "PORT",
        "NAME:[HOSTIP:]HOSTPORT leads to the port that an image declares under this name, \
         [HOSTIP:]HOSTPORT[-END]:PODPORT[-END][/tcp|udp|sctp] to this one or these; without HOSTPORT a free port of the host is \
         picked; an IPv6 address stands in brackets",
        |d, v| d.network.port(v),
    )
    .short('p')
    .in_manifest(),
    switch(Pod, &["publish-all"], "publish every port that the images declare, each at a free port of the host", |d, v| {
        d.network.publish_all(values::boolean(v)?);
        Ok(())
    })
    .short('P')
    .in_manifest(),
    valued(Pod, &["dns"], "IP,…|host|none", "name servers; the host's resolv.conf; or the image's own", |d, v| {
        d.network.dns(v)
    })
    .in_manifest(),
    valued(Pod, &["dns-search"], "DOMAIN", "where short names are looked up", |d, v| {
        let domain = network::domain(v)?;
        d.network.given()?.search.push(domain);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["dns-opt", "dns-option"], "OPTION", "an option of the resolver, such as ndots:2", |d, v| {
        let option = values::word(v)?;
        d.network.given()?.options.push(option);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["dns-domain"], "DOMAIN", "the local domain", |d, v| {
        let domain = network::domain(v)?;
        d.network.given()?.domain = Some(domain);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["hosts-entry"], "IP=NAME,…|host", "lines of /etc/hosts, or the host's file", |d, v| {
        d.network.hosts_entry(v)
    })
    .in_manifest(),
    valued(Pod, &["add-host"], "NAME:IP", "the same, as docker spells it", |d, v| d.network.add_host(v)).in_manifest(),
    valued(
        Pod,
        &["volume"],
        "VOLUME",
        "NAME,kind=host,source=/path[,readOnly=true][,recursive=false], or NAME,kind=empty[,mode=0755][,uid=0][,gid=0], \
         or NAME,kind=named[,source=VOLUME] for one that outlives the pod; \
         or /host/path:/path/in/app[:ro], VOLUME:/path/in/app[:ro] or /path/in/app to define and mount it at once",
        set_volume,
    )
    .short('v')
    .in_manifest(),
    valued(Pod, &["hostname"], "NAME", "host name in the pod (gantry- and the first 8 digits of its id)", |d, v| {
        d.hostname = Some(values::text(v)?);
        Ok(())
    })
    .in_manifest(),
    switch(Pod, &["detach"], "print the pod's id when it is ready, and return", |d, v| {
        d.options.detach = values::boolean(v)?;
        Ok(())
    })
    .short('d')
    .run_only(),
    switch(Pod, &["rm"], "remove the pod when it has ended", |d, v| {
        d.options.remove = values::boolean(v)?;
        Ok(())
    })
    .run_only(),
    switch(Pod, &["sig-proxy"], "pass signals to this command on to the apps (true)", |d, v| {
        d.options.no_sig_proxy = !values::boolean(v)?;
        Ok(())
    })
    .run_only(),
    valued(Pod, &["detach-keys"], "KEYS", "keys that leave a pod with a terminal (ctrl-p,ctrl-q); empty: none", |d, v| {
        d.options.detach_keys = v.parse().map_err(ValueError::Invalid)?;
        Ok(())
    })
    .run_only(),
    switch(Pod, &["keep-stdin"], "keep stdin open and feed it to the app", |d, v| {
        d.options.stdin = values::boolean(v)?;
        Ok(())
    })
    .short('i')
    .in_manifest(),
    switch(Pod, &["tty"], "give the app a terminal", |d, v| {
        d.options.terminal = values::boolean(v)?;
        Ok(())
    })
    .short('t')
    .in_manifest(),
    switch(Pod, &["interactive"], "both: -i and -t", |d, v| {
        d.options.stdin = values::boolean(v)?;
        d.options.terminal = d.options.stdin;
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["platform"], "OS/ARCH", "platform of the images, where there is a choice: linux/arm64 …", |d, v| {
        d.options.platform = Some(v.parse().map_err(|error: gantry_engine::PlatformError| ValueError::Invalid(error.to_string()))?);
        Ok(())
    }),
    valued(Pod, &["pull-policy", "pull"], "never|new|update|newer", "when to ask the registry (new: what is not here)", |d, v| {
        d.options.pull = Some(pull(v)?);
        Ok(())
    }),
    switch(Pod, &["store-only"], "rkt's old spelling of --pull-policy=never", |d, v| {
        d.options.pull = values::boolean(v)?.then_some(Pull::Never).or(d.options.pull);
        Ok(())
    }),
    switch(Pod, &["no-store"], "rkt's old spelling of --pull-policy=update", |d, v| {
        d.options.pull = values::boolean(v)?.then_some(Pull::Update).or(d.options.pull);
        Ok(())
    }),
    switch(Pod, &["inherit-env"], "pass the caller's environment to the apps, but for PATH and HOME", |d, v| {
        d.options.inherit_env = values::boolean(v)?;
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["set-env"], "NAME=VALUE", "a variable for every app", |d, v| {
        let variable = values::variable(v, d.caller.variable)?;
        d.options.set_env.extend(variable);
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["set-env-file", "env-file"], "FILE", "a file of NAME=VALUE lines for every app", |d, v| {
        d.options.env_files.push(values::text(v)?.into());
        Ok(())
    })
    .in_manifest(),
    valued(Pod, &["pod-manifest"], "FILE", "take the whole pod from this file, as 'gantry cat-manifest' prints it", |d, v| {
        d.options.pod_manifest = Some(values::text(v)?.into());
        Ok(())
    }),
    valued(Pod, &["uuid-file-save", "cidfile"], "FILE", "write the pod's id to this file as soon as it exists", |d, v| {
        d.options.uuid_file = Some(values::text(v)?.into());
        Ok(())
    }),
    valued(Pod, &["label"], "NAME=VALUE", "a free-form label of the pod", |d, v| {
        d.labels.extend([values::pair(v)?]);
        Ok(())
    })
    .short('l')
    .in_manifest(),
    valued(Pod, &["ipc"], "private", "every pod has its own IPC namespace", |_, v| match v {
        "private" | "auto" => Ok(()),
        _ => Err(ValueError::Unsupported("every pod has its own IPC namespace")),
    }),
    switch(Pod, &["quiet"], "show no progress", |d, v| {
        d.options.quiet = values::boolean(v)?;
        Ok(())
    })
    .short('q'),
    // The apps.
    valued(App, &["name"], "NAME", "name of the app (the last element of the image's name)", |d, v| {
        d.app().name = Some(v.parse()?);
        Ok(())
    }),
    valued(App, &["exec", "entrypoint"], "PROGRAM", "replaces the image's entrypoint and arguments; empty: none", |d, v| {
        d.app().exec = Some(v.to_owned());
        Ok(())
    }),
    valued(App, &["user"], "USER[:GROUP]", "names, numbers, or an absolute path in the image whose owner is taken", |d, v| {
        d.app().user = Some(values::text(v)?);
        Ok(())
    })
    .short('u'),
    valued(App, &["group"], "GROUP", "name, number, or an absolute path in the image", |d, v| {
        d.app().group = Some(values::text(v)?);
        Ok(())
    }),
    valued(App, &["supplementary-gids", "group-add"], "GID[,GID]", "further group numbers", |d, v| {
        let gids = values::gids(v)?;
        d.app().gids.get_or_insert_default().extend(gids);
        Ok(())
    }),
    valued(App, &["working-dir", "workdir"], "DIR", "working directory, absolute in the image", |d, v| {
        d.app().working_dir = Some(values::text(v)?);
        Ok(())
    })
    .short('w'),
    valued(App, &["environment", "env"], "NAME=VALUE", "a variable; NAME alone takes the caller's", |d, v| {
        let variable = values::variable(v, d.caller.variable)?;
        d.app().environment.extend(variable);
        Ok(())
    })
    .short('e'),
    valued(App, &["mount"], "MOUNT", "volume=NAME,target=/path[,readOnly=true], type=bind,source=/host,target=/path, or type=volume,source=VOLUME,target=/path", set_mount),
    switch(App, &["readonly-rootfs", "read-only"], "a read-only root", |d, v| {
        d.app().read_only_root = Some(values::boolean(v)?);
        Ok(())
    }),
    valued(App, &["memory"], "BYTES", "limit of memory: 64Mi, 50M, 1Gi", |d, v| {
        d.app().limits.memory = Some(values::memory(v)?);
        Ok(())
    })
    .short('m'),
    valued(App, &["cpu", "cpus"], "CORES", "limit of cpu: 2, 0.5 or 500m", |d, v| {
        d.app().limits.cpu_milli = Some(gantry_model::quantity::millicpu(v)?);
        Ok(())
    }),
    valued(App, &["cpu-shares"], "N", "relative weight, 2 to 262144", |d, v| {
        d.app().limits.cpu_shares = Some(values::number(v, "a number of shares")?);
        Ok(())
    }),
    valued(App, &["pids-limit"], "N", "limit of processes and threads (default 4096, 0: none)", |d, v| {
        d.app().limits.pids = Some(values::number(v, "a number of processes")?);
        Ok(())
    }),
    valued(App, &["caps-retain", "cap-retain"], "CAP,…", "keep exactly these capabilities", |d, v| {
        let names = values::capabilities(v, false)?;
        d.app().caps.retain.get_or_insert_default().extend(names);
        Ok(())
    }),
    valued(App, &["caps-remove", "cap-remove"], "CAP,…", "keep the default ones without these", |d, v| {
        let names = values::capabilities(v, false)?;
        d.app().caps.remove.get_or_insert_default().extend(names);
        Ok(())
    }),
    valued(App, &["cap-add"], "CAP", "add one to the default ones (or ALL)", |d, v| {
        let names = values::capabilities(v, true)?;
        d.app().caps.add.extend(names);
        Ok(())
    }),
    valued(App, &["cap-drop"], "CAP", "take one from the default ones (or ALL)", |d, v| {
        let names = values::capabilities(v, true)?;
        d.app().caps.drop.extend(names);
        Ok(())
    }),
    valued(App, &["seccomp"], "mode=…", "mode=retain or mode=remove[,errno=EPERM],CALL,…; or unconfined", |d, v| {
        d.app().seccomp = Some(values::seccomp(v)?);
        Ok(())
    }),
    valued(App, &["security-opt"], "OPT", "no-new-privileges[=BOOL] or seccomp=unconfined", set_security),
    switch(App, &["no-new-privileges"], "execve gains no privileges (the default; =false allows it)", |d, v| {
        d.app().no_new_privileges = Some(values::boolean(v)?);
        Ok(())
    }),
    valued(App, &["oom-score-adj", "oom-score-adjust"], "N", "-1000 to 1000", |d, v| {
        d.app().oom_score_adj = Some(values::number(v, "a number from -1000 to 1000")?);
        Ok(())
    }),
    valued(App, &["stop-signal"], "SIGNAL", "asks the app to stop (the image's, or SIGTERM)", |d, v| {
        d.app().stop_signal = Some(values::stop_signal(v)?);
        Ok(())
    }),
    valued(App, &["user-annotation"], "NAME=VALUE", "a free-form annotation of the app", |d, v| {
        d.app().annotations.extend([values::pair(v)?]);
        Ok(())
    }),
    valued(App, &["user-label"], "NAME=VALUE", "a free-form label of the app", |d, v| {
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
        ("no-new-privileges", value) => draft.app().no_new_privileges = Some(values::boolean(value)?),
        ("seccomp", "unconfined") => draft.app().seccomp = Some(values::seccomp("unconfined")?),
        _ => return Err(ValueError::Unsupported("known are no-new-privileges and seccomp=unconfined")),
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

/// Adds the flags and the texts of `run` or `prepare` to its description, from which the help, the completions and the manual
/// page are made. clap does not parse these commands: see [`super`].
pub(crate) fn describe(command: clap::Command, verb: super::Verb) -> clap::Command {
    let flags = FLAGS.iter().filter(|flag| verb == super::Verb::Run || !flag.run_only);
    let name = verb.as_str();
    command
        .override_usage(format!(
            "gantry {name} [flags] IMAGE [COMMAND ARG…]\n       \
             gantry {name} [flags] IMAGE [app flags] [-- ARG… [---]] [IMAGE …]"
        ))
        .args(flags.map(Flag::to_arg))
        .next_line_help(true)
        .after_help(
            "Flags of an app apply to the image before them; flags before the first image apply to every app. '--' begins \
             the arguments of an app, '---' ends them so that another image can follow.\n\n\
             Without '--', a word after the first image is the command of its app, unless the store has an image of this \
             name, or the word has a registry, tag or digest.\n\n\
             Exit codes: that of the first app that failed, else 0; 125: gantry failed; 126, 127: the command could not be \
             executed, or was not found; 128+n: the app was killed by signal n.",
        )
}
