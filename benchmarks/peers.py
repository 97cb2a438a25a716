"""Children that run other libraries, and the pattern people write by hand; `peers.mjs` holds those on node."""

from __future__ import annotations

import trio

from benchmarks.contenders import contender, nothing
from benchmarks.measure import Reading


@contender
async def nursery_limiter(*, n: int, concurrency: int) -> Reading:
    """A task a job, started once a limiter lets it in."""
    limiter = trio.CapacityLimiter(concurrency)

    async def one(item: int) -> None:
        try:
            await nothing(item)
        finally:
            limiter.release_on_behalf_of(item)

    async with trio.open_nursery() as nursery:
        for i in range(n):
            await limiter.acquire_on_behalf_of(i)
            nursery.start_soon(one, i)
    return {}


@contender
async def aiometer(*, n: int, concurrency: int) -> Reading:
    """``aiometer.run_on_each``, which keeps no results."""
    from aiometer import run_on_each

    await run_on_each(nothing, range(n), max_at_once=concurrency)
    return {}
