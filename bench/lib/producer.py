"""Writes events into a gantry's database at a steady rate, one transaction each, like many concurrent commands.

  producer.py DATABASE COUNT RATE     each event has `sent_ns`, the time at which it was written
"""

import json
import sqlite3
import sys
import time
from contextlib import closing


def produce(db, count, rate):
    """As the store does: the number comes from the state, in the transaction of the event."""
    begin = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begin + number / rate - time.monotonic()))
        db.execute("BEGIN IMMEDIATE")
        seq, boot = db.execute("SELECT next_seq, boot FROM state").fetchone()
        now = time.time_ns()
        db.execute("INSERT INTO event (seq, boot, kind, at, subject, name, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
                   (seq, boot, "pod-exited", now, "00000000-0000-4000-8000-000000000000",
                    "00000000-0000-4000-8000-000000000000",
                    json.dumps({"exit_code": "0", "reason": "all apps ended", "sent_ns": str(now)})))
        db.execute("UPDATE state SET next_seq = ?", (seq + 1,))
        db.execute("COMMIT")
    return count / (time.monotonic() - begin)


def main():
    path, count, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as db:
        # As gantry's own connections: a commit is synced by the next checkpoint.
        db.execute("PRAGMA synchronous = NORMAL")
        print(json.dumps({"rate": produce(db, count, rate)}), flush=True)


if __name__ == "__main__":
    main()
