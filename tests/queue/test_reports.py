"""Public bug reports about other queues, each as a test of ours: dropping, counting, timing out."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
import trio

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    Failures,
    JobDroppedError,
    JobHandle,
    JobState,
    JobTimeoutError,
    Retry,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


# ------------------------------------------------------------------------------------------ clear, idle, counts


@schedules
def test_p_queue_239_clear_settles_waiters(seed: int) -> None:
    """A cleared queue leaves the promises of its tasks pending for ever."""

    async def main() -> None:
        bodies = Bodies()
        told: list[str] = []

        async def wait(handle: JobHandle[object]) -> None:
            with pytest.raises(JobDroppedError) as caught:
                await handle.wait()
            told.append(caught.value.reason)

        async with trio.open_nursery() as nursery, open_task_queue(concurrency=1) as queue:
            handles = [await queue.submit(bodies.sleep, 1) for _ in range(4)]
            for handle in handles[1:]:
                nursery.start_soon(wait, handle)
            await trio.sleep(0.5)
            assert queue.clear("maintenance") == 3
            await trio.sleep(0.1)
            assert told == ["maintenance"] * 3
            handles.append(await queue.submit(bodies.sleep, 1))
        assert [handle.state for handle in handles] == [
            JobState.SUCCEEDED,
            *[JobState.DROPPED] * 3,
            JobState.SUCCEEDED,
        ]
        assert queue.statistics().drops_by_reason == {"maintenance": 3}
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("retrying", [False, True])
def test_p_queue_237_clearing_a_paused_queue_makes_it_idle(seed: int, retrying: bool) -> None:
    """`onIdle()` never fires if the queue is cleared while it is paused."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=2, retry=Retry(on=OSError, backoff=Constant(100))) as queue:
            handles: list[JobHandle[Any]] = []
            if retrying:
                handles.append(await queue.submit(bodies.fail, 0, OSError()))
                await trio.sleep(1)
            queue.pause()
            handles += [await queue.submit(bodies.sleep, 1) for _ in range(3)]
            idle_at: list[float] = []

            async def wait() -> None:
                await queue.wait_idle()
                idle_at.append(trio.current_time())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(5)
                assert idle_at == []
                queue.clear()
                await trio.sleep(1)
            assert idle_at == [6 if retrying else 5]
            assert queue.statistics().paused
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_agent_memory_1039_clearing_twice_and_in_every_state_keeps_idle_honest(seed: int) -> None:
    """`clear` leaves `onIdle` pending on a paused queue."""

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            for paused in (True, False, True):
                queue.submit_nowait(trio.sleep, 1)
                queue.submit_nowait(trio.sleep, 1, delay=50)
                if paused:
                    queue.pause()
                else:
                    queue.resume()
                queue.clear()
                assert queue.clear() == 0
                with trio.fail_after(2):
                    await queue.wait_idle()
                assert queue.statistics().idle
            assert_law(queue.statistics())

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("options", [{}, {"priority": 1}, {"attempt_timeout": 9}], ids=str)
def test_p_queue_27_tens_of_thousands_of_jobs_that_end_at_once_do_not_recurse(options: Any) -> None:
    """Tasks that are finished at once overflow the stack."""

    async def nothing() -> None:
        pass

    async def main() -> None:
        async with open_task_queue(concurrency=3, max_waiting=math.inf) as queue:
            for _ in range(8_000):
                queue.submit_nowait(nothing, **options)
        assert queue.statistics().succeeded == 8_000

    run_virtual(main)


def test_p_queue_27_nor_does_a_crowd_at_the_door_that_is_let_in_at_once() -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=3000, max_waiting=1) as queue:
            queue.pause()
            async with trio.open_nursery() as nursery:
                for _ in range(2000):
                    nursery.start_soon(queue.submit, trio.sleep, 1)
                await trio.testing.wait_all_tasks_blocked()
                assert queue.statistics().at_the_door == 1999
                queue.resume()
        assert queue.statistics().succeeded == 2000
        assert trio.current_time() == 1

    run_virtual(main)


