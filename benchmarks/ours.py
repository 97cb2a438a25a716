"""Children that run our queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from benchmarks import memory
from benchmarks.contenders import Sleeper, Stopwatch, contender, nothing
from benchmarks.measure import Reading
from trio_orchestrator import Custom, Retry, TaskQueue, open_task_queue

TRANSIENT = ConnectionError("the one error of all failing jobs, so that it costs nothing a job")


@contender
async def queue_jobs(*, n: int, concurrency: int, **settings: Any) -> Reading:
    """Trivial jobs, ``submit_nowait``; ``settings`` go to the queue."""
    watch, before = Stopwatch(), memory.resident()
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, **settings) as queue:
        for i in range(n):
            queue.submit_nowait(nothing, i)
        submit = watch.us_each(n)
    drain = watch.us_each(n)
    million = before + (memory.peak() - before) / n * 1_000_000
    return {"submit": submit, "drain": drain, "mib_a_million": million / 2**20}


@contender
async def queue_submit(*, n: int, concurrency: int, bound: int) -> Reading:
    """Trivial jobs, ``await submit`` into a bounded queue."""
    async with open_task_queue(concurrency=concurrency, max_waiting=bound) as queue:
        for i in range(n):
            await queue.submit(nothing, i)
    return {}


@contender
async def queue_run(*, n: int, concurrency: int) -> Reading:
    """Trivial calls, submitted and waited for, one after the other."""
    async with open_task_queue(concurrency=concurrency) as queue:
        for i in range(n):
            await queue.run(nothing, i)
    return {}


@contender
async def queue_sleeps(*, n: int, concurrency: int, **settings: Any) -> Reading:
    """Jobs that sleep 1 ms."""
    sleeper = Sleeper()
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, **settings) as queue:
        for i in range(n):
            queue.submit_nowait(sleeper.body, i)
    return sleeper.reading(n)


@contender
async def queue_limiter(*, n: int, concurrency: int, queues: int) -> Reading:
    """Trivial jobs in one or more saturated queues that share a limiter."""
    limiter = trio.CapacityLimiter(concurrency)

    async def saturate(share: int) -> None:
        async with open_task_queue(limiter=limiter, max_waiting=math.inf) as queue:
            for i in range(share):
                queue.submit_nowait(nothing, i)

    async with trio.open_nursery() as nursery:
        for _ in range(queues):
            nursery.start_soon(saturate, n // queues)
    return {}


@contender
async def queue_priorities(*, n: int, concurrency: int, levels: int) -> Reading:
    """Trivial jobs of ``levels`` priorities in turn; 0 levels: each job's priority is above all before it."""
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf) as queue:
        for i in range(n):
            queue.submit_nowait(nothing, i, priority=i % levels if levels else i)
    return {}


@contender
async def queue_keys(*, n: int, concurrency: int, keys: int, per_key: int) -> Reading:
    """Trivial jobs of ``keys`` keys in turn."""
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, per_key=per_key) as queue:
        for i in range(n):
            queue.submit_nowait(nothing, i, key=i % keys)
    return {}


async def bytes_each(queue: TaskQueue, n: int, submit: Callable[[int], object]) -> float:
    """Hold every slot, submit ``n`` jobs behind and return what each added to the resident memory."""
    held = trio.Event()
    for _ in range(int(queue.concurrency)):
        queue.submit_nowait(held.wait)
    await trio.testing.wait_all_tasks_blocked()
    before = memory.resident()
    for i in range(n):
        submit(i)
    grown = memory.resident() - before
    held.set()
    return grown / n


@contender
async def queue_waiting(*, n: int, concurrency: int) -> Reading:
    """Jobs that wait, with one argument and no options."""
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf) as queue:
        return {"bytes": await bytes_each(queue, n, lambda i: queue.submit_nowait(nothing, i))}


@contender
async def queue_waiting_options(*, n: int, concurrency: int) -> Reading:
    """Jobs that wait, with a priority and a key."""

    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, per_key=2) as queue:
        return {
            "bytes": await bytes_each(queue, n, lambda i: queue.submit_nowait(nothing, i, priority=i % 10, key=i % 50))
        }


async def failing(item: int) -> None:
    """Fail, each time with an error of its own."""
    raise ConnectionError(item)


class Flaky:
    """A body whose first attempt of each item fails, if ``fails``; it counts the attempts."""

    def __init__(self, n: int, fails: bool) -> None:
        self.attempts = 0
        self.fails = bytearray([fails]) * n

    async def body(self, item: int) -> None:
        """Fail if this item still has to."""
        self.attempts += 1
        if self.fails[item]:
            self.fails[item] = False
            raise TRANSIENT.with_traceback(None)


def retry_at(due_at: Callable[[], float]) -> Retry:
    """Return a policy whose one retry falls due at the next point in time that ``due_at`` gives."""
    return Retry(
        on=ConnectionError, attempts=2, backoff=Custom(lambda _n, _rng: max(0.0, due_at() - trio.current_time()))
    )


@contender
async def queue_retries(*, n: int, concurrency: int, together: int, lead: float, spacing: float) -> Reading:
    """Jobs of which each fails once, minus the same jobs without a failure: the cost of being retry-scheduled.

    Groups of ``together`` fall due at one instant, the first ``lead`` seconds from the start, so that all have
    failed by then; the groups are ``together * spacing`` apart.
    """
    start, scheduled = 0.0, 0

    def due_at() -> float:
        nonlocal scheduled
        scheduled += 1
        return start + lead + scheduled // together * together * spacing

    async def jobs(fails: bool) -> float:
        nonlocal start
        flaky = Flaky(n, fails)
        watch, start = Stopwatch(), trio.current_time()
        async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, retry=retry_at(due_at)) as queue:
            for i in range(n):
                queue.submit_nowait(flaky.body, i)
        assert flaky.attempts == n * (1 + fails), flaky.attempts
        return watch.us_each(n)

    plain = await jobs(fails=False)
    return {"us": await jobs(fails=True) - plain}


@contender
async def queue_retry_scheduled(*, n: int, concurrency: int) -> Reading:
    """Jobs that have failed and wait for their retry, far away: what each holds beside its error.

    The same errors, kept in a list, are measured before and taken off. The jobs are submitted in small batches, since a
    long line of waiting jobs would leave memory behind for the retries.
    """
    errors: list[Exception | None] = [None] * n
    before = memory.resident()
    for i in range(n):
        errors[i] = await error_of(i)
    by_errors, before = memory.resident() - before, memory.resident()
    retry = retry_at(lambda: trio.current_time() + 1e6)
    async with open_task_queue(concurrency=concurrency, max_waiting=math.inf, retry=retry) as queue:
        for done in range(100, n + 1, 100):
            for i in range(done - 100, done):
                queue.submit_nowait(failing, i)
            while queue.statistics().retry_scheduled < done:
                await trio.lowlevel.checkpoint()
        grown = memory.resident() - before
        queue.clear()
    return {"bytes": (grown - by_errors) / n, "error_bytes": by_errors / n}


async def error_of(item: int) -> Exception:
    """Return the error of the failing body, with the body's frame in its traceback and none of ours."""
    try:
        await failing(item)
    except ConnectionError as error:
        return error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    raise AssertionError
