"""exec: from the tool's start to its end, for one trivial process in a running app."""

from contextlib import ExitStack

from .measure import Failed, alternate, summary
from .world import APP

TITLE = "exec of one trivial process in a running app"

TARGETS = {"runc exec": 0.4}


def gantry(world, stack, build):
    pod = world.runner.text(build.run_args(
        "--detach", f"docker://{world.reference}", "--exec", APP, "--", "sleep", "forever")).splitlines()[-1]
    stack.callback(world.runner.run, build.command("rm", "--force", pod))
    command = build.command("exec", pod, "--", APP, "true")
    return lambda _: world.runner.run(command)["ns"]


def low_level(world, stack, tool, runner):
    """crun, runc and youki: the same commands."""
    name, base = f"bench-exec-{tool}", world.low_level(tool)
    directory = world.bundle(f"exec-{tool}", "sleep", "forever")
    stack.callback(runner.run, [*base, "delete", "--force", name])
    runner.run([*base, "run", "--detach", "--bundle", directory, name])
    return lambda _: runner.run([*base, "exec", name, APP, "true"])["ns"]


def podman(world, stack):
    made = world.peer_runner.text([*world.podman.run_args("--detach", "--entrypoint", APP), world.reference,
                              "sleep", "forever"])
    stack.callback(world.peer_runner.run, world.podman.command("rm", "--force", "--time", "0", made))
    command = world.podman.command("exec", made, APP, "true")
    return lambda _: world.peer_runner.run(command)["ns"]


def containerd(world, stack):
    name, ctr = "bench-exec", world.containerd
    world.peer_runner.run([*ctr.run_args("--detach", "--null-io"), world.reference, name, APP, "sleep", "forever"])
    stack.callback(world.peer_runner.run, ctr.command("containers", "delete", name))
    stack.callback(world.peer_runner.run, ctr.command("tasks", "delete", "--force", name), expect=None)
    return lambda i: world.peer_runner.run(ctr.command("tasks", "exec", "--exec-id", f"e{i}", name, APP, "true"))["ns"]


def run(world):
    """Rows: name -> summary."""
    with ExitStack() as stack:
        made = {}
        for suffix, build in world.builds().items():
            made["gantry exec" + suffix] = gantry(world, stack, build)
        if world.wants("crun"):
            made["crun exec"] = low_level(world, stack, "crun", world.bare_runner)
        if world.wants("runc"):
            made["runc exec"] = low_level(world, stack, "runc", world.peer_runner)
        if world.wants("youki"):
            made["youki exec"] = low_level(world, stack, "youki", world.bare_runner)
        if world.wants("podman"):
            made["podman exec"] = podman(world, stack)
        if world.wants("containerd"):
            made["ctr tasks exec"] = containerd(world, stack)
        if not made:
            raise Failed("exec: no contender takes part")
        samples = alternate(made, world.options.rounds or 40, warm=3)
    return {name: summary(values) for name, values in samples.items()}
