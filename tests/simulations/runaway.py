"""What a rule makes of a service that serves so many at once: alone, sample by sample, and in the real limiter.

`feed(rule, latency, updates)` returns the limits; `saturate(rule, ...)` sends as much as the limiter lets through and
returns time series. `PublishedGradient2` is Netflix's rule to the letter, which runs away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, final

import trio

from tests.simulations.link import Levels
from trio_orchestrator.abc import Control, Instrument, Limit, RandomSource, Sample
from trio_orchestrator.algorithms.average import Average
from trio_orchestrator.algorithms.chance import CHANCE
from trio_orchestrator.event import LimitChanged
from trio_orchestrator.policies.adaptive import AdaptiveLimiter
from trio_orchestrator.testing import run_virtual

Latency = Callable[[float, int], float]
"""`(limit, update) -> seconds`."""

CAPACITY: Final = 50


def of_capacity(limit: float, update: int) -> float:
    """Say how long a call takes, in seconds, if 50 are served at once in one second, and `limit` are in flight."""
    return max(1.0, limit / CAPACITY)


def feed(
    rule: Limit, latency: Latency, updates: int, *, dropped: Callable[[int], bool] = lambda update: False
) -> list[float]:
    """Return the limit before and after each update: one attempt after the other, each of a full house."""
    control, now = rule.control(Random(1)), 0.0
    limits = [control.limit]
    for update in range(updates):
        rtt = latency(control.limit, update)
        limits.append(control.update(Sample(now, rtt, int(control.limit), dropped(update)))[0])
        now += rtt
    return limits


@final
@dataclass(frozen=True)
class Saturation:
    """What `saturate` measured."""

    limit: Levels
    rtt: list[tuple[float, float]]
    """When a call was answered, and after how many seconds."""

    def rtt_since(self, start: float) -> float:
        """Return the mean latency of what was answered from `start` on."""
        late = [seconds for at, seconds in self.rtt if at >= start]
        return sum(late) / len(late)

    def limit_since(self, start: float) -> float:
        """Return the mean limit from `start` on."""
        self.limit.since = start
        return self.limit.mean


@final
class _Watch(Instrument):
    def __init__(self, levels: Levels) -> None:
        self.levels = levels

    def limit_changed(self, event: LimitChanged, /) -> None:
        self.levels.add(event.new)


def saturate(rule: Limit, *, capacity: int = CAPACITY, service: float = 0.1, seconds: float = 30) -> Saturation:
    """Send for so many seconds, as much as the limiter lets through, to a service that serves `capacity` at once.

    Each call is served in `service` seconds, 10 % more or less; the others queue there, first come, first served.
    """
    return run_virtual(_saturate, rule, capacity, service, seconds)


async def _saturate(rule: Limit, capacity: int, service: float, seconds: float) -> Saturation:
    servers, limit = trio.CapacityLimiter(capacity), Levels()
    limiter = AdaptiveLimiter(limit=rule, instruments=[_Watch(limit)])
    measured = Saturation(limit, [])
    limit.add(limiter.limit)

    async def client() -> None:
        while True:
            async with limiter.slot():
                start = trio.current_time()
                async with servers:
                    await trio.sleep(service * CHANCE.uniform(0.9, 1.1))  # or else they would be served in waves
                measured.rtt.append((trio.current_time(), trio.current_time() - start))

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(8 * capacity):
                nursery.start_soon(client)
    limit.add(limiter.limit)
    return measured


@final
@dataclass(frozen=True)
class PublishedGradient2(Limit):
    """Netflix's `Gradient2Limit` with its defaults: blind to drops, and its long average takes in its own queue."""

    def control(self, rng: RandomSource) -> Control:
        return _Published()


@final
class _Published(Control):
    def __init__(self) -> None:
        self.limit = 20.0
        self.long = Average(600, 10)

    def update(self, sample: Sample) -> tuple[float, str]:
        long = self.long.add(sample.rtt)
        if long / sample.rtt > 2:
            self.long.value *= 0.95
        if sample.in_flight >= self.limit / 2:
            gradient = max(0.5, min(1.0, 1.5 * long / sample.rtt))
            aim = 0.8 * self.limit + 0.2 * (gradient * self.limit + 4)
            self.limit = max(20.0, min(200.0, aim))
        return self.limit, ""
