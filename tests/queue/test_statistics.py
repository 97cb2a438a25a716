"""What a queue shows of itself, what its jobs are called, and when it says that it would wait for ever."""

from __future__ import annotations

import threading
from random import Random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.queue.timeline import Flop, Timeline, clean_up, pauses, virtual
from trio_orchestrator import (
    Failures,
    JobCancelledError,
    JobState,
    KeyOrder,
    Overflow,
    QueueStatistics,
    TaskQueue,
    open_task_queue,
)
from trio_orchestrator.abc import Instrument
from trio_orchestrator.event import JobFinished, LimitChanged, QueueDropped, RetryScheduled


def law(statistics: QueueStatistics) -> None:
    """Everything is counted, once."""
    ended = statistics.succeeded + statistics.failed + statistics.cancelled + statistics.dropped
    assert statistics.submitted == ended + statistics.waiting + statistics.running + statistics.retry_scheduled
    assert statistics.idle == (not statistics.waiting + statistics.running + statistics.retry_scheduled)
    assert statistics.dropped == sum(statistics.drops_by_reason.values())


class Auditor(Instrument):
    """Checks the law whenever it hears of anything."""

    def __init__(self) -> None:
        self.queue: TaskQueue | None = None
        self.heard: dict[str, int] = {}

    def _check(self, event: object) -> None:
        self.heard[type(event).__name__] = self.heard.get(type(event).__name__, 0) + 1
        assert self.queue is not None
        law(self.queue.statistics())

    def job_finished(self, event: JobFinished, /) -> None:
        self._check(event)

    def queue_dropped(self, event: QueueDropped, /) -> None:
        self._check(event)

    def limit_changed(self, event: LimitChanged, /) -> None:
        self._check(event)

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        self._check(event)


@virtual
@pytest.mark.parametrize("overflow", [Overflow.WAIT, Overflow.DROP_OLDEST])
async def test_the_law_of_counts_holds_at_every_instant_in_hooks_and_in_bodies(
    overflow: Overflow, caplog: pytest.LogCaptureFixture
) -> None:
    chance, auditor = Random(5), Auditor()

    async def body(fails: bool) -> None:
        law(queue.statistics())
        await trio.sleep(chance.choice([0, 1, 2]))
        law(queue.statistics())
        if fails:
            raise Flop

    async with open_task_queue(
        concurrency=3,
        max_waiting=10,
        overflow=overflow,
        per_key=1,
        per_key_order=KeyOrder.STRICT,
        retry=pauses(3),
        failures=Failures.RECORD,
        instruments=[auditor],
    ) as queue:
        auditor.queue = queue
        jobs = []
        for number in range(60):
            key = chance.choice([None, "a", "b"])
            jobs.append(await queue.submit(body, chance.random() < 0.3, key=key, weight=chance.choice([1, 1, 2])))
            law(queue.statistics())
            if number % 7 == 0:
                chance.choice(jobs).cancel()
            if number % 20 == 19:
                queue.clear()
            queue.concurrency = chance.choice([1, 3, 5])
            await trio.sleep(chance.choice([0, 0.5]))
    law(queue.statistics())
    assert auditor.heard["JobFinished"] == 60
    assert {"QueueDropped", "LimitChanged"} <= set(auditor.heard)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]  # no hook raised


@virtual
async def test_every_field() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=2, name="shown", retry=pauses(50), failures=Failures.RECORD) as queue:
        empty = queue.statistics()
        assert (empty.name, empty.submitted, empty.idle, empty.limit, empty.throughput) == ("shown", 0, True, 2, 0)
        assert empty.waits == empty.runs
        queue.submit_nowait(line.work, "a", 4, tags=["x", "y"])
        queue.submit_nowait(line.flaky("b"), tags=["x"])
        queue.submit_nowait(line.work, "c", 1, tags=iter(["y"]))
        queue.submit_nowait(line.work, "d", 9, timeout=2)
        queue.submit_nowait(line.work, "e", 1)
        await trio.sleep(1.5)
        now = queue.statistics()
        assert (now.waiting, now.running, now.retry_scheduled, now.paused, now.limit) == (2, 2, 1, False, 2)
        assert now.oldest_wait == 1.5
        await trio.sleep(18.5)
        now = queue.statistics()
        assert (now.succeeded, now.failed, now.retries, now.submitted) == (3, 1, 1, 5)
        assert now.throughput == 4 / 20
        assert now.oldest_wait == 0
        assert now.by_tag == {"x": {"submitted": 2, "succeeded": 1}, "y": {"submitted": 2, "succeeded": 2}}
        assert now.waits.sampled == 16
        assert 1 <= now.waits.count <= 5
        assert 1 <= now.runs.count <= 5
        assert now.runs.p99 == pytest.approx(4, rel=0.05)
        with pytest.raises(AttributeError):
            now.waiting = 3  # type: ignore[misc]


