"""Servers on real loopback sockets: one that a test scripts byte by byte, and a plausible OpenAI-compatible API."""

import asyncio
import contextlib
import functools
import inspect
import json
import queue
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def run_on(loop: str, main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main)


Test = Callable[..., Coroutine[Any, Any, None]]


def on_loops(*loops: str) -> Callable[[Test], Callable[..., None]]:
    """Run an async test on each of these event loops."""

    def decorate(test: Test) -> Callable[..., None]:
        @functools.wraps(test)
        def run(loop: str, **arguments: Any) -> None:
            run_on(loop, test(**arguments))

        parameters = [inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)]
        parameters += [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(test).parameters.values()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        marked: Callable[..., None] = pytest.mark.parametrize("loop", loops)(run)
        return marked

    return decorate


on_uvloop = on_loops("uvloop")  # what the product runs on
both_loops = on_loops("uvloop", "asyncio")


@dataclass
class Listener:
    port: int = 0
    host: str = "127.0.0.1"
    accepted: int = 0
    open: int = 0
    faults: list[BaseException] = field(default_factory=list)  # of the handler: a test of ours that went wrong
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set while no connection is open

    def url(self, path: str = "/", scheme: str = "http") -> str:
        return f"{scheme}://{self.host}:{self.port}{path}"


@contextlib.asynccontextmanager
async def listening(
    handle: Handle, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Listener]:
    """`handle` serves each connection; a peer that goes away ends it quietly."""
    listener = Listener(host=f"[{host}]" if ":" in host else host)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener.accepted += 1
        listener.open += 1
        listener.idle.clear()
        try:
            await handle(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        except Exception as error:  # noqa: BLE001 - shown at the end of the test
            listener.faults.append(error)
        finally:
            listener.open -= 1
            writer.close()
            with contextlib.suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
                await writer.wait_closed()
            if not listener.open:
                listener.idle.set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, host, 0, ssl=tls, backlog=1024)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        while tasks:
            for task in list(tasks):
                task.cancel()
            await asyncio.wait(list(tasks))
        await server.wait_closed()
    assert listener.faults == []


@contextlib.contextmanager
def listening_in_a_thread(handle: Handle) -> Iterator[Listener]:
    """For a client that has a loop of its own."""
    ready: queue.Queue[tuple[Listener, asyncio.AbstractEventLoop, asyncio.Event]] = queue.Queue()

    async def main() -> None:
        stop = asyncio.Event()
        async with listening(handle) as listener:
            ready.put((listener, asyncio.get_running_loop(), stop))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    listener, loop, stop = ready.get(timeout=10)
    try:
        yield listener
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.body)
        return fields


