"""What a run is to do, as the command line has understood it."""

from pathlib import Path
from typing import Any

import msgspec

from loadgen.course import Until
from loadgen.dialects import Api
from loadgen.endpoint import Access
from loadgen.exchange import Limits
from loadgen.record import Seeks
from loadgen.sse import LINE_LIMIT_BYTES
from workloads.schedule import Law
from workloads.traces import Trace
from workloads.workload import Workload


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    target: str
    concurrency: tuple[int, ...] = ()  # closed loop
    law: Law | None = None  # open loop; None: closed
    rates: tuple[float, ...] = ()  # per second; a ramp has its own
    trace: Trace | None = None  # law "trace"
    speeds: tuple[float, ...] = ()
    max_concurrency: int | None = None
    until: Until
    workload: Workload
    api: Api | None
    model: str | None
    extra: dict[str, Any]
    access: Access
    limits: Limits
    tokenizer: Path | None
    metrics: tuple[str, ...] = ()  # URLs, or `none`; none given: the target's own page
    seed: int
    max_rps: float | None = None
    workers: int = 1
    hardware: str | None = None  # as the user said it
    line_limit_bytes: int = LINE_LIMIT_BYTES
    slo: tuple[str, ...] = ()
    seeks: Seeks | None = None
    bounds: tuple[float, float] | None = None  # of a search: the loads that it may come to
    out: Path | None
    options: dict[str, Any]  # for run.json, without secrets
