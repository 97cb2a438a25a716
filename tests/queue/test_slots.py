"""Slots: resizing, and limiters that others share."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import groupby

import pytest
import trio
from trio.lowlevel import checkpoint
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Timeline, clean_up, pauses, virtual
from trio_orchestrator import Failures, Gate, JobState, TaskQueue, open_task_queue
from trio_orchestrator.testing import SchedulerPasses, assert_no_tokens, run_virtual

# ------------------------------------------------------------------------------------------------ resizing


@virtual
async def test_growing_starts_all_that_now_fit() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        for _ in range(6):
            queue.submit_nowait(line.work, "x", 10)
        await trio.sleep(3)
        queue.concurrency = 4
        assert queue.concurrency == queue.limiter.total_tokens == queue.statistics().limit == 4
        await trio.sleep(1)
        queue.concurrency = math.inf
    assert line.times("x") == [0, 3, 3, 3, 4, 4]


@virtual
async def test_shrinking_starts_nothing_until_the_debt_is_worked_off() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=4) as queue:
        for seconds in (1, 2, 3, 10):
            queue.submit_nowait(line.work, "first", seconds)
        await wait_all_tasks_blocked()
        queue.concurrency = 2
        queue.submit_nowait(line.work, "x", 100)
        queue.submit_nowait(line.work, "x", 100)
    assert line.times("x") == [3, 10]


@virtual
async def test_zero_stops_starts() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2) as queue:
        for _ in range(4):
            queue.submit_nowait(line.work, "x", 5)
        await trio.sleep(1)
        queue.concurrency = 0
        await trio.sleep(99)
        assert queue.statistics().running == 0
        queue.concurrency = 1
    assert line.times("x") == [0, 0, 100, 105]


@virtual
async def test_the_limit_holds_while_cancelled_bodies_clean_up() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=3, failures=Failures.RECORD) as queue:
        jobs = [queue.submit_nowait(clean_up, seconds) for seconds in (1, 2, 3)]
        await wait_all_tasks_blocked()
        queue.concurrency = 2
        for job in jobs:
            job.cancel()
        for _ in range(2):
            queue.submit_nowait(line.work, "x", 10)
    assert line.times("x") == [2, 3]


@pytest.mark.parametrize("private", [True, False])
def test_tokens_that_are_added_outside_the_queue_are_noticed(private: bool) -> None:
    @virtual
    async def scene() -> None:
        line = Timeline()
        opening = open_task_queue(concurrency=1) if private else open_task_queue(limiter=trio.CapacityLimiter(1))
        async with opening as queue:
            for _ in range(7):
                queue.submit_nowait(line.work, "x", 10)
            await trio.sleep(3)
            queue.limiter.total_tokens = 4
            await trio.sleep(1)
            queue.limiter.total_tokens = 0
            await trio.sleep(36)
            queue.limiter.total_tokens = 2
        assert line.times("x") == [0, 3, 3, 3, 40, 40, 50]
        assert_no_tokens(queue.limiter)

    scene()


# ------------------------------------------------------------------------------------------------- sharing


@virtual
async def test_the_limit_of_a_shared_limiter_is_its_own() -> None:
    limiter = trio.CapacityLimiter(7)
    async with open_task_queue(limiter=limiter) as queue:
        assert queue.limiter is limiter
        assert queue.concurrency == 7
        with pytest.raises(AttributeError, match="set the limiter's total_tokens"):
            queue.concurrency = 3


@virtual
async def test_two_queues_take_turns_though_neither_runs_dry() -> None:
    limiter = trio.CapacityLimiter(1)
    turns: list[str] = []

    async def job(name: str) -> None:
        turns.append(name)
        await checkpoint()

    async with open_task_queue(limiter=limiter) as left, open_task_queue(limiter=limiter) as right:
        for _ in range(200):
            left.submit_nowait(job, "left")
            right.submit_nowait(job, "right")
    runs = [len(list(run)) for _, run in groupby(turns)]
    assert max(runs[:-1]) <= 32  # a token is passed on after 16 jobs, once perhaps to the queue itself
    assert turns.count("left") == turns.count("right") == 200
    assert_no_tokens(limiter)


@virtual
async def test_a_token_is_passed_on_after_every_slow_job() -> None:
    limiter = trio.CapacityLimiter(1)
    line = Timeline()
    async with open_task_queue(limiter=limiter) as left, open_task_queue(limiter=limiter) as right:
        for _ in range(10):
            left.submit_nowait(line.work, "left", 0.01)
            right.submit_nowait(line.work, "right", 0.01)
    for number in range(20):
        assert abs(line.names[:number].count("left") - line.names[:number].count("right")) <= 2
    assert_no_tokens(limiter)


@virtual
async def test_neither_queue_starves_and_no_slot_is_left_unused() -> None:
    limiter = trio.CapacityLimiter(4)
    line = Timeline()
    async with open_task_queue(limiter=limiter) as left, open_task_queue(limiter=limiter) as right:
        for _ in range(40):
            left.submit_nowait(line.work, "left", 1)
        for _ in range(40):
            right.submit_nowait(line.work, "right", 1)
        await trio.sleep(10.5)
        assert line.names.count("right") >= 10
        assert line.names.count("left") >= 10
    assert line.peak == 4
    assert trio.current_time() == 20
    assert_no_tokens(limiter)


@virtual
async def test_other_code_gets_its_turn_too() -> None:
    limiter = trio.CapacityLimiter(1)
    line = Timeline()
    async with open_task_queue(limiter=limiter) as queue:
        for _ in range(10):
            queue.submit_nowait(line.work, "x")
        await trio.sleep(0.5)
        async with limiter:
            assert trio.current_time() == 2  # the queue itself stood in line before it
            await trio.sleep(3)
    assert line.times("x") == [0, 1, *range(5, 13)]


Leave = Callable[[TaskQueue], Awaitable[object]]


async def pause(queue: TaskQueue) -> None:
    queue.pause()


async def clear(queue: TaskQueue) -> None:
    queue.clear()


async def close(queue: TaskQueue) -> None:
    await queue.close()


@virtual
@pytest.mark.parametrize("leave", [pause, clear, close])
async def test_a_queue_that_stands_in_line_does_not_sit_on_a_token_it_cannot_use(leave: Leave) -> None:
    limiter = trio.CapacityLimiter(1)
    line = Timeline()
    async with open_task_queue(limiter=limiter) as left, open_task_queue(limiter=limiter) as right:
        async with limiter:
            left.submit_nowait(line.work, "left")
            await wait_all_tasks_blocked()
            right.submit_nowait(line.work, "right")
            await wait_all_tasks_blocked()
            await leave(left)
            await trio.sleep(5)
        await trio.sleep(5)
        assert line.events == [(5, "right")]
        left.resume()
    assert_no_tokens(limiter)


@virtual
@pytest.mark.parametrize("first", ["cancel", "release"])
async def test_a_token_granted_in_the_tick_of_a_cancellation_comes_back(first: str) -> None:
    limiter = trio.CapacityLimiter(1)
    line = Timeline()
    outsider = object()
    await limiter.acquire_on_behalf_of(outsider)
    async with trio.open_nursery() as nursery:

        async def run_queue() -> None:
            with scope:
                async with open_task_queue(limiter=limiter) as queue:
                    queue.submit_nowait(line.work, "x")
                    await trio.sleep_forever()

        scope = trio.CancelScope()
        nursery.start_soon(run_queue)
        await wait_all_tasks_blocked()
        if first == "cancel":
            scope.cancel()
        limiter.release_on_behalf_of(outsider)
        if first == "release":
            scope.cancel()
    assert_no_tokens(limiter)


@virtual
async def test_queues_may_close_in_any_order() -> None:
    limiter = trio.CapacityLimiter(2)
    line = Timeline()
    async with AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(open_task_queue(limiter=limiter)) for _ in range(3)]
        for queue in queues * 5:
            queue.submit_nowait(line.work, "x")
        await trio.sleep(1.5)
        assert len(await queues[1].close()) + queues[1].statistics().succeeded == 5
    assert_no_tokens(limiter)


# ------------------------------------------------------------------------------------- nothing that spins


async def _paused(queue: TaskQueue) -> None:
    queue.pause()
    queue.submit_nowait(trio.sleep, 1)


async def _no_slots(queue: TaskQueue) -> None:
    queue.concurrency = 0
    queue.submit_nowait(trio.sleep, 1)


async def _gated(queue: TaskQueue) -> None:
    gate = Gate()
    gate.shut(7200)
    queue.submit_nowait(trio.sleep, 1, gate=gate)


async def _blocked_keys(queue: TaskQueue) -> None:
    for _ in range(3):
        queue.submit_nowait(trio.sleep, 7200, key="k")


async def _retry_scheduled(queue: TaskQueue) -> None:
    job = queue.submit_nowait(Timeline().flaky("x", seconds=0), retry=pauses(7200))
    await wait_all_tasks_blocked()
    assert job.state is JobState.RETRY_SCHEDULED


async def _heavy(queue: TaskQueue) -> None:
    queue.submit_nowait(trio.sleep, 7200)
    queue.submit_nowait(trio.sleep, 1, weight=3)


async def _delayed(queue: TaskQueue) -> None:
    queue.submit_nowait(trio.sleep, 1, delay=7200)


async def _full(queue: TaskQueue) -> None:
    for _ in range(3):
        queue.submit_nowait(trio.sleep, 7200)


@pytest.mark.parametrize(
    "scene", [_paused, _no_slots, _gated, _blocked_keys, _retry_scheduled, _heavy, _delayed, _full]
)
def test_nothing_runs_in_an_hour_of_waiting(scene: Callable[[TaskQueue], Awaitable[None]]) -> None:
    passes = SchedulerPasses()

    async def main() -> None:
        with trio.CancelScope() as scope:
            async with open_task_queue(concurrency=2, per_key=1) as queue:
                await scene(queue)
                await wait_all_tasks_blocked()
                await trio.sleep(1)
                before = passes.count
                await trio.sleep(3600)
                assert passes.count == before + 1
                scope.cancel()

    run_virtual(main, instruments=[passes])
