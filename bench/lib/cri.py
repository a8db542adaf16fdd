"""cri: sandboxes and containers of the Kubernetes CRI from creation to removal, as critest's benchmark measures them,
beside containerd; lists of 1 000 containers; gantryd under a kubelet's polling.

Both runtimes work in one private host (see net.py) with a bridge network: gantry's default one, and containerd with
Debian's plugins. The client is `api-load`. A round is one sandbox from run to removal, and one container from creation
to removal in a sandbox of its own, which does not count.
"""

import hashlib
import json
import os
import shutil
import time
from contextlib import ExitStack

from . import api
from .gantry import Gantry
from .measure import Failed, program, wait_for
from .net import LIST, Host
from .peer_root import PATH
from .peers import Daemon, Registry

TITLE = "the Kubernetes CRI (sandboxes, containers, lists, an idle node)"

POD, CONTAINER = "sandbox: run, status, stop, remove", "container: create, start, status, stop, remove"
# Rounds are measured in batches, in turns.
BATCH = 5
LISTED_PODS, LISTED_EACH = 50, 20
IDLE_PODS, IDLE_EACH, IDLE_SECONDS = 50, 2, 60

LISTED = LISTED_PODS * LISTED_EACH
TARGETS = {f"gantry, {POD}": 70, f"gantry, {CONTAINER}": 30, f"gantry, ListContainers of {LISTED}": 10}
MAX_MIB, MAX_PERCENT = 40, 1.0


def rewrite_config(layout, into, change):
    """Copies an OCI layout of one image, with another configuration. The layers stay."""
    shutil.copytree(layout, into)
    blobs = os.path.join(into, "blobs", "sha256")

    def read(descriptor):
        with open(os.path.join(blobs, descriptor["digest"].split(":")[1]), "rb") as file:
            return json.load(file)

    def write(descriptor, value):
        data = json.dumps(value).encode()
        digest = hashlib.sha256(data).hexdigest()
        with open(os.path.join(blobs, digest), "wb") as file:
            file.write(data)
        return {**descriptor, "digest": f"sha256:{digest}", "size": len(data)}

    path = os.path.join(into, "index.json")
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    manifest = read(index["manifests"][0])
    config = read(manifest["config"])
    change(config)
    manifest["config"] = write(manifest["config"], config)
    index["manifests"] = [write(index["manifests"][0], manifest)]
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file)


class Node(Host):
    """A private host with a registry, which its loopback device leads to."""

    def __init__(self, world, stack, name):
        super().__init__(world, stack, name)
        # Its answer shows that it is in its namespaces.
        self.runner.text(["true"])
        at = f"/proc/{self.runner.process.pid}/ns"
        self.enter = [program("nsenter"), f"--net={at}/net", f"--mount={at}/mnt"]
        self.registry = Registry(self.work, self.enter)
        stack.callback(self.registry.stop)
        self.reference = self.push(world.layout, "bench/fixture:1")

    def push(self, layout, name):
        """Uploads an image; returns its reference."""
        return self.registry.push(self.runner, layout, name)


class Containerd:
    """containerd with its CRI plugin, in the peers' root within the namespaces of a private host."""

    def __init__(self, world, host):
        self.work = os.path.join(host.work, "containerd")
        os.makedirs(os.path.join(self.work, "net.d"))
        self.runner = host.stack.enter_context(world.peers.runner(prefix=host.enter))
        self.socket = os.path.join(self.work, "containerd.sock")
        self.address = f"unix:{self.socket}"
        self.image = host.reference
        self.write_config(self.pause(world, host))
        # containerd copies these files of its host; the root has none.
        self.runner.text(["sh", "-ec", "for file in hosts resolv.conf; do : >> /etc/$file; done"])
        command = ["containerd", "--config", f"{self.work}/config.toml", "--log-level", "warn"]
        # `beside` enters the mount namespace and the root only.
        daemon = [*host.enter[:2], *world.peers.beside(self.runner, command)]
        self.daemon = Daemon(daemon, f"{self.work}/log", env={"PATH": PATH})
        host.stack.callback(self.daemon.stop)
        wait_for(self.ready, "containerd answers")
        host.stack.callback(api.ask, world, "cri-clear", self.address)

    def ready(self):
        self.daemon.alive()
        return os.path.exists(self.socket)

    def pause(self, world, host):
        """containerd needs an image for the first process of a sandbox."""
        layout = os.path.join(self.work, "pause")
        rewrite_config(world.layout, layout, lambda config: config["config"].update(
            {"Entrypoint": ["/bin/app"], "Cmd": ["sleep", "forever"]}))
        return host.push(layout, "bench/pause:1")

    def write_config(self, pause):
        network = {**LIST, "name": "containerd", "plugins": json.loads(json.dumps(LIST["plugins"][:2]).replace(
            "bench0", "containerd0"))}
        network["plugins"][0]["ipam"]["dataDir"] = os.path.join(self.work, "leases")
        with open(os.path.join(self.work, "net.d", "10-bench.conflist"), "w", encoding="utf-8") as file:
            json.dump(network, file)
        certs = os.path.join(self.work, "certs.d", pause.split("/")[0])
        os.makedirs(certs)
        with open(os.path.join(certs, "hosts.toml"), "w", encoding="utf-8") as file:
            file.write(f'server = "http://{pause.split("/")[0]}"\n')
        with open(os.path.join(self.work, "config.toml"), "w", encoding="utf-8") as file:
            file.write(f"""version = 3
root = "{self.work}/root"
state = "{self.work}/state"
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.socket}.ttrpc"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{self.work}/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{self.work}/net.d"
[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"
stream_server_port = "0"
""")


