"""What was wrong once, and belongs to no other list."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import (
    Failures,
    Gate,
    JobCancelledError,
    JobHandle,
    JobState,
    Retry,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.testing import run_virtual

schedules = pytest.mark.parametrize("seed", range(6))
RETRY = Retry(on=OSError, attempts=3, backoff=Constant(1))


@schedules
@pytest.mark.parametrize("act", ["nothing", "priority", "run"])
def test_a_job_that_gets_terms_late_keeps_the_retry_of_its_queue(seed: int, act: str) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=2, retry=RETRY, failures=Failures.RECORD) as queue:
            handles: list[JobHandle[Any]] = [await queue.submit(bodies.sleep, 0)]  # the first one is measured
            queue.pause()
            for _ in range(5):
                handles.append(queue.submit_nowait(bodies.fail, 0.5, OSError()))
                if act == "priority":
                    handles[-1].priority = 3
            queue.resume()
            if act == "run":
                with pytest.raises(OSError):
                    await queue.run(bodies.fail, 0.5, OSError())
        assert [handle.attempts for handle in handles] == [1, 3, 3, 3, 3, 3]
        assert bodies.started == 1 + 3 * 5 + (3 if act == "run" else 0)

    run_virtual(main, seed=seed)


@schedules
def test_an_error_object_that_one_job_was_repeated_for_in_vain_is_repeated_for_the_next(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        shared = OSError("a constant of the module")
        async with open_task_queue(retry=RETRY, failures=Failures.RECORD) as queue:
            handles = [await queue.submit(bodies.fail, 0, shared)]
            await queue.wait_idle()
            handles.append(await queue.submit(bodies.fail, 0, shared))
        assert [handle.attempts for handle in handles] == [3, 3]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("moment", [0.5, 1.5, 2.5])
def test_a_cancelled_job_names_the_failure_it_was_repeated_for(seed: int, moment: float) -> None:
    async def main() -> None:
        bodies = Bodies()
        error = OSError("the first attempt")
        async with open_task_queue(concurrency=1) as queue:

            async def body() -> None:
                with bodies.inside():
                    await trio.sleep(1)
                    if bodies.started == 1:
                        raise error
                    await trio.sleep(100)

            handle = await queue.submit(body, retry=RETRY)
            await trio.sleep(moment)  # in the first attempt, in the pause, in the second one
            handle.cancel("enough")
            with pytest.raises(JobCancelledError) as caught:
                await handle.wait()
            assert caught.value.__cause__ is (None if moment < 1 else error)
            other = await queue.submit(trio.sleep, 9)
            await trio.sleep(1)
            other.cancel()
            with pytest.raises(JobCancelledError) as caught:
                await other.wait()
            assert caught.value.__cause__ is None
        assert_over(queue, [handle, other])

    run_virtual(main, seed=seed)


@schedules
def test_wait_below_says_so_when_the_queue_closes_although_nothing_waits_then(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        told: list[str] = []

        async def wait(queue: TaskQueue, bound: int) -> None:
            try:
                await queue.wait_below(bound)
                told.append("below")
            except trio.ClosedResourceError:
                told.append("closed")

        async with trio.open_nursery() as nursery, open_task_queue(concurrency=1) as queue:
            handles = [await queue.submit(bodies.sleep, 10) for _ in range(4)]
            for bound in (1, 3, 4):
                nursery.start_soon(wait, queue, bound)
            await trio.sleep(1)
            await queue.close(grace=100)
        assert told.count("closed") == 2
        assert told[0] == "below"
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_a_run_that_would_deadlock_takes_its_job_back(seed: int) -> None:
    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1) as queue:

            async def job() -> None:
                with bodies.inside("outer"):
                    with pytest.raises(RuntimeError, match="deadlock"):
                        await queue.run(bodies.sleep, 1, "inner")

            handle = await queue.submit(job)
        assert bodies.labels == ["outer"]
        assert (queue.statistics().cancelled, handle.state) == (1, JobState.SUCCEEDED)

    run_virtual(main, seed=seed)


@schedules
def test_the_tags_of_a_submission_at_the_door_are_read_once(seed: int) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1, max_waiting=1) as queue:
            for _ in range(4):
                handle = await queue.submit(trio.sleep, 1, tags=(tag for tag in ["a", "b"]))
                assert handle.tags == ("a", "b")
            await queue.run(trio.sleep, 1, tags=iter(["a"]))
        assert queue.statistics().by_tag["a"]["succeeded"] == 5

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("how", ["raise", "cancel", "close"])
def test_bodies_that_clean_up_after_the_end_of_the_block_end_well(seed: int, gated: bool, how: str) -> None:
    async def main() -> None:
        bodies = Bodies()
        gate = Gate("mine")
        gate.shut(0.25)
        handles: list[JobHandle[Any]] = []
        queues: list[TaskQueue] = []
        with trio.CancelScope() as scope:
            try:
                async with open_task_queue(concurrency=2) as queue:
                    queues.append(queue)
                    options: Any = {"gate": gate, "timeout": 50} if gated else {}
                    handles += [await queue.submit(bodies.clean_up, 10, 1, **options) for _ in range(4)]
                    await trio.sleep(1)
                    if how == "raise":
                        raise ValueError(how)
                    if how == "cancel":
                        scope.cancel()
                    else:
                        await queue.close()
                    await trio.sleep(10)
            except ValueError:
                pass
        assert_over(queues[0], handles, bodies)
        assert gate._listeners == []

    run_virtual(main, seed=seed)
