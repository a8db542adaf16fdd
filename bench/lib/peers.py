"""The peers of the comparison, each with directories of its own below the benchmark's and the flags for this host."""

import os
import subprocess

from .measure import Failed, program, wait_for
from .peer_root import PATH


class Daemon:
    """A background program; a file keeps its output for error messages."""

    def __init__(self, argv, log, env=None):
        self.log = log
        argv = [program(argv[0]), *argv[1:]] if not argv[0].startswith("/") else argv
        with open(log, "wb") as out, open("/dev/null", "rb") as null:
            self.process = subprocess.Popen(
                argv, stdin=null, stdout=out, stderr=out, env=env, start_new_session=True)

    def alive(self):
        """Raises if the program has exited by itself."""
        if self.process.poll() is not None:
            with open(self.log, encoding="utf-8", errors="replace") as file:
                raise Failed(f"{self.process.args[0]} ended with {self.process.returncode}\n{file.read()[-2000:]}")

    def stop(self):
        """Terminates the program, or kills it if it does not react."""
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Registry:
    """Debian's docker-registry on loopback, on a free port, over plain HTTP. `enter`: a command line that runs another in
    other namespaces."""

    def __init__(self, work, enter=()):
        self.data = os.path.join(work, "registry-data")
        config = os.path.join(work, "registry.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write("version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\n"
                       f"storage: {{filesystem: {{rootdirectory: {self.data}}}, delete: {{enabled: true}}}}\n"
                       "http: {addr: '127.0.0.1:0'}\n")
        self.daemon = Daemon([*enter, program("docker-registry"), "serve", config], os.path.join(work, "registry.log"))
        self.port = None
        try:
            wait_for(self.find_port, "the registry listens")
        except BaseException:
            self.daemon.stop()
            raise

    def find_port(self):
        """Port 0 means any; the process's sockets show the actual one."""
        self.daemon.alive()
        pid = self.daemon.process.pid
        inodes = set()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    self.port = int(fields[1].split(":")[1], 16)
                    return True
        return False

    def push(self, runner, layout, name):
        """Uploads the image of an OCI layout unchanged; returns its reference without a scheme."""
        reference = f"127.0.0.1:{self.port}/{name}"
        runner.run(["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}",
                    f"docker://{reference}"], deadline=600)
        return reference

    def blobs(self):
        """The paths of all stored blobs."""
        root = os.path.join(self.data, "docker/registry/v2/blobs")
        return [os.path.join(at, "data") for at, _, files in os.walk(root) if "data" in files]

    def stop(self):
        """Ends it."""
        self.daemon.stop()


class Podman:
    """podman with its own storage, in a measuring process of the peers' root. It uses runc and cgroupfs: crun does not
    run on hybrid cgroups, and cgroupfs needs no systemd.

    The limits are lowered to the benchmark's own: root without CAP_SYS_RESOURCE may not set podman's defaults.
    """

    def __init__(self, runner, work):
        self.runner = runner
        self.base = [
            "podman", "--root", f"{work}/podman-root", "--runroot", f"{work}/podman-run",
            "--tmpdir", f"{work}/podman-tmp", "--runtime", "runc", "--cgroup-manager", "cgroupfs",
            "--storage-driver", "overlay", "--events-backend", "file",
            "--network-config-dir", f"{work}/podman-networks",
        ]
        self.limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]

    def command(self, *args):
        """A complete podman command line."""
        return [*self.base, *args]

    def run_args(self, *flags):
        """A `podman run` up to the image: no network, output kept in a file, not in the journal."""
        return self.command("run", "--network", "none", "--log-driver", "k8s-file", *self.limits, *flags)

    def pull(self, reference):
        """The command that pulls."""
        return self.command("pull", "--quiet", "--tls-verify=false", reference)

    def stop(self):
        """Removes all containers and images, and unmounts the storage."""
        for args in (["rm", "--all", "--force", "--time", "0"], ["rmi", "--all", "--force"]):
            self.runner.run(self.command(*args), deadline=300, expect=None)


class Containerd:
    """containerd with its own root, state and socket, without its CRI plugin."""

    def __init__(self, runner, work):
        self.runner = runner
        self.socket = f"{work}/containerd.sock"
        config = f"{work}/containerd.toml"
        with open(config, "w", encoding="utf-8") as file:
            file.write('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
                       f'root = "{work}/containerd-root"\nstate = "{work}/containerd-state"\n'
                       f'[grpc]\n  address = "{self.socket}"\n[ttrpc]\n  address = "{self.socket}.ttrpc"\n')
        daemon = runner.root.beside(runner, ["containerd", "--config", config, "--log-level", "warn"])
        self.daemon = Daemon(daemon, f"{work}/containerd.log", env={"PATH": PATH})
        try:
            wait_for(self.ready, "containerd answers")
        except BaseException:
            self.daemon.stop()
            raise

    def ready(self):
        """Whether containerd replies."""
        self.daemon.alive()
        return self.runner.run(self.command("version"), expect=None)["code"] == 0

    def command(self, *args):
        """A complete ctr command line."""
        return ["ctr", "--address", self.socket, "--namespace", "bench", *args]

    def run_args(self, *flags):
        """A `ctr run` up to the image: its own default filter and no network but loopback, as by default."""
        return self.command("run", "--snapshotter", "overlayfs", "--seccomp", *flags)

    def pull(self, reference):
        """The command that pulls and unpacks."""
        return self.command("images", "pull", "--plain-http", "--snapshotter", "overlayfs", reference)

    def stop(self):
        """Ends all tasks, then the daemon."""
        try:
            for task in self.runner.text(self.command("tasks", "list", "--quiet")).split():
                self.runner.run(self.command("tasks", "kill", "--signal", "SIGKILL", task), expect=None)
                self.runner.run(self.command("tasks", "delete", "--force", task), expect=None)
                self.runner.run(self.command("containers", "delete", task), expect=None)
        finally:
            self.daemon.stop()
