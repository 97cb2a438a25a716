"""Retries outside the slot, and time-outs, to the second."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, briefly, clean_up, pauses, virtual
from trio_orchestrator import (
    Failures,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    Retry,
    open_task_queue,
)
from trio_orchestrator.algorithms.backoff import Constant

# ------------------------------------------------------------------------------------------------- retries


@virtual
async def test_a_retry_pauses_outside_its_slot() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(240)) as queue:
        first = queue.submit_nowait(line.flaky("a"))
        queue.submit_nowait(line.work, "b", 10)
        queue.submit_nowait(line.work, "c", 1)
        await trio.sleep(100)
        assert first.state is JobState.RETRY_SCHEDULED
        statistics = queue.statistics()
        assert (statistics.running, statistics.waiting, statistics.retry_scheduled) == (0, 0, 1)
        assert not statistics.idle
    assert line.events == [(0, "a"), (1, "b"), (11, "c"), (241, "a")]
    assert trio.current_time() == 242


@virtual
async def test_the_next_job_starts_in_the_instant_of_the_failure() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(240)) as queue:
        queue.submit_nowait(line.flaky("a", seconds=0))
        queue.submit_nowait(line.work, "b", 1)
    assert line.events == [(0, "a"), (0, "b"), (240, "a")]


@virtual
async def test_a_retry_comes_back_to_its_place() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(5)) as queue:
        queue.submit_nowait(line.flaky("a"))
        for name in "bcd":
            queue.submit_nowait(line.work, name, 4)
    assert line.events == [(0, "a"), (1, "b"), (5, "c"), (9, "a"), (10, "d")]


@briefly
async def test_a_thousand_retries_of_one_instant_come_back_in_their_order() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1000, max_waiting=2000, retry=pauses(10)) as queue:
        for number in range(1000):
            queue.submit_nowait(line.flaky(str(number), seconds=1))
        await trio.sleep(2)
        queue.pause()
        queue.concurrency = 1
        for number in range(1000, 1100):
            queue.submit_nowait(line.work, str(number))
        await trio.sleep(10)
        assert queue.statistics().waiting == 1100
        assert sorted(line.names) == sorted(map(str, range(1000)))
        line.events.clear()
        queue.resume()
    assert line.names == [str(number) for number in range(1100)]


@virtual
async def test_every_attempt_counts_and_the_last_error_comes_out() -> None:
    line = Timeline()
    async with open_task_queue(retry=pauses(2, attempts=3)) as queue:
        job = queue.submit_nowait(line.flaky("a", failures=9))
        with pytest.raises(Flop) as caught:
            await job.wait()
        assert job.attempts == 3
        assert queue.statistics().retries == 2
    assert line.times("a") == [0, 3, 6]
    assert caught.value.__notes__ == ["gave up after 3 attempts in 7 s: attempts"]


@virtual
async def test_run_and_priority_leave_the_retry_of_the_queue_alone() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(1, attempts=3)) as queue:
        await queue.run(line.work, "measured")  # the first job has terms anyway
        assert await queue.run(line.flaky("run", failures=2)) == "run"
        queue.pause()
        ranked = queue.submit_nowait(line.flaky("ranked", failures=2))
        ranked.priority = 5
        queue.resume()
        assert await ranked.wait() == "ranked"
        assert ranked.attempts == 3


@virtual
async def test_a_zero_pause_is_no_busy_loop_and_passes_a_checkpoint() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(0, attempts=math.inf)) as queue:
        job = queue.submit_nowait(line.flaky("a", failures=math.inf, seconds=0))
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job.wait()
    assert 2 <= len(line.events) <= 12


@virtual
async def test_the_wish_of_the_other_side_lengthens_the_pause() -> None:
    line = Timeline()
    retry = Retry(on=Flop, backoff=Constant(1), retry_after=lambda error: 30.0)
    async with open_task_queue(retry=retry) as queue:
        await queue.run(line.flaky("a"))
    assert line.times("a") == [0, 31]


@virtual
async def test_one_error_object_raised_by_many_jobs_is_not_exhausted_for_all() -> None:
    shared = Flop("a constant of some module")
    starts: list[float] = []

    async def body() -> None:
        starts.append(trio.current_time())
        raise shared

    async with open_task_queue(concurrency=1, retry=pauses(1, attempts=2)) as queue:
        for _ in range(2):
            with pytest.raises(Flop):
                await queue.run(body)
    assert starts == [0, 1, 1, 2]


# ------------------------------------------------------------------------------------------------ deadlines


@virtual
async def test_a_pause_that_does_not_fit_before_the_deadline_ends_the_job_now() -> None:
    line = Timeline()
    async with open_task_queue(retry=pauses(20)) as queue:
        job = queue.submit_nowait(line.flaky("a"), timeout=10)
        with pytest.raises(Flop) as caught:
            await job.wait()
        assert trio.current_time() == 1
    assert caught.value.__notes__ == ["gave up after 1 attempt in 1 s: deadline"]


@virtual
@pytest.mark.parametrize("seconds", [0, 1])
async def test_run_gives_the_job_its_callers_deadline(seconds: float) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, retry=pauses(20)) as queue:
        for _ in range(5):
            before = trio.current_time()
            with trio.fail_after(10), pytest.raises(Flop) as caught:
                await queue.run(line.flaky("a", seconds=seconds))
            assert trio.current_time() == before + seconds
            assert caught.value.__notes__[0].endswith("deadline")


@virtual
async def test_run_gives_the_job_its_callers_deadline_at_the_door_too() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, retry=pauses(20)) as queue:
        queue.submit_nowait(line.work, "x")
        queue.submit_nowait(line.work, "y")
        with trio.fail_after(10), pytest.raises(Flop):
            await queue.run(line.flaky("a", seconds=0))
        assert trio.current_time() == 2


@virtual
async def test_wait_never_shortens_a_job() -> None:
    line = Timeline()
    async with open_task_queue(retry=pauses(20)) as queue:
        job = queue.submit_nowait(line.flaky("a"))
        with trio.move_on_after(10) as scope:
            await job.wait()
        assert scope.cancelled_caught
        assert job.state is JobState.RETRY_SCHEDULED
        assert await job.wait() == "a"
        assert trio.current_time() == 22


@virtual
async def test_the_time_outs_are_told_apart() -> None:
    async with open_task_queue(concurrency=1, failures=Failures.RECORD, retry=pauses(3)) as queue:
        attempt = queue.submit_nowait(trio.sleep, 99, attempt_timeout=2)
        with pytest.raises(JobTimeoutError, match="attempt_timeout=2 s was exceeded") as caught:
            await attempt.wait()
        assert (caught.value.which, caught.value.seconds) == ("attempt_timeout", 2)
        assert (attempt.attempts, trio.current_time()) == (2, 7)  # retryable, although `on` does not name it
        total = queue.submit_nowait(trio.sleep, 99, timeout=4)
        late = queue.submit_nowait(trio.sleep, 1, start_within=3)
        with pytest.raises(JobTimeoutError, match="start_within=3 s was exceeded") as caught:
            await late.wait()
        assert (caught.value.which, late.attempts, trio.current_time()) == ("start_within", 0, 10)
        with pytest.raises(JobTimeoutError, match="timeout=4 s was exceeded") as caught:
            await total.wait()
        assert (caught.value.which, total.attempts, trio.current_time()) == ("timeout", 1, 11)
        assert isinstance(caught.value, trio.TooSlowError)


@virtual
async def test_a_too_slow_error_of_the_body_is_its_own() -> None:
    error = trio.TooSlowError()

    async def body() -> None:
        raise error

    async with open_task_queue(retry=pauses(1), attempt_timeout=5, timeout=9) as queue:
        job = queue.submit_nowait(body)
        with pytest.raises(trio.TooSlowError) as caught:
            await job.wait()
        assert caught.value is error
        assert job.attempts == 1


@virtual
async def test_the_smallest_time_out_counts() -> None:
    retry = Retry(on=Flop, timeout=3, attempts=1)
    async with open_task_queue(timeout=100, attempt_timeout=90, failures=Failures.RECORD) as queue:
        started = trio.current_time()
        with pytest.raises(JobTimeoutError, match=r"^timeout=3 s"):
            await queue.run(trio.sleep_forever, timeout=5, retry=retry)
        with pytest.raises(JobTimeoutError, match=r"^timeout=2 s"):
            await queue.run(trio.sleep_forever, timeout=2, retry=retry)
        with pytest.raises(JobTimeoutError, match=r"^attempt_timeout=1 s"):
            await queue.run(trio.sleep_forever, attempt_timeout=1, retry=retry)
        assert trio.current_time() - started == 6


@virtual
async def test_timeout_covers_waiting_attempts_and_pauses_and_names_the_last_failure() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, failures=Failures.RECORD, retry=pauses(1, attempts=9)) as queue:
        job = queue.submit_nowait(line.flaky("a", failures=9, seconds=1), timeout=10)
        queue.submit_nowait(trio.sleep, 50)
        with pytest.raises(JobTimeoutError, match=r"^timeout=10 s") as caught:
            await job.wait()
        assert trio.current_time() == 10
        assert isinstance(caught.value.__cause__, Flop)
        await queue.wait_idle()
        started = trio.current_time()
        job = queue.submit_nowait(line.flaky("a", failures=9, seconds=3), timeout=5)
        with pytest.raises(JobTimeoutError) as caught:
            await job.wait()
        assert trio.current_time() == started + 5  # in the middle of the second attempt
        assert isinstance(caught.value.__cause__, Flop)


@virtual
async def test_a_timeout_that_falls_due_with_its_retry_after_a_long_step_ends_the_job_once() -> None:
    """The clock jumps over both: the retry is due, and before it starts the job is out of time."""
    line = Timeline()
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    async with open_task_queue(concurrency=1, failures=Failures.RECORD, retry=pauses(1, attempts=9)) as queue:
        job = queue.submit_nowait(line.flaky("a", failures=9, seconds=0), timeout=2)
        queue.submit_nowait(trio.sleep, 50)
        await wait_all_tasks_blocked()
        clock.jump(5)
        with pytest.raises(JobTimeoutError):
            await job.wait()
        statistics = queue.statistics()
        assert (statistics.waiting, statistics.retry_scheduled, statistics.failed) == (0, 0, 1)


@virtual
async def test_a_deadline_that_passes_while_the_body_returns_without_a_checkpoint_is_a_success() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)

    async def body() -> str:
        clock.jump(10)
        return "done"

    async with open_task_queue(concurrency=1, attempt_timeout=1, timeout=5) as queue:
        assert await queue.run(body) == "done"
        before = trio.current_time()
        await queue.run(trio.sleep, 0.9)  # the stale deadline hurts nobody
        assert trio.current_time() == pytest.approx(before + 0.9)


@virtual
async def test_a_timed_out_body_keeps_its_slot_until_it_has_cleaned_up() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
        job = queue.submit_nowait(clean_up, 5, attempt_timeout=2)
        queue.submit_nowait(line.work, "next")
        await trio.sleep(3)
        statistics = queue.statistics()
        assert (statistics.overdue, statistics.running, job.state) == (1, 1, JobState.RUNNING)
        with pytest.raises(JobTimeoutError):
            await job.wait()
        assert trio.current_time() == 7
        assert queue.statistics().overdue == 0
    assert line.events == [(7, "next")]


@virtual
async def test_a_timed_out_body_may_still_return_or_raise() -> None:
    async def swallow(error: Exception | None) -> str:
        with trio.CancelScope() as inner:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                if error is not None:
                    raise error from None
                inner.shield = True
        return "late"

    async def stubborn() -> str:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            pass
        return "late"

    async with open_task_queue(concurrency=1, failures=Failures.RECORD) as queue:
        assert await queue.run(stubborn, timeout=1) == "late"
        with pytest.raises(Flop):
            await queue.run(swallow, Flop(), timeout=1)
        assert trio.current_time() == 2


@virtual
async def test_time_at_the_door_does_not_count() -> None:
    """A job whose `submit` still waits is not submitted."""
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, failures=Failures.RECORD) as queue:
        for _ in range(2):
            queue.submit_nowait(trio.sleep, 5)
        late = await queue.submit(line.work, "late", timeout=3)
        assert trio.current_time() == 5
        with pytest.raises(JobTimeoutError):
            await late.wait()
        assert trio.current_time() == 8
        punctual = await queue.submit(line.work, "punctual", start_within=3)
        assert await punctual.wait() == "punctual"
