"""Runs the plugins of a network directly, as in CNI 1.0.0, section 3: ADD in order, then DEL in reverse order.

Prints the total run time of the plugins in nanoseconds, each from its start to its end, and nothing else.
Arguments: the configuration list and the directory of the plugins. Runs in the host's network namespace.
"""

import json
import os
import subprocess
import sys
import time


def plugin(directory, environment, config):
    """Runs one plugin; returns its output and its run time. posix_spawn keeps Python's own share small."""
    files = []
    for name, text in (("config", json.dumps(config).encode()), ("answer", b""), ("complaint", b"")):
        files.append(os.memfd_create(name))
        os.write(files[-1], text)
        os.lseek(files[-1], 0, os.SEEK_SET)
    path = os.path.join(directory, config["type"])
    actions = [(os.POSIX_SPAWN_DUP2, file, number) for number, file in enumerate(files)]
    begin = time.monotonic_ns()
    _, status = os.waitpid(os.posix_spawn(path, [path], environment, file_actions=actions), 0)
    took = time.monotonic_ns() - begin
    said = [os.pread(file, os.fstat(file).st_size, 0) for file in files]
    for file in files:
        os.close(file)
    if status != 0:
        sys.exit(f"{config['type']} {environment['CNI_COMMAND']}: {said[1].decode()} {said[2].decode()}")
    return json.loads(said[1]) if said[1].strip() else None, took


def main():
    path, directory = sys.argv[1:3]
    with open(path, encoding="utf-8") as file:
        network = json.load(file)
    # The namespace of a container: it ends with its holder's standard input.
    with subprocess.Popen(["unshare", "--net", "--", "sh", "-c", "echo there; exec cat"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        environment = {**os.environ, "CNI_CONTAINERID": f"bench-{os.getpid()}", "CNI_IFNAME": "eth0",
                       "CNI_NETNS": f"/proc/{holder.pid}/ns/net", "CNI_PATH": directory}
        result, total = None, 0
        for command, plugins in (("ADD", network["plugins"]), ("DEL", network["plugins"][::-1])):
            for config in plugins:
                config = {**config, "cniVersion": network["cniVersion"], "name": network["name"]}
                config.pop("capabilities", None)
                if result is not None:
                    config["prevResult"] = result
                said, took = plugin(directory, {**environment, "CNI_COMMAND": command}, config)
                total += took
                if command == "ADD":
                    result = said
        holder.stdin.close()
    print(total)


if __name__ == "__main__":
    main()
