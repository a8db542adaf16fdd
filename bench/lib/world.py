"""What every benchmark finds ready: runners, images, peers; made when first asked for, taken down in reverse order."""

import os
import subprocess
import sys
from functools import cached_property

from . import oci
from .gantry import Gantry
from .measure import Failed, Runner
from .peers import Containerd, Podman, Registry

APP = "/bin/app"


class World:
    """The work directory of one bench run and all that lives in it. `stack` closes what is made, last first."""

    def __init__(self, options, work, stack):
        self.options, self.work, self.stack = options, work, stack

    def note(self, text):
        """Progress for the person who waits."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def wants(self, who):
        """Whether a contender takes part."""
        return who not in self.options.without

    @cached_property
    def runner(self):
        """Starts commands in the host's mount namespace."""
        return self.stack.enter_context(Runner())

    @cached_property
    def crun_runner(self):
        """Starts commands where crun can work."""
        return self.stack.enter_context(Runner(hide_unified=True))

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
        """A bundle on that root, for crun and runc."""
        directory = os.path.join(self.work, "bundle-" + name)
        oci.bundle(directory, self.root, [APP, *argv], f"/gantry-bench/{name}")
        return directory

    def low_level(self, tool):
        """A crun or runc command line up to the verb, with its state in the work directory."""
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
        """Suffix of the contender's name -> each build of gantry that takes part."""
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
        podman = Podman(self.runner, self.work)
        self.stack.callback(podman.stop)
        self.runner.run(podman.pull(self.reference))
        return podman

    @cached_property
    def containerd(self):
        """containerd with the fixture image in its store."""
        containerd = Containerd(self.runner, self.work)
        self.stack.callback(containerd.stop)
        self.runner.run(containerd.pull(self.reference))
        return containerd
