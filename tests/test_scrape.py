import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from loadgen import scrape
from loadgen.clock import wall_ns
from loadgen.endpoint import Access, open_client, parse_target
from loadgen.scrape import Page, Scraper, Source, scraping, sources
from loadgen.sim import child
from tests.fakes import CLOSE, RESET, SILENCE, Received, Script, in_turn, response, serve
from tests.fakes_tls import authority_file, certificates, little_trust  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("little_trust")

PAGE = "vllm:num_requests_running 3.0\nvllm:generation_tokens_total 70.0\n"
SECRET = Access(headers=(("X-Team", "blue"),), api_key="sk-secret", insecure=True)


def source(url: str, access: Access | None = None) -> Source:
    (made,) = sources([url], parse_target(url), access or Access())
    return made


@asynccontextmanager
async def a_page(url: str, access: Access | None = None) -> AsyncIterator[Page]:
    async with open_client(access or Access()) as client:
        yield Page(0, source(url), client)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "server.jsonl").read_text().splitlines()]


# Where from, and with which secrets


def label_and_url(*metrics: str, target: str = "http://h:8000/v1") -> list[tuple[str, str]]:
    return [(one.label, one.url) for one in sources(metrics, parse_target(target), Access())]


def test_without_a_wish_it_is_the_targets_own_page() -> None:
    assert label_and_url() == [("http://h:8000/metrics",) * 2]
    assert label_and_url(target="http://h/base") == [("http://h/base/metrics",) * 2]
    assert label_and_url(target="http://h/v1/chat/completions") == [("http://h/metrics",) * 2]


def test_urls_are_taken_as_they_are_or_with_the_usual_path() -> None:
    assert label_and_url("a:1", "http://b:2/", "https://c/x/prom") == [
        ("http://a:1/metrics",) * 2,
        ("http://b:2/metrics",) * 2,
        ("https://c/x/prom",) * 2,
    ]
    assert label_and_url("none") == []


def test_what_a_url_holds_is_not_shown() -> None:
    ((label, url),) = label_and_url("http://me:pass@h/m?key=word")
    assert (label, url) == ("http://h/m?key", "http://me:pass@h/m?key=word")
    (one,) = sources([], parse_target("http://me:pass@h/v1?key=word"), Access())
    assert one.url == "http://me:pass@h/metrics?key=word"
    assert {"pass", "word"} <= {*one.secrets}


@pytest.mark.parametrize("wish", ["", "metrics", "ftp://h/metrics", "http://secret@", "http://h:99999/"])
def test_what_is_no_url_is_refused_without_being_repeated(wish: str) -> None:
    with pytest.raises(ValueError, match=r"^--metrics: expected http[^@]*$"):
        sources([wish], parse_target("http://h"), Access())


@pytest.mark.parametrize("elsewhere", ["http://other:8000/metrics", "http://h.evil.example:8000", "http://h@evil:8000"])
def test_secrets_and_tls_settings_stay_at_the_targets_host(elsewhere: str) -> None:
    own, same_host, other = sources(
        ["http://h:8000/metrics", "https://h:9000/metrics", elsewhere], parse_target("http://h:8000"), SECRET
    )
    assert own.access == SECRET
    assert same_host.access == Access(insecure=True)
    assert other.access == Access()


@pytest.mark.parametrize("key", [None, "sk-secret"])
async def test_the_key_is_sent_to_the_target_only(key: str | None) -> None:
    async with serve(response(200, PAGE)) as target, serve(response(200, PAGE)) as other:
        access = Access(api_key=key)
        for number, one in enumerate(sources([target.url, other.url], parse_target(target.url), access)):
            async with open_client(one.access) as client:
                await Page(number, one, client).sample(0)
    assert target.requests[0].headers.get("authorization") == (key and f"Bearer {key}")
    assert "authorization" not in other.requests[0].headers
    assert (other.requests[0].method, other.requests[0].path) == ("GET", "/metrics")


# One sample


async def test_a_sample_says_where_from_once() -> None:
    async with serve(response(200, PAGE)) as server, a_page(server.url) as page:
        said = {"t_us": 5, "source": 0, "url": f"{server.url}/metrics", "engine": "vllm"}
        assert await page.sample(5) == [said, {"t_us": 5, "source": 0, "running": 3.0, "output_tokens": 70.0}]
        assert await page.sample(7) == [{"t_us": 7, "source": 0, "running": 3.0, "output_tokens": 70.0}]
    assert server.connections == 1


