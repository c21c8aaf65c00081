from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from analysis import parts, records
from analysis.evidence import Evidence, percent
from tests import fakes_run as fakes


@pytest.mark.parametrize(
    ("plan", "arrivals", "steady"),
    [
        ({"concurrency": 4}, None, False),
        ({"rate_per_s": 4.0}, "poisson", True),
        ({"rate_per_s": 4.0}, "gamma:2", True),
        ({"rate_per_s": 4.0}, "ramp:1..7", False),
        ({"rate_per_s": 4.0, "speed": 2.0}, "trace:a.csv", False),
        ({"speed": 2.0}, None, False),
    ],
)
def test_steady_schedule(plan: dict[str, Any], arrivals: str | None, steady: bool) -> None:
    header = msgspec.convert(fakes.header(levels=[{"level": 0} | plan], arrivals=arrivals), records.Header)
    evidence = Evidence(
        header=header,
        planned=header.planned(0),
        ended=None,
        requests=records.NO_REQUESTS,
        flow=None,
        schedule=None,
        settled=None,
        whole=parts.whole(records.NO_REQUESTS, np.empty(0), None, None, header),
    )
    assert evidence.steady_schedule is steady
    assert evidence.cap is None


def test_percent() -> None:
    assert [percent(share) for share in (0.0, 0.1234, 1.0)] == ["0 %", "12.3 %", "100 %"]
