"""A short form of the fuzz (`make fuzz`), and that it would notice."""

from typing import Any

import msgspec
import pytest

from loadgen.exchange import Exchange
from loadgen.reader import MANY, Reader
from loadgen.record import Failure, Row
from tests import fuzz
from tests.fakes import DONE, FIN, content, one_row, serve, stream


@pytest.mark.parametrize(("sockets", "behind"), fuzz.WAYS)
def test_every_stream_ends_in_one_row(sockets: int, behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    most_sockets = most_untaken = 0
    plan = Reader._plan

    def noted(reader: Reader, found: int) -> None:
        nonlocal most_sockets, most_untaken
        most_sockets = max(most_sockets, len(reader._sources))
        most_untaken = max(most_untaken, len(reader._untaken))
        plan(reader, found)

    monkeypatch.setattr(Reader, "_plan", noted)
    outcomes = fuzz.fuzz(600, seed=20, sockets=sockets, behind=behind)
    assert outcomes.total() == 600
    assert len(outcomes) > 5  # which, and how many of each, is up to timing too
    assert outcomes["ok"] > 0
    assert (most_sockets >= MANY) is (sockets >= MANY)
    assert most_untaken > 16 or not behind


def test_what_the_server_does_follows_from_the_seed() -> None:
    answers = [fuzz.answer_of(seed=3, index=index) for index in range(200)]
    assert answers == [fuzz.answer_of(seed=3, index=index) for index in range(200)]
    assert len(set(answers)) > 190
    assert answers != [fuzz.answer_of(seed=4, index=index) for index in range(200)]


async def test_a_whole_row_has_no_fault() -> None:
    async with serve(stream(content("a"), content("b"), FIN, DONE)) as server:
        assert fuzz.fault(await one_row(server.url)) == ""


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"status": "lost"}, "status"),
        ({"error": Failure("empty", "no")}, "failure without error"),
        ({"status": "failed", "error": None}, "failure without error"),
        ({"status": "failed", "error": Failure("client", "a bug")}, "kind"),
        ({"status": "failed", "error": Failure("other", "no")}, "kind"),  # type: ignore[arg-type]
        ({"status": "failed", "error": Failure("empty", "\x1b[31m")}, "message"),
        ({"events_us": [], "bounds": 0}, "ok without an answer"),
        ({"retries": 2}, "counts"),
        ({"bounds": 3}, "counts"),
        ({"headers_us": -1}, "times"),
        ({"events_us": [9, 8]}, "times"),
        ({"answer_event": 2}, "not a row"),
    ],
)
async def test_a_row_that_cannot_be_is_a_fault(changes: dict[str, Any], says: str) -> None:
    async with serve(stream(content("a"), content("b"), FIN, DONE)) as server:
        row = await one_row(server.url)
    assert says in fuzz.fault(msgspec.structs.replace(row, **changes))


@pytest.mark.parametrize(("at", "faults"), [({}, 0), ({0: 31}, 0), ({0: 10}, 1), ({1: 10}, 0)])
async def test_a_time_limit_long_after_the_server_hung_up_is_a_fault(at: dict[int, int], faults: int) -> None:
    async with serve(stream(content("a"), FIN, DONE)) as server:
        row = await one_row(server.url)
    hang_ups = fuzz.HangUps()
    hang_ups.ticks, hang_ups.at = 50, at
    ended = fuzz._Ended(range(1), hang_ups)
    ended.emit(msgspec.structs.replace(row, status="failed", error=Failure("timeout_first", "no")))
    assert len(ended.faults) == faults


def test_a_row_that_is_lost_or_doubled_fails_the_fuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Exchange._row

    def emitted(self: Exchange) -> Row:
        row = real(self)
        if row.index == 5:
            self._wire.emit(row)
        return row

    monkeypatch.setattr(Exchange, "_row", emitted)
    with pytest.raises(fuzz.FuzzError, match="stream 5 has 2 rows"):
        fuzz.fuzz(10, seed=1)


def test_an_exception_fails_the_fuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Exchange, "run", broken)
    with pytest.raises(fuzz.FuzzError, match="raised RuntimeError"):
        fuzz.fuzz(10, seed=1)
