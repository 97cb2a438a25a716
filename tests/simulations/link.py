"""A link to a service, after Vector's: its delay depends on how much is in flight, and on how many come a second."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, final

import trio

from trio_orchestrator.algorithms.chance import CHANCE

TIMER: Final = 0.001
"""Tokio's timer is that late, on the clock of Vector's tests as well."""


class DeferredError(Exception):
    """The service said: not now."""


@final
@dataclass(frozen=True)
class Load:
    """What a level (calls in flight, or calls a second) does to the delay, and above which one a call is turned down.

    The delay grows by `scale` with each call after the first, and from `knee` on by a power of `power`.
    """

    scale: float = 0.0
    knee: float = math.inf
    power: float = 1.0
    limit: float = math.inf
    action: Literal["defer", "drop"] = "defer"

    def slower(self, level: int) -> float:
        bent = self.power ** max(0.0, level - self.knee) - 1 if self.knee < math.inf else 0.0
        return (level - 1) * self.scale + bent


NO_LOAD: Final = Load()


@final
class Levels:
    """How something that comes in steps was spread over time."""

    def __init__(self, *, backward: bool = False) -> None:
        self.points: list[tuple[float, float]] = []
        """From when on it was what, in order; `backward`: what it was until then."""
        self.backward = backward
        self.since = 0.0
        """What was before is not counted."""

    def add(self, value: float) -> None:
        self.points.append((trio.current_time(), value))

    def shares(self) -> dict[float, float]:
        """Return for how many seconds it was what, up to the last point."""
        seconds: dict[float, float] = {}
        for (start, before), (end, after) in zip(self.points, self.points[1:], strict=False):
            if (span := end - max(start, self.since)) > 0:
                value = after if self.backward else before
                seconds[value] = seconds.get(value, 0.0) + span
        return seconds

    @property
    def max(self) -> float:
        return max(self.shares())

    @property
    def mean(self) -> float:
        shares = self.shares()
        return sum(value * seconds for value, seconds in shares.items()) / sum(shares.values())

    @property
    def mode(self) -> float:
        shares = self.shares()
        return max(shares, key=lambda value: shares[value])


@final
@dataclass
class Link:
    """`await link()` takes `delay * (1 + in flight + rate + jitter * Exp(1))` seconds.

    What is deferred fails after one `delay`; what is dropped never ends, and the service knows nothing of it.
    """

    delay: float
    jitter: float = 0.0
    in_flight: Load = field(default_factory=Load)
    rate: Load = field(default_factory=Load)

    def __post_init__(self) -> None:
        self.running = Levels()
        self.arriving = Levels(backward=True)
        self.rtt: list[tuple[float, float]] = []
        """When a call was answered, and after how many seconds."""
        self._now = 0
        self._recent: deque[float] = deque()

    async def __call__(self) -> None:
        self._arrive()
        level, rate = self._now, len(self._recent)
        action = _action(self.in_flight, level) or _action(self.rate, rate)
        if action == "drop":
            self._leave()
            await trio.sleep_forever()
        slower = 0.0 if action else self.in_flight.slower(level) + self.rate.slower(rate)
        try:
            await self._answer(self.delay * (1 + slower + self.jitter * -math.log(1 - CHANCE.random())), action)
        finally:
            self._leave()

    async def _answer(self, seconds: float, action: str | None) -> None:
        await trio.sleep(seconds + TIMER)
        if action:
            raise DeferredError
        self.rtt.append((trio.current_time(), seconds + TIMER))

    def _arrive(self) -> None:
        self._count(1)
        self._recent.append(trio.current_time())
        self.arriving.add(len(self._recent))

    def _leave(self) -> None:
        self._count(-1)
        self.arriving.add(len(self._recent))

    def _count(self, step: int) -> None:
        self._now += step
        self.running.add(self._now)
        while self._recent and self._recent[0] <= trio.current_time() - 1:
            self._recent.popleft()


def _action(load: Load, level: int) -> str | None:
    return load.action if level > load.limit else None
