//! Flags of an app: its program, user, environment and mounts.

use super::Scope::App;
use super::{Flag, push_bind, switch, valued};
use crate::grammar::draft::Draft;
use crate::grammar::mount::{self, Mount};
use crate::grammar::values::{self, ValueError};

/// The app: program, user, environment, mounts.
pub(super) static FLAGS: &[Flag] = &[
    valued(App, &["name"], "NAME", "Name of the app (default: the last element of the image's name)", |d, v| {
        d.app().name = Some(v.parse()?);
        Ok(())
    })
    .not_in_pod_file(),
    valued(
        App,
        &["exec", "entrypoint"],
        "PROGRAM",
        "Replace the image's entrypoint and arguments; empty: none",
        |d, v| {
            d.app().exec = Some(v.to_owned());
            Ok(())
        },
    ),
    valued(
        App,
        &["user"],
        "USER[:GROUP]",
        "User and group by name or id, or the owner of an absolute path in the image",
        |d, v| {
            d.app().user = Some(values::text(v)?);
            Ok(())
        },
    )
    .short('u'),
    valued(App, &["group"], "GROUP", "Group by name or id, or that of an absolute path in the image", |d, v| {
        d.app().group = Some(values::text(v)?);
        Ok(())
    }),
    valued(
        App,
        &["supplementary-gids", "group-add"],
        "GROUP[,GROUP]",
        "Supplementary groups by name, which the image defines, or id",
        |d, v| values::add_groups(v, d.app().groups.get_or_insert_default()),
    ),
    valued(App, &["working-dir", "workdir"], "DIR", "Working directory (absolute)", |d, v| {
        d.app().working_dir = Some(values::text(v)?);
        Ok(())
    })
    .short('w'),
    valued(
        App,
        &["environment", "env"],
        "NAME=VALUE",
        "Set an environment variable; NAME alone takes the caller's value",
        |d, v| {
            let variable = values::variable(v, d.caller.variable)?;
            d.app().environment.extend(variable);
            Ok(())
        },
    )
    .short('e'),
    valued(
        App,
        &["mount"],
        "MOUNT",
        "Mount a volume or a directory: volume=NAME,target=/path[,readOnly=true], type=bind,source=/host,target=/path[,bind-propagation=rslave], \
         type=volume,source=VOLUME,target=/path, type=image,source=IMAGE,target=/path[,subpath=DIR], \
         or type=tmpfs,target=/path[,tmpfs-size=64Mi][,tmpfs-mode=1777]",
        set_mount,
    ),
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
    valued(
        App,
        &["stop-signal"],
        "SIGNAL",
        "Signal that asks the app to stop (default: the image's, or SIGTERM)",
        |d, v| {
            d.app().stop_signal = Some(values::stop_signal(v)?);
            Ok(())
        },
    ),
    valued(
        App,
        &["stop-timeout"],
        "DURATION",
        "Time between the stop signal and SIGKILL: 30s, 2m, or seconds (default: stop-grace of the host, 10s)",
        |d, v| {
            let time = crate::commands::stop::parse_duration(v).map_err(ValueError::Invalid)?;
            d.app().options.stop_timeout_ms = Some(gantry_model::quantity::milliseconds(time));
            Ok(())
        },
    ),
    valued(
        App,
        &["log-path"],
        "PATH",
        "Write the log to this file below --log-dir, and leave rotation and removal to the caller",
        |d, v| {
            d.app().options.log_path = Some(v.parse()?);
            Ok(())
        },
    ),
    valued(App, &["user-annotation", "annotation"], "NAME=VALUE", "A free-form annotation of the app", |d, v| {
        d.app().annotations.extend([values::pair(v)?]);
        Ok(())
    }),
    valued(App, &["user-label"], "NAME[=VALUE]", "A free-form label of the app", |d, v| {
        d.app().labels.extend([values::label(v)?]);
        Ok(())
    }),
];

fn set_mount(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match mount::parse(value)? {
        Mount::Volume(mount) => draft.app().mounts.push(mount),
        Mount::Bind(bind) => push_bind(draft, bind),
        Mount::Tmpfs(tmpfs) => draft.app().options.tmpfs.push(tmpfs),
    }
    Ok(())
}
