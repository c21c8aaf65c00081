"""Both ways out put the same request on the wire, and bring back the same answer."""

import httpx
import pytest

from loadgen.sending import Client, sender
from loadgen.transport import StampedTransport
from tests.fakes import DONE, FIN, ROLE, Received, content, serve, stream
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
