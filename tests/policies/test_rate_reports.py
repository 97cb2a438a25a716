"""Public bug reports about rate limits, each as a test of ours."""

from __future__ import annotations

import threading
import time
from random import Random

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_orchestrator.errors import RateLimitedError
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.rate_limit import RateLimit
from trio_orchestrator.testing import SchedulerPasses, run_virtual

Log = list[tuple[int, float]]


async def crowd(limiter: RateLimit, number: int) -> list[float]:
    """Let so many ask at once, and return when they were let in."""
    times: list[float] = []

    async def one() -> None:
        await limiter.acquire()
        times.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(one)
    return times


def test_aiolimiter_73_those_who_wait_do_not_wake_at_every_tick() -> None:
    """A thousand waiters, each with a timer of its own, made the loop spin for a single free place."""
    passes = SchedulerPasses()

    async def main() -> None:
        before = passes.count
        assert len(await crowd(RateLimiter(64), 1000)) == 1000
        assert passes.count - before <= 1000 + 5

    run_virtual(main, instruments=[passes])


def test_aiolimiter_217_it_waits_for_what_is_missing_and_not_for_all_it_asks() -> None:
    """Two of three places are taken, one drips out a second: who wants two has them after one second, not two."""

    async def main() -> None:
        limiter = RateLimiter(1, burst=3)
        limiter.acquire_nowait(2)
        await limiter.acquire(2)
        assert trio.current_time() == 1

    run_virtual(main)


def test_p_queue_126_a_cap_holds_in_every_window_at_any_concurrency() -> None:
    """With a high concurrency, more than the cap of an interval were started."""

    async def main() -> None:
        times = await crowd(SlidingWindow(5, per=0.25), 40)
        assert times == [n // 5 / 4 for n in range(40)]

    run_virtual(main)


def test_p_queue_182_a_cap_holds_for_those_who_come_again_after_a_wait() -> None:
    """The cap was not applied to tasks that were added after an await."""

    async def main() -> None:
        limiter, times = SlidingWindow(2), list[float]()
        for pause in (0, 0.5, 0.25, 0.125, 0, 0.75, 0, 0):
            await trio.sleep(pause)
            await limiter.acquire()
            times.append(trio.current_time())
        assert times == [0, 0.5, 1, 1.5, 2, 2.75, 3, 3.75]

    run_virtual(main)


def test_p_queue_251_a_fresh_window_does_not_delay() -> None:
    """After a rest, the first task waited for the interval to end."""

    async def main() -> None:
        for limiter in (SlidingWindow(2), RateLimiter(2)):
            for _ in range(3):
                await limiter.acquire()
            await trio.sleep(7.3)
            before = trio.current_time()
            await limiter.acquire()
            assert trio.current_time() == before

    run_virtual(main)


def test_p_queue_219_what_was_cancelled_does_not_use_up_the_cap() -> None:
    """Five that were aborted while they waited, and the next five of the same interval had to wait."""

    async def main() -> None:
        limiter = SlidingWindow(5)
        limiter.acquire_nowait(5)
        await trio.sleep(0.5)
        with trio.move_on_after(0.25):
            await crowd(limiter, 5)
        assert await crowd(limiter, 5) == [1.0] * 5

    run_virtual(main)


def test_tower_resilience_363_when_ten_could_wake_together_one_passes() -> None:
    """Whoever had been told to wait was let in afterwards without a second look."""

    async def main() -> None:
        limiter = RateLimiter(1)
        limiter.acquire_nowait()
        assert await crowd(limiter, 10) == [float(n) for n in range(1, 11)]

    run_virtual(main)


def test_tower_resilience_365_a_lower_limit_holds_at_once_and_the_cancelled_leave_nothing() -> None:
    """A limit from 5 to 2 while many wait, and some of them go: no more than two in a window afterwards."""

    async def main() -> None:
        limiter, times = SlidingWindow(5), list[float]()
        await crowd(limiter, 5)

        async def one(patience: float) -> None:
            with trio.move_on_after(patience):
                await limiter.acquire()
                times.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(one, 0.75 if number % 2 else 100)
            await trio.sleep(0.5)
            limiter.change(limit=2)
        assert times == [1, 1, 2, 2, 3, 3]
        counts = limiter.statistics()
        assert (counts.granted, counts.cancelled, counts.waiting) == (11, 6, 0)

    run_virtual(main)


@pytest.mark.parametrize("number", [156, 157, 300], ids=lambda number: f"PyrateLimiter {number}")
def test_pyrate_limiter_156_157_300_there_is_no_thread_and_no_task_in_the_background(number: int) -> None:
    """A thread that leaked old items out of each bucket was never stopped, and raced with those who asked."""

    async def main() -> None:
        threads, tasks = threading.active_count(), trio.lowlevel.current_statistics().tasks_living
        limiters: list[RateLimit] = [RateLimiter(10) for _ in range(number)]
        limiters += [SlidingWindow(10) for _ in range(number)]
        for limiter in limiters:
            await limiter.acquire()
        assert threading.active_count() == threads
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        await trio.sleep(1)
        assert all(limiter.is_idle for limiter in limiters)  # expired, though nobody was there to do it

    run_virtual(main)


def timeline(seed: int) -> Log:
    """What three limiters grant under a fixed script."""

    async def main() -> Log:
        random, log = Random(seed), Log()
        one, two = RateLimiter(3, burst=2), SlidingWindow(2)
        limiters: list[RateLimit | RateLimits] = [one, two, RateLimits(one, two)]

        async def ask(number: int, at: float, patience: float) -> None:
            await trio.sleep_until(at)
            with trio.move_on_after(patience):
                await limiters[number % 3].acquire()
                log.append((number, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(ask, number, random.uniform(0, 3), random.choice([1.0, 100.0]))
        return log

    return run_virtual(main, seed=seed)


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), steps=st.randoms(use_true_random=False))
def test_mediawiki_mcp_server_557_steps_of_the_wall_clock_have_no_effect(seed: int, steps: Random) -> None:
    """The clock stepped back, the bucket went below zero, and a caller was locked out."""
    expected = timeline(seed)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("time", "monotonic"):
            patch.setattr(time, name, lambda: steps.uniform(-1e9, 1e9))
        assert timeline(seed) == expected


def test_juju_ratelimit_26_a_clock_that_jumps_by_a_day_refills_once() -> None:
    """After a jump of the clock the bucket held more than its capacity, or less than nothing."""

    async def main() -> None:
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, MockClock)
        for limiter in (RateLimiter(4, burst=4), SlidingWindow(4)):
            for _ in range(3):
                limiter.acquire_nowait(4)
                with pytest.raises(RateLimitedError) as caught:
                    limiter.acquire_nowait()
                assert caught.value.retry_after == (0.25 if isinstance(limiter, RateLimiter) else 1)
                clock.jump(86_400)
                assert limiter.reply() == (True, 4, 4, 0, 0)

    run_virtual(main)


def test_failsafe_328_as_many_wait_as_may_and_the_rest_are_refused() -> None:
    """A wish: bound the number of those who wait, not only for how long."""

    async def main() -> None:
        limiter = RateLimiter(1, max_waiting=3)
        refused: list[float] = []

        async def one() -> None:
            try:
                await limiter.acquire()
            except RateLimitedError as error:
                refused.append(error.retry_after)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(one)
        assert refused == [4] * 6
        assert limiter.statistics().granted == 4

    run_virtual(main)