HUGE = b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 9_000_000
GZIPPED = response(200, b"\x1f\x8b", "content-encoding: gzip")
FAILURES: dict[str, tuple[str, Script]] = {
    "absent": ("http 404", response(404, "no such page")),
    "closed to us": ("http 401", response(401, "sk-secret")),
    "moved": ("http 302", response(302, "", "location: http://elsewhere.invalid/")),
    "broken": ("http 500", response(500, "")),
    "something else": ("no known names", response(200, "<html>vllm:num_requests_running 1</html>")),
    "empty": ("no known names", response(200, "")),
    "not text": ("no known names", response(200, bytes(range(256)))),
    "malformed": ("not Prometheus text", response(200, "vllm:num_requests_running sk-secret\n")),
    "huge": ("over 4 MiB", [HUGE]),
    "compressed": ("compressed, and not asked to be", GZIPPED),
    "silent": ("timeout", [SILENCE]),
    "slow in the middle": ("timeout", [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nvllm", SILENCE]),
    "cut": ("protocol", [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nvllm", CLOSE]),
    "reset": ("protocol", [RESET]),
    "not HTTP": ("protocol", [b"SSH-2.0-OpenSSH\r\n", CLOSE]),
}


@pytest.mark.parametrize("transport", ["stamped", "httpx"])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failed_sample_says_why_in_words_of_our_own(
    name: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, script = FAILURES[name]
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.1 if error == "timeout" else 2)
    async with serve(script) as server, a_page(server.url, Access(transport=transport)) as page:
        said = {"t_us": 5, "source": 0, "url": f"{server.url}/metrics", "engine": None}
        assert await page.sample(5) == [said, {"t_us": 5, "source": 0, "error": error}]


async def test_nobody_there(dead_port: int) -> None:
    async with a_page(f"http://127.0.0.1:{dead_port}") as page:
        assert (await page.sample(0))[-1] == {"t_us": 0, "source": 0, "error": "connect"}


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_as_for_the_target(tmp_path: Path, trusted: bool) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines([step for step in response(200, PAGE) if isinstance(step, bytes)])
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=certificates().server)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    access = Access(ca_file=authority_file(tmp_path)) if trusted else Access()
    async with listener, a_page(url, access) as page:
        row = (await page.sample(0))[-1]
    assert ("running" in row, row.get("error")) == ((True, None) if trusted else (False, "tls"))


async def test_a_source_that_never_answers_is_left_alone() -> None:
    async with serve(response(404, "")) as server, a_page(server.url) as page:
        rows = [await page.sample(t_us) for t_us in range(5)]
    assert [[row.get("error") for row in one] for one in rows] == [
        [None, "http 404"],
        ["http 404"],
        ["http 404"],
        [],
        [],
    ]
    assert page.left_alone
    assert len(server.requests) == scrape.TRIES


async def test_a_source_that_has_answered_is_never_given_up() -> None:
    script = in_turn(response(200, PAGE), *[response(503, "")] * 4, response(200, PAGE))
    async with serve(script) as server, a_page(server.url) as page:
        rows = [(await page.sample(t_us))[-1] for t_us in range(6)]
    assert [row.get("error") for row in rows] == [None, *["http 503"] * 4, None]


async def test_an_engine_that_shows_late_is_said() -> None:
    async with serve(in_turn(response(503, ""), response(200, PAGE))) as server, a_page(server.url) as page:
        said = [row["engine"] for _ in range(3) for row in await page.sample(0) if "engine" in row]
    assert said == [None, "vllm"]


# The process


def counting() -> Callable[[Received], Script]:
    """A page whose counter grows by one with each request."""
    seen: list[Received] = []

    def script(received: Received) -> Script:
        seen.append(received)
        return response(200, f"vllm:generation_tokens_total {len(seen)}\n")

    return script


async def test_each_wish_is_a_sample_taken_after_it(tmp_path: Path) -> None:
    async with serve(counting()) as one, serve(response(404, "")) as other:
        wanted = sources([one.url, other.url], parse_target(one.url), SECRET)
        start_ns = wall_ns()
        asked_us = []
        async with scraping(wanted, tmp_path, start_ns) as scraper:
            for _ in range(5):
                asked_us.append((wall_ns() - start_ns) // 1000)
                before = len(one.requests)
                await scraper.sample()
                assert len(one.requests) > before
                assert len([row for row in rows_of(tmp_path) if "output_tokens" in row]) == len(one.requests)
    rows = rows_of(tmp_path)
    times = [row["t_us"] for row in rows if "output_tokens" in row]
    assert times == sorted(times)
    assert [min(t for t in times if t >= at) - at for at in asked_us] < [1_000_000] * 5
    assert [row["output_tokens"] for row in rows if "output_tokens" in row] == [*range(1, len(times) + 1)]
    assert [row["error"] for row in rows if row["source"] == 1 and "error" in row] == ["http 404"] * scrape.TRIES
    assert "sk-secret" not in (tmp_path / "server.jsonl").read_text()


async def test_it_samples_by_itself(tmp_path: Path) -> None:
    async with serve(counting()) as server, scraping([source(server.url)], tmp_path, wall_ns()):
        async with asyncio.timeout(10):
            while len(server.requests) < 2:
                await asyncio.sleep(0.05)
    first, second = [row["t_us"] for row in rows_of(tmp_path) if "output_tokens" in row]
    assert second - first == pytest.approx(1_000_000, abs=500_000)


async def test_no_source_no_process_and_no_file(tmp_path: Path) -> None:
    async with scraping([], tmp_path, 0, command=("/nowhere",)) as scraper:
        await scraper.sample()
    assert [*tmp_path.iterdir()] == []


LATE = "import sys\nfor line in sys.stdin: pass"
GONE = "pass"
BABBLING = "print('Traceback', flush=True)\nimport sys\nsys.stdin.read()"


@pytest.mark.parametrize("program", [LATE, GONE, BABBLING])
async def test_a_process_that_fails_keeps_nobody_waiting(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "_START_S", 0.2)
    command = (sys.executable, "-c", program)
    async with scraping([source("http://h")], tmp_path, 0, command) as scraper:
        for _ in range(3):
            await scraper.sample(0.05)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_process_that_dies_in_the_middle_keeps_nobody_waiting(run: Callable[..., None], tmp_path: Path) -> None:
    async def dies() -> None:
        program = "import os\nfor _ in range(2): os.write(1, os.read(0, 9999)[-2:])"  # the number, after the order
        command = (sys.executable, "-c", program)
        async with scraping([source("http://h")], tmp_path, 0, command) as scraper:
            for _ in range(5):
                await scraper.sample(2)
                await asyncio.sleep(0.05)

    run(dies())


async def test_a_process_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "_START_S", 0.2)
    monkeypatch.setattr(scrape, "_STOP_S", 0.1)
    program = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(60)"
    command = (sys.executable, "-c", program, str(tmp_path / "pid"))
    async with scraping([source("http://h")], tmp_path, 0, command):
        async with asyncio.timeout(10):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                await asyncio.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


PARENT = """
import asyncio, sys
from pathlib import Path
from loadgen.endpoint import Access, parse_target
from loadgen.scrape import scraping, sources

async def main():
    async with scraping(sources([], parse_target(sys.argv[1]), Access()), Path(sys.argv[2]), 0):
        print("ready", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_it_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    async with serve(response(200, PAGE)) as server:
        parent = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PARENT, server.url, str(tmp_path)), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        assert await parent.stdout.readline() == b"ready\n"
        children = await asyncio.to_thread(children_of, parent.pid)
        assert len(children) == 1
        assert os.getpriority(os.PRIO_PROCESS, children[0]) == scrape.NICE
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
        async with asyncio.timeout(40):
            while alive(children[0]):
                await asyncio.sleep(0.02)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# On the embedded engine, over real HTTP


async def test_its_token_counts_are_those_of_the_client(tmp_path: Path) -> None:
    body = {"model": "llama-3.1-8b", "prompt": "Hello there", "max_tokens": 40, "ignore_eos": True}
    async with (
        child.start("llama-3.1-8b@h100") as url,
        httpx.AsyncClient(trust_env=False) as client,
        scraping(sources([], parse_target(url), Access()), tmp_path, wall_ns()) as scraper,
    ):
        answers = await asyncio.gather(*(client.post(f"{url}/v1/completions", json=body) for _ in range(8)))
        await scraper.sample()
    received = sum(answer.json()["usage"]["completion_tokens"] for answer in answers)
    rows = [row for row in rows_of(tmp_path) if "output_tokens" in row]
    assert received == 8 * 40
    assert rows[-1]["output_tokens"] - rows[0]["output_tokens"] == pytest.approx(received, rel=0.01)
    names = {"running", "waiting", "kv_use", "preemptions", "prefix_queries", "prefix_hits", "prompt_tokens"}
    assert names | {"ttft_s", "ttft_n", "queue_s", "prefill_s", "decode_s"} <= rows[-1].keys()


async def test_nothing_is_sampled_without_a_process() -> None:
    await Scraper(None).sample()
