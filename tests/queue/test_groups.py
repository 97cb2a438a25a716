"""Groups: some jobs of a shared queue."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import Failures, JobCancelledError, JobState, open_task_queue


@virtual
async def test_leaving_a_group_waits_for_its_jobs_only() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=5, retry=pauses(10)) as queue:
        queue.submit_nowait(line.work, "other", 100)
        async with queue.group() as mine:
            first = mine.submit_nowait(line.work, "first", 3)
            second = await mine.submit(line.flaky("second"))
            assert mine.handles == (first, second)
            assert repr(mine) == "<JobGroup 0 of 2 done>"
        assert trio.current_time() == 12
        assert await mine.results() == ["first", "second"]
        with pytest.raises(trio.ClosedResourceError, match="the group's block was left"):
            mine.submit_nowait(line.work, "late")
        with pytest.raises(trio.ClosedResourceError):
            await mine.submit(line.work, "late")


@virtual
async def test_results_come_in_the_order_of_submission_and_errors_together() -> None:
    line = Timeline()
    async with open_task_queue() as queue:
        async with queue.group() as mine:
            for name, seconds in (("a", 3), ("b", 1), ("c", 2)):
                mine.submit_nowait(line.work, name, seconds)
            assert await mine.results() == ["a", "b", "c"]
            mine.submit_nowait(line.flaky("d"))
            cancelled = mine.submit_nowait(line.work, "e", 9)
            await trio.sleep(0.5)
            cancelled.cancel("no more")
            with pytest.raises(ExceptionGroup, match="2 of 5 jobs have no result") as caught:
                await mine.results()
            assert [type(error) for error in caught.value.exceptions] == [Flop, JobCancelledError]


@virtual
async def test_cancel_and_wait_in_the_middle() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        other = queue.submit_nowait(line.work, "other", 5)
        async with queue.group() as mine:
            jobs = [mine.submit_nowait(line.work, "x", 1) for _ in range(3)]
            with trio.move_on_after(6.5) as scope:
                await mine.wait()
            assert scope.cancelled_caught
            mine.cancel("too slow")
            mine.cancel()
            await mine.wait()
            assert [job.state.value for job in jobs] == ["succeeded", "cancelled", "cancelled"]
            with pytest.raises(JobCancelledError, match="too slow"):
                jobs[2].result_nowait()
            again = mine.submit_nowait(line.work, "again")
        assert again.state is other.state is JobState.SUCCEEDED


@virtual
@pytest.mark.parametrize("failures", [Failures.RAISE, Failures.RECORD])
async def test_unseen_failures_come_out_of_the_group_and_not_of_the_queue(failures: Failures) -> None:
    """Whatever the queue does with those of others."""
    line = Timeline()
    async with open_task_queue(failures=failures) as queue:
        with pytest.raises(ExceptionGroup, match="2 jobs of a group failed, and nobody waited for them") as caught:
            async with queue.group() as mine:
                for name in "ab":
                    mine.submit_nowait(line.flaky(name))
                seen = mine.submit_nowait(line.flaky("seen"))
                with pytest.raises(Flop):
                    await seen.wait()
        assert sorted(str(error) for error in caught.value.exceptions) == ["a", "b"]


@virtual
async def test_a_group_that_records_keeps_its_failures_from_the_queue() -> None:
    line = Timeline()
    async with open_task_queue() as queue:
        async with queue.group(failures=Failures.RECORD) as mine:
            job = mine.submit_nowait(line.flaky("x"))
        assert job.state is JobState.FAILED


@virtual
@pytest.mark.parametrize("at", ["in the block", "while leaving"])
@pytest.mark.parametrize("queue_failures", [Failures.RAISE, Failures.RECORD])
async def test_fail_fast_cancels_the_others_and_comes_out_bare(at: str, queue_failures: Failures) -> None:
    error = Flop("first")

    async def fail() -> None:
        await trio.sleep(1)
        raise error

    async with open_task_queue(concurrency=9, failures=queue_failures) as queue:
        other = queue.submit_nowait(trio.sleep, 50)
        with pytest.raises(Flop) as caught:
            async with queue.group(failures=Failures.FAIL_FAST) as mine:
                mine.submit_nowait(fail)
                mine.submit_nowait(clean_up, 3)
                mine.submit_nowait(fail)
                if at == "in the block":
                    await trio.sleep_forever()
        assert caught.value is error
        assert caught.value.__context__ is None
        assert trio.current_time() == 4  # when the last one has left
        assert other.state is JobState.RUNNING


@virtual
async def test_an_exception_in_the_block_cancels_the_jobs_and_comes_out_bare() -> None:
    error = KeyError("mine")
    async with open_task_queue() as queue:
        other = queue.submit_nowait(trio.sleep, 50)
        with pytest.raises(KeyError) as caught:
            async with queue.group() as mine:
                job = mine.submit_nowait(clean_up, 3)
                await trio.sleep(1)
                raise error
        assert caught.value is error
        assert error.__context__ is None
        assert trio.current_time() == 4
        assert (job.state, other.state) == (JobState.CANCELLED, JobState.RUNNING)


@virtual
@pytest.mark.parametrize("failures", [Failures.RAISE, Failures.FAIL_FAST])
async def test_unseen_failures_are_noted_on_what_the_block_raises(failures: Failures) -> None:
    error, line = KeyError("mine"), Timeline()
    async with open_task_queue() as queue:
        with pytest.raises(KeyError) as caught:
            async with queue.group(failures=failures) as mine:
                mine.submit_nowait(line.flaky("x"))
                try:
                    await trio.sleep(5)
                finally:
                    raise error
        assert caught.value is error
    assert error.__notes__ == ["(1 jobs of a group failed, and nobody waited for them; the first: Flop('x'))"]


@virtual
@pytest.mark.parametrize("at", ["in the block", "while leaving"])
async def test_cancelling_a_group_cancels_its_jobs(at: str) -> None:
    async with open_task_queue() as queue:
        other = queue.submit_nowait(trio.sleep, 50)
        with trio.move_on_after(1) as scope:
            async with queue.group() as mine:
                job = mine.submit_nowait(clean_up, 3)
                if at == "in the block":
                    await trio.sleep_forever()
        assert scope.cancelled_caught
        assert trio.current_time() == 4
        assert (job.state, other.state) == (JobState.CANCELLED, JobState.RUNNING)


@virtual
async def test_an_empty_group_waits_for_nothing() -> None:
    async with open_task_queue() as queue:
        queue.submit_nowait(trio.sleep, 50)
        async with queue.group() as mine:
            await mine.wait()
            assert await mine.results() == []
        assert trio.current_time() == 0


@virtual
async def test_groups_work_inside_jobs() -> None:
    async def parent() -> list[object]:
        async with queue.group() as mine:
            for seconds in (1, 2):
                mine.submit_nowait(Timeline().work, str(seconds), seconds)
            return await mine.results()

    async with open_task_queue(concurrency=2) as queue:
        assert await queue.run(parent) == ["1", "2"]
        assert trio.current_time() == 3


@virtual
async def test_a_submitter_of_a_group_that_waits_at_the_door_can_be_cancelled() -> None:
    async with open_task_queue(concurrency=1, max_waiting=1) as queue, queue.group() as mine:
        for _ in range(2):
            mine.submit_nowait(trio.sleep, 1)
        with trio.move_on_after(0.5):
            await mine.submit(trio.sleep, 1)
        await wait_all_tasks_blocked()
        assert len(mine.handles) == 2
