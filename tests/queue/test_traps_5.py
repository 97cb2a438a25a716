"""Traps 13 to 15: ramps, the alarm, tombstones."""

from __future__ import annotations

import math
from contextvars import ContextVar
from random import Random
from typing import Any, Final

import pytest
import trio
import trio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import JobState, Overflow, open_task_queue
from trio_orchestrator.queue.alarm import Alarm
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(5))
variable: ContextVar[str] = ContextVar("variable", default="unset")
thing_in_context: ContextVar[object] = ContextVar("thing_in_context", default=None)


# ------------------------------------------------------------------------------------------------ T13: ramps


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    limit=st.integers(1, 12),
    ramp=st.floats(1e-9, 1e9),
    begin=st.floats(0, 1e9),
    service=st.floats(0, 2),
)
def test_t13_a_ramp_moves_time_at_every_step_and_lets_no_more_run_than_it_says(
    seed: int, limit: int, ramp: float, begin: float, service: float
) -> None:
    async def main() -> None:
        bodies = Bodies()
        start = begin
        async with open_task_queue(concurrency=limit) as queue:
            queue.pause()

            async def body() -> None:
                with bodies.inside():
                    elapsed = trio.current_time() - start
                    if elapsed < ramp:
                        assert bodies.running <= max(1, math.floor(limit * elapsed / ramp * (1 + 1e-8)))
                    await trio.sleep(service * ramp)

            handles = [queue.submit_nowait(body) for _ in range(2 * limit)]
            await trio.sleep(begin)
            start = trio.current_time()
            queue.resume(ramp=ramp)
        assert bodies.peak <= limit
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed, max_jumps=1000)


@pytest.mark.parametrize("limit", [0, 1, 3, math.inf])
def test_t13_a_ramp_at_the_edges(limit: float) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=2) as queue:
            queue.pause()
            handles = [queue.submit_nowait(bodies.sleep, 100) for _ in range(4)]
            queue.concurrency = limit if limit == math.inf else int(limit)
            queue.resume(ramp=10)
            await trio.sleep(5)
            assert bodies.started == min(limit, 1)
            await trio.sleep(5.5)
            assert bodies.started == min(limit, 4)
            queue.concurrency = 4
            await trio.lowlevel.checkpoint()
            queue.resume(ramp=10)  # not paused: nothing happens
        assert bodies.times[-1] in (10, 10.5, 100)
        assert_over(queue, handles, bodies)

    run_virtual(main, max_jumps=1000)


@schedules
def test_t13_a_ramp_goes_step_by_step(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=4) as queue:
            queue.pause()
            handles = [queue.submit_nowait(bodies.sleep, 100) for _ in range(5)]
            await trio.sleep(1)
            queue.resume(ramp=8)
        assert bodies.times == [1, 5, 7, 9, 101]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


# -------------------------------------------------------------------------------------------- T14: the alarm


@schedules
def test_t14_the_alarm_hears_of_an_earlier_time_and_of_one_that_is_gone(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=9) as queue:
            late = await queue.submit(bodies.sleep, 0, 50, delay=50)
            await trio.sleep(1)
            early = await queue.submit(bodies.sleep, 0, 10, start_at=10)
            head = await queue.submit(bodies.sleep, 0, 5, delay=4)
            now = await queue.submit(bodies.sleep, 0, 1, delay=0)
            past = await queue.submit(bodies.sleep, 0, 1, start_at=0.5)
            head.cancel()  # the head of the heap: the alarm wakes for nothing, or not at all
            handles = [late, early, head, now, past]
            await trio.sleep(9)  # the alarm and we wake in the same tick
            handles.append(await queue.submit(bodies.sleep, 0, 12, delay=2))
            handles.append(await queue.submit(bodies.sleep, 0, 10, delay=0))
            await trio.sleep(5)
            assert queue.clear() == 1
        assert bodies.starts == [(1, 1), (1, 1), (10, 10), (10, 10), (12, 12)]
        assert trio.current_time() == 15
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


