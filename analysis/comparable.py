"""May two runs be set beside each other? Only where the load, the model and the client were the same.

Otherwise a difference would not be the server's. What the two servers were told is what is compared, so it may differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analysis.summary import Summary

_OPTIONS = ("transport", "workers", "max_concurrency", "max_rps")
_HOST = ("cpu", "cores")
_HOST_NOTED = ("kernel", "python", "versions")


def obstacles(a: Summary, b: Summary) -> list[str]:
    """Why the two may not be compared, each with what to do; none where they may."""
    return list(_obstacles(a, b))


def notes(a: Summary, b: Summary) -> list[str]:
    """What differs too, but forbids nothing."""
    found = [f"the client's {name} differs" for name in _HOST_NOTED if a.host.get(name) != b.host.get(name)]
    if a.loadgen != b.loadgen and _release(a.loadgen) == _release(b.loadgen):
        found.append(f"loadgen {a.loadgen} and {b.loadgen}")
    if not same_slo(a, b):
        found.append("the SLO differs, so goodput is not compared")
    return found


def same_slo(a: Summary, b: Summary) -> bool:
    classes = [[one.slo or () for one in run.workload.classes] for run in (a, b)]
    return (a.slo or ()) == (b.slo or ()) and classes[0] == classes[1]


def _obstacles(a: Summary, b: Summary) -> Iterator[str]:
    digests = [(run.workload.digest or "unknown")[:12] for run in (a, b)]
    if a.workload.digest is None or a.workload.digest != b.workload.digest:
        which = f" ({a.workload.name}, {b.workload.name})" if a.workload.name != b.workload.name else ""
        seeds = f", seeds {a.seed} and {b.seed}" if a.seed != b.seed else ""
        what = f"workload{which}, digests {digests[0]} and {digests[1]}{seeds}"
        yield f"{what}: use the same workload, lengths, arrivals and --seed"
    if a.model != b.model:
        yield f"models {a.model} and {b.model}: measure one model"
    if a.api != b.api:
        yield f"APIs {a.api} and {b.api}: use the same --api"
    if _release(a.loadgen) != _release(b.loadgen) or a.format != b.format:
        what = f"loadgen {a.loadgen} (format {a.format}) and {b.loadgen} (format {b.format})"
        yield f"{what}: measure both with one version"
    for name in _HOST:
        if a.host.get(name) != b.host.get(name):
            yield f"client's {name} {a.host.get(name)} and {b.host.get(name)}: measure from one machine"
    if a.clock != b.clock:
        yield f"clocks {a.clock} and {b.clock}: measure both with the same one"
    for name in _OPTIONS:
        if a.options.get(name) != b.options.get(name):
            flag = f"--{name.replace('_', '-')}"
            yield f"{flag} {a.options.get(name)} and {b.options.get(name)}: use the same {flag}"


def _release(version: str) -> str:
    """What may change how things are measured: the major version, before 1.0 the minor one too."""
    return ".".join(version.split(".")[: 2 if version.startswith("0.") else 1])
