"""The root directory of Debian unstable in which the peers are installed (`./dev setup peers`), and running them in it.

Peers run in a mount namespace of their own whose root is that directory, with the host's /proc, /sys and /dev and the
work directory of the benchmark at their usual paths, and an empty /run. Each measuring process enters it once, not once
per command.
"""

import os
import shutil

from .measure import Failed, Runner, program

# Debian's directories of programs.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SECCOMP = "usr/share/containers/seccomp.json"

# Contender -> the command that prints its version; its program must be installed.
VERSIONS = {
    "crun": ("crun", "--version"),
    "runc": ("runc", "--version"),
    "podman": ("podman", "--version"),
    "containerd": ("containerd", "--version"),
    "youki": ("youki", "--version"),
    "conmon": ("conmon", "--version"),
    "netavark": ("/usr/lib/podman/netavark", "--version"),
}

# $1: the root; $2: the work directory; then the command, which changes its root itself.
ENTER = """
root=$1 work=$2; shift 2
# Runtimes change the propagation of /, which must be a mount point for that.
mount --bind $root $root
cd $root
for at in proc sys dev; do mount --rbind /$at $root/$at; done
mount -t tmpfs -o mode=755 tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/var/tmp
mkdir -p $root$work
mount --rbind $work $root$work
if [ -n "$HIDE_UNIFIED" ]; then umount $root/sys/fs/cgroup/unified; fi
exec "$@"
"""


class PeerRoot:
    """An installed root directory. `path` must hold it."""

    def __init__(self, path, work):
        self.path, self.work = path, work

    def program(self, name):
        """The absolute path of a program, as seen in the root; None if it is not installed."""
        found = shutil.which(name, path=":".join(self.path + at for at in PATH.split(":"))) if "/" not in name else (
            self.path + name if os.access(self.path + name, os.X_OK) else None)
        return found and found.removeprefix(self.path)

    def has(self, contender):
        """Whether a contender is installed."""
        return self.program(VERSIONS[contender][0]) is not None

    def runner(self, hide_unified=False, prefix=()):
        """A measuring process in the root. `prefix`: a command line that runs another, for other namespaces."""
        hide = hide_unified and os.path.ismount("/sys/fs/cgroup/unified")
        prefix = [*prefix, program("env"), f"HIDE_UNIFIED={'1' if hide else ''}", f"PATH={PATH}",
                  program("unshare"), "--mount", "--propagation", "private", "sh", "-ec", ENTER, "sh", self.path, self.work]
        return Runner(prefix=prefix, root=self)

    def versions(self):
        """Name -> version line of the installed programs."""
        found = {}
        with self.runner() as runner:
            for name, command in VERSIONS.items():
                if self.has(name):
                    lines = runner.text(command).splitlines()
                    found[name] = lines[0] if lines else "unknown"
        return found

    def beside(self, runner, argv):
        """A command line that runs a program in the namespace and root of a measuring process."""
        at = f"/proc/{runner.process.pid}"
        name = self.program(argv[0])
        if name is None:
            raise Failed(f"{argv[0]} is not in {self.path}; `./dev setup peers` installs it")
        # Wait until the measuring process has entered the root.
        runner.run(["true"])
        return [program("nsenter"), f"--mount={at}/ns/mnt", f"--root={at}/root", "--wd=/", name, *argv[1:]]

    def seccomp(self):
        """The path of containers-common's default profile."""
        return os.path.join(self.path, SECCOMP)


def find(path, work):
    """The peers' root at `path`, or None if it does not exist."""
    return PeerRoot(os.path.realpath(path), work) if os.path.isdir(os.path.join(path, "usr")) else None

