"""A short form of the fuzz (`make fuzz`), and that it would notice."""

from typing import Any

import msgspec
import pytest

from loadgen.exchange import Exchange
from loadgen.record import Failure, Row
from tests import fuzz
from tests.fakes import DONE, FIN, content, one_row, serve, stream


@pytest.mark.parametrize("together", [False, True])
def test_every_stream_ends_in_one_row(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if together:
        monkeypatch.setattr("loadgen.reader.MANY", 8)
    outcomes = fuzz.fuzz(700, seed=20)
    assert outcomes.total() == 700
    kinds = {"ok", "cancelled"} | {f"failed {kind}" for kind in ("protocol", "http_status", "truncated", "empty")}
    assert {outcome for outcome, count in outcomes.items() if count > 10} >= kinds | {"failed connect"}


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
