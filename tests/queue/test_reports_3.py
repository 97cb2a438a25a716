"""Public bug reports about cancelling, shutting down, and context managers, each as a test of ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import trio

from tests.queue.bodies import Bodies, assert_law, assert_over
from trio_orchestrator import (
    Failures,
    Gate,
    JobCancelledError,
    JobGroup,
    JobHandle,
    JobState,
    TaskQueue,
    open_map,
    open_task_queue,
)
from trio_orchestrator.testing import assert_no_tokens, run_virtual

schedules = pytest.mark.parametrize("seed", range(5))


# ------------------------------------------------------------------------------------------ cancel and shut down


@schedules
@pytest.mark.parametrize("moment", [0, 0.5, 1, 1.5, 2])
def test_httpcore_1093_a_cancelled_caller_leaves_its_slot_to_others(seed: int, moment: float) -> None:
    """A request that is cancelled while it waits or connects leaves its place in the pool taken for ever."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=1, max_waiting=2) as queue:

            async def caller(n: int) -> None:
                with trio.move_on_after(moment) if n % 2 else trio.CancelScope():
                    await queue.run(bodies.sleep, 1, n)

            async with trio.open_nursery() as nursery:
                for n in range(9):
                    nursery.start_soon(caller, n)
            with trio.fail_after(1.5):
                await queue.run(bodies.sleep, 1, "serves again")
        assert bodies.labels[-1] == "serves again"
        assert bodies.peak == 1
        assert queue.statistics().submitted == queue.statistics().succeeded + queue.statistics().cancelled
        assert_no_tokens(queue.limiter)

    run_virtual(main, seed=seed)


@schedules
def test_anyio_146_a_submission_cancelled_as_it_gets_in_is_in_or_out_and_never_lost(seed: int) -> None:
    """An item is lost when `receive` is cancelled in the tick in which it arrives."""

    async def main() -> None:
        bodies = Bodies()
        got: list[JobHandle[object]] = []
        gave_up = 0
        async with open_task_queue(concurrency=1, max_waiting=1) as queue:

            async def producer(n: int) -> None:
                nonlocal gave_up
                with trio.move_on_after(n) as scope:  # falls into the tick in which there is room
                    got.append(await queue.submit(bodies.sleep, 1, n))
                    return
                assert scope.cancelled_caught
                gave_up += 1

            async with trio.open_nursery() as nursery:
                for n in range(12):
                    nursery.start_soon(producer, n)
        assert len(got) + gave_up == 12
        assert len(got) == queue.statistics().submitted == bodies.returned
        assert_over(queue, got, bodies)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize(("grace", "end"), [(0, 1), (2, 3), (10, 6)])
def test_anycorn_88_shutting_down_lets_running_jobs_finish_for_the_grace_it_was_given(
    seed: int, grace: float, end: float
) -> None:
    """Shutdown cuts running requests off, since they live in the nursery that is cancelled."""

    async def main() -> None:
        bodies = Bodies()
        async with open_task_queue(concurrency=3) as queue:
            handles = [await queue.submit(bodies.sleep, seconds) for seconds in (2, 3, 6, 1)]
            await trio.sleep(1)
            unfinished = await queue.close(grace=grace)
        succeeded = [handle.state is JobState.SUCCEEDED for handle in handles]
        if grace == 0:
            assert (succeeded, len(unfinished)) == ([False] * 4, 4)
        elif grace == 2:  # at 3 s, the very end of the grace, one is done or cut: both are right
            assert (succeeded[0], succeeded[2], succeeded[3]) == (True, False, False)
            assert {handle for handle in handles if handle.state is JobState.CANCELLED} == set(unfinished)
        else:
            assert (succeeded, unfinished) == ([True, True, True, False], [handles[3]])
        assert trio.current_time() == end
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


async def _steal_a_cancellation() -> trio.Cancelled:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as stolen:
            return stolen
    raise AssertionError("not cancelled")


