"""stats: one sample of all running pods, for the whole command."""

import os

from .gantry import Gantry
from .measure import Failed, alternate, summary
from .world import APP

TITLE = "one sample of all running pods"

TARGETS_MS = {"gantry stats, 500 pods, table": 20, "gantry stats, 500 pods, json": 20}


def run(world):
    """Rows: format and number of pods -> summary. Each number of pods has a store of its own."""
    if not world.wants("gantry"):
        raise Failed("stats: only gantry takes part")
    contenders = {}
    for count in world.options.stats_pods:
        gantry = Gantry(world.runner, world.options.programs, os.path.join(world.work, f"stats-{count}"))
        world.stack.callback(gantry.stop)
        world.runner.run(gantry.fetch(world.reference))
        start = gantry.run_args("--detach", f"docker://{world.reference}", "--exec", APP, "--", "sleep", "forever")
        for _ in range(count):
            world.runner.run(start)
        world.note(f"stats: {count} pods run")
        for name, flags in (("table", []), ("json", ["-o", "json"])):
            command = gantry.command("stats", "--no-stream", *flags)
            contenders[f"gantry stats, {count} pods, {name}"] = lambda _, command=command: world.runner.run(command)["ns"]
    samples = alternate(contenders, world.options.rounds or 20, warm=2)
    return {name: summary(values) for name, values in samples.items()}
