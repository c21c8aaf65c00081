"""A server is started, waited for, and gone afterwards."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadgen.endpoint import Access, open_client, parse_target
from loadgen.launch import Ended, Occupied, answers, end_of, hide_in, how, serving
from loadgen.record import Secrets
from tests.fakes_api import Api, answer, listening, on_uvloop
from tests.fakes_tls import little_trust
from tests.test_supervisor import alive, wait_until

__all__ = ["little_trust"]

pytestmark = pytest.mark.usefixtures("little_trust")

# Answers every request on the port with STATUS, once READY; a child of its own stays for as long.
SERVER = """
import os, signal, socket, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("pids", os.getpid(), child.pid, os.environ.get("FLAVOUR"), flush=True)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    path = connection.recv(65536).split()[1].decode()
    status = {STATUSES}.get(path, 404)
    connection.sendall(f"HTTP/1.1 {status} Any\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n".encode())
    connection.close()
    AFTER
"""
HEALTHY = "{'/health': 200}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-IS", "-c", code, *map(str, arguments)]


def a_server(port: int, statuses: str = HEALTHY, after: str = "pass", first: str = "") -> list[str]:
    return python(first + SERVER.replace("{STATUSES}", statuses).replace("AFTER", after), port)


@contextlib.asynccontextmanager
async def served(command: list[str], port: int, ready_s: float = 20, patience_s: float = 20) -> AsyncIterator[Ended]:
    """With its log in `log`."""
    async with open_client(Access()) as client:
        server = serving(
            command,
            {"FLAVOUR": "plain"},
            Path("log"),
            target=parse_target(f"http://127.0.0.1:{port}"),
            client=client,
            ready_s=ready_s,
            patience_s=patience_s,
        )
        async with server as ended:
            yield ended


def pids() -> list[int]:
    words = Path("log").read_text().splitlines()[0].split()
    assert words[0] == "pids"
    return [int(word) for word in words[1:3]]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@on_uvloop
async def test_it_serves_within_the_context_only() -> None:
    port = free_port()
    async with served(a_server(port), port) as ended:
        assert [alive(pid) for pid in pids()] == [True, True]
        assert not ended.done()
        parent = int(Path(f"/proc/{pids()[0]}/stat").read_text().rpartition(")")[2].split()[1])
        groups = [os.getpgid(pid) for pid in (parent, pids()[0])]
        assert groups == [parent, pids()[0]]  # an interrupt at the terminal goes to our group
    assert [alive(pid) for pid in pids()] == [False, False]
    assert Path("log").read_text().split()[3] == "plain"  # of the environment


@on_uvloop
async def test_one_that_does_not_listen_to_signals_is_killed() -> None:
    port = free_port()
    command = a_server(port, first="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    async with served(command, port, patience_s=0.2):
        pass
    assert [alive(pid) for pid in pids()] == [False, False]


@pytest.mark.parametrize(
    ("statuses", "ready"),
    [
        ({"/health": 200}, True),
        ({"/health": 503, "/v1/models": 200}, False),  # llama.cpp, while it loads
        ({"/v1/models": 200}, True),  # no /health
        ({"/v1/models": 401}, True),  # its preflight will say what is wrong
        ({"/health": 405, "/models": 200}, True),
        ({}, False),
        ({"/v1/models": 500}, False),
    ],
)
async def test_what_counts_as_ready(statuses: dict[str, int], ready: bool) -> None:
    said = dict.fromkeys(("/health", "/v1/models", "/models"), 404) | statuses
    api = Api(answers={path: answer("{}", f"{status} Any") for path, status in said.items()})
    async with listening(api) as server, open_client(Access()) as client:
        assert await answers(client, parse_target(server.url())) is ready


async def test_nobody_there_is_not_ready(dead_port: int) -> None:
    async with open_client(Access()) as client:
        assert not await answers(client, parse_target(f"http://127.0.0.1:{dead_port}"))


@on_uvloop
async def test_one_that_ends_before_is_told_by_its_exit_code(dead_port: int) -> None:
    with pytest.raises(ValueError, match=r"^the server ended with exit code 3 before it was ready$"):
        async with served(python("import sys; print('no memory'); sys.exit(3)"), dead_port):
            pytest.fail("it is not ready")
    assert end_of(Path("log")) == "no memory"


@on_uvloop
async def test_one_that_is_never_ready_is_stopped() -> None:
    port = free_port()
    expected = rf"^the server was not ready at http://127.0.0.1:{port} within 1 s \(--ready-timeout\)$"
    with pytest.raises(ValueError, match=expected):
        async with served(a_server(port, statuses="{'/health': 503}"), port, ready_s=1):
            pytest.fail("it is not ready")
    assert [alive(pid) for pid in pids()] == [False, False]


@on_uvloop
async def test_its_end_is_noticed() -> None:
    port = free_port()
    async with served(a_server(port, after="os.kill(os.getpid(), signal.SIGKILL)"), port) as ended, asyncio.timeout(20):
        assert how(await ended) == "the server was ended by SIGKILL: out of memory?"
    assert [alive(pid) for pid in pids()] == [False, False]


async def test_another_server_at_the_target_is_refused() -> None:
    async with listening(Api()) as other:
        with pytest.raises(Occupied, match=rf"something answers at http://127.0.0.1:{other.port} already"):
            async with served(a_server(other.port), other.port):
                pytest.fail("it was started")
    assert not Path("log").exists()


async def taken(port: int) -> socket.socket:
    for _ in range(1000):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
        await asyncio.sleep(0.01)
    raise AssertionError("the port is never free")


async def test_a_port_that_stays_in_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where `docker compose up --detach` leaves its container."""
    monkeypatch.setattr("loadgen.launch._FREE_S", 0.0)
    port = free_port()
    others: list[socket.socket] = []
    with pytest.raises(Occupied, match=r"still answers at .* after its server was stopped"):
        async with served(a_server(port, after="server.close(); time.sleep(1000)"), port):
            others.append(await taken(port))
    others[0].close()
    assert [alive(pid) for pid in pids()] == [False, False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@on_uvloop
async def test_an_interrupt_while_it_starts_stops_it(number: signal.Signals) -> None:
    port = free_port()
    after = f"os.kill({os.getpid()}, {int(number)})"
    with pytest.raises(asyncio.CancelledError):
        async with served(a_server(port, statuses="{'/health': 503}", after=after), port):
            pytest.fail("it is not ready")
    assert [alive(pid) for pid in pids()] == [False, False]


@pytest.mark.filterwarnings("ignore:subprocess .* is still running")
@on_uvloop
async def test_an_interrupt_while_it_is_stopped_leaves_the_rest_to_its_supervisor() -> None:
    port = free_port()
    command = a_server(port, first="import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    with pytest.raises(asyncio.CancelledError):
        async with served(command, port, patience_s=1):
            asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
    assert alive(pids()[0])
    assert wait_until(lambda: not any(map(alive, pids())))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, "the server ended with exit code 0"),
        (127, "the server ended with exit code 127"),
        (139, "the server was ended by SIGSEGV"),
        (255, "the server ended with exit code 255"),
    ],
)
def test_how_it_ended(code: int, says: str) -> None:
    assert how(code) == says


def test_secrets_are_taken_out_of_a_log() -> None:
    log = Path("log")
    log.write_bytes(b"args: api_key='hush-hush'\r\n\xff\xfe 50%\r100%\n")
    hide_in(log, Secrets(["hush-hush"]))
    assert log.read_bytes() == b"args: api_key='***'\r\n\xff\xfe 50%\r100%\n"


def test_the_end_of_a_log_is_its_last_lines() -> None:
    Path("log").write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert end_of(Path("log")).endswith("line 9998\nline 9999")
    assert len(end_of(Path("log"))) <= 4000
