import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.lengths import LONGEST, Lengths, Pairs, parse
from workloads.plan import LEVEL_REQUESTS, digest, requests
from workloads.request import Request
from workloads.tokens import Vocabulary, guess
from workloads.workload import Class, Workload, load, override, presets

PLAIN = Class(input=parse("uniform:1..60"), output=parse("lognormal:20,1"))
SMALL = Workload(name="small", classes=(PLAIN,))
IDS = msgspec.structs.replace(guess(), ids=tuple(range(500, 900)))
TEMPLATE = msgspec.structs.replace(guess(), base_tokens=12, words=guess().words[:50])

seeds = st.integers(-5, 2**70)
levels = st.integers(0, 4095)


def take(
    count: int, *, seed: int = 0, salt: str = "s", level: int = 0, vocabulary: Vocabulary = IDS, as_ids: bool = False
) -> list[Request]:
    return list(islice(requests(SMALL, vocabulary, seed=seed, salt=salt, level=level, as_ids=as_ids), count))


@settings(deadline=None, max_examples=20)
@given(seeds, st.text(max_size=5), levels, st.booleans(), st.integers(0, 40))
def test_the_same_arguments_give_the_same_requests(seed: int, salt: str, level: int, as_ids: bool, count: int) -> None:
    some = take(count, seed=seed, salt=salt, level=level, as_ids=as_ids)
    more = take(2000, seed=seed, salt=salt, level=level, as_ids=as_ids)
    assert some == more[:count]
    assert [request.index for request in more] == list(range(2000))
    assert {request.level for request in more} == {level}
    assert {request.due_us for request in more} == {None}


@settings(deadline=None, max_examples=20)
@given(seeds, levels)
def test_lengths_depend_on_seed_and_level_only(seed: int, level: int) -> None:
    def wants(plan: list[Request]) -> list[tuple[int | None, int]]:
        return [(request.want_input_tokens, request.want_output_tokens) for request in plan]

    here = wants(take(50, seed=seed, level=level))
    assert here == wants(take(50, seed=seed, level=level, salt="another"))
    assert here == wants(take(50, seed=seed, level=level, vocabulary=TEMPLATE))
    assert here == wants(take(50, seed=seed, level=level, as_ids=True))
    assert here != wants(take(50, seed=seed + 1, level=level))
    assert here != wants(take(50, seed=seed, level=(level + 1) % 4096))


def test_a_law_of_input_does_not_move_the_outputs() -> None:
    other = override(SMALL, input="77")
    outputs = [r.want_output_tokens for r in islice(requests(other, IDS, seed=0, salt="s", level=0), 2000)]
    assert outputs == [r.want_output_tokens for r in take(2000)]


def test_prompts_are_as_long_as_wanted_and_never_empty() -> None:
    for request in take(500, as_ids=True):
        assert len(request.prompt) == request.want_input_tokens
    for request in take(500, vocabulary=TEMPLATE):
        assert isinstance(request.prompt, str)
        tokens = TEMPLATE.base_tokens + request.prompt.count(" ")
        assert tokens == max(request.want_input_tokens or 0, TEMPLATE.base_tokens)
        assert request.prompt.split()


@pytest.mark.parametrize("as_ids", [False, True])
def test_no_two_prompts_begin_alike_in_levels_and_salts(as_ids: bool) -> None:
    workload = override(SMALL, input="uniform:40..60")
    heads = [
        " ".join(map(str, (r.prompt.split(" ") if isinstance(r.prompt, str) else r.prompt)[:16]))
        for salt in ("a", "b")
        for level in (0, 1, 2, 4095)
        for r in islice(requests(workload, IDS, seed=0, salt=salt, level=level, as_ids=as_ids), 1500)
    ]
    assert len(set(heads)) == len(heads)


def test_a_level_run_again_sends_the_same_lengths_with_fresh_prompts() -> None:
    workload = override(SMALL, input="30")
    first = list(islice(requests(workload, IDS, seed=0, salt="s", level=0), 200))
    again = list(islice(requests(workload, IDS, seed=0, salt="s", level=0, first_number=200), 200))
    assert [r.want_output_tokens for r in first] == [r.want_output_tokens for r in again]
    assert [r.index for r in again] == list(range(200))
    assert not {r.prompt for r in first} & {r.prompt for r in again}


