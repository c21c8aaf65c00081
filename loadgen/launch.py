"""A server of ours: started, waited for, and stopped with all that it has started. See supervisor.py for the last."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from loadgen import supervisor
from loadgen.clock import mono_ns
from loadgen.endpoint import Target, root, under
from loadgen.record import Secrets
from loadgen.sending import Client

PATIENCE_S = 30.0  # from asking a server to end to killing it; longer than the 10 s that Docker gives a container
_POLL_S = 0.1
_PROBE_S = 5.0
_FREE_S = 30.0  # from the end of a server to that of its port
_STUCK_S = 60.0  # from killing to giving up: a process can be held up in a driver
_SHOWN_BYTES = 4000

Ended = asyncio.Task[int]  # the server's exit code, as that of a shell


class Occupied(ValueError):  # noqa: N818 - a state of the address
    """What answers at the target is not the server that was started: no setting could be measured there."""


@contextlib.asynccontextmanager
async def serving(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    target: Target,
    client: Client,
    ready_s: float,
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Ended]:
    """The server answers at the target within the context, or has ended. `environment` goes on top of ours; its output
    goes to `log`.

    Raises Occupied; ValueError, one line, where it does not get ready; CancelledError on an interrupt before and after
    the context. A server that is being stopped then ends without us.
    """
    await check_free(target)
    process = _start(command, environment, log, patience_s)
    ended = asyncio.create_task(_ended(process))
    try:
        with interruptible():
            await _ready(client, target, ended, ready_s)
        yield ended
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            with interruptible():
                await _gone(target, ended, patience_s)
        finally:
            ended.cancel()


async def check_free(target: Target) -> None:
    """Raises Occupied."""
    if await _listens(target):
        raise Occupied(
            f"something answers at {target.label} already, and would be measured instead: end it, or say another target"
        )


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM cancel the current task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def answers(client: Client, target: Target) -> bool:
    """Whether the server is ready: by /health, and by the list of models where there is no such path."""
    urls = [under(root(target.bases[0]), "/health"), *(under(base, "/models") for base in target.bases)]
    for url in urls:
        try:
            status = (await client.get(url, timeout=_PROBE_S)).status_code
        except httpx.HTTPError:
            return False
        if status not in (404, 405):
            return status in (200, 401, 403)  # a wrong key is for the preflight to tell
    return False


def how(code: int) -> str:
    """A server ended, in words."""
    if code <= 128:
        return f"the server ended with exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"the server ended with exit code {code}"
    return f"the server was ended by {name}" + (": out of memory?" if name == "SIGKILL" else "")


def hide_in(log: Path, secrets: Secrets) -> None:
    """Take secrets out of a log that is complete: servers print their flags."""
    text = log.read_bytes().decode("utf-8", "surrogateescape")
    hidden = "\n".join(map(secrets.hide, text.split("\n")))
    if hidden != text:
        log.write_bytes(hidden.encode("utf-8", "surrogateescape"))


def end_of(log: Path) -> str:
    """The last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _SHOWN_BYTES))
        return file.read().decode("utf-8", "replace").strip()


def _start(
    command: Sequence[str], environment: Mapping[str, str], log: Path, patience_s: float
) -> subprocess.Popen[bytes]:
    """Not as a subprocess of the loop: that would be killed with the loop, and no longer stop the server."""
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603 - the user's own command
            [sys.executable, "-IS", supervisor.__file__, str(patience_s), *command],
            env=os.environ | environment,
            stdin=subprocess.PIPE,  # never written: see supervisor.py
            stdout=output,
            stderr=output,
            process_group=0,  # an interrupt at the terminal must not end the server before the run is drained
        )


async def _ended(process: subprocess.Popen[bytes]) -> int:
    while (code := process.poll()) is None:  # noqa: ASYNC110 - it waits for a process, not for an event
        await asyncio.sleep(_POLL_S)
    return code if code >= 0 else 128 - code


async def _ready(client: Client, target: Target, ended: Ended, ready_s: float) -> None:
    deadline_ns = mono_ns() + int(ready_s * 1e9)
    while mono_ns() < deadline_ns:
        if ended.done():
            raise ValueError(f"{how(ended.result())} before it was ready")
        if await answers(client, target):
            return
        await asyncio.sleep(_POLL_S)
    raise ValueError(f"the server was not ready at {target.label} within {ready_s:g} s (--ready-timeout)")


async def _gone(target: Target, ended: Ended, patience_s: float) -> None:
    stopped, _ = await asyncio.wait({ended}, timeout=2 * patience_s + _STUCK_S)
    if not stopped:
        raise Occupied(f"the server at {target.label} does not end, although it was killed: end it by hand")
    deadline_ns = mono_ns() + int(_FREE_S * 1e9)
    while await _listens(target):
        if mono_ns() > deadline_ns:
            raise Occupied(f"something still answers at {target.label} after its server was stopped: end it by hand")
        await asyncio.sleep(_POLL_S)


async def _listens(target: Target) -> bool:
    url = target.bases[0]
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(url.host, port), _PROBE_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
