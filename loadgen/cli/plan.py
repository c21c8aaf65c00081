"""`loadgen plan`: the requests that a run would send."""

import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from workloads.request import Request


def plan(
    *,
    workload: str | None = None,
    input: str | None = None,  # noqa: A002
    output: str | None = None,
    dataset: str | None = None,
    arrivals: str | None = None,
    rate: str | None = None,
    speed: float = 1.0,
    duration: str | None = None,
    seed: int = 0,
    salt: str = "",
    level: int = 0,
    levels: int | None = None,
    requests: int = 10,
    api: str = "chat",
    digest: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Print the requests of a level as JSON lines, each turn of a conversation on a line of its own.

    No server is asked, so words stand for tokens: a run has the same lengths and times, with prompts that are exact by
    its server's count. A field that does not apply is left out; a length that nobody can know before is null.

    Parameters
    ----------
    workload
        A preset, or a TOML file of the same form. Default: chat, or the lengths of the trace where there are some.
    input
        Prompt tokens, as for run.
    output
        Output tokens, in the same forms.
    dataset
        ShareGPT JSON, chat JSONL, prompt JSONL or plain text.
    arrivals
        As for run: poisson (the default with --rate), constant, gamma:CV, ramp:LOW..HIGH or trace:FILE.
    rate
        Requests per second.
    speed
        How many times faster than it was a trace is replayed.
    duration
        Of the level; a ramp needs it.
    seed
        Everything drawn follows from it.
    salt
        What makes the prompts of a run its own; run.json has it.
    level
        Which level of the run, from 0.
    levels
        How many the run has: a data set is dealt out among them. Default: those up to --level.
    requests
        How many to print.
    api
        chat or completions; part of the digest.
    digest
        Print only the digest of the plan, as run.json has it.
    """
    from loadgen.cli import values
    from workloads import plan, schedule, traces
    from workloads.tokens import guess
    from workloads.workload import load, override

    if api not in ("chat", "completions"):
        raise ValueError(f"--api {api}: expected chat or completions")
    if requests < 1 or seed < 0:
        raise ValueError("--requests must be at least 1, and --seed at least 0")
    if rate is not None and arrivals is None:
        arrivals = "poisson"
    law = None if arrivals is None else schedule.parse(arrivals)
    trace = None if law is None or law.file is None else traces.read(law.file)
    chosen = override(load(workload or "chat"), input, output, dataset, None if workload else trace)
    if digest:
        trace_digest = None if trace is None else trace.digest
        text = plan.digest(
            chosen, seed=seed, api=api, arrivals=None if law is None else str(law), trace_digest=trace_digest
        )
        return _print(iter([text]))
    made = plan.requests(chosen, guess(), seed=seed, salt=salt, level=level, levels=levels or level + 1, trace=trace)
    if trace is not None:
        made = _timed(made, traces.replay_us(trace, speed).tolist())
    elif law is not None:
        rate_per_s = None if rate is None else values.rate_per_s(rate)
        duration_s = None if duration is None else values.duration_s(duration)
        due = schedule.due_us(law, seed=seed, level=level, rate_per_s=rate_per_s, duration_s=duration_s)
        made = _timed(made, due)
    lines = (json.dumps(_fields(turn, first.index)) for first in made for turn in _turns(first))
    return _print(itertools.islice(lines, requests))


def _timed(made: Iterator["Request"], due_us: Iterable[int]) -> Iterator["Request"]:
    """Each request with its time, up to where either is used up."""
    import msgspec

    return (msgspec.structs.replace(one, due_us=at) for at, one in zip(due_us, made, strict=False))


def _turns(first: "Request") -> Iterator["Request"]:
    turn: Request | None = first
    while turn is not None:
        yield turn
        turn = turn.then


def _fields(request: "Request", session: int) -> dict[str, Any]:
    """By the names of a run's rows."""
    fields = {
        "level": request.level,
        "index": request.index,
        "want_input_tokens": request.want_input_tokens,
        "want_output_tokens": request.want_output_tokens,
    }
    if request.then is not None or request.turn:
        fields |= {"session": session, "turn": request.turn, "think_us": request.think_us}
    optional: dict[str, Any] = {
        "due_us": request.due_us,
        "class": request.class_name,
        "item": request.item,
        "group": request.group,
        "shared_tokens": request.shared_tokens or None,
        "leave_us": request.leave_us,
    }
    fields |= {name: value for name, value in optional.items() if value is not None}
    return fields | {"prompt": request.prompt} | ({"extra": request.extra} if request.extra else {})


def _print(lines: Iterator[str]) -> int:
    try:
        for line in lines:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor is there more to say at the exit
    return 0
