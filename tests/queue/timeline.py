"""What the tests of the queue share: bodies that keep a diary, and a way to run a test under several schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import ParamSpec

import trio

from trio_orchestrator import Retry
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

P = ParamSpec("P")

SEEDS = range(5)


class Flop(Exception):
    """What a flaky body raises."""


def virtual(fn: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in virtual time, once under each of several schedules."""
    return _under(SEEDS, fn)


def briefly(fn: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test with many jobs in virtual time, under two schedules."""
    return _under(SEEDS[:2], fn)


def _under(seeds: range, fn: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    @wraps(fn)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        for seed in seeds:
            try:
                run_virtual(partial(fn, *args, **kwargs), seed=seed)
            except BaseException as exc:
                exc.add_note(f"(seed {seed})")
                raise

    return test


def pauses(seconds: float, attempts: float = 2, *, on: type[Exception] = Flop) -> Retry:
    """Return a retry that always pauses so long."""
    return Retry(on=on, attempts=attempts, backoff=Constant(seconds))


class Timeline:
    """What happened when: `(time, what)` in the order in which it did."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self.running = 0
        self.peak = 0

    def note(self, what: str) -> None:
        """Write down that something happens now."""
        self.events.append((round(trio.current_time(), 6), what))

    async def work(self, what: str, seconds: float = 1.0) -> str:
        """Note the start, and take so long."""
        self.note(what)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await trio.sleep(seconds)
        finally:
            self.running -= 1
        return what

    def flaky(self, what: str, failures: float = 1, seconds: float = 1.0) -> Callable[[], Awaitable[str]]:
        """Return a body that works so long each time, and fails so often."""
        left = failures

        async def body() -> str:
            nonlocal left
            await self.work(what, seconds)
            left -= 1
            if left >= 0:
                raise Flop(what)
            return what

        return body

    @property
    def names(self) -> list[str]:
        """What happened, without the times."""
        return [what for _, what in self.events]

    def times(self, what: str) -> list[float]:
        """When that happened."""
        return [at for at, name in self.events if name == what]


async def clean_up(seconds: float) -> None:
    """Sleep until cancelled, and then clean up so long, shielded."""
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await trio.sleep(seconds)
