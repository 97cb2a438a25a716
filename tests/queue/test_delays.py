"""Delayed starts, and ramps after a pause, to the second."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Timeline, virtual
from trio_orchestrator import JobState, open_task_queue


@virtual
async def test_delayed_jobs_start_then_and_take_the_place_of_their_submission() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        later = queue.submit_nowait(line.work, "later", delay=2.5)
        for name in "abcd":
            queue.submit_nowait(line.work, name)
        queue.submit_nowait(line.work, "at seven", start_at=7)
        queue.submit_nowait(line.work, "past", start_at=-5)
        assert later.state is JobState.WAITING
        assert queue.statistics().waiting == 6
        await trio.sleep(6.5)
        assert queue.statistics().waiting == 1
    assert line.events == [(0, "a"), (1, "b"), (2, "c"), (3, "later"), (4, "d"), (5, "past"), (7, "at seven")]


@virtual
async def test_a_ramp_lets_starts_grow() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=5) as queue:
        queue.pause()
        for _ in range(20):
            queue.submit_nowait(line.work, "x", 100)
        await trio.sleep(50)
        queue.resume(ramp=10)
    assert [at - 50 for at in line.times("x")[:5]] == [0, 4, 6, 8, 10]
    assert line.times("x")[5:7] == [150, 154]


@virtual
async def test_a_ramp_counts_the_bodies_that_run_and_short_ones_make_room() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=4) as queue:
        for _ in range(3):
            queue.submit_nowait(line.work, "before", 6)
        await wait_all_tasks_blocked()
        queue.pause()
        for _ in range(6):
            queue.submit_nowait(line.work, "x", 1)
        await trio.sleep(4)
        queue.resume(ramp=8)  # three run: the fourth place is allowed at 12, but two end at 6
    assert line.times("x") == [6, 7, 8, 8, 9, 9]


@virtual
@pytest.mark.parametrize(("limit", "ramp"), [(3, 0.1), (7, 0.3), (3, 1 / 3), (49, 0.7)])
async def test_float_steps_of_a_ramp_neither_spin_nor_stall(limit: int, ramp: float) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=limit) as queue:
        queue.pause()
        for _ in range(2 * limit):
            queue.submit_nowait(line.work, "x", 10)
        queue.resume(ramp=ramp)
    expected = [0.0, *(ramp * step / limit for step in range(2, limit)), ramp]
    assert line.times("x")[:limit] == pytest.approx(expected, abs=2e-6)


@virtual
async def test_pausing_ends_a_ramp_and_resuming_without_one_starts_all() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=4) as queue:
        queue.pause()
        for _ in range(4):
            queue.submit_nowait(line.work, "x", 100)
        queue.resume(ramp=100)
        await trio.sleep(10)
        queue.pause()
        await trio.sleep(70)
        assert line.times("x") == [0]
        queue.resume()
    assert line.times("x") == [0, 80, 80, 80]
