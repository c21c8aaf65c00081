"""The service on a loopback socket, with an engine whose steps take about a millisecond."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from loadgen.sim import timetable, tokens
from loadgen.sim.connection import Connection
from loadgen.sim.engine import Engine
from loadgen.sim.service import Service
from loadgen.sim.spec import parse

SPEC = parse("qwen2.5-7b@b300,dtype=int4,max_num_seqs=4,max_model_len=4000,overhead_us=0")
CHAT = "/v1/chat/completions"


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    service = Service(SPEC, asyncio.get_running_loop())
    yield service
    service.timetable.close()


@pytest_asyncio.fixture
async def port(service: Service) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(service.handle), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest_asyncio.fixture
async def client(port: int) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield client


def chat(**options: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "one two three"}], "ignore_eos": True, **options}


def events(body: bytes) -> list[Any]:
    blocks = body.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""]
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-2]]


def content(streamed: list[Any]) -> list[str]:
    deltas = [event["choices"][0]["delta"]["content"] for event in streamed if event["choices"]]
    return [delta for delta in deltas if delta]


async def truth(client: httpx.AsyncClient) -> dict[str, Any]:
    records = map(json.loads, (await client.get("/truth")).text.splitlines())
    return {record["id"]: record for record in records}


async def metric(client: httpx.AsyncClient, name: str) -> float:
    page = (await client.get("/metrics")).text
    return float(next(line for line in page.splitlines() if line.startswith(f"{name}{{")).split()[-1])


async def test_small_endpoints(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health")).status_code == 200
    model = (await client.get("/v1/models")).json()["data"][0]
    assert (model["id"], model["max_model_len"]) == ("qwen2.5-7b", 4000)
    assert (await client.post("/tokenize", json={"prompt": "one two"})).json()["count"] == 3
    assert (await client.get("/health?verbose=1")).status_code == 200
    assert (await client.get("/nothing")).status_code == 404
    assert (await client.get(CHAT)).status_code == 405


async def test_a_streamed_chat(client: httpx.AsyncClient) -> None:
    options = {"include_usage": True}
    answer = await client.post(CHAT, json=chat(max_tokens=20, stream=True, stream_options=options))
    assert answer.headers["content-type"].startswith("text/event-stream")
    streamed = events(answer.content)
    assert streamed[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(content(streamed)) == 20
    assert all(len(tokens.encode(text)) == 1 for text in content(streamed))
    assert streamed[-1]["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 20,
        "total_tokens": 31,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


async def test_an_answer_in_one_piece(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/v1/completions", json={"prompt": [1, 2, 3], "max_tokens": 5})).json()
    assert len(answer["choices"][0]["text"].split()) == answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens"] == 3


async def test_refusals_are_json_with_a_status(client: httpx.AsyncClient) -> None:
    assert (await client.post(CHAT, json=chat(model="gpt"))).status_code == 404
    refused = await client.post(CHAT, content=b"{")
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == 400


async def test_the_timetable_is_the_engines(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Due times differ by exactly the step durations of the same engine run in virtual time: no lateness is added."""
    monkeypatch.setattr(timetable, "_SLIP_NS", 10**12)  # a machine that stalls is not what is tested
    answer = await client.post(CHAT, json=chat(max_tokens=60, stream=True))
    record = (await truth(client))[events(answer.content)[0]["id"]]
    engine = Engine(SPEC)
    engine.add(0, tokens.encode_chat([("user", "one two three")]), tuple(range(60)))
    durations_ns = [round(step.duration_s * 1e9) for step in iter(engine.step, None)]
    assert record["due_ns"][0] - record["arrived_ns"] == pytest.approx(durations_ns[0], abs=1e5)
    gaps_ns = [b - a for a, b in zip(record["due_ns"], record["due_ns"][1:], strict=False)]
    assert sum(gaps_ns) == pytest.approx(sum(durations_ns[1:]), abs=1e5)
    assert all(written >= due for due, written in zip(record["due_ns"], record["written_ns"], strict=True))
    assert record["tokens"] == [1] * 60
    assert record["status"] == "finished"