@virtual
async def test_waits_and_runs_are_measured_for_one_in_sixteen_and_for_every_timed_job() -> None:
    async with open_task_queue(concurrency=1) as queue:
        for _ in range(160):
            queue.submit_nowait(trio.sleep, 1)
        await queue.wait_idle()
        statistics = queue.statistics()
        assert (statistics.waits.count, statistics.runs.count) == (10, 10)
        assert statistics.runs.p50 == pytest.approx(1, rel=0.05)
        assert statistics.waits.p50 == pytest.approx(64, rel=0.05)
        for _ in range(15):
            await queue.run(trio.sleep, 1, timeout=9)
        assert queue.statistics().runs.count >= 24


@virtual
async def test_names_are_shown_while_the_job_runs() -> None:
    names: list[str] = []

    async def body() -> None:
        names.append(trio.lowlevel.current_task().name)
        await trio.sleep(0.1)

    class Callable:
        async def __call__(self) -> None: ...

    async with open_task_queue(concurrency=1, name="q") as queue:
        job = queue.submit_nowait(body, name="named")
        assert job.name == "named"
        await job.wait()
        await queue.run(body)
        plain = queue.submit_nowait(trio.sleep, 0)
        assert (plain.name, plain.tags) == ("sleep", ())
        assert "Callable" in queue.submit_nowait(Callable()).name
        assert queue.name == "q"
    assert names == ["job 'named' of q", "worker of q"]


@virtual
async def test_a_changed_priority_goes_to_the_end_of_its_new_level() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(1)) as queue:
        queue.submit_nowait(line.work, "running", 10)
        jobs = {name: queue.submit_nowait(line.work, name, priority=ord(name) % 2) for name in "abcdef"}
        await wait_all_tasks_blocked()
        jobs["b"].priority = 1
        jobs["c"].priority = 0
        jobs["d"].priority = 0  # the same again: the end of its own level
        jobs["e"].priority = 2
        jobs["a"].priority = 5
        jobs["a"].priority = 1
        assert [jobs[name].priority for name in "abcdef"] == [1, 1, 0, 0, 2, 0]
        law(queue.statistics())
    assert line.names == ["running", "e", "b", "a", "f", "c", "d"]


@virtual
async def test_the_priority_of_a_job_that_pauses_runs_or_has_ended() -> None:
    line = Timeline()
    async with open_task_queue(concurrency=1, retry=pauses(5)) as queue:
        job = queue.submit_nowait(line.flaky("job"))
        await trio.sleep(0.5)
        job.priority = -2
        await trio.sleep(1)
        assert job.state is JobState.RETRY_SCHEDULED
        job.priority = -1
        queue.submit_nowait(line.work, "long", 10)
        queue.submit_nowait(line.work, "other")
        await queue.wait_idle()
        job.priority = 7
        assert job.priority == 7
        law(queue.statistics())
    assert line.names == ["job", "long", "other", "job"]


# ----------------------------------------------------------------------------------------------- deadlocks


@virtual
@pytest.mark.parametrize("weight", [1, 2])
async def test_waiting_for_a_job_that_could_never_start_is_an_error(weight: int) -> None:
    async def parent() -> str:
        child = queue.submit_nowait(trio.sleep, 1)
        with pytest.raises(RuntimeError, match=r"^deadlock: no slot is free, and all 1 running jobs of 'queue' wait"):
            await child.wait()
        with pytest.raises(RuntimeError, match="deadlock"):
            await queue.run(trio.sleep, 1)
        return "told"

    async with open_task_queue(concurrency=weight) as queue:
        assert await queue.run(parent, weight=weight) == "told"
        await queue.wait_idle()
        # the child that nobody will ever wait for is cancelled, the other one is somebody's
        assert (queue.statistics().succeeded, queue.statistics().cancelled) == (2, 1)


