"""nodes: the Talos and Aurae APIs of a gantryd with many running pods: lists and statistics, a log of 1 GB, events
beside rkt's ListenEvents, memory after 10 000 dropped streams, 50 commands at once."""

import json
import os
import statistics
import subprocess
import sys

from . import api
from .gantry import Gantry
from .measure import HERE, Failed
from .world import APP

TITLE = "the Talos and Aurae APIs"

EVENTS, RATE = 10_000, 1000
STREAMS, STREAMS_PER_STEP = 10_000, 1000
COMMANDS = 50
# Measurement, up to its first comma -> the figure and its target: milliseconds and MiB at most, MB/s at least.
TARGETS = {"Containers": 10, "Stats": 20, "Logs": 300, f"{COMMANDS} commands `sleep 1` at once": 1200,
           f"growth of gantryd's memory by {STREAMS} dropped streams": 1}

ask, millis = api.ask, api.millis


def running(world, name, count):
    """A gantry with `count` running pods of one app."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, name))
    world.stack.callback(made.stop)
    world.runner.run(made.fetch(world.reference))
    # Followers of a log get its line at once.
    start = made.run_args("--detach", f"docker://{world.reference}", f"--name={api.APP_NAME}", "--exec", APP, "--",
                          "seq", "print", "running", "--", "sleep", "forever")
    for _ in range(count):
        world.runner.run(start)
    return made


def lists(world, gantry, address, rows):
    """Containers and Stats of all pods."""
    count = len(gantry.pods())
    result = ask(world, "machine", address, world.options.rounds or 200)
    if result["rows"][0] != 2 * count or result["rows"][1] != 2 * count:
        raise Failed(f"nodes: {count} pods with an app each are {result['rows']} rows")
    for name in ("Containers", "Stats"):
        rows[f"{name}, {count} pods"] = millis(result["ns"][name])


def produce(world, gantry, *client):
    """Latencies of events that a process writes into the database, as the client reads them."""
    process = subprocess.Popen([api.load(world), *map(str, client)], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "ready\n":
            raise Failed(f"nodes: no stream for {client[0]}")
        producer = [sys.executable, os.path.join(HERE, "producer.py"), api.database(gantry.directory), str(EVENTS),
                    str(RATE)]
        subprocess.run(producer, stdout=subprocess.DEVNULL, check=True)
        answer, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise Failed(f"api-load {client[0]} ended with {process.returncode}")
    heard = json.loads(answer)
    return {"unit": "ms", "n": heard["received"], "p50": heard["p50_ns"] / 1e6, "p99": heard["p99_ns"] / 1e6,
            "lost": EVENTS - heard["received"], "twice": heard["twice"]}


def events(world, gantry, daemon, address, rows):
    """Events of Talos, and of rkt as the measure."""
    rows[f"Events, {RATE} a second"] = produce(world, gantry, "machine-events", address, EVENTS)
    rows[f"rkt's ListenEvents, {RATE} a second"] = produce(world, gantry, "events", daemon.address, 1, EVENTS)


def streams(world, rows):
    """gantryd's memory while streams are opened and dropped; the first step warms it up. It has one pod: with hundreds,
    the samples that it takes every 10 s change its memory by megabytes."""
    made = running(world, "nodes-streams", 1)
    (pod,) = (pod["id"] for pod in made.pods())
    address = "unix:" + made.directory + "-machine.sock"
    memory = []
    with api.Daemon(world, made, "--machine-listen", address) as daemon:
        for _ in range(STREAMS // STREAMS_PER_STEP + 1):
            ask(world, "machine-streams", address, f"{pod}:{api.APP_NAME}", STREAMS_PER_STEP)
            daemon.rest()
            memory.append(daemon.rss_mib())
    rows[f"growth of gantryd's memory by {STREAMS} dropped streams"] = {
        "unit": "MiB", "n": len(memory), "p50": memory[-1] - memory[0], "p99": max(memory) - memory[0],
        "rss_mib": memory[-1]}


def commands(world, address, rows):
    """Commands of the host at once."""
    samples = [ask(world, "exec", address, COMMANDS, "sleep 1")["ns"] for _ in range(world.options.rounds or 10)]
    rows[f"{COMMANDS} commands `sleep 1` at once"] = millis(samples)


def logs(world, rows):
    """A large log."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, "nodes-logs"))
    world.runner.run(made.fetch(world.reference))
    world.runner.run(made.run_args(f"docker://{world.reference}", f"--name={api.APP_NAME}", "--exec", APP, "--", "true"))
    (pod,) = (pod["id"] for pod in made.pods())
    path = os.path.join(made.directory, "pods", pod, "logs", api.APP_NAME, "0.log")
    _, size, lines = api.write_log(path, world.options.log_bytes)
    address = "unix:" + made.directory + "-machine.sock"
    with api.Daemon(world, made, "--machine-listen", address) as daemon:
        speeds = []
        for number in range(2 + (world.options.rounds or 5)):
            answer = ask(world, "machine-logs", address, f"{pod}:{api.APP_NAME}")
            if answer["lines"] != lines:
                raise Failed(f"nodes: {answer['lines']} of {lines} lines of the log came")
            if number >= 2:
                speeds.append(size / 1e6 / (answer["ns"] / 1e9))
        memory = daemon.rss_mib()
    rows[f"Logs, all of {size / 1e9:.2f} GB"] = {
        "unit": "MB/s", "n": len(speeds), "p50": statistics.median(speeds), "p99": min(speeds), "rss_mib": memory}


def run(world):
    """Rows: measurement -> figures."""
    if not world.wants("gantry"):
        raise Failed("nodes: only gantry takes part")
    api.load(world)
    rows = {}
    made = running(world, "nodes", world.options.stats_pods[-1])
    machine, aurae = (f"unix:{made.directory}-{name}.sock" for name in ("machine", "aurae"))
    with api.Daemon(world, made, "--machine-listen", machine, "--aurae-listen", aurae) as daemon:
        lists(world, made, machine, rows)
        commands(world, aurae, rows)
        events(world, made, daemon, machine, rows)
    world.note("nodes: dropped streams")
    streams(world, rows)
    world.note("nodes: the log")
    logs(world, rows)
    return rows


def table_rows(rows):
    """The figures as readable text."""
    yield ["", "p50", "p99", "n", "lost", "twice", "gantryd's memory", "target"]
    for name, row in rows.items():
        unit, target = row["unit"], ""
        limit = TARGETS.get(name, TARGETS.get(name.split(",")[0]))
        if limit is not None:
            met = row["p50"] >= limit if unit == "MB/s" else row["p50"] <= limit
            target = f"p50 {limit} {unit}: {'met' if met else 'MISSED'}"
        memory = f"{row['rss_mib']:.0f} MiB" if "rss_mib" in row else ""
        p99 = f"{row['p99']:.2f} {unit}" + (" (worst)" if row["n"] < 100 else "")
        yield [name, f"{row['p50']:.2f} {unit}", p99, str(row["n"]), str(row.get("lost", "")),
               str(row.get("twice", "")), memory, target]
