"""Several limits at once: all or nothing, in one order, without a deadlock."""

from __future__ import annotations

import pytest
import trio

from trio_orchestrator.errors import RateLimitedError
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.testing import run_virtual


def test_the_slowest_decides() -> None:
    async def main() -> None:
        second, minute = RateLimiter(2), SlidingWindow(3, per=60)
        both = RateLimits(second, minute)
        log: list[float] = []

        async def one() -> None:
            await both.acquire()
            log.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert log == [0, 0.5, 1, 60, 60.5]
        assert both.statistics() == (second.statistics(), minute.statistics())
        assert second.statistics().granted == minute.statistics().granted == 5
        assert both.limiters == (second, minute)

    run_virtual(main)


def test_calls_and_tokens() -> None:
    async def main() -> None:
        calls, tokens = RateLimiter(60, per=60, burst=60), RateLimiter(1000, per=1, burst=1000, name="tokens")
        both = RateLimits(calls, tokens)
        both.acquire_nowait((1, 900))
        with pytest.raises(RateLimitedError, match="tokens") as caught:
            both.acquire_nowait((1, 350))
        assert caught.value.retry_after == pytest.approx(0.25)
        await both.acquire((1, 350))
        assert trio.current_time() == pytest.approx(0.25)
        assert calls.reply().remaining == 58

    run_virtual(main)


def test_nothing_is_taken_in_part_while_one_waits() -> None:
    async def main() -> None:
        free, slow = RateLimiter(8, burst=8), RateLimiter(1)
        both = RateLimits(free, slow)
        slow.acquire_nowait()
        with pytest.raises(RateLimitedError):
            both.acquire_nowait()
        assert free.is_idle
        async with trio.open_nursery() as nursery:
            nursery.start_soon(both.acquire)
            await trio.testing.wait_all_tasks_blocked()
            assert free.statistics().waiting == slow.statistics().waiting == 1
            with trio.move_on_after(0.5) as patience:
                await both.acquire()
            assert patience.cancelled_caught
            assert free.statistics().cancelled == slow.statistics().cancelled == 1
        assert trio.current_time() == 1
        assert free.reply().remaining == 7
        assert slow.reply() == (False, 1, 0, 1, 1)

    run_virtual(main)


@pytest.mark.parametrize("seed", range(5))
def test_opposite_orders_do_not_deadlock(seed: int) -> None:
    async def main() -> None:
        one, two, three = RateLimiter(4), SlidingWindow(4), RateLimiter(2, burst=2)
        pairs = [
            RateLimits(one, two),
            RateLimits(two, one),
            RateLimits(two, three),
            RateLimits(three, one),
            RateLimits(three, two, one),
        ]
        through: list[int] = []

        async def go(number: int) -> None:
            await pairs[number % 5].acquire()
            through.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(go, number)
        assert sorted(through) == list(range(50))
        assert trio.current_time() <= 50
        assert one.statistics().granted == 40

    run_virtual(main, seed=seed)


def test_one_who_asks_a_member_alone_stands_behind_who_asks_both() -> None:
    async def main() -> None:
        fast, slow = RateLimiter(8), RateLimiter(1)
        both = RateLimits(fast, slow)
        slow.acquire_nowait()
        log: list[tuple[str, float]] = []

        async def through(name: str, limiter: RateLimiter | RateLimits) -> None:
            await limiter.acquire()
            log.append((name, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for name, limiter in (("both", both), ("fast", fast), ("slow", slow)):
                nursery.start_soon(through, name, limiter)
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RateLimitedError) as caught:
                fast.acquire_nowait()
            assert caught.value.retry_after == 1.25
        assert log == [("both", 1), ("fast", 1.125), ("slow", 2)]

    run_virtual(main)


def test_the_strictest_patience_counts() -> None:
    async def main() -> None:
        patient, hasty = RateLimiter(1), RateLimiter(8, max_wait=0.5)
        both = RateLimits(patient, hasty)
        await both.acquire()
        with pytest.raises(RateLimitedError) as caught:
            await both.acquire()
        assert caught.value.retry_after == 1
        full = RateLimits(patient, RateLimiter(8, max_waiting=0))
        with pytest.raises(RateLimitedError):
            await full.call(trio.sleep, 0)
        assert patient.statistics().refused == 2

    run_virtual(main)


def test_who_was_held_up_by_another_counts_from_when_it_was_let_in() -> None:
    async def main() -> None:
        mine, shared, slow = RateLimiter(8), RateLimiter(8, burst=4), RateLimiter(1)
        slow.acquire_nowait()
        async with trio.open_nursery() as nursery:
            for limiter in (RateLimits(shared, slow), RateLimits(mine, shared)):
                nursery.start_soon(limiter.acquire)
                await trio.testing.wait_all_tasks_blocked()
        assert trio.current_time() == 1
        assert mine.reply().retry_after == 0.125

    run_virtual(main)
