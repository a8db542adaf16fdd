//! Flags of an app: capabilities, system calls and devices.

use super::Scope::App;
use super::{Flag, OF_ALL, switch, valued};
use crate::grammar::draft::Draft;
use crate::grammar::values::{self, ValueError};

/// Capabilities, system calls, devices.
pub(super) static FLAGS: &[Flag] = &[
    switch(
        App,
        &["privileged"],
        "Give the app every capability, all devices of the host, no system call filter, and a writable /proc and /sys, \
         which makes it equal to root on the host",
        |d, v| {
            d.app().options.privileged = values::boolean(v)?;
            Ok(())
        },
    )
    .of(OF_ALL),
    valued(
        App,
        &["pid"],
        "MODE",
        "PID namespace: pod (default), app (its own, in which it is PID 1; also private), or host",
        |d, v| {
            d.app().options.pid = v.parse()?;
            Ok(())
        },
    ),
    valued(
        App,
        &["device"],
        "HOST[:CONTAINER][:ACCESS]",
        "Give the app a device of the host, or all below a directory: /dev/fuse, /dev/sdb:/dev/disk:r, /dev/snd; ACCESS is r, w or rw \
         (default rw)",
        |d, v| {
            d.app().options.devices.push(v.parse()?);
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
    valued(
        App,
        &["seccomp"],
        "mode=…",
        "Seccomp filter: mode=retain or mode=remove[,errno=EPERM],CALL,…; or unconfined",
        |d, v| {
            d.app().options.seccomp = values::seccomp(v)?;
            Ok(())
        },
    ),
    valued(App, &["security-opt"], "OPT", "no-new-privileges[=BOOL], seccomp=unconfined or seccomp=FILE", set_security),
    switch(App, &["no-new-privileges"], "Let execve(2) grant no privileges (default true)", |d, v| {
        d.app().options.new_privileges = !values::boolean(v)?;
        Ok(())
    })
    .on_by_default(),
];

fn set_security(draft: &mut Draft<'_>, value: &str) -> Result<(), ValueError> {
    match value.split_once(['=', ':']).unwrap_or((value, "true")) {
        ("no-new-privileges", value) => draft.app().options.new_privileges = !values::boolean(value)?,
        ("seccomp", "unconfined") => draft.app().options.seccomp = values::seccomp("unconfined")?,
        ("seccomp", path) if path.contains('/') || path.ends_with(".json") => {
            draft.app().seccomp_file = Some(path.into());
        }
        _ => {
            return Err(ValueError::Unsupported(
                "supported are no-new-privileges, seccomp=unconfined and seccomp=FILE",
            ));
        }
    }
    Ok(())
}