def test_strides_of_one_plan_are_the_plan() -> None:
    whole = take(300)
    strides = [list(islice(islice(requests(SMALL, IDS, seed=0, salt="s", level=0), k, None, 3), 100)) for k in range(3)]
    assert sorted((r for stride in strides for r in stride), key=lambda r: r.index) == whole


def test_a_level_ends_with_its_numbers() -> None:
    last = requests(SMALL, IDS, seed=0, salt="s", level=0, first_number=LEVEL_REQUESTS - 2)
    assert len([next(last), next(last)]) == 2
    with pytest.raises(ValueError, match="level 0 has used all"):
        next(last)


def test_misuse_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="4096 levels"):
        requests(SMALL, IDS, seed=0, salt="s", level=4096)
    with pytest.raises(ValueError, match="first_number"):
        requests(SMALL, IDS, seed=0, salt="s", level=0, first_number=-1)
    with pytest.raises(ValueError, match="ids"):
        requests(SMALL, guess(), seed=0, salt="s", level=0, as_ids=True)


def test_the_longest_length_makes_a_prompt() -> None:
    huge = override(SMALL, input=str(LONGEST))
    prompt = next(requests(huge, guess(), seed=0, salt="s", level=0)).prompt
    assert isinstance(prompt, str)
    assert prompt.count(" ") + 1 == LONGEST


def test_the_digest_tells_plans_apart(tmp_path: Path) -> None:
    """Of each thing that decides what is sent."""

    def of(one: Class = PLAIN, **arguments: Any) -> str:
        facts: dict[str, Any] = {"seed": 0, "api": "chat"}
        return digest(Workload(name="w", classes=(one,)), **(facts | arguments))

    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hi\n")
    changes: list[dict[str, Any]] = [
        {"input": parse("512")},
        {"output": parse("512")},
        {"input": Lengths("file", values=(1, 2), file="f")},
        {"input": Lengths("file", values=(1, 3), file="f")},
        {"input": None, "output": None, "pairs": Pairs("p", (1,), (2,))},
        {"input": None, "output": None, "dataset": prompts},
        {"input": None, "output": None, "dataset": prompts, "repeat": True},
        {"shared_prefix": 64},
        {"shared_prefix": 64, "groups": 2},
        {"shared_prefix": 64, "groups": 2, "zipf": 1.0},
        {"turns": parse("2")},
        {"turns": parse("2"), "think_ms": parse("5")},
        {"leave_share": 0.1, "leave_after_ms": parse("5")},
        {"leave_share": 0.1, "leave_after_ms": parse("6")},
        {"name": "a"},
    ]
    digests = [
        of(),
        of(seed=1),
        of(api="completions"),
        of(arrivals="poisson"),
        of(arrivals="gamma:3"),
        of(trace_digest="ab"),
        *(of(msgspec.structs.replace(PLAIN, **change)) for change in changes),
        digest(Workload(name="w", classes=(PLAIN, PLAIN)), seed=0, api="chat"),
    ]
    assert len(set(digests)) == len(digests)


def test_the_digest_knows_files_by_what_they_hold(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        path = tmp_path / name
        path.write_text("hi\n")
        workload = Workload(name=name, description=name, classes=(Class(dataset=path, slo=(name,)),))
        trace = f"trace:{path}"
        digests.add(digest(workload, seed=0, api="chat", arrivals=trace, trace_digest="ab"))
    assert len(digests) == 1
    classes = (Class(input=Lengths("file", values=(1, 2), file=name), output=parse("1")) for name in ("one", "two"))
    assert len({digest(Workload(name="w", classes=(one,)), seed=0, api="chat") for one in classes}) == 1


GOLDEN = Path(__file__).parent / "golden" / "plans.json"


def golden() -> dict[str, Any]:
    """The digest of each preset, and its first requests on a server that counts nothing."""
    found = {}
    for name in presets():
        workload = load(name)
        plan = islice(requests(workload, guess(), seed=0, salt="", level=0), 5)
        found[name] = {
            "digest": digest(workload, seed=0, api="chat"),
            "requests": [
                [
                    *(r.want_input_tokens, r.want_output_tokens, r.group),
                    hashlib.sha256(str(r.prompt).encode()).hexdigest()[:16],
                ]
                for r in plan
            ],
        }
    return found


def test_presets_send_the_same_on_any_machine() -> None:
    """Where this fails on purpose, raise _PLAN_FORMAT and write the file again."""
    assert golden() == json.loads(GOLDEN.read_text())
