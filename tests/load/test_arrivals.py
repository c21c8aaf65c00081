"""Arrivals as a server sees them: of each law, from one worker and from four; and what the checks would notice."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.load.checks import JITTER_S, Times, off_law, off_schedule
from tests.load.command import planned, run
from tests.load.server import seen_ns, serving
from workloads import schedule

RATE_PER_S, LEVEL_S = 100.0, 4.0
LENGTH = RATE_PER_S * LEVEL_S
RENEWAL = {"constant": 0.0, "poisson": 1.0, "gamma:0.5": 0.5, "gamma:3": 3.0}  # CV of the gaps
RAMP_PER_S = (50.0, 150.0)
SPEED = 4
SHORT = ("--input", "16", "--output", "2")


def expected_in_ramp(t_s: Times) -> Times:
    low, high = RAMP_PER_S
    return low * t_s + (high - low) * t_s**2 / (2 * LEVEL_S)


def expected_at_rate(t_s: Times) -> Times:
    return t_s * RATE_PER_S


def of_trace(folder: Path) -> tuple[str, ...]:
    """Poisson arrivals at a quarter of the rate, of four levels' length."""
    gaps_s = np.random.default_rng(4).exponential(SPEED / RATE_PER_S, 1000)
    times_s = np.cumsum(gaps_s)
    lines = [f"{at:.6f}\n" for at in times_s[times_s < LEVEL_S * SPEED]]
    (folder / "times.txt").write_text("".join(lines))
    return "--arrivals", f"trace:{folder / 'times.txt'}", "--speed", str(SPEED)


def flags_of(law: str, folder: Path) -> tuple[str, ...]:
    if law == "trace":
        return of_trace(folder)
    if law == "ramp":
        return "--arrivals", "ramp:{:g}..{:g}".format(*RAMP_PER_S), "--duration", f"{LEVEL_S:g}s"
    return "--arrivals", law, "--rate", f"{RATE_PER_S:g}", "--duration", f"{LEVEL_S:g}s"


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("law", [*RENEWAL, "ramp", "trace"])
def test_a_server_sees_the_law_and_the_schedule(law: str, workers: int, tmp_path: Path) -> None:
    flags = (*flags_of(law, tmp_path), *SHORT)
    with serving() as url:
        ran = run(tmp_path / "out", url, *flags, "--workers", str(workers))
        begin_ns = ran.start_ns + ran.level.start_us * 1000
        seen_s = np.array([at_ns - begin_ns for at_ns in seen_ns(url)]) / 1e9
    seen_s = seen_s[seen_s > -JITTER_S]  # the preflight asks too, before
    due_s = np.array(ran.due_us) / 1e6

    assert {row.status for row in ran.rows} == {"ok"}
    plan = planned(*flags, "--requests", str(len(ran.rows)))
    assert [one["due_us"] for one in plan] == ran.due_us
    assert off_schedule(seen_s, due_s) == []

    expected, highest_per_s = (expected_in_ramp, max(RAMP_PER_S)) if law == "ramp" else (expected_at_rate, RATE_PER_S)
    seen_s = np.maximum(seen_s[seen_s < LEVEL_S], 0)  # the level itself is longer, by its warm-up
    assert off_law(expected(seen_s), LENGTH, RENEWAL.get(law, 1.0), JITTER_S * highest_per_s) == []


# The checks themselves, without a server. Arrivals in mean gaps.


def drawn(law: str, seed: int, rate_per_s: float = RATE_PER_S) -> Times:
    due_us = schedule.due_us(schedule.parse(law), seed=seed, level=0, rate_per_s=rate_per_s, duration_s=None)
    return np.fromiter(itertools.takewhile(lambda at_us: at_us < LEVEL_S * 1e6, due_us), np.float64) / 1e6


def jittered(at_s: Times, seed: int) -> Times:
    return np.sort(at_s + np.random.default_rng(seed).exponential(JITTER_S / 4, at_s.size))


def law_faults(at_s: Times, law: str) -> set[str]:
    faults = off_law(at_s * RATE_PER_S, LENGTH, RENEWAL[law], JITTER_S * RATE_PER_S)
    return {fault.partition(":")[0] for fault in faults}


def four_of_one_seed(law: str, seed: int) -> Times:
    """What four workers send that each draw a quarter of the rate from the same seed."""
    return np.repeat(drawn(law, seed, RATE_PER_S / 4), 4)


def gap_after_gap(law: str, seed: int) -> Times:
    """What a client sends that sleeps each gap after the last, and takes 0.1 ms for the request between."""
    due_s = drawn(law, seed)
    return due_s + 0.0001 * np.arange(due_s.size)


@pytest.mark.parametrize("law", RENEWAL)
def test_a_schedule_through_jitter_passes_whatever_its_seed(law: str) -> None:
    for seed in range(50):
        due_s = drawn(law, seed)
        seen_s = jittered(due_s, seed)
        assert law_faults(seen_s, law) == set()
        assert off_schedule(seen_s, due_s) == []


@pytest.mark.parametrize("law", RENEWAL)
def test_four_schedules_of_one_seed_are_noticed(law: str) -> None:
    for seed in range(20):
        faults = law_faults(jittered(four_of_one_seed(law, seed), seed), law)
        assert faults & {"dispersion", "gaps"}
        assert faults >= {"dispersion", "gaps"} or law == "gamma:3"  # of which a level has but some 40 bursts


@pytest.mark.parametrize("law", RENEWAL)
def test_a_gap_after_each_gap_is_noticed(law: str) -> None:
    for seed in range(20):
        faults = off_schedule(jittered(gap_after_gap(law, seed), seed), drawn(law, seed))
        assert {fault.partition(":")[0] for fault in faults} >= {"median lag", "drift"}


@pytest.mark.parametrize(("law", "other"), list(itertools.permutations(RENEWAL, 2)))
def test_another_law_is_noticed(law: str, other: str) -> None:
    assert law_faults(jittered(drawn(other, 0), 0), law) != set()


@pytest.mark.parametrize("change", [lambda due_s: due_s[:-1], lambda due_s: due_s - 0.001])
def test_lost_and_early_requests_are_noticed(change: Callable[[Times], Times]) -> None:
    due_s = drawn("poisson", 0)
    assert off_schedule(change(due_s), due_s) != []


def test_another_rate_is_noticed() -> None:
    assert "arrivals" in law_faults(drawn("constant", 0, RATE_PER_S * 0.99), "constant")
    assert "arrivals" in law_faults(drawn("poisson", 0, RATE_PER_S * 0.7), "poisson")
