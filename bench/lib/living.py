"""living: changes of a running pod. An app added and started, an app restarted, a limit updated."""

from contextlib import ExitStack

from .measure import alternate, summary
from .world import APP

TITLE = "changes of a running pod"

RUN, DETACH = "gantry run", "gantry run --detach"
ADD, START = "gantry app add --start", "gantry app start"
ADD_THEN_START = "gantry app add, app start"
RESTART, UPDATE = "gantry restart", "gantry update --memory"
# Parts of another figure of the same rounds.
ADD_OF_RUN, RESTART_OF_START = 0.5, 1.2
UPDATE_MS = 5.0

SLEEP = ("sleep", "forever")


class LivingPod:
    """A sandbox pod of one build of gantry, and the commands that change it."""

    def __init__(self, gantry, image, stack):
        self.gantry, self.image, self.run = gantry, f"docker://{image}", gantry.runner.run
        self.pod = gantry.runner.text(gantry.command("app", "sandbox", "--net=none", "--quiet")).splitlines()[-1]
        stack.callback(self.remove, self.pod)
        self.add("fixed")
        self.timed("app", "start", f"{self.pod}/fixed")

    def timed(self, *args):
        """Runs a command; returns its time."""
        return self.run(self.gantry.command(*args))["ns"]

    def remove(self, pod):
        self.timed("rm", "--force", pod)

    def add(self, name, *flags):
        """Adds an app that sleeps; returns the time."""
        return self.timed("app", "add", "--quiet", *flags, "--name", name, self.pod, self.image, "--exec", APP, "--",
                          *SLEEP)

    def run_to_end(self, _):
        """A pod of its own, from its start to its end; the removal does not count."""
        name = "to-end"
        took = self.run(self.gantry.run_args(f"--pod-name={name}", self.image, "--exec", APP, "--", "exit", "0"))["ns"]
        self.timed("rm", name)
        return took

    def run_detached(self, _):
        """A pod of its own with the same app, until it runs."""
        args = self.gantry.run_args("--detach", self.image, "--exec", APP, "--", *SLEEP)
        answer = self.run(args, keep=True)
        self.remove(answer["stdout"].split()[-1])
        return answer["ns"]

    def add_and_start(self, number):
        """One command; the removal does not count."""
        took = self.add(f"o{number}", "--start")
        self.timed("app", "rm", "--force", f"{self.pod}/o{number}")
        return took

    def add_then_start(self, number):
        """Both commands together; the removal does not count."""
        app = f"{self.pod}/a{number}"
        took = self.add(f"a{number}") + self.timed("app", "start", app)
        self.timed("app", "rm", "--force", app)
        return took

    def start(self, _):
        """A fresh start of an app that was stopped."""
        app = f"{self.pod}/fixed"
        self.timed("app", "stop", "--force", app)
        return self.timed("app", "start", app)

    def restart(self, _):
        """Stop and start of a running app in one command."""
        return self.timed("restart", "--force", f"{self.pod}/fixed")

    def update(self, number):
        """Another memory limit each time."""
        return self.timed("update", f"--memory={64 + number % 2}Mi", f"{self.pod}/fixed")


def gantry(world, stack, suffix, build):
    """The measured commands of one build."""
    living = LivingPod(build, world.reference, stack)
    made = {RUN: living.run_to_end, DETACH: living.run_detached, ADD: living.add_and_start,
            ADD_THEN_START: living.add_then_start, START: living.start, RESTART: living.restart,
            UPDATE: living.update}
    return {name + suffix: timed for name, timed in made.items()}


def podman(world, stack):
    """podman's restart and update of one container."""
    runner, commands = world.peer_runner, world.podman
    made = runner.text([*commands.run_args("--detach", "--entrypoint", APP), world.reference, *SLEEP])
    stack.callback(runner.run, commands.command("rm", "--force", "--time", "0", made))
    return {
        "podman restart": lambda _: runner.run(commands.command("restart", "--time", "0", made))["ns"],
        "podman update --memory": lambda number: runner.run(
            commands.command("update", f"--memory={64 + number % 2}m", made))["ns"],
    }


def low_level(world, stack, tool, runner):
    """crun's and runc's update of one container; neither restarts."""
    name, base = f"bench-living-{tool}", world.low_level(tool)
    stack.callback(runner.run, [*base, "delete", "--force", name])
    runner.run([*base, "run", "--detach", "--bundle", world.bundle(f"living-{tool}", *SLEEP), name])
    return {f"{tool} update --memory": lambda number: runner.run(
        [*base, "update", "--memory", str((64 + number % 2) << 20), name])["ns"]}


def run(world):
    """Rows: name -> summary."""
    with ExitStack() as stack:
        made = {}
        for suffix, build in world.builds().items():
            made.update(gantry(world, stack, suffix, build))
        if world.wants("crun"):
            made.update(low_level(world, stack, "crun", world.bare_runner))
        if world.wants("runc"):
            made.update(low_level(world, stack, "runc", world.peer_runner))
        if world.wants("podman"):
            made.update(podman(world, stack))
        samples = alternate(made, world.options.rounds or 40, warm=3)
    return {name: summary(values) for name, values in samples.items()}


def table_rows(rows):
    """The table, with the verdicts on the targets."""
    median = {name: row["median_ms"] for name, row in rows.items()}
    verdicts = {}
    if RUN in median and DETACH in median:
        for name, base, most in ((ADD, RUN, ADD_OF_RUN), (RESTART, START, RESTART_OF_START)):
            of = median[name] / median[base]
            verdicts[name] = f"{of:.2f} of {base}, most {most}: {'met' if of <= most else 'MISSED'}"
        verdicts[ADD] += f" ({median[ADD] / median[DETACH]:.2f} of {DETACH})"
        verdicts[UPDATE] = f"most {UPDATE_MS:.0f} ms: {'met' if median[UPDATE] <= UPDATE_MS else 'MISSED'}"
    yield ["", "median ms", "min", "p90", "n", "target"]
    for name, row in rows.items():
        yield [name, *(f"{row[key]:.2f}" for key in ("median_ms", "min_ms", "p90_ms")), str(row["n"]),
               verdicts.get(name, "")]
