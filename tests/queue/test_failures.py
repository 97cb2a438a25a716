"""What becomes of failures: who has seen them, what comes out of the block, and that it comes out untouched."""

from __future__ import annotations

import traceback

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import Failures, JobHandle, JobState, open_task_queue


class Odd(BaseException):
    """What is neither an `Exception` nor one of Python's own."""


FATAL = [KeyboardInterrupt, SystemExit, Odd]


async def fail(error: BaseException, seconds: float = 1) -> None:
    await trio.sleep(seconds)
    raise error


async def see(job: JobHandle[object]) -> None:
    """Wait for a job that fails."""
    with pytest.raises(Flop):
        await job.wait()


# --------------------------------------------------------------------------------------------------- RAISE


@virtual
async def test_unseen_failures_come_out_together_a_hundred_kept_and_all_counted() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with open_task_queue(concurrency=1, name="q") as queue:
            for number in range(150):
                queue.submit_nowait(fail, Flop(number))
    assert caught.value.message == "150 jobs of 'q' failed, and nobody waited for them"
    assert [error.args for error in caught.value.exceptions] == [(number,) for number in range(100)]
    assert caught.value.__notes__ == ["(the first 100 are shown)"]
    assert trio.current_time() == 150  # the others went on


@virtual
async def test_one_failure_comes_out_in_a_group_too() -> None:
    error = Flop()
    with pytest.raises(ExceptionGroup) as caught:
        async with open_task_queue() as queue:
            queue.submit_nowait(fail, error)
            queue.submit_nowait(trio.sleep, 3)
    assert caught.value.exceptions == (error,)
    assert trio.current_time() == 3


@virtual
@pytest.mark.parametrize("how", ["wait", "run", "result_nowait", "retried"])
async def test_a_failure_that_was_delivered_is_seen(how: str) -> None:
    async with open_task_queue(retry=pauses(1)) as queue:
        if how == "run":
            with pytest.raises(Flop):
                await queue.run(fail, Flop())
            return
        if how == "retried":
            queue.submit_nowait(Timeline().flaky("x"))
            return
        job = queue.submit_nowait(fail, Flop())
        if how == "result_nowait":
            await queue.wait_idle()
            with pytest.raises(Flop):
                job.result_nowait()
        else:
            await see(job)
            await see(job)


@virtual
@pytest.mark.parametrize("cancel_at", [0.5, 1])
async def test_a_cancelled_waiter_has_not_seen_it(cancel_at: float) -> None:
    error, told = Flop(), False
    with pytest.raises(BaseException) as caught:
        async with open_task_queue() as queue:
            job = queue.submit_nowait(fail, error)
            with trio.move_on_after(cancel_at):
                try:
                    await job.wait()
                except Flop:
                    told = True
            await trio.sleep(5)
            if told:
                raise KeyError
    assert type(caught.value) is (KeyError if told else ExceptionGroup)
    assert not (told and cancel_at < 1)


@virtual
async def test_looking_at_the_state_is_not_seeing() -> None:
    with pytest.raises(ExceptionGroup):
        async with open_task_queue() as queue:
            job = queue.submit_nowait(fail, Flop())
            await queue.wait_idle()
            assert job.state is JobState.FAILED
            with pytest.raises(trio.WouldBlock):
                queue.submit_nowait(trio.sleep, 1).result_nowait()


@virtual
async def test_cancelled_and_dropped_jobs_are_no_failures() -> None:
    async with open_task_queue(concurrency=1) as queue:
        jobs = [queue.submit_nowait(trio.sleep, 9) for _ in range(5)]
        await wait_all_tasks_blocked()
        jobs[0].cancel()
        jobs[1].cancel()
        queue.clear(KeyError())


@virtual
async def test_unseen_failures_are_noted_on_what_the_block_raises() -> None:
    error = KeyError("block")
    with pytest.raises(KeyError) as caught:
        async with open_task_queue() as queue:
            for number in range(3):
                queue.submit_nowait(fail, Flop(number), number)
            await trio.sleep(5)
            raise error
    assert caught.value is error
    assert error.__notes__ == ["(3 jobs failed, and nobody waited for them; the first: Flop(0))"]


# --------------------------------------------------------------------------------------- RECORD, FAIL_FAST


@virtual
async def test_record_only_counts() -> None:
    async with open_task_queue(failures=Failures.RECORD) as queue:
        for _ in range(5):
            queue.submit_nowait(fail, Flop())
        await queue.wait_idle()
        assert queue.statistics().failed == 5


@virtual
@pytest.mark.parametrize("where", ["in the block", "at the door", "while leaving", "while closing"])
@pytest.mark.parametrize("twice", [False, True])
async def test_fail_fast_cancels_everything_and_comes_out_bare(where: str, twice: bool) -> None:
    error = Flop()
    with pytest.raises(Flop) as caught:
        async with open_task_queue(concurrency=3, max_waiting=1, failures=Failures.FAIL_FAST) as queue:
            queue.submit_nowait(fail, error)
            queue.submit_nowait(fail, error if twice else KeyError(), 1 if twice else 2)
            cleaning = queue.submit_nowait(clean_up, 3)
            waiting = await queue.submit(trio.sleep, 1)
            if where == "in the block":
                await trio.sleep_forever()
            if where == "at the door":
                await queue.submit(trio.sleep, 1)
            if where == "while closing":
                await queue.close(grace=50)
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 4
    assert (cleaning.state, waiting.state) == (JobState.CANCELLED, JobState.CANCELLED)


@virtual
async def test_the_first_in_order_of_ending_is_the_one() -> None:
    with pytest.raises(Flop, match="first"):
        async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
            queue.submit_nowait(fail, Flop("second"), 2)
            queue.submit_nowait(fail, Flop("first"), 1)


