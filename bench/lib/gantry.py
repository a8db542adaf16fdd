"""gantry's side: the built programs, with a data directory of their own."""

import json
import os


class Gantry:
    """Runs the `gantry` of a directory of programs against one data directory."""

    def __init__(self, runner, programs, directory):
        self.runner, self.programs, self.directory = runner, programs, directory
        self.base = [os.path.join(programs, "gantry"), "--dir", directory, "--insecure-options=http"]

    def command(self, *args):
        """A complete gantry command line."""
        return [*self.base, *args]

    def fetch(self, reference):
        """The command that fetches from the registry."""
        return self.command("fetch", f"docker://{reference}")

    def run_args(self, *flags):
        """A `gantry run` up to the image."""
        return self.command("run", "--net=none", "--quiet", *flags)

    def pods(self):
        """All pods of `list -o json`."""
        return json.loads(self.runner.text(self.command("list", "-o", "json")) or "[]")

    def stop(self):
        """Stops and removes all pods."""
        for pod in self.pods():
            self.runner.run(self.command("rm", "--force", pod["id"]))
