from itertools import islice
from math import log
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.lengths import LONGEST, mean, parse
from workloads.plan import LEVEL_REQUESTS, Workload, digest, load, override, presets, requests
from workloads.request import Request
from workloads.tokens import Vocabulary, guess

SMALL = Workload(name="small", input=parse("uniform:1..60"), output=parse("lognormal:20,1"))
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
    def wants(plan: list[Request]) -> list[tuple[int, int]]:
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
        assert TEMPLATE.base_tokens + request.prompt.count(" ") == max(request.want_input_tokens, TEMPLATE.base_tokens)
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


def test_the_digest_tells_plans_apart() -> None:
    digests = [
        digest(SMALL, seed=0, api="chat"),
        digest(SMALL, seed=1, api="chat"),
        digest(SMALL, seed=0, api="completions"),
        digest(override(SMALL, input="512"), seed=0, api="chat"),
        digest(override(SMALL, output="512"), seed=0, api="chat"),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == "e45835b9da693b0fd95ceed9b460be9cc2690a0a63a92de40b788794a943f009"
    assert digest(msgspec.structs.replace(SMALL, name="x", description="y"), seed=0, api="chat") == digests[0]


@pytest.mark.parametrize("name", presets())
def test_presets_load(name: str) -> None:
    workload = load(name)
    assert workload.name == name
    assert workload.description


def test_the_chat_preset_is_fitted_as_it_says() -> None:
    chat = load("chat")
    z = np.array([0, 1.2816, 2.3263])
    sigmas = np.arange(0.2, 1.5, 0.001)
    for law, average, quantiles in [(chat.input, 1155, [1020, 2734, 4142]), (chat.output, 211, [129, 424, 601])]:
        error = [((log(average) - s**2 / 2 + z * s - np.log(quantiles)) ** 2).sum() for s in sigmas]
        assert law.parameters[1] == pytest.approx(sigmas[np.argmin(error)], abs=0.006)
        assert mean(law) == pytest.approx(average, rel=0.001)


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    workload = load(written(tmp_path, 'input = 512\noutput = "normal:64,8"\n'))
    assert workload == Workload(name="mine", input=parse("512"), output=parse("normal:64,8"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('input = 1\noutput = 1\noutputs = "2"', "outputs"),
        ("input = 1", "output"),
        ("input = 1\noutput = 1.5", r"\$.output"),
        ("input = 1\noutput = true", r"\$.output"),
        ('input = 1\noutput = "uniform:9..3"', "output: length 'uniform:9..3': .*uniform:3..9"),
        ("input = 0\noutput = 1", "input: length '0': .*at least 1"),
        ("input = ", "mine.toml"),
        ("", "input"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        load(written(tmp_path, text))
    assert "mine.toml: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent.toml: No such file"):
        load(str(tmp_path / "absent.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"binary.toml: "):
        load(str(tmp_path / "binary.toml"))
    with pytest.raises(ValueError, match="no workload 'chatt': expected chat"):
        load("chatt")


def test_override_leaves_the_rest_and_names_what_is_wrong() -> None:
    assert override(SMALL) == SMALL
    assert override(SMALL, output="7") == msgspec.structs.replace(SMALL, output=parse("7"))
    with pytest.raises(ValueError, match="output: length 'x'"):
        override(SMALL, output="x")


def test_the_longest_length_makes_a_prompt() -> None:
    huge = override(SMALL, input=str(LONGEST))
    prompt = next(requests(huge, guess(), seed=0, salt="s", level=0)).prompt
    assert isinstance(prompt, str)
    assert prompt.count(" ") + 1 == LONGEST
