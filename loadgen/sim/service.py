"""The simulated engine behind vLLM's HTTP API."""

import asyncio
import gc
import os
import resource
import signal
import threading
from collections.abc import Callable
from random import Random

import uvloop

from loadgen.clock import wall_ns
from loadgen.sim import api
from loadgen.sim.connection import Connection, Request, plain
from loadgen.sim.metrics import render
from loadgen.sim.spec import Spec
from loadgen.sim.timetable import Timetable

# Mean and deviation of the logarithm of the tokens after which an answer ends by itself.
_NATURAL_LENGTH = (5.3, 0.7)
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_METHODS = {
    "/health": "GET",
    "/v1/models": "GET",
    "/metrics": "GET",
    "/truth": "GET",
    "/tokenize": "POST",
    "/reset_prefix_cache": "POST",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
}


class Service:
    def __init__(self, spec: Spec, loop: asyncio.AbstractEventLoop) -> None:
        self.spec = spec
        self.timetable = Timetable(spec, loop)
        self._random = Random(spec.seed)
        self._started_ns = wall_ns()
        self._completions = 0

    def handle(self, connection: Connection, request: Request) -> None:
        try:
            answer = self._answer(connection, request)
        except api.Refused as refused:
            answer = plain(refused.body, status=refused.status)
        if answer is not None:
            connection.send(answer)
            connection.end()

    def _answer(self, connection: Connection, request: Request) -> bytes | None:
        """None: the timetable answers, later."""
        method = _METHODS.get(request.path)
        if method is None:
            raise api.Refused("Not Found", status=404)
        if request.method != method:
            raise api.Refused("Method Not Allowed", status=405)
        match request.path:
            case "/health":
                return plain(b"", content_type="text/plain")
            case "/v1/models":
                return plain(api.models(self.spec, self._started_ns // 1_000_000_000))
            case "/metrics":
                return plain(self._metrics().encode(), content_type=_PROMETHEUS)
            case "/truth":
                return plain(b"".join(self.timetable.truth.lines()), content_type="application/jsonl")
            case "/tokenize":
                return plain(api.tokenize(request.body, self.spec))
            case "/reset_prefix_cache":
                self.timetable.engine.reset_prefix_cache()
                return plain(b"", content_type="text/plain")
            case _:
                self._complete(connection, request)
                return None

    def _complete(self, connection: Connection, request: Request) -> None:
        chat = request.path == "/v1/chat/completions"
        natural_tokens = 1 + int(self._random.lognormvariate(*_NATURAL_LENGTH))
        completion = api.read_completion(request.body, self.spec, chat=chat, natural_tokens=natural_tokens)
        number = self._completions
        self._completions += 1
        answer = api.Answer(
            completion,
            completion_id=f"{'chatcmpl' if chat else 'cmpl'}-{self._started_ns:x}-{number}",
            created=wall_ns() // 1_000_000_000,
            model=self.spec.model.name,
        )
        self.timetable.submit(connection, completion, answer, number)

    def _metrics(self) -> str:
        engine, timetable = self.timetable.engine, self.timetable
        counted = engine.counters
        gauges = {
            "vllm:num_requests_running": engine.running,
            "vllm:num_requests_waiting": engine.waiting,
            "vllm:kv_cache_usage_perc": engine.kv_usage,
        }
        counters = {
            "vllm:num_preemptions_total": counted.preemptions,
            "vllm:prefix_cache_queries_total": counted.prefix_queries,
            "vllm:prefix_cache_hits_total": counted.prefix_hits,
            "vllm:prompt_tokens_total": counted.prompt_tokens,
            "vllm:generation_tokens_total": counted.generation_tokens,
            "sim:timetable_slips_total": timetable.slips,
            "sim:truth_forgotten_requests_total": timetable.truth.forgotten,
        }
        if self.spec.spec_tokens:
            counters |= {
                "vllm:spec_decode_num_drafts_total": counted.drafts,
                "vllm:spec_decode_num_draft_tokens_total": counted.draft_tokens,
                "vllm:spec_decode_num_accepted_tokens_total": counted.accepted_tokens,
            }
        return render(self.spec.model.name, gauges, counters, timetable.finished, timetable.latencies)


def run(spec: Spec, *, host: str, port: int, parent: bool, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM, or, with `parent`, until standard input ends; `ready` is told the port.

    Raises OSError where the address cannot be bound.
    """
    if parent:
        os.setpgid(0, 0)  # an interrupt at the terminal must not end the engine before the run is drained
        os.nice(10)  # it shares the machine with its client, and a client that waits for a core measures itself
    # A connection a stream: the usual soft limit of 1024 files would refuse the 1000th client.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(spec, host, port, parent, ready))


async def _serve(spec: Spec, host: str, port: int, parent: bool, ready: Callable[[int], None]) -> None:
    loop = asyncio.get_running_loop()
    service = Service(spec, loop)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(lambda: Connection(service.handle), host, port, backlog=4096)
    if parent:
        threading.Thread(target=_await_end_of_input, args=(loop, stop), daemon=True).start()
    # What lives for long is left out of collections, and these are made rare: each delays the tokens due meanwhile.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    ready(server.sockets[0].getsockname()[1])
    await stop.wait()
    server.close()
    service.timetable.close()


def _await_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # os.read, not sys.stdin: a thread that sleeps in the latter holds its lock when the interpreter ends.
    while os.read(0, 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
