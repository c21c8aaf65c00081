"""Before any load: find the API, the model, what this server accepts, and how it counts tokens.

Every probe is a real streamed request with a prompt that is never used again. What the server refuses is dropped for
the whole run. Anything that makes the run pointless raises `Unusable`, one line for the user.
"""

import contextlib
import secrets as entropy
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import msgspec

from loadgen.clock import wall_ns
from loadgen.dialects import COUNT_LIMIT, Api, Dialect, error_body
from loadgen.endpoint import Access, Target, api_url, root, under
from loadgen.exchange import Exchange, Limits, Wire
from loadgen.record import Row, Secrets, names_a_secret
from loadgen.sending import Client, sender
from loadgen.slices import Slices
from loadgen.sse import LINE_LIMIT_BYTES
from workloads.request import Request
from workloads.tokens import CalibrationFailed, Vocabulary, calibrate, guess

PROBE_TOKENS = 8
HARDWARE_CHARS = 200
_PROBE_PROMPT = "Say a few words about the weather of today"
# What a server may refuse, the least usual first: that is given up first where it does not say which.
_OPTIONS = {"ignore_eos": "ignore_eos", "min_tokens": "min_tokens", "stream_options": "usage"}


class Unusable(ValueError):  # noqa: N818 - it names the state of the target
    """The target cannot be measured; the message says why and what to do."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What the preflight found."""

    url: httpx.URL
    base: httpx.URL
    dialect: Dialect
    vocabulary: Vocabulary
    as_ids: bool
    request_tokens_s: tuple[float, float]  # of the probe: time to its first token, and from one token to the next
    facts: dict[str, Any]  # for run.json


async def preflight(
    client: Client,
    target: Target,
    access: Access,
    secrets: Secrets,
    *,
    api: Api | None,
    model: str | None,
    extra: dict[str, Any],
    limits: Limits,
    tokenizer: Callable[[str], int] | None,
) -> Server:
    """Raises Unusable."""
    api = target.api or api or "chat"
    base, found = await _find_models(client, target, access, secrets, limits)
    model = model or _only_model(found, target)
    dialect = Dialect(api=api, model=model, extra=extra)
    slices = Slices()
    try:
        prober = _Prober(client, api_url(base, api), limits, slices, secrets)
        dialect, dropped, row = await _agree(prober, dialect, [entry["id"] for entry in found], target, access)
        dialect, row = await _with_running_usage(prober, dialect, row)
        vocabulary = await _vocabulary(prober, client, base, dialect, tokenizer)
        as_ids = False
        if api == "completions":
            vocabulary, as_ids = await _with_ids(prober, client, base, dialect, vocabulary)
    finally:
        await slices.aclose()
    return Server(
        url=api_url(base, api),
        base=base,
        dialect=dialect,
        vocabulary=vocabulary,
        as_ids=as_ids,
        request_tokens_s=_pace(row),
        facts=_facts(prober, dialect, vocabulary, as_ids, found, row) | {"dropped": dropped},
    )


def _facts(
    prober: "_Prober", dialect: Dialect, vocabulary: Vocabulary, as_ids: bool, found: list[dict[str, Any]], row: Row
) -> dict[str, Any]:
    card = next((entry for entry in found if entry["id"] == dialect.model), {})
    limit, hardware = card.get("max_model_len"), card.get("hardware")
    return {
        "url": str(prober.url.copy_with(query=None, username=None, password=None)),
        "max_model_len": limit if isinstance(limit, int) else None,
        "hardware": hardware if _is_word(hardware) else None,
        "running_usage": dialect.running_usage,
        "limit_key": dialect.limit_key,
        "template_tokens": None if as_ids or vocabulary.counted_by == "guess" else vocabulary.base_tokens - 1,
        "prompt_tokens_from": vocabulary.counted_by,
        "prompt_as": "token ids" if as_ids else "text",
        "usage": row.tokens_from == "usage",
        "stamped": row.read_lag_us is not None,
        "preflight_requests": prober.requests,
        "preflight_output_tokens": prober.output_tokens,
    }


