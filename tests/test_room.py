"""Open files: how many are asked for, and how many streams that makes."""

import resource

import pytest

from loadgen import room
from loadgen.room import MOST_IN_FLIGHT, OTHER_FILES

UNLIMITED = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the process may have, last; each setting adds to it."""
    found = [(1024, 5000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: found[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, asked: found.append(asked))
    return found


def test_as_much_room_is_made_as_is_needed(limits: list[tuple[int, int]]) -> None:
    room.make_room(900, "--concurrency 900")
    assert limits == [(1024, 5000)]
    room.make_room(2000, "--concurrency 2000")
    assert limits[-1] == (2000 + OTHER_FILES, 5000)
    assert room.room() == 2000


def test_more_than_is_allowed_is_refused_with_what_was_asked(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(
        ValueError, match=r"^--max-concurrency 6000 needs 6064 open files, and this process may have 5000"
    ):
        room.make_room(6000, "--max-concurrency 6000")
    assert len(limits) == 1


@pytest.mark.parametrize(
    ("had", "made", "streams"),
    [
        ((1024, 5000), (5000, 5000), 5000 - OTHER_FILES),
        ((1024, 10**6), (MOST_IN_FLIGHT + OTHER_FILES, 10**6), MOST_IN_FLIGHT),
        ((1024, UNLIMITED), (MOST_IN_FLIGHT + OTHER_FILES, UNLIMITED), MOST_IN_FLIGHT),
        ((10**6, 10**6), (10**6, 10**6), MOST_IN_FLIGHT),
        ((UNLIMITED, UNLIMITED), (UNLIMITED, UNLIMITED), MOST_IN_FLIGHT),
        ((40, 40), (40, 40), 1),
    ],
)
def test_an_open_loop_takes_all_it_may_up_to_what_one_address_takes(
    had: tuple[int, int], made: tuple[int, int], streams: int, limits: list[tuple[int, int]]
) -> None:
    limits.append(had)
    room.make_most_room()
    assert (limits[-1], room.room()) == (made, streams)
