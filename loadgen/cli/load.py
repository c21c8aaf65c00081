"""Which levels of load the flags ask for. What does not go together is refused: it would not do what it says."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from loadgen.course import Until
    from workloads.schedule import Law

DEFAULT_LEVELS = "1..64"
RAMP_S = 30.0
ENOUGH_S = 600.0  # at most
_LOAD = Group.create_ordered("Load")


def flag(group: Group, text: str) -> Parameter:
    return Parameter(help=text, group=group, negative=(), show_default=False)  # the text says it


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    concurrency: Annotated[
        str | None,
        flag(
            _LOAD,
            "Closed loop: so many requests in flight, 1,2,4 or 1..64 (doubling), one level each. "
            "Default: 1..64, stopping early past saturation.",
        ),
    ] = None
    rate: Annotated[
        str | None,
        flag(_LOAD, "Open loop: so many requests per second whatever becomes of them, 2,4,8 or 1..16, one level each."),
    ] = None
    arrivals: Annotated[
        str | None,
        flag(
            _LOAD,
            "Open loop: poisson (the default), constant, gamma:CV (coefficient of variation of the gaps); "
            "without --rate: ramp:LOW..HIGH (requests per second), or trace:FILE (times, Azure, BurstGPT, Mooncake).",
        ),
    ] = None
    speed: Annotated[
        str | None,
        flag(_LOAD, "A trace at 1,2 or 1..8 times its own speed, one level each. Default: 1."),
    ] = None
    max_concurrency: Annotated[
        int | None,
        flag(_LOAD, "Open loop: at most so many requests in flight; the wait of the others counts."),
    ] = None
    requests: Annotated[
        int | Literal["enough"] | None,
        flag(
            _LOAD,
            "A level ends after this many measured requests; warm-up is extra. enough: as soon as they carry a p99, "
            "or the percentiles of --slo.",
        ),
    ] = None
    duration: Annotated[
        str | None,
        flag(
            _LOAD,
            "A level ends after this time of measuring. Default: 30s, and at least 10 requests a slot of a closed "
            "loop; with --requests enough, 10m; a trace is replayed whole.",
        ),
    ] = None
    max_errors: Annotated[
        int | None,
        flag(_LOAD, "A level ends after this many failed requests. Default: only when every request fails."),
    ] = None
    max_rps: Annotated[str | None, flag(_LOAD, "Closed loop: start no more requests per second than this.")] = None
    workers: Annotated[int, flag(_LOAD, "Processes that share the load. Default: 1.")] = 1


def load(options: LoadOptions) -> dict[str, Any]:
    """The fields of the settings that are about the load. Raises ValueError."""
    open_loop = options.rate is not None or options.arrivals is not None
    return _open(options) if open_loop else _closed(options)


def _closed(options: LoadOptions) -> dict[str, Any]:
    import msgspec

    from loadgen.cli import values
    from loadgen.course import DEFAULT_UNTIL, Until

    if options.max_concurrency is not None:
        _refuse("--max-concurrency is the cap of an open loop: say --rate or --arrivals, or --concurrency instead")
    if options.speed is not None:
        _refuse("--speed is that of a trace: say --arrivals trace:FILE")
    until = _until(options)
    if until == Until(errors=until.errors):
        until = msgspec.structs.replace(DEFAULT_UNTIL, errors=until.errors)
    chosen = DEFAULT_LEVELS if options.concurrency is None else options.concurrency
    return {
        "concurrency": values.named("--concurrency", values.levels, chosen),
        "until": until,
        "max_rps": None if options.max_rps is None else values.named("--max-rps", values.rate_per_s, options.max_rps),
    }


def _open(options: LoadOptions) -> dict[str, Any]:
    import msgspec

    from loadgen.cli import values
    from loadgen.course import DEFAULT_UNTIL
    from workloads import schedule, traces

    if options.concurrency is not None:
        asked = "--rate" if options.rate is not None else "--arrivals"
        _refuse(f"--concurrency is a closed loop and {asked} an open one: choose one (--max-concurrency caps the open)")
    if options.max_rps is not None:
        _refuse("--max-rps slows a closed loop: in an open loop, --rate says how many requests start")
    if options.max_concurrency is not None and options.max_concurrency < 1:
        _refuse(f"--max-concurrency {options.max_concurrency}: expected at least 1")
    try:
        law = schedule.parse("poisson" if options.arrivals is None else options.arrivals)
    except ValueError as error:
        raise ValueError(f"--{error}") from None
    _check_law(law, options)
    rates = () if options.rate is None else values.named("--rate", values.rates, options.rate)
    if odd := [rate for rate in rates if not schedule.LOWEST_RATE_PER_S <= rate <= schedule.HIGHEST_RATE_PER_S]:
        between = f"{schedule.LOWEST_RATE_PER_S:g} to {schedule.HIGHEST_RATE_PER_S:.0f}"
        _refuse(f"--rate {odd[0]:g}: expected {between} requests per second")
    until = _until(options)
    if law.name == "ramp" and until.duration_s is None:
        until = msgspec.structs.replace(until, duration_s=RAMP_S)
    elif law.name != "trace" and until.requests is None and until.duration_s is None:
        until = msgspec.structs.replace(until, duration_s=DEFAULT_UNTIL.duration_s)
    return {
        "law": law,
        "rates": rates,
        "trace": None if law.file is None else traces.read(law.file),
        "speeds": () if law.file is None else values.named("--speed", values.factors, options.speed or "1"),
        "max_concurrency": options.max_concurrency,
        "until": until,
    }


def _check_law(law: "Law", options: LoadOptions) -> None:
    if law.name in ("ramp", "trace"):
        if options.rate is not None:
            own = (
                "goes from one rate to another" if law.name == "ramp" else "has its own times (--speed makes it faster)"
            )
            _refuse(f"--arrivals {law} {own}: leave --rate out")
        if options.requests == "enough":
            _refuse(f"--requests enough: --arrivals {law} changes its rate, so no part of it says what all of it does")
    elif options.rate is None:
        _refuse(f"--arrivals {law} needs a rate: say --rate, in requests per second")
    if law.name != "trace" and options.speed is not None:
        _refuse(f"--speed is that of a trace, and --arrivals {law} is none: use --rate")


def _until(options: LoadOptions) -> "Until":
    from loadgen.cli import values
    from loadgen.course import Until

    enough = options.requests == "enough"
    requests = None if options.requests == "enough" else options.requests
    if requests is not None and requests < 1:
        _refuse(f"--requests {requests}: expected at least 1, or enough")
    if options.max_errors is not None and options.max_errors < 1:
        _refuse(f"--max-errors {options.max_errors}: expected at least 1")
    duration = options.duration
    duration_s = ENOUGH_S if enough else None
    if duration is not None:
        duration_s = values.named("--duration", values.duration_s, duration)
    return Until(requests=requests, duration_s=duration_s, errors=options.max_errors, enough=enough)


def _refuse(message: str) -> None:
    raise ValueError(message)
