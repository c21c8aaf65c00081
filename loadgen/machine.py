"""On what the target runs, as far as the user, the spec of an embedded engine or the server's card says so."""

import contextlib
from typing import Any

import msgspec

from analysis import hardware_words
from analysis.hardware import Hardware
from loadgen.preflight import Server
from loadgen.settings import Settings
from loadgen.sim import spec


def known(settings: Settings, server: Server) -> dict[str, Any] | None:
    """For run.json, whole. Raises ValueError where the user's words need a model that the server's do not tell."""
    found = _known(settings, server)
    return None if found is None else msgspec.to_builtins(found)


def _known(settings: Settings, server: Server) -> Hardware | None:
    if settings.hardware is not None:
        try:
            return hardware_words.said(settings.hardware, server.dialect.model)
        except ValueError as error:
            raise ValueError(f"--hardware {error}") from None
    if settings.target.startswith("sim:"):
        return spec.parse(settings.target.removeprefix("sim:")).hardware
    card = server.facts.get("hardware")
    if card is not None:
        with contextlib.suppress(ValueError):  # a server may say anything
            return hardware_words.said(card, server.dialect.model)
    return None
