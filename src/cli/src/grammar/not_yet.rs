//! Flags that rkt, docker or podman have and gantry does not: refused by name, with the reason or with what to use.

/// Long name and what can be said instead.
const NOT_YET: &[(&str, &str)] = &[
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
    ("attach", "the foreground shows standard output and standard error; -i feeds standard input"),
    ("restart", "a pod runs once; let systemd run 'gantry run' with Restart="),
    ("privileged", "name the capabilities with --cap-add, or use --insecure-options=all-run"),
    ("device", "apps get the default devices only"),
    ("device-cgroup-rule", "apps get the default devices only"),
    ("gpus", "apps get the default devices only"),
    ("sysctl", "the kernel's defaults are kept"),
    ("tmpfs", "use --volume NAME,kind=empty and --mount volume=NAME,target=/path"),
    ("shm-size", "/dev/shm has 64 MiB; for more, --volume shm,kind=empty,mode=1777 --mount volume=shm,target=/dev/shm"),
    ("init", "leave it out: every pod has an init process that reaps"),
    ("ulimit", "apps get fixed resource limits; --memory, --cpu and --pids-limit are there"),
    ("pid", "the apps of a pod share one PID namespace, which no other pod or the host shares"),
    ("uts", "every pod has its own host name: use --hostname"),
    ("userns", "apps run in the host's user namespace"),
    ("cgroupns", "there is no cgroup namespace"),
    ("cgroup-parent", "it is set for all pods: cgroup-parent in /etc/gantry/config.toml"),
    ("cgroups", "every pod has its own cgroup"),
    ("secret", "mount a file: --volume /path/of/secret:/run/secrets/name:ro"),
    ("log-driver", LOGS),
    ("log-opt", LOGS),
    ("health-cmd", HEALTH),
    ("health-interval", HEALTH),
    ("health-retries", HEALTH),
    ("health-timeout", HEALTH),
    ("health-start-period", HEALTH),
    ("no-healthcheck", "leave it out: health checks of images are not run"),
    ("stop-timeout", "give the time to 'gantry stop --time', or set stop-grace in /etc/gantry/config.toml"),
    ("timeout", "use timeout(1): timeout 60 gantry run …"),
    ("memory-swap", "swap is not limited apart from memory"),
    ("memory-swappiness", "swap is not limited apart from memory"),
    ("memory-reservation", "use --memory, which is a hard limit"),
    ("kernel-memory", "use --memory"),
    ("oom-kill-disable", "use --oom-score-adj"),
    ("cpu-period", CPU),
    ("cpu-quota", CPU),
    ("cpu-rt-period", CPU),
    ("cpu-rt-runtime", CPU),
    ("cpuset-cpus", "cores cannot be chosen; --cpu limits their use"),
    ("cpuset-mems", "memory nodes cannot be chosen"),
    ("blkio-weight", BLKIO),
    ("device-read-bps", BLKIO),
    ("device-write-bps", BLKIO),
    ("device-read-iops", BLKIO),
    ("device-write-iops", BLKIO),
    ("volumes-from", "apps of one pod share volumes: --volume NAME,kind=… and --mount volume=NAME,target=/path"),
    ("volume-driver", "volumes are directories of the host"),
    ("pod", "a pod's apps are given together: gantry run IMAGE --- IMAGE; 'gantry help run' shows how"),
    ("replace", "remove the earlier pod first: gantry rm --force POD"),
    ("domainname", "use --hostname and --dns-domain"),
    ("expose", "pods reach every port of each other; --port publishes one on the host"),
    ("runtime", "there is one runtime"),
    ("isolation", "there is one kind of isolation"),
    ("systemd", "an app is not process 1 of its pod, which systemd needs"),
    ("tz", "set it in the environment: --env TZ=Europe/Berlin, with time zones in the image"),
    ("umask", "set it in the app's command: -- sh -c 'umask 027; exec PROGRAM'"),
    ("label-file", "write --label NAME=VALUE"),
    ("pidfile", "'gantry status POD' shows the pid"),
    ("conmon-pidfile", "'gantry status POD' shows the pid"),
    ("disable-content-trust", "leave it out: images are verified by digest"),
    ("authfile", "set REGISTRY_AUTH_FILE in the environment"),
    ("tls-verify", "use --insecure-options=tls"),
    ("env-host", "use --inherit-env"),
    ("http-proxy", "use --inherit-env, or --env HTTP_PROXY"),
    ("rootfs", "fetch an image, or make one of the directory with another tool"),
    ("no-hosts", "use --hosts-entry=host for the host's file"),
];

const LOGS: &str = "output goes to the pod's log files; [log] in /etc/gantry/config.toml sets their size";
const HEALTH: &str = "health checks are not run";
const CPU: &str = "use --cpu, in cores";
const BLKIO: &str = "disk bandwidth is not limited";
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
