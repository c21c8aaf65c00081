"""What the prompts of a level have in common by plan: turns of a conversation, prefixes of a group, repeated items.

A server with a prefix cache need not compute that again, and that is right. What it had cached beyond is a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from analysis.records import Bools, Floats, Header, Ints, Requests

BLOCK_TOKENS = 16  # vLLM caches whole blocks of so many tokens
COMMON_TOKENS = 64  # of a chat template whose size is not known: no more than that


def conversations(requests: Requests) -> bool:
    return bool((requests.turn > 0).any())


def previous_turn(requests: Requests) -> Ints:
    """The place of each row's previous turn in the columns; -1 for a first turn, and where that row is missing."""
    before = np.arange(-1, len(requests.index) - 1, dtype=np.int64)
    follows = np.zeros(len(before), np.bool_)
    follows[1:] = (np.diff(requests.session) == 0) & (np.diff(requests.turn) == 1)
    return np.where(follows, before, -1)


def think_us(requests: Requests) -> Floats:
    """From the end of the turn before to when this one was due; NaN for a first turn."""
    before = previous_turn(requests)
    ended_us = (requests.sent_us + requests.end_us)[before] if len(before) else np.empty(0)
    return np.where(before >= 0, requests.due_us - ended_us, np.nan)


def repeated(requests: Requests) -> Bools:
    """Whether the same prompt, by its place in the data set, came earlier in this level, the warm-up included.

    Generated prompts have no such place: they are never twice alike.
    """
    known = np.flatnonzero(~np.isnan(requests.item))
    again = ~np.isnan(requests.item)
    again[_firsts(requests, known, requests.item, requests.turn)] = False
    return again


def distinct(requests: Requests) -> int:
    """How many different prompts the measured requests had."""
    known = requests.measured & ~np.isnan(requests.item)
    items = _firsts(requests, np.flatnonzero(known), requests.item, requests.turn)
    return len(items) + int((requests.measured & ~known).sum())


def common_tokens(header: Header) -> float | None:
    """What all prompts of a run begin with, at most: the chat template and one opening word; None if never counted."""
    template = header.server.get("template_tokens")
    if template is None and header.api != "completions":
        return None
    opening = 0 if header.server.get("prompt_as") == "token ids" else 1
    return float(template or 0) + opening


def cacheable_tokens(requests: Requests, common: float, block_tokens: int = 1) -> Floats:
    """Prompt tokens that the server can have cached, at most: those it has read in this level, in whole blocks.

    Every prompt begins with the same `common` tokens. A member of a group has the shared prefix after them (not the
    first one; of several first ones at a time all may miss), a later turn all that was said before, a repeated prompt
    everything. NaN where a later turn's history is not known.
    """
    shared = np.where(_first_of_group(requests), 0.0, requests.shared_tokens)
    most = common + shared
    before = previous_turn(requests)
    if len(before):
        history = (requests.prompt_tokens + requests.output_tokens)[before]
        most = np.where(before >= 0, history, most)
    most = np.where((requests.turn > 0) & (before < 0), np.nan, most)
    most = np.where(repeated(requests), requests.prompt_tokens, most)
    cacheable: Floats = np.minimum(most, requests.prompt_tokens) // block_tokens * block_tokens
    return cacheable


def _first_of_group(requests: Requests) -> Bools:
    """The first request sent of each group; a request without a group is none."""
    known = np.flatnonzero(~np.isnan(requests.group))
    known = known[np.argsort(requests.sent_us[known], kind="stable")]
    result = np.zeros(len(requests.group), np.bool_)
    result[_firsts(requests, known, requests.group)] = True
    return result


def _firsts(requests: Requests, rows: Ints, *columns: Floats) -> Ints:
    """Of `rows`, in their order, those whose values in the columns no earlier row of their class has.

    Each class has data sets and groups of its own.
    """
    _, classes = np.unique(requests.class_name[rows], return_inverse=True)
    keys = np.column_stack((classes, *(column[rows] for column in columns)))
    _, first = np.unique(keys, axis=0, return_index=True)
    return rows[first]
