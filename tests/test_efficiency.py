from __future__ import annotations

import csv
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import efficiency, floors, hardware_words, metrics, records, window
from analysis.catalog import facts
from analysis.efficiency import NEAR, Floors
from analysis.hardware import parse
from tests import fakes_run as fakes
from tests.bench import virtual

if TYPE_CHECKING:
    from analysis.hardware import Hardware
    from analysis.records import Requests

GOLDEN = Path(__file__).parent / "golden"
ON = "llama-3.1-8b@h100,dtype=bf16"
IDEAL = "prefix_cache=0,bandwidth_efficiency=1,compute_efficiency=1,overhead_us=0"


def of(requests: Requests, hardware: str | Hardware = ON, *, open_loop: bool = False, **head: Any) -> Floors:
    found = parse(hardware) if isinstance(hardware, str) else hardware
    header = msgspec.structs.replace(msgspec.convert(fakes.header(**head), records.Header), hardware=found)
    held = window.find(requests, open_loop=open_loop)
    made = efficiency.of_level(header, requests, metrics.event_tokens(requests), held)
    assert made is not None
    return made


# What others have published, and what nobody can have measured


def rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def name_of(row: dict[str, str]) -> str:
    return "-".join(row[key] for key in ("source", "model", "weights", "gpu", "input_tokens", "concurrency"))


@pytest.mark.parametrize("row", rows("published.csv"), ids=name_of)
def test_no_published_measurement_beats_its_floor(row: dict[str, str]) -> None:
    if row["model"] not in facts.models():
        pytest.skip(f"{row['model']} is not in the catalogue")
    rate = float(row["output_tokens_per_s"])
    hardware = hardware_words.said(f"{row['model']}@{row['gpu']},dtype={row['weights']},gpus={row['gpus']}", None)
    ms = float(row["itl_ms"]) if row["itl_ms"] else 1000 / rate
    batch = rate * ms / 1e3  # sequences in decode, by Little's law
    context = float(row["input_tokens"] or 0) + float(row["output_tokens"] or 0) / 2
    assert 0.02 < efficiency.claim(hardware, ms, max(1.0, batch), context) < NEAR
    if row["ttft_ms"]:
        assert floors.prefill_s(hardware, float(row["input_tokens"])) * 1e3 < float(row["ttft_ms"])


# The claim, its hardware, ms a token, and how it is caught.
CLAIMS = {
    "llama-2-70b in fp16 on one h100: about 85 tokens/s at batch 1": ("llama-2-70b@h100,dtype=fp16", 1000 / 85, 3.5),
    "7B in bf16 on a100-80gb: 200 tokens/s at batch 1": ("7b@a100-80gb,dtype=bf16", 1000 / 200, 1.37),
    "llama-3.1-8b in bf16 on h100: time per output token 3.47 ms": (ON, 3.47, 1.38),
    "8B in fp16 on mi300x: 320 tokens/s for one stream": ("8b@mi300x,dtype=fp16", 1000 / 320, 0.97),
}


@pytest.mark.parametrize("row", rows("impossible.csv"), ids=lambda row: row["claim"])
def test_every_impossible_claim_is_caught(row: dict[str, str]) -> None:
    text, ms, expected = CLAIMS[row["claim"]]
    found = efficiency.claim(parse(text), ms)
    assert found == pytest.approx(expected, rel=0.01)
    assert found > NEAR
    if "do not fit" in row["why"]:
        with pytest.raises(ValueError, match="138 GB of weights do not fit 80 GB"):
            hardware_words.said(text, None)


# A level by hand


