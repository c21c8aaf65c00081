"""Whether the number of requests in flight grows without end: the server does not keep up with the rate.

A server that fills up, or one near its limit on a bad day, grows too. So over the last two thirds of the level so far
all three must hold, and go on holding while the level becomes a quarter longer:

growth     more have come than have ended, by a tenth of those who came and by more than chance: near its limit a server
           leaves a random walk, whose variance is that of the arrivals and of the services together
service    of those who came then, fewer have ended than of the first ones in the same time; where requests are only
           long, and the level young, it is as many
no relief  the more are in flight, the longer each stays, at least in proportion to the rate (Little's law); where each
           step of the engine is only longer for more requests, the number settles

Simulated with looks once a second, see tests/bench/growth.py: levels stopped without need, queues of 1 to 32 slots with
exponential lengths at 0.8 to 0.95 of the capacity for 60 to 300 s, at most 0.4 %; filling up, none; an engine that is
ten times slower when full, up to 10 %.
"""

import itertools
import math
from collections.abc import Sequence

SHARE = 0.1  # of those who come
SIGMAS = 2.5  # of the random walk
SERVICE_SIGMAS = 3.5  # of the difference of two shares
LONGER = 1.25  # than the level was when it began to hold
FIRST_LOOK = 6


class Growth:
    """Counts who comes and goes. `dispersion` is the variance of the number of arrivals in a long time over its mean;
    None: the rate changes as planned, and nothing is said about growth."""

    def __init__(self, dispersion: float | None) -> None:
        self._dispersion = dispersion
        self._come = 0
        self._started = [0]
        self._in_flight = [0]
        self._left = [0]  # of those who came between two looks
        self._since: int | None = None

    def came(self) -> int:
        """What `gone` wants to know when it has ended."""
        self._come += 1
        self._left[-1] += 1
        return len(self._left) - 1

    def gone(self, came: int) -> None:
        self._left[came] -= 1

    def look(self) -> bool:
        """Whether it grows without end. To be called once a second."""
        if self._dispersion is None:
            return False
        self._started.append(self._come)
        self._in_flight.append(sum(self._left))
        late = sum(self._left[len(self._left) // 3 :])
        look = len(self._left)
        self._left.append(0)
        if not grows(self._started, self._in_flight, late, self._dispersion):
            self._since = None
            return False
        self._since = self._since or look
        return look >= LONGER * self._since


def grows(started: Sequence[int], in_flight: Sequence[int], late: int, dispersion: float) -> bool:
    """Of looks at even times from the beginning: how many had started, and were in flight; of those who started since
    a third of the time, `late` are in flight at the last look."""
    last = len(started) - 1
    if last < FIRST_LOOK:
        return False
    third, middle = last // 3, (last // 3 + last) // 2
    came, more = started[last] - started[third], in_flight[last] - in_flight[third]
    if more <= max(SHARE * came, SIGMAS * math.sqrt((1 + dispersion) * came)):
        return False
    same = last - third  # looks from the beginning: as long as from `third` to the last
    if not _fewer(came - late, came, started[same] - in_flight[same], started[same]):
        return False
    (n_before, ended_before), (n_after, ended_after) = (
        (_mean(in_flight[a : b + 1]), (started[b] - started[a] - in_flight[b] + in_flight[a]) / (b - a))
        for a, b in ((third, middle), (middle, last))
    )
    if not ended_before:
        return False
    stays_longer = n_after / ended_after - n_before / ended_before if ended_after else math.inf
    return stays_longer > (n_after - n_before) * same / came


def _fewer(ended: int, of: int, ended_first: int, of_first: int) -> bool:
    if not of or not of_first:
        return False
    share = (ended + ended_first) / (of + of_first)
    return ended_first / of_first - ended / of > SERVICE_SIGMAS * math.sqrt(
        share * (1 - share) * (1 / of + 1 / of_first)
    )


def _mean(looks: Sequence[int]) -> float:
    """Over the time between them."""
    return sum((a + b) / 2 for a, b in itertools.pairwise(looks)) / (len(looks) - 1)
