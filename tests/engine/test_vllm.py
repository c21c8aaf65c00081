"""What a user measures on a real vLLM is what that vLLM says of itself."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.conftest import Engine

INPUT_TOKENS = 128
OUTPUT_TOKENS = 64
REQUESTS = 128  # a level: eight a slot at the highest, under a minute at the lowest
GENERATED = "vllm:generation_tokens_total"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    exit_code: int
    printed: dict[str, Any]  # what --json put on standard output
    header: dict[str, Any]
    rows: list[dict[str, Any]]
    summary: dict[str, Any]
    generated_tokens: float  # what the server's counter grew by from before the run to after it

    def level(self, concurrency: int) -> dict[str, Any]:
        (level,) = (level for level in self.summary["levels"] if level["concurrency"] == concurrency)
        assert isinstance(level, dict)
        return level


def measure(engine: Engine, out: Path, *, api: str, concurrency: str, requests: int) -> Run:
    command = [
        *(
            str(Path(sys.executable).with_name("loadgen")),
            "run",
            engine.url,
            "--api",
            api,
            "--concurrency",
            concurrency,
        ),
        *("--input", str(INPUT_TOKENS), "--output", str(OUTPUT_TOKENS), "--requests", str(requests)),
        *("--out", str(out), "--json"),
    ]
    before = engine.metric(GENERATED)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    generated = engine.metric(GENERATED) - before
    assert (out / "summary.json").exists(), f"exit code {done.returncode}, no summary:\n{done.stderr[-4000:]}"
    return Run(
        exit_code=done.returncode,
        printed=json.loads(done.stdout),
        header=json.loads((out / "run.json").read_text()),
        rows=[json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()],
        summary=json.loads((out / "summary.json").read_text()),
        generated_tokens=generated,
    )


@pytest.fixture(scope="module")
def chat(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "chat"
    return measure(engine, out, api="chat", concurrency="1,4,16", requests=REQUESTS)


@pytest.fixture(scope="module")
def completions(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "completions"
    return measure(engine, out, api="completions", concurrency="4", requests=60)


@pytest.fixture(params=["chat", "completions"])
def run(request: pytest.FixtureRequest) -> Run:
    run = request.getfixturevalue(request.param)
    assert isinstance(run, Run)
    return run


def test_the_run_is_valid_and_every_request_succeeds(run: Run) -> None:
    found = {
        finding["code"]
        for level in run.summary["levels"]
        for finding in level["findings"]
        if finding["severity"] == "error"
    }
    # The server computes on the client's cores: when others do too, "the client was late" is the right answer.
    assert found <= {"client-lag"}
    assert run.exit_code == (4 if found else 0)
    assert run.rows
    assert [row for row in run.rows if row["status"] != "ok"] == []
    assert run.printed == run.summary


def test_lengths_are_as_wanted_by_the_servers_count(run: Run) -> None:
    assert {row["tokens_from"] for row in run.rows} == {"usage"}
    assert {row["prompt_tokens"] for row in run.rows} == {INPUT_TOKENS}
    assert {row["output_tokens"] for row in run.rows} == {OUTPUT_TOKENS}
    assert {row["finish_reason"] for row in run.rows} == {"length"}


def test_rows_account_for_every_token_the_server_generated(run: Run) -> None:
    in_rows = sum(row["output_tokens"] for row in run.rows)
    assert in_rows == run.generated_tokens - run.header["server"]["preflight_output_tokens"]


def test_no_prompt_is_found_in_the_prefix_cache(run: Run) -> None:
    assert {row["cached_tokens"] for row in run.rows} == {0}


def test_events_arrive_in_order_and_carry_every_token(run: Run) -> None:
    for row in run.rows:
        assert row["events_us"] == sorted(row["events_us"])
        assert 0 < row["headers_us"] <= row["events_us"][0]
        assert row["events_us"][-1] <= row["end_us"]
        if row["events_tokens"] is not None:
            # The last tokens can be a part of a letter, without text of their own: they come with no event.
            assert OUTPUT_TOKENS - 3 <= sum(row["events_tokens"]) <= OUTPUT_TOKENS


def test_the_kernel_stamped_the_tokens(run: Run) -> None:
    assert run.header["clock"] == "kernel"
    assert {level["client"]["clock"] for level in run.summary["levels"]} == {"kernel"}


def test_each_level_measured_as_many_requests_as_asked(chat: Run) -> None:
    measured = [row["level"] for row in chat.rows if row["phase"] == "measure"]
    assert [measured.count(level) >= REQUESTS for level in range(3)] == [True] * 3


def test_max_num_seqs_shows_as_queueing_and_not_as_slower_tokens(chat: Run, engine: Engine) -> None:
    if engine.max_num_seqs != 4:
        pytest.skip("the max_num_seqs of the server at ENGINE_URL is not known")
    at_4, at_16 = chat.level(4), chat.level(16)
    # 12 of 16 wait for three others to finish, some 1500 ms; at 4 none waits, and a prefill takes some 50 ms. Five
    # times leaves a factor of five for a machine that is busy with other things.
    assert at_16["ttft_ms"]["p50"] > 5 * at_4["ttft_ms"]["p50"]
    # The engine decodes 4 sequences in both, so a token takes as long. Half more or less is what two cores shared with
    # the client can do to it; if all 16 were decoded at once, or the wait were counted as ITL, it would be far more.
    assert at_16["itl_ms"]["p50"] == pytest.approx(at_4["itl_ms"]["p50"], rel=0.5)


def test_batching_raises_throughput_until_the_engine_is_full(chat: Run, engine: Engine) -> None:
    if engine.max_num_seqs != 4:
        pytest.skip("the max_num_seqs of the server at ENGINE_URL is not known")
    at_1, at_4, at_16 = (chat.level(n)["throughput"]["output_tokens_per_s"] for n in (1, 4, 16))
    assert at_4 > 1.3 * at_1
    assert at_16 == pytest.approx(at_4, rel=0.4)
