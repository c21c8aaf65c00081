"""How far a level has come: when it ends, and which requests of it are warm-up."""

from collections.abc import Callable

import msgspec

from loadgen.record import EndedBy, LevelPlan, Phase

HOPELESS_FAILURES = 20  # so many requests, and as many as `Course` says, have failed and none succeeded: give up


class Until(msgspec.Struct, frozen=True):
    """When a level stops starting requests.

    At `requests` measured ones or after `duration_s` of measuring, whichever comes first; but not before every slot
    could have had `per_slot` of them.
    """

    requests: int | None = None
    duration_s: float | None = None
    per_slot: int = 0
    errors: int | None = None  # so many failed requests end it, whatever else
    enough: bool = False  # as soon as its sample suffices, see loadgen/enough.py


def until_of(plan: LevelPlan, until: Until) -> Until:
    """When this level ends: its own numbers, if it has any, take the place of the run's."""
    if plan.requests is None and plan.duration_s is None:
        return until
    return Until(requests=plan.requests, duration_s=plan.duration_s, errors=until.errors)


class Share(msgspec.Struct, frozen=True):
    """Which of the slots, and of the requests of the plan, are this process': each `workers`-th from `worker` on."""

    worker: int = 0
    workers: int = 1

    def count(self, total: int) -> int:
        """How many of `total` things in a row are its own."""
        return len(range(self.worker, total, self.workers))


WHOLE = Share()
DEFAULT_UNTIL = Until(duration_s=30.0, per_slot=10)


class Course:
    """Of a closed loop with so many `slots`, or of an open loop at `rate_per_s`.

    It is hopeless where each slot's requests have failed twice, or all of two seconds. `on_end` is told why it ends.
    """

    def __init__(
        self,
        until: Until,
        *,
        slots: int = 0,
        rate_per_s: float = 0.0,
        on_end: Callable[[EndedBy], None] = lambda _: None,
    ) -> None:
        self._on_end = on_end
        self._until = until
        self._slots = slots
        self._hopeless = max(HOPELESS_FAILURES, 2 * slots, 2 * rate_per_s)
        self._slots_started = 0
        self._measured = 0
        self._measuring_since_ns: int | None = None
        self.measure_from_ns = 0  # not before: slots of other processes may still have to start
        self._failed = 0
        self._any_ok = False
        self.ended_by: EndedBy | None = None

    def begin_slot(self) -> Phase | None:
        self._slots_started += 1
        return "warmup" if self.ended_by is None else None

    def next_phase(self, now_ns: int) -> Phase | None:
        """The phase of a slot's further request that starts now; None when no more are to start."""
        early = self._slots_started < self._slots or now_ns < self.measure_from_ns
        phase: Phase = "warmup" if early else "measure"
        return phase if self.start(phase, now_ns) else None

    def start(self, phase: Phase, now_ns: int) -> bool:
        """Whether a request of this phase may start now; if so, it counts."""
        if phase == "measure" and self._measuring_since_ns is None:
            self._measuring_since_ns = now_ns
        self.look(now_ns)
        if self.ended_by is not None:
            return False
        self._measured += phase == "measure"
        return True

    def look(self, now_ns: int) -> None:
        """End the level where it has come to its end."""
        until, since_ns = self._until, self._measuring_since_ns
        if since_ns is None or self._measured < until.per_slot * self._slots:
            return
        if until.requests is not None and self._measured >= until.requests:
            self.end("requests")
        elif until.duration_s is not None and now_ns - since_ns >= until.duration_s * 1e9:
            self.end("duration")

    def end(self, by: EndedBy) -> None:
        if self.ended_by is None:
            self.ended_by = by
            self._on_end(by)

    def finished(self, ok: bool) -> None:
        """A request of the level has become a row."""
        self._any_ok = self._any_ok or ok
        self._failed += not ok
        hopeless = not self._any_ok and self._failed >= self._hopeless
        too_many = self._until.errors is not None and self._failed >= self._until.errors
        if hopeless or too_many:
            self.end("errors")
