"""The command line: what it refuses and how, what a run leaves behind, and what never shows."""

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from loadgen.cli.app import execute
from tests.fakes_api import Api, answer, listening, listening_in_a_thread, refusal
from tests.fakes_tls import little_trust

__all__ = ["little_trust"]

LOADGEN = (sys.executable, "-m", "loadgen.cli.app")
SMALL = ["--concurrency", "2", "--requests", "4", "--input", "32", "--output", "4", "--metrics", "none"]
CANARY = "sk-CANARY-0123456789"
Complain = Callable[..., str]


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, little_trust: None) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield tmp_path
    gc.unfreeze()


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Complain:
    def complaint(*arguments: str) -> str:
        """The one line that a mistake of the user costs; nothing else, and nothing is left behind."""
        before = sorted(os.listdir())
        assert execute(list(arguments)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("loadgen: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert sorted(os.listdir()) == before
        return err.removeprefix("loadgen: ").rstrip("\n")

    return complaint


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], 'Unknown command "nope"'),
        (["run"], "requires an argument"),
        (["run", "localhost:1", "extra"], "extra"),
        (["run", "localhost:1", "http://u:pw@h?key=k"], "['http://***@h?***"),
        (["run", "localhost:1", "--nope"], "Unknown option: --nope"),
        (["run", "localhost:1", "--requests", "many"], '"many"'),
        (["run", "localhost:1", "--requests", "0"], "--requests 0: expected at least 1"),
        (["run", "localhost:1", "--concurrency", "0"], "a level is a number from 1"),
        (["run", "localhost:1", "--concurrency", "8..1"], "write 1..8"),
        (["run", "localhost:1", "--input", "-5"], "length '-5'"),
        (["run", "localhost:1", "--input=-5"], "length '-5'"),
        (["run", "localhost:1", "--workload", "nope"], "no workload 'nope'"),
        (["run", "localhost:1", "--workload", "nope.toml"], "nope.toml"),
        (["run", "localhost:1", "--body", "{\n"], "--body is not JSON"),
        (["run", "localhost:1", "--timeout", "x=1s"], "--timeout 'x=1s'"),
        (["run", "localhost:1", "--ca-file", "nope"], "--ca-file nope: no such file"),
        (["run", "localhost:1", "--tokenizer", "nope"], "--tokenizer nope: no such file"),
        (["run", "localhost:1", "--config"], "--config requires an argument"),
        (["run", "localhost:1", "--config", "nope.toml"], "--config nope.toml: no such file"),
        (["run", "nowhere"], "target 'nowhere'"),
        (["run", "http://[::1"], "target 'http://[::1'"),
        (["check", "nowhere"], "target 'nowhere'"),
        (["check", "localhost:1", "--seed", "x"], '"x"'),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: list[str], says: str, complaint: Complain) -> None:
    assert says in complaint(*arguments)


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize("out", [[], ["--out", "here"]])
def test_nobody_listening_is_one_line(command: str, out: list[str], complaint: Complain) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert "connection refused; is the server running" in complaint(command, f"127.0.0.1:{port}", *out)


@pytest.mark.parametrize(
    ("api", "arguments", "says"),
    [
        (Api(key="right"), [], "HTTP 401: bad key; is the key right? (key: none, OPENAI_API_KEY is not set)"),
        (
            Api(answers={path: answer("<html>", content_type="text/html") for path in ("/v1/models", "/models")}),
            [],
            "html",
        ),
        (Api(answers={path: refusal("no", "404 Not Found") for path in ("/v1/models", "/models")}), [], "--model"),
        (Api(models=["a", "b"]), [], "choose one with --model (a, b)"),
        (Api(), ["--model", "other"], "does not serve the model other: choose one with --model (tiny)"),
        (
            Api(answers={"/v1/models": answer("", "302 Found", "x", "Location: http://h/")}),
            [],
            "redirects to http://h/",
        ),
        (Api(answers={"/v1/models": refusal("line\nbreak\x1b[31m", "500 No")}), [], "line break[31m"),
        (Api(max_model_len=20), [], "over the server's limit of 20"),
    ],
    ids=["401", "html", "404", "models", "model", "redirect", "500", "limit"],
)
def test_a_server_that_cannot_be_measured_is_one_line(
    api: Api, arguments: list[str], says: str, complaint: Complain
) -> None:
    with listening_in_a_thread(api) as server:
        assert says in complaint("run", server.url(), *SMALL, *arguments)
        assert says in complaint("run", server.url(), *SMALL, "--out", "here", *arguments)


