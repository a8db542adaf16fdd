"""memory: proportional set size of all helper processes per idle one-app pod. The apps themselves do not count; daemons
that exist once are reported separately."""

import os
import time

from .measure import Failed
from .world import APP

TITLE = "memory of the helper processes per idle one-app pod (PSS)"

TARGET_KIB = 1024


def processes():
    """pid -> path of the program, for all processes with one."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(pid)] = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError:
            # The process has exited, or is a kernel thread.
            continue
    return found


def pss(pid):
    """Proportional set size of a process, in KiB; 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    except (FileNotFoundError, ProcessLookupError, StopIteration):
        return 0


def is_supervisor(pid):
    """Whether a process is a supervisor of gantry or the PID 1 of one of its pods. Checks the name: both execute
    gantry-stage1 from a detached mount, so the program has no path."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() in ("gantry-stage1", "gantry-init")
    except FileNotFoundError:
        return False


class Pods:
    """A way to start an idle pod, to identify its helpers, and to remove all pods."""

    def __init__(self, start, helper, remove):
        self.start, self.helper, self.remove, self.made = start, helper, remove, []

    def upto(self, count):
        """Starts pods until there are `count`."""
        while len(self.made) < count:
            self.made.append(self.start(len(self.made)))


def gantry(world):
    args = world.gantry.run_args("--detach", f"docker://{world.reference}", "--exec", APP, "--", "sleep", "forever")
    return Pods(
        lambda _: world.runner.text(args).splitlines()[-1],
        lambda pid, _: is_supervisor(pid),
        lambda pod: world.runner.run(world.gantry.command("rm", "--force", pod)))


def podman(world):
    args = [*world.podman.run_args("--detach", "--entrypoint", APP), world.reference, "sleep", "forever"]
    return Pods(
        lambda _: world.peer_runner.text(args),
        lambda _, path: os.path.basename(path) == "conmon",
        lambda pod: world.peer_runner.run(world.podman.command("rm", "--force", "--time", "0", pod)))


def containerd(world):
    ctr = world.containerd

    def start(number):
        name = f"bench-memory-{number}"
        world.peer_runner.run([*ctr.run_args("--detach", "--null-io"), world.reference, name, APP, "sleep", "forever"])
        return name

    def remove(name):
        world.peer_runner.run(ctr.command("tasks", "delete", "--force", name), expect=None)
        world.peer_runner.run(ctr.command("containers", "delete", name))

    return Pods(start, lambda _, path: os.path.basename(path).startswith("containerd-shim"), remove)


def measure(world, name, pods, before):
    """Rows of one contender."""
    rows = {}
    try:
        for count in world.options.pods:
            pods.upto(count)
            # Idle means that the resources of the start have been released.
            time.sleep(1.0)
            helpers = [pid for pid, path in processes().items() if pid not in before and pods.helper(pid, path)]
            if len(helpers) < count:
                raise Failed(f"{name}: {len(helpers)} helper processes for {count} pods")
            total = sum(pss(pid) for pid in helpers)
            rows[f"{name}, {count} pod{'s' * (count > 1)}"] = {
                "kib_per_pod": total / count, "total_kib": total, "processes": len(helpers), "pods": count}
            world.note(f"memory: {name}: {count} pods")
    finally:
        for pod in pods.made:
            pods.remove(pod)
    return rows


def run(world):
    """Rows: name and number of pods -> KiB."""
    makers = {"gantry": ("gantry-stage1", gantry), "podman": ("conmon (podman)", podman),
              "containerd": ("containerd's shim", containerd)}
    rows = {}
    for contender, (name, maker) in makers.items():
        if world.wants(contender):
            before = set(processes())
            rows.update(measure(world, name, maker(world), before))
    if world.wants("containerd"):
        total = pss(world.containerd.daemon.process.pid)
        rows["containerd itself, once per host"] = {"total_kib": total, "processes": 1}
    return rows
