from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import floor_sheet, floors
from analysis.catalog import facts
from analysis.floor_sheet import Question, Sheet, Speculate
from analysis.hardware import DTYPE_BYTES, parse


def asked(**changes: Any) -> Question:
    return Question(**({"input_tokens": 1000, "output_tokens": 200, "batch": 8, "context_tokens": 1100.0} | changes))


def sheet(text: str, **changes: Any) -> Sheet:
    return floor_sheet.sheet(parse(text), asked(**changes))


def test_the_numbers_are_those_of_the_formulas() -> None:
    hardware = parse("llama-3.1-8b@h100,dtype=bf16")
    made = sheet("llama-3.1-8b@h100,dtype=bf16")
    assert made.one.floor_ms == pytest.approx(floors.decode_s(hardware) * 1e3)
    assert made.one.tokens_per_s == pytest.approx(1 / floors.decode_s(hardware))
    assert (made.one.kv_bytes, made.one.bound) == (0, "bandwidth")
    assert (made.batch.weight_bytes, made.batch.kv_bytes) == floors.decode_bytes(hardware, 8, 1100)
    assert made.prefill.floor_ms == pytest.approx(floors.prefill_s(hardware, 1000) * 1e3)
    assert made.kv.sequences == floors.sequences(hardware, 1100)  # 1000 and half of 200
    assert (made.speculation, made.plan) == (None, None)


def test_a_large_batch_is_bound_by_compute() -> None:
    assert sheet("7b@h100,dtype=bf16", batch=1000).batch.bound == "compute"


def test_a_model_without_a_shape_has_no_kv() -> None:
    made = sheet("7b@h100,dtype=bf16")
    assert (made.kv.bytes_per_token, made.kv.tokens, made.kv.sequences, made.kv.parity_batch) == (None,) * 4
    assert made.batch.kv_bytes is None
    assert made.fits


def test_a_gpu_without_a_compute_rate_has_no_prefill_and_no_roofline() -> None:
    made = sheet("llama-3.1-8b@m2-ultra,dtype=bf16", plan=True, slo=("chat",))
    assert (made.flops_per_s, made.prefill.floor_ms, made.break_even_batch, made.roofline) == (None, None, None, ())
    assert {one.prefill_ms for one in made.precisions} == {None}
    assert {one.note for one in made.precisions} == {"compute rate not known"}
    assert made.plan is not None
    assert made.plan.floor.ttft_ms is None


def test_weights_that_do_not_fit_still_have_floors() -> None:
    made = sheet("70b@h100,dtype=bf16")
    assert (made.fits, made.gpus_needed, made.kv.tokens) == (False, 2, 0)
    assert made.one.floor_ms == pytest.approx(140 / 3350 * 1e3)


@pytest.mark.parametrize(
    ("text", "dtypes", "notes"),
    [
        ("7b@h100,dtype=bf16", ["bf16", "fp8", "int4"], [None, None, "no fp4 rate: computes in bf16"]),
        ("7b@b200,dtype=bf16", ["bf16", "fp8", "fp4"], [None, None, None]),
        (
            "7b@a100-80gb,dtype=fp16",
            ["fp16", "int8", "int4"],
            [None, "no fp8 rate: int8 at twice that of bf16", "no fp4 rate: computes in bf16"],
        ),
        ("7b@h100,dtype=mxfp4", ["mxfp4", "bf16", "fp8", "int4"], ["no mxfp4 rate: computes in fp8", None, None, ...]),
        ("7b@a100-80gb,dtype=fp8", ["fp8", "bf16", "int8", "int4"], ["no fp8 rate: computes in bf16", ..., ..., ...]),
    ],
)
def test_precisions_are_those_that_the_gpu_computes_in(text: str, dtypes: list[str], notes: list[Any]) -> None:
    found = sheet(text).precisions
    assert [one.dtype for one in found] == dtypes
    for one, note in zip(found, notes, strict=True):
        assert note is ... or one.note == note


def test_fewer_bits_are_faster_and_leave_more_room() -> None:
    found = sheet("llama-3.1-8b@h100,dtype=bf16").precisions
    assert [one.decode_ms for one in found] == pytest.approx([found[0].decode_ms / n for n in (1, 2, 4)])
    rooms = [one.kv_tokens or 0 for one in found]
    assert rooms == sorted(rooms)
    assert len(set(rooms)) == 3


def test_the_whole_catalogue_stands_side_by_side() -> None:
    made = sheet("70b@h100,dtype=bf16")
    assert [one.gpu for one in made.catalogue] == list(facts.gpus())
    by_name = {one.gpu: one for one in made.catalogue}
    assert (by_name["h100"].fits, by_name["h100"].gpus) == (False, 2)
    assert by_name["h100"].decode_ms == pytest.approx(140 / 6700 * 1e3)  # of the two it takes
    assert (by_name["b200"].fits, by_name["b200"].gpus) == (True, 1)
    assert by_name["m2-ultra"].prefill_ms is None


def test_speculation() -> None:
    found = sheet("7b@h100,dtype=bf16", speculate=Speculate(drafts=3, acceptance=1.0, draft_cost=0.2)).speculation
    assert found is not None
    assert found.tokens_per_step == 4
    assert found.gain == pytest.approx(2.5)
    assert found.floor_ms_per_token == pytest.approx(14 / 3350 * 1e3 / 2.5)
    assert found.free_batch == pytest.approx(295 / 4, rel=0.01)


def test_the_points_of_the_roofline_lie_on_it() -> None:
    made = sheet("llama-3.1-8b@h100,dtype=bf16", batch=1)
    assert [point.name for point in made.roofline] == [
        "decode, 1 stream", "decode, 295 at once (break-even)", "prefill, 1,000 tokens",
    ]  # fmt: skip
    made = sheet("llama-3.1-8b@h100,dtype=bf16")
    assert made.flops_per_s is not None
    assert len(made.roofline) == 4
    for point in made.roofline:
        roof = min(point.flops_per_byte * made.bytes_per_s, made.flops_per_s)
        assert point.flops_per_s == pytest.approx(roof)


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([*facts.models(), "7b", "1.5t"]),
    st.sampled_from(list(facts.gpus())),
    st.sampled_from(list(DTYPE_BYTES)),
    st.integers(1, 64),
    st.integers(1, 200_000),
    st.integers(1, 50_000),
    st.integers(1, 5000),
)
def test_any_question_has_an_answer_in_strict_json(
    model: str, gpu: str, dtype: str, gpus: int, prompt: int, output: int, batch: int
) -> None:
    made = sheet(
        f"{model}@{gpu},dtype={dtype},gpus={gpus}",
        input_tokens=prompt,
        output_tokens=output,
        batch=batch,
        speculate=Speculate(drafts=3, acceptance=0.5, draft_cost=0.1),
        plan=True,
        slo=("chat",),
    )
    text = floor_sheet.dumps(made)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert json.loads(text, parse_constant=refuse)["model"] == model
    assert text.isascii()
    for one in made.catalogue:
        assert one.decode_ms > 0
        assert one.gpus >= 1