class GantryNode:
    """gantry in a private host, with the default network, and the flags of a gantryd that serves the CRI."""

    def __init__(self, world, host, name):
        self.gantry = Gantry(host.runner, world.options.programs, os.path.join(host.work, name))
        host.stack.callback(self.gantry.stop)
        self.address = f"unix:{self.gantry.directory}-cri.sock"
        self.image, self.enter = host.reference, host.enter

    def serve(self, world):
        """The gantryd, which serves within this."""
        return api.Daemon(world, self.gantry, "--cri-listen", self.address, enter=self.enter)


def lives(world, rows):
    """Sandboxes and containers, alternating with containerd."""
    with ExitStack() as stack:
        host = Node(world, stack, "cri")
        node = GantryNode(world, host, "gantry")
        contenders = {"gantry": node}
        if world.wants("containerd"):
            contenders["containerd"] = Containerd(world, host)
        stack.enter_context(node.serve(world))
        samples = {}
        for number in range(max(1, (world.options.rounds or 30) // BATCH)):
            for name in sorted(contenders, reverse=number % 2 == 1):
                reply = api.ask(world, "cri", contenders[name].address, BATCH, contenders[name].image)
                parts = {POD: reply["pods"], CONTAINER: reply["containers"], **reply["ns"]}
                for part, times in parts.items():
                    samples.setdefault(f"{name}, {part}", []).extend(times)
    rows.update({name: api.millis(samples[name]) for name in sorted(samples, key=order)})


def order(name):
    """Sums first, then calls, each with its contenders side by side."""
    contender, part = name.split(", ", 1)
    return (0 if ":" in part else 1, part, contender)


def lists(world, rows):
    """The lists of many containers, which are created and not started."""
    with ExitStack() as stack:
        node = GantryNode(world, Node(world, stack, "cri-lists"), "gantry")
        stack.enter_context(node.serve(world))
        api.ask(world, "cri-fill", node.address, LISTED_PODS, LISTED_EACH, node.image)
        stack.callback(api.ask, world, "cri-clear", node.address)
        reply = api.ask(world, "cri-lists", node.address, world.options.rounds or 100)
    if reply["rows"] != [LISTED, LISTED_PODS]:
        raise Failed(f"cri: the lists have {reply['rows']} rows")
    for method, count in (("ListContainers", reply["rows"][0]), ("ListPodSandbox", reply["rows"][1])):
        rows[f"gantry, {method} of {count}"] = api.millis(reply["ns"][method])


def idle(world, rows):
    """gantryd's memory and processor time with running pods, under a kubelet's polling."""
    with ExitStack() as stack:
        node = GantryNode(world, Node(world, stack, "cri-idle"), "gantry")
        daemon = stack.enter_context(node.serve(world))
        api.ask(world, "cri-fill", node.address, IDLE_PODS, IDLE_EACH, node.image, "start")
        stack.callback(api.ask, world, "cri-clear", node.address)
        daemon.rest()
        before, begin = daemon.cpu(), time.monotonic()
        reply = api.ask(world, "cri-poll", node.address, IDLE_SECONDS)
        percent = 100 * (daemon.cpu() - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - begin)
        memory = daemon.rss_mib()
    verdict = "met" if percent <= MAX_PERCENT and memory <= MAX_MIB else "MISSED"
    print(f"gantryd, {IDLE_PODS} pods of {IDLE_EACH} containers, polled by a kubelet: {percent:.2f} % of a core, "
          f"{memory:.0f} MiB (target {MAX_PERCENT:.0f} %, {MAX_MIB} MiB: {verdict})", flush=True)
    rows[f"gantry, ListContainers of {IDLE_PODS * IDLE_EACH}, polled"] = {
        **api.millis(reply["ns"]["ListContainers"]), "percent": percent, "rss_mib": memory}


def run(world):
    """Rows: measurement -> figures."""
    if not world.wants("gantry"):
        raise Failed("cri: gantry must take part")
    api.load(world)
    rows = {}
    lives(world, rows)
    world.note("cri: lists")
    lists(world, rows)
    world.note("cri: an idle node")
    idle(world, rows)
    return rows


def table_rows(rows):
    """The figures as readable text."""
    yield ["", "p50 ms", "p99 ms", "n", "gantry / it", "target"]
    for name, row in rows.items():
        contender, part = name.split(", ", 1)
        own = rows.get(f"gantry, {part}")
        ratio = f"{own['p50'] / row['p50']:.2f}" if own and contender != "gantry" else ""
        limit = TARGETS.get(name)
        target = "" if limit is None else f"{limit} ms: {'met' if row['p50'] <= limit else 'MISSED'}"
        yield [name, f"{row['p50']:.2f}", f"{row['p99']:.2f}", str(row["n"]), ratio, target]
