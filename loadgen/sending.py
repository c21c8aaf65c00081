"""The two ways a request of the load goes out: by the stamped transport, and by any other that httpx has.

Either returns when the answer has ended, and its body has been fed to the `Arrivals`. Raises httpx.HTTPError, OSError.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from loadgen.arrivals import Arrivals
from loadgen.clock import wall_ns
from loadgen.connection import END_MARKER_GRACE_S
from loadgen.transport import CONTROL_LIMIT_BYTES, StampedTransport, prepare

Send = Callable[[bytes, Arrivals], Awaitable[None]]

_HEADERS = {"Content-Type": "application/json"}


class Client(httpx.AsyncClient):
    """httpx's client, which also knows its transport where that is the stamped one.

    An answer that is not streamed has limits, whatever the transport: its size, unpacked too, and the time to its end.
    """

    def __init__(self, *, transport: httpx.AsyncBaseTransport | None = None, **options: Any) -> None:
        super().__init__(transport=transport, **options)
        self.stamped = transport if isinstance(transport, StampedTransport) else None

    async def send(self, request: httpx.Request, *, stream: bool = False, **options: Any) -> httpx.Response:
        if stream:
            return await super().send(request, stream=True, **options)
        limits = request.extensions.get("timeout", {})
        read_s, connect_s = limits.get("read"), limits.get("connect") or 0
        try:
            async with asyncio.timeout(None if read_s is None else connect_s + read_s):
                response = await super().send(request, stream=True, **options)
                try:
                    return await _whole(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise httpx.ReadTimeout(f"no answer within {read_s:g} s", request=request) from None


async def _whole(response: httpx.Response) -> httpx.Response:
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > CONTROL_LIMIT_BYTES:
            raise httpx.RemoteProtocolError(f"an answer of over {CONTROL_LIMIT_BYTES} bytes")
    headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
    whole = httpx.Response(response.status_code, headers=headers, content=bytes(body), request=response.request)
    whole.next_request = response.next_request
    return whole


def sender(client: Client, url: httpx.URL, connect_s: float) -> Send:
    """Sends bodies to `url`."""
    return _unstamped(client, url, connect_s) if client.stamped is None else _stamped(client, url, connect_s)


def _stamped(client: Client, url: httpx.URL, connect_s: float) -> Send:
    # The client makes the head, once; the way through it costs more than a hundred tokens do.
    assert client.stamped is not None
    post, transport = prepare(client.build_request("POST", url, headers=_HEADERS)), client.stamped

    async def send(body: bytes, arrivals: Arrivals) -> None:
        await transport.post(post, body, arrivals, connect_s)

    return send


def _unstamped(client: Client, url: httpx.URL, connect_s: float) -> Send:
    async def send(body: bytes, arrivals: Arrivals) -> None:
        request = client.build_request(
            "POST",
            url,
            content=body,
            headers=_HEADERS,
            timeout=httpx.Timeout(None, connect=connect_s),
            extensions={"trace": _note_times(arrivals)},
        )
        sent_ns = wall_ns()
        response = await client.send(request, stream=True)
        try:
            await _read(response, arrivals, sent_ns)
        finally:
            await response.aclose()

    return send


async def _read(response: httpx.Response, arrivals: Arrivals, sent_ns: int) -> None:
    """Read a response of a transport that does not stamp: the time of the read stands in."""
    arrivals.sent_ns = arrivals.sent_ns or sent_ns
    arrivals.status = response.status_code
    arrivals.headers = response.headers.raw
    arrivals.headers_ns = arrivals.last_ns = wall_ns()
    arrivals.unstamped_reads += 1
    try:
        async with asyncio.timeout(None) as grace:
            async for chunk in response.aiter_bytes():
                arrivals.last_ns = wall_ns()
                said = arrivals.feed(arrivals.last_ns, chunk)
                if said == "broken":
                    arrivals.finish(arrivals.last_ns, httpx.RemoteProtocolError("the answer cannot be read"))
                    return
                if said == "done":
                    grace.reschedule(asyncio.get_running_loop().time() + END_MARKER_GRACE_S)
    except TimeoutError:  # ended by its marker
        arrivals.finish(arrivals.last_ns)
    except httpx.RequestError as error:
        # h11 has one class for bytes that are not HTTP and for an end that came too early.
        cut = isinstance(error, httpx.ReadError) or "peer closed connection" in str(error)
        kind = httpx.ReadError if cut else httpx.RemoteProtocolError
        arrivals.finish(wall_ns(), kind(str(error) or "connection lost in the middle of the answer"))
    else:
        arrivals.finish(wall_ns())


def _note_times(arrivals: Arrivals) -> Callable[[str, object], Awaitable[None]]:
    """For httpx's own transport, which tells its steps: when a connection is begun, and a request sent on it."""

    async def trace(step: str, _: object) -> None:
        if step == "connection.connect_tcp.started":
            arrivals.connect_ns = wall_ns()
        elif step.endswith(".send_request_headers.started"):
            arrivals.sent_ns = arrivals.last_ns = wall_ns()

    return trace
