"""One request to one row.

    send     a POST whose response goes to an `Answer` as it arrives; the caller's wait ends with the stream
    judge    ok, failed with a kind, or cancelled; then the row goes out, in slices between the socket reads
    then     the next turn of a conversation has the answer in it

Time limits: `connect` is the transport's. `first` runs until the first output event: comments and role events do not
satisfy it. `idle` runs from any byte to the next. `total` runs from the send to the end. A user who leaves cuts the
answer off as a time limit does, so long after the request was due; that is no failure.
"""

import asyncio
import math
import re
import ssl
from collections.abc import Awaitable, Callable

import httpx
import msgspec

from loadgen.answer import Answer
from loadgen.arrivals import Arrivals
from loadgen.clock import wall_ns
from loadgen.conversation import next_turn
from loadgen.dialects import Dialect, body, error_body
from loadgen.record import Failure, Kind, Phase, Row, Secrets, Status
from loadgen.slices import Slices
from workloads.request import Request

_SHOWN_CHARS = 100  # of a header, in a message; of a finish_reason
_SSE_LINE = re.compile(rb"(\xef\xbb\xbf)?\s*(:|(data|event|id|retry)\b)")


class Limits(msgspec.Struct, frozen=True):
    first_s: float = 60.0
    idle_s: float = 30.0
    total_s: float = 600.0
    connect_s: float = 10.0


class Wire(msgspec.Struct, frozen=True, kw_only=True):
    """What every exchange of a run shares."""

    send: Callable[[bytes, Arrivals], Awaitable[None]]  # a body out; returns when the answer has ended
    dialect: Dialect
    limits: Limits
    slices: Slices
    secrets: Secrets
    emit: Callable[[Row], None]
    start_ns: int
    line_limit_bytes: int
    count_text: Callable[[str], int] | None = None


class Sent(msgspec.Struct, frozen=True):
    """What the load goes on with when a stream has ended."""

    ok: bool  # False: the request failed
    then: Request | None = None  # the next turn of its conversation, where there is one and this one went well
    then_due_ns: int | None = None  # wall clock


_WELL, _BADLY = Sent(ok=True), Sent(ok=False)
_LEFT = Failure("client", "the user left")  # stands in for a failure until the request is judged


