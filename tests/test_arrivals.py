"""Arrivals: who waits for what."""

import asyncio

import httpx
import pytest

from loadgen.arrivals import Arrivals


def nothing(_: int, __: bytes) -> None:
    pass


async def test_waiting_for_headers_ends_with_them_and_waiting_for_the_end_does_not() -> None:
    arrivals = Arrivals(nothing)
    headers = asyncio.create_task(arrivals.wait_headers())
    await asyncio.sleep(0)
    assert not headers.done()
    arrivals.headers_ns = 1
    arrivals.wake()
    await headers
    end = asyncio.create_task(arrivals.wait_end())
    await asyncio.sleep(0)
    arrivals.wake()  # for nothing
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not end.done()
    arrivals.finish(2)
    await end
    assert (arrivals.end_ns, arrivals.ended, arrivals.error) == (2, True, None)


async def test_an_end_without_headers_ends_both_waits_and_is_no_exception() -> None:
    arrivals = Arrivals(nothing)
    waits = asyncio.gather(arrivals.wait_headers(), return_exceptions=True)
    await asyncio.sleep(0)
    error = httpx.ReadError("lost")
    arrivals.finish(3, error)
    assert list(await waits) == [None]
    await arrivals.wait_end()
    assert arrivals.error is error


@pytest.mark.parametrize("waits_already", [True, False])
@pytest.mark.parametrize("wait", [Arrivals.wait_headers, Arrivals.wait_end], ids=["headers", "end"])
async def test_a_fault_of_ours_is_raised_where_the_answer_is_awaited(wait: object, waits_already: bool) -> None:
    arrivals = Arrivals(nothing)
    assert callable(wait)
    task = asyncio.ensure_future(wait(arrivals))
    if waits_already:
        await asyncio.sleep(0)
    arrivals.fault = KeyError("ours")
    arrivals.finish(4)
    with pytest.raises(KeyError, match="ours"):
        await task
