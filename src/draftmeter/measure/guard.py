"""Stands between draftmeter and a server it started, so that nothing is left behind.

``python -I -S guard.py GRACE_S COMMAND...`` runs the command in a session of its own and waits for
its end, or for the end of its own standard input. draftmeter holds the other end of that pipe:
however draftmeter ends, SIGKILL included, the pipe closes, and the guard ends the command, its
process group, and whatever left the group. As the subreaper of all of them (Linux) it finds
those too. Standard library only: it must start at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Linux's prctl; does nothing elsewhere."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def parent_of(pid: int) -> int:
    """The parent of a process; 0 when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib costs start-up time
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == b"Z" else int(fields[1])


def descendants() -> list[int]:
    """Living processes below this one, wherever they went; empty without /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208
    except OSError:
        return []
    parents = {pid: parent_of(pid) for pid in pids}
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return sorted(found - {os.getpid()})


def signal_group(pid: int, number: int) -> None:
    """Signal the command's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(child: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """SIGTERM to the group, SIGKILL after the grace, then every descendant that remains."""
    signal_group(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and (child.poll() is None or descendants()):
        time.sleep(0.02)
    signal_group(child.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (rest := descendants()) and time.monotonic() < deadline:
        for pid in rest:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        reap()
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)


def reap() -> None:
    """Collect adopted children that ended, so that they do not stay as zombies."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input does; its exit code, 128+n for signal n."""
    grace_s, command = float(arguments[0]), arguments[1:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    ended = False

    def stop(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  one thread
        )
    except OSError as error:
        print(f"error: cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 127
    while not ended and child.poll() is None:
        ready, _, _ = select.select([0, wake_read], [], [], 1.0)
        if wake_read in ready:
            os.read(wake_read, 512)
        if 0 in ready and not os.read(0, 512):
            ended = True
    end(child, grace_s if child.poll() is None else 0.2)
    code = child.returncode
    return 137 if code is None else 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