def test_t14_cancelled_entries_of_the_alarm_are_compacted() -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, max_waiting=math.inf) as queue:
            heap = queue._engine.alarm._heap
            keeper = queue.submit_nowait(trio.sleep, 0, delay=5)
            for n in range(2000):
                queue.submit_nowait(trio.sleep, 0, delay=10 + n % 7, timeout=1000, start_within=500).cancel()
                assert len(heap) < 300
            handles = [queue.submit_nowait(trio.sleep, 0, timeout=1000) for _ in range(2000)]
            await trio.sleep(1)
            assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
            assert len(heap) < 300
        assert keeper.state is JobState.SUCCEEDED
        assert trio.current_time() == 5

    run_virtual(main)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1))
def test_t14_everything_fires_once_at_its_time_in_order(seed: int) -> None:
    random = Random(seed)
    fired: list[tuple[float, float]] = []

    async def main() -> None:
        alarm = Alarm(lambda jobs: None)
        expected: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alarm.run)
            timers = []
            for _ in range(30):
                due = trio.current_time() + random.choice([-1, 0, 0.5, 1, 3, 7])
                timers.append((due, alarm.call_at(due, lambda due=due: fired.append((due, trio.current_time())))))  # type: ignore[misc]
                if random.random() < 0.3:
                    _, gone = timers.pop(random.randrange(len(timers)))
                    alarm.cancel(gone)
                    alarm.cancel(gone)
                if random.random() < 0.3:
                    await trio.sleep(random.choice([0, 0.5, 1]))
            expected = [due for due, _ in timers]
            await trio.sleep(10)
            assert len(alarm) == 0
            nursery.cancel_scope.cancel()
        assert set(expected) <= {due for due, _ in fired}
        assert all(at >= due for due, at in fired)
        assert [at for _, at in fired] == sorted(at for _, at in fired)

    run_virtual(main, seed=seed)


# ----------------------------------------------------------------------------------------- T15: tombstones


_FEW: Final = 400


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"key": "k"}, {"delay": 9}], ids=str)
@pytest.mark.parametrize("order", ["first", "last", "random"])
def test_t15_jobs_cancelled_while_paused_leave_no_tombstones(options: Any, order: str) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, per_key=1, max_waiting=math.inf) as queue:
            schedule = queue._engine.schedule
            queue.pause()
            for _ in range(3):
                handles = [queue.submit_nowait(trio.sleep, 0, **options) for _ in range(1000)]
                if order == "random":
                    Random(0).shuffle(handles)
                for handle in handles if order == "first" else reversed(handles):
                    handle.cancel()
                size = (
                    len(schedule.fifo) + sum(len(heap) for heap in schedule._heaps()) + len(queue._engine.alarm._heap)
                )
                assert size < _FEW
                assert queue.statistics().waiting == 0
            queue.resume()

    run_virtual(main)


def test_t15_priorities_changed_a_hundred_times_a_job_leave_no_tombstones() -> None:
    async def main() -> None:
        random = Random(5)
        async with open_task_queue(concurrency=1) as queue:
            schedule = queue._engine.schedule
            queue.pause()
            order: list[int] = []

            async def body(n: int) -> None:
                order.append(n)

            handles = [queue.submit_nowait(body, n) for n in range(50)]
            for _ in range(5000):
                handles[random.randrange(50)].priority = random.randrange(10)
            size = len(schedule.fifo) + sum(len(heap) for heap in schedule._heaps())
            assert size < _FEW
            s = queue.statistics()
            assert (s.submitted, s.waiting) == (50, 50)
            queue.resume()
        assert sorted(order) == list(range(50))
        priorities = [handles[n].priority for n in order]
        assert priorities == sorted(priorities, reverse=True)
        assert_over(queue, handles)

    run_virtual(main)


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
def test_t15_a_queue_that_drops_remembers_no_ended_jobs(overflow: Overflow) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, overflow=overflow, max_waiting=10) as queue:
            first = await queue.submit(trio.sleep, 0, delay=1e6)  # waits at the head all the time
            for _ in range(1000):
                await queue.submit(trio.sleep, 0)
                await queue.wait_below(5)
            held = queue._engine.victims
            assert held is not None
            remembered = len(getattr(held, "_jobs", getattr(held, "_heap", ())))
            assert remembered < _FEW
            first.cancel()

    run_virtual(main)
