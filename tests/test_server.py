"""The arithmetic of samples: of one source and of several, whole and with holes."""

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import metrics, records, server
from analysis.server import Sample, Server, Spread
from tests.fakes_run import closed_loop, requests, row

S = 1_000_000
START_US, END_US = 10 * S, 20 * S
ENDED = {
    level: records.Ended(level=level, start_us=start_us, end_us=end_us, ended_by="duration")
    for level, (start_us, end_us) in enumerate(((0, 9_800_000), (START_US, END_US), (21 * S, 31 * S)))
}
EVERY = [9.9, *range(11, 20), 20.1]  # when a level of ten seconds is sampled: before it, in it, after it


def samples(at_s: Any = EVERY, source: int = 0, **values: Any) -> list[Sample]:
    """A row that says where from, and one for each time; a value may be one for all times, or one for each."""
    told = [Sample(t_us=round(at_s[0] * S), source=source, url=f"http://h{source}/metrics", engine="vllm")]
    columns = {name: value if isinstance(value, list) else [value] * len(at_s) for name, value in values.items()}
    return told + [
        Sample(t_us=round(t * S), source=source, **{name: column[place] for name, column in columns.items()})
        for place, t in enumerate(at_s)
    ]


def of_level(rows: list[Sample], *received: dict[str, Any], level: int = 1) -> Server:
    made = requests(*received)
    found = server.of_level(rows, ENDED, level, made, metrics.event_tokens(made))
    assert found is not None
    return found


# Reading


def test_rows_are_read_and_a_cut_one_is_left_out(tmp_path: Path) -> None:
    rows = [
        {"t_us": 1, "source": 0, "url": "http://h/metrics", "engine": "vllm"},
        {"t_us": 1, "source": 0, "running": 3.0, "ttft_s": 0.5, "of a later version": 1},
        {"t_us": 2, "source": 0, "error": "timeout"},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "server.jsonl").write_text(text + '{"t_us": 3, "sou')
    read = server.read(tmp_path)
    assert [(row.url, row.running, row.error) for row in read] == [
        ("http://h/metrics", None, None), (None, 3.0, None), (None, None, "timeout")
    ]  # fmt: skip


def test_no_file_is_no_sample(tmp_path: Path) -> None:
    assert server.read(tmp_path) == ()


@pytest.mark.parametrize("line", ['{"source": 0}', "no JSON", '{"t_us": 1, "source": 0, "running": "3"}'])
def test_a_broken_row_is_refused_by_its_place(tmp_path: Path, line: str) -> None:
    (tmp_path / "server.jsonl").write_text('{"t_us": 1, "source": 0}\n' + line + "\n")
    with pytest.raises(ValueError, match=r"server\.jsonl, line 2: .*; mend or remove that line"):
        server.read(tmp_path)


# Counters


@given(st.lists(st.floats(0, 1e6), max_size=20))
def test_a_counter_that_never_falls_grew_from_first_to_last(steps: list[float]) -> None:
    values = list(itertools.accumulate(steps, initial=7.0))
    assert server.growth(values) == pytest.approx(sum(steps), abs=1e-6)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_at_each_fall_what_was_counted_before_is_kept(values: list[int]) -> None:
    lost = sum(before for before, after in itertools.pairwise(values) if after < before)
    assert server.growth(values) == values[-1] - values[0] + lost


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(1, 29))
def test_parts_of_a_run_add_up_to_the_whole(steps: list[int], cut: int) -> None:
    values = [float(value) for value in itertools.accumulate(steps)]
    assert server.growth(values) == server.growth(values[: cut + 1]) + server.growth(values[cut:])


def test_a_level_grew_by_what_lies_between_the_samples_around_it() -> None:
    counts = [100.0, *[200.0] * 9, 450.0]
    found = of_level(samples(output_tokens=counts, preemptions=[2.0] * 10 + [5.0]))
    assert (found.output_tokens, found.preemptions, found.restarts) == (350, 3, 0)


