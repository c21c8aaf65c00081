"""The hardware in somebody's words: the user's flag, the name under which a server serves its model, a simulated card.

A name is matched whole: what is left of it beside a model of the catalogue has to be words that leave its shape as it
is (`Instruct`, `AWQ`, a date). A distilled, merged or grafted model keeps none of its numbers, and is not guessed.
"""

from __future__ import annotations

import re

from analysis import floors
from analysis.catalog import facts
from analysis.hardware import DEVICE, Hardware, parse

# Models of the same shape under another name.
_ALSO = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "deepseek-r1": "deepseek-v3",
}
_HARMLESS = re.compile(
    r"instruct|chat|it|base|pt|hf|thinking|turbo|free|latest|preview|original"  # what it was trained for, who serves it
    r"|v\d+(\.\d+)?|\d{4}|\d{6}|\d{8}"  # versions and dates
    r"|awq|gptq|gguf|mlx|bnb|marlin|autoround|dynamic|quantized|nvfp4|mxfp4|fp4|fp8|fp16|bf16|int4|int8"
    r"|w\d+a\d+|\d+bits?|g\d+|i?q\d|[01kmsl]|xl|xs|xxs"  # q4_k_m and q8_0, in pieces
)
_SEPARATOR = re.compile(r"[-_:\s]+|\.(?=[a-z])")
_TOKEN = re.compile(r"[a-z]+|\d+(?:\.\d+)?[a-z]*")
_CACHED = re.compile(r"models--.+?--([^/]+)")  # in the path of a Hugging Face cache
_ANY = "1m"  # a model that fits everywhere
_SHOWN_CHARS = 100  # of a server's own words


def said(text: str, served: str | None) -> Hardware:
    """`MODEL@GPU,key=value...`; of `@GPU,...` and `GPU,...` the model is the one that the server serves.

    Raises ValueError, one line, also where the weights are larger than the memory.
    """
    if not _without_model(text):
        return _fitting(parse(text))
    gpu = text.strip().removeprefix("@")
    name = None if served is None else named(served)
    if name is None:
        raise ValueError(
            f"{text!r}: the catalogue has no model by the server's name for it, {(served or 'none')[:_SHOWN_CHARS]!r}: "
            f"say MODEL@{gpu}"
        )
    return _fitting(parse(f"{name}@{gpu}"))


def check(text: str) -> None:
    """Before a server is asked. Raises ValueError."""
    if not _without_model(text):
        said(text, None)
        return
    try:
        parse(f"{_ANY}@{text.strip().removeprefix('@')}")
    except ValueError as error:
        raise ValueError(str(error).removeprefix(f"{_ANY}: ").replace(f"{_ANY}@", "@")) from None


def words(hardware: Hardware) -> str:
    """What `parse` reads as the same hardware, of a model of the catalogue."""
    gpu = hardware.gpu
    name = gpu.name.partition(" (")[0]
    rates = {key: getattr(gpu, field) for key, (field, _) in DEVICE.items()}
    usual = {key: getattr(facts.gpus().get(name), field, None) for key, (field, _) in DEVICE.items()}
    keys = ("dtype", "kv_cache_dtype", "gpus", "gpu_memory_utilization")
    said = [f"{key}={getattr(hardware, key)}" for key in keys]
    said += [f"{key}={rate:g}" for key, rate in rates.items() if rate is not None and rate != usual[key]]
    return ",".join([f"{hardware.model.name}@{name}", *said])


def named(served: str) -> str | None:
    """The model of the catalogue that a server means by such a name as `meta-llama/Llama-3.1-8B-Instruct`, if any."""
    cached = _CACHED.search(served)
    last = cached[1] if cached else served.rstrip("/").rpartition("/")[2]
    pieces = [piece for piece in _SEPARATOR.split(last.lower().removeprefix("meta-")) if piece]
    known = {
        _tokens(name): model for name, model in [*zip(facts.models(), facts.models(), strict=True), *_ALSO.items()]
    }
    for end in range(len(pieces), 0, -1):
        model = known.get(_tokens(" ".join(pieces[:end])))
        if model is not None:
            return model if all(map(_HARMLESS.fullmatch, pieces[end:])) else None
    return None


def _tokens(name: str) -> tuple[str, ...]:
    """The same for `llama3.1 8b` and `llama-3.1-8b`."""
    return tuple(_TOKEN.findall(name))


def _without_model(text: str) -> bool:
    head = text.partition(",")[0].strip()
    return "@" not in head or head.startswith("@")


def _fitting(hardware: Hardware) -> Hardware:
    weights_gb = floors.weight_bytes(hardware.model, hardware.dtype) / 1e9
    memory_gb = hardware.gpu.memory_gb * hardware.gpus
    if weights_gb > memory_gb:
        raise ValueError(
            f"{hardware}: {weights_gb:.0f} GB of weights do not fit {memory_gb:.0f} GB of memory: "
            "give gpus=, or another dtype="
        )
    return hardware
