"""Pausing, clearing, cancelling and waiting: idempotent, in every state, from everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import (
    Failures,
    Gate,
    JobCancelledError,
    JobDroppedError,
    JobHandle,
    JobState,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import JobFinished

# ------------------------------------------------------------------------------------------ pause and resume


async def _idle(queue: TaskQueue) -> None:
    pass


async def _running(queue: TaskQueue) -> None:
    for _ in range(3):
        queue.submit_nowait(trio.sleep, 5)


async def _pausing(queue: TaskQueue) -> None:
    queue.submit_nowait(Timeline().flaky("x", seconds=0), retry=pauses(5))
    await wait_all_tasks_blocked()


async def _gated(queue: TaskQueue) -> None:
    gate = Gate()
    gate.shut(5)
    queue.submit_nowait(trio.sleep, 1, gate=gate)


async def _delayed(queue: TaskQueue) -> None:
    queue.submit_nowait(trio.sleep, 1, delay=5)


async def _ramping(queue: TaskQueue) -> None:
    await _running(queue)
    queue.pause()
    queue.resume(ramp=100)


async def _closed(queue: TaskQueue) -> None:
    await queue.close()


STATES = [_idle, _running, _pausing, _gated, _delayed, _ramping, _closed]


@virtual
@pytest.mark.parametrize("state", STATES)
async def test_controls_are_idempotent_and_legal_in_every_state(state: Callable[[TaskQueue], Awaitable[None]]) -> None:
    async with open_task_queue(concurrency=2) as queue:
        await state(queue)
        for _ in range(2):
            queue.pause()
            assert queue.statistics().paused
        for _ in range(2):
            queue.concurrency = 0
            queue.concurrency = 2
        for _ in range(2):
            queue.resume()
            assert not queue.statistics().paused
        waiting = queue.statistics().waiting + queue.statistics().retry_scheduled
        assert queue.clear() == waiting
        assert queue.clear() == 0
        await queue.wait_idle()
        await queue.wait_idle()
        assert queue.statistics().idle
        if state is not _closed:
            await queue.run(trio.sleep, 1)
    for _ in range(2):
        queue.pause()
        queue.resume()
        queue.concurrency = 5
        assert queue.clear() == 0
        await queue.wait_idle()


@virtual
async def test_while_paused_running_jobs_go_on_and_due_retries_stay() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, retry=pauses(3)) as queue:
        queue.submit_nowait(line.flaky("flaky"))
        queue.submit_nowait(line.work, "long", 20)
        await wait_all_tasks_blocked()
        queue.pause()
        queue.submit_nowait(line.work, "new")
        await trio.sleep(10)
        assert queue.statistics().waiting == 2
        queue.resume()
    assert line.events[2:] == [(10, "flaky"), (11, "new")]
    assert trio.current_time() == 20


# --------------------------------------------------------------------------------------------------- clear


async def _outcome(job: JobHandle[object]) -> BaseException | None:
    try:
        await job.wait()
    except Exception as error:
        return error
    return None


@virtual
@pytest.mark.parametrize("reason", ["a text", KeyError("an exception")])
async def test_clear_settles_every_waiter_of_what_waits_and_of_what_pauses(reason: str | Exception) -> None:
    line, found = Timeline(), []

    async def waiter(job: JobHandle[object]) -> None:
        found.append((job, await _outcome(job)))

    async with open_task_queue(concurrency=2, retry=pauses(100)) as queue, trio.open_nursery() as nursery:
        pausing = queue.submit_nowait(line.flaky("x", seconds=0))
        running = queue.submit_nowait(line.work, "running", 5)
        await wait_all_tasks_blocked()
        jobs: list[JobHandle[object]] = [
            pausing,
            queue.submit_nowait(line.work, "delayed", delay=50),
            *(queue.submit_nowait(line.work, "waiting", 5, timeout=99, start_within=88) for _ in range(3)),
        ]
        await wait_all_tasks_blocked()
        for job in jobs * 2:
            nursery.start_soon(waiter, job)
        await trio.sleep(1)
        assert queue.clear(reason) == 4  # one of the three waiting ones runs
        await wait_all_tasks_blocked()
        assert running.state is JobState.RUNNING
        assert queue.statistics().drops_by_reason == {str(reason): 4}
        assert len(found) == 8
        for job, error in found:
            assert job.state is JobState.DROPPED
            if isinstance(reason, str):
                assert isinstance(error, JobDroppedError)
                assert error.reason == reason
                assert isinstance(error.__cause__, Flop) == (job is pausing)
            else:
                assert error is reason
    assert trio.current_time() == 5


@virtual
async def test_clear_from_inside_a_job_spares_that_job() -> None:
    async def body() -> int:
        return queue.clear()

    async with open_task_queue(concurrency=1) as queue:
        job = queue.submit_nowait(body)
        for _ in range(5):
            queue.submit_nowait(trio.sleep, 1)
        assert await job.wait() == 5


@virtual
async def test_clear_cancel_and_submit_from_a_hook() -> None:
    class Meddler(Instrument):
        def job_finished(self, event: JobFinished, /) -> None:
            statistics = queue.statistics()
            ended = statistics.succeeded + statistics.cancelled + statistics.dropped
            assert statistics.submitted == ended + statistics.waiting + statistics.running
            if event.name == "first":
                jobs[-1].cancel("by a hook")
                cleared.append(queue.clear("by a hook"))
                queue.submit_nowait(line.work, "new")
            elif event.name == "last":
                cleared.append(queue.clear("by a hook of a hook"))

    line, cleared = Timeline(), list[int]()
    async with open_task_queue(concurrency=1, instruments=[Meddler()]) as queue:
        jobs = [queue.submit_nowait(line.work, name, name=name) for name in ("first", "next", "a", "b", "c", "last")]
    assert cleared == [3, 0]
    assert line.names == ["first", "next", "new"]  # the next one had the slot before anybody was told of the first
    assert [job.state.value for job in jobs] == ["succeeded", "succeeded", *["dropped"] * 3, "cancelled"]


@virtual
async def test_clear_and_cancel_from_a_waiter() -> None:
    async def waiter() -> None:
        with pytest.raises(JobCancelledError):
            await jobs[1].wait()
        assert queue.clear() == 1
        jobs[0].cancel()

    async with open_task_queue(concurrency=1) as queue, trio.open_nursery() as nursery:
        jobs = [queue.submit_nowait(trio.sleep, 9) for _ in range(3)]
        nursery.start_soon(waiter)
        await trio.sleep(1)
        jobs[1].cancel()
    assert [job.state.value for job in jobs] == ["cancelled", "cancelled", "dropped"]
    assert trio.current_time() == 1


# -------------------------------------------------------------------------------------------------- cancel


@virtual
@pytest.mark.parametrize("paused", [False, True])
async def test_cancel_works_in_every_state(paused: bool) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, retry=pauses(100), failures=Failures.RECORD) as queue:
        pausing = queue.submit_nowait(line.flaky("pausing", seconds=0))
        succeeded = queue.submit_nowait(line.work, "succeeded", 0)
        failed = queue.submit_nowait(line.flaky("failed", seconds=0), retry=None)
        await trio.sleep(1)
        dropped = queue.submit_nowait(trio.sleep, 9, delay=9)
        assert queue.clear() == 2
        pausing = queue.submit_nowait(line.flaky("pausing", seconds=0))
        await wait_all_tasks_blocked()
        running = queue.submit_nowait(line.work, "running", 50)
        cleaning = queue.submit_nowait(clean_up, 3)
        waiting = queue.submit_nowait(line.work, "never")
        delayed = queue.submit_nowait(line.work, "never", delay=50)
        await wait_all_tasks_blocked()
        if paused:
            queue.pause()
        for job in (pausing, running, cleaning, waiting, delayed, succeeded, failed, dropped):
            for reason in ("first", "second"):
                job.cancel(reason)
        assert [job.state.value for job in (pausing, waiting, delayed)] == ["cancelled"] * 3
        assert [job.state.value for job in (running, cleaning)] == ["running"] * 2
        for job in (pausing, running, cleaning, waiting, delayed):
            with pytest.raises(JobCancelledError, match=r"^job cancelled: first$") as caught:
                await job.wait()
            assert caught.value.reason == "first"
            assert isinstance(caught.value.__cause__, Flop) == (job is pausing)
        assert [job.state.value for job in (succeeded, failed, dropped)] == ["succeeded", "failed", "dropped"]
        assert trio.current_time() == 4
    assert "never" not in line.names


@virtual
async def test_a_job_cancelled_before_its_body_has_begun_never_begins() -> None:
    line = Timeline()
    async with open_task_queue() as queue:
        job = queue.submit_nowait(line.work, "x")
        assert job.state is JobState.RUNNING
        job.cancel()
        with pytest.raises(JobCancelledError, match=r"^job cancelled$"):
            await job.wait()
        assert job.attempts == 0
        assert await queue.run(line.work, "y") == "y"
    assert line.names == ["y"]


@virtual
async def test_a_job_may_cancel_itself() -> None:
    async def body() -> None:
        jobs[0].cancel("enough")
        await trio.sleep_forever()

    async with open_task_queue(concurrency=1) as queue:
        jobs = [queue.submit_nowait(body), queue.submit_nowait(trio.sleep, 0)]
        with pytest.raises(JobCancelledError, match="enough"):
            await jobs[0].wait()
    assert jobs[1].state is JobState.SUCCEEDED


@virtual
@pytest.mark.parametrize("ending", ["returned", "raised"])
async def test_what_a_cancelled_body_makes_of_it_is_its_outcome_and_nothing_is_retried(ending: str) -> None:
    async def body() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            if ending == "raised":
                raise Flop from None
        return "kept"

    async with open_task_queue(concurrency=1, retry=pauses(1, attempts=9), failures=Failures.RECORD) as queue:
        job = queue.submit_nowait(body)
        await wait_all_tasks_blocked()
        job.cancel()
        assert (type(await _outcome(job)), job.attempts) == ({"returned": type(None), "raised": Flop}[ending], 1)
        assert job.state is {"returned": JobState.SUCCEEDED, "raised": JobState.FAILED}[ending]


@virtual
@pytest.mark.parametrize("ending", ["raised", "cancelled"])
async def test_a_job_cancelled_after_its_time_out_leaves_no_mark_on_the_next_one(ending: str) -> None:
    line = Timeline()

    async def body() -> None:
        try:
            await clean_up(3)
        finally:
            if ending == "raised":
                raise Flop

    async with open_task_queue(concurrency=1, retry=pauses(1), failures=Failures.RECORD) as queue:
        job = queue.submit_nowait(body, attempt_timeout=2)
        successor = queue.submit_nowait(line.flaky("next"), timeout=50)
        await trio.sleep(3)
        job.cancel()
        await trio.sleep(3)
        assert (job.state, job.attempts) == (JobState.FAILED, 1)
        assert await successor.wait() == "next"
        assert successor.attempts == 2


@virtual
async def test_cancelling_a_waiter_leaves_the_job_alone() -> None:
    async with open_task_queue() as queue:
        job = queue.submit_nowait(Timeline().work, "x", 5)
        with trio.move_on_after(1):
            await job.wait()
        assert job.state is JobState.RUNNING
        assert await job.wait() == await job.wait() == job.result_nowait() == "x"
        assert trio.current_time() == 5


@virtual
async def test_cancelling_run_cancels_the_job_and_waits_until_it_has_left() -> None:
    async with open_task_queue() as queue:
        with trio.move_on_after(1):
            await queue.run(clean_up, 5)
        assert trio.current_time() == 6
        assert queue.statistics().cancelled == 1
        assert queue.statistics().idle
