"""The shared resources of the benchmarks: runners, images, peers; created on first use, removed in reverse order."""

import os
import subprocess
import sys
from functools import cached_property

from . import oci, peer_root
from .gantry import Gantry
from .measure import Failed, Runner
from .peers import Containerd, Podman, Registry

APP = "/bin/app"
# Contenders of the peers' root.
PEERS = ("crun", "runc", "youki", "podman", "containerd")


class World:
    """The work directory of one bench run and its contents. `stack` cleans up, last first."""

    def __init__(self, options, work, stack):
        self.options, self.work, self.stack = options, work, stack

    def note(self, text):
        """Prints progress for the user."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def wants(self, contender):
        """Whether a contender takes part."""
        if contender in self.options.without:
            return False
        return contender == "gantry" or contender in self.installed

    @cached_property
    def peers(self):
        """The root directory with the peers, or None."""
        return peer_root.find(self.options.peers, self.work)

    @cached_property
    def installed(self):
        """The peers that can take part. Prints once which ones are left out."""
        names = [name for name in PEERS if name not in self.options.without]
        found = [name for name in names if self.peers and self.peers.has(name)]
        left_out = [name for name in names if name not in found]
        if left_out:
            self.note(f"left out, not in {self.options.peers}: {', '.join(left_out)} (`./dev setup peers` installs them)")
        return found

    @cached_property
    def runner(self):
        """Starts commands in the host's mount namespace."""
        return self.stack.enter_context(Runner())

    @cached_property
    def peer_runner(self):
        """Starts peers in their root."""
        return self.stack.enter_context(self.peers.runner())

    @cached_property
    def bare_runner(self):
        """Starts peers in their root, without the unified hierarchy of a hybrid cgroup setup.

        crun and youki refuse to run, or fail, if that hierarchy has a controller.
        """
        return self.stack.enter_context(self.peers.runner(hide_unified=True))

    @cached_property
    def layout(self):
        """The fixture image as an OCI layout."""
        if self.options.image:
            return os.path.abspath(self.options.image)
        into = os.path.join(self.work, "fixture")
        self.note("building the fixture image")
        self.fixtures("build", into)
        return os.path.join(into, "layout")

    @cached_property
    def big_layout(self):
        """The large image as an OCI layout."""
        if self.options.big_image:
            return os.path.abspath(self.options.big_image)
        into = os.path.join(self.work, "big")
        self.note(f"building an image of {self.options.bytes} bytes and {self.options.files} files")
        self.fixtures("big", into, "--bytes", str(self.options.bytes), "--files", str(self.options.files),
                      "--layers", str(self.options.layers))
        return into

    def fixtures(self, verb, into, *args):
        tool = os.path.join(self.options.programs, "gantry-fixtures")
        if not os.access(tool, os.X_OK):
            raise Failed(f"{tool} is not there: `./dev build` makes it; or give layouts with --image, --big-image")
        app = os.path.join(self.options.programs, "gantry-fixture-app")
        subprocess.run([tool, verb, into, "--app", app, *args], check=True, stdout=subprocess.DEVNULL)

    @cached_property
    def registry(self):
        """A registry on loopback."""
        registry = Registry(self.work)
        self.stack.callback(registry.stop)
        return registry

    @cached_property
    def reference(self):
        """The fixture image in the registry."""
        return self.registry.push(self.runner, self.layout, "bench/fixture:1")

    @cached_property
    def root(self):
        """The unpacked root of the fixture image."""
        root = os.path.join(self.work, "root")
        oci.unpack(self.layout, root)
        return root

    def bundle(self, name, *argv):
        """A bundle on that root, for crun, runc and youki."""
        directory = os.path.join(self.work, "bundle-" + name)
        oci.bundle(directory, self.root, [APP, *argv], f"/gantry-bench/{name}", self.peers.seccomp())
        return directory

    def low_level(self, tool):
        """A crun, runc or youki command line up to the verb, with its state in the work directory."""
        return [tool, "--root", os.path.join(self.work, f"{tool}-state")]

    @cached_property
    def gantry(self):
        """gantry with the fixture image in its store."""
        return self.gantry_of(self.options.programs, "gantry")

    @cached_property
    def baseline(self):
        """Another build of gantry, with a store of its own: the on-disk formats may differ."""
        return self.gantry_of(self.options.baseline, "gantry-baseline")

    def builds(self):
        """Suffix of the contender's name -> the build of gantry, for each build that takes part."""
        if not self.wants("gantry"):
            return {}
        return {"": self.gantry} | ({", baseline": self.baseline} if self.options.baseline else {})

    def gantry_of(self, programs, name):
        """The gantry of a directory of programs, with the fixture image in a store of that name."""
        if not os.access(os.path.join(programs, "gantry"), os.X_OK):
            raise Failed(f"no gantry in {programs}: `./dev build` makes it, or leave it out with --without gantry")
        gantry = Gantry(self.runner, programs, os.path.join(self.work, name))
        self.stack.callback(gantry.stop)
        self.runner.run(gantry.fetch(self.reference))
        return gantry

    @cached_property
    def podman(self):
        """podman with the fixture image in its store."""
        podman = Podman(self.peer_runner, self.work)
        self.stack.callback(podman.stop)
        self.peer_runner.run(podman.pull(self.reference))
        return podman

    @cached_property
    def containerd(self):
        """containerd with the fixture image in its store."""
        containerd = Containerd(self.peer_runner, self.work)
        self.stack.callback(containerd.stop)
        self.peer_runner.run(containerd.pull(self.reference))
        return containerd
