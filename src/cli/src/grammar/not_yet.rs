//! Flags that rkt, docker or podman have and gantry does not yet: named, so that the answer can be a clear one.

/// Long name and what can be said instead.
const NOT_YET: [(&str, &str); 30] = [
    ("private-users", "apps run in the host's user namespace"),
    ("no-overlay", "app roots are always overlays"),
    ("dns", NET),
    ("dns-search", NET),
    ("dns-opt", NET),
    ("dns-domain", NET),
    ("hosts-entry", NET),
    ("add-host", NET),
    ("port", NET),
    ("publish", NET),
    ("publish-all", NET),
    ("ip", NET),
    ("mac-address", NET),
    ("mds-register", "there is no metadata service"),
    ("stage1-url", STAGE1),
    ("stage1-path", STAGE1),
    ("stage1-name", STAGE1),
    ("stage1-hash", STAGE1),
    ("stage1-from-dir", STAGE1),
    ("signature", "images are verified by digest only"),
    ("annotation", "use --user-annotation for free-form facts about an app"),
    ("stdin", "use -i to keep stdin open, -t for a terminal"),
    ("stdout", "output goes to the logs and to the foreground"),
    ("stderr", "output goes to the logs and to the foreground"),
    ("restart", "a pod runs once"),
    ("privileged", "name the capabilities with --cap-add, or use --insecure-options=all-run"),
    ("device", "apps get the default devices only"),
    ("sysctl", "the kernel's defaults are kept"),
    ("tmpfs", "use --volume NAME,kind=empty and --mount"),
    ("shm-size", "the size of /dev/shm is fixed"),
];

const NET: &str = "networks other than none and host are not there yet";
const STAGE1: &str = "the supervisor is gantry-stage1 beside gantry, or the one named by GANTRY_STAGE1";

/// What can be said of this flag (without dashes), when it is one of those.
pub(super) fn instead(long: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(name, _)| *name == long).map(|(_, instead)| *instead)
}

/// The same for short flags.
pub(super) fn instead_of_short(short: char) -> Option<&'static str> {
    matches!(short, 'p' | 'P').then_some(NET)
}
