"""The flags that commands share, and the settings they stand for."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

if TYPE_CHECKING:
    from loadgen.settings import Settings

DEFAULT_LEVELS = "1..64"
_MOST_WORKERS = 64
_LOAD = Group.create_ordered("Load")
_WORK = Group.create_ordered("Workload")
_ASK = Group.create_ordered("Request")
_RESULT = Group.create_ordered("Result")


def _flag(group: Group, text: str) -> Parameter:
    return Parameter(help=text, group=group, negative=(), show_default=False)  # the text says it


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    concurrency: Annotated[
        str | None,
        _flag(_LOAD, "Levels: 1,2,4 or 1..64 (doubling). Default: 1..64, stopping early past saturation."),
    ] = None
    requests: Annotated[
        int | None,
        _flag(_LOAD, "A level ends after this many measured requests; warm-up is extra."),
    ] = None
    duration: Annotated[
        str | None,
        _flag(_LOAD, "A level ends after this time of measuring. Default: 30s, and at least 10 requests a slot."),
    ] = None
    max_errors: Annotated[
        int | None,
        _flag(_LOAD, "A level ends after this many failed requests. Default: only when every request fails."),
    ] = None
    max_rps: Annotated[str | None, _flag(_LOAD, "Politeness cap: start no more requests per second than this.")] = None
    workers: Annotated[int, _flag(_LOAD, "Processes that share the load. Default: 1.")] = 1
    workload: Annotated[str, _flag(_WORK, "A preset, or a TOML file of the same form. Default: chat.")] = "chat"
    input: Annotated[
        str | None,
        _flag(
            _WORK, "Prompt tokens: 512, uniform:100..200, normal:512,64, lognormal:512,0.6 (mean, sigma of the log)."
        ),
    ] = None
    output: Annotated[str | None, _flag(_WORK, "Output tokens, in the same forms.")] = None
    seed: Annotated[int, _flag(_WORK, "Everything drawn follows from it. Default: 0.")] = 0
    tokenizer: Annotated[
        Path | None,
        _flag(_WORK, "A tokenizer.json, for exact prompt lengths where the server cannot count."),
    ] = None
    model: Annotated[str | None, _flag(_ASK, "Default: the server's only model.")] = None
    api: Annotated[str | None, _flag(_ASK, "chat or completions. Default: what the address names, else chat.")] = None
    body: Annotated[
        str | None,
        _flag(_ASK, "JSON object merged into every request; a null removes a default key."),
    ] = None
    header: Annotated[tuple[str, ...], _flag(_ASK, "'Name: value', sent with every request; may be repeated.")] = ()
    api_key_env: Annotated[
        str, _flag(_ASK, "The environment variable that holds the API key. Default: OPENAI_API_KEY.")
    ] = "OPENAI_API_KEY"
    timeout: Annotated[
        str | None,
        _flag(_ASK, "first=60s,idle=30s,total=600s,connect=10s (the defaults), any of them."),
    ] = None
    max_event: Annotated[
        str | None,
        _flag(_ASK, "A longer event of a stream fails its request. Default: 16MiB."),
    ] = None
    ca_file: Annotated[Path | None, _flag(_ASK, "Certificates to trust instead of the usual ones.")] = None
    insecure: Annotated[bool, _flag(_ASK, "Accept any TLS certificate; written into the result.")] = False
    transport: Annotated[
        str,
        _flag(_ASK, "stamped (the default), or httpx (proxies and what else httpx can do; user clock)."),
    ] = "stamped"
    slo: Annotated[
        tuple[str, ...],
        _flag(_RESULT, "'ttft p99 < 500ms', or a preset such as chat: adds verdicts and goodput; may be repeated."),
    ] = ()
    out: Annotated[
        Path | None,
        _flag(_RESULT, "The run directory, never overwritten. Default: runs/<time>-<model>-<workload>."),
    ] = None
    json: Annotated[bool, _flag(_RESULT, "Print the summary as JSON on standard output.")] = False
    quiet: Annotated[bool, _flag(_RESULT, "No progress on standard error.")] = False
    config: Annotated[Path | None, _flag(_RESULT, "A TOML file with any of these flags, by the same names.")] = None


def settings(target: str, options: Options) -> "Settings":
    """What the flags stand for. Raises ValueError for the first that makes no sense."""
    import msgspec

    from analysis import slo
    from loadgen.cli import values
    from loadgen.endpoint import Access, api_key, parse_target
    from loadgen.exchange import Limits
    from loadgen.levels import DEFAULT_UNTIL, Until
    from loadgen.settings import Settings
    from loadgen.sse import LINE_LIMIT_BYTES
    from workloads.workload import load, override

    if not target.startswith("sim:"):
        parse_target(target)
    if options.requests is not None and options.requests < 1:
        raise ValueError(f"--requests {options.requests}: expected at least 1")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", options.api_key_env):  # it may be the key itself: do not repeat it
        raise ValueError("--api-key-env expects the name of an environment variable, not the key")
    if options.seed < 0:
        raise ValueError(f"--seed {options.seed}: expected 0 or more")
    duration_s = None if options.duration is None else _named("--duration", values.duration_s, options.duration)
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise ValueError(f"--workers {options.workers}: expected 1 to {_MOST_WORKERS}")
    if options.max_errors is not None and options.max_errors < 1:
        raise ValueError(f"--max-errors {options.max_errors}: expected at least 1")
    until = Until(requests=options.requests, duration_s=duration_s)
    until = msgspec.structs.replace(DEFAULT_UNTIL if until == Until() else until, errors=options.max_errors)
    headers = tuple(values.header(text) for text in options.header)
    workload = override(load(options.workload), options.input, options.output)
    for one in workload.classes:
        _named(f"workload {workload.name}: slo", slo.terms, one.slo)
    return Settings(
        target=target,
        concurrency=_named(
            "--concurrency", values.levels, DEFAULT_LEVELS if options.concurrency is None else options.concurrency
        ),
        until=until,
        workload=workload,
        api=_choice("--api", options.api, ("chat", "completions")),
        model=options.model,
        extra={} if options.body is None else values.body(options.body),
        access=Access(
            headers=headers,
            api_key=api_key(options.api_key_env),
            api_key_env=options.api_key_env,
            ca_file=options.ca_file,
            insecure=options.insecure,
            transport=_choice("--transport", options.transport, ("stamped", "httpx")),
        ),
        limits=Limits(**({} if options.timeout is None else values.timeouts(options.timeout))),
        tokenizer=options.tokenizer,
        line_limit_bytes=LINE_LIMIT_BYTES
        if options.max_event is None
        else _named("--max-event", values.size_bytes, options.max_event),
        workers=options.workers,
        seed=options.seed,
        max_rps=None if options.max_rps is None else _named("--max-rps", values.rate_per_s, options.max_rps),
        slo=tuple(map(str, _named("--slo", slo.terms, options.slo))),
        out=options.out,
        options=recorded(options),
    )


def recorded(options: Options) -> dict[str, Any]:
    """The flags as run.json keeps them: all of them, the values of secret headers and fields removed."""
    from loadgen.cli import values
    from loadgen.record import names_a_secret

    kept: dict[str, Any] = {}
    for name, value in vars(options).items():
        if name == "header":
            pairs = [values.header(text) for text in value]
            kept[name] = [f"{key}: {'***' if names_a_secret(key) else text}" for key, text in pairs]
        elif name == "body" and value is not None:
            kept[name] = _without_secrets(values.body(value))
        else:
            kept[name] = str(value) if isinstance(value, Path) else value
    return kept


def _without_secrets(value: Any) -> Any:
    from loadgen.record import names_a_secret

    if isinstance(value, dict):
        return {key: "***" if names_a_secret(key) else _without_secrets(inner) for key, inner in value.items()}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _named(flag: str, parse: Any, text: Any) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{flag} {error}") from None


def _choice(flag: str, value: str | None, choices: tuple[str, ...]) -> Any:
    if value is not None and value not in choices:
        raise ValueError(f"{flag} {value}: expected {' or '.join(choices)}")
    return value
