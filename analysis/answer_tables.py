"""The answer of `loadgen slo` on one screen: the verdict, the term that decides it, how close, how sure, what next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from analysis import answer, decision, search, slo
from analysis.tables import VERDICT_STYLES, number, observed, percent, safe

if TYPE_CHECKING:
    from rich.console import Console

    from analysis.answer import Answer, AtLoad
    from analysis.decision import Verdict
    from analysis.summary import Summary

_SURE = f"{100 * (1 - decision.ALPHA):.0f} % sure"


def show(run: Summary, console: Console) -> None:
    """Prints the answer of a run that has one."""
    said = run.answer
    if said is None:
        return
    what = f"{run.model or 'unknown model'}, {run.workload.name}, {run.target}: {'; '.join(run.slo or ()) or 'its SLO'}"
    console.print(Text(safe(what), style="bold"))
    console.print(Text(safe(headline(said)), style=f"bold {VERDICT_STYLES[said.verdict]}"))
    for line in (*because(said), *beside(said)):
        console.print(Text(safe(line)))
    if said.loads:
        console.print(_table(said))


def headline(said: Answer) -> str:
    """One sentence, the verdict first."""
    return f"{said.verdict}: {_of_one(said) if said.found is None else _of_search(said)}"


def _of_one(said: Answer) -> str:
    at = f"at {_load(said, said.loads[0].load)}" if said.loads else "at this load"
    return {
        "PASS": f"the SLO holds {at}",
        "FAIL": f"the SLO does not hold {at}",
        "UNDECIDED": f"it is not known yet whether the SLO holds {at}",
        "INVALID": f"what was measured {at} is not the server's doing",
    }[said.verdict]


def _of_search(said: Answer) -> str:
    found = said.found
    assert found is not None
    if said.verdict == "FAIL" and found.fails is not None:
        return f"the SLO does not hold at {_load(said, found.fails)}, the smallest load asked for"
    if found.holds is None and found.fails is None:
        low, high = found.seems
        seems = "" if low is None else f" (it seems to up to {_load(said, low)})"
        seems = seems or ("" if high is None else f" (it seems to fail from {_load(said, high)} on)")
        return f"it is not known yet up to which load the SLO holds{seems}"
    holds = "no load is known yet at which the SLO holds"
    if found.holds is not None:
        holds = f"the SLO holds up to {_load(said, found.holds)}"
    if found.fails is not None:
        return f"{holds}, and fails from {found.fails:g} on"
    if found.edge == "highest" and said.limited_at is None:
        return f"{holds}, the largest load asked for"
    return f"{holds}, and where it ends is not known yet"


def because(said: Answer) -> list[str]:
    """The term that decides, at the one load, or at both ends of a search: how close it is, and how sure that is."""
    ends = [one.load for one in said.loads] if said.found is None else [said.found.holds, said.found.fails]
    lines = []
    for one in said.loads:
        if one.load not in ends:
            continue
        at = "" if said.found is None else f"{_load(said, one.load)}: "
        worst = answer.closest(one.statements)
        if not one.kept_up:
            lines.append(f"{at}the server did not keep up: requests in flight grew without end")
        elif worst is not None:
            lines.append(f"{at}{closeness(worst)}")
    return lines


def closeness(one: Verdict) -> str:
    """Of a term: what was observed, how far from the limit that is, and how sure."""
    term = slo.parse(one.term)
    if one.observed_per_s is not None:
        off, (low, high) = one.observed_per_s / term.limit - 1, one.per_s_ci
        side = f"{percent(abs(off))} % {'above' if off >= 0 else 'below'} the limit"
        return (
            f"{term}: {number(one.observed_per_s)} tok/s, {side}; {number(low)} to {number(high)} ({_SURE} of each end)"
        )
    low, high = one.exceed_ci
    if one.exceed is None or low is None or high is None:
        return f"{term}: nothing was observed"
    value = ""
    if one.observed_ms is not None:
        off = one.observed_ms / term.limit - 1
        side = f"{percent(abs(off))} % {'over' if off > 0 else 'under'} the limit"
        value = f"p{term.percent:g} was {number(one.observed_ms)} ms, {side}; "
    what = {"itl": "of the gaps were longer", "error_rate": "of the requests failed"}.get(term.metric, "took longer")
    bound = f"at least {percent(low)} %" if one.verdict == "FAIL" else f"at most {percent(high)} %"
    return f"{term}: {value}{percent(one.exceed)} % {what} ({bound}, {_SURE}), and {percent(term.allowed)} % may"


def beside(said: Answer) -> list[str]:
    """What else has to be known: what was measured, what is left open, and what to do about it."""
    lines = []
    if said.found is None:
        lines += [line for one in said.loads if one.levels for line in (_measured(one), *_open(one))]
    else:
        band = [f"{load:g}" for load in said.found.undecided]
        lines += [f"undecided after {search.REPLICATES} fresh levels each: {', '.join(band)}"] if band else []
        for failed, passed in said.found.passed_after_failing:
            lines.append(f"{passed:g} passed although {failed:g} failed: the server does not get worse step by step")
    for one in said.loads:
        if one.why_not is not None and (one.verdict == "INVALID" or one.load == said.limited_at):
            lines.append(f"{_load(said, one.load)}: {one.why_not}")
    if said.verdict == "UNDECIDED":
        lines.append("the same command with --out and this directory goes on where it stopped")
    return lines


def _measured(one: AtLoad) -> str:
    levels = f"{len(one.levels)} level{'' if len(one.levels) == 1 else 's'}"
    good = one.statements[""].goodput if "" in one.statements else None
    words = f"{one.requests} requests in {one.measured_s:.0f} s, {levels}"
    if good is None or good.requests_per_s is None or good.share is None:
        return words
    return f"{words}; goodput {number(good.requests_per_s)} req/s, {percent(good.share)} % of the requests"


def _open(one: AtLoad) -> list[str]:
    """Why it is not decided yet, and how much it would take."""
    if one.verdict != "UNDECIDED":
        return []
    lines = []
    every = answer.every(one.statements)
    alpha = decision.ALPHA / answer.LOOKS
    for verdict in every:
        if verdict.verdict != "UNDECIDED":
            continue
        term = slo.parse(verdict.term)
        fewest = decision.fewest(term, alpha=alpha)
        if fewest is not None and verdict.n_eff is not None and verdict.n_eff < fewest:
            worth = f"{verdict.n} values that are worth {verdict.n_eff} independent ones"
            lines.append(f"{term}: {worth}, and it takes {fewest} to pass")
        times = decision.growth(verdict, alpha=alpha, of=len(every))
        lines.append(
            f"{term}: about {times:.1f} times as much would decide it"
            if times is not None
            else f"{term}: so near to its limit that more of the same would hardly decide it"
        )
    return lines


def _table(said: Answer) -> Table:
    """A line for each term at each load; of a load that was only probed, one in grey."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    heads = ("conc." if said.by == "concurrency" else "rate", "SLO", "", "observed", "% over (bounds)", "n_eff")
    for head in heads:
        table.add_column(head, justify="left" if head in ("SLO", "") else "right", overflow="fold")
    for one in said.loads:
        load = f"{one.load:g}"
        probed = said.found is not None and one.levels == (one.probe,)
        for name, statement in one.statements.items():
            for verdict in statement.verdicts:
                cells = (
                    load,
                    safe(f"{name}: {verdict.term}" if name else verdict.term),
                    "probe" if probed else verdict.verdict,
                    *observed(verdict),
                    "" if verdict.n_eff is None else str(verdict.n_eff),
                )
                table.add_row(*map(Text, cells), style="dim" if probed else VERDICT_STYLES[verdict.verdict])
                load = ""
        if not one.statements:
            table.add_row(load, "", one.verdict, style=VERDICT_STYLES[one.verdict])
    return table


def _load(said: Answer, load: float) -> str:
    return f"{load:g} at once" if said.by == "concurrency" else f"{load:g} requests/s"
