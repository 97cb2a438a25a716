"""What a soak of the Redis client counts, what it promises, and what all soaks need."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, final

import trio

from benchmarks.redis_load import KEYS, KNOWN, VALUES, Tally
from trio_orchestrator.redis import Redis

GRACE: Final = 10.0
"""Seconds after which what should have ended hangs."""
AFTERWARDS: Final = 2000
"""Plain calls after the trouble, all of which must be right."""


@final
@dataclass(frozen=True, slots=True)
class Promise:
    """What was counted, and the bounds that were promised for it."""

    soak: str
    what: str
    value: float
    least: float = 0.0
    most: float = math.inf
    why: str = ""
    """Said if it is broken."""

    @property
    def kept(self) -> bool:
        """Whether it is within its bounds."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        low = f">= {self.least:g}" if self.least else ""
        high = f"<= {self.most:g}" if self.most < math.inf else ""
        bounds = f"{low} {high}".strip()
        verdict = "" if not bounds else "ok" if self.kept else f"BROKEN {self.why}"
        return f"{self.soak:12}{self.what:38}{self.value:>12.7g}  {bounds:12}{verdict}".rstrip()


async def in_time(seconds: float, fn: Callable[[], Awaitable[Any]]) -> bool:
    """Run what should end after so many seconds; return whether it did, with some grace."""
    with trio.move_on_after(seconds + GRACE) as scope:
        await fn()
    return not scope.cancelled_caught


async def until(condition: Callable[[], bool]) -> None:
    """Look every millisecond, until a condition holds; raise if that takes longer than `GRACE`."""
    with trio.fail_after(GRACE):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await trio.sleep(0.001)


async def every_task(tasks: int, seconds: float, act: Callable[[int], Awaitable[None]]) -> int:
    """Act in many tasks, again and again for so many seconds; return how many hung."""
    until, left = trio.current_time() + seconds, tasks

    async def task(n: int) -> None:
        nonlocal left
        while trio.current_time() < until:
            await act(n)
        left -= 1

    async def load() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(tasks):
                nursery.start_soon(task, n)

    await in_time(seconds, load)
    return left


async def get_known(redis: Redis, tally: Tally, which: int) -> None:
    """Get a known key, and count how that ended."""
    try:
        answer = await redis.get(KEYS[which])
    except Exception as error:
        tally.fail(error)
    else:
        tally.take(answer, VALUES[which])


async def afterwards(name: str, redis: Redis) -> list[Promise]:
    """Return what must hold when the trouble is over: plain calls are right, and nothing is left on the link."""
    tally = Tally()
    for n in range(AFTERWARDS):
        await get_known(redis, tally, n % KNOWN)
    left = redis.statistics()
    return [
        Promise(name, "right afterwards", tally.answered, least=AFTERWARDS),
        Promise(name, "left on the link", left.in_flight + left.queued + left.waiting, most=0),
    ]
