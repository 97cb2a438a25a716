"""Rate limits as one sees them: who is let in when, who is refused, what a change does."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.abc import Instrument
from trio.testing import MockClock

from tests.policies.service import Service
from trio_orchestrator.errors import RateLimitedError
from trio_orchestrator.policies.rate import RateLimiter, RateLimits, SlidingWindow
from trio_orchestrator.policies.rate_limit import RateLimit, RateStatistics
from trio_orchestrator.testing import run_virtual

Kind = Callable[[], RateLimit | RateLimits]
KINDS: dict[str, Kind] = {
    "smooth": lambda: RateLimiter(8),
    "burst": lambda: RateLimiter(8, burst=4),
    "window": lambda: SlidingWindow(4, per=0.5),
    "both": lambda: RateLimits(RateLimiter(8), SlidingWindow(100, per=10)),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


async def in_order(*calls: Callable[[], Awaitable[None]]) -> list[tuple[int, float]]:
    """Start calls one after the other, and return who went through when."""
    log: list[tuple[int, float]] = []

    async def one(number: int, call: Callable[[], Awaitable[None]]) -> None:
        await call()
        log.append((number, trio.current_time()))

    async with trio.open_nursery() as nursery:
        for number, call in enumerate(calls):
            nursery.start_soon(one, number, call)
            await trio.testing.wait_all_tasks_blocked()
    return sorted(log, key=lambda entry: (entry[1], entry[0]))


class Steps(Instrument):
    """Counts the steps of tasks."""

    def __init__(self) -> None:
        self.count: dict[trio.lowlevel.Task, int] = {}

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count[task] = self.count.get(task, 0) + 1

    def mine(self) -> int:
        return self.count[trio.lowlevel.current_task()]


def counts(limiter: RateLimit) -> tuple[int, int, int, int]:
    now = limiter.statistics()
    return now.granted, now.refused, now.cancelled, now.waiting


def test_smooth_spacing() -> None:
    async def main() -> None:
        limiter = RateLimiter(8)
        log = await in_order(*[limiter.acquire] * 6)
        assert log == [(n, n / 8) for n in range(6)]

    run_virtual(main)


def test_a_burst_and_then_the_rate_and_a_rest_refills_it() -> None:
    async def main() -> None:
        limiter = RateLimiter(8, burst=3)
        log = await in_order(*[limiter.acquire] * 6)
        assert [at for _, at in log] == [0, 0, 0, 0.125, 0.25, 0.375]
        await trio.sleep(10)
        log = await in_order(*[limiter.acquire] * 4)
        assert [at - 10.375 for _, at in log] == [0, 0, 0, 0.125]

    run_virtual(main)


def test_a_window_lets_in_as_soon_as_it_may() -> None:
    async def main() -> None:
        limiter = SlidingWindow(3, per=1)
        limiter.acquire_nowait()
        await trio.sleep(0.75)
        log = await in_order(*[limiter.acquire] * 6)
        assert [at for _, at in log] == [0.75, 0.75, 1, 1.75, 1.75, 2]

    run_virtual(main)


def test_costs_are_served_in_order_and_a_small_one_does_not_overtake() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, burst=10)
        limiter.acquire_nowait(10)
        calls = [lambda cost=cost: limiter.acquire(cost) for cost in (2, 10, 1, 1, 0.5)]
        log = await in_order(*calls)
        assert log == [(0, 2), (1, 12), (2, 13), (3, 14), (4, 14.5)]

    run_virtual(main)


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_waiters_are_each_woken_once_at_their_time(seed: int) -> None:
    steps = Steps()
    times: dict[int, float] = {}
    limiters = [RateLimiter(256), SlidingWindow(16, per=1 / 16)]

    async def waiter(number: int, limiter: RateLimit) -> None:
        await limiter.acquire()
        times[number] = trio.current_time()

    async def main() -> None:
        for limiter, together in zip(limiters, (1, 16), strict=True):
            start = trio.current_time()
            async with trio.open_nursery() as nursery:
                for number in range(1000):
                    name = f"{type(limiter).__name__} {number}"
                    nursery.start_soon(waiter, number, limiter, name=name)
            assert sorted(at - start for at in times.values()) == [n // together * together / 256 for n in range(1000)]

    run_virtual(main, seed=seed, instruments=[steps])
    woken = [count for task, count in steps.count.items() if task.name.rpartition(" ")[2].isdecimal()]
    assert woken == [2] * 2000  # it asked, and it was let in


@every_kind
def test_one_who_does_not_wait_passes_one_checkpoint(kind: Kind) -> None:
    steps = Steps()

    async def main() -> None:
        before = steps.mine()
        await kind().acquire()
        assert steps.mine() == before + 1

    run_virtual(main, instruments=[steps])


@every_kind
def test_a_call_that_need_not_wait_adds_no_checkpoint(kind: Kind) -> None:
    steps = Steps()

    async def main() -> None:
        before = steps.mine()
        assert await kind().call(Service("fine")) == "fine"
        assert steps.mine() == before

    run_virtual(main, instruments=[steps])


@every_kind
def test_a_call_waits_and_passes_its_result_and_its_exception(kind: Kind) -> None:
    async def main() -> None:
        limiter, error = kind(), OSError("down")
        service = Service(*["fine"] * 5, error)
        results = [await limiter.call(service) for _ in range(5)]
        assert results == ["fine"] * 5
        assert service.starts[4] > 0
        with pytest.raises(OSError, match="down") as caught:
            await limiter.wrap(service)()
        assert caught.value is error
        assert error.__context__ is None

    run_virtual(main)


def test_acquire_nowait_tells_the_exact_wait_behind_those_who_wait() -> None:
    async def main() -> None:
        limiter = RateLimiter(8, name="search")
        limiter.acquire_nowait()
        with pytest.raises(RateLimitedError) as caught:
            limiter.acquire_nowait()
        assert (caught.value.name, caught.value.retry_after) == ("search", 0.125)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(limiter.acquire)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RateLimitedError) as caught:
                limiter.acquire_nowait()
            assert caught.value.retry_after == 0.5
            await trio.sleep(0.3)
            with pytest.raises(RateLimitedError) as caught:
                limiter.acquire_nowait()
            assert caught.value.retry_after == pytest.approx(0.2)
        assert counts(limiter) == (4, 3, 0, 0)

    run_virtual(main)


def test_nobody_pushes_in_though_the_limit_would_allow_it() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, burst=4)
        limiter.acquire_nowait(3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire, 4)
            await trio.testing.wait_all_tasks_blocked()
            assert limiter.reply(1) == (False, 4, 0, 4, 3)
            with pytest.raises(RateLimitedError) as caught:
                limiter.acquire_nowait(1)  # one is free, but is meant for the one who waits for four
            assert caught.value.retry_after == 4

    run_virtual(main)


def test_a_refusal_is_at_once_and_yet_a_checkpoint() -> None:
    steps = Steps()

    async def main() -> None:
        limiter = RateLimiter(1, max_wait=2)
        limiter.acquire_nowait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire)
            nursery.start_soon(limiter.acquire)
            await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            before = steps.mine()
            with pytest.raises(RateLimitedError) as caught:
                await limiter.acquire()
            assert caught.value.retry_after == 3
            assert trio.current_time() == 0
            assert steps.mine() == before + 1
        assert counts(limiter) == (3, 1, 0, 0)

    run_virtual(main, instruments=[steps])


def test_as_many_as_may_wait_wait() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, max_waiting=2)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(limiter.acquire)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(RateLimitedError) as caught:
                await limiter.call(Service())
            assert caught.value.retry_after == 3
        never = SlidingWindow(1, max_waiting=0)
        await never.acquire()
        with pytest.raises(RateLimitedError):
            await never.acquire()

    run_virtual(main)


def test_a_change_times_those_who_wait_anew() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, per=3600)
        log: list[float] = []

        async def one() -> None:
            await limiter.acquire()
            log.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)
            await trio.sleep(10)
            limiter.change(limit=4, per=1)
            await trio.sleep(0.4)
            limiter.change(burst=2)
        left = 3590 / 3600 / 4  # of the first one, a unit that weighs a quarter of a second now
        assert log == pytest.approx([0, 10 + left, 10.4, 10.25 + left])
        assert (limiter.limit, limiter.per, limiter.burst) == (4, 1, 2)
        assert limiter.statistics() == RateStatistics(4, 1, 2, 0, 4, 0, 0)

    run_virtual(main)


def test_a_change_refuses_who_could_never_be_let_in_and_lets_those_behind_move_up() -> None:
    async def main() -> None:
        limiter = SlidingWindow(4, per=1)
        ended: dict[int, tuple[float, float]] = {}

        async def one(cost: int) -> None:
            try:
                await limiter.acquire(cost)
                ended[cost] = (trio.current_time(), 0)
            except RateLimitedError as error:
                ended[cost] = (trio.current_time(), error.retry_after)

        async with trio.open_nursery() as nursery:
            for cost in (4, 3, 1):
                nursery.start_soon(one, cost)
                await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(0.5)
            limiter.change(limit=2)
        assert ended == {4: (0, 0), 3: (0.5, math.inf), 1: (1, 0)}
        assert counts(limiter) == (2, 1, 0, 0)

    run_virtual(main)


def test_a_hold_that_makes_the_wait_too_long_refuses_at_once() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, max_wait=5)
        limiter.acquire_nowait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limiter.acquire)
            await trio.sleep(0.5)
            limiter.hold(4.5)
            await trio.testing.wait_all_tasks_blocked()
            assert counts(limiter) == (1, 0, 0, 1)  # it will have waited for five seconds
            with pytest.raises(ExceptionGroup) as caught:
                async with trio.open_nursery() as inner:
                    inner.start_soon(limiter.acquire)
                    await trio.testing.wait_all_tasks_blocked()
            assert [error.retry_after for error in caught.value.exceptions] == [5.5]  # type: ignore[union-attr]
        assert trio.current_time() == 5

    run_virtual(main)


def test_a_server_that_says_wait_and_one_that_says_so_much_is_left() -> None:
    async def main() -> None:
        limiter = RateLimiter(8, burst=4)
        limiter.hold(2)
        assert limiter.reply() == (False, 4, 0, 2, 2)
        assert "told by a server" in repr(limiter)
        log = await in_order(*[limiter.acquire] * 6)
        assert [at for _, at in log] == [2, 2, 2, 2, 2.125, 2.25]
        await trio.sleep(7.75)
        limiter.observe(remaining=2, reset_after=5)
        assert limiter.reply() == (True, 4, 2, 0, 5)
        log = await in_order(*[limiter.acquire] * 4)
        assert [at for _, at in log] == [10, 10, 15, 15]
        await trio.sleep(10)
        assert limiter.is_idle
        assert "told by a server" not in repr(limiter)

    run_virtual(main)


def test_idle_means_as_good_as_new() -> None:
    async def main() -> None:
        limiter = RateLimiter(8, burst=2)
        window = SlidingWindow(2)
        both = RateLimits(limiter, window)
        assert limiter.is_idle
        assert both.is_idle
        both.acquire_nowait()
        assert not limiter.is_idle
        await trio.sleep(0.125)
        assert limiter.is_idle
        assert not both.is_idle
        await trio.sleep(0.875)
        assert both.is_idle
        limiter.change(limit=4)
        assert not limiter.is_idle  # a new one would be faster
        limiter.change(limit=8)
        assert limiter.is_idle
        limiter.hold(1)
        assert not limiter.is_idle
        await trio.sleep(1)
        assert limiter.is_idle

    run_virtual(main)


@every_kind
def test_one_at_module_level_serves_one_run_after_another(kind: Kind) -> None:
    limiter = kind()

    async def main(start: float) -> float:
        trio.lowlevel.current_clock().jump(start)  # type: ignore[attr-defined]
        for _ in range(8):
            await limiter.acquire()
        return trio.current_time() - start

    first = run_virtual(main, 150_000.0)
    assert [run_virtual(main, start) for start in (20_000.0, 0.0, 180_000.0)] == [first] * 3


def test_a_stall_of_the_program_is_not_made_up_for_by_a_crowd() -> None:
    async def main() -> list[float]:
        limiter = RateLimiter(100)
        starts: list[float] = []

        async def one() -> None:
            await limiter.acquire()
            starts.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(400):
                nursery.start_soon(one)
            await trio.sleep(1)
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(1.5)
        return starts

    starts = run_virtual(main)
    assert sum(at == 2.5 for at in starts) == 1 + 2  # its own, and 2 % of a second's
    assert max(sum(start <= at < start + 1 for at in starts) for start in starts) <= 103
    assert starts[-1] == pytest.approx(3.99 + 1.5 - 0.02, abs=0.011)


def test_the_arguments_are_checked() -> None:
    bad: list[tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = [
        (RateLimiter, {"limit": 0}, ValueError, "limit must be > 0, got 0"),
        (RateLimiter, {"limit": math.nan}, ValueError, "limit must be > 0, got nan"),
        (RateLimiter, {"limit": True}, TypeError, "limit must be a number, got True"),
        (RateLimiter, {"limit": 1, "per": 0}, ValueError, "per must be > 0 and finite, got 0"),
        (RateLimiter, {"limit": 1, "per": math.inf}, ValueError, "per must be > 0 and finite, got inf"),
        (RateLimiter, {"limit": 1, "burst": 0.5}, ValueError, "burst must be >= 1 and finite, got 0.5"),
        (RateLimiter, {"limit": 1, "max_waiting": -1}, ValueError, "max_waiting must be >= 0, got -1"),
        (RateLimiter, {"limit": 1, "max_wait": -1}, ValueError, "max_wait must be >= 0, got -1"),
        (RateLimiter, {"limit": 1, "name": 3}, TypeError, "name must be a str, got 3"),
        (SlidingWindow, {"limit": 0}, ValueError, "limit must be >= 1, got 0"),
        (SlidingWindow, {"limit": 1.5}, ValueError, "limit must be a whole number or math.inf, got 1.5"),
        (SlidingWindow, {"limit": 1, "per": 0}, ValueError, "per must be > 0 and finite, got 0"),
        (SlidingWindow, {"limit": 1, "max_waiting": 1.5}, ValueError, "max_waiting must be a whole number or math.inf"),
        (SlidingWindow, {"limit": 1, "max_wait": None}, TypeError, "max_wait must be a number, got None"),
        (SlidingWindow, {"limit": 1, "name": None}, TypeError, "name must be a str, got None"),
        (RateLimits, {}, ValueError, r"limiters must be at least one, and each once, got \(\)"),
    ]
    for kind, arguments, error, message in bad:
        with pytest.raises(error, match=rf"^{message}"):
            kind(**arguments)
    with pytest.raises(ValueError, match=r"^limiters must be at least one, and each once"):
        RateLimits(*[RateLimiter(1)] * 2)
    with pytest.raises(TypeError, match=r"^limiters must be RateLimiter or SlidingWindow objects, got 3"):
        RateLimits(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("cost", [0, -1, math.nan, math.inf, 5, "1", None, False])
def test_a_cost_that_can_never_be_taken_is_an_error_and_counts_for_nothing(cost: Any) -> None:
    async def main() -> None:
        limiters: list[RateLimit] = [RateLimiter(8, burst=4), SlidingWindow(4)]
        both = RateLimits(*limiters)
        asked: list[RateLimit | RateLimits] = [*limiters, both]
        for limiter in asked:
            with pytest.raises((ValueError, TypeError), match=r"^cost must"):
                limiter.acquire_nowait(cost)
            with pytest.raises((ValueError, TypeError), match=r"^cost must"):
                await limiter.acquire(cost)
        assert all(limiter.is_idle and counts(limiter) == (0, 0, 0, 0) for limiter in limiters)
        with pytest.raises(ValueError, match=r"^cost must be a whole number"):
            limiters[1].acquire_nowait(1.5)
        with pytest.raises(ValueError, match=r"^cost must have one number for each of 2 limits, got \(1, 1, 1\)"):
            both.acquire_nowait((1, 1, 1))

    run_virtual(main)


def test_a_change_that_is_refused_changes_nothing() -> None:
    async def main() -> None:
        limiter, window = RateLimiter(8, burst=4), SlidingWindow(4)
        with pytest.raises(ValueError, match=r"^limit must be > 0"):
            limiter.change(limit=0, burst=9)
        with pytest.raises(ValueError, match=r"^limit must be >= 1"):
            window.change(limit=0, per=3)
        with pytest.raises(ValueError, match=r"^seconds must be >= 0 and finite"):
            limiter.hold(math.inf)
        with pytest.raises(ValueError, match=r"^remaining must be >= 0"):
            limiter.observe(-1, 3)
        assert limiter.is_idle
        assert window.is_idle

    run_virtual(main)
