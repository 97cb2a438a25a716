"""Traps 4 to 6: stray cancellations, a cancel between two jobs, stale deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio

from tests.queue.bodies import Bodies, assert_over
from trio_orchestrator import Failures, JobCancelledError, JobState, JobTimeoutError, Retry, open_task_queue
from trio_orchestrator.abc import Instrument
from trio_orchestrator.algorithms.backoff import Constant
from trio_orchestrator.event import JobFinished
from trio_orchestrator.testing import run_virtual

SEEDS: Final = range(5)
schedules = pytest.mark.parametrize("seed", SEEDS)


# ------------------------------------------------------------------------------- T4: a cancellation of nobody


async def _steal_a_cancellation() -> trio.Cancelled:
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as stolen:
            return stolen
    raise AssertionError("not cancelled")


@schedules
@pytest.mark.parametrize("grouped", [False, True])
def test_t04_a_stray_cancellation_is_the_failure_of_its_job(seed: int, grouped: bool) -> None:
    async def main() -> None:
        stolen = await _steal_a_cancellation()

        async def stray() -> None:
            if grouped:
                raise BaseExceptionGroup("", [stolen])
            raise stolen

        retry = Retry(on=Exception, attempts=3, backoff=Constant(0))
        async with open_task_queue(concurrency=1, failures=Failures.RECORD, retry=retry) as queue:
            first = await queue.submit(stray)
            second = await queue.submit(trio.sleep, 1)
        assert (first.state, first.attempts, second.state) == (JobState.FAILED, 1, JobState.SUCCEEDED)
        with pytest.raises(RuntimeError, match="no scope around it had asked for"):
            first.result_nowait()
        assert_over(queue, [first, second])

    run_virtual(main, seed=seed)


def test_t04_a_stray_cancellation_comes_out_of_the_block_if_nobody_waited() -> None:
    async def main() -> None:
        stolen = await _steal_a_cancellation()

        async def stray() -> None:
            raise stolen

        async with open_task_queue() as queue:
            await queue.submit(stray)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main)
    assert [type(error) for error in caught.value.exceptions] == [RuntimeError]


# ------------------------------------------------------------------------------------- T5: cancel in the gap


class _OnEnd(Instrument):
    """Calls something when a job ends: its worker then holds the next job, which is not in its body yet."""

    def __init__(self) -> None:
        self.act: Callable[[], object] = lambda: None

    def job_finished(self, event: JobFinished, /) -> None:
        self.act()


@schedules
def test_t05_a_job_cancelled_between_its_pop_and_its_body_never_runs(seed: int) -> None:
    bodies = Bodies()
    hook = _OnEnd()

    async def main() -> None:
        async with open_task_queue(concurrency=1, instruments=[hook]) as queue:
            handles = [await queue.submit(bodies.sleep, 1, n) for n in range(3)]
            seen: list[JobState] = []

            def act() -> None:
                seen.append(handles[1].state)
                handles[1].cancel("in the gap")

            hook.act = act
        assert seen[0] is JobState.RUNNING  # taken, though not begun
        assert bodies.labels == [0, 2]
        assert bodies.times == [0, 1]
        assert [handle.state for handle in handles] == [JobState.SUCCEEDED, JobState.CANCELLED, JobState.SUCCEEDED]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


@schedules
def test_t05_a_new_worker_whose_job_is_cancelled_before_its_first_step(seed: int) -> None:
    bodies = Bodies()

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            first = queue.submit_nowait(bodies.sleep, 1, "first")
            first.cancel("at once")
            first.cancel("and again")
            second = queue.submit_nowait(bodies.sleep, 1, "second")
        assert bodies.labels == ["second"]
        with pytest.raises(JobCancelledError, match="at once"):
            first.result_nowait()
        assert_over(queue, [first, second], bodies)

    run_virtual(main, seed=seed)


@schedules
@pytest.mark.parametrize("late", ["before", "after"])
def test_t05_a_cancel_in_the_tick_in_which_the_body_ends_hurts_nobody_else(seed: int, late: str) -> None:
    bodies = Bodies()
    end = trio.Event()

    async def first_body() -> str:
        await end.wait()
        return "done"

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            first = await queue.submit(first_body)
            second = await queue.submit(bodies.sleep, 10)
            await trio.sleep(1)
            if late == "before":
                first.cancel()
                end.set()
            else:
                end.set()
                first.cancel()
            await trio.lowlevel.checkpoint()
            first.cancel()
        assert second.state is JobState.SUCCEEDED
        assert trio.current_time() == 11
        # cancelled before it was woken, it got `Cancelled`; woken before, it returns
        assert first.state is (JobState.CANCELLED if late == "before" else JobState.SUCCEEDED)
        assert_over(queue, [first, second])

    run_virtual(main, seed=seed)


@schedules
def test_t05_a_cancel_after_the_worker_took_another_job_is_too_late(seed: int) -> None:
    bodies = Bodies()

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            first = await queue.submit(bodies.sleep, 1)
            second = await queue.submit(bodies.sleep, 1)
            await first.wait()
            first.cancel()
            await trio.sleep(0.5)
            first.cancel()
        assert (first.state, second.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
        assert_over(queue, [first, second], bodies)

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_t05_a_job_that_cancels_itself(checkpoint: bool) -> None:
    async def main() -> None:
        async def suicidal() -> str:
            handle.cancel("by itself")
            handle.cancel("twice")
            if checkpoint:
                await trio.lowlevel.checkpoint()
            return "left in time"

        async with open_task_queue() as queue:
            handle = queue.submit_nowait(suicidal)
        if checkpoint:
            with pytest.raises(JobCancelledError, match="by itself"):
                handle.result_nowait()
        else:
            assert handle.result_nowait() == "left in time"
        assert_over(queue, [handle])

    run_virtual(main)


def test_t05_a_cancel_after_the_time_out_fired_forbids_the_retry_and_no_more() -> None:
    bodies = Bodies()

    async def main() -> None:
        retry = Retry(on=OSError, attempts=3, backoff=Constant(1))
        async with open_task_queue(concurrency=1, retry=retry, failures=Failures.RECORD) as queue:
            slow = await queue.submit(bodies.clean_up, 100, 2, attempt_timeout=1)
            other = await queue.submit(bodies.fail, 0, OSError())  # the next one of that worker
            await trio.sleep(2)
            assert queue.statistics().overdue == 1
            slow.cancel("too late")
        assert slow.attempts == 1
        with pytest.raises(JobTimeoutError, match="attempt_timeout=1 s"):
            slow.result_nowait()
        assert other.attempts == 3  # the ban was the other job's
        assert_over(queue, [slow, other], bodies)

    run_virtual(main)


# ----------------------------------------------------------------------------------------- T6: stale deadlines


@schedules
@pytest.mark.parametrize("options", [{"attempt_timeout": 5}, {"timeout": 5}], ids=str)
def test_t06_a_deadline_that_passes_between_two_jobs_hurts_nobody(seed: int, options: dict[str, Any]) -> None:
    bodies = Bodies()

    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            handles = [await queue.submit(bodies.sleep, 1, **options)]
            await trio.sleep(4)  # parked, the deadline ahead
            handles.append(await queue.submit(bodies.sleep, 10))
            await trio.sleep(11)  # parked, the deadline behind
            handles.append(await queue.submit(bodies.sleep, 4, **options))
            await queue.wait_idle()
            handles.append(await queue.submit(bodies.sleep, 4, **options))
            handles.append(await queue.submit(bodies.sleep, 1, timeout=6))
        assert {handle.state for handle in handles} == {JobState.SUCCEEDED}
        assert bodies.times == [0, 4, 15, 19, 23]
        assert_over(queue, handles, bodies)

    run_virtual(main, seed=seed)


def _jump(seconds: float) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.jump(seconds)


async def _spin(seconds: float) -> str:
    _jump(seconds)  # no checkpoint: time passes all the same
    return "done"


@pytest.mark.parametrize("options", [{"attempt_timeout": 5}, {"timeout": 5}], ids=str)
def test_t06_a_deadline_that_passes_unnoticed_is_a_success(options: dict[str, Any]) -> None:
    async def main() -> None:
        async with open_task_queue(concurrency=1) as queue:
            first = await queue.submit(_spin, 8, **options)
            second = await queue.submit(trio.sleep, 4, attempt_timeout=5)
        assert first.result_nowait() == "done"
        assert second.state is JobState.SUCCEEDED
        assert trio.current_time() == 12
        assert_over(queue, [first, second])

    run_virtual(main)
