from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import metrics, parts, records, window
from tests import fakes_run as fakes


def header(**changes: Any) -> records.Header:
    return msgspec.convert(fakes.header(**changes), records.Header)


def mixed(**head: Any) -> tuple[parts.Part, tuple[parts.Part, ...], parts.Turns | None]:
    rows = fakes.mix()
    requests, known = fakes.requests(*rows), header(**head)
    tokens, steady = metrics.event_tokens(requests), window.find(requests)
    assert steady is not None
    flow = window.flow(requests, tokens, steady)
    return (
        parts.whole(requests, tokens, steady, flow, known),
        parts.classes(requests, tokens, steady, known),
        parts.turns(requests, tokens, steady, known),
    )


def test_each_class_has_its_own_numbers() -> None:
    whole, (chat, rag), turns = mixed()
    assert turns is None
    assert (chat.name, rag.name) == ("chat", "rag")
    assert (chat.ttft_ms.p50, rag.ttft_ms.p50) == (100, 2000)
    assert (chat.e2e_ms.max, rag.e2e_ms.max) == (280, 2180)
    assert (chat.tokens.prompt_mean, rag.tokens.prompt_mean) == (512, 8000)
    assert (chat.requests.sent, rag.requests.sent, whole.requests.sent) == (300, 60, 360)
    assert chat.phases is not None
    assert rag.phases is not None
    assert (chat.phases.heavy, rag.phases.heavy) == ("decode", "prefill")
    assert chat.phases.prefill_share == pytest.approx(100 / 280)
    assert rag.phases.prefill_share == pytest.approx(2000 / 2180)


def test_rates_of_the_classes_sum_to_the_whole() -> None:
    whole, classes, _ = mixed()
    for name in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s"):
        each = [getattr(part.throughput, name) for part in classes]
        assert sum(each) == pytest.approx(getattr(whole.throughput, name))
    assert sum(part.tokens.distinct_prompts for part in classes) == whole.tokens.distinct_prompts


def test_classes_come_in_the_order_of_the_workload_also_where_one_had_no_request() -> None:
    classes = [{"name": name, "weight": 1} for name in ("rag", "batch", "chat")]
    _, found, _ = mixed(workload={"name": "m", "classes": classes})
    assert [(part.name, part.requests.sent) for part in found] == [("rag", 60), ("batch", 0), ("chat", 300)]
    assert found[1].ttft_ms.n == 0
    assert found[1].phases is None


@pytest.mark.parametrize("name", [None, "chat"])
def test_one_class_is_the_level_itself(name: str | None) -> None:
    requests = fakes.requests(*fakes.clean(**{"class": name}))
    one = header(workload={"name": "chat", "classes": [{"name": name}]})
    assert parts.classes(requests, metrics.event_tokens(requests), window.find(requests), one) == ()


def test_first_and_later_turns_apart() -> None:
    requests = fakes.requests(*fakes.conversations())
    turns = parts.turns(requests, metrics.event_tokens(requests), window.find(requests), header())
    assert turns is not None
    first, later = turns.first, turns.later
    assert (first.name, later.name) == ("first turns", "later turns")
    assert (first.requests.sent, later.requests.sent) == (76, 304)
    assert (first.tokens.prompt_mean, later.tokens.prompt_mean) == (512, 512 + 522 * 2.5)
    assert (first.tokens.cached_share, first.tokens.cacheable_share) == (0, 0)
    assert later.tokens.cacheable_share == later.tokens.cached_share


def test_who_left_has_a_ttft_and_no_e2e() -> None:
    gone: dict[str, Any] = {"status": "cancelled", "left": True, "tokens_from": "events", "prompt_tokens": None}
    rows = fakes.with_some(3, events_us=[900_000], end_us=950_000, **gone)
    rows += [fakes.row(900, 5, (), end_us=10, **gone), fakes.row(901, 6, (700_000,), status="cancelled")]
    requests = fakes.requests(*rows)
    whole = parts.whole(requests, metrics.event_tokens(requests), None, None, header())
    assert whole.requests == parts.Counts(sent=402, ok=397, failed=0, cancelled=1, left=4, errors={})
    assert (whole.ttft_ms.n, whole.ttft_ms.max, whole.ttft_sent_ms.n) == (400, 900, 400)
    assert (whole.e2e_ms.n, whole.tpot_ms.n, whole.itl_ms.n) == (397, 397, 397 * 9)
    assert whole.throughput.requests_per_s is None


def test_distinct_prompts_and_what_may_be_cached() -> None:
    rows = [fakes.row(i, i, item=i % 3, cached_tokens=0) for i in range(9)]
    requests = fakes.requests(*rows)
    tokens = parts.whole(requests, metrics.event_tokens(requests), None, None, header()).tokens
    assert (tokens.distinct_prompts, tokens.cached_share) == (3, 0)
    assert tokens.cacheable_share == pytest.approx(6 / 9)


@fakes.few_examples
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.lists(st.integers(0, 10**6), max_size=4).map(sorted),
            st.sampled_from(["ok", "failed", "cancelled"]),
            st.booleans(),
            st.sampled_from(["a", "b", None]),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_classes_and_turns_divide_the_rows(rows: list[Any]) -> None:
    made = [
        fakes.row(i, sent, events, status=status, left=left, turn=turn, session=0, **{"class": name})
        for i, (sent, events, status, left, name, turn) in enumerate(rows)
    ]
    requests = fakes.requests(*made)
    tokens, known = (
        metrics.event_tokens(requests),
        header(workload={"name": "m", "classes": [{"name": "a"}, {"name": "b"}]}),
    )
    steady = window.find(requests)
    whole = parts.whole(requests, tokens, None, None, known)
    classes = parts.classes(requests, tokens, steady, known)
    assert sum(part.requests.sent for part in classes) == sum(row["class"] is not None for row in made)
    turns = parts.turns(requests, tokens, steady, known)
    if turns is not None:
        for field in ("sent", "ok", "failed", "cancelled", "left"):
            counts = [getattr(part.requests, field) for part in (turns.first, turns.later)]
            assert sum(counts) == getattr(whole.requests, field)
        assert turns.first.itl_ms.n + turns.later.itl_ms.n == whole.itl_ms.n
