"""Full queues: who waits at the door, who is dropped, and what is counted."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, briefly, pauses, virtual
from trio_orchestrator import (
    Gate,
    JobDroppedError,
    JobHandle,
    JobState,
    Overflow,
    QueueFullError,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import JobFinished, QueueDropped

DROPS = [Overflow.DROP_OLDEST, Overflow.DROP_LOWEST, Overflow.DROP_NEWEST]


async def at_the_door(nursery: trio.Nursery, queue: TaskQueue, line: Timeline, *names: str) -> None:
    """Let so many submitters come, one after another; each notes when it was let in."""

    async def submitter(name: str) -> None:
        await queue.submit(line.work, name)
        line.note(f"{name} is in")

    for name in names:
        nursery.start_soon(submitter, name)
        await wait_all_tasks_blocked()


# ---------------------------------------------------------------------------------------------------- WAIT


@virtual
async def test_a_full_queue_lets_submitters_in_one_by_one_as_they_came() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=2) as queue, trio.open_nursery() as nursery:
        await at_the_door(nursery, queue, line, *"abcdef")
        statistics = queue.statistics()
        assert (statistics.at_the_door, statistics.submitted, statistics.waiting) == (3, 3, 2)
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(line.work, "x")
        assert queue.statistics().submitted == 3
    assert [line.times(f"{name} is in")[0] for name in "abcdef"] == [0, 0, 0, 1, 2, 3]
    assert [line.times(name)[0] for name in "abcdef"] == [0, 1, 2, 3, 4, 5]


@virtual
async def test_whoever_makes_room_hands_it_over_and_nobody_barges_in() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1) as queue, trio.open_nursery() as nursery:
        queue.pause()
        first = queue.submit_nowait(line.work, "first")
        await at_the_door(nursery, queue, line, "a", "b")
        first.cancel()
        assert queue.statistics().waiting == 1  # its place is taken before anybody else can run
        assert queue.statistics().at_the_door == 1
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(line.work, "x")
        assert queue.clear() == 1
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(line.work, "x")
        assert queue.statistics().drops_by_reason == {"cleared by operator": 1}
        queue.resume()
    assert [name for name in line.names if len(name) == 1] == ["b"]


@virtual
async def test_submit_nowait_does_not_barge_past_the_door_while_jobs_end() -> None:
    line = Timeline()
    refused = 0
    async with open_task_queue(concurrency=1, max_waiting=3) as queue, trio.open_nursery() as nursery:
        await at_the_door(nursery, queue, line, *"abcdefgh")
        while queue.statistics().at_the_door:
            try:
                queue.submit_nowait(line.work, "barger")
            except trio.WouldBlock:
                refused += 1
            await trio.sleep(0.25)
    assert [name for name in line.names if len(name) == 1 or name == "barger"] == [*"abcdefgh"]
    assert refused >= 12


@virtual
async def test_cancelled_at_the_door_the_job_was_never_submitted() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1) as queue, trio.open_nursery() as nursery:
        await at_the_door(nursery, queue, line, "a", "b")
        with trio.move_on_after(0.5) as scope:
            await queue.submit(line.work, "x")
        assert scope.cancelled_caught
        assert queue.statistics().at_the_door == 0
        await queue.wait_idle()
        assert queue.statistics().submitted == 2
    assert "x" not in line.names


@virtual
async def test_a_job_already_moved_in_stays_though_its_submitter_is_cancelled_then() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1) as queue, trio.open_nursery() as nursery:
        queue.pause()
        first = queue.submit_nowait(line.work, "first")
        await at_the_door(nursery, queue, line, "a")
        first.cancel()
        nursery.cancel_scope.cancel()
        assert queue.statistics().waiting == 1
        queue.resume()
    assert line.times("a") == [0]


@virtual
async def test_run_cancelled_at_the_door_leaves_nothing_behind() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1) as queue:
        for name in "ab":
            queue.submit_nowait(line.work, name)
        with trio.move_on_after(0.5):
            await queue.run(line.work, "x")
        await queue.wait_idle()
        statistics = queue.statistics()
        assert (statistics.submitted, statistics.succeeded, statistics.at_the_door) == (2, 2, 0)


@virtual
async def test_closing_sends_away_who_waits_at_the_door() -> None:
    line = Timeline()
    async with trio.open_nursery() as nursery, open_task_queue(concurrency=1, max_waiting=1) as queue:

        async def submitter() -> None:
            with pytest.raises(trio.ClosedResourceError, match="closed while submit"):
                await queue.submit(line.work, "x")
            line.note("sent away")

        for name in "ab":
            queue.submit_nowait(line.work, name)
        nursery.start_soon(submitter)
        await trio.sleep(0.5)
        assert len(await queue.close(grace=9)) == 1
    assert line.events == [(0, "a"), (0.5, "sent away")]


@virtual
async def test_leaving_the_block_sends_them_away_too() -> None:
    line = Timeline()
    async with trio.open_nursery() as nursery:
        async with open_task_queue(concurrency=1, max_waiting=1) as queue:

            async def submitter() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await queue.submit(line.work, "x")
                line.note("sent away")

            for name in "ab":
                queue.submit_nowait(line.work, name)
            nursery.start_soon(submitter)
            await trio.sleep(0.5)
    assert line.events == [(0, "a"), (0.5, "sent away"), (1, "b")]


@virtual
async def test_retry_scheduled_and_delayed_jobs_take_room() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, max_waiting=2, retry=pauses(10)) as queue:
        queue.submit_nowait(line.flaky("a", seconds=0))
        await wait_all_tasks_blocked()
        queue.submit_nowait(line.work, "b", delay=5)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(line.work, "x")
        await queue.submit(line.work, "c")
        assert trio.current_time() == 5


@briefly
async def test_a_crowd_at_the_door_of_a_limit_that_grows() -> None:
    async with open_task_queue(concurrency=1, max_waiting=1) as queue, trio.open_nursery() as nursery:
        for _ in range(1200):
            nursery.start_soon(queue.submit, trio.sleep, 1)
        await wait_all_tasks_blocked()
        assert queue.statistics().at_the_door == 1198
        queue.concurrency = math.inf
        await wait_all_tasks_blocked()
        assert queue.statistics().running == 1200
    assert trio.current_time() == 1


@briefly
async def test_the_default_bound() -> None:
    async with open_task_queue() as queue:
        queue.pause()
        for _ in range(1000):
            queue.submit_nowait(trio.sleep, 0)
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(trio.sleep, 0)
        queue.clear()
    async with open_task_queue(concurrency=150) as queue:
        queue.pause()
        for _ in range(1500):
            queue.submit_nowait(trio.sleep, 0)
        with pytest.raises(trio.WouldBlock):
            queue.submit_nowait(trio.sleep, 0)
        queue.clear()
    async with open_task_queue(max_waiting=math.inf) as queue:
        queue.pause()
        for _ in range(5000):
            queue.submit_nowait(trio.sleep, 0)
        queue.clear()


# -------------------------------------------------------------------------------------------------- REJECT


@virtual
async def test_reject_tells_when_there_may_be_room() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, overflow=Overflow.REJECT) as queue:
        queue.submit_nowait(line.work, "a", 2)
        queue.submit_nowait(line.work, "b", 2)
        with pytest.raises(QueueFullError, match=r"^the queue is full: 1 jobs are waiting$") as caught:
            queue.submit_nowait(line.work, "x")
        assert (caught.value.retry_after, caught.value.max_waiting) == (math.inf, 1)
        await trio.sleep(2.5)
        queue.submit_nowait(line.work, "c")
        with pytest.raises(QueueFullError) as caught:
            await queue.submit(line.work, "x")
        assert caught.value.retry_after == 2.5  # one has ended in 2.5 s
        with pytest.raises(QueueFullError):
            await queue.run(line.work, "x")
        assert queue.statistics().submitted == 3
    assert line.names == ["a", "b", "c"]


# ---------------------------------------------------------------------------------------------------- DROP


@virtual
async def test_drop_oldest() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=2, overflow=Overflow.DROP_OLDEST) as queue:
        jobs = [queue.submit_nowait(line.work, name) for name in "abcde"]
        assert [job.state.value for job in jobs] == ["running", "dropped", "dropped", "waiting", "waiting"]
        with pytest.raises(JobDroppedError, match=r"^job dropped: the queue was full$"):
            jobs[1].result_nowait()
    assert line.names == ["a", "d", "e"]
    assert queue.statistics().drops_by_reason == {"the queue was full": 2}


@virtual
async def test_drop_lowest_the_newest_among_equals_and_perhaps_the_newcomer() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=3, overflow=Overflow.DROP_LOWEST) as queue:
        queue.submit_nowait(line.work, "running", priority=-9)
        for name, priority in (("low 1", 0), ("low 2", 0), ("mid", 1), ("high", 2)):
            queue.submit_nowait(line.work, name, priority=priority)
        assert queue.submit_nowait(line.work, "lower", priority=-1).state is JobState.DROPPED
        assert queue.submit_nowait(line.work, "equal", priority=0).state is JobState.DROPPED
        jobs = [queue.submit_nowait(line.work, "mid 2", priority=1)]
        jobs[0].priority = -5
        queue.submit_nowait(line.work, "mid 3", priority=1)
        assert jobs[0].state is JobState.DROPPED
    assert line.names == ["running", "high", "mid", "mid 3"]
    assert queue.statistics().dropped == 5


@virtual
async def test_drop_newest_returns_a_handle_already_dropped() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, max_waiting=1, overflow=Overflow.DROP_NEWEST) as queue:
        jobs = [queue.submit_nowait(line.work, name) for name in "abc"]
        assert jobs[2].state is JobState.DROPPED
        with pytest.raises(JobDroppedError):
            await jobs[2].wait()
        with pytest.raises(JobDroppedError):
            await queue.run(line.work, "d")
        assert (await queue.submit(line.work, "e")).state is JobState.DROPPED
    assert line.names == ["a", "b"]
    statistics = queue.statistics()
    assert (statistics.submitted, statistics.dropped, statistics.succeeded) == (5, 3, 2)


@virtual
@pytest.mark.parametrize("overflow", DROPS)
async def test_a_job_that_has_started_is_never_dropped_and_then_it_is_the_newcomer(overflow: Overflow) -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, max_waiting=2, overflow=overflow, retry=pauses(10)) as queue:
        old = [queue.submit_nowait(line.flaky(name, seconds=0), priority=-1) for name in "ab"]
        await wait_all_tasks_blocked()
        queue.pause()
        for _ in range(2):
            assert queue.submit_nowait(line.work, "x", priority=5).state is JobState.DROPPED
            await trio.sleep(15)  # the second time the retries are due, and wait
        queue.resume()
        assert [await job.wait() for job in old] == ["a", "b"]
        assert [job.attempts for job in old] == [2, 2]
    assert sorted(line.names) == ["a", "a", "b", "b"]


@virtual
@pytest.mark.parametrize("overflow", DROPS)
async def test_everybody_is_told_and_everything_is_counted(overflow: Overflow) -> None:
    finished: list[str] = []
    dropped: list[QueueDropped] = []

    class Listener(Instrument):
        def job_finished(self, event: JobFinished, /) -> None:
            finished.append(event.state)

        def queue_dropped(self, event: QueueDropped, /) -> None:
            dropped.append(event)

    ends: list[str] = []

    async def waiter(job: JobHandle[None]) -> None:
        try:
            await job.wait()
            ends.append("succeeded")
        except JobDroppedError as error:
            ends.append(error.reason)

    async with (
        open_task_queue(concurrency=1, max_waiting=3, overflow=overflow, instruments=[Listener()]) as queue,
        trio.open_nursery() as nursery,
    ):
        for number in range(10):
            job = queue.submit_nowait(
                trio.sleep, 1, priority=number % 3, tags=["t"], gate=Gate(), weight=2, timeout=99, key=number
            )
            nursery.start_soon(waiter, job)
            await wait_all_tasks_blocked()
    assert sorted(ends) == ["succeeded"] * 4 + ["the queue was full"] * 6
    assert sorted(finished) == ["dropped"] * 6 + ["succeeded"] * 4
    assert dropped == [QueueDropped("the queue was full", 1)] * 6
    statistics = queue.statistics()
    assert statistics.by_tag == {"t": {"submitted": 10, "succeeded": 4, "dropped": 6}}
    assert statistics.drops_by_reason == {"the queue was full": 6}


# ------------------------------------------------------------------------------------------ from the inside


@virtual
async def test_a_crawler_ends_by_itself() -> None:
    pages = 0

    async def crawl(depth: int) -> None:
        nonlocal pages
        pages += 1
        await trio.sleep(1)
        if depth:
            for _ in range(3):
                await queue.submit(crawl, depth - 1)

    async with open_task_queue(concurrency=1, max_waiting=1) as queue:
        await queue.submit(crawl, 5)
    assert pages == sum(3**depth for depth in range(6))
    assert trio.current_time() == pages
    statistics = queue.statistics()
    assert (statistics.submitted, statistics.succeeded) == (pages, pages)
    assert statistics.over_admitted > pages // 2


@virtual
async def test_inside_is_found_through_nurseries_and_groups_and_only_when_it_is_full() -> None:
    async def parent() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queue.submit, trio.sleep, 1)
            nursery.start_soon(queue.submit, trio.sleep, 1)
        async with queue.group() as mine:
            mine.submit_nowait(trio.sleep, 1)
            mine.cancel()

    async with open_task_queue(concurrency=1, max_waiting=1) as queue:
        await queue.run(parent)
        assert (queue.statistics().over_admitted, queue.statistics().cancelled) == (2, 1)


@virtual
async def test_a_job_of_another_queue_waits_like_everybody() -> None:
    async def parent() -> None:
        await inner.submit(trio.sleep, 5)
        raise Flop

    async with open_task_queue(concurrency=1, max_waiting=1) as inner:
        for _ in range(2):
            inner.submit_nowait(trio.sleep, 1)
        async with open_task_queue() as outer:
            with pytest.raises(Flop):
                await outer.run(parent)
            assert trio.current_time() == 1
        assert inner.statistics().over_admitted == 0