def test_the_levels_next_to_it_are_not_its_own() -> None:
    around = [5.0, 9.9, 10.1, 15.0, 20.5, 21.5, 31.5]
    rows = samples(around, output_tokens=[0.0, 10.0, 11.0, 60.0, 110.0, 150.0, 210.0])
    assert [of_level(rows, level=level).output_tokens for level in (0, 1, 2)] == [10, 100, 100]
    without = [one for one in rows if one.t_us not in (9_900_000, 20_500_000)]  # level 1 has only what lies in it
    assert [of_level(without, level=level).output_tokens for level in (0, 1, 2)] == [None, 49, 60]


def test_a_counter_that_shows_late_was_zero_and_one_that_never_does_is_unknown() -> None:
    found = of_level(samples(output_tokens=[None, None, *[7.0] * 9]))
    assert (found.output_tokens, found.preemptions) == (7, None)


def test_a_fall_is_a_restart_however_many_counters_fall() -> None:
    fallen = [50.0, 60.0, *[5.0] * 9]
    found = of_level(samples(output_tokens=fallen, prompt_tokens=fallen))
    assert (found.restarts, found.output_tokens) == (1, 15)


def test_means_and_shares_are_of_the_level_and_not_of_the_servers_life() -> None:
    def grows(*by: float) -> list[float]:
        return [by[0]] * 10 + [sum(by)]

    found = of_level(
        samples(
            ttft_s=grows(100, 3), ttft_n=grows(10, 12), queue_s=grows(50, 1.2), queue_n=grows(9, 12),
            prefill_s=grows(0, 0.6), prefill_n=grows(0, 12), decode_s=grows(7, 24), decode_n=grows(7, 12),
            prefix_queries=grows(1000, 4000), prefix_hits=grows(1000, 1000),
            draft_tokens=grows(0, 500), accepted_tokens=grows(0, 300), accepted_share=0.9,
        )
    )  # fmt: skip
    means = [found.ttft_ms, found.queue_ms, found.prefill_ms, found.decode_ms]
    assert means == pytest.approx([250, 100, 50, 2000])
    assert (found.prefix_hit_share, found.accepted_share) == (0.25, 0.6)


def test_without_requests_there_is_no_mean() -> None:
    found = of_level(samples(ttft_s=1.0, ttft_n=2.0, prefix_queries=5.0, prefix_hits=5.0))
    assert (found.ttft_ms, found.prefix_hit_share, found.accepted_share) == (None, None, None)


def test_a_share_that_only_the_server_knows() -> None:
    assert of_level(samples(accepted_share=[0.0, *[0.5, 0.7, 0.6] * 3, 0.0])).accepted_share == pytest.approx(0.6)


# Gauges


def test_gauges_are_those_inside_the_level() -> None:
    found = of_level(samples(running=[0.0, *range(1, 10), 0.0], waiting=2.0, kv_use=[0.0, 0.5, *[0.25] * 8, 1.0]))
    assert found.running == Spread(5, 9)
    assert found.waiting == Spread(2, 2)
    assert found.kv_use == Spread(2.5 / 9, 0.5)
    assert (found.samples, found.sources, found.gaps, found.engine) == (9, 1, 0, "vllm")


def test_seconds_without_a_sample_are_counted() -> None:
    rows = samples([9.9, 11, 12, 15, 20.1], running=1.0)
    rows += [Sample(t_us=13 * S, source=0, error="timeout"), Sample(t_us=14 * S, source=0, error="timeout")]
    rows.sort(key=lambda sample: sample.t_us)
    found = of_level(rows)
    assert (found.samples, found.gaps) == (3, 2 + 4)


def test_a_level_shorter_than_a_second_has_counters_and_no_gauge() -> None:
    found = of_level(samples([9.9, 20.1], running=[3.0, 4.0], output_tokens=[1.0, 9.0]))
    assert (found.running, found.output_tokens, found.samples) == (None, 8, 0)


@pytest.mark.parametrize("rows", [[], samples([1, 2], running=1.0), samples([40, 41], running=1.0)])
def test_a_level_without_a_sample_is_none(rows: list[Sample]) -> None:
    made = requests()
    assert server.of_level(rows, ENDED, 1, made, metrics.event_tokens(made)) is None


def test_a_level_that_has_not_ended_is_none() -> None:
    made = requests()
    assert server.of_level(samples(running=1.0), {}, 1, made, metrics.event_tokens(made)) is None