@virtual
async def test_the_last_one_to_wait_is_told() -> None:
    told: list[int] = []

    async def parent(number: int) -> None:
        await trio.sleep(number)
        try:
            await queue.run(trio.sleep, 1)
        except RuntimeError:
            told.append(number)

    async with open_task_queue(concurrency=3) as queue:
        for number in range(3):
            queue.submit_nowait(parent, number)
    assert told == [2]


@virtual
async def test_no_deadlock_where_somebody_can_still_make_room() -> None:
    async def parent() -> None:
        child = queue.submit_nowait(trio.sleep, 1)
        await child.wait()
        await child.wait()

    async with open_task_queue(concurrency=2) as queue:
        other = queue.submit_nowait(trio.sleep, 5)
        await queue.run(parent)
        assert trio.current_time() == 6
        assert other.done
        await queue.run(queue.run, trio.sleep, 1)
        running = queue.submit_nowait(trio.sleep, 3)
        await wait_all_tasks_blocked()
        await queue.run(running.wait)


@virtual
async def test_a_shared_limiter_may_be_freed_by_others() -> None:
    limiter = trio.CapacityLimiter(2)

    async def parent() -> None:
        await queue.run(trio.sleep, 1)

    async with open_task_queue(limiter=limiter) as queue:
        async with limiter:
            job = queue.submit_nowait(parent)
            await trio.sleep(5)
            assert not job.done
        await job.wait()
        assert trio.current_time() == 6


# ------------------------------------------------------------------------------------------------- threads


async def test_blocking_functions_run_in_threads_within_slots_and_tokens() -> None:
    barrier = threading.Barrier(2, timeout=20)

    def meet() -> str:
        barrier.wait()
        return threading.current_thread().name

    async with open_task_queue(concurrency=2) as queue:
        jobs = [await queue.submit_sync(meet) for _ in range(4)]
        assert jobs[0].name.endswith("meet")
        for job in jobs:
            assert await job.wait() != threading.main_thread().name
        named = await queue.submit_sync(int, "ff", 16, name="parse", tags=["t"])
        assert (await named.wait(), named.name, named.tags) == (255, "parse", ("t",))
        with pytest.raises(ValueError, match="invalid literal"):
            await (await queue.submit_sync(int, "x")).wait()


async def test_threads_are_limited_by_their_limiter() -> None:
    running, peak = 0, 0

    def work() -> None:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        event.wait(0.001)
        running -= 1

    event = threading.Event()
    limiter = trio.CapacityLimiter(1)
    async with open_task_queue(concurrency=5) as queue:
        for _ in range(10):
            await queue.submit_sync(work, thread_limiter=limiter)
    assert peak == 1
    assert limiter.borrowed_tokens == 0


async def test_a_cancelled_thread_is_overdue_and_keeps_its_slot_until_it_returns() -> None:
    begun, release = threading.Event(), threading.Event()

    def stubborn() -> str:
        begun.set()
        release.wait(20)
        return "returned"

    async with open_task_queue(concurrency=1) as queue:
        job = await queue.submit_sync(stubborn)
        successor = queue.submit_nowait(trio.sleep, 0)
        await trio.to_thread.run_sync(begun.wait)
        assert queue.statistics().overdue == 0
        job.cancel()
        statistics = queue.statistics()
        assert (statistics.overdue, statistics.running, statistics.waiting) == (1, 1, 1)
        assert job.state is JobState.RUNNING
        release.set()
        assert await job.wait() == "returned"
        assert queue.statistics().overdue == 0
        await successor.wait()


@virtual
async def test_overdue_counts_bodies_that_clean_up() -> None:
    async with open_task_queue(concurrency=5, failures=Failures.RECORD) as queue:
        jobs = [queue.submit_nowait(clean_up, seconds) for seconds in (1, 2)]
        jobs.append(queue.submit_nowait(clean_up, 3, timeout=1))
        found = []
        await trio.sleep(0.5)
        for job in jobs[:2]:
            job.cancel()
        await trio.sleep(0.25)
        for _ in range(5):
            found.append(queue.statistics().overdue)
            await trio.sleep(1)
        for job in jobs[:2]:
            with pytest.raises(JobCancelledError):
                await job.wait()
    assert found == [2, 2, 1, 1, 0]