@schedules
@pytest.mark.parametrize("how", ["leaks a scope", "breaks out", "stray"])
def test_trio_3035_a_worker_that_dies_gives_its_slot_back(seed: int, how: str) -> None:
    """A task that exits while it holds a lock or a token leaves it taken for ever."""

    async def main() -> None:
        limiter = trio.CapacityLimiter(1)

        async def bad() -> None:
            match how:
                case "leaks a scope":
                    trio.CancelScope().__enter__()
                case "breaks out":
                    raise SystemExit
                case _:
                    raise stolen

        stolen = await _steal_a_cancellation()
        try:
            async with open_task_queue(limiter=limiter, failures=Failures.RECORD) as queue:
                await queue.submit(bad)
                await trio.sleep(1)
                await queue.run(trio.sleep, 1)
        except SystemExit:
            assert how == "breaks out"
        assert_no_tokens(limiter)
        with trio.fail_after(1):
            async with limiter:
                pass

    run_virtual(main, seed=seed)


# ------------------------------------------------------------------------------------------- context managers


@asynccontextmanager
async def _group() -> AsyncGenerator[JobGroup, None]:
    async with open_task_queue() as queue, queue.group() as mine:
        yield mine


BLOCKS: dict[str, Callable[[], AbstractAsyncContextManager[object]]] = {
    "queue": open_task_queue,
    "group": _group,
    "map": lambda: open_map(trio.sleep, [1, 2]),
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_trio_websocket_132_a_hidden_nursery_wraps_nobodys_error(block: Callable[[], Any]) -> None:
    """The user's error comes out of `async with` in an `ExceptionGroup`, because there is a nursery inside."""
    error = ValueError("own")

    async def main() -> None:
        async with block():
            await trio.sleep(0.5)
            raise error

    with pytest.raises(ValueError, match="own") as caught:
        run_virtual(main)
    assert caught.value is error


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_tractor_464_a_service_cancelled_before_it_is_ready_is_cancelled_and_not_broken(
    block: Callable[[], Any],
) -> None:
    """`nursery.start` turns a cancellation of its child into a `RuntimeError`."""

    async def service(task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        async with block() as opened:
            await trio.sleep(5)
            task_status.started(opened)

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(service)
        assert scope.cancelled_caught

    run_virtual(main)


def test_triopg_19_a_queue_is_unusable_after_its_block_and_says_so() -> None:
    """A pool's proxy may be used after its block, with an obscure error."""

    async def main() -> None:
        async with open_task_queue() as queue, queue.group() as mine:
            handle = await queue.submit(trio.sleep, 1)
        closed = pytest.raises(trio.ClosedResourceError, match=r"closed|was left")
        for use in (queue.submit_nowait, mine.submit_nowait):
            with closed:
                use(trio.sleep, 1)
        for wait in (queue.submit, queue.run, mine.submit):
            with closed:
                await wait(trio.sleep, 1)
        _harmless(queue, mine, handle)
        await queue.wait_idle()
        assert await queue.close() == []
        await handle.wait()
        await mine.wait()

    run_virtual(main)


def _harmless(queue: TaskQueue, mine: JobGroup, handle: JobHandle[None]) -> None:
    queue.pause()
    queue.resume(ramp=3)
    queue.concurrency = 0
    queue.concurrency = 5
    assert queue.clear() == 0
    handle.cancel()
    handle.priority = 4
    mine.cancel()
    Gate().shut(3)
    assert handle.state is JobState.SUCCEEDED
    assert queue.statistics().idle
    assert repr(queue)
    assert_law(queue.statistics())


def test_trio_websocket_187_a_cancelled_job_is_told_as_such_and_not_as_a_group() -> None:
    async def main() -> None:
        async with open_task_queue() as queue:

            async def job() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(trio.sleep_forever)
                    await trio.sleep_forever()

            handle = await queue.submit(job)
            await trio.sleep(1)
            handle.cancel("enough")
            with pytest.raises(JobCancelledError, match="enough"):
                await handle.wait()

    run_virtual(main)
