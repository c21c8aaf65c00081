"""How the transport reaches a server: names, addresses, refusals, time limits; never a proxy."""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterator

import httpx
import pytest

from loadgen import transport as transport_module
from loadgen.transport import StampedTransport
from tests.fakes_api import both_loops, listening, on_uvloop
from tests.fakes_client import client, echo, nothing_leaks, post, transport_of


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    with nothing_leaks():
        yield


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@both_loops
async def test_localhost_is_reached_where_only_one_address_listens(host: str) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)}
    if host not in addresses:
        pytest.skip(f"localhost does not resolve to {host} here")
    async with listening(echo, host) as server, client() as http:
        done = await asyncio.gather(*(post(http, f"http://localhost:{server.port}/") for _ in range(50)))
        assert [arrivals.status for arrivals, _ in done] == [200] * 50


@on_uvloop
async def test_an_ipv6_address_is_reached() -> None:
    async with listening(echo, "::1") as server, client() as http:
        arrivals, _ = await post(http, server.url())
        assert arrivals.status == 200


def resolved_to(monkeypatch: pytest.MonkeyPatch, loop_of: asyncio.AbstractEventLoop, *addresses: str) -> list[str]:
    """Names resolve to these addresses, and every other refusal takes its time; the names asked for."""
    asked = []
    delays_s = itertools.cycle((0, 0.02))

    async def getaddrinfo(host: str, port: int, **options: object) -> list[tuple[object, ...]]:
        asked.append(host)
        await asyncio.sleep(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def sock_connect(sock: socket.socket, address: tuple[str, int]) -> None:
        if address[0] == "127.0.0.1":
            await asyncio.sleep(next(delays_s))
        await loop_of.sock_connect(sock, address)

    class Loop:
        """uvloop's own methods cannot be replaced."""

        def __getattr__(self, name: str) -> object:
            return {"getaddrinfo": getaddrinfo, "sock_connect": sock_connect}.get(name) or getattr(loop_of, name)

    class Asyncio:
        def __getattr__(self, name: str) -> object:
            return Loop if name == "get_running_loop" else getattr(asyncio, name)

    monkeypatch.setattr(transport_module, "asyncio", Asyncio())
    return asked


@on_uvloop
async def test_all_addresses_are_tried_and_the_one_that_answers_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(echo, "127.0.0.3") as server, client() as http:
        asked = resolved_to(monkeypatch, asyncio.get_running_loop(), "127.0.0.1", "127.0.0.2", "127.0.0.3")
        url = f"http://name.test:{server.port}/"
        done = await asyncio.gather(*(post(http, url) for _ in range(100)))
        assert [arrivals.status for arrivals, _ in done] == [200] * 100
        tried = transport_of(http)._addresses["name.test", server.port]
        assert [address[0] for _, address in tried] == ["127.0.0.3", "127.0.0.1", "127.0.0.2"]
        await asyncio.gather(*(post(http, url) for _ in range(200)))
        assert asked == ["name.test"]  # though a hundred wanted it at once


@on_uvloop
async def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(echo, "127.0.0.2") as server, client() as http:
        with never_accepting(server.port):
            resolved_to(monkeypatch, asyncio.get_running_loop(), "127.0.0.1", "127.0.0.2")
            url = f"http://name.test:{server.port}/"
            assert (await http.get(url, timeout=httpx.Timeout(5, connect=1))).status_code == 200
        tried = transport_of(http)._addresses["name.test", server.port]
        assert [address[0] for _, address in tried] == ["127.0.0.2", "127.0.0.1"]


@on_uvloop
async def test_addresses_change_places_while_others_go_through_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(echo, "127.0.0.2") as server, client() as http:
        resolved_to(monkeypatch, asyncio.get_running_loop())
        both = [(socket.AF_INET, (host, server.port)) for host in ("127.0.0.1", "127.0.0.2")]
        transport_of(http)._addresses["name.test", server.port] = list(both)
        done = await asyncio.gather(*(post(http, f"http://name.test:{server.port}/") for _ in range(50)))
        assert [arrivals.status for arrivals, _ in done] == [200] * 50
        assert transport_of(http)._addresses["name.test", server.port] == both[::-1]


@on_uvloop
async def test_a_refused_connection_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with client() as http:
        with pytest.raises(httpx.ConnectError, match=f"^cannot connect to 127.0.0.1:{port}: connection refused$"):
            await post(http, f"http://127.0.0.1:{port}/")


@pytest.mark.parametrize("host", ["name.invalid", "a..b", "a" * 70])
@on_uvloop
async def test_a_name_that_does_not_resolve_says_so(host: str) -> None:
    async with client() as http:
        with pytest.raises(httpx.ConnectError, match=r"^cannot resolve [ab.]+|name.invalid: \w+"):
            await post(http, f"http://{host}:80/")


@contextlib.contextmanager
def never_accepting(port: int = 0) -> Iterator[int]:
    """A port whose queue is full: the kernel drops what else would connect."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


@both_loops
async def test_connecting_has_a_time_limit() -> None:
    with never_accepting() as port:
        async with client() as http:
            with pytest.raises(httpx.ConnectTimeout, match=f"^no connection to 127.0.0.1:{port} within 0.05 s$"):
                await http.get(f"http://127.0.0.1:{port}/", timeout=httpx.Timeout(5, connect=0.05))


@both_loops
async def test_a_cancelled_connect_leaves_nothing_behind() -> None:
    with never_accepting() as port:
        async with client() as http:
            task = asyncio.create_task(post(http, f"http://127.0.0.1:{port}/"))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(transport_of(http)._open) == 0


@on_uvloop
async def test_proxy_variables_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with listening(echo) as server, httpx.AsyncClient(transport=StampedTransport()) as http:
        assert (await http.get(server.url())).status_code == 200  # not even where httpx trusts the environment
