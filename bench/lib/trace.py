"""The run time of child programs, from process start to exit, measured by the kernel's tracing (tracefs)."""

import os
import re
import subprocess

from .measure import program

EVENT = re.compile(r"\s(\d+\.\d+): sched_process_(fork|exec|exit): (?:filename=(\S+) )?.*?\bpid=(\d+)")
FORKED = re.compile(r"child_pid=(\d+)")
TRACING = "/sys/kernel/tracing"


class Trace:
    """A private instance of the kernel's tracing. `stack` removes it."""

    def __init__(self, stack):
        if not os.path.exists(f"{TRACING}/instances"):
            subprocess.run([program("mount"), "-t", "tracefs", "tracefs", TRACING], check=True)
            stack.callback(subprocess.run, [program("umount"), TRACING], check=False)
        self.path = f"{TRACING}/instances/gantry-bench-{os.getpid()}"
        os.mkdir(self.path)
        stack.callback(os.rmdir, self.path)
        self.set("trace_clock", "mono")
        for event in ("fork", "exec", "exit"):
            self.set(f"events/sched/sched_process_{event}/enable", "1")

    def set(self, name, value):
        """Writes one file of the instance."""
        with open(os.path.join(self.path, name), "w", encoding="ascii") as file:
            file.write(value)

    def took(self, work, programs):
        """Does `work`; returns its result, the number of runs of these programs (paths), and their total time in ns."""
        self.set("trace", "")
        answer = work()
        started, begun, count, total = {}, {}, 0, 0.0
        with open(os.path.join(self.path, "trace"), encoding="utf-8", errors="replace") as file:
            for line in file:
                match = EVENT.search(line)
                if match is None:
                    continue
                at, event, name, pid = match.groups()
                if event == "fork":
                    started[FORKED.search(line)[1]] = at
                elif event == "exec" and name in programs:
                    begun[pid] = float(started.get(pid, at))
                elif event == "exit" and pid in begun:
                    count, total = count + 1, total + (float(at) - begun.pop(pid)) * 1e9
        return answer, count, int(total)
