"""Both ways out put the same request on the wire, and bring back the same answer."""

import gzip

import httpx
import pytest

from loadgen.sending import Client, sender
from loadgen.transport import CONTROL_LIMIT_BYTES, StampedTransport
from tests.fakes import DONE, FIN, ROLE, At, Received, content, response, serve, stream
from tests.fakes_pair import Kept

BODY = b'{"model":"m"}'
TRANSPORTS = {"stamped": StampedTransport, "httpx": httpx.AsyncHTTPTransport}


async def exchanged(transport: httpx.AsyncBaseTransport, userinfo: str = "") -> tuple[Received, Kept]:
    async with serve(stream(ROLE, content("a"), FIN, DONE)) as server:
        url = httpx.URL(server.url.replace("://", f"://{userinfo}"))
        async with Client(transport=transport, headers={"X-Team": "t"}, trust_env=False) as client:
            arrivals = Kept()
            await sender(client, url, connect_s=2)(BODY, arrivals)
        return server.requests[0], arrivals


@pytest.mark.parametrize("way", TRANSPORTS)
async def test_the_answer_is_fed_to_the_arrivals(way: str) -> None:
    request, arrivals = await exchanged(TRANSPORTS[way]())
    assert (request.method, request.body) == ("POST", BODY)
    assert (arrivals.status, arrivals.ended, arrivals.error) == (200, True, None)
    assert arrivals.body == b"".join((ROLE, content("a"), FIN, DONE))
    assert arrivals.connect_ns is not None
    assert arrivals.connect_ns <= arrivals.sent_ns
    assert (arrivals.unstamped_reads == 0) == (way == "stamped")


async def test_both_ways_send_the_same_headers() -> None:
    sent = [(await exchanged(make(), "user:p%40ss@"))[0] for make in TRANSPORTS.values()]
    headers = [{name.lower(): value for name, value in request.headers.items()} for request in sent]
    for one in headers:
        one["host"] = "any port"
    assert headers[0] == headers[1]
    assert headers[0]["authorization"] == "Basic dXNlcjpwQHNz"
    assert headers[0]["content-type"] == "application/json"
    assert headers[0]["content-length"] == str(len(BODY))


# What is not the load: models, tokens, the prefix cache


@pytest.mark.parametrize("way", TRANSPORTS)
async def test_an_answer_is_whole_and_unpacked(way: str) -> None:
    packed = response(200, gzip.compress(b"plain"), "content-encoding: gzip", "x-more: 1")
    async with serve(packed) as server, Client(transport=TRANSPORTS[way](), trust_env=False) as client:
        got = await client.get(server.url)
    assert (got.status_code, got.text, got.headers["x-more"]) == (200, "plain", "1")


@pytest.mark.parametrize("way", TRANSPORTS)
async def test_a_redirect_says_where_to(way: str) -> None:
    away = response(302, "", "location: http://h/p")
    async with serve(away) as server, Client(transport=TRANSPORTS[way](), trust_env=False) as client:
        got = await client.get(server.url)
    assert got.is_redirect
    assert got.next_request is not None
    assert got.next_request.url == "http://h/p"


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("packed", [True, False])
async def test_an_answer_has_a_limit_unpacked_too(packed: bool, way: str) -> None:
    body = bytes(CONTROL_LIMIT_BYTES + 1)
    script = response(200, gzip.compress(body) if packed else body, *(["content-encoding: gzip"] if packed else []))
    async with serve(script) as server, Client(transport=TRANSPORTS[way](), trust_env=False) as client:
        with pytest.raises(httpx.RemoteProtocolError, match=f"an answer of over {CONTROL_LIMIT_BYTES} bytes"):
            await client.get(server.url, timeout=30)


@pytest.mark.parametrize("way", TRANSPORTS)
async def test_an_answer_that_drips_has_a_time_limit(way: str) -> None:
    drip = [step for place in range(200) for step in (At(20 * place), b"1\r\nx\r\n")]
    script = [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", *drip]
    async with serve(script) as server, Client(transport=TRANSPORTS[way](), trust_env=False) as client:
        with pytest.raises(httpx.ReadTimeout, match=r"no answer within 0\.1 s"):
            await client.get(server.url, timeout=httpx.Timeout(0.1, connect=0.2))
