from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import pytest

from analysis import recommend, tuned
from analysis.decision import Verdict
from tests import fakes_compare as fakes

if TYPE_CHECKING:
    from analysis.recommend import Recommended
    from analysis.tuned import Setting


def under_slo(
    name: str, rate: float, holds: float | None = 8.0, *, shift: int = 1, count: int = 5, noise: float = 1
) -> Setting:
    """Holds the SLO at 8, delivering `rate` there, and not at 16; each setting wobbles in its own way."""
    rates = [rate * math.exp(noise * chance) for chance in (fakes.WOBBLE * 2)[shift : shift + count]]
    fails = 8.0 if holds is None else 16.0
    levels = [(fakes.level(8, one), fakes.level(16, 2 * rate)) for one in rates]
    return fakes.tuned(name, [fakes.run(*each, holds=holds, fails=fails) for each in levels])


def chosen(*settings: Setting, margin: float = 0.05) -> Recommended:
    return recommend.recommend(settings, margin)[1]


def test_the_most_under_the_slo() -> None:
    found = chosen(under_slo("a", 100), under_slo("b", 130, shift=2), under_slo("c", 115, shift=3))
    assert found.setting == "b"
    assert found.under_slo
    assert found.sentence.startswith("Choose b: 130 tok/s at 8, the largest load under the SLO, 13 % (1")
    assert found.sentence.endswith(") more than c (5 blocks).")


def test_names_do_not_turn_a_gap_around() -> None:
    sentences = [chosen(under_slo(best, 130), under_slo(other, 100, shift=2)).sentence for best, other in ("ab", "ba")]
    assert sentences[0].replace("a:", "x:").replace("than b", "than y") == sentences[1].replace("b:", "x:").replace(
        "than a", "than y"
    )
    assert "30 % (2" in sentences[0]


def test_the_data_may_not_decide() -> None:
    found = chosen(under_slo("a", 100, noise=5), under_slo("b", 103, shift=2, noise=5))
    assert found.setting is None
    assert found.sentence.startswith("The data do not decide between a and b: 103 tok/s at 8")
    assert "3 % (-" in found.sentence


def test_no_difference_is_a_claim_too() -> None:
    found = chosen(
        under_slo("a", 100, noise=0.1), under_slo("b", 100.1, shift=2, noise=0.1), under_slo("c", 50, shift=3)
    )
    assert found.setting is None
    assert found.sentence.startswith("Between a and b there is no difference above 5 %: either will do; 100 tok/s at 8")


@pytest.mark.parametrize(("count", "words"), [(3, "(3 blocks, an indication: 5 make a claim)"), (5, "(5 blocks)")])
def test_how_far_it_goes_is_said(count: int, words: str) -> None:
    found = chosen(under_slo("a", 100, count=count), under_slo("b", 200, shift=2, count=count))
    assert found.setting == "b"
    assert words in found.sentence


def test_one_start_of_each() -> None:
    runs = [fakes.alone(name, fakes.level(8, rate), holds=8.0) for name, rate in (("a", 100), ("b", 150))]
    found = chosen(*runs)
    assert found.setting == "b"
    assert found.sentence.endswith("more than a (one start of each: this is about these runs only).")


def test_who_does_not_hold_in_all_blocks_is_no_candidate() -> None:
    wavers = under_slo("b", 200)
    first = msgspec.structs.replace(wavers.replicates[0], run=fakes.run(fakes.level(8, 200), fails=8.0))
    wavers = msgspec.structs.replace(wavers, replicates=(first, *wavers.replicates[1:]))
    rows, found = recommend.recommend([under_slo("a", 100), wavers, under_slo("c", 300, holds=None)], 0.05)
    assert found.setting == "a"
    assert "the only setting for which the SLO is known to hold in all runs: 100 tok/s at 8" in found.sentence
    assert [(row.load, row.loads) for row in rows] == [("8", ("8",) * 5), (None, ("8",) * 4), (None, ())]
    assert rows[1].output_tokens_per_s is None


def test_a_setting_of_which_too_little_is_known_may_be_the_best() -> None:
    open_runs = under_slo("b", 200)
    first = msgspec.structs.replace(open_runs.replicates[0], run=fakes.run(fakes.level(8, 200)))
    open_runs = msgspec.structs.replace(open_runs, replicates=(first, *open_runs.replicates[1:]))
    found = chosen(under_slo("a", 100), open_runs)
    assert found.setting is None
    assert found.sentence == "Too little is known of b: not every run gave a VALID answer."
    found = chosen(under_slo("a", 100), open_runs, under_slo("c", 50))
    assert found.sentence.startswith(
        "Too little is known of b: not every run gave a VALID answer. Of the others: Choose a"
    )


def test_no_candidate() -> None:
    slo = fakes.level(8, verdicts=(Verdict(term="ttft p99 < 1s", verdict="FAIL"),))
    found = chosen(fakes.alone("a", slo), fakes.alone("b", slo))
    assert (found.setting, found.under_slo) == (None, True)
    assert found.sentence.startswith("No setting is known to hold the SLO")
    found = chosen(fakes.alone("a", fakes.level(8)), fakes.alone("b", fakes.level(16)))
    assert found.sentence == "No load was measured with all settings, so none can be recommended."


def test_without_an_slo_all_stand_at_the_largest_load_of_all() -> None:
    a = fakes.alone("a", fakes.level(8, 100), fakes.level(16, 150))
    b = fakes.alone("b", fakes.level(8, 100), fakes.level(16, 200), fakes.level(32, 900))
    rows, found = recommend.recommend([a, b, fakes.tuned("broken", [], ["block 0: no"])], 0.05)
    assert [row.load for row in rows] == ["16", "16", None]
    assert (found.setting, found.under_slo) == ("b", False)
    assert "200 tok/s at 16, the largest load that all have (throughput alone: no SLO was given)" in found.sentence
    only = chosen(a, fakes.tuned("broken", [], ["block 0: no"]))
    assert only.sentence.startswith("Choose a, the only setting for which there is a result")


def test_blocks_may_hold_at_loads_of_their_own() -> None:
    runs = [fakes.run(fakes.level(8, 100), fakes.level(16, 400), holds=holds) for holds in (8.0, 16.0)]
    (row,), _ = recommend.recommend([fakes.tuned("a", runs)], 0.05)
    assert (row.load, row.loads) == ("8", ("8", "16"))
    assert row.output_tokens_per_s == pytest.approx(200)


def test_an_invalid_level_holds_nothing() -> None:
    (row,), _ = recommend.recommend([fakes.alone("a", fakes.invalid(8), holds=8.0)], 0.05)
    assert row.load is None
    assert tuned.levels(fakes.alone("a", fakes.invalid(8))) == {}


class Spread(msgspec.Struct):
    mean: float


class Server(msgspec.Struct):
    kv_use: Spread | None
    waiting: Spread | None
    preemptions: int | None


def test_what_the_server_said_of_itself() -> None:
    said = [Server(Spread(share), Spread(waiting), count) for share, waiting, count in ((0.5, 0.0, 3), (0.7, 2.0, 0))]
    said[1].waiting = None
    runs = [fakes.run(fakes.level(8, server=one), holds=8.0) for one in said]
    (row,), _ = recommend.recommend([fakes.tuned("a", runs)], 0.05)
    assert row.kv_use == pytest.approx(0.6)
    assert (row.preemptions, row.waiting) == (1.5, None)
    (row,), _ = recommend.recommend([fakes.alone("a", fakes.level(8), holds=8.0)], 0.05)
    assert (row.kv_use, row.preemptions, row.waiting) == (None, None, None)
