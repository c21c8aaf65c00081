"""What the checks of a level look at, and what they find."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.efficiency import Floors
    from analysis.pace import Schedule
    from analysis.parts import Part
    from analysis.records import Bools, Ended, Header, Planned, Requests
    from analysis.server import Sample, Server
    from analysis.steady import Settled
    from analysis.window import Flow

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Finding(msgspec.Struct, frozen=True):
    code: str
    severity: Severity
    message: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one level, its transient in the warm-up. `flow` and `settled` are None where there is no window,
    `schedule` in the closed loop, `server` where its metrics were not sampled (`samples`: of the whole run), `floors`
    where the hardware is not known.
    """

    header: Header
    planned: Planned
    ended: Ended | None
    requests: Requests
    flow: Flow | None
    schedule: Schedule | None
    settled: Settled | None
    whole: Part
    samples: Sequence[Sample] = ()
    server: Server | None = None
    floors: Floors | None = None

    @property
    def sampled(self) -> Bools:
        return self.requests.measured & self.requests.ok

    @property
    def steady_schedule(self) -> bool:
        """Whether requests come at one rate throughout, by the schedule."""
        return self.planned.open_loop and not changing(self.header, self.planned)

    @property
    def cap(self) -> object:
        """--max-concurrency, as the user gave it."""
        return self.header.options.get("max_concurrency")


def changing(header: Header, planned: Planned) -> bool:
    """Whether the schedule itself asks for another rate at another time."""
    return planned.open_loop and (planned.speed is not None or (header.arrivals or "").startswith(("ramp", "trace")))


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"
