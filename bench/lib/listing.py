"""list: the whole command, for 10 to 10 000 exited pods.

Running 10 000 pods would take longer than all other benchmarks. One pod is run; its rows are copied under new ids
straight into the database, in every table that names the pod.
"""

import glob
import os
import secrets
import sqlite3
import uuid
from contextlib import closing

from .gantry import Gantry
from .measure import Failed, alternate, summary
from .world import APP

TITLE = "list of all pods"

TARGETS_MS = {"gantry list, 10000 pods, table": 60, "gantry list, 10000 pods, json": 60}


def database(directory):
    """The one SQLite file of a data directory."""
    found = []
    # Only the top level: layers contain arbitrary links.
    for path in glob.glob(os.path.join(directory, "*")):
        if os.path.isfile(path) and not path.endswith(("-wal", "-shm")):
            with open(path, "rb") as file:
                if file.read(16) == b"SQLite format 3\0":
                    found.append(path)
    if len(found) != 1:
        raise Failed(f"{directory} has {len(found)} databases, not one")
    return found[0]


def rows_of(db, pod):
    """Every table that names the pod, but events: (table, columns, rows, index of the id's column, id as stored)."""
    stored = {pod, uuid.UUID(pod).bytes}
    made = []
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"):
        columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
        if "seq" in columns:
            # A log with its own gapless numbers; `list` does not read it.
            continue
        rows = db.execute(f'SELECT * FROM "{table}"').fetchall()
        for at in range(len(columns)):
            hits = [row for row in rows if row[at] in stored]
            if hits:
                made.append((table, columns, hits, at, hits[0][at]))
                break
    return made


def multiply(path, pod, count):
    """Copies the rows of `pod` until there are `count` pods."""
    with closing(sqlite3.connect(path)) as db:
        templates = rows_of(db, pod)
        if not templates:
            raise Failed(f"{path} has no row of pod {pod}")
        db.execute("PRAGMA foreign_keys = OFF")
        with db:
            for _ in range(count - 1):
                new = uuid.uuid4()
                for table, columns, rows, at, old in templates:
                    value = new.bytes if isinstance(old, bytes) else str(new)
                    marks = ", ".join("?" * len(columns))
                    for row in rows:
                        copy = [*row[:at], value, *row[at + 1:]]
                        if "app_id" in columns:
                            copy[columns.index("app_id")] = secrets.token_hex(32)
                        db.execute(f'INSERT INTO "{table}" VALUES ({marks})', copy)
            wrong = db.execute("PRAGMA foreign_key_check").fetchall()
            if wrong:
                raise Failed(f"the copied rows do not fit the schema: {wrong[:3]}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def store(world, count):
    """A gantry whose store has `count` ended pods."""
    made = Gantry(world.runner, world.options.programs, os.path.join(world.work, f"list-{count}"))
    world.runner.run(made.fetch(world.reference))
    world.runner.run(made.run_args(f"docker://{world.reference}", "--exec", APP, "--", "true"))
    (pod,) = made.pods()
    multiply(database(made.directory), pod["id"], count)
    # SQLite's own checkpoint has removed the WAL; without one, each command would check the whole database first.
    world.runner.run(made.run_args("--rm", f"docker://{world.reference}", "--exec", APP, "--", "true"))
    shown = len(made.pods())
    if shown != count:
        raise Failed(f"list shows {shown} pods, not {count}")
    return made


def run(world):
    """Rows: format and number of pods -> summary."""
    if not world.wants("gantry"):
        raise Failed("list: only gantry takes part")
    contenders = {}
    for count in world.options.rows:
        at = store(world, count)
        for name, flags in (("table", []), ("json", ["-o", "json"])):
            command = at.command("list", *flags)
            timed = lambda _, command=command: world.runner.run(command)["ns"]
            contenders[f"gantry list, {count} pods, {name}"] = timed
    samples = alternate(contenders, world.options.rounds or 20, warm=2)
    return {name: summary(values) for name, values in samples.items()}
