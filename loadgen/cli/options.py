"""The flags that commands share, and the settings they stand for."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from loadgen.cli.load import LoadOptions, flag, load

if TYPE_CHECKING:
    from loadgen.settings import Settings
    from workloads.traces import Trace
    from workloads.workload import Workload

_MOST_WORKERS = 64
_WORK = Group.create_ordered("Workload")
_ASK = Group.create_ordered("Request")
RESULT = Group.create_ordered("Result")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options(LoadOptions):
    workload: Annotated[
        str | None,
        flag(_WORK, "A preset, or a TOML file of the same form. Default: chat, or the lengths of the trace."),
    ] = None
    input: Annotated[
        str | None,
        flag(_WORK, "Prompt tokens: 512, uniform:100..200, normal:512,64, lognormal:512,0.6 (mean, sigma of the log)."),
    ] = None
    output: Annotated[str | None, flag(_WORK, "Output tokens, in the same forms.")] = None
    dataset: Annotated[
        Path | None,
        flag(_WORK, "Prompts of a file instead: ShareGPT JSON, JSON lines of chats or prompts, or plain text."),
    ] = None
    repeat: Annotated[
        bool,
        flag(_WORK, "Begin the data set again when it is used up. Default: the level ends; no prompt comes twice."),
    ] = False
    seed: Annotated[int, flag(_WORK, "Everything drawn follows from it. Default: 0.")] = 0
    tokenizer: Annotated[
        Path | None,
        flag(_WORK, "A tokenizer.json, for exact prompt lengths where the server cannot count."),
    ] = None
    model: Annotated[str | None, flag(_ASK, "Default: the server's only model.")] = None
    api: Annotated[str | None, flag(_ASK, "chat or completions. Default: what the address names, else chat.")] = None
    body: Annotated[
        str | None,
        flag(_ASK, "JSON object merged into every request; a null removes a default key."),
    ] = None
    header: Annotated[tuple[str, ...], flag(_ASK, "'Name: value', sent with every request; may be repeated.")] = ()
    api_key_env: Annotated[
        str, flag(_ASK, "The environment variable that holds the API key. Default: OPENAI_API_KEY.")
    ] = "OPENAI_API_KEY"
    timeout: Annotated[
        str | None,
        flag(_ASK, "first=60s,idle=30s,total=600s,connect=10s (the defaults), any of them."),
    ] = None
    max_event: Annotated[
        str | None,
        flag(_ASK, "A longer event of a stream fails its request. Default: 16MiB."),
    ] = None
    ca_file: Annotated[Path | None, flag(_ASK, "Certificates to trust instead of the usual ones.")] = None
    insecure: Annotated[bool, flag(_ASK, "Accept any TLS certificate; written into the result.")] = False
    transport: Annotated[
        str,
        flag(_ASK, "stamped (the default), or httpx (proxies and what else httpx can do; user clock)."),
    ] = "stamped"
    slo: Annotated[
        tuple[str, ...],
        flag(RESULT, "'ttft p99 < 500ms', or a preset such as chat: adds verdicts and goodput; may be repeated."),
    ] = ()
    out: Annotated[
        Path | None,
        flag(RESULT, "The run directory, never overwritten. Default: runs/<time>-<model>-<workload>."),
    ] = None
    metrics: Annotated[
        tuple[str, ...],
        flag(
            RESULT,
            "Where the server's Prometheus page is; may be repeated, for several servers behind one address. none: do "
            "not ask. Default: /metrics at the target's host.",
        ),
    ] = ()
    hardware: Annotated[
        str | None,
        flag(
            RESULT,
            "What it runs on, for the floors: llama-3.1-8b@h100,dtype=fp8,gpus=2, or @h100,dtype=fp8 where the "
            "server's name for its model says which it is. The embedded engine says it itself.",
        ),
    ] = None
    json: Annotated[bool, flag(RESULT, "Print the summary as JSON on standard output.")] = False
    quiet: Annotated[bool, flag(RESULT, "No progress on standard error.")] = False
    config: Annotated[Path | None, flag(RESULT, "A TOML file with any of these flags, by the same names.")] = None


def settings(target: str, options: Options, asked: dict[str, Any] | None = None) -> "Settings":
    """What the flags stand for; `asked` are the fields that are about the load, where these flags do not say it alone.

    Raises ValueError for the first flag that makes no sense.
    """
    from loadgen.cli import values
    from loadgen.endpoint import Access, api_key, parse_target
    from loadgen.exchange import Limits
    from loadgen.settings import Settings
    from loadgen.sse import LINE_LIMIT_BYTES

    if not target.startswith("sim:"):
        parse_target(target)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", options.api_key_env):  # it may be the key itself: do not repeat it
        raise ValueError("--api-key-env expects the name of an environment variable, not the key")
    if options.seed < 0:
        raise ValueError(f"--seed {options.seed}: expected 0 or more")
    if not 1 <= options.workers <= _MOST_WORKERS:
        raise ValueError(f"--workers {options.workers}: expected 1 to {_MOST_WORKERS}")
    asked = load(options) if asked is None else asked
    headers = tuple(values.header(text) for text in options.header)
    return Settings(
        target=target,
        **asked,
        workload=_workload(options, asked.get("trace")),
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
        else values.named("--max-event", values.size_bytes, options.max_event),
        workers=options.workers,
        hardware=None if options.hardware is None else checked_hardware(options.hardware),
        seed=options.seed,
        slo=_terms("--slo", options.slo),
        metrics=_metrics(options),
        out=options.out,
        options=recorded(options),
    )


def _workload(options: Options, trace: "Trace | None") -> "Workload":
    import msgspec

    from workloads import workload

    dataset = None if options.dataset is None else str(options.dataset)
    base = workload.load("chat" if options.workload is None else options.workload)
    lengths = trace if options.workload is None else None
    chosen = workload.override(base, options.input, options.output, dataset, lengths)
    for one in chosen.classes:
        _terms(f"workload {chosen.name}: slo", one.slo)
    if not options.repeat:
        return chosen
    if not any(one.dataset for one in chosen.classes):
        raise ValueError("--repeat is about a data set: say --dataset")
    classes = [msgspec.structs.replace(one, repeat=one.dataset is not None) for one in chosen.classes]
    return msgspec.structs.replace(chosen, classes=tuple(classes))


def checked_hardware(text: str) -> str:
    """Raises ValueError."""
    from analysis import hardware_words
    from loadgen.cli import values

    values.named("--hardware", hardware_words.check, text)
    return text


def _metrics(options: Options) -> tuple[str, ...]:
    if "none" in options.metrics and len(options.metrics) > 1:
        raise ValueError("--metrics none stands alone: it says that no page is to be asked")
    return options.metrics


def _terms(where: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """SLO terms and presets as the terms that run.json keeps."""
    from analysis import slo
    from loadgen.cli import values

    return tuple(map(str, values.named(where, slo.terms, texts)))


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
        elif name == "metrics":
            kept[name] = [text if text == "none" else _shown(text) for text in value]
        else:
            kept[name] = str(value) if isinstance(value, Path) else value
    return kept


def _shown(page: str) -> str:
    """The address of a page of metrics, without its secrets."""
    from loadgen import scrape

    return scrape.page(page).label


def _without_secrets(value: Any) -> Any:
    from loadgen.record import names_a_secret

    if isinstance(value, dict):
        return {key: "***" if names_a_secret(key) else _without_secrets(inner) for key, inner in value.items()}
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _choice(flag: str, value: str | None, choices: tuple[str, ...]) -> Any:
    if value is not None and value not in choices:
        raise ValueError(f"{flag} {value}: expected {' or '.join(choices)}")
    return value
