//! Flags of the pod.

use gantry_model::user_namespace::parse_id_map;

use super::Scope::Pod;
use super::Verb::{AddApp, Run, Sandbox};
use super::{Flag, OF_ALL, OF_FETCH, OF_INTERACTIVE, OF_NEW_POD, push_bind, switch, valued};
use crate::grammar::draft::Draft;
use crate::grammar::network;
use crate::grammar::values::{self, ValueError};
use crate::grammar::{IdFile, Pull};

/// The pod: networks, volumes, names, and how the command runs it.
pub(super) static FLAGS: &[Flag] = &[
    valued(Pod, &["net"], "NET,…", "Networks: none, host, all, or NAME[:KEY=VALUE[;KEY=VALUE…]]; without a value: default", |d, v| {
        d.network.net(v)
    })
    .in_manifest()
    .optional(),
    valued(Pod, &["network"], "NET,…", "As --net, but the value is required", |d, v| d.network.net(&values::text(v)?)).in_manifest(),
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
    .in_manifest()
    .of(OF_ALL),
    valued(
        Pod,
        &["hostname"],
        "NAME",
        "Host name of the pod, also -h NAME (default: gantry- and the first 8 digits of its id)",
        |d, v| {
            d.pod.hostname = Some(values::text(v)?);
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["namespace"],
        "NAME",
        "Namespace in which the Talos node API shows the pod (default: taloscontainers; k8s.io with the labels of a kubelet)",
        |d, v| {
            d.pod.namespace = Some(v.parse()?);
            Ok(())
        },
    )
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
    })
    .of(OF_NEW_POD),
    switch(Pod, &["start"], "Start the app; if that fails, it stays added", |d, v| {
        d.options.start = values::boolean(v)?;
        Ok(())
    })
    .of(&[AddApp]),
    switch(Pod, &["detach"], "Print the pod's id when its apps have started, and exit", |d, v| {
        d.options.detach = values::boolean(v)?;
        Ok(())
    })
    .short('d')
    .of(&[Run])
    .not_in_pod_file(),
    switch(Pod, &["rm"], "Remove the pod when it has exited", |d, v| {
        d.options.remove = values::boolean(v)?;
        Ok(())
    })
    .of(&[Run, Sandbox])
    .not_in_pod_file(),
    switch(Pod, &["sig-proxy"], "Forward signals to the apps (default true)", |d, v| {
        d.options.no_sig_proxy = !values::boolean(v)?;
        Ok(())
    })
    .on_by_default()
    .of(&[Run])
    .not_in_pod_file(),
    valued(Pod, &["detach-keys"], "KEYS", "Key sequence to detach from a terminal (default ctrl-p,ctrl-q); empty: none", |d, v| {
        d.options.detach_keys = v.parse().map_err(ValueError::Invalid)?;
        Ok(())
    })
    .of(&[Run])
    .not_in_pod_file(),
    switch(Pod, &["keep-stdin"], "Keep standard input open and forward it to the app", |d, v| {
        d.options.stdin = values::boolean(v)?;
        Ok(())
    })
    .short('i')
    .in_manifest()
    .of(OF_INTERACTIVE)
    .not_in_pod_file(),
    switch(Pod, &["tty"], "Allocate a terminal for the app", |d, v| {
        d.options.terminal = values::boolean(v)?;
        Ok(())
    })
    .short('t')
    .in_manifest()
    .of(OF_INTERACTIVE)
    .not_in_pod_file(),
    switch(Pod, &["interactive"], "-i and -t together, as in rkt; not docker's --interactive, which is -i", |d, v| {
        d.options.stdin = values::boolean(v)?;
        d.options.terminal = d.options.stdin;
        Ok(())
    })
    .in_manifest()
    .of(OF_INTERACTIVE)
    .not_in_pod_file(),
    valued(Pod, &["platform"], "OS/ARCH", "Platform to select from multi-platform images, such as linux/arm64", |d, v| {
        d.options.platform = Some(v.parse().map_err(|error: gantry_engine::PlatformError| ValueError::Invalid(error.to_string()))?);
        Ok(())
    })
    .of(OF_FETCH),
    valued(Pod, &["pull-policy", "pull"], "never|new|update|newer", "When to contact the registry (default new: if the image is not in the store); missing is new, always is update", |d, v| {
        set_pull_policy(d, pull(v)?)
    })
    .of(OF_FETCH),
    switch(Pod, &["store-only"], "Same as --pull-policy=never, as in rkt", |d, v| {
        set_pull(d, v, Pull::Never)
    })
    .of(OF_FETCH),
    switch(Pod, &["no-store"], "Same as --pull-policy=update, as in rkt", |d, v| {
        set_pull(d, v, Pull::Update)
    })
    .of(OF_FETCH),
    switch(Pod, &["inherit-env"], "Pass the caller's environment to the apps, except PATH, HOME, PWD and OLDPWD", |d, v| {
        d.options.inherit_env = values::boolean(v)?;
        Ok(())
    })
    .in_manifest()
    .of(OF_ALL)
    .not_in_pod_file(),
    valued(Pod, &["set-env"], "NAME=VALUE", "Set an environment variable of every app", |d, v| {
        let variable = values::variable(v, d.caller.variable)?;
        d.options.set_env.extend(variable);
        Ok(())
    })
    .in_manifest()
    .of(OF_ALL),
    valued(Pod, &["set-env-file", "env-file"], "FILE", "Set environment variables of every app from a file of lines NAME=VALUE, or NAME for the caller's variable", |d, v| {
        d.options.env_files.push(values::text(v)?.into());
        Ok(())
    })
    .in_manifest()
    .of(OF_ALL),
    valued(Pod, &["pod-manifest"], "FILE", "Read the whole pod from this file, as printed by 'gantry cat-manifest'; -: standard input", |d, v| {
        d.options.pod_manifest = Some(values::text(v)?.into());
        Ok(())
    })
    .not_in_pod_file(),
    valued(Pod, &["uuid-file-save"], "FILE", "Write the pod's id to this file as soon as the pod exists", |d, v| {
        set_id_file(d, IdFile::Replaced(values::text(v)?.into()))
    })
    .of(OF_NEW_POD)
    .not_in_pod_file(),
    valued(Pod, &["cidfile"], "FILE", "As --uuid-file-save, but the file must not exist, as in docker", |d, v| {
        set_id_file(d, IdFile::New(values::text(v)?.into()))
    })
    .of(OF_NEW_POD)
    .not_in_pod_file(),
    valued(Pod, &["label"], "NAME[=VALUE]", "A free-form label of the pod", |d, v| {
        d.pod.user_labels.extend([values::label(v)?]);
        Ok(())
    })
    .short('l')
    .in_manifest(),
    valued(
        Pod,
        &["ipc"],
        "MODE",
        "IPC namespace: private (default), none (private, and no /dev/shm), or host",
        |d, v| {
            d.pod.ipc = v.parse()?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["stage1"],
        "FLAVOR",
        "container (default), or host: run -- COMMAND without an image, unconfined, in the host's namespaces and file system",
        |d, v| {
            d.pod.flavor = v.parse()?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(Pod, &["uts"], "MODE", "UTS namespace, which has the host name: private (default) or host", |d, v| {
        d.pod.uts = v.parse()?;
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["userns"],
        "MODE",
        "User namespace: host (default); auto: a range of host ids that no other pod has; or HOSTID[:LENGTH]: the host id of \
         the pod's root, and the number of ids (default 65536)",
        |d, v| {
            d.pod.userns = v.parse()?;
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["uidmap"],
        "0:HOSTID:LENGTH",
        "User namespace that maps the pod's users and, unless --gidmap is given, its groups to these host ids, as in podman",
        |d, v| {
            d.id_maps.uids = Some(parse_id_map(v)?);
            Ok(())
        },
    )
    .in_manifest(),
    valued(Pod, &["gidmap"], "0:HOSTID:LENGTH", "The same, for groups", |d, v| {
        d.id_maps.gids = Some(parse_id_map(v)?);
        Ok(())
    })
    .in_manifest(),
    valued(
        Pod,
        &["cgroup-parent"],
        "PATH|SLICE",
        "Parent of the pod's cgroup: a path below the root of each hierarchy, created if it does not exist, and kept; or a \
         slice of systemd, such as batch.slice, in which the pod is a scope",
        |d, v| {
            d.pod.cgroup_parent = Some(v.parse()?);
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["cgroup-manager"],
        "MANAGER",
        "cgroupfs: the pod's cgroup is created below a path; systemd: it is in a scope of systemd (default: as configured)",
        |d, v| {
            d.pod.cgroup_manager = Some(v.parse()?);
            Ok(())
        },
    )
    .in_manifest(),
    valued(
        Pod,
        &["log-dir"],
        "DIRECTORY",
        "Existing directory of the host for the log files of --log-path",
        |d, v| {
            d.pod.log_dir = Some(v.parse()?);
            Ok(())
        },
    )
    .in_manifest(),
    switch(Pod, &["quiet"], "Suppress progress output", |d, v| {
        d.options.quiet = values::boolean(v)?;
        Ok(())
    })
    .short('q')
    .of(OF_FETCH)
    .not_in_pod_file(),
];

fn pull(value: &str) -> Result<Pull, ValueError> {
    <Pull as clap::ValueEnum>::from_str(value, false)
        .or_else(|_| values::invalid(value, "never, new (or missing), update (or always) or newer"))
}

/// `--pull-policy`: the last one counts, but it may not contradict one of rkt's switches.
fn set_pull_policy(draft: &mut Draft<'_>, policy: Pull) -> Result<(), ValueError> {
    check_pull(draft.pull_switch, policy)?;
    draft.options.pull = Some(policy);
    Ok(())
}

/// rkt's switches for a policy.
fn set_pull(draft: &mut Draft<'_>, value: &str, policy: Pull) -> Result<(), ValueError> {
    if !values::boolean(value)? {
        return Ok(());
    }
    check_pull(draft.options.pull, policy)?;
    (draft.options.pull, draft.pull_switch) = (Some(policy), Some(policy));
    Ok(())
}

fn check_pull(earlier: Option<Pull>, policy: Pull) -> Result<(), ValueError> {
    match earlier.is_some_and(|earlier| earlier != policy) {
        true => Err(ValueError::Invalid("give one of --store-only, --no-store and --pull-policy".into())),
        false => Ok(()),
    }
}

fn set_id_file(draft: &mut Draft<'_>, file: IdFile) -> Result<(), ValueError> {
    let is_other = |given: &IdFile| std::mem::discriminant(given) != std::mem::discriminant(&file);
    if draft.options.id_file.as_ref().is_some_and(is_other) {
        return Err(ValueError::Invalid("give either --uuid-file-save or --cidfile".into()));
    }
    draft.options.id_file = Some(file);
    Ok(())
}

fn set_volume(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match values::volume(value, draft.caller.directory.as_deref())? {
        values::Volume::Named(volume) => draft.volumes.push(volume),
        values::Volume::Bind(bind) => push_bind(draft, bind),
    }
    Ok(())
}
