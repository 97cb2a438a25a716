"""What a planted bug has shown to be untested, or tested by chance only."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.bodies import Watch
from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import Failures, JobState, Overflow, open_task_queue
from trio_orchestrator.testing import assert_no_tokens

# ---------------------------------------------------------------------------------------- slots and room


@virtual
async def test_two_queues_in_line_get_a_token_each() -> None:
    limiter, line, outsiders = trio.CapacityLimiter(2), Timeline(), [object(), object()]
    for outsider in outsiders:
        limiter.acquire_on_behalf_of_nowait(outsider)
    borrowed = 0
    try:
        async with open_task_queue(limiter=limiter) as left, open_task_queue(limiter=limiter) as right:
            for queue in (left, right):
                queue.submit_nowait(line.work, "x", 10)
            await wait_all_tasks_blocked()
            for outsider in outsiders:
                limiter.release_on_behalf_of(outsider)
            await trio.sleep(1)
            borrowed = limiter.borrowed_tokens
    finally:
        assert (borrowed, line.peak) == (2, 2)  # whatever a queue without a token of its own runs into
    assert_no_tokens(limiter)


@virtual
async def test_a_cancelled_queue_gives_its_tokens_back() -> None:
    limiter = trio.CapacityLimiter(3)
    with trio.move_on_after(1):
        async with open_task_queue(limiter=limiter) as queue:
            for seconds in (0, 9, 9, 9, 9):
                queue.submit_nowait(trio.sleep, seconds)
            await trio.sleep_forever()
    assert_no_tokens(limiter)


@virtual
async def test_a_pause_holds_back_what_waited_before() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1) as queue:
        for _ in range(9):
            queue.submit_nowait(line.work, "x", 2)
        await trio.sleep(5)
        queue.pause()
        await trio.sleep(5)
        assert queue.statistics().waiting == 6
        queue.resume()
    assert line.times("x") == [0, 2, 4, *range(10, 21, 2)]


@virtual
async def test_all_the_room_that_is_made_is_handed_over() -> None:
    line = Timeline()

    async def submit(name: str) -> None:
        await queue.submit(line.work, name)

    async with open_task_queue(concurrency=1, max_waiting=5) as queue, trio.open_nursery() as nursery:
        queue.pause()
        for _ in range(5):
            queue.submit_nowait(line.work, "cleared")
        for name in "abcdefg":
            nursery.start_soon(submit, name)
            await wait_all_tasks_blocked()
        assert queue.clear() == 5
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(line.work, "barger")
        assert (queue.statistics().waiting, queue.statistics().at_the_door) == (5, 2)
        queue.resume()
    assert line.names == [*"abcdefg"]


@virtual
@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST])
async def test_a_retry_that_is_due_is_not_dropped(overflow: Overflow) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, overflow=overflow, retry=pauses(2)) as queue:
        flaky = queue.submit_nowait(line.flaky("flaky", seconds=0))
        await trio.sleep(1)
        queue.pause()
        await trio.sleep(2)
        assert (flaky.state, flaky.attempts) == (JobState.WAITING, 1)
        assert queue.submit_nowait(line.work, "new", priority=1).state is JobState.DROPPED
        queue.resume()
    assert line.times("flaky") == [0, 3]


# --------------------------------------------------------------------------------------------- who is told


@virtual
async def test_hooks_see_counts_that_add_up() -> None:
    line, watch = Timeline(), Watch()
    with pytest.raises(Flop):
        async with open_task_queue(
            concurrency=2, retry=pauses(1), instruments=[watch], failures=Failures.FAIL_FAST
        ) as queue:
            watch.queue = queue
            for failures in (1, 0, 1, 2, 0, 0):
                queue.submit_nowait(line.flaky("x", failures))
    watch.check()


# ------------------------------------------------------------------------------------------------- order


@virtual
async def test_a_changed_priority_keeps_the_age_of_the_job() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, ageing=10) as queue:
        queue.pause()
        old = queue.submit_nowait(line.work, "old", priority=5)
        await trio.sleep(15)
        queue.submit_nowait(line.work, "new", priority=1)
        old.priority = 0
        queue.resume()
    assert line.names == ["old", "new"]  # 15 s are worth one level and a half


@virtual
async def test_the_next_of_a_key_competes_when_the_one_before_it_is_cancelled() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, per_key=1) as queue:
        queue.submit_nowait(line.work, "a", key="k")
        jobs = [queue.submit_nowait(line.work, name, key="k") for name in "bc"]  # a slot is free, the key is not
        queue.submit_nowait(line.work, "long", 9)
        await trio.sleep(0.5)
        queue.submit_nowait(line.work, "urgent", 2, priority=1)
        await trio.sleep(1)  # the key is free, no slot is: b competes
        jobs[0].cancel()
        assert await jobs[1].wait() == "c"
    assert sorted(line.events) == [(0, "a"), (0, "long"), (1, "urgent"), (3, "c")]


@virtual
async def test_keys_that_have_no_job_left_are_forgotten() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, per_key=1, retry=pauses(1), failures=Failures.RECORD) as queue:
        for number in range(50):
            queue.submit_nowait(line.work, "x", 0, key=number)
            queue.submit_nowait(line.flaky("y", number % 3), key=number)
            queue.submit_nowait(line.work, "z", key=number).cancel()
        await queue.wait_idle()
        assert not queue._engine.schedule._keys


# --------------------------------------------------------------------------------------------- attempts

variable: ContextVar[str] = ContextVar("variable", default="nobody's")


@virtual
async def test_jobs_that_ask_for_nothing_have_their_own_contexts_too() -> None:
    seen: list[str] = []

    async def body(name: str) -> None:
        seen.append(variable.get())
        variable.set(f"left by {name}")
        await trio.lowlevel.checkpoint()
        assert variable.get() == f"left by {name}"

    names = [str(number) for number in range(40)]
    async with open_task_queue(concurrency=2) as queue:
        for name in names:
            variable.set(name)
            queue.submit_nowait(body, name)
    assert sorted(seen) == sorted(names)


@virtual
async def test_the_first_failure_of_a_group_is_the_one_that_comes_out() -> None:
    first = Flop("first")

    async def fail() -> None:
        await trio.sleep(1)
        raise first

    async def clean_up_badly() -> None:
        try:
            await clean_up(1)
        finally:
            raise Flop("in the clean-up")

    async with open_task_queue(concurrency=3) as queue:
        with pytest.raises(Flop) as caught:
            async with queue.group(failures=Failures.FAIL_FAST) as mine:
                for body in (clean_up_badly, fail, clean_up_badly):
                    mine.submit_nowait(body)
        assert caught.value is first
