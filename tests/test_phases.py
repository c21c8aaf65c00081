"""What bounds prefill and decode; that each is named in its place is in test_diagnose.py."""

from __future__ import annotations

import msgspec
import pytest

from tests import fakes_engine as engine
from tests.fakes_engine import Scenario

LLAMA = "llama-3.1-8b@h100,prefix_cache=0"
LONE = Scenario(spec=LLAMA, slots=1, request_s=1, requests_each=20, prompt=(256, 0.4), output=(100, 0.4))


def said(scenario: Scenario, **known: bool) -> str:
    (one,) = engine.level(scenario, **known).diagnoses
    return f"{one.code}: {one.words} {one.evidence} {one.lever}"


def test_ttft_grows_with_the_prompt() -> None:
    rag = msgspec.structs.replace(LONE, prompt=(6000.0, 0.4))
    text = said(rag, metrics=False, hardware=False)
    assert text.startswith("prefill-bound: ")
    assert "a thousand prompt tokens" in text
    assert "floor" not in text
    assert "floor" in said(rag)


def test_a_ttft_that_does_not_grow_with_the_prompt_is_not_the_prompt() -> None:
    slow = msgspec.structs.replace(LONE, prompt=(300.0, 0.5), change=engine.held_back(100))
    assert said(slow, metrics=False, hardware=False).startswith("unknown: The first token comes late, and not for")
    assert said(slow, metrics=False).startswith("unknown: The first token comes late, and not for")


def test_a_large_batch_is_bound_by_compute() -> None:
    many = Scenario(
        spec="llama-3.1-8b@a10g,dtype=int8,max_num_seqs=512,prefix_cache=0,overhead_us=0", slots=200, request_s=6,
        requests_each=2, prompt=(4, 0), output=(80, 0.2),
    )  # fmt: skip
    text = said(many, metrics=False)
    assert text.startswith(
        "decode-bound: Making the tokens (decode) takes the time, and its steps are bound by compute"
    )
    assert "More memory bandwidth does nothing" in text


def test_a_batch_near_break_even_may_be_bound_by_either() -> None:
    many = Scenario(
        spec="qwen2.5-7b@l40s,max_num_seqs=400,prefix_cache=0", slots=300, request_s=4, requests_each=2,
        prompt=(4, 0), output=(80, 0.2),
    )  # fmt: skip
    text = said(many, metrics=False)
    assert text.startswith("decode-bound: ")
    assert "bound by compute or memory bandwidth" in text
    assert "More FLOPs do nothing" not in text


def test_flops_help_with_the_prompts_beside_the_steps() -> None:
    chat = msgspec.structs.replace(
        LONE, slots=96, request_s=2.4, requests_each=4, prompt=(321.0, 0.4), output=(182.0, 0.4)
    )
    text = said(chat)
    assert text.startswith("decode-bound: ")
    assert "More FLOPs do nothing but for the prompts beside them: " in text


def test_the_experts_are_read_for_each_chunk() -> None:
    moe = msgspec.structs.replace(
        LONE, spec="qwen3-30b-a3b@h100,max_num_batched_tokens=2048,prefix_cache=0", slots=8, request_s=3,
        requests_each=5, prompt=(12000.0, 0.1), output=(40.0, 0.2),
    )  # fmt: skip
    text = said(moe)
    assert text.startswith("prefill-bound: ")
    assert "reading all experts once more" in text
    assert "A larger max_num_batched_tokens" in text


def test_without_decode_nothing_is_said_of_it() -> None:
    short = msgspec.structs.replace(LONE, slots=8, output=(2.0, 0.0), request_s=0.1, change=engine.one_token)
    text = said(short, metrics=False, hardware=False)
    assert text.startswith("unknown: Nearly all the time passes before the first token")
    assert "(decode)" not in text


def test_long_contexts_read_the_kv_cache() -> None:
    long = Scenario(
        spec="llama-2-7b@h100,prefix_cache=0", slots=12, request_s=40, requests_each=2, prompt=(3000, 0.0),
        output=(2000, 0.1),
    )  # fmt: skip
    text = said(long)
    assert "memory bandwidth: each reads the KV cache" in text
    assert "an FP8 KV cache" in text


def test_half_way_to_the_floor_names_both() -> None:
    half = msgspec.structs.replace(LONE, spec=f"{LLAMA},overhead_us=6000")
    text = said(half)
    assert text.startswith("decode-bound: ")
    assert "but less than half of a step is that" in text
    assert "CUDA graphs" in text


@pytest.mark.parametrize("metrics", [True, False])
def test_a_floor_above_what_is_measured_says_nothing(metrics: bool) -> None:
    wrong = engine.level(LONE, metrics=metrics, hardware="llama-3.1-70b@h100,dtype=bf16,gpus=4")
    assert [one.code for one in wrong.diagnoses] == ["unknown"]
    assert "Check --hardware" in wrong.diagnoses[0].lever


def test_a_prefill_that_the_server_itself_says_is_slow_is_its_overhead() -> None:
    slow = msgspec.structs.replace(LONE, spec=f"{LLAMA},compute_efficiency=0.02", prompt=(2000.0, 0.2))
    assert said(slow).startswith("overhead-bound: Most of a prefill")
    assert said(slow, metrics=False).startswith("unknown: The first token comes late")
