"""start: from the tool's start to its end, for one trivial app. Warm, no network, default filter."""

from .measure import alternate, summary
from .world import APP

TITLE = "start to exit of one trivial app (no network, default seccomp filter, warm)"

YOUKI = "youki run"

TARGETS = {"crun run": 1.0, "podman run": 0.15}


def low_level(world, tool, runner):
    """crun and runc: the same commands."""
    command = [*world.low_level(tool), "run", "--bundle", world.bundle(tool, "true")]
    return lambda i: runner.run([*command, f"bench-{tool}-{i}"])["ns"]


class Youki:
    """youki, whose foreground `run` of a program that exits at once sometimes hangs (0.7.0): such a run is ended at
    a deadline and does not count."""

    DEADLINE = 2.0

    def __init__(self, world):
        self.runner, self.base = world.bare_runner, world.low_level("youki")
        self.bundle, self.hung = world.bundle("youki", "true"), 0

    def __call__(self, number):
        name = f"bench-youki-{number}"
        answer = self.runner.run([*self.base, "run", "--bundle", self.bundle, name], self.DEADLINE, expect=None)
        if answer["code"] == 0:
            return answer["ns"]
        self.hung += 1
        self.runner.run([*self.base, "delete", "--force", name], expect=None)
        return None


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
        made[YOUKI] = Youki(world)
    if world.wants("podman"):
        podman = [*world.podman.run_args("--rm", "--entrypoint", APP), image, "true"]
        made["podman run"] = lambda _: world.peer_runner.run(podman)["ns"]
    if world.wants("containerd"):
        base = world.containerd.run_args("--rm")
        made["ctr run"] = lambda i: world.peer_runner.run([*base, image, f"bench-{i}", APP, "true"])["ns"]
        null = world.containerd.run_args("--rm", "--null-io")
        made["ctr run --null-io"] = lambda i: world.peer_runner.run([*null, image, f"bench-null-{i}", APP, "true"])["ns"]
    # The cost without any container.
    made["the program alone"] = lambda _: world.runner.run([world.root + APP, "true"])["ns"]
    return made


def run(world):
    """Rows: name -> summary."""
    rounds = world.options.rounds or 40
    made = contenders(world)
    samples = alternate(made, rounds, warm=3)
    if YOUKI in made and made[YOUKI].hung:
        world.note(f"start: {made[YOUKI].hung} of {rounds + 3} runs of youki failed or did not end; they do not count")
    return {name: summary(values) for name, values in samples.items() if values}
