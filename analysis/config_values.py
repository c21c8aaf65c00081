"""Values of a model's `config.json`, an untrusted file: each is checked where it is read. Null is as good as absent.

All raise ValueError, one line.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]

MAX_LAYERS = 4096
BY_HAND = "describe the model by hand (--params 7b)"
_MAX = 1 << 30


def whole(config: Config, *keys: str, default: int | None = None, low: int = 1, high: int = _MAX) -> int:
    """The first of the keys that has a value. Raises ValueError where none has, or it is no whole number in range."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if type(value) is not int or not low <= value <= high:  # not bool either
            raise ValueError(f"{key} = {shown(value)}: expected a whole number from {low} to {high}")
        return value
    if default is None:
        raise ValueError(f"no {keys[0]}: {BY_HAND}")
    return default


def optional(config: Config, key: str) -> int | None:
    return None if config.get(key) is None else whole(config, key)


def flag(config: Config, key: str, *, default: bool = False) -> bool:
    value = config.get(key)
    if value is not None and type(value) is not bool:
        raise ValueError(f"{key} = {shown(value)}: expected true or false")
    return default if value is None else value


def indices(config: Config, key: str) -> list[int] | None:
    values = config.get(key)
    if values is None:
        return None
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= MAX_LAYERS for value in values):
        raise ValueError(f"{key} = {shown(values)}: expected a list of whole numbers up to {MAX_LAYERS}")
    return values


def shown(value: object) -> str:
    """A value of an untrusted file as one short line."""
    if type(value) is int and abs(value) >= 10**15:
        return "a huge number"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
