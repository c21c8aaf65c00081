"""Plans of more than lengths: mixes, groups, traces, conversations, data sets, and users who leave."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy import stats

from workloads.lengths import Pairs, parse
from workloads.plan import MOST_TURNS, requests
from workloads.request import Request
from workloads.tokens import guess
from workloads.traces import Trace
from workloads.workload import DEFAULT_OUTPUT_TOKENS, Class, Workload, override

IDS = msgspec.structs.replace(guess(), ids=tuple(range(500, 900)))
PLAIN = Class(input=parse("uniform:20..60"), output=parse("lognormal:20,1"))


def made(*classes: Class, **arguments: Any) -> Iterator[Request]:
    given: dict[str, Any] = {"seed": 0, "salt": "s", "level": 0}
    return requests(Workload(name="w", classes=classes), IDS, **(given | arguments))


def take(count: int, *classes: Class, **arguments: Any) -> list[Request]:
    return list(islice(made(*classes, **arguments), count))


def with_(one: Class, **changes: Any) -> Class:
    return msgspec.structs.replace(one, **changes)


def turns_of(request: Request) -> list[Request]:
    found = [request]
    while found[-1].then is not None:
        found.append(found[-1].then)
    return found


# Mixes


def test_classes_come_in_proportion_to_their_weights() -> None:
    plan = take(10_000, *(with_(PLAIN, name=name, weight=weight) for name, weight in (("a", 7), ("b", 2), ("c", 1))))
    counts = Counter(request.class_name for request in plan)
    assert stats.chisquare([counts["a"], counts["b"], counts["c"]], [7000, 2000, 1000]).pvalue > 0.001
    assert [request.index for request in plan] == list(range(10_000))
    assert len({request.prompt for request in plan}) == len(plan)


def test_another_class_moves_no_lengths() -> None:
    def wants(*classes: Class) -> list[tuple[int | None, int]]:
        some = (r for r in made(*classes) if r.class_name == "a")
        return [(r.want_input_tokens, r.want_output_tokens) for r in islice(some, 300)]

    one = with_(PLAIN, name="a")
    assert wants(one) == wants(one, with_(PLAIN, name="b", weight=5))
    assert wants(one) == wants(with_(PLAIN, name="b"), with_(PLAIN, name="c"), one)


def test_classes_with_one_law_do_not_draw_alike() -> None:
    plan = take(400, with_(PLAIN, name="a"), with_(PLAIN, name="b"))
    a, b = ([r.want_input_tokens for r in plan if r.class_name == name][:100] for name in "ab")
    assert a != b


# Pairs


def test_pairs_are_sent_together_and_a_law_takes_the_place_of_one_side() -> None:
    pairs = Pairs("p", tuple(range(30, 60)), tuple(range(130, 160)))
    plan = take(500, Class(pairs=pairs))
    assert {r.want_output_tokens - (r.want_input_tokens or 0) for r in plan} == {100}
    other = take(500, Class(pairs=pairs, output=parse("7")))
    assert [r.want_input_tokens for r in other] == [r.want_input_tokens for r in plan]
    assert {r.want_output_tokens for r in other} == {7}


# Groups

SHARING = with_(PLAIN, shared_prefix=100, groups=4, zipf=1.0)


@pytest.mark.parametrize("as_ids", [False, True])
def test_a_group_shares_its_prefix_and_nothing_more(as_ids: bool) -> None:
    plan = take(400, SHARING, as_ids=as_ids)
    beginnings: dict[int, set[Any]] = {}
    for request in plan:
        tokens = request.prompt.split(" ")[1:] if isinstance(request.prompt, str) else list(request.prompt)
        assert len(tokens) + (not as_ids) == request.want_input_tokens
        assert request.shared_tokens == 100
        assert request.group is not None
        beginnings.setdefault(request.group, set()).add(tuple(tokens[:100]))
    assert {len(same) for same in beginnings.values()} == {1}
    assert len({prefix[:15] for same in beginnings.values() for prefix in same}) == 4
    assert len({request.prompt for request in plan}) == len(plan)


def test_groups_have_zipf_weights() -> None:
    counts = Counter(request.group for request in take(5000, SHARING))
    weights = np.array([1, 1 / 2, 1 / 3, 1 / 4])
    assert stats.chisquare([counts[k] for k in range(4)], 5000 * weights / weights.sum()).pvalue > 0.001
    even = Counter(request.group for request in take(5000, with_(SHARING, zipf=0.0)))
    assert stats.chisquare([even[k] for k in range(4)]).pvalue > 0.001


def test_no_other_class_level_or_run_shares_a_prefix() -> None:
    def prefixes(plan: list[Request]) -> list[tuple[int, ...]]:
        return [request.prompt[:15] for request in plan]  # type: ignore[misc]

    two = take(300, with_(SHARING, name="a"), with_(SHARING, name="b"), as_ids=True)
    assert len(set(prefixes(two))) == 8
    found = [set(prefixes(two)), *(set(prefixes(take(300, SHARING, as_ids=True, level=n))) for n in (1, 2))]
    found.append(set(prefixes(take(300, SHARING, as_ids=True, salt="t"))))
    assert len(set().union(*found)) == 8 + 3 * 4


def test_lengths_do_not_depend_on_what_is_shared() -> None:
    alone, sharing = take(200, PLAIN), take(200, SHARING)
    assert [r.want_input_tokens for r in sharing] == [(r.want_input_tokens or 0) + 100 for r in alone]
    assert {(r.group, r.shared_tokens) for r in alone} == {(None, 0)}


# Traces

ROWS = [(1100, 3, (0, 1, 2)), (600, 4, (0, 7)), (1300, 5, (0, 1, 9)), (512, 6, (8,)), (1100, 7, (0, 1, 2))]


def a_trace(*, blocks: bool) -> Trace:
    return Trace(
        name="t",
        offsets_us=np.arange(len(ROWS)),
        input_tokens=np.array([row[0] for row in ROWS]),
        output_tokens=np.array([row[1] for row in ROWS]),
        blocks=tuple(row[2] for row in ROWS) if blocks else None,
        block_tokens=512 if blocks else None,
        digest="ab",
    )


@pytest.mark.parametrize("blocks", [False, True])
def test_a_trace_gives_its_lengths_in_order_and_ends(blocks: bool) -> None:
    plan = take(99, Class(), trace=a_trace(blocks=blocks), as_ids=True)
    assert [(r.want_input_tokens, r.want_output_tokens) for r in plan] == [row[:2] for row in ROWS]
    assert [len(r.prompt) for r in plan] == [row[0] for row in ROWS]
    assert [r.index for r in plan] == list(range(len(ROWS)))


def test_prompts_of_a_trace_share_the_blocks_that_it_says() -> None:
    plan = take(99, Class(), trace=a_trace(blocks=True), as_ids=True)
    prompts = [r.prompt for r in plan]

    def common(a: int, b: int) -> int:
        pairs = zip(prompts[a], prompts[b], strict=False)
        return next((place for place, (x, y) in enumerate(pairs) if x != y), min(len(prompts[a]), len(prompts[b])))

    assert 512 <= common(0, 1) < 512 + 15
    assert 1024 <= common(0, 2) < 1024 + 15
    assert common(0, 3) < 15
    assert common(0, 4) == 1100
    assert [r.shared_tokens for r in plan] == [0, 512, 1024, 0, 1100]
    other_level = take(1, Class(), trace=a_trace(blocks=True), as_ids=True, level=1)[0].prompt
    assert other_level[:15] != prompts[0][:15]


def test_a_law_takes_the_place_of_a_side_of_a_trace() -> None:
    plan = take(99, Class(output=parse("9")), trace=a_trace(blocks=True), as_ids=True)
    assert [(r.want_output_tokens, r.shared_tokens) for r in plan] == [(9, n) for n in (0, 512, 1024, 0, 1100)]
    plan = take(99, Class(input=parse("40")), trace=a_trace(blocks=True), as_ids=True)
    assert [(len(r.prompt), r.want_output_tokens) for r in plan] == [(40, row[1]) for row in ROWS]


def test_lengths_of_a_trace_need_one() -> None:
    with pytest.raises(ValueError, match="takes its lengths from a trace"):
        made(Class())
    with pytest.raises(ValueError, match="single turns"):
        made(Class(turns=parse("2")), trace=a_trace(blocks=False))


# Conversations

TALKING = with_(PLAIN, turns=parse("uniform:1..4"), think_ms=parse("uniform:10..30"))


def test_turns_hang_on_the_first_and_count_in_order() -> None:
    plan = take(400, TALKING)
    everything = [turn for first in plan for turn in turns_of(first)]
    assert [turn.index for turn in everything] == list(range(len(everything)))
    assert {turn.turn for turn in plan} == {0}
    for first in plan:
        turns = turns_of(first)
        assert [turn.turn for turn in turns] == list(range(len(turns)))
        assert first.think_us == 0
        assert first.want_input_tokens == len(str(first.prompt).split())
        for turn in turns[1:]:
            assert turn.want_input_tokens is None
            assert 10_000 <= turn.think_us <= 30_000
            assert 20 <= len(str(turn.prompt).split()) <= 60
    lengths = Counter(len(turns_of(first)) for first in plan)
    assert stats.chisquare([lengths[n] for n in (1, 2, 3, 4)]).pvalue > 0.001
    assert len({turn.prompt for turn in everything}) == len(everything)


def test_only_the_first_turn_of_a_conversation_has_the_prefix() -> None:
    for first in take(50, with_(SHARING, turns=parse("3"))):
        assert [(t.shared_tokens, t.group is None) for t in turns_of(first)] == [(100, False), (0, True), (0, True)]


def test_indices_of_a_mix_are_those_of_the_plan() -> None:
    plan = take(200, with_(TALKING, name="a"), with_(PLAIN, name="b"))
    indices = [turn.index for first in plan for turn in turns_of(first)]
    assert indices == list(range(len(indices)))


def test_a_conversation_has_an_end() -> None:
    assert len(turns_of(take(1, with_(PLAIN, turns=parse("10000")))[0])) == MOST_TURNS


def test_conversations_need_text() -> None:
    with pytest.raises(ValueError, match=r"several turns.*chat API"):
        made(TALKING, as_ids=True)


# Data sets


def a_file(folder: Path, count: int = 10, **fields: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"say {n}"} | fields) + "\n" for n in range(count)))
    return path


def test_items_are_dealt_out_among_the_levels(tmp_path: Path) -> None:
    one = Class(dataset=a_file(tmp_path))
    plans = [take(99, one, level=level, levels=3) for level in range(3)]
    assert [[r.item for r in plan] for plan in plans] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
    assert [r.prompt for r in plans[1]] == ["say 1", "say 4", "say 7"]
    assert {(r.want_input_tokens, r.want_output_tokens) for r in plans[0]} == {(None, DEFAULT_OUTPUT_TOKENS)}
    assert [r.index for r in plans[0]] == [0, 1, 2, 3]


def test_items_repeat_only_when_asked(tmp_path: Path) -> None:
    plan = take(9, Class(dataset=a_file(tmp_path), repeat=True), level=1, levels=3)
    assert [r.item for r in plan] == [1, 4, 7, 1, 4, 7, 1, 4, 7]


def test_the_file_says_how_long_answers_are_unless_a_law_does(tmp_path: Path) -> None:
    path = a_file(tmp_path, output_tokens=12)
    assert {r.want_output_tokens for r in take(99, Class(dataset=path))} == {12}
    assert {r.want_output_tokens for r in take(99, Class(dataset=path, output=parse("7")))} == {7}


def test_every_level_needs_a_prompt(tmp_path: Path) -> None:
    one = Class(dataset=a_file(tmp_path, 2))
    for level in (0, 2):
        with pytest.raises(ValueError, match="has 2 prompts, and the run 3 levels"):
            made(one, level=level, levels=3)
    with pytest.raises(ValueError, match="level 3 of a run of 3"):
        made(one, level=3, levels=3)


def test_a_mix_ends_with_its_data_set(tmp_path: Path) -> None:
    plan = take(999, Class(name="d", dataset=a_file(tmp_path, 40)), with_(PLAIN, name="p"))
    assert Counter(r.class_name for r in plan)["d"] == 40
    assert 60 <= len(plan) < 120


def test_fields_of_a_chat_are_passed_on_and_need_the_chat_api(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(json.dumps({"messages": messages, "tools": [{"type": "function"}]}) + "\n")
    (request,) = take(9, Class(dataset=path))
    assert (request.prompt, request.extra) == (tuple(messages), {"tools": [{"type": "function"}]})
    with pytest.raises(ValueError, match=r"chat.jsonl: item 0 is a chat message, which needs the chat API"):
        take(9, Class(dataset=path), as_ids=True)


def test_later_turns_of_a_file_follow_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    said = [{"from": who, "value": f"{who} {n} {'x' * 72}"} for n in range(3) for who in ("human", "gpt")]
    path.write_text(json.dumps([{"conversations": said}] * 4))
    assert [len(turns_of(r)) for r in take(99, Class(dataset=path))] == [1, 1, 1, 1]
    plan = take(99, Class(dataset=path, turns=parse("2"), think_ms=parse("5")))
    assert [[t.index for t in turns_of(r)] for r in plan] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [(t.item, t.turn, t.think_us, t.want_output_tokens) for t in turns_of(plan[1])] == [
        (1, 0, 0, 20),
        (1, 1, 5000, 20),
    ]
    assert str(turns_of(plan[0])[1].prompt).startswith("human 1")
    assert [len(turns_of(r)) for r in take(99, Class(dataset=path, turns=parse("9")))] == [3, 3, 3, 3]


# Leaving


def test_a_share_of_the_users_leaves_after_a_drawn_time() -> None:
    plan = take(5000, with_(PLAIN, leave_share=0.2, leave_after_ms=parse("uniform:100..200")))
    after = [r.leave_us for r in plan if r.leave_us is not None]
    assert stats.binomtest(len(after), 5000, 0.2).pvalue > 0.001
    assert (min(after), max(after)) == (100_000, 200_000)
    stay = take(5000, PLAIN)
    assert {r.leave_us for r in stay} == {None}
    assert [r.want_output_tokens for r in stay] == [r.want_output_tokens for r in plan]
    assert {r.leave_us for r in take(50, with_(PLAIN, leave_share=1.0, leave_after_ms=parse("1")))} == {1000}


def test_the_plan_of_an_override_is_that_of_the_class() -> None:
    workload = override(Workload(name="w", classes=(PLAIN,)), trace=a_trace(blocks=True))
    plan = list(requests(workload, IDS, seed=0, salt="s", level=0, trace=a_trace(blocks=True)))
    assert [r.want_input_tokens for r in plan] == [row[0] for row in ROWS]
