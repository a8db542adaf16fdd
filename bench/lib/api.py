"""api: the cost of gantryd's API calls: lists of 10 to 10 000 pods, events to 1 to 1 000 listeners, a log of 1 GB.

The client is `api-load`, a program of the tests on the same machine; it talks over a unix socket to a gantryd with a
data directory of its own. Pods are copied rows, as for `list`, each with a directory and a manifest of its own. Events
are written straight into the database, 1 000 transactions a second: listeners must not slow down writers.
"""

import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from contextlib import closing

from .gantry import Gantry
from .listing import database, multiply
from .measure import HERE, Failed, wait_for
from .world import APP

TITLE = "gantryd's API"

# Measurement -> the figure and its target: an upper bound in milliseconds, a lower bound in MB/s and calls/s.
TARGETS = {
    "ListPods by state, 5 of 10000 pods": ("p50", 5),
    "ListPods with detail, 10000 pods": ("p50", 250),
    "InspectPod, each of 10000 pods in turn, 64 calls in flight": ("p50", 20_000),
    "events to 1 listener, 1000 a second": ("p99", 50),
    "events to 1000 listeners, 1000 a second": ("p99", 100),
    "GetLogs, all of 1.00 GB": ("p50", 300),
    "GetLogs, to the first line of the last minute of 1.00 GB": ("p50", 20),
}

PREPARED = 5
# One more list than gantryd's API has threads.
BESIDE_LISTS = 3
BESIDE_ROUNDS = 500
# Rounds of InspectPod by several connections, each with several calls in flight.
INSPECT_ROUNDS = 9
INSPECT_SECONDS = 2
CONNECTIONS = 4
IN_FLIGHT = 16
RATE = 1000
SECONDS = 10
LOG_HOURS = 3
APP_NAME = "it"


