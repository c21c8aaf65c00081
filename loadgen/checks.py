"""Before any load: what cannot go well is refused, with what to do about it."""

import itertools

from loadgen import room
from loadgen.load import levels_of, planned
from loadgen.preflight import Server, Unusable
from loadgen.settings import Settings
from workloads import datasets
from workloads.request import Request
from workloads.workload import mean_output

_LOOKED_AHEAD = 1000  # requests whose lengths are held against the server's limit


def make_room(settings: Settings) -> None:
    """Open files for what will be in flight. Raises ValueError where this process may not have as many."""
    if settings.concurrency:
        room.make_room(max(settings.concurrency), f"--concurrency {max(settings.concurrency)}")
    elif settings.max_concurrency is not None:
        room.make_room(settings.max_concurrency, f"--max-concurrency {settings.max_concurrency}")
    else:
        room.make_most_room()


def request_s(settings: Settings, server: Server) -> float:
    """About how long a request takes, by the probe."""
    first_s, token_s = server.request_tokens_s
    return first_s + token_s * mean_output(settings.workload, settings.trace)


def check_data_sets(settings: Settings) -> None:
    """Read them to their end: a malformed line is found before any load, and an empty file. Raises ValueError."""
    for one in settings.workload.classes:
        if one.dataset is not None:
            for _ in datasets.read(one.dataset):
                pass


def check_lengths(settings: Settings, server: Server) -> None:
    limit = server.facts["max_model_len"]
    if limit is None:
        return
    ahead = itertools.islice(planned(settings, server, salt="", level=0), _LOOKED_AHEAD)
    asked = max(map(_longest, ahead), key=sum, default=(0, 0))
    if any(one.needs_trace for one in settings.workload.classes):  # all of it: no prompts need to be made for that
        trace = settings.trace
        assert trace is not None
        assert trace.input_tokens is not None
        assert trace.output_tokens is not None
        place = int((trace.input_tokens + trace.output_tokens).argmax())
        asked = max(asked, (int(trace.input_tokens[place]), int(trace.output_tokens[place])), key=sum)
    if sum(asked) > limit:
        said = f"a request of {asked[0]} input and {asked[1]} output tokens"
        hint = "choose shorter --input or --output"
        raise Unusable(f"{said} is over the server's limit of {limit} (max_model_len): {hint}")


def _longest(request: Request) -> tuple[int, int]:
    """Input and output tokens of its conversation's last turn, as far as they are known: all before is repeated."""
    said = 0
    while True:
        said += 0 if request.want_input_tokens is None else request.want_input_tokens
        if request.then is None:
            return said, request.want_output_tokens
        said += request.want_output_tokens
        request = request.then


def check_room(settings: Settings, server: Server) -> None:
    """Whether the open loop has files for what is in flight on average. Raises ValueError."""
    if settings.law is None or settings.max_concurrency is not None:
        return
    fastest = max((plan.rate_per_s for plan in levels_of(settings) if plan.rate_per_s is not None), default=0.0)
    in_flight = fastest * request_s(settings, server)
    if in_flight / settings.workers > room.room():
        raise ValueError(
            f"{fastest:g} requests/s would have about {in_flight:.0f} in flight, and this process has files for "
            f"{room.room()}: raise the limit (ulimit -n), ask for less, or let them wait with --max-concurrency"
        )
