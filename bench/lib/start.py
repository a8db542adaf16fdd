"""start: from starting the tool to its end, for one app that does nothing. Warm, no network, default filter."""

from .measure import alternate, summary
from .world import APP

TITLE = "start to exit of one trivial app (no network, default seccomp filter, warm)"

TARGETS = {"crun run": 1.0, "podman run": 0.15}


def contenders(world):
    """name -> function that runs it once."""
    made = {}
    image = world.reference
    for suffix, gantry in world.builds().items():
        command = gantry.run_args("--rm", f"docker://{image}", "--exec", APP, "--", "true")
        made["gantry run" + suffix] = lambda _, command=command: world.runner.run(command)["ns"]
    if world.wants("crun"):
        crun = [*world.low_level("crun"), "run", "--bundle", world.bundle("crun", "true")]
        made["crun run"] = lambda i: world.crun_runner.run([*crun, f"bench-crun-{i}"])["ns"]
    if world.wants("runc"):
        runc = [*world.low_level("runc"), "run", "--bundle", world.bundle("runc", "true")]
        made["runc run"] = lambda i: world.runner.run([*runc, f"bench-runc-{i}"])["ns"]
    if world.wants("podman"):
        podman = [*world.podman.run_args("--rm", "--entrypoint", APP), image, "true"]
        made["podman run"] = lambda _: world.runner.run(podman)["ns"]
    if world.wants("containerd"):
        base = world.containerd.run_args("--rm")
        made["ctr run"] = lambda i: world.runner.run([*base, image, f"bench-{i}", APP, "true"])["ns"]
        null = world.containerd.run_args("--rm", "--null-io")
        made["ctr run --null-io"] = lambda i: world.runner.run([*null, image, f"bench-null-{i}", APP, "true"])["ns"]
    # What is left when there is no container at all.
    made["the program alone"] = lambda _: world.runner.run([world.root + APP, "true"])["ns"]
    return made


def run(world):
    """Rows: name -> summary."""
    rounds = world.options.rounds or 40
    samples = alternate(contenders(world), rounds, warm=3)
    return {name: summary(values) for name, values in samples.items()}
