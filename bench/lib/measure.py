"""Runs commands, alone or in alternating rounds, and summarizes the figures."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Failed(Exception):
    """A command of a benchmark failed, which invalidates the figures."""


def program(name):
    """The absolute path of a program."""
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if path is None:
        raise Failed(f"{name} is not installed; `./dev setup bench` installs it")
    return path


def wait_for(fact, what, deadline=30.0):
    """Polls until `fact()` is true."""
    end = time.monotonic() + deadline
    while not fact():
        if time.monotonic() > end:
            raise Failed(f"{what}: not so after {deadline:.0f} s")
        time.sleep(0.02)


class Runner:
    """A process that starts and times commands (see runner.py). `prefix`: a command line that runs another, for other
    namespaces. `root`: the PeerRoot that becomes the process's root; None for the host's.
    """

    def __init__(self, prefix=(), root=None):
        command = [*prefix, sys.executable, os.path.join(HERE, "runner.py"), *([root.path] if root else [])]
        self.root = root
        # Unread replies: an interrupt can come between a request and its reply.
        self.unread = 0
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def program(self, name):
        """The absolute path of a program, as the measuring process sees it."""
        if self.root is None:
            return program(name)
        path = self.root.program(name)
        if path is None:
            raise Failed(f"{name} is not in {self.root.path}; `./dev setup peers` installs it")
        return path

    def run(self, argv, deadline=120.0, keep=False, expect=0):
        """Runs `argv` to its end; returns the reply. Raises Failed unless it exits with `expect` (None: any code)."""
        argv = [self.program(argv[0]), *argv[1:]] if not argv[0].startswith("/") else list(argv)
        request = {"argv": argv, "deadline": deadline, "keep": keep}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        self.unread += 1
        while self.unread > 0:
            line = self.process.stdout.readline()
            if not line:
                raise Failed(f"the measuring process has ended (code {self.process.wait()})")
            self.unread -= 1
        answer = json.loads(line)
        if expect is not None and answer["code"] != expect:
            raise Failed(f"code {answer['code']}, not {expect}: {' '.join(argv)}\n{answer['stderr']}")
        return answer

    def text(self, argv, deadline=120.0):
        """The output of `argv`, without surrounding white space."""
        return self.run(argv, deadline, keep=True)["stdout"].strip()


def settle(quiet=10, deadline=2.0):
    """Waits until nothing has run for some polls, or for two seconds. Otherwise the background work of a command, such
    as podman's cleanup process, would slow the next one down."""
    end, seen = time.monotonic() + deadline, 0
    while seen < quiet and time.monotonic() < end:
        with open("/proc/loadavg", encoding="ascii") as file:
            running = int(file.read().split()[3].split("/")[0])
        # This process runs itself.
        seen = seen + 1 if running <= 1 else 0
        time.sleep(0.002)


def alternate(contenders, rounds, warm=2, note=None):
    """Times every contender once per round, in a new random order each round, so that drift affects all equally. Before
    each it waits until the machine is idle.

    `contenders`: name -> function of the round's number that returns nanoseconds, or None for a run that does not count.
    Returns name -> list of nanoseconds. The first `warm` rounds are not counted.
    """
    order, samples = list(contenders), {name: [] for name in contenders}
    shuffle = random.Random(20)
    for number in range(warm + rounds):
        shuffle.shuffle(order)
        for name in order:
            settle()
            took = contenders[name](number)
            if number >= warm and took is not None:
                samples[name].append(took)
        if note is not None:
            note(number + 1, warm + rounds)
    return samples


def summary(samples):
    """Median and spread of nanoseconds, in milliseconds."""
    values = sorted(value / 1e6 for value in samples)
    return {
        "n": len(values),
        "median_ms": statistics.median(values),
        "min_ms": values[0],
        "p90_ms": values[min(len(values) - 1, round(0.9 * (len(values) - 1)))],
        "samples_ms": [round(value, 3) for value in values],
    }
