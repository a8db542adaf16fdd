//! Flags that rkt, docker or podman have and gantry does not yet: named, so that the answer can be a clear one.

/// Long name and what can be said instead.
const NOT_YET: [(&str, &str); 25] = [
    ("private-users", "apps run in the host's user namespace"),
    ("no-overlay", "app roots are always overlays"),
    ("publish-all", PUBLISH_ALL),
    ("ip", "an address is an argument of its network: write --net=NAME:IP=ADDRESS"),
    ("ip6", "an address is an argument of its network: write --net=NAME:IP=ADDRESS"),
    ("mac-address", "it is an argument of its network: write --net=NAME:MAC=ADDRESS"),
    ("network-alias", "a pod is found under its host name: use --hostname"),
    ("link", "pods on one network find each other by their host names: use --hostname"),
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

const PUBLISH_ALL: &str = "name the ports: --port NAME:HOSTPORT or --port HOSTPORT:PODPORT";
const STAGE1: &str = "the supervisor is gantry-stage1 beside gantry, or the one named by GANTRY_STAGE1";

/// What can be said of this flag (without dashes), when it is one of those.
pub(super) fn instead(long: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(name, _)| *name == long).map(|(_, instead)| *instead)
}

/// The same for short flags.
pub(super) fn instead_of_short(short: char) -> Option<&'static str> {
    (short == 'P').then_some(PUBLISH_ALL)
}