def test_known_answers() -> None:
    """Four streams, each 100 ms to the first of ten tokens and 20 ms from one to the next."""
    requests = fakes.requests(*fakes.closed_loop(4, each=100))
    found = of(requests)
    assert found.hardware == "llama-3.1-8b in bf16 on h100"
    assert found.batch == pytest.approx(4 * 180 / 280, rel=2e-3)
    assert found.context == pytest.approx(512 + 5, rel=1e-3)  # 1 to 9 tokens before the next one
    assert found.itl_ms == pytest.approx(20, rel=1e-6)
    # Starts are 70 ms apart: of four streams at most three are in decode, and in 160 of 280 ms all of them.
    assert found.step_weight_bytes == pytest.approx(16.06e9)
    assert found.step_kv_bytes == pytest.approx(131072 * 517 * 2.6, rel=0.03)
    assert found.itl_floor_ms == pytest.approx((16.06e9 + (found.step_kv_bytes or 0)) / 3.35e9, rel=1e-6)
    assert found.itl_efficiency == pytest.approx((found.itl_floor_ms or 0) / 20)
    assert found.tokens_per_s_limit == pytest.approx(4 * 10 / 0.28 / (found.itl_efficiency or 0), rel=5e-3)
    assert found.ttft_floor_ms == pytest.approx(floors.prefill_s(parse(ON), 512) * 1e3)
    assert found.ttft_ms == 100
    assert found.ttft_efficiency == pytest.approx((found.ttft_floor_ms or 0) / 100)
    assert found.kv_tokens == int((72e9 - 16.06e9) / 131072)


def test_nothing_is_said_where_the_hardware_is_not_known() -> None:
    requests = fakes.requests(*fakes.clean())
    header = msgspec.convert(fakes.header(), records.Header)
    assert efficiency.of_level(header, requests, metrics.event_tokens(requests), window.find(requests)) is None


def test_what_is_not_known_is_none() -> None:
    single = of(fakes.requests(*fakes.closed_loop(1, each=9, events=1)))
    assert (single.batch, single.itl_floor_ms, single.ttft_ms) == (None, None, 100)
    few = of(fakes.requests(fakes.row(0)))
    assert (few.itl_ms, few.ttft_ms, few.ttft_floor_ms) == (None, None, None)
    uncounted = of(fakes.requests(*fakes.clean(prompt_tokens=None)))
    assert (uncounted.context, uncounted.step_kv_bytes, uncounted.ttft_floor_ms) == (None, None, None)
    assert (uncounted.itl_floor_ms or 0) >= 16.06 / 3.35
    shapeless = of(fakes.requests(*fakes.clean()), "8b@m4-max,dtype=bf16")
    assert (shapeless.step_kv_bytes, shapeless.kv_tokens) == (None, None)
    assert shapeless.itl_floor_ms == pytest.approx(16 / 0.546)
    assert shapeless.context == pytest.approx(517, rel=1e-3)


def test_the_count_decides_and_not_the_events() -> None:
    """B21: several tokens an event; counted twice, they take half the time, and the floor stays."""
    once = of(fakes.requests(*fakes.clean()))
    twice = of(fakes.requests(*fakes.clean(output_tokens=20)))
    assert twice.itl_ms == pytest.approx((once.itl_ms or 0) / 2)
    assert twice.itl_efficiency == pytest.approx(2 * (once.itl_efficiency or 0), rel=0.01)
    shares = [3, 3, 1, 1, 1, 1, 1, 1, 1, 7]
    uneven = of(fakes.requests(*fakes.clean(output_tokens=20, events_tokens=shares)))
    assert uneven.itl_ms == pytest.approx(180 / 17, rel=5e-3)  # as TPOT: not the tokens of the first event


def test_hidden_reasoning_is_no_decode_that_was_seen() -> None:
    """B19: 398 of 400 tokens came before the first event: their KV is there, and they took none of the time."""
    hidden = of(fakes.requests(*fakes.clean(output_tokens=408, reasoning_tokens=398)))
    assert hidden.itl_ms == pytest.approx(20)
    assert hidden.context == pytest.approx(512 + 398 + 5, rel=1e-3)


def test_requests_that_were_cut_decode_too() -> None:
    rows = [one | {"status": "cancelled", "output_tokens": None, "prompt_tokens": None} for one in fakes.clean()]
    some = of(fakes.requests(*fakes.clean()[:-100], *rows[-100:]))
    assert some == of(fakes.requests(*fakes.clean()))


