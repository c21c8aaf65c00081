"""The simulated engine in a process of its own."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

COMMAND = (sys.executable, "-m", "loadgen.cli.app", "sim")
_START_S = 30
_STOP_S = 5
_KEPT_BYTES = 4096  # of what it says on standard error


@contextlib.asynccontextmanager
async def start(spec: str, command: Sequence[str] = COMMAND) -> AsyncIterator[str]:
    """The URL of an engine that listens, and ends with the context.

    Raises ValueError, with what the process said, where it does not start.
    """
    process = await asyncio.create_subprocess_exec(
        *command,
        spec,
        *("--port", "0", "--parent"),
        stdin=asyncio.subprocess.PIPE,  # never written: its end tells the child that this process is gone
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said = bytearray()
    listener = asyncio.create_task(_listen(process, said))
    try:
        yield await _url(process, listener, said)
    finally:
        await _stop(process)
        await listener


async def _url(process: asyncio.subprocess.Process, listener: asyncio.Task[None], said: bytearray) -> str:
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
    except TimeoutError:
        raise ValueError(f"the simulated engine did not listen within {_START_S} s: {_text(said)}") from None
    url = line.decode("utf-8", "replace").strip()
    if not url.startswith("http://"):
        with contextlib.suppress(TimeoutError):  # it is ending by itself: its own exit code says more than our signal's
            await asyncio.wait_for(process.wait(), _STOP_S)
        await _stop(process)
        await listener
        raise ValueError(f"the simulated engine did not start: {_text(said) or f'exit code {process.returncode}'}")
    return url


async def _listen(process: asyncio.subprocess.Process, said: bytearray) -> None:
    """Keep reading, so that the child never waits for us; keep the end of it."""
    assert process.stderr is not None
    while data := await process.stderr.read(_KEPT_BYTES):
        said += data
        del said[:-_KEPT_BYTES]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _text(said: bytearray) -> str:
    return said.decode("utf-8", "replace").strip().removeprefix("loadgen: ")
