from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from analysis import compare, gates, ratios
from tests import fakes_compare as fakes

if TYPE_CHECKING:
    from analysis.compare import Compared, Ratio
    from analysis.tuned import Setting


def of(found: Compared, metric: str = "throughput", load: str = "8") -> Ratio:
    return next(one for one in found.ratios if (one.metric, one.load) == (metric, load))


def against(ratio: float, wobble: float = 1.0, count: int = 5) -> list[Setting]:
    """B delivers `ratio` times as much as A, and wobbles in another way."""
    a, b = (fakes.blocks(name, 100, count=count, wobble=wobble) for name in "ab")
    runs = [
        msgspec.structs.replace(one.run, levels=(fakes.level(8, ratio * 100 * math.exp(wobble * chance), 1 / ratio),))
        for one, chance in zip(b.replicates, reversed(fakes.WOBBLE[:count]), strict=True)
    ]
    again = [msgspec.structs.replace(one, run=run) for one, run in zip(b.replicates, runs, strict=True)]
    return [a, msgspec.structs.replace(b, replicates=tuple(again))]


def test_five_blocks_make_a_claim() -> None:
    found = compare.compare(against(1.2))
    rate = of(found)
    assert (found.baseline, found.reach, found.blocks, rate.setting, rate.blocks) == ("a", "claim", 5, "b", 5)
    assert (rate.a, rate.b) == pytest.approx((100, 120))
    assert rate.ratio == pytest.approx(1.2)
    low, high = rate.ci95
    assert low is not None
    assert high is not None
    assert 1.15 < low < 1.2 < high < 1.25
    assert rate.called == "higher"
    assert of(found, "ttft p50").called == "lower"
    assert not rate.alike
    assert found.forced == found.notes == found.invalid == ()


@pytest.mark.parametrize(("count", "reach"), [(2, "indication"), (4, "indication"), (1, "these runs")])
def test_fewer_do_not_go_that_far(count: int, reach: str) -> None:
    found = compare.compare(against(1.2, count=count))
    assert (found.reach, found.blocks) == (reach, count)


def test_an_interval_of_two_blocks_is_wide() -> None:
    low, high = of(compare.compare(against(1.1, count=2))).ci95
    assert low is not None
    assert high is not None
    assert low < 1 < high


def test_like_with_like_is_not_called_and_shown_to_be_alike() -> None:
    found = compare.compare(against(1.0, wobble=0.1))
    assert {one.called for one in found.ratios} == {None}
    assert {one.alike for one in found.ratios} == {True}
    assert not of(compare.compare(against(1.0, wobble=3))).alike


def test_a_small_difference_may_be_called_and_be_within_the_margin() -> None:
    rate = of(compare.compare(against(1.01, wobble=0.01)))
    assert (rate.called, rate.alike) == ("higher", True)
    assert not of(compare.compare(against(1.01, wobble=0.01), margin=0.005)).alike


def test_the_family_pays_together() -> None:
    settings = [
        fakes.alone(name, fakes.level(8, rate, off=0.1), fakes.level(16, off=0.1))
        for name, rate in (("a", 100), ("b", 121))
    ]
    pair = [ratios.logged([one.replicates[0].run.levels[0]], "throughput") for one in settings]
    assert pair[0] is not None
    assert pair[1] is not None
    alone = ratios.difference([(pair[0], pair[1])], 1)
    assert alone is not None
    one = of(compare.compare(settings))
    assert one.p == pytest.approx(16 * (ratios.p_differs(alone) or 0))
    assert one.seen == pytest.approx(ratios.detectable(alone, 16))
    assert one.ci95 == pytest.approx(ratios.interval(alone))
    assert one.called is None
    assert (one.ci95[0] or 0) > 1


def test_two_single_runs_speak_of_themselves() -> None:
    found = compare.compare([fakes.alone("a", fakes.level(rate=100)), fakes.alone("b", fakes.level(rate=130))])
    assert (found.reach, of(found).called, of(found).blocks) == ("these runs", "higher", 1)
    assert found.noise == ()
    assert of(found).noise is None