def test_a_run_is_never_overwritten(complaint: Complain) -> None:
    Path("here").mkdir()
    with listening_in_a_thread(Api()) as server:
        assert "here exists already" in complaint("run", server.url(), *SMALL, "--out", "here")
        assert "cannot make the run directory /proc/x" in complaint("run", server.url(), *SMALL, "--out", "/proc/x")
    assert os.listdir("here") == []


def test_times_count_from_the_start_that_the_header_names(capsys: pytest.CaptureFixture[str]) -> None:
    before = datetime.now(UTC)
    with listening_in_a_thread(Api()) as server:
        execute(["run", server.url(), *SMALL, "--out", "here", "--quiet"])
    after = datetime.now(UTC)
    start = datetime.fromisoformat(json.loads(Path("here/run.json").read_text())["started_at"])
    rows = [json.loads(line) for line in Path("here/requests.jsonl").read_text().splitlines()]
    ends = [start + timedelta(microseconds=row["sent_us"] + row["end_us"]) for row in rows]
    assert before <= start <= min(ends) <= max(ends) <= after


# --config


def test_a_config_file_gives_flags_and_the_command_line_goes_before_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadgen.cli.report.present", lambda *_, **__: 0)
    lines = ['concurrency = "2"', "requests = 5", 'input = "30"', 'output = "3"', 'max-rps = "500"', "quiet = true"]
    lines += ['header = ["X-A: 1", "X-B: 2"]', "insecure = true", 'out = "here"']
    Path("c.toml").write_text("\n".join(lines))
    api = Api()
    with listening_in_a_thread(api) as server:
        assert execute(["run", server.url(), "--config", "c.toml", "--requests", "3"]) == 0
    options = json.loads(Path("here/run.json").read_text())["options"]
    assert (options["requests"], options["concurrency"], options["max_rps"], options["insecure"]) == (
        3,
        "2",
        "500",
        True,
    )
    assert api.received[-1].headers["x-b"] == "2"
    phases = [json.loads(line)["phase"] for line in Path("here/requests.jsonl").read_text().splitlines()]
    assert phases.count("measure") == 3
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"x = [", "--config c.toml: not a TOML file"),
        (b"\xff\xfe", "--config c.toml: not a TOML file"),
        (b"concurency = '1'", 'Unknown option: "[concurency]"'),
        (b"requests = 'many'", '"many"'),
        (b"[run]\nrequests = 1", "--config c.toml: [run]: flags stand at the top of the file"),
    ],
)
@pytest.mark.parametrize("flag", [["--config", "c.toml"], ["--config=c.toml"]])
def test_a_config_file_with_a_mistake_is_one_line(
    content: bytes, says: str, flag: list[str], complaint: Complain
) -> None:
    Path("c.toml").write_bytes(content)
    assert says in complaint("run", "localhost:1", *flag)


def test_a_config_file_is_forgotten_after_its_command(complaint: Complain) -> None:
    Path("c.toml").write_text("nope = 1")
    assert "nope" in complaint("run", "localhost:1", "--config", "c.toml")
    assert "nope" not in complaint("run", "localhost:1")


# check


