"""trace: the system calls of a run, an exec and an added app, by process, counted by the kernel's tracing (tracefs).

Counts do not depend on the load of the machine: a change that adds fifty calls is seen. Nothing is timed.
"""

import collections
import json
import os
import re

from . import trace
from .measure import Failed
from .world import APP

TITLE = "system calls by process"

# How many of the most frequent system calls are named.
NAMED = 6
LINE = re.compile(r"^\s*(.+)-(\d+)\s+\[\d+\]\s+\S+\s+[\d.]+: (\w+): (.*)$")
NUMBER = re.compile(r"NR (-?\d+)")
CHILD = re.compile(r"child_pid=(\d+)")
HEADERS = ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")


def call_names():
    """Number -> name of the system calls, from the kernel's headers; empty without them."""
    names = {}
    for path in HEADERS:
        if os.path.exists(path):
            with open(path, encoding="ascii") as file:
                for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", file.read()):
                    names[int(number)] = name
            break
    return names


class CallTrace(trace.Trace):
    """Counts the system calls of processes and of all that they start."""

    EVENTS = ("raw_syscalls/sys_enter", "sched/sched_process_fork", "sched/sched_process_exec")

    def __init__(self, stack):
        super().__init__(stack)
        self.set("tracing_on", "0")
        self.set("buffer_size_kb", "16384")
        self.set("options/event-fork", "1")
        for event in ("fork", "exec", "exit"):
            self.set(f"events/sched/sched_process_{event}/enable", "0")
        for event in self.EVENTS:
            self.set(f"events/{event}/enable", "1")

    def count(self, command, others=()):
        """Runs a command; returns its processes, in the order of their start, each with its counts by number.

        `others`: processes that serve it, such as a supervisor, which are counted, too.
        """
        self.set("trace", "")
        begin, ready = os.pipe()
        pid = os.fork()
        if pid == 0:
            self.execute(command, begin, ready)
        os.close(begin)
        self.set("set_event_pid", " ".join(map(str, (pid, *others))))
        self.set("tracing_on", "1")
        os.write(ready, b"x")
        os.close(ready)
        _, status = os.waitpid(pid, 0)
        # Without a list, the processes of the whole host are traced.
        self.set("tracing_on", "0")
        self.set("set_event_pid", "")
        if os.waitstatus_to_exitcode(status) != 0:
            raise Failed(f"{' '.join(command)}: code {os.waitstatus_to_exitcode(status)}")
        return self.processes()

    @staticmethod
    def execute(command, begin, ready):
        """The child: waits until it is traced, then becomes the command. Its output is not shown."""
        try:
            os.close(ready)
            os.read(begin, 1)
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.execv(command[0], command)
        finally:
            os._exit(127)

    def processes(self):
        """The processes of the recorded events: [name, program or role, counts]. A new program begins a new one."""
        self.check_complete()
        found, current, parents = [], {}, {}
        with open(os.path.join(self.path, "trace"), encoding="utf-8", errors="replace") as file:
            for line in file:
                match = LINE.match(line)
                if match is None:
                    continue
                name, pid, event, details = match.groups()
                if event == "sched_process_fork":
                    parents[CHILD.search(details)[1]] = name
                    continue
                if event == "sched_process_exec" or pid not in current:
                    how = "executed" if event == "sched_process_exec" else f"forked by {parents.get(pid, 'another')}"
                    current[pid] = [name, how, collections.Counter()]
                    found.append(current[pid])
                if event == "sys_enter":
                    # A process may rename itself.
                    current[pid][0] = name
                    current[pid][2][int(NUMBER.search(details)[1])] += 1
        return [entry for entry in found if entry[2]]

    def check_complete(self):
        """Counts are worthless if the kernel dropped events."""
        for cpu in os.scandir(os.path.join(self.path, "per_cpu")):
            with open(os.path.join(cpu.path, "stats"), encoding="ascii") as file:
                if "overrun: 0\n" not in file.read():
                    raise Failed("the kernel's trace buffer was too small")


def supervisor(gantry, pod):
    """The process id of a pod's supervisor."""
    return json.loads(gantry.runner.text(gantry.command("status", "-o", "json", pod)))["pid"]


def table_rows(rows):
    """Counts, and the most frequent calls."""
    yield ["", "calls", "most frequent"]
    for name, row in rows.items():
        yield [name, str(row["calls"]), row["most"]]


def run(world):
    """Rows: command and process -> count and the most frequent calls. The first run of each warms the caches."""
    if not world.wants("gantry"):
        raise Failed("trace: only gantry takes part")
    tracer, names = CallTrace(world.stack), call_names()
    gantry, image = world.gantry, f"docker://{world.reference}"
    pod = gantry.runner.text(gantry.run_args("--detach", image, "--exec", APP, "--", "sleep", "forever")).split()[-1]
    serving = [supervisor(gantry, pod)]
    sandbox = gantry.runner.text(gantry.command("app", "sandbox", "--net=none", "--quiet")).split()[-1]
    adding = [supervisor(gantry, sandbox)]

    def add(name):
        return gantry.command("app", "add", "--quiet", "--start", "--name", name, sandbox, image, "--exec", APP, "--",
                              "sleep", "forever")

    true = (image, "--exec", APP, "--", "true")
    gantry.runner.run(gantry.run_args("--rm", *true))
    gantry.runner.run(add("warm"))
    commands = {
        "version": (gantry.command("version"), ()),
        "list": (gantry.command("list"), ()),
        "run --rm": (gantry.run_args("--rm", *true), ()),
        "run": (gantry.run_args(*true), ()),
        "run --detach": (gantry.run_args("--detach", image, "--exec", APP, "--", "sleep", "forever"), ()),
        "exec": (gantry.command("exec", pod, "--", APP, "true"), serving),
        "app add --start": (add("traced"), adding),
        "update --memory": (gantry.command("update", "--memory=64m", pod), serving),
        "stats": (gantry.command("stats", "--no-stream"), ()),
    }
    rows = {}
    for title, (command, others) in commands.items():
        total = 0
        for number, (name, how, counts) in enumerate(tracer.count(command, others), 1):
            calls = sum(counts.values())
            total += calls
            most = ", ".join(f"{names.get(call, call)} {count}" for call, count in counts.most_common(NAMED))
            rows[f"{title}, process {number}: {name}, {how}"] = {"calls": calls, "most": most}
        rows[f"{title}, total"] = {"calls": total, "most": ""}
    return rows
