"""net: the cost of a pod's network, from the tool's start to its end, for one trivial app; and whether that cost
depends on the number of pods.

The benchmark runs in network and mount namespaces of its own, the same for every contender, and changes nothing in the
machine's. podman keeps its namespaces in a /run/netns that is private there, too.
"""

import json
import os
import sys
import time
from contextlib import ExitStack

from .gantry import Gantry
from .measure import HERE, Failed, Runner, alternate, program, summary
from .peers import Podman
from .trace import Trace
from .world import APP

TITLE = "a pod's network (run to exit of one trivial app; then set-up and tear-down beside others)"

PLUGINS = "/usr/lib/cni"
NONE, DEFAULT = "gantry run --net=none", "gantry run, built-in default"
SAME, EXTERNAL = "gantry run, a list done by gantry", "gantry run, that list by Debian's plugins"
ALONE, WITHIN = "those plugins alone, ADD and DEL", "… without what its plugins took in it"
FLUSHED, FLUSHED_MS = "rules back after nft flush ruleset, with gantryd", 2000.0
PODMAN, PODMAN_NONE = "podman run, its bridge", "podman run, no network"

MOST_MS, OF_PODMAN, EXTRA_MS, GROWTH = 10.0, 0.1, 2.0, 1.25

# The pause before each start beside other pods, in seconds: the kernel may need that long to tear down the previous
# pod. A start right after it can be cheaper by the RCU grace period for which its move between cgroups otherwise
# waits; without the pause, the comparison would depend on that timing.
REST = 0.15

# Like gantry's default network, with other names and addresses.
LIST = {
    "cniVersion": "1.0.0", "name": "bench", "plugins": [
        {"type": "bridge", "bridge": "bench0", "isGateway": True, "ipMasq": True, "hairpinMode": True,
         "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.201.0.0/16"}], [{"subnet": "fd00:201::/64"}]],
                  "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall", "ingressPolicy": "same-bridge"}],
}

# A host with loopback, a veth pair without a peer host, and a default route.
HOST = """
mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns
ip link set lo up
ip link add up0 type veth peer name up1
ip addr add 192.0.2.1/24 dev up0
ip link set up0 up && ip link set up1 up
ip route add default via 192.0.2.2
exec "$@"
"""


def on_host(*command):
    """A command on a host of its own."""
    return [program("unshare"), "--net", "--mount", "--propagation", "private", "sh", "-ec", HOST, "sh", *command]


