"""Runs a command and leaves nothing of it behind: python supervisor.py PATIENCE_S COMMAND...

It lasts while the command runs and its own standard input is open. Nothing is read there: the end of it says that the
process at its other side wants the command stopped, or is gone, whatever ended it.

The kernel makes this process the parent of all that the command orphans, also where that has left its process group or
session: so what the command has started is found to the last. Asked to end, in turn: the command, which knows best how
to end its own; what it has left. What then still runs is killed.

Only the standard library: it is started alone, by its path.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

NOT_STARTED = 127  # the exit code, as that of a shell
_REST_S = 5.0  # for what the command has left
_STEP_S = 0.1
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


def main(patience_s: float, command: list[str]) -> int:
    """The exit code of the command: 128 and the signal where one has ended it, 0 where it was asked to end."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken = _wake_on_signals()
    try:
        # A group of its own, no session: Linux weighs niceness within a session only, and `nice vllm serve` is meant.
        server = subprocess.Popen(  # noqa: S603 - the user's own command
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_the_supervisor
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return NOT_STARTED
    code = _wait(server.pid, woken)
    server.returncode = 0  # it is collected here, by its number
    _end(server.pid, patience_s)
    return 0 if code is None else code if code >= 0 else 128 - code


def _wake_on_signals() -> int:
    """A file that can be read after each signal, with its number."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return woken


def _end_with_the_supervisor() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _wait(server: int, woken: int) -> int | None:
    """The exit code of the server; None where it is to be stopped."""
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if 0 in readable or set(os.read(woken, 512)) != {signal.SIGCHLD}:
            return None
        if (code := _collect().get(server)) is not None:
            return code


def _collect() -> dict[int, int]:
    """Exit codes, negative for a signal, of the children that have ended since."""
    codes = {}
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
    return codes


def _end(server: int, patience_s: float) -> None:
    if server in _running():
        _send([server], signal.SIGTERM)
        _wait_until(lambda: server not in _running(), patience_s)
    _send(_running(), signal.SIGTERM)
    _wait_until(lambda: not _running(), min(patience_s, _REST_S))
    while left := _running():
        _send(left, signal.SIGKILL)
        time.sleep(_STEP_S)


def _wait_until(true: Callable[[], bool], patience_s: float) -> None:
    for _ in range(int(patience_s / _STEP_S)):
        if true():
            return
        time.sleep(_STEP_S)


def _running() -> list[int]:
    """All that descends from this process and has not ended.

    One look misses a process whose parent ends while the look goes on; by the next one it is a child of this process.
    """
    return _look() or _look()


def _look() -> list[int]:
    _collect()
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            pid, _, rest = path.read_text(errors="replace").partition(" ")
            state, parent, *_ = rest.rpartition(")")[2].split()
            if state not in ("Z", "X"):
                parents[int(pid)] = int(parent)
    found = [os.getpid()]
    for one in found:  # it grows meanwhile
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
