"""What the levels of a run say together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from analysis.diagnose_run import decoding, whole_run
from tests import fakes_engine as engine
from tests.fakes_engine import Scenario

if TYPE_CHECKING:
    from analysis.diagnosis import Diagnosis
    from analysis.measured import Level

LLAMA = "llama-3.1-8b@h100,prefix_cache=0"
SHORT: dict[str, Any] = {"prompt": (256.0, 0.4), "output": (100.0, 0.4)}


def run(spec: str, *slots: int, places: int = 1000, metrics: bool = False, hardware: bool = False) -> list[Level]:
    return [
        engine.level(
            Scenario(spec=spec, slots=each, request_s=0.9 * max(1.0, each / places), requests_each=8, **SHORT),
            number=number, metrics=metrics, hardware=hardware,
        )
        for number, each in enumerate(slots)
    ]  # fmt: skip


def test_the_limit_of_a_server_without_metrics_is_seen_over_the_levels() -> None:
    levels = run(f"{LLAMA},max_num_seqs=8", 1, 8, 32, 64, places=8)
    assert [decoding(level) for level in levels[2:]] == pytest.approx([8, 8], rel=0.08)
    first, second = whole_run(levels)
    assert first.code == "queueing"
    assert first.words.startswith(
        "At 64, the heaviest load: requests wait for a place: the server runs about 8 at once"
    )
    assert "as many decode at once at each load" in first.evidence
    assert "while TTFT grows from" in first.evidence
    assert second.code == "unknown"
    assert second.words.startswith("At 1, the lightest load: making the tokens (decode) takes the time")


def test_a_limit_that_no_level_could_tell_is_told_by_all() -> None:
    levels = run(f"{LLAMA},max_num_seqs=8", 16, 64, places=8)
    bare = [msgspec.structs.replace(level, diagnoses=(_unknown(level),)) for level in levels]
    first = whole_run(bare)[0]
    assert first.code == "queueing"
    assert "the server runs about 8 at once and lets no more in, unless its KV cache is full" in first.words
    assert "--metrics or --hardware" in first.lever


def _unknown(level: Level) -> Diagnosis:
    return msgspec.structs.replace(level.diagnoses[0], code="unknown")


def test_a_load_that_was_measured_again_is_one_load_and_the_kept_up_level_speaks() -> None:
    (level,) = run(LLAMA, 4, hardware=True)
    beaten = msgspec.structs.replace(
        level, diagnoses=(msgspec.structs.replace(level.diagnoses[0], code="client"), *level.diagnoses)
    )
    again = msgspec.structs.replace(level, level=1)
    for levels in ([level, beaten], [beaten, level], [level, again], [level, beaten, again]):
        assert whole_run(levels) == level.diagnoses
    assert whole_run([beaten, beaten]) == beaten.diagnoses


def test_a_server_that_takes_all_has_no_limit() -> None:
    said = whole_run(run(LLAMA, 1, 2, 4, metrics=True, hardware=True))
    assert [one.code for one in said] == ["decode-bound"]
    assert said[0].words.startswith("At 4, the heaviest load: ")


def test_prompts_that_limit_a_server_are_no_limit_on_places() -> None:
    rag = [
        engine.level(
            Scenario(spec=LLAMA, slots=slots, request_s=max(1, slots / 3), prompt=(8000, 0.05), output=(20, 0)),
            number=number, metrics=False, hardware=False,
        )
        for number, slots in enumerate((1, 8, 32))
    ]  # fmt: skip
    assert [one.code for one in whole_run(rag)] == ["prefill-bound"]


def test_prompts_of_a_light_load_do_not_hide_a_queue() -> None:
    spec = f"{LLAMA},max_num_seqs=4"
    rag: dict[str, Any] = {"prompt": (3500.0, 0.1), "output": (60.0, 0.1)}
    levels = [
        engine.level(Scenario(spec=spec, slots=slots, request_s=max(1, slots / 5), **rag), number=number)
        for number, slots in enumerate((1, 8, 32))
    ]
    assert levels[0].diagnoses[0].code == "prefill-bound"
    assert whole_run(levels)[0].code == "queueing"


def test_a_client_that_was_the_limit_is_left_out_and_named() -> None:
    levels = run(LLAMA, 1, 2, hardware=True)
    late = Scenario(spec=LLAMA, slots=64, request_s=1.5, requests_each=4, change=engine.read_late(5), **SHORT)
    levels.append(engine.level(late, number=2))
    said = whole_run(levels)
    assert [one.code for one in said] == ["decode-bound", "client"]
    assert said[0].words.startswith("At 2, the heaviest load that the client kept up with: ")
    assert said[1].words.startswith("At 64: this client could not keep up")


def test_one_level_says_what_it_says() -> None:
    (level,) = run(LLAMA, 2, hardware=True)
    assert whole_run([level]) == level.diagnoses
    assert whole_run([]) == ()
