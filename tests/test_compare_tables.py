from __future__ import annotations

import io
from typing import TYPE_CHECKING

import msgspec
from rich.console import Console

from analysis import compare, compare_tables, gates
from analysis.quantiles import Distribution
from tests import fakes_compare as fakes

if TYPE_CHECKING:
    from analysis.compare import Compared
    from analysis.tuned import Setting


def shown(found: Compared, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    compare_tables.show(found, console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def words(found: Compared) -> str:
    return " ".join(shown(found, width=300).split())


def compared(*settings: Setting, texts: tuple[str, ...] = (), force: bool = False) -> Compared:
    return compare.compare(settings, held=[gates.parse(text) for text in texts], force=force)


PAIR = fakes.alone("a", fakes.level(8, 100)), fakes.alone("b", fakes.level(8, 150))


def test_single_runs_say_what_they_cannot_say() -> None:
    text = words(compared(*PAIR))
    assert "Restarts of the server were not replicated, so what is called is about these runs only" in text
    assert "b against a" in text
    assert "8 tok/s 100 150 1.500 1.4" in text
    assert "higher" in text
    assert "noise" not in text
    assert "called: 1 of 8 differences" in text
    assert "setting starts at load" in text
    assert text.endswith("more than a (one start of each: this is about these runs only).")


def test_blocks_say_how_far_they_go() -> None:
    settings = fakes.blocks("a", 100, holds=8), fakes.blocks("b", 150, wobble=-1, holds=8)
    text = words(compared(*settings))
    assert "5 blocks, each with a start of the server: t intervals of the log ratio within blocks" in text
    assert "two starts of one setting differ by up to this" in text
    assert "largest load under the SLO" in text
    text = words(compared(*(fakes.blocks(name, 100, count=3) for name in "ab")))
    assert "3 are an indication, 5 make a claim" in text
    assert "called: none of 8 differences; 8 by no more than ±5 %, shown by test (Holm over all 8)" in text
    assert "1.000 to 1.000 <0.1" in text


def test_an_interval_that_excludes_1_alone_is_no_call() -> None:
    pair = fakes.alone("a", fakes.level(8, off=0.1)), fakes.alone("b", fakes.level(8, 120, off=0.1))
    assert "called: none of 8 differences (Holm over all 8); 1 more by the interval alone" in words(compared(*pair))


def test_what_was_forced_left_out_or_failed_is_said() -> None:
    a = fakes.alone("a", fakes.level(8), fakes.invalid(16))
    b = fakes.alone("b", fakes.level(8), digest="other")
    text = words(compared(a, b, fakes.tuned("c", [], ["block 0: exited [red]\x1b[31m"]), force=True))
    assert "forced although not comparable: a and b: workload, digests" in text
    assert "left out, INVALID: a at 16 (client-lag)" in text
    assert r"c: failed in block 0: exited [red]\u001b[31m" in text
    assert "note: a alone was measured at 16" in text


def test_a_ratio_of_fewer_blocks_says_so() -> None:
    settings = [fakes.tuned(name, [fakes.run(fakes.level(p99=n < 2)) for n in range(5)]) for name in "ab"]
    assert "2 of 5 blocks" in words(compared(*settings))


def test_gates_are_merged_with_the_worst_load() -> None:
    a = fakes.alone("a", *(fakes.level(n, 100) for n in (1, 2, 4)))
    b = fakes.alone("b", fakes.level(1, 100), fakes.level(2, 110), fakes.level(4, 50))
    text = words(compared(a, b, texts=("throughput -20%", "goodput -1%")))
    assert "throughput -20% b PASS 1, 2 1.000 at 1 0.9" in text
    assert "throughput -20% b FAIL 4 0.500 at 4 0.4" in text
    assert "goodput -1% b UNDECIDED 1, 2, 4 not known too few requests" in text


def test_loads_of_blocks_that_differ() -> None:
    runs = [fakes.run(fakes.level(8), fakes.level(16), holds=holds) for holds in (8.0, 16.0, 16.0)]
    never = [fakes.run(fakes.level(8), holds=holds) for holds in (8.0, None, None)]
    text = words(compared(fakes.tuned("a", runs), fakes.tuned("b", never)))
    assert "a 3 8 (others: 16)" in text
    assert "b 3 in 1 of 3 runs" in text


def test_it_fits_eighty_columns() -> None:
    settings = [fakes.blocks(name, rate) for name, rate in (("max_num_seqs=16", 10_000), ("max_num_seqs=64", 123_456))]
    lines = shown(compared(*settings, texts=("ttft p99 +5%",)), width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("95 % interval" in line for line in lines)


def test_numbers_without_a_line() -> None:
    assert compare_tables._share(None) == compare_tables._ratio(None) == "\N{EN DASH}"
    assert [compare_tables._share(value) for value in (0.0001, 0.0123, 0.5, 3.0)] == ["<0.1", "1.2", "50", "300"]
    assert compare_tables._ratio(12345.0) == "1.2e+04"


def test_noise() -> None:
    console = Console(file=io.StringIO(), width=120)
    compare_tables.show_noise(
        compare.against_itself([fakes.blocks("a", 100), fakes.blocks("b", 100, wobble=-1)]), console
    )
    text = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "8 tok/s 10 1." in text


def test_nothing_could_be_tested() -> None:
    level = fakes.level()
    nothing = {name: Distribution(n=3) for name in fakes.LATENCIES}
    unknown = msgspec.structs.replace(level.throughput, output_tokens_per_s=None)
    bare = msgspec.structs.replace(level, throughput=unknown, **nothing)
    text = words(compared(fakes.alone("a", bare), fakes.alone("b", bare)))
    assert "no ratio could be tested" in text
