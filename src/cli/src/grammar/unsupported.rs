//! Flags of rkt, docker and podman that gantry does not support, with the reason or an alternative.

use super::network::ONE_POD;

/// Long names, and the reason or alternative.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("private-users", "use --userns=auto"),
    ("no-overlay", "app roots are always overlays"),
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
    ("stdin", "use -i to keep stdin open, -t for a terminal"),
    ("stdout", "output goes to the logs and to the foreground"),
    ("stderr", "output goes to the logs and to the foreground"),
    ("attach", "the foreground shows standard output and standard error; -i feeds standard input"),
    ("device-cgroup-rule", "use --device"),
    ("gpus", "name the devices with --device"),
    ("init", "leave it out: every pod has an init process that reaps"),
    ("cgroupns", "leave it out: every app has a cgroup namespace of its own"),
    ("cgroups", "every pod has its own cgroup"),
    ("secret", "mount a file: --volume /path/of/secret:/run/secrets/name:ro"),
    ("log-driver", LOGS),
    ("log-opt", LOGS),
    ("timeout", "use timeout(1): timeout 60 gantry run …"),
    ("memory-swappiness", "use --memory-swap"),
    ("kernel-memory", "use --memory"),
    ("oom-kill-disable", "use --oom-score-adj"),
    ("cpu-rt-period", CPU),
    ("cpu-rt-runtime", CPU),
    ("volumes-from", "apps of one pod share volumes: --volume NAME,kind=… and --mount volume=NAME,target=/path"),
    ("volume-driver", "volumes are directories of the host"),
    ("pod", ONE_POD),
    ("replace", "remove the earlier pod first: gantry rm --force POD"),
    ("domainname", "use --hostname and --dns-domain"),
    ("expose", "pods reach every port of each other; --port publishes one on the host"),
    ("storage-opt", "use --storage-limit"),
    ("runtime", "there is one runtime"),
    ("isolation", "there is one kind of isolation"),
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
const CPU: &str = "use --cpu, in cores";
const STAGE1: &str = "the supervisor is gantry-stage1 beside gantry, or the one named by GANTRY_STAGE1";

/// The reason or alternative for this flag (without dashes).
pub(super) fn alternative(long: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(name, _)| *name == long).map(|(_, alternative)| *alternative)
}
