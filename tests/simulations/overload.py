"""A service that can answer so many calls a second, and a client behind a throttle that wants more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from trio_orchestrator.errors import BudgetExhaustedError
from trio_orchestrator.policies.throttle import SreThrottle
from trio_orchestrator.testing import run_virtual

TICKS = 10


@dataclass(frozen=True, slots=True)
class Second:
    """What became of the calls of one second."""

    offered: int
    forwarded: int
    """How many the throttle let through."""
    accepted: int
    """How many of those the service answered."""


def overload(
    throttle: SreThrottle, *, seconds: int, offered: int, capacity: Callable[[int], int], seed: int = 0
) -> list[Second]:
    """Offer so many calls a second, in ten parts; of each second's, the service answers the first `capacity(second)`.

    Each element of what is returned is one second.
    """
    line: list[Second] = []

    async def main() -> None:
        for second in range(seconds):
            line.append(await _second(throttle, offered, capacity(second)))

    run_virtual(main, seed=seed)
    return line


async def _second(throttle: SreThrottle, offered: int, capacity: int) -> Second:
    forwarded = 0

    async def service() -> None:
        nonlocal forwarded
        forwarded += 1
        if forwarded > capacity:
            raise OSError

    for _ in range(TICKS):
        for _ in range(offered // TICKS):
            try:
                await throttle.call(service)
            except (BudgetExhaustedError, OSError):
                pass
        await trio.sleep(1 / TICKS)
    return Second(offered, forwarded, min(forwarded, capacity))
