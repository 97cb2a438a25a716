"""Public bug reports about other queues, each as a test of ours: backing off, taking turns, resizing."""

from __future__ import annotations

import math
import time
from collections import Counter

import pytest
import trio

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import (
    Cooldown,
    Failures,
    Retry,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import assert_no_tokens, run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


# ------------------------------------------------------------------------------------- retries outside the slot


def test_cognee_4321_a_job_that_backs_off_holds_no_slot() -> None:
    """A semaphore is held for the whole life of a retried call, 240 s at most."""

    async def main() -> None:
        bodies = Bodies()
        retry = Retry(on=OSError, attempts=2, backoff=Constant(240))
        async with open_task_queue(concurrency=1, retry=retry, failures=Failures.RECORD) as queue:
            a = await queue.submit(bodies.fail, 1, OSError())
            b = await queue.submit(bodies.sleep, 1)
        assert bodies.times == [0, 1, 241]
        assert (a.attempts, b.attempts) == (2, 1)
        assert_over(queue, [a, b], bodies)

    run_virtual(main)


class _TooMany(Exception):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


@schedules
def test_pubmed_mcp_server_157_a_429_holds_back_the_others_and_burns_no_attempts(seed: int) -> None:
    """The fix to learn from: each attempt queues again, holds no slot while it waits, and all share one gate."""

    async def main() -> None:
        bodies = Bodies()
        calls = 0

        async def call(n: int) -> int:
            nonlocal calls
            calls += 1
            first = calls == 1
            with bodies.inside(n):
                await trio.sleep(1)
                if first:
                    raise _TooMany(30)
            return n

        retry = Retry(on=_TooMany, retry_after=lambda error: error.seconds, backoff=Constant(0))
        async with open_task_queue(concurrency=1, retry=retry, cooldown=Cooldown(ramp=0)) as queue:
            handles = [await queue.submit(call, n) for n in range(5)]
        assert bodies.starts == [(0, 0), (31, 0), (32, 1), (33, 2), (34, 3), (35, 4)]
        assert [handle.attempts for handle in handles] == [2, 1, 1, 1, 1]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_teamclaude_89_after_the_limit_is_reset_starts_grow(seed: int) -> None:
    """When a limit is reset all waiting requests start in one instant."""

    async def main() -> None:
        bodies = Bodies()

        async def call(n: int) -> None:
            with bodies.inside(n):
                if bodies.started == 1:
                    raise _TooMany(10)
                await trio.sleep(0.01)

        retry = Retry(on=_TooMany, retry_after=lambda error: error.seconds, backoff=Constant(0))
        async with open_task_queue(concurrency=8, retry=retry, cooldown=Cooldown(ramp=8)) as queue:
            handles = [await queue.submit(call, 0)]
            await trio.sleep(1)
            handles += [await queue.submit(call, n) for n in range(1, 30)]
        starts = bodies.times[1:]
        assert starts[0] == 10
        most = Counter(starts).most_common(1)[0][1]
        assert most <= 8
        for t in range(11, 18):
            assert sum(start < t for start in starts) <= t - 10 + 1
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


# ------------------------------------------------------------------------------------------------- fairness


@schedules
def test_boxel_5572_harness_1583_ageing_bounds_the_wait_of_a_low_priority(seed: int) -> None:
    """Jobs of low priority starve under a steady stream of higher ones."""

    async def main() -> None:
        started: dict[str, float] = {}

        async def body(name: str) -> None:
            started.setdefault(name, trio.current_time())
            await trio.sleep(1)

        async with open_task_queue(concurrency=1, ageing=5) as queue:
            await queue.submit(body, "high 0", priority=4)
            await queue.submit(body, "low", priority=0)
            for n in range(1, 60):  # as fast as they are done: without ageing the low one would be the last
                await queue.submit(body, f"high {n}", priority=4)
                await trio.sleep(1)
        assert 19 <= started["low"] <= 5 * 4 + 2

    run_virtual(main, seed=seed)


def _cost_of_rising_priorities(n: int) -> float:
    async def nothing() -> None:
        pass

    async def main() -> float:
        async with open_task_queue(concurrency=1, max_waiting=math.inf) as queue:
            queue.pause()
            begin = time.process_time()
            for i in range(n):
                queue.submit_nowait(nothing, priority=i)
            queue.resume()
            await queue.wait_idle()
            return time.process_time() - begin

    return trio.run(main)


def test_p_queue_244_rising_priorities_cost_no_quadratic_time() -> None:
    """Every item shifts all others: 24 s for 200 000 items."""
    small = min(_cost_of_rising_priorities(1500) for _ in range(3))
    large = min(_cost_of_rising_priorities(12_000) for _ in range(2))
    assert large / small < 24  # 8 times the items; 64 if it were quadratic


def test_async_756_a_long_backlog_costs_no_quadratic_time() -> None:
    """Taking the first of a long list moves all the rest."""

    def cost(n: int) -> float:
        async def nothing() -> None:
            pass

        async def main() -> float:
            begin = time.process_time()
            async with open_task_queue(concurrency=1, max_waiting=math.inf) as queue:
                for _ in range(n):
                    queue.submit_nowait(nothing)
            return time.process_time() - begin

        return trio.run(main)

    assert min(cost(16_000) for _ in range(2)) / min(cost(2000) for _ in range(3)) < 24


# ---------------------------------------------------------------------------------------------------- resizing


@schedules
@pytest.mark.parametrize("private", [True, False])
def test_resilience4j_979_shrinking_returns_at_once_and_works_the_debt_off(seed: int, private: bool) -> None:
    """A smaller number of permits does not stick, or the change blocks until they are free."""

    async def main() -> None:
        bodies = Bodies()
        limiter = None if private else trio.CapacityLimiter(10)
        async with open_task_queue(limiter=limiter, concurrency=10 if private else None) as queue:
            handles = [await queue.submit(bodies.sleep, n) for n in range(1, 11)]
            handles += [await queue.submit(bodies.sleep, 20, "late") for _ in range(6)]
            await trio.sleep(0.5)
            if private:
                queue.concurrency = 5
            else:
                queue.limiter.total_tokens = 5
            assert trio.current_time() == 0.5
            assert bodies.running == 10
        late = [at for at, label in bodies.starts if label == "late"]
        assert late == [6, 7, 8, 9, 10, 26]  # when the sixth had ended, one for one
        assert_no_tokens(queue.limiter)
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_cockatiel_112_a_cancelled_head_does_not_keep_the_next_from_starting(seed: int) -> None:
    """Aborted waiters starve the bulkhead."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, max_waiting=3) as queue:
            handles = [await queue.submit(bodies.sleep, 1, n) for n in range(4)]
            scopes = []
            async with trio.open_nursery() as nursery:

                async def submit(n: int, scope: trio.CancelScope) -> None:
                    with scope:
                        handles.append(await queue.submit(bodies.sleep, 1, n))

                for n in range(4, 8):
                    scopes.append(trio.CancelScope())
                    nursery.start_soon(submit, n, scopes[-1])
                    await trio.testing.wait_all_tasks_blocked()
                handles[1].cancel("the head")  # lets the first of the door in
                scopes[1].cancel()  # the head of the door by now
                handles[2].cancel()
        assert bodies.labels == [0, 3, 4, 6, 7]
        assert bodies.times == [0, 1, 2, 3, 4]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)