class Exchange:
    def __init__(self, wire: Wire, request: Request, phase: Phase, due_ns: int | None = None) -> None:
        self._wire = wire
        self._request = request
        self._phase: Phase = phase
        self._due_ns = due_ns  # wall clock; None: due when it is sent
        self._begun_ns = 0
        self._body = body(wire.dialect, request.prompt, request.want_output_tokens, request.extra)
        self._answer = Answer(wire.line_limit_bytes, wire.count_text is not None, keep_said=request.then is not None)
        self._arrivals = Arrivals(self._answer.feed)
        self._failure: Failure | None = None
        self._cancelled = False

    async def run(self) -> Sent:
        """Send, and wait for the end of the stream; the row follows by itself.

        Raises CancelledError, and what must end the run: a full disk, a fault of ours.
        """
        loop = asyncio.get_running_loop()
        self._begun_ns = wall_ns()
        try:
            if self._leaves_in_s(self._begun_ns) <= 0:  # waited too long for its turn
                self._failure = _LEFT
                raise TimeoutError
            async with asyncio.timeout(None) as cut:
                watch = _Watch(self, cut, loop)
                try:
                    message, self._body = self._body, b""  # which can be long, and is of no use afterwards
                    await self._wire.send(message, self._arrivals)
                finally:
                    watch.stop()
        except TimeoutError:
            pass  # a time limit, and the failure is set
        except httpx.HTTPError as error:
            self._failure = _transport_failure(error)
            error.__traceback__ = None  # it holds this frame, which holds it
        except OSError as error:
            self._failure = Failure("client", f"{error.strerror or error}")
        except asyncio.CancelledError:
            self._cancelled = True
            raise
        except Exception as fault:
            self._failure = Failure("client", f"a fault of loadgen: {fault!r}"[:_SHOWN_CHARS])
            raise
        finally:
            if self._arrivals.sent_ns and not self._arrivals.ended:  # given up: it was in flight until now
                self._arrivals.end_ns = wall_ns()
            self._wire.slices.submit(self._finish)
        return self._sent()

    def overdue(self) -> tuple[Failure | None, float]:
        """The time limit that has passed, if one has; and the seconds until the next could."""
        overdue = self._overdue(wall_ns())
        if overdue[0] is not None and not self._arrivals.ended:
            self._arrivals.catch_up()  # it may be this client that is late
            overdue = self._overdue(wall_ns())
        return (None, 0) if self._arrivals.ended else overdue

    def _overdue(self, now_ns: int) -> tuple[Failure | None, float]:
        leaves_in_s = self._leaves_in_s(now_ns)
        if leaves_in_s <= 0:
            return _LEFT, 0
        failure, left_s = self._over_limit(now_ns)
        return failure, min(left_s, leaves_in_s)

    def _leaves_in_s(self, now_ns: int) -> float:
        if self._request.leave_us is None:
            return math.inf
        return (self._was_due_ns() + self._request.leave_us * 1000 - now_ns) / 1e9

    def _was_due_ns(self) -> int:
        return self._due_ns if self._due_ns is not None else self._arrivals.sent_ns or self._begun_ns

    def _over_limit(self, now_ns: int) -> tuple[Failure | None, float]:
        limits, arrivals = self._wire.limits, self._arrivals
        if not arrivals.sent_ns:  # still connecting: the transport's limit
            return None, min(limits.first_s, limits.idle_s, limits.total_s)
        since_sent_s = (now_ns - arrivals.sent_ns) / 1e9
        if since_sent_s >= limits.total_s:
            return Failure("timeout_total", f"not ended within {limits.total_s:g} s"), 0
        left_s = limits.total_s - since_sent_s
        if arrivals.headers_ns is None or not self._answer.events_ns:
            if since_sent_s >= limits.first_s:
                return Failure("timeout_first", f"no output within {limits.first_s:g} s"), 0
            left_s = min(left_s, limits.first_s - since_sent_s)
        if arrivals.headers_ns is not None:
            silent_s = (now_ns - arrivals.last_ns) / 1e9
            if silent_s >= limits.idle_s:
                return Failure("timeout_idle", f"silent for {limits.idle_s:g} s in the middle of the answer"), 0
            left_s = min(left_s, limits.idle_s - silent_s)
        else:
            left_s = min(left_s, limits.idle_s)
        return None, left_s

    def expire(self, failure: Failure) -> None:
        self._failure = failure

    def _finish(self) -> None:
        self._answer.close()
        self._wire.emit(self._row())

    def _sent(self) -> Sent:
        self._answer.close()
        status, _ = self._judge()
        if status != "ok" or self._request.then is None:
            return _BADLY if status == "failed" else _WELL
        then = next_turn(self._request, self._answer.said(), self._wire.dialect.api)
        return Sent(ok=True, then=then, then_due_ns=self._arrivals.end_ns + then.think_us * 1000)

    def _row(self) -> Row:
        wire, request, arrivals, answer = self._wire, self._request, self._arrivals, self._answer
        status, failure = self._judge()
        sent_ns = arrivals.sent_ns or None

        def since_start(ns: int | None) -> int | None:
            return None if ns is None else (ns - wire.start_ns) // 1000

        def since_sent(ns: int | None) -> int | None:
            return None if ns is None or sent_ns is None else (ns - sent_ns) // 1000

        return Row(
            level=request.level,
            index=request.index,
            phase=self._phase,
            status=status,
            error=failure,
            http_status=arrivals.status or None,
            retries=arrivals.retries,
            due_us=(self._was_due_ns() - wire.start_ns) // 1000,
            sent_us=since_start(sent_ns),
            connect_us=since_start(arrivals.connect_ns),
            headers_us=since_sent(arrivals.headers_ns),
            end_us=since_sent(arrivals.end_ns or None),
            events_us=[] if sent_ns is None else [(ns - sent_ns) // 1000 for ns in answer.events_ns],
            answer_event=answer.answer_event,
            bounds=answer.bounds,
            read_lag_us=None if arrivals.unstamped_reads else arrivals.read_lag_ns // 1000,
            want_input_tokens=request.want_input_tokens,
            want_output_tokens=request.want_output_tokens,
            finish_reason=self._finish_reason(),
            class_name=request.class_name,
            item=request.item,
            group=request.group,
            shared_tokens=request.shared_tokens,
            turn=request.turn,
            session=request.index - request.turn if request.turn or request.then is not None else None,
            left=status == "cancelled" and not self._cancelled,
            **msgspec.structs.asdict(answer.counts(wire.count_text)),
        )

    def _finish_reason(self) -> str | None:
        """One word, of a server that means well."""
        said = self._answer.finish_reason
        return None if said is None else self._wire.secrets.hide(said)[:_SHOWN_CHARS]

    def _judge(self) -> tuple[Status, Failure | None]:
        if self._cancelled:
            return "cancelled", None
        failure = self._failed()
        if failure is None:
            return "ok", None
        if failure is _LEFT:
            return "cancelled", None
        return "failed", Failure(failure.kind, self._wire.secrets.hide(failure.message))

    def _failed(self) -> Failure | None:
        arrivals, answer = self._arrivals, self._answer
        if arrivals.headers_ns is None:
            return self._failure or Failure("client", "the request ended without an answer or an error")
        if arrivals.status != 200:
            return _status_failure(arrivals.status, _header(arrivals, b"retry-after"), answer.sample)
        if answer.error is not None:
            return Failure("stream_error", answer.error)
        if answer.broken is not None:
            return Failure("protocol", answer.broken)
        if answer.ended:
            return None if answer.events_ns else Failure("empty", "the answer ended without any output")
        if self._failure is not None:
            return self._failure
        if arrivals.error is not None:
            broken = isinstance(arrivals.error, httpx.RemoteProtocolError)
            return Failure("protocol" if broken else "truncated", str(arrivals.error))
        if _SSE_LINE.match(answer.sample):
            return Failure("truncated", "the stream ended without finish_reason, usage or [DONE]")
        return self._no_stream()

    def _no_stream(self) -> Failure:
        sample = self._answer.sample
        if not sample.strip():
            return Failure("empty", "an answer without a body")
        if sample.lstrip().startswith(b"{") and b'"error"' in sample:
            return Failure("stream_error", error_body(sample))
        headers = (_header(self._arrivals, name) for name in (b"content-type", b"content-encoding"))
        form = ", ".join(filter(None, headers)) or "no content type"
        return Failure("protocol", f"not an event stream ({form}): {error_body(sample)[:100]}")


class _Watch:
    """Looks at an exchange when one of its time limits could have passed."""

    def __init__(self, exchange: Exchange, cut: asyncio.Timeout, loop: asyncio.AbstractEventLoop) -> None:
        self._exchange = exchange
        self._cut = cut
        self._loop = loop
        self._timer = loop.call_later(exchange.overdue()[1], self._look)

    def _look(self) -> None:
        failure, left_s = self._exchange.overdue()
        if failure is None:
            self._timer = self._loop.call_later(left_s + 0.001, self._look)
        else:
            self._exchange.expire(failure)
            self._cut.reschedule(self._loop.time())

    def stop(self) -> None:
        self._timer.cancel()


def _transport_failure(error: httpx.HTTPError) -> Failure:
    kind: Kind
    match error:
        case httpx.ConnectTimeout():
            kind = "timeout_connect"
        case httpx.ConnectError():
            kind = "tls" if _caused_by_tls(error) else "connect"
        case httpx.ReadError() | httpx.WriteError() | httpx.CloseError():
            kind = "connect"
        case httpx.RemoteProtocolError() if "without sending a response" in str(error):  # httpx's own transport
            kind = "connect"
        case httpx.ProtocolError() | httpx.DecodingError():
            kind = "protocol"
        case _:
            kind = "client"
    return Failure(kind, str(error) or type(error).__name__)


def _caused_by_tls(error: BaseException) -> bool:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _status_failure(status: int, retry_after: str | None, sample: bytes) -> Failure:
    said = error_body(sample)
    message = f"HTTP {status}" + (f": {said}" if said else "")
    if retry_after is not None:
        message += f" (retry after {retry_after[:40]})"
    limited = status == 429 or (status == 503 and retry_after is not None)
    return Failure("rate_limited" if limited else "http_status", message)


def _header(arrivals: Arrivals, name: bytes) -> str | None:
    """As much of it as a message has room for, without what a terminal would obey."""
    for key, value in arrivals.headers:
        if key.lower() == name:
            return "".join(filter(str.isprintable, value[:_SHOWN_CHARS].decode("latin-1")))
    return None
