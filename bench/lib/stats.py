"""stats: one sample of all running pods: the whole command `gantry stats`, a scrape of gantryd's metrics, and the CPU
time of gantryd, which samples every 10 s."""

import http.client
import os
import socket
import time

from .api import Daemon
from .gantry import Gantry
from .measure import Failed, alternate, summary
from .world import APP

TITLE = "one sample of all running pods"

TARGETS_MS = {"gantry stats, 500 pods, table": 20, "gantry stats, 500 pods, json": 20}
# Percent of a core.
MAX_SAMPLER_PERCENT = 1.0
SAMPLER_SECONDS = 60


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def scrape(path):
    """The metrics: name with labels -> value."""
    connection = UnixConnection(path)
    connection.request("GET", "/metrics")
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    if reply.status != 200:
        raise Failed(f"the metrics answer {reply.status}: {text[:500]}")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, values = line.rpartition("}") if "}" in line else line.partition(" ")
            found[name] = float(values.split()[0])
    return found


def timed_scrape(path):
    """Nanoseconds of a scrape, reading included."""
    begin = time.monotonic_ns()
    scrape(path)
    return time.monotonic_ns() - begin


def sampler_percent(world, gantry, count):
    """Prints the CPU time of gantryd while it samples all pods, and returns the scrape's samples."""
    path = gantry.directory + "-metrics.sock"
    with Daemon(world, gantry, "--metrics-listen", f"unix:{path}"):
        before, begin = scrape(path), time.monotonic()
        time.sleep(SAMPLER_SECONDS)
        after, seconds = scrape(path), time.monotonic() - begin
        percent = 100 * (after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / seconds
        verdict = "met" if percent <= MAX_SAMPLER_PERCENT else "MISSED"
        print(f"gantryd, {count} pods: {percent:.2f} % of a core over {seconds:.0f} s, two scrapes included "
              f"(target {MAX_SAMPLER_PERCENT:.0f} %: {verdict}); a sample takes "
              f"{1000 * after['gantry_sampler_duration_seconds']:.1f} ms, holds {after['gantry_sampler_descriptors']:.0f} "
              f"descriptors; memory {after['process_resident_memory_bytes'] / (1 << 20):.0f} MiB", flush=True)
        return [timed_scrape(path) for _ in range(world.options.rounds or 20)]


def run(world):
    """Rows: format and number of pods -> summary. Each number of pods has a store of its own."""
    if not world.wants("gantry"):
        raise Failed("stats: only gantry takes part")
    contenders, scrapes = {}, {}
    for count in world.options.stats_pods:
        gantry = Gantry(world.runner, world.options.programs, os.path.join(world.work, f"stats-{count}"))
        world.stack.callback(gantry.stop)
        world.runner.run(gantry.fetch(world.reference))
        start = gantry.run_args("--detach", f"docker://{world.reference}", "--exec", APP, "--", "sleep", "forever")
        for _ in range(count):
            world.runner.run(start)
        world.note(f"stats: {count} pods run")
        scrapes[f"gantryd, scrape of the metrics of {count} pods"] = sampler_percent(world, gantry, count)
        for name, flags in (("table", []), ("json", ["-o", "json"])):
            command = gantry.command("stats", "--no-stream", *flags)
            contenders[f"gantry stats, {count} pods, {name}"] = lambda _, command=command: world.runner.run(command)["ns"]
    samples = alternate(contenders, world.options.rounds or 20, warm=2)
    return {name: summary(values) for name, values in (samples | scrapes).items()}