def test_what_was_cached_needs_no_prefill() -> None:
    cold = floors.prefill_s(parse(ON), 4096) * 1e3
    warm = floors.prefill_s(parse(ON), 4096, 4000) * 1e3
    asked: dict[str, Any] = {"prompt_tokens": 4096, "want_input_tokens": 4096}
    assert of(fakes.requests(*fakes.clean(**asked))).ttft_floor_ms == pytest.approx(cold)
    assert of(fakes.requests(*fakes.clean(**asked, cached_tokens=4000))).ttft_floor_ms == pytest.approx(warm)
    # A server that does not say so may have cached what the plan lets it: here template, opening word and prefix.
    shared = fakes.requests(*fakes.clean(**asked, cached_tokens=None, shared_tokens=3995, group=0))
    assert of(shared).ttft_floor_ms == pytest.approx(warm)
    # All of it, and more: the last token is always computed.
    whole = floors.prefill_s(parse(ON), 4096, 4095) * 1e3
    assert of(fakes.requests(*fakes.clean(**asked, cached_tokens=9999))).ttft_floor_ms == pytest.approx(whole)
    unknown = fakes.clean(**asked, cached_tokens=None, turn=1, session=-1)
    assert of(fakes.requests(*unknown)).ttft_floor_ms == pytest.approx(whole)


def test_kv_that_is_shared_by_plan_may_be_read_once() -> None:
    alone, shared = (of(fakes.requests(*fakes.clean(shared_tokens=n, group=0))) for n in (0, 500))
    assert shared.context == alone.context
    assert (shared.step_kv_bytes or 0) / (alone.step_kv_bytes or 1) == pytest.approx(17 / 517, rel=0.01)


def test_layers_with_a_window_hold_no_more_than_that() -> None:
    """Of gemma-3-27b 52 of 62 layers keep 1024 tokens; each sequence is on its own side of that."""
    long = fakes.closed_loop(1, each=20, prompt_tokens=8000)
    short = [row | {"index": row["index"] + 1000, "prompt_tokens": 100} for row in fakes.closed_loop(1, each=20)]
    found = of(fakes.requests(*long, *short), "gemma-3-27b@h100,dtype=bf16")
    model = facts.model("gemma-3-27b")
    each = [floors.kv_bytes(model, length) or 0 for length in (8005, 105)]
    assert (found.step_kv_bytes or 0) == pytest.approx(sum(each), rel=1e-3)  # both are in decode at the same times
    assert (found.step_kv_bytes or 0) < 0.8 * 2 * (floors.kv_bytes(model, found.context or 0) or 0)


# The simulated engine without any loss is at its floor, and never above


@functools.cache
def ideal(text: str, slots: int = 0, rate_per_s: float = 0.0, output: int = 64, seed: int = 1) -> Floors:
    served = virtual.spec(f"{text},{IDEAL}")
    lengths = virtual.Lengths(prompt=(512, 0.6), output=(output, 0.6))
    if slots:
        requests = virtual.closed_loop(served, slots, 8, seed, request_s=0.5, lengths=lengths)
    else:
        requests = virtual.open_loop(served, rate_per_s, max(8, 20 / rate_per_s), seed, lengths=lengths)
    return of(requests, served.hardware, open_loop=not slots)