def _is_word(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= HARDWARE_CHARS and value.isascii() and value.isprintable()


# The address and the model


async def _find_models(
    client: Client, target: Target, access: Access, secrets: Secrets, limits: Limits
) -> tuple[httpx.URL, list[dict[str, Any]]]:
    """The base address that answers, and the models it names; none where it has no /models."""
    strange: str | None = None
    for base in target.bases:
        url = under(base, "/models")
        try:
            response = await client.get(url, timeout=httpx.Timeout(30, connect=limits.connect_s))
        except httpx.HTTPError as error:
            raise Unusable(secrets.hide(_unreachable(target, error))) from None
        status = response.status_code
        if status in (401, 403):
            said = f"HTTP {status}: {error_body(response.content)}"
            raise Unusable(secrets.hide(_unauthorised(said, target, access)))
        if response.is_redirect:
            raise Unusable(secrets.hide(f"{target.label} redirects to {_place(response)}: give that address itself"))
        if status == 200:
            if (models := _model_entries(response.content)) is not None:
                return base, models
            # A web page may answer for every path: the next base can still be the right one.
            strange = strange or response.headers.get("content-type", "no content type").split(";")[0]
        elif status not in (404, 405, 501):
            said = secrets.hide(error_body(response.content))
            raise Unusable(f"{target.label} answers GET {url.path} with HTTP {status}: {said}")
    if strange is not None:
        raise Unusable(
            f"{target.label} is no OpenAI-compatible API: its list of models is not JSON of that form ({strange}); "
            "give the address under which /v1/models answers"
        )
    return target.bases[0], []


def _model_entries(content: bytes) -> list[dict[str, Any]] | None:
    try:
        data = msgspec.json.decode(content)["data"]
        return [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return None


def _place(response: httpx.Response) -> str:
    if response.next_request is None:
        return "nowhere"
    return str(response.next_request.url.copy_with(username=None, password=None, query=None, fragment=None))


def _only_model(found: list[dict[str, Any]], target: Target) -> str:
    names = [entry["id"] for entry in found]
    if len(names) == 1:
        return str(names[0])
    if not names:
        raise Unusable(f"{target.label} has no list of models: name one with --model, or check the address")
    raise Unusable(f"{target.label} serves several models: choose one with --model ({_listed(names)})")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _unreachable(target: Target, error: httpx.HTTPError) -> str:
    hint = "is the server running, and is this its address?"
    if isinstance(error.__cause__, ssl.SSLCertVerificationError):
        hint = "give its CA with --ca-file, or accept any certificate with --insecure"
    elif isinstance(error.__cause__, ssl.SSLError):
        hint = "does it speak TLS, https rather than http?"
    elif isinstance(error, httpx.ProtocolError):
        hint = "does it speak HTTP, http rather than https?"
    return f"{target.label}: {error}; {hint}"


def _unauthorised(said: str, target: Target, access: Access) -> str:
    if any(names_a_secret(name) for name, _ in access.headers):
        source = "from --header"
    else:
        source = f"from {access.api_key_env}" if access.api_key else f"none, {access.api_key_env} is not set"
    return f"{target.label} answers {said}; is the key right? (key: {source})"


# What the server accepts


class _Prober:
    """Sends single requests through the real exchange, each with a prompt of its own."""

    def __init__(self, client: Client, url: httpx.URL, limits: Limits, slices: Slices, secrets: Secrets) -> None:
        self._send = sender(client, url, limits.connect_s)
        self.url = url
        self._limits = limits
        self._slices = slices
        self._secrets = secrets
        self.requests = 0
        self.output_tokens = 0

    async def send(self, dialect: Dialect, prompt: str | tuple[int, ...], output_tokens: int) -> Row:
        rows: list[Row] = []
        wire = Wire(
            send=self._send,
            dialect=dialect,
            limits=self._limits,
            slices=self._slices,
            secrets=self._secrets,
            emit=rows.append,
            start_ns=wall_ns(),
            line_limit_bytes=LINE_LIMIT_BYTES,
        )
        request = Request(
            index=self.requests,
            level=0,
            prompt=prompt,
            want_input_tokens=1,
            want_output_tokens=output_tokens,
        )
        await Exchange(wire, request, "warmup").run()
        await self._slices.drain()
        self.requests += 1
        self.output_tokens += rows[0].output_tokens or 0
        return rows[0]


async def _agree(
    prober: _Prober, dialect: Dialect, served: list[str], target: Target, access: Access
) -> tuple[Dialect, list[str], Row]:
    """Drop what the server refuses until a probe succeeds."""
    dropped: list[str] = []
    refusal: Row | None = None
    prompt = f"{_PROBE_PROMPT} {entropy.token_hex(4)}"
    while True:
        row = await prober.send(dialect, prompt, PROBE_TOKENS)
        if row.status == "ok":
            return dialect, dropped, row
        refusal = refusal or row
        message = row.error.message if row.error else ""
        changed = _without(dialect, message) if row.http_status in (400, 422, 500, 501) else None
        if changed is None:
            raise Unusable(_refused(refusal, dialect, served, target, access))
        dialect, name = changed
        dropped.append(name)


def _without(dialect: Dialect, message: str) -> tuple[Dialect, str] | None:
    """The dialect less the option that the message names, else less the next one; None when none is left."""
    if "max_completion_tokens" in message and dialect.limit_key == "max_tokens":
        return msgspec.structs.replace(dialect, limit_key="max_completion_tokens"), "max_tokens"
    active = [name for name, field in _OPTIONS.items() if getattr(dialect, field)]
    if not active:
        return None
    name = next((option for option in active if option in message), active[0])
    return msgspec.structs.replace(dialect, **{_OPTIONS[name]: False}), name


def _refused(row: Row, dialect: Dialect, served: list[str], target: Target, access: Access) -> str:
    message = row.error.message if row.error else "no reason given"
    if row.http_status in (401, 403):
        return _unauthorised(message, target, access)
    if row.http_status == 404 and served and dialect.model not in served:
        return f"{target.label} does not serve the model {dialect.model}: choose one with --model ({_listed(served)})"
    hint = ""
    if row.http_status in (404, 405):
        hint = "; is the address right, and does the server have this API (--api chat or completions)?"
    return f"{target.label}: the probe failed ({row.error.kind if row.error else '?'}): {message}{hint}"


async def _with_running_usage(prober: _Prober, dialect: Dialect, row: Row) -> tuple[Dialect, Row]:
    """Ask for a running count with each event where events carry more than one token, and the server takes it."""
    if not dialect.usage or row.tokens_from != "usage" or row.events_tokens is not None:
        return dialect, row
    asking = msgspec.structs.replace(dialect, running_usage=True)
    again = await prober.send(asking, f"{_PROBE_PROMPT} {entropy.token_hex(4)}", PROBE_TOKENS)
    return (asking, again) if again.status == "ok" and again.events_tokens is not None else (dialect, row)


def _pace(row: Row) -> tuple[float, float]:
    events = row.events_us
    first_s = events[0] / 1e6
    if len(events) < 2:
        return first_s, 0.0
    tokens = max(1, (row.output_tokens or len(events)) - 1)
    return first_s, (events[-1] - events[0]) / 1e6 / tokens


# How the server counts


async def _vocabulary(
    prober: _Prober,
    client: Client,
    base: httpx.URL,
    dialect: Dialect,
    tokenizer: Callable[[str], int] | None,
) -> Vocabulary:
    """By the first way of counting that works: /tokenize, usage, the user's tokenizer; else a guess."""

    async def by_usage(text: str) -> int:
        row = await prober.send(dialect, text, 1)
        if row.prompt_tokens is None:
            raise CalibrationFailed("the server's usage has no prompt_tokens")
        return row.prompt_tokens

    async def by_tokenize(text: str) -> int:
        return len(await _tokenize(client, base, dialect, text))

    async def by_tokenizer(text: str) -> int:
        assert tokenizer is not None
        return tokenizer(text)

    with contextlib.suppress(CalibrationFailed, _NoTokenize):
        vocabulary = await calibrate(by_tokenize, counted_by="tokenize", max_calls=200)
        return await _confirmed(vocabulary, by_usage)
    with contextlib.suppress(CalibrationFailed):
        return await calibrate(by_usage, counted_by="usage", want_words=128)
    if tokenizer is not None:
        with contextlib.suppress(CalibrationFailed):
            return await calibrate(by_tokenizer, counted_by="tokenizer", max_calls=200)
    return guess()


async def _confirmed(vocabulary: Vocabulary, by_usage: Callable[[str], Awaitable[int]]) -> Vocabulary:
    """What /tokenize says must hold for a real request: usage has the last word on what surrounds the words."""
    try:
        base = await by_usage(vocabulary.opening)
        counted = await by_usage(" ".join((vocabulary.opening, *vocabulary.words)))
    except CalibrationFailed:
        return vocabulary  # no usage to hold it against
    if base < 1 or counted - base != len(vocabulary.words):
        raise CalibrationFailed("usage counts otherwise than /tokenize")
    return msgspec.structs.replace(vocabulary, base_tokens=base)


class _NoTokenize(Exception):  # noqa: N818 - it names what is missing
    pass


async def _tokenize(client: Client, base: httpx.URL, dialect: Dialect, text: str) -> list[int]:
    """The ids of a prompt by the server's /tokenize: vLLM's form, with the chat template, and llama.cpp's."""
    fields: dict[str, Any] = {"model": dialect.model, "content": text, "add_special": True}
    if dialect.api == "chat":
        fields["messages"] = [{"role": "user", "content": text}]
        del fields["content"]
    else:
        fields["prompt"] = text
    try:
        response = await client.post(under(root(base), "/tokenize"), json=fields, timeout=10)
        tokens = msgspec.json.decode(response.content)["tokens"] if response.status_code == 200 else None
    except (httpx.HTTPError, msgspec.DecodeError, KeyError, TypeError, RecursionError):
        tokens = None
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < COUNT_LIMIT for token in tokens):
        raise _NoTokenize
    return tokens


async def _with_ids(
    prober: _Prober, client: Client, base: httpx.URL, dialect: Dialect, vocabulary: Vocabulary
) -> tuple[Vocabulary, bool]:
    """Prompts as token ids, exact by construction, where the server gives ids and takes them."""
    if vocabulary.counted_by != "tokenize":
        return vocabulary, False
    text = " ".join((vocabulary.opening, *vocabulary.words))
    try:
        ids = tuple(dict.fromkeys((await _tokenize(client, base, dialect, text))[-len(vocabulary.words) :]))
    except _NoTokenize:
        return vocabulary, False
    row = await prober.send(dialect, ids[:24], 1)
    if row.status != "ok" or row.prompt_tokens != len(ids[:24]):
        return vocabulary, False
    return msgspec.structs.replace(vocabulary, ids=ids), True
