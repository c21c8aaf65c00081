"""What a diagnosis is, and where the time of a mean request goes, on which all of them rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from analysis import metrics
from analysis.streams import Streams, streams

if TYPE_CHECKING:
    from analysis.evidence import Evidence

Code = Literal[
    "client", "network", "queueing", "kv-limited", "overhead-bound", "prefill-steals-decode", "prefill-bound",
    "decode-bound", "unknown",
]  # fmt: skip
LONE = 1.5  # requests in flight on average, up to which one hardly meets another
PREFILL_ALONE = 0.2  # of a request that has the server for itself: five streams share a step, and no prompt of theirs
PREFILL_BUSY = 0.5  # of the server's time: the larger part
PREFILL_FULL = 0.75  # of the server's time: the rest at no cost would make it a third faster
PREFILL_LOAD = 0.25  # of the time, at the floor: the larger part where half of the compute is used, as good kernels do
SLIGHT = 0.1  # of the time, at the floor: prompts that do not lengthen a step by much, though each step reads one


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`words` say what is slow and why, `evidence` the numbers, `lever` what would change it and what would not."""

    code: Code
    words: str
    evidence: str
    lever: str


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Of a mean request, in ms from sent. None where nothing tells.

    way        between the client's TTFT and the server's own
    queue      in the server's queue, by its own count
    lone       requests hardly meet each other
    in_flight  requests, time average
    load       the share of the time that reading the prompts would take at the floor, beyond decode steps
    """

    e2e: float
    ttft: float
    way: float | None
    queue: float | None
    lone: bool
    in_flight: float | None
    load: float | None
    streams: Streams | None

    @property
    def decode(self) -> float:
        return self.e2e - self.ttft

    @property
    def decode_share(self) -> float:
        return self.decode / self.e2e

    @property
    def blurred(self) -> bool:
        """Nearly each step reads a prompt, or a chunk of one: then no step is known that does not. Chunks are seen by
        their floor alone, where prompts must have taken more of the time than the longer steps."""
        if self.streams is None or self.load is None:
            return self.streams is not None and self.streams.crowded
        return self.load >= SLIGHT and (self.streams.crowded or self.load > self.streams.prompt_share)

    @property
    def own_share(self) -> float | None:
        """What the prompt takes of a request that would have the server for itself.

        Of a lone request, or one without decode whose queue is known, its TTFT without the way, the queue and a step;
        else what prompts cost the others.
        """
        step = self.streams.step_ms if self.streams is not None else 0.0
        if self.lone or (self.streams is None and self.queue is not None):
            return max(0.0, self.ttft - step - (self.way or 0.0) - (self.queue or 0.0)) / self.e2e
        if self.streams is None or self.streams.prompt_ms is None or self.blurred:
            return None
        own = max(0.0, self.decode - self.streams.stolen_ms - self.streams.aside_ms)
        return self.streams.prompt_ms / max(self.streams.prompt_ms + own, step)

    @property
    def prompt_heavy(self) -> bool:
        """Whether prompts are what costs the server its time: of this workload at any load, or at this load."""
        if (self.own_share or 0.0) >= PREFILL_ALONE:
            return True
        if self.lone:
            return False
        if self.streams is None or self.blurred:
            return self.load is not None and self.load >= PREFILL_LOAD
        return self.streams.prompt_share >= PREFILL_BUSY

    @property
    def prompts_fill(self) -> bool:
        """Whether they take so much of the server's time that a larger batch of answers would gain little."""
        if self.lone or self.streams is None or self.blurred:
            return self.prompt_heavy
        return self.streams.prompt_share >= PREFILL_FULL


def times(evidence: Evidence) -> Times | None:
    """None where no request succeeded."""
    requests, server, flow = evidence.requests, evidence.server, evidence.flow
    e2e = metrics.known_mean(metrics.e2e_sent_ms(requests)[evidence.sampled])
    ttft = metrics.known_mean(metrics.ttft_sent_ms(requests)[evidence.sampled])
    if not e2e or ttft is None:
        return None
    way = queue = None
    if server is not None:
        queue = server.queue_ms
        if server.ttft_ms is not None and server.client_ttft_ms is not None:
            way = server.client_ttft_ms - server.ttft_ms
        if queue is None and server.waiting is not None and flow is not None and flow.requests_per_s:
            queue = 1e3 * server.waiting.mean / flow.requests_per_s  # Little's law
    in_flight = None if flow is None else flow.concurrency
    return Times(
        e2e=e2e,
        ttft=ttft,
        way=way,
        queue=queue,
        lone=evidence.planned.concurrency == 1 or (in_flight is not None and in_flight <= LONE),
        in_flight=in_flight,
        load=_load(evidence),
        streams=streams(requests, None if evidence.settled is None else evidence.settled.window),
    )


def _load(evidence: Evidence) -> float | None:
    held, flow = evidence.floors, evidence.flow
    if held is None or flow is None or held.ttft_floor_ms is None:
        return None
    if max(held.itl_efficiency or 0.0, held.ttft_efficiency or 0.0) > 1:
        return None  # the floors are of something else
    return flow.requests_per_s * max(0.0, held.ttft_floor_ms - (held.itl_floor_ms or 0.0)) / 1e3


PLACES = "Raise max_num_seqs (`loadgen tune` finds the best), or add a replica."
PLACES_UNLESS = f"{PLACES} --metrics or --hardware tells whether the KV cache is full: then raising it does nothing."


def places(count: float, unless: str) -> str:
    """What a queue for a place is; `unless` it is something else."""
    return f"Requests wait for a place: the server runs about {count:.0f} at once and lets no more in{unless}."


def ms(value: float) -> str:
    return f"{value:.0f} ms" if value >= 999.5 else f"{value:.3g} ms"


def share(value: float) -> str:
    return f"{100 * value:.0f} %"
