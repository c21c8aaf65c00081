from __future__ import annotations

from typing import Any

import msgspec
import pytest

from analysis import comparable
from analysis.records import WorkloadClass
from tests import fakes_compare as fakes

RUN = fakes.run(fakes.level(), host={"cpu": "any", "cores": 2, "kernel": "6.1"}, options={"transport": "stamped"})


def changed(**changes: Any) -> Any:
    return msgspec.structs.replace(RUN, **changes)


def test_the_same_load_model_and_client_may_be_compared() -> None:
    other = changed(
        target="http://elsewhere", started_at="later", server={"version": "2"}, options=RUN.options | {"out": "x"}
    )
    assert comparable.obstacles(RUN, other) == []
    assert comparable.notes(RUN, other) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"workload": msgspec.structs.replace(RUN.workload, digest="0123456789abcdef", name="rag"), "seed": 7},
            "workload (chat, rag), digests ab12 and 0123456789ab, seeds 0 and 7: use the same workload, lengths, ",
        ),
        ({"workload": msgspec.structs.replace(RUN.workload, digest=None)}, "digests ab12 and unknown: use"),
        ({"model": "big"}, "models tiny and big: measure one model"),
        ({"api": "completions"}, "APIs chat and completions: use the same --api"),
        ({"loadgen": "0.2.0"}, "loadgen 0.1.0 (format 1) and 0.2.0 (format 1): measure both with one version"),
        ({"format": 2}, "(format 1) and 0.1.0 (format 2)"),
        ({"host": RUN.host | {"cpu": "other"}}, "client's cpu any and other: measure from one machine"),
        ({"host": RUN.host | {"cores": 64}}, "client's cores 2 and 64"),
        ({"clock": "user"}, "clocks kernel and user"),
        ({"options": {"transport": "httpx"}}, "--transport stamped and httpx: use the same --transport"),
        ({"options": RUN.options | {"max_concurrency": 9}}, "--max-concurrency None and 9"),
    ],
)
def test_obstacles(changes: dict[str, Any], says: str) -> None:
    found = comparable.obstacles(RUN, changed(**changes))
    assert len(found) == 1
    assert says in found[0]


def test_two_unknown_workloads_are_not_the_same() -> None:
    unknown = changed(workload=msgspec.structs.replace(RUN.workload, digest=None))
    assert len(comparable.obstacles(unknown, unknown)) == 1


@pytest.mark.parametrize(
    ("a", "b", "same"), [("1.2.0", "1.9.1", True), ("1.2.0", "2.0.0", False), ("0.1.0", "0.1.9", True)]
)
def test_releases(a: str, b: str, same: bool) -> None:
    pair = changed(loadgen=a), changed(loadgen=b)
    assert (comparable.obstacles(*pair) == []) is same
    assert (comparable.notes(*pair) == [f"loadgen {a} and {b}"]) is same


def test_notes() -> None:
    other = changed(host=RUN.host | {"kernel": "6.2"}, slo=("ttft p99 < 1s",))
    assert comparable.notes(RUN, other) == [
        "the client's kernel differs",
        "the SLO differs, so goodput is not compared",
    ]


def test_the_slo_of_a_class_counts() -> None:
    workload = msgspec.structs.replace(RUN.workload, classes=(WorkloadClass(slo=("ttft p99 < 1s",)),))
    assert not comparable.same_slo(
        changed(workload=workload), changed(workload=msgspec.structs.replace(workload, classes=(WorkloadClass(),)))
    )