def test_goodput_of_single_runs_has_no_interval() -> None:
    runs = [fakes.alone(name, fakes.level(goodput=fakes.goodput(rate))) for name, rate in (("a", 4.0), ("b", 5.0))]
    one = of(compare.compare(runs), "goodput")
    assert one.ratio == pytest.approx(1.25)
    assert (one.ci95, one.p, one.called, one.alike) == ((None, None), None, None, False)


def test_a_goodput_of_0_in_one_block_leaves_no_ratio() -> None:
    runs = {name: [fakes.run(fakes.level(goodput=fakes.goodput(rate))) for rate in rates]
            for name, rates in (("a", (1.0, 1.0, 0.0)), ("b", (2.0, 2.1, 2.2)))}  # fmt: skip
    found = compare.compare([fakes.tuned(name, made) for name, made in runs.items()])
    assert "goodput" not in {one.metric for one in found.ratios}


def test_goodput_under_another_slo_is_not_compared() -> None:
    runs = [fakes.alone(name, fakes.level(goodput=fakes.goodput(1.0)), slo=(slo,)) for name, slo in
            (("a", "ttft p99 < 1s"), ("b", "ttft p99 < 2s"))]  # fmt: skip
    found = compare.compare(runs)
    assert "goodput" not in {one.metric for one in found.ratios}
    assert found.notes == ("a and b: the SLO differs, so goodput is not compared",)


def test_a_metric_known_in_one_block_of_five_has_no_interval() -> None:
    settings = [
        fakes.tuned(name, [fakes.run(fakes.level(p99=block == 2)) for block in range(5)]) for name in ("a", "b")
    ]
    found = compare.compare(settings)
    assert (of(found, "ttft p99").blocks, of(found, "ttft p99").ci95) == (1, (None, None))
    assert (found.blocks, found.reach) == (5, "claim")


def test_what_is_not_the_same_is_refused_and_forced() -> None:
    settings = [fakes.alone("a", fakes.level()), fakes.alone("b", fakes.level(), digest="other")]
    with pytest.raises(ValueError, match=r"^not comparable: a and b: workload, digests ab12 and other: use .* --force"):
        compare.compare(settings)
    found = compare.compare(settings, force=True)
    assert len(found.forced) == 1
    assert json.loads(compare.dumps(found))["forced"] == list(found.forced)


def test_seeds_differ_between_blocks_and_not_within() -> None:
    a, b = against(1.0)
    assert len({one.run.workload.digest for one in a.replicates}) == 5
    compare.compare([a, b])
    shifted = [msgspec.structs.replace(one, block=(one.block + 1) % 5) for one in b.replicates]
    with pytest.raises(ValueError, match="digests"):
        compare.compare([a, msgspec.structs.replace(b, replicates=tuple(shifted))])


def test_levels_left_out_are_named() -> None:
    a = fakes.tuned("a", [fakes.run(fakes.level(8), fakes.level(16)), fakes.run(fakes.invalid(8), fakes.level(16))])
    b = fakes.tuned("b", [fakes.run(fakes.level(8), fakes.level(32)), fakes.run(fakes.level(8), fakes.level(32))])
    found = compare.compare([a, b])
    assert found.invalid == ("a at 8 in 1 of 2 runs (client-lag)",)
    assert found.notes == ("a alone was measured at 16", "b alone was measured at 32")
    assert {one.load for one in found.ratios} == {"8"}


def test_want_of_requests_is_named() -> None:
    settings = [fakes.alone(name, fakes.level(8, p99=False), fakes.level(16)) for name in "ab"]
    assert compare.compare(settings).notes == ("not compared at 8, for want of requests: ttft p99, itl p99, e2e p99",)


