from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis import measured, records, server
from analysis.hardware import parse
from tests import fakes_run as fakes

if TYPE_CHECKING:
    from pathlib import Path

    from analysis.evidence import Finding

ON = "llama-3.1-8b@h100,dtype=bf16"  # a step of three such streams takes at least 4.85 ms, a prefill of 512 tokens 8.4
FAST, NEAR, IMPOSSIBLE = 10_000, 5_100, 3_000  # us from one token to the next


def found(
    directory: Path, itl_us: int, hardware: str = ON, *, drafts: bool = False, **changes: Any
) -> dict[str, Finding]:
    changes = {"ttft_us": 30_000} | changes
    made = fakes.closed_loop(4, each=100, itl_us=itl_us, **changes)
    header = fakes.header(levels=[{"level": 0, "concurrency": 4}], hardware=msgspec.to_builtins(parse(hardware)))
    fakes.write(directory, made, [fakes.ended()], header)
    if drafts:
        samples: list[dict[str, Any]] = [{"t_us": 0, "source": 0, "url": "http://h/metrics", "engine": "vllm"}]
        samples += [{"t_us": t, "source": 0, "draft_tokens": t, "accepted_tokens": t * 0.6} for t in (0, 40_000_000)]
        (directory / "server.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    level = measured.summarize_level(records.read(directory), 0, server.read(directory))
    return {finding.code: finding for finding in level.findings if "floor" in finding.code}


def below(directory: Path, itl_us: int, hardware: str = ON, **changes: Any) -> str:
    finding = found(directory, itl_us, hardware, **changes)["below-floor"]
    assert finding.severity == "warning"
    return finding.message


def test_what_hardware_can_do_is_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, FAST) == {}


def test_too_near_is_a_word(tmp_path: Path) -> None:
    finding = found(tmp_path, NEAR)
    assert list(finding) == ["near-floor"]
    assert finding["near-floor"].severity == "info"
    assert finding["near-floor"].message.startswith("95 % of the 5.1 ms a token takes is the floor of llama")


def test_faster_than_a_step_can_be(tmp_path: Path) -> None:
    """A warning: what is wrong may be what was said of the hardware."""
    said = below(tmp_path, IMPOSSIBLE)
    assert said.startswith("faster than llama-3.1-8b in bf16 on h100 can be: a token takes 3 ms, and a decode step of ")
    assert "times as long: each token is counted, and sent, twice; or the weights have fewer bits than bf16" in said
    assert "there are more or faster devices than 1 x h100" in said
    assert "routing" not in said
    assert "TTFT" not in said


def test_the_explanations_are_those_that_fit(tmp_path: Path) -> None:
    several = below(tmp_path / "several", FAST, output_tokens=29)
    assert "2.9 tokens came with each event, by speculative decoding; or the weights" in several
    twice = below(tmp_path / "twice", 6_000, output_tokens=20)
    assert "2 tokens came with each event, by speculative decoding; or its usage counts each token twice" in twice
    bursts = below(tmp_path / "bursts", 50)
    assert ": the stream comes in bursts" in bursts
    assert "twice" not in bursts  # a hundred times too fast
    events = below(tmp_path / "events", IMPOSSIBLE, tokens_from="events")
    assert "tokens are counted as events, of which one token makes several" in events
    experts = below(tmp_path / "moe", 200, "mixtral-8x7b@h100,dtype=bf16,gpus=2")
    assert "its routing prefers some experts" in experts
    assert "than 2 x h100" in experts


def test_speculation_that_the_server_counts_is_an_explanation(tmp_path: Path) -> None:
    explained = found(tmp_path / "yes", FAST, output_tokens=29, drafts=True)["below-floor"]
    assert explained.severity == "info"
    assert explained.message.endswith("speculative decoding makes 2.9 a step")
    not_enough = below(tmp_path / "no", IMPOSSIBLE, output_tokens=12, drafts=True)
    assert "1.2 tokens came with each event, by speculative decoding (the server drafts tokens)" in not_enough


@pytest.mark.parametrize(
    ("cached", "why"),
    [
        (None, "8.3, 1.66 times as long: it was in a prefix cache that nobody counts"),
        (0, "8.38, 1.68 times as long: more of it was cached than the server says"),
    ],
)
def test_a_first_token_before_its_prompt_can_be_computed(tmp_path: Path, cached: int | None, why: str) -> None:
    said = below(tmp_path, FAST, ttft_us=5_000, cached_tokens=cached)
    assert f"TTFT is 5 ms, and to compute the prompt takes at least {why}" in said
    assert "a token takes" not in said


def test_both_are_one_finding(tmp_path: Path) -> None:
    assert "twice; or the weights" in (said := below(tmp_path, IMPOSSIBLE, ttft_us=5_000))
    assert ". TTFT is 5 ms" in said
