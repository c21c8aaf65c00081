from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import noise
from tests import fakes_compare as fakes

if TYPE_CHECKING:
    from analysis.noise import Cell


def made(*logs: tuple[Cell, float]) -> noise.Noise:
    found = noise.noise("8", "throughput", logs)
    assert found is not None
    return found


def test_two_starts_in_a_block_are_noise_and_nothing_else() -> None:
    found = made((("a", "0"), 0.0), (("a", "0"), 0.1), (("a", "1"), 5.0), (("a", "1"), 5.1), (("b", "0"), 9.0))
    assert (found.starts, found.free) == (5, 2)
    assert found.sd == pytest.approx(0.1)  # of the difference of two starts: 0.1 each time
    assert found.hides == pytest.approx(math.expm1(0.1 * 4.302653))


@given(st.lists(st.floats(-1, 1), min_size=6, max_size=6))
def test_settings_and_blocks_add_nothing(shifts: list[float]) -> None:
    left = np.array([[0.01, -0.01, 0.0], [-0.01, 0.01, 0.0]])
    cells = [((str(s), str(b)), left[s, b] + shifts[s] + shifts[b + 2]) for s in range(2) for b in range(3)]
    found = made(*cells)
    assert found.free == 2
    assert found.sd == pytest.approx(math.sqrt(2 * 0.0004 / 2), rel=1e-6)


def test_of_one_setting_the_blocks_are_noise_too() -> None:
    found = made((("a", "0"), 0.0), (("a", "1"), 0.2))
    assert found.free == 1
    assert found.sd == pytest.approx(0.2)


def test_the_variance_is_found_again() -> None:
    random, sd = np.random.default_rng(0), 0.02
    variances = []
    for _ in range(200):
        logs = [((str(s), str(b)), s + b + random.normal(0, sd)) for s in range(3) for b in range(5)]
        variances.append(made(*logs).sd ** 2)
    assert math.sqrt(np.mean(variances)) == pytest.approx(sd * math.sqrt(2), rel=0.05)


@pytest.mark.parametrize("logs", [[(("a", "0"), 0.0)], [(("a", "0"), 0.0), (("b", "1"), 0.0)]])
def test_what_was_started_once_tells_nothing(logs: list[tuple[Cell, float]]) -> None:
    assert noise.noise("8", "throughput", logs) is None


def test_of_settings_by_load_and_metric() -> None:
    found = noise.noises([fakes.blocks("a", 100), fakes.blocks("b", 200)])
    rates = [one for one in found if one.metric == "throughput"]
    assert [(one.load, one.starts, one.free) for one in rates] == [("8", 10, 4)]
    assert rates[0].sd == pytest.approx(1e-6)  # both go up and down together
    assert "goodput" not in {one.metric for one in found}


def test_runs_are_alike_only_where_someone_says_so() -> None:
    runs = [fakes.alone(name, fakes.level(rate=rate)) for name, rate in (("a", 100), ("b", 110))]
    assert noise.noises(runs) == ()
    rate = next(one for one in noise.noises(runs, alike=True) if one.metric == "throughput")
    assert rate.free == 1
    assert rate.sd == pytest.approx(math.log(1.1))


def test_levels_of_one_start_are_no_restarts() -> None:
    run = fakes.alone("a", fakes.level(rate=100), fakes.level(rate=200))
    assert noise.noises([run], alike=True) == ()


def test_json() -> None:
    text = noise.dumps(noise.noises([fakes.blocks("a", 100)]))
    assert json.loads(text)["noise"][0]["metric"] == "throughput"