class Host:
    """A private host with gantry and podman. `stack` cleans up."""

    def __init__(self, world, stack, name):
        self.world = world
        self.work = os.path.join(world.work, name)
        os.makedirs(os.path.join(self.work, "net.d"))
        self.runner = stack.enter_context(Runner(prefix=on_host()))
        self.stack = stack
        self.image = f"oci:{world.layout}"

    def list_for(self, bridge, name):
        """Writes a configuration list with a bridge of its own; returns its path."""
        network = json.loads(json.dumps(LIST).replace("bench0", bridge).replace('"bench"', f'"{name}"'))
        network["plugins"][0]["ipam"]["dataDir"] = os.path.join(self.work, "leases")
        path = os.path.join(self.work, "net.d", f"{name}.conflist")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(network, file)
        return path

    def gantry(self):
        """gantry with the fixture image, the image's id, and the flag for each way to run networks."""
        directory = os.path.join(self.work, "gantry")
        gantry = Gantry(self.runner, self.world.options.programs, directory)
        ways = {}
        for name, text in (("built-in", "use-plugins = false"), ("plugins", "use-plugins = true")):
            path = os.path.join(self.work, f"{name}.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f'[network]\nconfig-dirs = ["{self.work}/net.d"]\nplugin-dirs = ["{PLUGINS}"]\n{text}\n')
            ways[name] = f"--config={path}"
        self.stack.callback(gantry.stop)
        said = self.runner.text(gantry.command("fetch", self.image))
        return gantry, said.split()[-1], ways

    def podman(self):
        """podman with the fixture image, and the image's id."""
        # In the namespaces of this host, and from there in the peers' root.
        at = f"/proc/{self.runner.process.pid}/ns"
        prefix = [program("nsenter"), f"--net={at}/net", f"--mount={at}/mnt"]
        runner = self.stack.enter_context(self.world.peers.runner(prefix=prefix))
        podman = Podman(runner, self.work)
        self.stack.callback(podman.stop)
        return podman, runner.text(podman.command("pull", "--quiet", f"{self.image}:latest")).split()[-1]


def without_plugins(stack, run, kept):
    """Wraps `run` to also record its time without its plugins': the plugins' own time varies by more than the runtime's
    whole share, so it is measured within the run."""
    trace = Trace(stack)
    plugins = {os.path.join(PLUGINS, plugin["type"]) for plugin in LIST["plugins"]}

    def measured(number):
        took, count, inside = trace.took(lambda: run(number), plugins)
        if count != 2 * len(plugins):
            raise Failed(f"{count} plugins ran where ADD and DEL of {len(plugins)} must")
        kept.append((number, took - inside))
        return took

    return measured


def contenders(world, host, kept):
    """name -> function that runs it once. `kept` receives (round, time without plugins in ns) of the run by plugins."""
    made = {}
    if world.wants("gantry"):
        gantry, image, ways = host.gantry()
        host.list_for("bench0", "bench")
        host.list_for("bench1", "external")

        def run(way, net):
            command = gantry.command(ways[way], "run", f"--net={net}", "--quiet", "--rm", image, "--exec", APP, "--", "true")
            return lambda _: host.runner.run(command)["ns"]

        made[NONE], made[DEFAULT] = run("built-in", "none"), run("built-in", "default")
        made[SAME] = run("built-in", "bench")
        made[EXTERNAL] = without_plugins(host.stack, run("plugins", "external"), kept)
    alone = [sys.executable, os.path.join(HERE, "cni.py"), host.list_for("bench2", "alone"), PLUGINS]
    made[ALONE] = lambda _: int(host.runner.text(alone))
    if world.wants("podman"):
        podman, image_of_podman = host.podman()

        def run_podman(network):
            command = podman.command("run", "--network", network, "--log-driver", "k8s-file", *podman.limits, "--rm",
                                     "--entrypoint", APP, image_of_podman, "true")
            return lambda _: podman.runner.run(command)["ns"]

        made[PODMAN], made[PODMAN_NONE] = run_podman("bridge"), run_podman("none")
    return made


def beside(world, rounds):
    """Set-up and tear-down of one pod beside idle ones: name -> summary."""
    rows = {}
    with ExitStack() as stack:
        host = Host(world, stack, "net-beside")
        gantry, image, ways = host.gantry()

        def start(net):
            return gantry.command(ways["built-in"], "run", f"--net={net}", "--detach", "--quiet", image, "--exec", APP, "--",
                                  "sleep", "forever")

        others = []
        for count in world.options.net_pods:
            while len(others) < count - 1:
                others.append(host.runner.text(start("default")).splitlines()[-1])
                if len(others) % 100 == 0:
                    world.note(f"net: {len(others)} pods")
            ended = {net: [] for net in ("none", "default")}

            def one(net, number, ended=ended):
                time.sleep(REST)
                begun = host.runner.run(start(net), keep=True)
                pod = begun["stdout"].split()[-1]
                took = host.runner.run(gantry.command(ways["built-in"], "rm", "--force", pod))["ns"]
                if number >= 2:
                    ended[net].append(took)
                return begun["ns"]

            samples = alternate({net: lambda number, net=net: one(net, number) for net in ended}, rounds, warm=2)
            label = f"{count} pod{'s' * (count > 1)}"
            for net in ended:
                rows[f"set-up, {net}, {label}"] = summary(samples[net])
                rows[f"tear-down, {net}, {label}"] = summary(ended[net])
    return dict(sorted(rows.items(), key=lambda row: (row[0].split(", ")[0], row[0].split(", ")[1])))


def flushed(world, rounds):
    """How long a pod lacks its rules after `nft flush ruleset` while gantryd runs; the documented limit is 2 s."""
    samples = []
    with ExitStack() as stack:
        host = Host(world, stack, "net-flushed")
        gantry, image, ways = host.gantry()
        start = gantry.command(ways["built-in"], "run", "--net=default", "--detach", "--quiet", image, "--exec", APP, "--",
                               "sleep", "forever")
        host.runner.run(start)
        # One process does everything in the host's namespace, so that program starts are not measured.
        daemon = [os.path.join(gantry.programs, "gantryd"), "--dir", gantry.directory, "--listen", "none"]
        watch = [sys.executable, "-c", FLUSH, str(rounds), *daemon]
        for line in host.runner.text(watch, deadline=60.0 + 5.0 * rounds).splitlines():
            samples.append(int(line))
    return {FLUSHED: summary(samples)}


# Starts gantryd, waits until it has restored the rules once, then flushes and waits for the rules; prints nanoseconds.
FLUSH = """
import subprocess, sys, time
rounds, daemon = int(sys.argv[1]), sys.argv[2:]
def there():
    return "gantry" in subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
def back():
    begun = time.monotonic_ns()
    while not there():
        if time.monotonic_ns() - begun > 30e9:
            sys.exit("the rules are not back after 30 s")
        time.sleep(0.005)
    return time.monotonic_ns() - begun
keeper = subprocess.Popen(daemon, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    time.sleep(2)
    for _ in range(rounds):
        subprocess.run(["nft", "flush", "ruleset"], check=True)
        print(back(), flush=True)
        # gantryd waits a second between two repairs; the measurement is of one isolated flush.
        time.sleep(1.5)
finally:
    keeper.terminate()
    keeper.wait()
"""


def run(world):
    """Rows: name -> summary."""
    rounds = world.options.rounds or 40
    with ExitStack() as stack:
        kept, warm = [], 3
        made = contenders(world, Host(world, stack, "net-run"), kept)
        rows = {name: summary(values) for name, values in alternate(made, rounds, warm).items()}
    if kept:
        rows[WITHIN] = summary([took for number, took in kept if number >= warm])
    if world.wants("gantry"):
        rows.update(beside(world, rounds))
        rows.update(flushed(world, min(rounds, 20)))
    return rows


def table_rows(rows):
    """The table, with the verdicts on the targets."""
    median = {name: row["median_ms"] for name, row in rows.items()}
    verdicts = {}

    def judge(name, figure, target, shown):
        verdicts[name] = f"{shown}: {'met' if figure <= target else 'MISSED'}"

    if NONE in median:
        over = median[DEFAULT] - median[NONE]
        judge(DEFAULT, over, MOST_MS, f"{over:+.2f} ms over none, most {MOST_MS:.0f}")
        extra = median[WITHIN] - median[NONE]
        judge(WITHIN, extra, EXTRA_MS, f"{extra:+.2f} ms over none, most {EXTRA_MS:.0f}")
        if PODMAN in median:
            of = median[DEFAULT] / median[PODMAN]
            judge(PODMAN, of, OF_PODMAN, f"default is {of:.3f} of it, most {OF_PODMAN}")
    if FLUSHED in rows:
        longest = max(rows[FLUSHED]["samples_ms"])
        judge(FLUSHED, longest, FLUSHED_MS, f"{longest:.0f} ms at most, documented {FLUSHED_MS:.0f}")
    for name, value in median.items():
        parts = name.split(", ")
        if len(parts) == 3 and parts[1] == "default" and parts[2] != "1 pod":
            first = median.get(f"{parts[0]}, default, 1 pod")
            if first:
                judge(name, value / first, GROWTH, f"{value / first:.2f} of 1 pod, most {GROWTH}")
    yield ["", "median ms", "min", "p90", "n", "target"]
    for name, row in rows.items():
        yield [name, *(f"{row[key]:.2f}" for key in ("median_ms", "min_ms", "p90_ms")), str(row["n"]), verdicts.get(name, "")]
