"""Whatever ends the process that wants a server, or the server itself: nothing of it is left."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadgen import supervisor

PATIENCE_S = 20.0
SOON_S = 20.0

# Writes the numbers of all its processes: itself, a child, and one that has left the group, the session and its parent.
SERVER = """
import os, signal, subprocess, sys, time
if DEAF:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"])
stray = subprocess.run(
    [sys.executable, "-IS", "-c", "import subprocess as s; print(s.Popen(['sleep', '1000'], start_new_session=True, "
     "stdin=s.DEVNULL, stdout=s.DEVNULL, stderr=s.DEVNULL).pid)"], stdout=subprocess.PIPE, text=True)
print(os.getpid(), child.pid, stray.stdout.strip(), flush=True)
THEN
"""
FOREVER = "time.sleep(1000)"


def server(then: str = FOREVER, *, deaf: bool = False) -> list[str]:
    return [sys.executable, "-IS", "-c", SERVER.replace("THEN", then).replace("DEAF", str(deaf))]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")  # whoever is its parent by now may not have collected it yet


def wait_until(true: Callable[[], bool]) -> bool:
    for _ in range(int(SOON_S / 0.02)):
        if true():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def supervised() -> Iterator["Start"]:
    """The supervisor and the numbers of what its command has started."""
    started: list[subprocess.Popen[str]] = []
    seen: list[int] = []

    def start(command: list[str], patience_s: float = PATIENCE_S) -> tuple[subprocess.Popen[str], list[int]]:
        words = [sys.executable, "-IS", supervisor.__file__, str(patience_s), *command]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        seen.extend(pids)
        return process, pids

    yield start
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
    for pid in filter(alive, seen):
        os.kill(pid, signal.SIGKILL)


Start = Callable[..., tuple[subprocess.Popen[str], list[int]]]


def test_all_end_when_its_input_ends(supervised: Start) -> None:
    process, pids = supervised(server())
    assert [alive(pid) for pid in pids] == [True, True, True]
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(SOON_S) == 0
    assert [alive(pid) for pid in pids] == [False, False, False]


def test_what_does_not_listen_is_killed(supervised: Start) -> None:
    process, pids = supervised(server(deaf=True), patience_s=0.2)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(SOON_S) == 0
    assert [alive(pid) for pid in pids] == [False, False, False]


def test_the_server_is_asked_before_its_children_are(supervised: Start) -> None:
    then = "def end(*_):\n    os.write(1, f'{child.poll()}\\n'.encode())\n    sys.exit()\n"  # print may be under way
    then += "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\n"
    process, _ = supervised(server(then + FOREVER))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    out, _ = process.communicate(timeout=SOON_S)
    assert out == "None\n"  # its child was running


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("sys.exit(3)", 3),
        ("sys.exit(0)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("subprocess.run(['true'])\nsys.exit(4)", 4),  # children that end meanwhile are not taken for it
    ],
)
def test_a_server_that_ends_takes_the_rest_along(then: str, code: int, supervised: Start) -> None:
    process, pids = supervised(server(then))
    assert process.wait(SOON_S) == code
    assert [alive(pid) for pid in pids] == [False, False, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_as_well(number: signal.Signals, supervised: Start) -> None:
    process, pids = supervised(server())
    process.send_signal(number)
    assert process.wait(SOON_S) == 0
    assert [alive(pid) for pid in pids] == [False, False, False]


def test_the_server_is_told_even_if_the_supervisor_is_killed(supervised: Start) -> None:
    process, pids = supervised(server())
    process.kill()
    assert wait_until(lambda: not alive(pids[0]))


def test_a_killed_parent_is_noticed(tmp_path: Path) -> None:
    """As `loadgen` starts it: nobody is left to ask it to stop."""
    code = "import subprocess as s, sys; p = s.Popen(sys.argv[1:], stdin=s.PIPE); print(p.pid, flush=True); p.wait()"
    words = [sys.executable, "-IS", supervisor.__file__, str(PATIENCE_S), *server()]
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for _ in range(2) for word in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 4
    assert wait_until(lambda: not any(map(alive, pids)))


def test_a_process_that_one_look_misses_is_found_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[], [7], [], []])
    monkeypatch.setattr(supervisor, "_look", lambda: next(looks))
    assert supervisor._running() == [7]
    assert supervisor._running() == []


def test_a_command_that_cannot_be_run_is_one_line() -> None:
    words = [sys.executable, "-IS", supervisor.__file__, "1", "/no/such/thing"]
    ended = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.PIPE, timeout=SOON_S)
    assert (ended.returncode, ended.stdout) == (supervisor.NOT_STARTED, "")
    assert ended.stderr == "cannot start /no/such/thing: No such file or directory\n"


def test_it_stands_alone() -> None:
    """It is started by its path, without this package."""
    imports = re.findall(r"^(?:import|from) (\w+)", Path(supervisor.__file__).read_text(), re.MULTILINE)
    assert imports
    assert set(imports) <= sys.stdlib_module_names
