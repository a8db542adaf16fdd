"""fetch: a large image from a registry on loopback into the store, unpacked and ready to be mounted.

Every measurement starts from the same state: the image is not in the store, everything is synced, the page cache is
dropped, and the registry's blobs are read back into it (the transfer must not measure a disk). Two times are taken: until
the command ends, and until its writes are on disk as well (`sync -f` on its store), since not every tool syncs by itself.
"""

import os
import shutil
import subprocess

from . import oci
from .gantry import Gantry
from .measure import alternate, summary

TITLE = "fetch and unpack of a large image from a registry on loopback"

# The target is a fraction of the better peer's figure.
TARGET, PEERS = 0.7, ("podman pull", "ctr images pull")


def cold(paths):
    """Syncs, drops the page cache, reads `paths` back into it."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("3")
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


class Fetches:
    """The contenders; each removes the image, prepares the page cache, and fetches."""

    def __init__(self, world):
        self.world, self.synced = world, {}
        self.reference = world.registry.push(world.runner, world.big_layout, "bench/big:1")
        self.layers = oci.layers(world.big_layout)
        self.scratch = os.path.join(world.work, "fetch-floor")

    def timed(self, name, number, argv, inputs, store, runner=None):
        """Runs `argv`; keeps the time with sync aside."""
        cold(inputs)
        took = (runner or self.world.runner).run(argv, deadline=900)["ns"]
        sync = self.world.runner.run(["sync", "--file-system", store], deadline=900)["ns"]
        self.synced.setdefault(name, {})[number] = took + sync
        return took

    def gantry(self, number):
        directory = os.path.join(self.world.work, "gantry-fetch")
        shutil.rmtree(directory, ignore_errors=True)
        fetcher = Gantry(self.world.runner, self.world.options.programs, directory)
        took = self.timed("gantry fetch", number, fetcher.fetch(self.reference), self.world.registry.blobs(),
                          self.world.work)
        shutil.rmtree(directory)
        return took

    def podman(self, number):
        podman, runner = self.world.podman, self.world.peer_runner
        took = self.timed("podman pull", number, podman.pull(self.reference), self.world.registry.blobs(),
                          self.world.work, runner)
        runner.run(podman.command("rmi", "--force", self.reference), deadline=300)
        return took

    def containerd(self, number):
        ctr, runner = self.world.containerd, self.world.peer_runner
        took = self.timed("ctr images pull", number, ctr.pull(self.reference), self.world.registry.blobs(),
                          self.world.work, runner)
        # --sync: containerd collects content and snapshots before the command returns.
        runner.run(ctr.command("images", "remove", "--sync", self.reference), deadline=300)
        return took

    def script(self, name, number, script):
        """A lower bound: a shell script over the layers, in a fresh directory."""
        os.makedirs(self.scratch)
        argv = ["bash", "-c", "set -euo pipefail; cd \"$1\"; shift\n" + script, "bash", self.scratch, *self.layers]
        took = self.timed(name, number, argv, self.layers, self.world.work)
        shutil.rmtree(self.scratch)
        return took

    def contenders(self):
        """name -> function that fetches once."""
        made = {}
        wants = self.world.wants
        if wants("gantry"):
            made["gantry fetch"] = self.gantry
        if wants("podman"):
            made["podman pull"] = self.podman
        if wants("containerd"):
            made["ctr images pull"] = self.containerd
        one = 'for layer; do gzip -dc <"$layer" >/dev/null; done'
        untar = 'for layer; do gzip -dc <"$layer" | tar -xpf - --numeric-owner; done'
        beside = ('i=0; pids=(); for layer; do i=$((i+1)); mkdir $i; gzip -dc <"$layer" | tar -C $i -xpf - '
                  '--numeric-owner & pids+=($!); done; for pid in "${pids[@]}"; do wait "$pid"; done')
        made["gunzip"] = lambda i: self.script("gunzip", i, one)
        made["gunzip | tar x"] = lambda i: self.script("gunzip | tar x", i, untar)
        made["gunzip | tar x, layers side by side"] = (
            lambda i: self.script("gunzip | tar x, layers side by side", i, beside))
        return made


def run(world):
    """Rows: name -> summary, with the median until synced."""
    fetches = Fetches(world)
    note = lambda done, of: world.note(f"fetch: round {done} of {of}")
    samples = alternate(fetches.contenders(), world.options.rounds or 5, warm=1, note=note)
    rows = {}
    for name, values in samples.items():
        synced = [took for number, took in sorted(fetches.synced[name].items()) if number >= 1]
        rows[name] = summary(values) | {"synced_ms": summary(synced)["median_ms"]}
    return rows


def describe(layout):
    """The description of the image, for the report."""
    layers = oci.layers(layout)
    size = sum(os.stat(layer).st_size for layer in layers)
    lines = 0
    for layer in layers:
        listed = subprocess.run(["tar", "-tf", layer], stdout=subprocess.PIPE, check=True)
        lines += listed.stdout.count(b"\n")
    return f"{len(layers)} layers, {lines} entries, {size / 1e6:.0f} MB compressed"
