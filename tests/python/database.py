#!/usr/bin/env python3
"""Writes rows into a gantry's database that no command writes on demand. Standard library only.

  database.py DIR sql STATEMENT…            all in one transaction
  database.py DIR events COUNT [SIZE]       COUNT events, one transaction each, with SIZE bytes of data
"""
import json
import os
import sqlite3
import sys
import time
from contextlib import closing


def sql(db, statements):
    db.execute("BEGIN IMMEDIATE")
    for statement in statements:
        db.execute(statement)
    db.execute("COMMIT")


def events(db, count, size):
    """Writes events like the store: the number comes from the state, in the transaction of the event."""
    filler = "x" * size
    for _ in range(count):
        db.execute("BEGIN IMMEDIATE")
        seq, boot = db.execute("SELECT next_seq, boot FROM state").fetchone()
        now = time.time_ns()
        data = json.dumps({"sent_ns": str(now), "filler": filler} if size else {"sent_ns": str(now)})
        db.execute("INSERT INTO event (seq, boot, kind, at, subject, name, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
                   (seq, boot, "image-imported", now, "sha256:made-by-the-test", "made-by-the-test", data))
        db.execute("UPDATE state SET next_seq = ?", (seq + 1,))
        db.execute("COMMIT")


def main():
    directory, what, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    path = os.path.join(directory, "gantry.db")
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
        # gantry's own connections do the same: a commit is synced by the next checkpoint.
        db.execute("PRAGMA synchronous = NORMAL")
        if what == "sql":
            sql(db, rest)
        elif what == "events":
            events(db, int(rest[0]), int(rest[1]) if len(rest) > 1 else 0)
        else:
            sys.exit(__doc__)


main()