async def test_the_prefix_cache_shows_in_usage_and_can_be_reset(client: httpx.AsyncClient) -> None:
    async def cached() -> int:
        answer = await client.post("/v1/completions", json={"prompt": list(range(40)), "max_tokens": 1})
        found = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(found, int)
        return found

    assert [await cached(), await cached()] == [0, 32]
    await client.post("/reset_prefix_cache")
    assert await cached() == 0
    assert await metric(client, "vllm:prefix_cache_queries_total") == 120
    assert await metric(client, "vllm:prefix_cache_hits_total") == 32


async def test_many_at_once_are_batched_and_counted(client: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.post(CHAT, json=chat(max_tokens=10, stream=True)) for _ in range(12)))
    assert [len(content(events(answer.content))) for answer in answers] == [10] * 12
    assert await metric(client, "vllm:generation_tokens_total") == 120
    assert await metric(client, "vllm:prompt_tokens_total") == 132
    assert await metric(client, "vllm:time_to_first_token_seconds_count") == 12
    assert await metric(client, "vllm:inter_token_latency_seconds_count") == 108
    assert await metric(client, "vllm:request_queue_time_seconds_count") == 12
    assert await metric(client, "vllm:request_queue_time_seconds_sum") >= 0
    assert await metric(client, "vllm:num_requests_running") == 0


async def test_a_client_that_goes_away_frees_its_place(client: httpx.AsyncClient, port: int) -> None:
    body = json.dumps(chat(max_tokens=3000, stream=True)).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST %b HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body))
    assert (await reader.readuntil(b"\n\n")).startswith(b"HTTP/1.1 200 OK")
    assert await metric(client, "vllm:num_requests_running") == 1
    writer.close()
    await writer.wait_closed()
    for _ in range(1000):
        if await metric(client, "vllm:num_requests_running") == 0:
            break
    assert await metric(client, "vllm:kv_cache_usage_perc") == 0
    assert [record["status"] for record in (await truth(client)).values()] == ["aborted"]
    assert (await client.post(CHAT, json=chat(max_tokens=2))).status_code == 200


async def test_requests_may_follow_before_the_answer(port: int) -> None:
    """Pipelining: two completions, a plain request between them, in one write; answered in order."""
    body = json.dumps({"prompt": "a", "max_tokens": 3, "stream": True}).encode()
    post = b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    last = b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post + b"GET /health HTTP/1.1\r\n\r\n" * 40 + post + last)
    answered = await reader.read()
    writer.close()
    assert answered.count(b"[DONE]") == 2
    assert answered.count(b"HTTP/1.1 200 OK") == 43
    assert answered.endswith(b"}]}")
    assert answered.index(b"[DONE]") < answered.index(b"content-length: 0") < answered.rindex(b"[DONE]")


async def test_a_request_in_any_pieces(port: int) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 2}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    request += b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in request:
        writer.write(bytes((byte,)))
        await writer.drain()
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x02", b"GET / HTTP/9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x"]
)
async def test_what_is_not_http_is_refused_and_closed(port: int, noise: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(noise)
    assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request")
    writer.close()


async def test_without_forcing_answers_end_by_themselves(client: httpx.AsyncClient) -> None:
    asked = [client.post(CHAT, json=chat(max_tokens=3000, ignore_eos=False)) for _ in range(4)]
    answers = [answer.json() for answer in await asyncio.gather(*asked)]
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"stop"}
    assert len({answer["usage"]["completion_tokens"] for answer in answers}) > 1


async def test_speculation_puts_several_tokens_into_an_event() -> None:
    spec = parse("qwen2.5-7b@b300,dtype=int4,overhead_us=0,spec_tokens=3,spec_acceptance=1")
    service = Service(spec, asyncio.get_running_loop())
    server = await asyncio.get_running_loop().create_server(lambda: Connection(service.handle), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.post(CHAT, json=chat(max_tokens=9, stream=True))
        assert [len(text.split()) for text in content(events(answer.content))] == [1, 4, 4]
        assert [record["tokens"] for record in (await truth(client)).values()] == [[1, 4, 4]]
        assert await metric(client, "vllm:spec_decode_num_accepted_tokens_total") == 6
    server.close()
    service.timetable.close()
