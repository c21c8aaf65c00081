"""Open files: each request in flight is one, and a process may have only so many."""

import resource

OTHER_FILES = 64  # besides one for each stream
MOST_IN_FLIGHT = 20_000  # ports for connections to one address are not many more


def make_room(streams: int, asked: str) -> None:
    """Let this process, and those it starts, have as many open files as so many streams need.

    Raises ValueError, which names what the user `asked` for, where it may not.
    """
    needed = streams + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ValueError(
            f"{asked} needs {needed} open files, and this process may have {hard}: "
            "raise the limit (ulimit -Hn), or ask for less"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def make_most_room() -> None:
    """For a load whose streams nobody knows the number of."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_IN_FLIGHT + OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room() -> int:
    """How many streams this process can have at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_IN_FLIGHT if soft == resource.RLIM_INFINITY else max(1, min(MOST_IN_FLIGHT, soft - OTHER_FILES))
