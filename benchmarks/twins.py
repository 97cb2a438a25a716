"""What a good programmer writes by hand in place of a policy, with nothing but its state, and the peers."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

Work = Callable[[], Awaitable[object]]

PLENTY = 10**9
"""A rate that never refuses."""


async def succeed() -> int:
    """Do the trivial work."""
    return 1


class Refused(Exception):  # noqa: N818 - named as what happens
    """A twin refuses."""


class HandWrittenBreaker:
    """Ten buckets of a second, and when it may be tried again."""

    __slots__ = ("bad", "good", "open_until", "second")

    def __init__(self) -> None:
        self.good, self.bad = [0] * 10, [0] * 10
        self.second, self.open_until = 0, 0.0

    async def call(self, fn: Work) -> object:
        """Call, and count how it ended."""
        if self.open_until and time.monotonic() < self.open_until:
            raise Refused
        try:
            result = await fn()
        except Exception:
            self._count(self.bad)
            raise
        self._count(self.good)
        return result

    def _count(self, buckets: list[int]) -> None:
        now = int(time.monotonic())
        if now != self.second:
            for second in range(max(self.second + 1, now - 9), now + 1):
                self.good[second % 10] = self.bad[second % 10] = 0
            self.second = now
        buckets[now % 10] += 1


class HandWrittenGcra:
    """One float of state."""

    __slots__ = ("due", "period", "tolerance")

    def __init__(self, rate: float, burst: float) -> None:
        self.period, self.tolerance, self.due = 1 / rate, (burst - 1) / rate, 0.0

    def try_acquire(self) -> bool:
        """Take a start now, or not."""
        now = time.monotonic()
        due = max(now, self.due)
        if due - now > self.tolerance:
            return False
        self.due = due + self.period
        return True

    async def acquire(self) -> None:
        """Wait for a start, with a checkpoint."""
        await trio.lowlevel.checkpoint()
        now = time.monotonic()
        due = max(now, self.due)
        self.due = due + self.period
        if due - now > self.tolerance:
            await trio.sleep(due - now - self.tolerance)


# ----------------------------------------------------------------------------------------------------- peers


def _package(name: str) -> Any:
    return importlib.import_module(name)


async def purgatory() -> Work:
    """Return a call through purgatory's breaker, taken once and entered each time."""
    breaker = await _package("purgatory").AsyncCircuitBreakerFactory().get_breaker("x")

    async def call() -> object:
        async with breaker:
            return await succeed()

    return call


async def aiobreaker() -> Work:
    """Return a call through aiobreaker."""
    breaker = _package("aiobreaker").CircuitBreaker()

    async def call() -> object:
        result: object = await breaker.call_async(succeed)
        return result

    return call


async def pybreaker() -> Work:
    """Return a call inside pybreaker's context manager."""
    breaker = _package("pybreaker").CircuitBreaker()

    async def call() -> object:
        with breaker.calling():
            return await succeed()

    return call


def limits() -> Callable[[], object]:
    """Return a try at the moving window of `limits`, in memory."""
    package, storage = _package("limits"), _package("limits.storage").MemoryStorage()
    window = _package("limits.strategies").MovingWindowRateLimiter(storage)
    item = package.RateLimitItemPerSecond(PLENTY)
    return lambda: window.hit(item, "k")


def pyrate() -> Callable[[], object]:
    """Return a try at pyrate-limiter."""
    package = _package("pyrate_limiter")
    limiter = package.Limiter(package.Rate(PLENTY, 1000))
    return lambda: limiter.try_acquire("k", blocking=False)


async def aiolimiter() -> Work:
    """Return a start by aiolimiter, which does not yield while it need not wait; needs asyncio."""
    limiter = _package("aiolimiter").AsyncLimiter(PLENTY, 1)

    async def call() -> object:
        async with limiter:
            return None

    return call
