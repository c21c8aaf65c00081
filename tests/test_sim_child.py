"""The simulated engine as a process."""

import asyncio
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from loadgen.sim import child

SPEC = "llama-3.1-8b@h100"
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def healthy(url: str) -> bool:
    with NO_PROXY.open(f"{url}/health", timeout=10) as answer:
        return bool(answer.status == 200)


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*child.COMMAND, SPEC, "--port", "0", "--parent"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield process, process.stdout.readline().strip()
        process.kill()


async def test_it_serves_within_the_context_only() -> None:
    async with child.start(SPEC) as url:
        assert await asyncio.to_thread(healthy, url)
    host, _, port = url.removeprefix("http://").rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


async def test_a_failed_start_tells_what_it_said() -> None:
    with pytest.raises(ValueError, match=r"did not start: .*unknown GPU 'h1000'"):
        async with child.start("llama-3.1-8b@h1000"):
            pass


async def test_a_child_that_ends_without_a_word() -> None:
    with pytest.raises(ValueError, match="did not start: exit code 3"):
        async with child.start(SPEC, (sys.executable, "-c", "raise SystemExit(3)")):
            pass


def test_it_ends_with_its_parent(served: tuple[subprocess.Popen[str], str]) -> None:
    process, url = served
    assert healthy(url)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quietly(served: tuple[subprocess.Popen[str], str], number: signal.Signals) -> None:
    process, url = served
    assert healthy(url)
    process.send_signal(number)
    assert process.wait(10) == 0
    assert process.stdout is not None
    assert process.stderr is not None
    assert (process.stdout.read(), process.stderr.read()) == ("", "")


def test_a_port_in_use_is_one_line_and_exit_2() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = subprocess.run([*child.COMMAND, SPEC, "--port", port], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.splitlines() == [
        f"loadgen sim: cannot listen on 127.0.0.1 port {port}: it is in use; --port 0 picks a free one"
    ]