def test_nothing_in_common() -> None:
    a, b = fakes.alone("a", fakes.level(8)), fakes.alone("b", fakes.level(16))
    with pytest.raises(ValueError, match="a shares no load with the others"):
        compare.compare([a, b])
    with pytest.raises(ValueError, match="a alone was measured: a comparison takes two"):
        compare.compare([a, fakes.tuned("b", [], ["block 0: no"])])


def test_the_first_that_was_measured_is_the_baseline() -> None:
    found = compare.compare([fakes.tuned("broken", [], ["block 0: no"]), *against(1.0)])
    assert found.baseline == "a"
    assert (found.settings[0].setting, found.settings[0].failures) == ("broken", ("block 0: no",))


def test_tune_directories_apart_say_so() -> None:
    a, b = against(1.0)
    found = compare.compare([a, msgspec.structs.replace(b, source="elsewhere")])
    assert found.notes == ("b and a were measured apart: what drifted in between counts as a difference",)


def test_noise_stands_beside_each_ratio() -> None:
    found = compare.compare(against(1.2))
    assert of(found).noise == next(one.hides for one in found.noise if one.metric == "throughput")


def judged(settings: list[Setting], *texts: str) -> Compared:
    return compare.compare(settings, held=[gates.parse(text) for text in texts])


@pytest.mark.parametrize(
    ("settings", "texts", "code"),
    [
        (against(1.2), [], 0),
        (against(1.2), ["ttft p50 +5%", "throughput -3%"], 0),
        (against(0.8), ["ttft p50 +5%"], 1),
        (against(0.8), ["throughput -3%"], 1),
        (against(0.972), ["throughput -3%"], 3),
        ([fakes.alone(n, fakes.level(p99=False)) for n in "ab"], ["ttft p99 +5%"], 3),
        ([fakes.alone(n, fakes.invalid()) for n in "ab"], [], 4),
        ([fakes.alone(n, fakes.level(8), fakes.invalid(16)) for n in "ab"], [], 0),
        ([fakes.alone(n, fakes.level(8), fakes.invalid(16)) for n in "ab"], ["throughput -90%"], 4),
        ([fakes.alone(n, fakes.level(8, r), fakes.invalid()) for n, r in (("a", 9), ("b", 5))], ["throughput -3%"], 1),
    ],
)  # fmt: skip
def test_exit_codes(settings: list[Setting], texts: list[str], code: int) -> None:
    assert compare.exit_code(judged(settings, *texts)) == code


def test_a_gate_is_held_at_every_load_of_every_setting() -> None:
    settings = [fakes.alone(name, fakes.level(8), fakes.level(16)) for name in "abc"]
    found = judged(settings, "ttft p99 +50%", "throughput -50%")
    assert len(found.gates) == 8
    assert {one.verdict for one in found.gates} == {"PASS"}


def test_json_is_strict_and_the_same() -> None:
    text = compare.dumps(judged(against(1.2), "ttft p99 +5%"))
    assert text == compare.dumps(judged(against(1.2), "ttft p99 +5%"))
    assert text.isascii()
    facts = json.loads(text)
    assert (facts["format"], facts["reach"], facts["gates"][0]["verdict"]) == (1, "claim", "PASS")
    assert facts["ratios"][0]["ratio"] == 1.2


def test_against_itself() -> None:
    assert {one.starts for one in compare.against_itself(against(1.2))} == {10}
    pair = [fakes.alone("a", fakes.level(rate=100)), fakes.alone("b", fakes.level(rate=110))]
    assert {one.starts for one in compare.against_itself(pair)} == {2}
    with pytest.raises(ValueError, match="nothing was started twice in a: --aa takes two runs"):
        compare.against_itself(pair[:1])
    other = fakes.alone("c", fakes.level(), digest="other")
    with pytest.raises(ValueError, match="not the same setting: a and c: workload"):
        compare.against_itself([pair[0], other])
    assert compare.against_itself([pair[0], other], force=True)