# Several sources


def test_sources_are_summed_and_their_means_weighted() -> None:
    one = samples(running=[0, *range(9), 0], kv_use=0.25, output_tokens=[0.0] * 10 + [100.0], ttft_s=0.0, ttft_n=0.0)
    one = [_with(sample, ttft_s=1.0, ttft_n=10.0) if sample is one[-1] else sample for sample in one]
    other = samples(source=1, running=[0, *reversed(range(9)), 0], kv_use=0.75, output_tokens=[0.0] * 10 + [50.0])
    other = [_with(sample, ttft_s=0.0, ttft_n=0.0) if sample.url is None else sample for sample in other]
    other[-1] = _with(other[-1], ttft_s=9.0, ttft_n=30.0)
    found = of_level(sorted([*one, *other], key=lambda sample: sample.t_us))
    assert found.running == Spread(8, 8)  # at each time together: the largest sum, not the sum of the largest
    assert found.kv_use == Spread(0.5, 0.5)
    assert (found.sources, found.output_tokens, found.ttft_ms) == (2, 150, 250)


def _with(sample: Sample, **values: float) -> Sample:
    return msgspec.structs.replace(sample, **values)


def test_what_one_of_them_does_not_know_is_unknown() -> None:
    rows = samples(running=1.0, output_tokens=1.0) + samples(source=1, waiting=1.0)
    found = of_level(rows)
    assert (found.running, found.waiting, found.output_tokens) == (None, None, None)


def test_a_silent_source_is_not_counted() -> None:
    rows = [*samples(running=1.0), Sample(t_us=10 * S, source=1, url="http://h1/metrics")]
    assert of_level([*rows, Sample(t_us=10 * S, source=1, error="http 404")]).sources == 1


awkward = st.none() | st.sampled_from([0.0, 5e-324, 1e308, -1e308, 1.0]) | st.floats(-10, 10)


@given(
    st.lists(
        st.tuples(st.integers(9, 21), st.integers(0, 1), st.lists(awkward, min_size=20, max_size=20)), max_size=8
    ).map(lambda rows: sorted(rows, key=lambda row: row[:2]))
)
def test_whatever_a_server_counts_the_result_is_strict_json(rows: list[tuple[int, int, list[Any]]]) -> None:
    names = Sample.__struct_fields__[5:]
    told = [Sample(t_us=t * S, source=n, **dict(zip(names, values, strict=False))) for t, n, values in rows]
    made = requests()
    found = server.of_level(told, ENDED, 1, made, metrics.event_tokens(made))
    json.dumps(msgspec.to_builtins(found), allow_nan=False)


# Beside the client


def test_the_clients_tokens_and_ttft_are_of_all_its_requests() -> None:
    rows = closed_loop(each=3)  # 4 requests of 10 tokens, 100 ms to the first
    cut = row(4, 0, [300_000, 400_000], status="cancelled", output_tokens=None, tokens_from=None)
    found = of_level(samples(output_tokens=[0.0] * 10 + [42.0]), *rows, cut)
    assert (found.received_tokens, found.cut_tokens) == (42, 2)
    assert found.client_ttft_ms == pytest.approx((4 * 100 + 300) / 5)


def test_hidden_reasoning_is_received_too() -> None:
    found = of_level(samples(running=1.0), row(0, 0, [1, 2], output_tokens=30, reasoning_tokens=28))
    assert found.received_tokens == 30


def test_a_token_without_text_is_received_too() -> None:
    """The end of an answer, where the server sends its running count with each event."""
    found = of_level(samples(running=1.0), row(0, 0, [1, 2], output_tokens=3, events_tokens=[1, 1]))
    assert found.received_tokens == 3


@pytest.mark.parametrize("at_s", [[10.5, 15, 20.5], [9.5, 15, 19.5]])
def test_samples_that_do_not_span_the_level_are_not_held_against_the_client(at_s: list[float]) -> None:
    found = of_level(samples(at_s, output_tokens=1.0), *closed_loop(each=3))
    assert (found.output_tokens, found.received_tokens, found.cut_tokens, found.client_ttft_ms) == (0, None, None, None)