@schedules
def test_bottleneck_134_and_194_the_counts_hold_at_every_instant(seed: int) -> None:
    """Jobs are stuck in the state `running`, or never run."""

    async def main() -> None:
        random = Random(seed)
        bodies = Bodies()
        handles: list[JobHandle[Any]] = []
        async with (
            trio.open_nursery() as nursery,
            open_task_queue(
                concurrency=4,
                retry=Retry(on=OSError, attempts=2, backoff=Constant(1)),
                failures=Failures.RECORD,
                max_waiting=20,
            ) as queue,
        ):

            async def look() -> None:
                while True:
                    await trio.testing.wait_all_tasks_blocked()
                    s = queue.statistics()
                    assert_law(s)
                    assert s.running == bodies.running
                    assert bodies.running <= 4
                    await trio.sleep(0.125)

            nursery.start_soon(look)
            for n in range(150):
                kind = random.randrange(5)
                if kind == 0:
                    handles.append(await queue.submit(bodies.fail, 1, OSError()))
                elif kind == 1:
                    handles.append(await queue.submit(bodies.clean_up, 9, 0.5, attempt_timeout=random.random() + 0.01))
                else:
                    handles.append(await queue.submit(bodies.sleep, random.random(), timeout=20, priority=n % 3))
                if not random.randrange(4):
                    random.choice(handles).cancel()
                await trio.sleep(random.random() / 4 + 0.03125)
            await queue.wait_idle()
            nursery.cancel_scope.cancel()
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


# ---------------------------------------------------------------------------------------------------- time-outs


@schedules
def test_bottleneck_152_capacity_is_whole_after_thousands_of_time_outs(seed: int) -> None:
    """After expirations the queue is stuck, with `maxConcurrent` slots taken for ever."""

    async def main() -> None:
        random = Random(seed)
        bodies = Bodies()
        async with open_task_queue(concurrency=5, failures=Failures.RECORD, max_waiting=math.inf) as queue:
            handles: list[JobHandle[Any]] = []
            for _ in range(600):
                which = random.choice(["attempt_timeout", "timeout", "start_within"])
                options: Any = {which: random.choice([0.25, 0.5, 1]) + (which == "timeout") * random.random() * 30}
                handles.append(
                    await queue.submit(bodies.clean_up, random.choice([0.25, 1]), random.choice([0, 1]), **options)
                )
            await queue.wait_idle()
            assert queue.limiter.borrowed_tokens == 0
            again = [await queue.submit(bodies.sleep, 1) for _ in range(5)]
            await trio.sleep(0.5)
            assert bodies.running == 5
        assert bodies.peak == 5
        assert queue.statistics().failed > 100
        assert_over(queue, [*handles, *again], bodies)

    run_virtual(main, seed=seed)


def test_bottleneck_77_the_time_an_attempt_may_take_does_not_count_the_wait() -> None:
    """Jobs expire at once, since the time in the queue is counted."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, attempt_timeout=2) as queue:
            handles = [await queue.submit(bodies.sleep, 1.5) for _ in range(5)]
            handles.append(late := await queue.submit(bodies.sleep, 1.5, timeout=2))
            with pytest.raises(JobTimeoutError) as caught:
                await late.wait()  # unless told otherwise
        assert caught.value.which == "timeout"
        assert bodies.returned == 5
        assert_over(queue, handles, bodies)

    run_virtual(main)


@schedules
def test_prefect_7752_a_timed_out_job_gives_its_slot_back_when_it_has_left(seed: int) -> None:
    """A timed-out task keeps its concurrency slot for ever; or gives it back while it still runs."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
            handles = [await queue.submit(bodies.clean_up, 50, 3, attempt_timeout=1)]
            handles.append(await queue.submit(bodies.clean_up, 50, 0, timeout=6))
            handles.append(await queue.submit(bodies.clean_up, 1, 0))
        assert bodies.times == [0, 4, 6]
        assert bodies.peak == 1
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)