@virtual
async def test_a_failure_that_was_seen_comes_out_too() -> None:
    with pytest.raises(Flop):
        async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
            await see(queue.submit_nowait(fail, Flop()))


@virtual
async def test_fail_fast_works_while_paused() -> None:
    with pytest.raises(Flop):
        async with open_task_queue(concurrency=1, failures=Failures.FAIL_FAST) as queue:
            queue.submit_nowait(fail, Flop())
            queue.submit_nowait(trio.sleep, 9)
            await wait_all_tasks_blocked()
            queue.pause()
            await trio.sleep_forever()
    assert trio.current_time() == 1


async def _fail_cleaning_up() -> None:
    try:
        await clean_up(1)
    finally:
        raise Flop("in clean-up")


@virtual
async def test_a_failure_in_clean_up_is_not_the_first() -> None:
    with pytest.raises(Flop, match="first"):
        async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
            queue.submit_nowait(_fail_cleaning_up)
            queue.submit_nowait(fail, Flop("first"))


@virtual
async def test_something_else_that_the_block_raises_comes_out_with_a_note() -> None:
    error = KeyError("block")
    with pytest.raises(KeyError) as caught:
        async with open_task_queue(failures=Failures.FAIL_FAST) as queue:
            queue.submit_nowait(fail, Flop("job"))
            try:
                await trio.sleep_forever()
            finally:
                raise error
    assert caught.value is error
    assert error.__notes__ == ["(meanwhile: Flop('job'))"]


# -------------------------------------------------------------------------------------- stored, and bare


def _length(error: BaseException) -> int:
    return len(traceback.extract_tb(error.__traceback__))


@virtual
async def test_a_stored_exception_is_raised_as_it_first_came_out() -> None:
    context = ValueError("context")
    error = Flop()

    async def body() -> None:
        try:
            raise context
        except ValueError:
            raise error

    lengths: list[int] = []
    async with open_task_queue(retry=pauses(1)) as queue:
        job = queue.submit_nowait(body)
        for _ in range(5):
            try:
                raise LookupError  # something else is being handled where it is delivered
            except LookupError:
                with pytest.raises(Flop) as caught:
                    await job.wait()
            assert caught.value is error
            assert error.__context__ is context
            lengths.append(_length(error))
    assert len(set(lengths)) == 1
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "body"
    assert not [name for name in frames if "serve" in name or name in ("invoke", "call_unprotected")]


@virtual
async def test_the_traceback_in_the_group_is_that_of_the_body() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with open_task_queue() as queue:
            queue.submit_nowait(fail, Flop())
    assert [frame.name for frame in traceback.extract_tb(caught.value.exceptions[0].__traceback__)] == ["fail"]


@virtual
@pytest.mark.parametrize("failures", list(Failures))
@pytest.mark.parametrize("kind", [Flop, *FATAL])
async def test_what_the_block_raises_comes_out_bare_when_the_last_body_has_left(
    failures: Failures, kind: type[BaseException]
) -> None:
    error, context = kind(), ValueError()
    error.__context__ = context
    with pytest.raises(kind) as caught:
        async with open_task_queue(concurrency=2, failures=failures, retry=pauses(50)) as queue:
            cleaning = queue.submit_nowait(clean_up, 5)
            pausing = queue.submit_nowait(Timeline().flaky("x", seconds=0))
            await trio.sleep(1)
            waiting = queue.submit_nowait(trio.sleep, 9, delay=9)
            raise error
    assert caught.value is error
    assert error.__context__ is context
    assert trio.current_time() == 6
    assert {job.state for job in (cleaning, pausing, waiting)} == {JobState.CANCELLED}


@virtual
@pytest.mark.parametrize("failures", list(Failures))
@pytest.mark.parametrize("kind", FATAL)
@pytest.mark.parametrize("where", ["in the block", "while leaving", "while the block raises"])
async def test_what_ends_everything_comes_out_of_a_job_bare_and_before_anything_else(
    failures: Failures, kind: type[BaseException], where: str
) -> None:
    error = kind()
    with pytest.raises(kind) as caught:
        async with open_task_queue(concurrency=9, failures=failures, retry=pauses(1)) as queue:
            job = queue.submit_nowait(fail, error)
            cleaning = queue.submit_nowait(clean_up, 5)
            if where == "in the block":
                await trio.sleep_forever()
            if where == "while the block raises":
                try:
                    await trio.sleep_forever()
                finally:
                    raise Flop
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 6
    assert job.state is JobState.CANCELLED
    assert job.attempts == 1
    assert cleaning.state is JobState.CANCELLED


@virtual
@pytest.mark.parametrize("failures", list(Failures))
async def test_a_cancellation_from_outside_goes_through_and_is_no_failure(failures: Failures) -> None:
    with trio.move_on_after(2) as scope:
        async with open_task_queue(failures=failures, retry=pauses(1)) as queue:
            jobs = [queue.submit_nowait(clean_up, 3), queue.submit_nowait(trio.sleep_forever)]
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == 5
    assert {job.state for job in jobs} == {JobState.CANCELLED}


@virtual
async def test_queues_in_queues_let_it_out_bare() -> None:
    error = Flop()

    async def body() -> None:
        async with open_task_queue() as innermost:
            innermost.submit_nowait(clean_up, 1)
            await trio.sleep(1)
            raise error

    with pytest.raises(Flop) as caught:
        async with open_task_queue() as outer, open_task_queue(failures=Failures.FAIL_FAST):
            await outer.run(body)
    assert caught.value is error
    assert error.__context__ is None
    assert trio.current_time() == 2
