"""The bundle for crun and runc: the same root, namespaces, capabilities, mounts and filter as a gantry app's."""

import json
import os
import subprocess

from .measure import Failed

# The default set of podman and docker.
CAPS = [f"CAP_{name}" for name in (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID"
    " SYS_CHROOT").split()]

MASKED = [
    "/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
    "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/firmware",
]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]


def seccomp(path, machine="amd64", caps=CAPS):
    """The profile of containers-common as the `linux.seccomp` section of an OCI configuration.

    The profile has conditions (capabilities, architectures) unknown to runtimes; they are evaluated here.
    """
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)

    def applies(rule):
        includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
        if "arches" in includes and machine not in includes["arches"]:
            return False
        if machine in excludes.get("arches", []):
            return False
        if not all(cap in caps for cap in includes.get("caps", [])):
            return False
        return not any(cap in caps for cap in excludes.get("caps", []))

    native = next(entry for entry in profile["archMap"] if entry["architecture"] == "SCMP_ARCH_X86_64")
    rules = []
    for rule in profile["syscalls"]:
        if not applies(rule):
            continue
        made = {"names": rule["names"], "action": rule["action"]}
        if rule.get("args"):
            made["args"] = rule["args"]
        if "errnoRet" in rule:
            made["errnoRet"] = rule["errnoRet"]
        rules.append(made)
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": [native["architecture"], *native["subArchitectures"]],
        "syscalls": rules,
    }


def mount(kind, target, options, source=None):
    return {"destination": target, "type": kind, "source": source or kind, "options": options}


def configuration(root, argv, cgroup, profile):
    """An OCI runtime configuration."""
    safe = ["nosuid", "noexec", "nodev"]
    return {
        "ociVersion": "1.0.2",
        "root": {"path": root, "readonly": False},
        "hostname": "bench",
        "process": {
            "terminal": False, "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": argv, "noNewPrivileges": True,
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "capabilities": {kind: CAPS for kind in ("bounding", "effective", "permitted")},
        },
        "mounts": [
            mount("proc", "/proc", safe),
            mount("tmpfs", "/dev", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
            mount("devpts", "/dev/pts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
            mount("tmpfs", "/dev/shm", [*safe, "mode=1777", "size=65536k"], "shm"),
            mount("mqueue", "/dev/mqueue", safe),
            mount("sysfs", "/sys", [*safe, "ro"]),
        ],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
            "maskedPaths": MASKED, "readonlyPaths": READ_ONLY, "seccomp": seccomp(profile),
        },
    }


def bundle(directory, root, argv, cgroup, profile):
    """Makes a bundle directory. `profile`: the path of containers-common's seccomp profile."""
    os.makedirs(directory)
    with open(os.path.join(directory, "config.json"), "w", encoding="utf-8") as file:
        json.dump(configuration(root, argv, cgroup, profile), file)


def read_blob(layout, descriptor):
    with open(blob(layout, descriptor), encoding="utf-8") as file:
        return json.load(file)


def blob(layout, descriptor):
    """The path of a blob in a layout."""
    return os.path.join(layout, "blobs", *descriptor["digest"].split(":", 1))


def layers(layout):
    """The layer files of the one image in an OCI layout, lowest first."""
    with open(os.path.join(layout, "index.json"), encoding="utf-8") as file:
        found = json.load(file)
    while "manifests" in found:
        found = read_blob(layout, found["manifests"][0])
    return [blob(layout, layer) for layer in found["layers"]]


def unpack(layout, root):
    """Unpacks the image of a layout (gzip or plain layers, no whiteouts: the fixture image) into a new directory."""
    os.makedirs(root)
    for layer in layers(layout):
        done = subprocess.run(
            ["tar", "--extract", "--numeric-owner", "--same-permissions", "--file", layer, "--directory", root],
            stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"unpacking {layer}: {done.stderr}")