def test_check_tells_what_a_run_would_find(capsys: pytest.CaptureFixture[str]) -> None:
    with listening_in_a_thread(Api(refuses=["min_tokens"])) as server:
        assert execute(["check", server.url(), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["model"], facts["dropped"], facts["prompt_tokens_from"]) == ("tiny", ["min_tokens"], "tokenize")
        assert execute(["check", server.url()]) == 0
        table = capsys.readouterr().out
    assert [line.split(None, 1)[1].strip() for line in table.splitlines() if line.startswith("model ")] == ["tiny"]
    assert "min_tokens" in table
    assert os.listdir() == []


# Whole processes


def test_help_loads_nothing_heavy() -> None:
    code = "import sys; sys.argv = ['loadgen', '--help']\nfrom loadgen.cli.app import main\ntry:\n    main()\n"
    code += "finally:\n    heavy = {'numpy', 'httpx', 'matplotlib', 'uvloop', 'msgspec'} & set(sys.modules)\n"
    code += "    print('HEAVY', sorted(heavy))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert "Commands" in done.stdout


def stopped_by(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)


async def started(*arguments: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *LOADGEN,
        *arguments,
        start_new_session=True,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | environment,
    )


async def test_an_interrupt_in_a_level_is_130_with_the_results_so_far() -> None:
    api = Api()
    async with listening(api) as server, asyncio.timeout(50):
        flags = ["--concurrency", "2,4", "--duration", "60s", *SMALL[4:], "--json", "--quiet"]
        process = await started("run", server.url(), *flags, "--out", "here")
        while len(api.asked()) < 100:
            await asyncio.sleep(0.01)
        stopped_by(process)
        out, err = await process.communicate()
    assert process.returncode == 130
    assert err == b""
    summary = json.loads(out)
    rows = [json.loads(line) for line in Path("here/requests.jsonl").read_text().splitlines()]
    assert summary["levels"][0]["requests"]["ok"] > 50
    assert len(rows) >= 90
    assert json.loads(Path("here/levels.jsonl").read_text())["ended_by"] == "interrupt"


@pytest.mark.parametrize("at", ["preflight", "load", "report"])
async def test_an_interrupt_before_the_load_or_twice_in_it_is_130_and_no_traceback(at: str) -> None:
    """In the report it comes while libraries are imported."""
    api = Api(hold=asyncio.Event() if at == "preflight" else None)
    async with listening(api) as server, asyncio.timeout(50):
        flags = ["--concurrency", "2", "--duration", "60s", *SMALL[4:], "--quiet"]
        process = await started("run", server.url(), *flags, "--out", "here")
        if at != "preflight":
            while len(api.asked()) < 50:
                await asyncio.sleep(0.01)
        if at == "load":
            api.hold = asyncio.Event()
        while not api.in_flight:
            await asyncio.sleep(0.01)
        stopped_by(process)
        while at == "load" and process.returncode is None:  # two that come at once are one
            await asyncio.sleep(0.05)
            with contextlib.suppress(ProcessLookupError):
                stopped_by(process)
        if at == "report":
            while not Path("here/levels.jsonl").read_text():
                await asyncio.sleep(0.001)
            stopped_by(process)
        out, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
    assert out == b"" or at == "report"  # whether it comes before the table is not in our hands
    assert Path("here").exists() is (at != "preflight")


@pytest.mark.parametrize("without", [(0,), (2,), (0, 1, 2), "a reader", "room"])
def test_a_run_needs_no_standard_files(without: tuple[int, ...] | str) -> None:
    def lose() -> None:
        for file in () if isinstance(without, str) else without:
            os.close(file)

    gone, end = os.pipe()
    os.close(gone)
    full = os.open("/dev/full", os.O_WRONLY)
    error = {"a reader": end, "room": full}.get(str(without), subprocess.PIPE)
    with listening_in_a_thread(Api()) as server:
        ended = subprocess.run(
            [*LOADGEN, "run", server.url(), *SMALL[:-2], "--out", "here", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=error,
            preexec_fn=lose,
            timeout=40,
        )
    os.close(end)
    os.close(full)
    assert ended.returncode in (0, 4), ended.stderr
    assert json.loads(Path("here/summary.json").read_text())["levels"][0]["requests"]["ok"] == 4
    if without != (0, 1, 2):
        assert json.loads(ended.stdout)["levels"][0]["requests"]["ok"] == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", ["start of the workers", "load"])
async def test_a_signal_to_all_its_processes_is_one_to_the_run(at: str, number: signal.Signals) -> None:
    """As Ctrl-C is, and what a service manager sends."""
    api = Api(delay_s=0.005)
    async with listening(api) as server, asyncio.timeout(50):
        flags = ["--concurrency", "2", "--requests", "enough", "--duration", "60s", *SMALL[4:-2], "--workers", "2"]
        process = await started("run", server.url(), *flags, "--quiet", "--out", "here")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(children.read_text().split()) < 3 or (at == "load" and len(api.asked()) < 100):
            await asyncio.sleep(0.01)  # the workers, and what keeps count of their semaphores
        os.killpg(process.pid, number)
        _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")
    rows = [json.loads(line)["status"] for line in Path("here/requests.jsonl").read_text().splitlines()]
    assert at != "load" or (len(rows) >= 90 and set(rows) == {"ok"})
    ended = [json.loads(line)["ended_by"] for line in Path("here/levels.jsonl").read_text().splitlines()]
    assert at != "load" or ended == ["interrupt"]


async def test_no_secret_shows_anywhere() -> None:
    """Not in a file, not on a terminal, not in the process list; and the server repeats them all."""
    api = Api()
    async with listening(api) as server, asyncio.timeout(50):
        url = server.url(f"/v1?key={CANARY}").replace("//", f"//user:{CANARY}@")
        body = json.dumps({"user": "me", "nested": {"api_key": CANARY}})
        Path("c.toml").write_text(f"header = [\"X-Api-Key: {CANARY}\"]\nbody = '{body}'")
        flags = [*SMALL[:-2], "--config", "c.toml", "--api-key-env", "MY_KEY"]  # its metrics are asked too
        process = await started("run", url, *flags, "--out", "here", MY_KEY=CANARY)
        while not api.received:
            await asyncio.sleep(0.001)
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert server.url("/v1?").partition("//")[2].encode() in shown
        out, err = await process.communicate()
        assert process.returncode in (0, 4), err
        assert api.received[-1].headers["x-api-key"] == CANARY
        api.answers["/v1/chat/completions"] = refusal(f"no: {CANARY}", "500 Internal Server Error")
        failing = await started("run", url, *flags, MY_KEY=CANARY)
        failed_out, failed_err = await failing.communicate()
        assert failing.returncode == 2
        assert b"***" in failed_err
    assert CANARY.encode() not in shown + out + err + failed_out + failed_err
    files = [path for path in Path("here").rglob("*") if path.is_file()]
    assert {"run.json", "requests.jsonl", "levels.jsonl"} <= {path.name for path in files}
    assert [path.name for path in files if CANARY.encode() in path.read_bytes()] == []


# A disk that is full


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_ends_the_run_with_one_line_and_what_was_written(workers: str) -> None:
    """A limit on the size of files stands for the disk: the kernel refuses the write in the same way."""
    with listening_in_a_thread(Api(delay_s=0.005)) as server:
        ended = subprocess.run(
            [
                *LOADGEN,
                *("run", server.url(), *SMALL[:2], "--duration", "50s", *SMALL[4:]),
                *("--workers", workers, "--out", "here"),
            ],
            env={name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")},  # it writes too
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
            capture_output=True,
            text=True,
            timeout=40,
        )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == "loadgen: here/requests.jsonl: File too large"
    assert "Traceback" not in ended.stderr
    assert len(Path("here/requests.jsonl").read_bytes()) == 8192
