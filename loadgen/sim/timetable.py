"""The engine in real time: it steps, and what a step generates is written when the step ends.

A step that begins at t ends at t + its duration, whenever the loop comes to it, and the next begins where it ended; an
idle engine begins when a request arrives. So lateness does not add up. What a step will write is made ready while it
lasts; when it ends, only writes are left, and all other work follows them. A host that falls `_SLIP_NS` behind has the
timetable moved to the present, and that is counted.
"""

import asyncio

import msgspec

from loadgen.alarm import Alarm
from loadgen.clock import mono_ns, wall_ns
from loadgen.sim import tokens
from loadgen.sim.api import Answer, Completion
from loadgen.sim.connection import STREAM_HEAD, Connection, chunk, plain
from loadgen.sim.engine import Engine, Sequence
from loadgen.sim.metrics import Latencies
from loadgen.sim.spec import Spec
from loadgen.sim.truth import Record, Truth

_SLIP_NS = 100_000_000
_UNDISTURBED_NS = 5_000
_LAST_CHUNK = b"0\r\n\r\n"


class Stream(msgspec.Struct, eq=False, kw_only=True):
    """One completion on its way. Times are of the timetable, on the monotonic clock."""

    connection: Connection
    completion: Completion
    answer: Answer
    record: Record
    sequence: Sequence
    text_start: int  # where its text begins in the endless answer
    arrived_ns: int
    admitted_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    generated: int = 0
    lost: bool = False


class _Output(msgspec.Struct, frozen=True, gc=False):
    """What one stream gets when the step ends. No data: an answer that is not streamed, and not complete."""

    stream: Stream
    data: bytes
    tokens: int
    last: bool


class Timetable:
    def __init__(self, spec: Spec, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = Engine(spec)
        self.truth = Truth()
        self.latencies = Latencies()
        self.finished = {"stop": 0, "length": 0, "abort": 0}
        self.slips = 0
        self._streams: dict[int, Stream] = {}
        self._alarm = Alarm(loop, self._end_step)
        self._outputs: list[_Output] = []
        self._end_ns: int | None = None  # of the running step; None: idle
        self._wall_offset_ns = wall_ns() - mono_ns()

    def submit(self, connection: Connection, completion: Completion, answer: Answer, number: int) -> None:
        """Start a completion; `number` tells it from all others and draws its text."""
        arrived_ns = mono_ns()
        record = self.truth.begin(answer.id, arrived_ns + self._offset_ns(arrived_ns))
        text_start = number * 1009
        output = tokens.output_ids(text_start, completion.output_tokens)
        stream = Stream(
            connection=connection,
            completion=completion,
            answer=answer,
            record=record,
            sequence=self.engine.add(number, completion.prompt, output),
            text_start=text_start,
            arrived_ns=arrived_ns,
        )
        self._streams[number] = stream
        connection.on_lost = lambda: self._drop(stream)
        if completion.stream:
            connection.send(STREAM_HEAD)
        if self._end_ns is None:
            self._begin_step(arrived_ns)

    def close(self) -> None:
        self._alarm.close()

    def _drop(self, stream: Stream) -> None:
        stream.lost = True
        stream.record.status = "aborted"
        self.finished["abort"] += 1
        self.engine.cancel(stream.sequence.id)
        self._streams.pop(stream.sequence.id, None)

    def _begin_step(self, start_ns: int) -> None:
        step = self.engine.step()
        if step is None:
            self._end_ns = None
            return
        self._end_ns = start_ns + round(step.duration_s * 1e9)
        self._alarm.set(self._end_ns)
        for number in step.admitted:
            self._streams[number].admitted_ns = start_ns
        finished = set(step.finished)
        self._outputs = [
            _ready(self._streams[number], produced, last=number in finished) for number, produced in step.tokens
        ]

    def _end_step(self) -> None:
        end_ns = self._end_ns
        assert end_ns is not None, "the alarm is set when a step begins"
        now_ns = mono_ns()
        if now_ns < end_ns:
            self._alarm.set(end_ns)
            return
        due_ns = end_ns + self._offset_ns(now_ns)
        written = []
        for output in self._outputs:
            if output.data and not output.stream.lost:
                output.stream.connection.send(output.data)
            written.append(wall_ns())
        for output, written_ns in zip(self._outputs, written, strict=True):
            if output.data and not output.stream.lost:
                self.truth.add(output.stream.record, due_ns, written_ns, output.tokens)
            self._account(output, end_ns)
        if now_ns - end_ns > _SLIP_NS:
            self.slips += 1
            end_ns = now_ns
        # A request that follows at once on the same connection finds the engine between two steps, and joins the next.
        for output in self._outputs:
            if output.last and not output.stream.lost:
                output.stream.connection.end()
        self._begin_step(end_ns)

    def _offset_ns(self, now_ns: int) -> int:
        """Of the wall clock to the monotonic clock. Not taken anew where this process was preempted between the two."""
        offset_ns = wall_ns() - now_ns
        if mono_ns() - now_ns < _UNDISTURBED_NS:
            self._wall_offset_ns = offset_ns
        return self._wall_offset_ns

    def _account(self, output: _Output, end_ns: int) -> None:
        stream = output.stream
        if stream.lost:
            return
        if stream.first_ns == 0:
            stream.first_ns = end_ns
            self.latencies.time_to_first_token.observe((end_ns - stream.arrived_ns) / 1e9)
        else:
            self.latencies.inter_token_latency.observe((end_ns - stream.last_ns) / 1e9)
        stream.last_ns = end_ns
        if output.last:
            stream.record.status = "finished"
            del self._streams[stream.sequence.id]
            self.finished[stream.completion.finish_reason] += 1
            # A step can have begun a little before a request came that it still took in; no wait is below 0.
            begun_ns = max(stream.admitted_ns, stream.arrived_ns)
            self.latencies.request_queue_time.observe((begun_ns - stream.arrived_ns) / 1e9)
            self.latencies.request_prefill_time.observe((stream.first_ns - begun_ns) / 1e9)
            self.latencies.request_decode_time.observe((end_ns - stream.first_ns) / 1e9)
            self.latencies.e2e_request_latency.observe((end_ns - stream.arrived_ns) / 1e9)


def _ready(stream: Stream, produced: int, *, last: bool) -> _Output:
    """The bytes with which a stream's next `produced` tokens leave, and all that follows the last of them."""
    first = stream.generated == 0
    text_at = stream.text_start + stream.generated
    stream.generated += produced
    cached = stream.sequence.cached or 0
    if not stream.completion.stream:
        if not last:
            return _Output(stream, b"", produced, last)
        text = tokens.output_text(stream.text_start, stream.generated)
        return _Output(stream, plain(stream.answer.whole(text, cached)), stream.generated, last)
    text = tokens.output_text(text_at, produced)
    data = chunk(stream.answer.text_event(text, stream.generated, cached, last=last))
    if first and stream.completion.chat:
        data = chunk(stream.answer.role_event(cached)) + data
    if last:
        data += chunk(stream.answer.closing_events(cached)) + _LAST_CHUNK
    return _Output(stream, data, produced, last)