async def receive(reader: asyncio.StreamReader) -> Received:
    """Raises IncompleteReadError where the peer hangs up."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(method, path, headers, body)


def answer(
    body: bytes | str = b"", status: str = "200 OK", content_type: str = "application/json", *more: str
) -> bytes:
    """A whole response with its length."""
    body = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *more]
    return "\r\n".join((*lines, "", "")).encode() + body


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def refusal(message: str, status: str = "400 Bad Request") -> bytes:
    return answer(json.dumps({"error": {"message": message, "type": "invalid_request_error"}}), status)


@dataclass(kw_only=True)
class Api:
    """Counts a word as one token, and as two when it has eight letters or more."""

    models: Sequence[str] = ("tiny",)
    answers: dict[str, bytes] = field(default_factory=dict)  # path -> whole response, instead of what follows
    key: str | None = None  # the API key it wants
    refuses: Sequence[str] = ()  # fields of a request that it answers with 400
    says: str = "unknown field {}"  # of the first it refuses
    tokenizes: bool = True
    counts: bool = True  # usage, where it is asked for
    template_tokens: int = 7
    tokenize_template_tokens: int | None = None  # what /tokenize takes the template for, where it is wrong
    tokenize_flat: bool = False  # /tokenize takes each word for one token, and is wrong
    word_tokens: int = 1
    takes_ids: bool = True
    event_tokens: int = 1
    max_model_len: int | None = 4096
    card: dict[str, Any] = field(default_factory=dict)  # more that it says of each model
    hold: asyncio.Event | None = None  # requests wait for it before their first token
    delay_s: float = 0  # from the request to its first token
    stop_words: int | None = None  # output tokens at which it stops unless ignore_eos is given
    received: list[Received] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await receive(reader)
            self.received.append(request)
            path = request.path.partition("?")[0]
            if path in self.answers:
                writer.write(self.answers[path])
            elif self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
                writer.write(refusal("bad key", "401 Unauthorized"))
            elif path == "/v1/models":
                writer.write(answer(json.dumps({"object": "list", "data": self._models()})))
            elif path == "/tokenize" and self.tokenizes:
                writer.write(answer(json.dumps({"tokens": self._ids(request.json())})))
            elif path in ("/v1/chat/completions", "/v1/completions"):
                await self._complete(request.json(), path == "/v1/chat/completions", writer)
            else:
                writer.write(answer('{"detail":"Not Found"}', "404 Not Found"))
            await writer.drain()

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the completions asked for, in order."""
        return [one.json() for one in self.received if one.path.partition("?")[0].endswith("completions")]

    def _models(self) -> list[dict[str, Any]]:
        card = {"object": "model", "max_model_len": self.max_model_len, **self.card}
        return [{"id": name, **card} for name in self.models]

    def _ids(self, fields: dict[str, Any]) -> list[int]:
        text = fields["prompt"] if "prompt" in fields else fields["messages"][0]["content"]
        words = [(word, 1 if self.tokenize_flat else self._cost(word)) for word in text.split()]
        template = self.template_tokens if self.tokenize_template_tokens is None else self.tokenize_template_tokens
        overhead = template if "messages" in fields else 1
        return [*range(overhead), *(int.from_bytes(word.encode()[:3]) for word, cost in words for _ in range(cost))]

    def _cost(self, word: str) -> int:
        return (2 if len(word) >= 8 else 1) * self.word_tokens

    def prompt_tokens(self, fields: dict[str, Any]) -> int:
        prompt = fields.get("prompt")
        if isinstance(prompt, list):
            return len(prompt)
        text = fields["messages"][0]["content"] if prompt is None else prompt
        overhead = self.template_tokens if prompt is None else 1
        return overhead + sum(map(self._cost, text.split()))

    async def _complete(self, fields: dict[str, Any], chat: bool, writer: asyncio.StreamWriter) -> None:
        if fields["model"] not in self.models:
            writer.write(refusal(f"The model `{fields['model']}` does not exist.", "404 Not Found"))
            return
        if isinstance(fields.get("prompt"), list) and not self.takes_ids:
            writer.write(refusal("prompt: expected a string"))
            return
        if refused := next((name for name in fields if name in self.refuses), None):
            writer.write(refusal(self.says.format(refused)))
            return
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            writer.write(STREAM_HEAD)
            if self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(self.delay_s)  # let the others in
            writer.write(chunked(self._stream(fields, chat)) + LAST_CHUNK)
        finally:
            self.in_flight -= 1

    def _stream(self, fields: dict[str, Any], chat: bool) -> bytes:
        tokens = fields.get("max_tokens") or fields["max_completion_tokens"]
        if self.stop_words is not None and "ignore_eos" not in fields:
            tokens = min(tokens, self.stop_words)
        options = fields.get("stream_options", {})
        prompt_tokens = self.prompt_tokens(fields)
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] if chat else []
        for sent in range(0, tokens, self.event_tokens):
            some = min(self.event_tokens, tokens - sent)
            text = " word" * some
            event: dict[str, Any] = {"choices": [{"delta": {"content": text}} if chat else {"text": text}]}
            if self.counts and options.get("continuous_usage_stats"):
                event["usage"] = {"prompt_tokens": prompt_tokens, "completion_tokens": sent + some}
            events.append(event)
        events.append({"choices": [{"delta": {}, "finish_reason": "length"}]})
        if self.counts and options.get("include_usage"):
            events.append({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}})
        return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"


def tokenizer_file(folder: Path) -> Path:
    """A tokenizer.json that counts a word as one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "The": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    return path