class Daemon:
    """A gantryd of a data directory, with its API on a unix socket."""

    def __init__(self, world, gantry, *flags, enter=()):
        """`enter`: a command line that runs another in other namespaces."""
        self.world, self.gantry, self.flags, self.enter = world, gantry, flags, enter
        self.address = "unix:" + os.path.join(gantry.directory + "-run", "api.sock")
        self.log = gantry.directory + "-gantryd.log"
        self.process = None

    def __enter__(self):
        run_dir = self.gantry.directory + "-run"
        os.makedirs(run_dir, exist_ok=True)
        config = os.path.join(run_dir, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            # No garbage collection during a measurement, and no unsent event trimmed.
            file.write("gc-interval = '24h'\nevents-kept = 1000000\n")
            # Sandboxes of the CRI need a network without a cluster.
            file.write("[network]\nsandbox-network = 'default'\n")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [*self.enter, os.path.join(self.gantry.programs, "gantryd"), "--dir", self.gantry.directory,
                 "--config", config, "--run-dir", run_dir, "--listen", self.address, *self.flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self.serves, "gantryd to serve")
        self.rest()
        return self

    def serves(self):
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8") as log:
                raise Failed(f"gantryd ended with {self.process.returncode}: {log.read()[-2000:]}")
        with open(self.log, encoding="utf-8") as log:
            return "API service running" in log.read()

    def rest(self):
        """Waits until gantryd has finished its start-up work: a second without any."""
        def idle():
            before = self.cpu()
            time.sleep(1.0)
            return self.cpu() - before <= 2
        wait_for(idle, "gantryd to come to rest", 120.0)

    def cpu(self):
        """The processor time used, in clock ticks."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    def rss_mib(self):
        """The resident memory."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) / 1024

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            raise Failed(f"gantryd ended with {code}, see {self.log}")


def load(world):
    """The client's program."""
    program = os.path.join(world.options.programs, "api-load")
    if not os.access(program, os.X_OK):
        raise Failed(f"{program} is not there: `./dev bench api` makes it")
    return program


def ask(world, *args):
    """The client's measurements."""
    done = subprocess.run([load(world), *map(str, args)], stdout=subprocess.PIPE, text=True, timeout=900, check=False)
    if done.returncode != 0:
        raise Failed(f"api-load {' '.join(map(str, args))}: code {done.returncode}")
    return json.loads(done.stdout)


def millis(samples):
    """Percentiles of nanoseconds."""
    values = sorted(value / 1e6 for value in samples)
    return {"unit": "ms", "n": len(values), "p50": statistics.median(values),
            "p99": values[round(0.99 * (len(values) - 1))], "samples": [round(value, 3) for value in values]}


def throughput(name, rate):
    """Rows of a measurement of calls a second: the calls, and what a call costs either side."""
    def row(key, unit, worst):
        values = rate[key]
        return {"unit": unit, "n": len(values), "p50": statistics.median(values), "p99": worst(values),
                "samples": values}
    return {name: row("per_second", "calls/s", min),
            f"{name}: CPU time of gantryd": row("server_us", "µs", max),
            f"{name}: of the client": row("client_us", "µs", max)}


def store(world, count):
    """A gantry with `count` pods, some prepared and all others exited, and the id of an exited one."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, f"api-{count}"))
    world.runner.run(made.fetch(world.reference))
    image = f"docker://{world.reference}"
    for _ in range(PREPARED):
        world.runner.run(made.command("prepare", "--net=none", "--quiet", image, "--exec", APP, "--", "true"))
    prepared = {pod["id"] for pod in made.pods()}
    world.runner.run(made.run_args(image, f"--name={APP_NAME}", "--exec", APP, "--", "true"))
    (pod,) = {pod["id"] for pod in made.pods()} - prepared
    multiply(database(made.directory), pod, count - PREPARED)
    with closing(sqlite3.connect(database(made.directory))) as db, db:
        # Otherwise the first garbage collection would do this, pod by pod.
        db.execute("UPDATE pod SET phase = 'garbage', was = 'exited', marked_at = ?, generation = generation + 1"
                   " WHERE phase = 'exited'", (time.time_ns(),))
        ids = [row[0] for row in db.execute("SELECT id FROM pod")]
    pods = os.path.join(made.directory, "pods")
    for other in ids:
        into = os.path.join(pods, other)
        if not os.path.exists(into):
            os.mkdir(into, 0o700)
            for name in ("pod.json", "plan.json"):
                shutil.copy(os.path.join(pods, pod, name), into)
    return made, pod


def lists(world, rows):
    """The unary calls."""
    for count in world.options.rows:
        if count <= PREPARED:
            raise Failed(f"api: --rows must be more than {PREPARED}")
        made, pod = store(world, count)
        with Daemon(world, made) as daemon:
            rounds = world.options.rounds or (200 if count <= 1000 else 50)
            result = ask(world, "calls", daemon.address, rounds, pod)
            other = ask(world, "beside", daemon.address, BESIDE_ROUNDS, BESIDE_LISTS)
            rates = {asked: ask(world, "rate", daemon.address, world.options.rounds or INSPECT_ROUNDS, INSPECT_SECONDS,
                                CONNECTIONS, IN_FLIGHT, asked, daemon.process.pid)
                     for asked in sorted({1, count})}
            memory = daemon.rss_mib()
        if result["pods"] != {"all": count, "by state": PREPARED, "detail": count}:
            raise Failed(f"api: of {count} pods the client saw {result['pods']}")
        for key, name in (("all", f"ListPods, {count} pods"),
                          ("by state", f"ListPods by state, {PREPARED} of {count} pods"),
                          ("detail", f"ListPods with detail, {count} pods"),
                          ("inspect", f"InspectPod, one of {count} pods")):
            rows[name] = {**millis(result["ns"][key]), "rss_mib": memory}
        for asked, rate in rates.items():
            which = "one of" if asked == 1 else "each of"
            tail = "" if asked == 1 else " in turn"
            name = f"InspectPod, {which} {count} pods{tail}, {CONNECTIONS * IN_FLIGHT} calls in flight"
            rows.update(throughput(name, rate))
        rows[f"GetInfo, {count} pods, alone"] = millis(other["alone"])
        name = f"GetInfo, {count} pods, beside {BESIDE_LISTS} clients that list them"
        rows[name] = {**millis(other["beside"]), "lists": other["lists"]}
        world.note(f"api: {count} pods")


def events(world, rows):
    """Delivery to many listeners at once."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, "api-events"))
    world.runner.run(made.fetch(world.reference))
    count = RATE * SECONDS
    for listeners in world.options.listeners:
        with Daemon(world, made) as daemon:
            client = subprocess.Popen([load(world), "events", daemon.address, str(listeners), str(count)],
                                      stdout=subprocess.PIPE, text=True)
            try:
                if client.stdout.readline() != "ready\n":
                    raise Failed(f"api: {listeners} listeners could not begin")
                producer = [sys.executable, os.path.join(HERE, "producer.py"), database(made.directory), str(count),
                            str(RATE)]
                wrote = json.loads(subprocess.run(producer, stdout=subprocess.PIPE, check=True).stdout)
                memory = daemon.rss_mib()
                answer, _ = client.communicate(timeout=300)
            finally:
                client.kill()
                client.wait()
            if client.returncode != 0:
                raise Failed(f"api: the client of {listeners} listeners ended with {client.returncode}")
        heard = json.loads(answer)
        rows[f"events to {listeners} listener{'s' * (listeners > 1)}, {RATE} a second"] = {
            "unit": "ms", "n": heard["received"], "p50": heard["p50_ns"] / 1e6, "p99": heard["p99_ns"] / 1e6,
            "most": heard["most_ns"] / 1e6, "lost": count * listeners - heard["received"],
            "twice": heard["twice"], "written_per_second": wrote["rate"], "rss_mib": memory}
        world.note(f"api: {listeners} listeners")


def write_log(path, size):
    """Writes a log of lines of about 100 bytes, evenly over the last hours; returns the second of its last line."""
    text = b"x" * 47
    end = int(time.time())
    begin = end - LOG_HOURS * 3600
    line = len(b"2026-01-01T00:00:00.000000000Z stdout F 0000000 " + text) + 1
    each = max(1, size // line // (end - begin))
    mark = b"@" * 19
    second = b"".join(b"%s.%09dZ stdout F %07d %s\n" % (mark, number * (10**9 // each), number, text)
                      for number in range(each))
    written = 0
    with open(path, "wb", buffering=1 << 20) as file:
        for now in range(begin, end):
            written += file.write(second.replace(mark, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)).encode()))
    return end - 1, written, each * (end - begin)


def logs(world, rows):
    """A large log, from its beginning and from near its end."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, "api-logs"))
    world.runner.run(made.fetch(world.reference))
    world.runner.run(made.run_args(f"docker://{world.reference}", f"--name={APP_NAME}", "--exec", APP, "--", "true"))
    (pod,) = (pod["id"] for pod in made.pods())
    path = os.path.join(made.directory, "pods", pod, "logs", APP_NAME, "0.log")
    last, size, lines = write_log(path, world.options.log_bytes)
    shown = f"{size / 1e9:.2f} GB"
    with Daemon(world, made) as daemon:
        whole, first = [], []
        for number in range(2 + (world.options.rounds or 5)):
            answer = ask(world, "logs", daemon.address, pod, 0)
            if answer["lines"] != lines:
                raise Failed(f"api: {answer['lines']} of {lines} lines of the log came")
            if number >= 2:
                whole.append(size / 1e6 / (answer["ns"] / 1e9))
        memory = daemon.rss_mib()
        for number in range(2 + (world.options.rounds or 20)):
            answer = ask(world, "logs", daemon.address, pod, last - 59)
            if answer["lines"] != lines // (LOG_HOURS * 3600) * 60:
                raise Failed(f"api: {answer['lines']} lines of the last minute came")
            if number >= 2:
                first.append(answer["first_ns"])
    rows[f"GetLogs, all of {shown}"] = {
        "unit": "MB/s", "n": len(whole), "p50": statistics.median(whole), "p99": min(whole), "rss_mib": memory}
    rows[f"GetLogs, to the first line of the last minute of {shown}"] = millis(first)


def run(world):
    """Rows: measurement -> figures."""
    if not world.wants("gantry"):
        raise Failed("api: only gantry takes part")
    load(world)
    rows = {}
    for part, name in ((lists, "lists"), (events, "events"), (logs, "logs")):
        if name in world.options.api:
            part(world, rows)
    return rows


def table_rows(rows):
    """The figures as readable text."""
    yield ["", "p50", "p99", "n", "lost", "twice", "gantryd's memory", "target"]
    for name, row in rows.items():
        unit, target = row["unit"], ""
        if name in TARGETS:
            figure, limit = TARGETS[name]
            met = row[figure] >= limit if unit in ("MB/s", "calls/s") else row[figure] <= limit
            met = met and not row.get("lost") and not row.get("twice")
            target = f"{figure} {limit} {unit}: {'met' if met else 'MISSED'}"
        memory = f"{row['rss_mib']:.0f} MiB" if "rss_mib" in row else ""
        # With fewer than a hundred figures, the 99th percentile is the worst one.
        p99 = f"{row['p99']:.2f} {unit}" + (" (worst)" if row["n"] < 100 else "")
        yield [name, f"{row['p50']:.2f} {unit}", p99, str(row["n"]), str(row.get("lost", "")),
               str(row.get("twice", "")), memory, target]