@pytest.mark.parametrize(
    "text", ["llama-3.1-8b@h100", "mixtral-8x7b@h100,gpus=2", "qwen3-30b-a3b@h100", "llama-3.1-8b@l40s,dtype=fp8"]
)
def test_one_stream_without_loss_decodes_at_its_floor(text: str) -> None:
    """Nobody's prefill is between its steps."""
    found = ideal(text, slots=1, output=200)
    assert found.itl_efficiency == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "slots", "rate_per_s"),
    [
        ("llama-3.1-8b@h100", 16, 0),
        ("llama-3.1-8b@h100", 64, 0),
        ("mixtral-8x7b@h100,gpus=2", 16, 0),
        ("gemma-3-27b@h100", 8, 0),
        ("llama-3.1-8b@l4,gpu_memory_utilization=0.75", 48, 0),  # preemptions
        ("llama-3.1-8b@h100,max_num_seqs=8", 16, 0),  # a queue
        ("llama-3.1-8b@h100", 0, 1),
        ("llama-3.1-8b@h100", 0, 30),
        ("mixtral-8x7b@h100,gpus=2", 0, 3),
    ],
)
def test_no_engine_is_above_its_floor(text: str, slots: int, rate_per_s: float) -> None:
    found = ideal(text, slots, rate_per_s, output=300)
    assert 0.7 < (found.itl_efficiency or 0) <= 1.001
    assert found.ttft_efficiency is None or found.ttft_efficiency <= 1.001


def at_floor(hardware: Hardware, requests: list[tuple[int, int]], begins: list[int]) -> Requests:
    """(prompt, output) tokens of each, beginning at a step, in an engine whose steps take their floors and whose
    prefills take no time."""
    ahead, live, made = list(zip(begins, requests, strict=True)), list[dict[str, Any]](), list[dict[str, Any]]()
    now_s, step = 0.0, 0
    while ahead or live:
        while ahead and ahead[0][0] <= step:
            _, (prompt, output) = ahead.pop(0)
            facts = {"index": len(made) + len(live), "sent_us": round(now_s * 1e6), "events": [0]}
            live.append(facts | {"prompt": prompt, "output": output})
        lengths = [one["prompt"] + len(one["events"]) for one in live]
        kv = sum(floors.kv_bytes(hardware.model, length) or 0 for length in lengths)
        read = floors.weight_bytes_read(hardware.model, max(1, len(live)), hardware.dtype) + kv
        now_s += read / floors.bytes_per_s(hardware)
        step += 1
        for one in live:
            one["events"].append(round(now_s * 1e6) - one["sent_us"])
        for one in [one for one in live if len(one["events"]) == one["output"]]:
            live.remove(one)
            made.append(fakes.row(one["index"], one["sent_us"], one["events"], prompt_tokens=one["prompt"]))
    return fakes.requests(*made)


def test_the_floor_of_the_mean_step_would_overstate() -> None:
    """Why tokens have floors of their own: one long context takes half of the time and makes few tokens."""
    hardware = parse("llama-3.1-8b@h100,dtype=bf16,gpus=2")
    requests, begins = [(150_000, 60)], [0]
    for wave in range(4):
        requests += [(50, 50)] * 64
        begins += [60 + 50 * wave] * 64
    requests += [(50, 2)]
    begins += [260]
    found = of(at_floor(hardware, requests, begins), hardware)
    assert found.itl_efficiency == pytest.approx(1, abs=2e-3)
    assert found.itl_ms is not None
    assert efficiency.claim(hardware, found.itl_ms, found.batch or 0, found.context or 0) > 1.2


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(2, 30)), min_size=3, max_size=20), st.integers(1, 40))
@fakes.few_examples
def test_steps_at_their_floors_are_at_their_floors(requests: list[tuple[int, int]], gap: int) -> None:
    """Any mix of lengths, one more every so many steps."""
    hardware = parse("qwen3-30b-a3b@h100,dtype=bf16")
    found = of(at_floor(hardware, requests, [gap * i for i in range(len(requests))]), hardware)
    if found.itl_efficiency is not None:
        assert found.itl_efficiency == pytest.approx(1, abs=4e-3)  # events are in whole us


def test_a_level_of_many_rows_is_as_one_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = fakes.requests(*fakes.clean(), *(fakes.failed(900 + i, 1_000_000) for i in range(20)))
    whole = of(requests)
    monkeypatch.setattr(efficiency, "_ROWS", 7)
    for one, other in zip(msgspec.structs.astuple(of(requests)), msgspec.structs.astuple(whole), strict=True):
        assert one == (other if isinstance(other, str) else pytest.approx(other))
