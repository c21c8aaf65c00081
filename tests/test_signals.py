"""Signals outside the event loop, on a process of its own."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.cli.signals import run_loop

_SPINS = """
import sys
from pathlib import Path
from loadgen.cli.signals import leave_at_once, run_loop

async def nothing(): return 1

leave_at_once()
assert run_loop(nothing()) == 1
Path(sys.argv[1]).touch()
try:
    while True: pass
finally:
    print("an exception")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_process_at_once(number: signal.Signals, tmp_path: Path) -> None:
    """Also when a loop has run."""
    ready = tmp_path / "ready"
    with subprocess.Popen(
        [sys.executable, "-c", _SPINS, ready], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        while not ready.exists():
            assert process.poll() is None
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")


def test_an_interrupt_of_the_loop_gives_no_result() -> None:
    async def main() -> int:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(30)
        return 1

    before = signal.getsignal(signal.SIGINT)
    assert run_loop(main()) is None
    assert signal.getsignal(signal.SIGINT) is before
