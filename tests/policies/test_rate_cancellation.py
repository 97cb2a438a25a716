"""Cancelled anywhere, a limiter has everything back, and those behind move up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from trio_orchestrator.algorithms.gcra import Gcra
from trio_orchestrator.algorithms.sliding_log import SlidingLog
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.rate_limit import RateLimit
from trio_orchestrator.testing import CancelAt, cancelled_everywhere, run_virtual

Made = tuple[RateLimit | RateLimits, tuple[RateLimit, ...]]


def smooth() -> Made:
    limiter = RateLimiter(4, burst=2)
    return limiter, (limiter,)


def window() -> Made:
    limiter = SlidingWindow(2, per=0.5)
    return limiter, (limiter,)


def several() -> Made:
    limiters = RateLimiter(4, burst=2), SlidingWindow(2, per=0.5), RateLimiter(4, burst=4)
    return RateLimits(*limiters), limiters


def told() -> Made:
    limiter = RateLimiter(4, burst=2, max_wait=100)
    return limiter, (limiter,)


def as_if_nothing_else(member: RateLimit, got: list[float]) -> Gcra | SlidingLog:
    """The rule of a limit from which was taken what the caller got, and no more."""
    rule: Gcra | SlidingLog
    rule = Gcra(member.limit, burst=member.burst) if isinstance(member, RateLimiter) else SlidingLog(2, 0.5)
    for at in got:
        rule.take(at, at)
    return rule


made = pytest.mark.parametrize("make", [smooth, window, several, told], ids=lambda make: make.__name__)


@made
def test_cancelled_at_every_checkpoint_of_acquire(make: Callable[[], Made]) -> None:
    async def scenario(injector: CancelAt) -> None:
        limiter, members = make()
        if make is told:
            members[0].observe(remaining=5, reset_after=1000)
        got: list[float] = []
        with injector.watch():
            for _ in range(4):
                await limiter.acquire()
                got.append(trio.current_time())
        now = trio.current_time()
        for member in members:
            counts = member.statistics()
            assert (counts.granted, counts.cancelled, counts.waiting) == (len(got), injector.fired, 0)
            assert member.reply() == as_if_nothing_else(member, got).reply(now) or make is told
        if make is told:
            assert members[0]._line.told().remaining(now) == 5 - len(got)

    assert cancelled_everywhere(scenario, seeds=range(4)) == 4 * 4


@made
def test_cancelled_at_every_checkpoint_of_a_call(make: Callable[[], Made]) -> None:
    waits = 2 if make in (smooth, told) else 1  # a window lets the last two in together

    async def scenario(injector: CancelAt) -> None:
        limiter, members = make()
        begun = 0

        async def body() -> None:
            nonlocal begun
            begun += 1
            await trio.lowlevel.checkpoint()

        with injector.watch():
            for _ in range(4):
                await limiter.call(body)
        for member in members:
            counts = member.statistics()
            assert counts.granted == begun
            assert counts.waiting == counts.refused == 0
        await trio.sleep(1)
        assert all(member.is_idle for member in members)

    assert cancelled_everywhere(scenario, seeds=range(4)) == 4 * (4 + waits)


@made
@pytest.mark.parametrize("victim", range(6))
def test_one_of_a_line_is_cancelled_anywhere_and_the_others_are_in_time(make: Callable[[], Made], victim: int) -> None:
    async def scenario(injector: CancelAt) -> None:
        limiter, members = make()
        log: list[float] = []

        async def one(number: int) -> None:
            if number == victim:
                with injector.watch():
                    await limiter.acquire()
                    log.append(trio.current_time())
            else:
                await limiter.acquire()
                log.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(one, number)
        times = [0, 0, 0.25, 0.5, 0.75, 1] if make in (smooth, told) else [0, 0, 0.5, 0.5, 1, 1]
        if make is several:
            times = [0, 0, 0.5, 0.5, 1, 1]
        assert log == times[: len(log)]
        assert len(log) == 6 - injector.fired
        assert all(member.statistics().cancelled == injector.fired for member in members)

    assert cancelled_everywhere(scenario, seeds=range(4)) == 4


@made
def test_one_that_is_cancelled_at_the_very_instant_it_is_due_has_been_let_in(make: Callable[[], Made]) -> None:
    async def main() -> None:
        limiter, members = make()
        for _ in range(2):
            await limiter.acquire()
        due = 0.25 if make in (smooth, told) else 0.5
        with trio.move_on_at(due) as scope:
            await limiter.acquire()
        assert trio.current_time() == due
        assert not scope.cancelled_caught
        assert all(member.statistics().granted == 3 for member in members)
        await limiter.acquire()
        assert trio.current_time() == (2 * due if make in (smooth, told) else due)
        assert all(member.statistics().cancelled == 0 for member in members)

    for seed in range(6):
        run_virtual(main, seed=seed)


@pytest.mark.parametrize("make", [smooth, window], ids=lambda make: make.__name__)
def test_who_waits_behind_one_that_is_cancelled_in_its_checkpoint_is_let_in_at_once(make: Callable[[], Made]) -> None:
    async def scenario(injector: CancelAt) -> None:
        _, (member, *_) = make()
        log: list[float] = []

        async def behind() -> None:
            await member.acquire()
            log.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(behind)
            nursery.start_soon(behind)
            with injector.watch():
                await member.acquire(2)
        assert sorted(log) == ([0, 0] if injector.fired else [0.25, 0.5] if make is smooth else [0.5, 0.5])

    assert cancelled_everywhere(scenario, seeds=range(8)) == 8


def test_everybody_is_cancelled_at_once() -> None:
    async def main() -> None:
        one, two = RateLimiter(1), SlidingWindow(1)
        both = RateLimits(one, two)
        await both.acquire()
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                for number in range(300):
                    nursery.start_soon((one, two, both)[number % 3].acquire)
        for limiter in (one, two):
            counts = limiter.statistics()
            assert (counts.granted, counts.cancelled, counts.waiting) == (1, 200, 0)
            assert limiter.reply() == (False, 1, 0, 0.5, 0.5)

    for seed in range(5):
        run_virtual(main, seed=seed)
