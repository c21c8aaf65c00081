"""Each cause is built into the simulated engine, and is named there, and there alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests import fakes_engine as engine
from tests.fakes_engine import Scenario

ALL, NO_METRICS, NO_HARDWARE, NOTHING = (True, True), (False, True), (True, False), (False, False)
LLAMA = "llama-3.1-8b@h100,prefix_cache=0"
CHAT: dict[str, Any] = {"prompt": (256.0, 0.4), "output": (100.0, 0.4)}

# By scenario: the one code that is said, where the server's metrics and the hardware are known, and where one of them
# is not, or neither. "unknown" is the right answer where what would tell is missing.
MATRIX: dict[str, tuple[Scenario, tuple[str, str, str, str]]] = {
    "few places": (
        Scenario(spec=f"{LLAMA},max_num_seqs=8", slots=64, request_s=4, requests_each=4),
        ("queueing", "queueing", "queueing", "queueing"),
    ),
    "little room for KV": (
        Scenario(
            spec=f"{LLAMA},gpu_memory_utilization=0.217", slots=40, request_s=7, requests_each=3,
            prompt=(128, 0.3), output=(500, 0.3),
        ),
        ("kv-limited", "kv-limited", "kv-limited", "unknown"),
    ),
    "long prompts, one stream": (
        Scenario(spec=LLAMA, slots=1, request_s=1, requests_each=15, prompt=(8000, 0.05), output=(100, 0)),
        ("prefill-bound",) * 4,
    ),
    "long prompts, four streams": (
        Scenario(spec=LLAMA, slots=4, request_s=2, requests_each=12, prompt=(8000, 0.05), output=(100, 0)),
        ("prefill-bound",) * 4,
    ),
    "long answers": (
        Scenario(
            spec=f"{LLAMA},bandwidth_efficiency=0.8", slots=1, request_s=3.5, prompt=(256, 0.4), output=(500, 0.3)
        ),
        ("decode-bound", "decode-bound", "unknown", "unknown"),
    ),
    "overhead": (
        Scenario(
            spec="gpt-oss-20b@h100,dtype=fp8,overhead_us=10000,prefix_cache=0", slots=1, request_s=1.2,
            requests_each=15, **CHAT,
        ),
        ("overhead-bound", "overhead-bound", "unknown", "unknown"),
    ),
    "overhead, eight streams": (
        Scenario(spec=f"{LLAMA},overhead_us=30000", slots=8, request_s=3.7, **CHAT),
        ("overhead-bound", "overhead-bound", "unknown", "unknown"),
    ),
    "long prompts among short ones": (
        Scenario(
            spec=LLAMA, slots=16, request_s=1.2, requests_each=15, prompt=(128, 0.3), output=(100, 0.3), long_share=0.1
        ),
        ("prefill-steals-decode",) * 4,
    ),
    "a slow proxy": (
        Scenario(spec=LLAMA, slots=4, request_s=0.75, requests_each=15, change=engine.held_back(30), **CHAT),
        ("network", "decode-bound", "network", "unknown"),
    ),
    "a slow proxy, one stream": (
        Scenario(spec=LLAMA, slots=1, request_s=0.75, requests_each=15, change=engine.held_back(30), **CHAT),
        ("network", "unknown", "network", "unknown"),
    ),
    "a proxy that buffers": (
        Scenario(spec=LLAMA, slots=4, request_s=0.75, requests_each=15, change=engine.buffered(100), **CHAT),
        ("network",) * 4,
    ),
    "a client that reads late": (
        Scenario(spec=LLAMA, slots=4, request_s=0.75, requests_each=15, change=engine.read_late(5), **CHAT),
        ("client",) * 4,
    ),
    "prompts in small chunks": (
        Scenario(
            spec="phi-4@a100-80gb,prefix_cache=0,max_num_batched_tokens=256", slots=16, request_s=8, requests_each=5,
            prompt=(2000, 0.3), output=(100, 0.5),
        ),
        ("prefill-bound", "prefill-bound", "unknown", "unknown"),
    ),
    "short answers of many": (
        Scenario(spec=LLAMA, slots=64, request_s=2, requests_each=4, prompt=(1500, 0.4), output=(20, 0.4)),
        ("prefill-bound",) * 4,
    ),
    "a token an answer": (
        Scenario(
            spec="qwen3-8b@a100-80gb,prefix_cache=0", slots=16, request_s=0.9, requests_each=8, prompt=(500, 0.4),
            output=(2, 0), change=engine.one_token,
        ),
        ("prefill-bound", "prefill-bound", "prefill-bound", "unknown"),
    ),
    "a draft model, one stream": (
        Scenario(
            spec="llama-3.1-70b@h100,gpus=4,spec_tokens=3,prefix_cache=0", slots=1, request_s=1.3,
            output=(200, 0.4), change=engine.an_event_a_step,
        ),
        ("decode-bound", "decode-bound", "unknown", "unknown"),
    ),
    "an open loop at half of what it can": (
        Scenario(
            spec="qwen2.5-7b@l40s,prefix_cache=0", rate_per_s=6, request_s=25, requests_each=1, prompt=(300, 0.5),
            output=(150, 0.5),
        ),
        ("decode-bound", "decode-bound", "unknown", "unknown"),
    ),
    "an open loop near what it can": (
        Scenario(
            spec="qwen2.5-7b@l40s,prefix_cache=0", rate_per_s=22, request_s=25, requests_each=1, prompt=(300, 0.5),
            output=(150, 0.5),
        ),
        ("prefill-steals-decode",) * 4,
    ),
    "few places in an open loop": (
        Scenario(
            spec="mistral-7b@a100-80gb,max_num_seqs=8,prefix_cache=0", rate_per_s=6, request_s=30, requests_each=1,
            prompt=(200, 0.5), output=(180, 0.5),
        ),
        ("queueing",) * 4,
    ),
    "nothing": (
        Scenario(spec=LLAMA, slots=2, request_s=0.75, requests_each=15, **CHAT),
        ("decode-bound", "decode-bound", "unknown", "unknown"),
    ),
}  # fmt: skip


SEEDED = ("little room for KV", "an open loop near what it can")  # on the edge, or slow


@pytest.mark.parametrize("name", MATRIX)
def test_each_cause_is_named_and_no_other(name: str) -> None:
    scenario, expected = MATRIX[name]
    said = tuple(
        engine.codes(scenario, metrics=metrics, hardware=hardware)
        for metrics, hardware in (ALL, NO_METRICS, NO_HARDWARE, NOTHING)
    )
    assert said == tuple([code] for code in expected)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", [name for name in MATRIX if name not in SEEDED])
def test_another_draw_of_requests_says_the_same(name: str, seed: int) -> None:
    scenario, expected = MATRIX[name]
    assert engine.codes(scenario, seed=seed) == [expected[0]]


HARDWARE = {  # a decode step in ms, and the prefill of 8,000 tokens in seconds
    "qwen2.5-7b@a100-80gb": (10.6, 0.9),
    "llama-3.1-70b@h100,gpus=4": (14.6, 0.7),
    "llama-3.1-8b@h200,dtype=fp8": (2.9, 0.2),
    "llama-3.1-8b@l4": (72, 2.7),
    "qwen3-32b@mi300x": (17.1, 1.1),
}


@pytest.mark.parametrize("spec", HARDWARE)
def test_another_model_and_gpu_say_the_same(spec: str) -> None:
    step_ms, prefill_s = HARDWARE[spec]
    step_s, spec = step_ms / 1e3, f"{spec},prefix_cache=0"
    prefill: dict[str, Any] = {"prompt": (8000.0, 0.05), "output": (100.0, 0.0)}
    short: dict[str, Any] = {"prompt": (128.0, 0.3), "output": (100.0, 0.3)}
    cases = {
        "prefill-bound": Scenario(spec=spec, slots=4, request_s=100 * step_s + 4 * prefill_s, **prefill),
        "decode-bound": Scenario(spec=spec, slots=2, request_s=120 * step_s, requests_each=15, **short),
        "overhead-bound": Scenario(
            spec=f"{spec},overhead_us={4e3 * step_ms:.0f}", slots=1, request_s=500 * step_s, requests_each=15, **short
        ),
        "queueing": Scenario(
            spec=f"{spec},max_num_seqs=4", slots=32, request_s=900 * step_s, requests_each=4, **short
        ),
    }  # fmt: skip
    assert {code: engine.codes(case) for code, case in cases.items()} == {code: [code] for code in cases}


def test_a_prompt_in_each_step_is_told_from_few_places_by_the_hardware() -> None:
    crowded = Scenario(spec=LLAMA, slots=32, request_s=10, requests_each=4, prompt=(8000, 0.05), output=(20, 0))
    assert engine.codes(crowded) == ["prefill-bound"]
    assert engine.codes(crowded, metrics=False) == ["prefill-bound"]
    assert engine.codes(crowded, hardware=False) == ["unknown"]
    few = Scenario(
        spec=f"{LLAMA},max_num_seqs=8", slots=64, request_s=0.6, requests_each=4, prompt=(16, 0), output=(8, 0)
    )
    assert engine.codes(few) == ["queueing"]
    (said,) = engine.level(few, hardware=False).diagnoses
    assert "wait for a place or for the prompts before theirs" in said.words
    assert said.lever.startswith("--hardware ")


def test_few_places_and_long_prompts_are_both_named() -> None:
    both = Scenario(
        spec="qwen2.5-7b@a100-80gb,max_num_seqs=2,prefix_cache=0", slots=16, request_s=10, requests_each=5,
        prompt=(3000, 0.2), output=(80, 0.2),
    )  # fmt: skip
    assert engine.codes(both) == ["queueing", "prefill-bound"]
    queueing, prefill = engine.level(both).diagnoses
    assert "Raise max_num_seqs" in queueing.lever
    assert "max_num_seqs" not in prefill.lever
    (said, _) = engine.level(both, metrics=False, hardware=False).diagnoses
    assert "unless its KV cache is full" in said.words


def test_a_few_long_sequences_fill_the_kv_cache_before_the_last_of_it_is_used() -> None:
    few_long = Scenario(
        spec="qwen2.5-32b@h100,prefix_cache=0", rate_per_s=1.5, request_s=60, requests_each=1, prompt=(6000, 0.3),
        output=(120, 0.3),
    )  # fmt: skip
    assert sorted(engine.codes(few_long)) == ["kv-limited", "prefill-bound"]
    assert sorted(engine.codes(few_long, metrics=False)) == ["kv-limited", "prefill-bound"]


def test_a_wait_that_is_not_known_is_said_before_a_small_thing_that_is() -> None:
    aside = Scenario(
        spec="qwen3-8b@l4,prefix_cache=0", slots=32, request_s=150, requests_each=3, prompt=(150, 0.3),
        output=(2500, 0.3),
    )  # fmt: skip
    assert engine.codes(aside) == ["kv-limited"]
    (said,) = engine.level(aside, metrics=False, hardware=False).diagnoses
    assert said.code == "unknown"
    assert "a full KV cache does that" in said.words


def test_what_it_rests_on_and_what_to_change() -> None:
    (queueing,) = engine.level(MATRIX["few places"][0]).diagnoses
    assert "runs about 8 at once" in queueing.words
    assert "8) and 4" in queueing.evidence
    assert "max_num_seqs" in queueing.lever
    assert "More KV cache does nothing" in queueing.lever
    (seen,) = engine.level(MATRIX["few places"][0], metrics=False, hardware=False).diagnoses
    assert "runs about 8 at once and lets no more in, unless its KV cache is full" in seen.words
    assert "of 64 in flight decode at once" in seen.evidence
    assert "--metrics or --hardware" in seen.lever
    (held,) = engine.level(MATRIX["few places"][0], metrics=False).diagnoses
    assert "unless its KV cache is smaller than its memory allows" in held.words
    assert "of the KV cache that its memory has room for" in held.evidence
    assert "More KV cache does nothing" not in held.lever


@pytest.mark.parametrize(
    ("name", "nothing"),
    [
        ("little room for KV", "A larger max_num_seqs does nothing"),
        ("long prompts, one stream", "More memory bandwidth or a larger max_num_seqs does nothing"),
        ("long answers", "More FLOPs do nothing"),
        ("overhead", "More bandwidth, more FLOPs or fewer bits would change little"),
        ("long prompts among short ones", "More memory bandwidth does nothing"),
        ("a slow proxy", "A faster GPU or a setting of the engine would change none of it"),
        ("a client that reads late", "nothing changed on the server would show"),
    ],
)
def test_it_says_which_lever_does_nothing(name: str, nothing: str) -> None:
    (said,) = engine.level(MATRIX[name][0]).diagnoses
    assert nothing in said.lever


def test_where_it_does_not_know_it_names_the_flag_that_would_tell() -> None:
    for name, flag in (("long answers", "--hardware "), ("little room for KV", "--metrics ")):
        (said,) = engine.level(MATRIX[name][0], metrics=False, hardware=False).diagnoses
        assert said.lever.startswith(flag)
    (said,) = engine.level(MATRIX["a slow proxy, one stream"][0], metrics=False).diagnoses
    assert said.lever.startswith("--metrics ")


def test_nothing_is_said_where_nothing_succeeded() -> None:
    failing = Scenario(spec=LLAMA, slots=2, request_s=0.75, change=engine.failed, **CHAT)
    assert engine.codes(failing) == []
