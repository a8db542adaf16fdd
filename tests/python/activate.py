#!/usr/bin/env python3
"""Starts a program with sockets, like systemd: from descriptor 3 on, with LISTEN_PID and LISTEN_FDS.

  activate.py KIND[,KIND…] PROGRAM [ARGUMENT …]

KIND: tcp (127.0.0.1, any port), tcp6 ([::1], any port), unix:/path, udp, file (no socket at all), connected (a socket
that does not listen).
"""
import os
import socket
import sys
import tempfile


def opened(kind):
    """An open file or socket of this kind, ready to be passed on."""
    if kind == "file":
        return tempfile.TemporaryFile()
    if kind == "connected":
        return socket.socketpair()[0]
    if kind.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX)
        made.bind(kind.removeprefix("unix:"))
        os.chmod(kind.removeprefix("unix:"), 0o660)
    elif kind == "tcp6":
        made = socket.socket(socket.AF_INET6)
        made.bind(("::1", 0))
    else:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
        made.bind(("127.0.0.1", 0))
    if kind != "udp":
        made.listen(128)
    return made


def main():
    kinds = sys.argv[1].split(",")
    # Duplicated to high numbers first: one of them may have the number that another one needs.
    made = [opened(kind) for kind in kinds]
    high = [os.dup2(one.fileno(), 100 + number, inheritable=False) for number, one in enumerate(made)]
    for one in made:
        one.close()
    for number, fd in enumerate(high):
        os.dup2(fd, 3 + number, inheritable=True)
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(kinds)),
                      LISTEN_FDNAMES=":".join("gantryd" for _ in kinds))
    os.execv(sys.argv[2], sys.argv[2:])


main()
