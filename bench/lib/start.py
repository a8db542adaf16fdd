"""start: from starting the tool to its end, for one app that does nothing. Warm, no network, default filter."""

from .measure import Failed, alternate, summary
from .world import APP

TITLE = "start to exit of one trivial app (no network, default seccomp filter, warm)"

TARGETS = {"crun run": 1.0, "podman run": 0.15}


# youki 0.7.0 has been seen to hang in a foreground `run` of a program that exits at once.
RUN_DEADLINE = 10.0


def low_level(world, tool, runner):
    """crun, runc and youki: the same commands."""
    command = [*world.low_level(tool), "run", "--bundle", world.bundle(tool, "true")]
    return lambda i: runner.run([*command, f"bench-{tool}-{i}"], deadline=RUN_DEADLINE)["ns"]


def contenders(world):
    """name -> function that runs it once."""
    made = {}
    image = world.reference
    for suffix, gantry in world.builds().items():
        command = gantry.run_args("--rm", f"docker://{image}", "--exec", APP, "--", "true")
        made["gantry run" + suffix] = lambda _, command=command: world.runner.run(command)["ns"]
    if world.wants("crun"):
        made["crun run"] = low_level(world, "crun", world.bare_runner)
    if world.wants("runc"):
        made["runc run"] = low_level(world, "runc", world.peer_runner)
    if world.wants("youki"):
        youki = low_level(world, "youki", world.bare_runner)
        try:
            youki("probe")
            made["youki run"] = youki
        except Failed as error:
            world.note(f"start: youki is left out: {error}")
    if world.wants("podman"):
        podman = [*world.podman.run_args("--rm", "--entrypoint", APP), image, "true"]
        made["podman run"] = lambda _: world.peer_runner.run(podman)["ns"]
    if world.wants("containerd"):
        base = world.containerd.run_args("--rm")
        made["ctr run"] = lambda i: world.peer_runner.run([*base, image, f"bench-{i}", APP, "true"])["ns"]
        null = world.containerd.run_args("--rm", "--null-io")
        made["ctr run --null-io"] = lambda i: world.peer_runner.run([*null, image, f"bench-null-{i}", APP, "true"])["ns"]
    # What is left when there is no container at all.
    made["the program alone"] = lambda _: world.runner.run([world.root + APP, "true"])["ns"]
    return made


def run(world):
    """Rows: name -> summary."""
    rounds = world.options.rounds or 40
    samples = alternate(contenders(world), rounds, warm=3)
    return {name: summary(values) for name, values in samples.items()}
