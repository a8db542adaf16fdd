"""A small process that starts commands and measures them, one at a time.

All tools are started from such a process, so that starting costs the same for each. It runs in the host's mount
namespace, or in one whose root is the directory given as its argument (see peer_root.py); entering namespaces or a root
for each command would add to the time of that command.

Protocol: one JSON request per line on standard input, one JSON reply per line on standard output.
Request: {"argv": [...], "deadline": seconds, "keep": bool (return standard output as well)}.
Reply: {"ns": start to exit, "code": exit code or -signal, "cpu": user and system seconds of the command and its
waited-for children, "stderr": its last 2000 bytes, "stdout": text or null}.
"""

import ctypes
import gc
import json
import os
# os.wait4 imports this module on first use, which fails in another root.
import resource  # noqa: F401
import signal
import sys
import tempfile
import time


# asm/unistd_64.h, sys/mount.h.
SYS_PIVOT_ROOT = 155
MNT_DETACH = 2


class Overdue(Exception):
    """The command did not end before its deadline."""


def overdue(_number, _frame):
    raise Overdue


def tail(file, most):
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), most, max(0, size - most)).decode(errors="replace")


def measure(argv, deadline, keep):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open("/dev/null", "r+b") as null:
        stdout = out if keep else null
        actions = [
            (os.POSIX_SPAWN_DUP2, null.fileno(), 0),
            (os.POSIX_SPAWN_DUP2, stdout.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, err.fileno(), 2),
        ]
        signal.setitimer(signal.ITIMER_REAL, deadline)
        pid, late = 0, False
        begin = time.monotonic_ns()
        try:
            pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions, setpgroup=0)
            _, status, usage = os.wait4(pid, 0)
            end = time.monotonic_ns()
        except Overdue:
            late = True
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            end = time.monotonic_ns()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return {
            "ns": end - begin,
            "code": os.waitstatus_to_exitcode(status),
            "cpu": usage.ru_utime + usage.ru_stime,
            "stderr": f"not done after {deadline} s\n" * late + tail(err, 2000),
            "stdout": tail(out, 1 << 24) if keep else None,
        }


def enter(root):
    """Makes a mount point the root of this process's mount namespace. Not by chroot: a runtime's `exec` joins the mount
    namespace of a container and gets its root, which pivot_root(2) inside a chroot does not change."""
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(root)
    if libc.syscall(SYS_PIVOT_ROOT, b".", b".") != 0 or libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {root}")
    os.chdir("/")


def main():
    # The benchmark itself handles the terminal's interrupt, and closes the standard input of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, overdue)
    gc.disable()
    if len(sys.argv) > 1:
        enter(sys.argv[1])
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = measure(request["argv"], request["deadline"], request["keep"])
        except OSError as error:
            answer = {"ns": 0, "code": 127, "cpu": 0, "stderr": f"{request['argv'][0]}: {error}", "stdout": None}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
