"""Opening a queue: its arguments, its block, and what comes out of it."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio

from trio_orchestrator.abc import Instrument, Policy, RandomSource
from trio_orchestrator.algorithms.argument import at_least
from trio_orchestrator.block import open_block
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.engine import Engine
from trio_orchestrator.queue.failures import Failures
from trio_orchestrator.queue.gates import Cooldown
from trio_orchestrator.queue.overflow import Overflow
from trio_orchestrator.queue.settings import KeyOrder, MeasuredSlots, Settings, checked
from trio_orchestrator.queue.statistics import snapshot
from trio_orchestrator.queue.task_queue import TaskQueue

if TYPE_CHECKING:
    from rich.progress import Progress


async def _open_queue(
    settings: Settings, progress: bool | Progress, expected: float | None
) -> AsyncGenerator[TaskQueue, None]:
    engine = Engine(settings)
    try:
        async with open_block(engine.leave) as block:
            engine.open(block)
            if progress is not False:
                from trio_orchestrator.observe.progress import progress_task

                task = progress_task(progress, partial(snapshot, engine), name=settings.name, total=expected)
                block.nursery.start_soon(task, name=f"progress of {settings.name}")
            yield TaskQueue(engine)
    except BaseException as error:
        note = engine.ledger.note()
        if note is not None:
            error.add_note(note)
        raise
    finally:
        engine.lanes.close()
    group = engine.ledger.group(settings.name)
    if group is not None:
        raise group


_opened = asynccontextmanager(_open_queue)


def open_task_queue(
    *,
    concurrency: float | None = None,
    limiter: trio.CapacityLimiter | MeasuredSlots | None = None,
    retry: Retry | None = None,
    protect: Policy | None = None,
    cooldown: Cooldown | None = None,
    max_waiting: float | None = None,
    overflow: Overflow = Overflow.WAIT,
    failures: Failures = Failures.RAISE,
    ageing: float = math.inf,
    per_key: float = math.inf,
    per_key_order: KeyOrder = KeyOrder.FREE,
    bypass: float = 0,
    attempt_timeout: float = math.inf,
    timeout: float = math.inf,
    start_within: float = math.inf,
    name: str = "queue",
    progress: bool | Progress = False,
    expected: float | None = None,
    instruments: Sequence[Instrument] = (),
    rng: RandomSource | None = None,
) -> AbstractAsyncContextManager[TaskQueue]:
    """Open a task queue for the length of a block.

    `async with open_task_queue() as queue:` works without arguments.

    Entering does not wait. Leaving refuses submissions from outside and waits for every job, retries included; jobs
    may go on submitting until the last one has ended. It does not lift a pause, a shut gate or a limit of 0: it waits,
    can be cancelled, and logs a warning once. An exception or cancellation in the block cancels all jobs at once, and
    comes out bare when the last body has left.

    Args:
        concurrency: How many jobs may run at once, >= 1 or `math.inf`. Default 3.
        limiter: Instead, a `trio.CapacityLimiter` that several queues, or other code, share: none starves another,
            since a queue passes a token on after 16 jobs or 1 ms. Or an `AdaptiveLimiter`, which finds the number from
            how the attempts end.
        retry: Repeats failed attempts, outside the slots. Default: no retries.
        protect: A policy around every attempt. When *it* refuses (`RejectedError`) the attempt does not count, the job
            keeps its place, and the gate shuts until `retry_after`; if that is not known, for a random time of at most
            1, 2, 4 ... 30 s, after which one job goes first, whose success opens the gate for all.
        cooldown: `Retry-After` of one job holds back the others (of its `key`). Needs a `retry` with `retry_after=`.
        max_waiting: How many jobs may wait, retry-scheduled ones included, >= 1; `math.inf` must be asked for. Default
            `max(1000, 10 * concurrency)`.
        overflow: What happens when so many wait.
        failures: What becomes of failures that nobody waited for.
        ageing: Seconds of waiting that are worth one level of priority, > 0; `math.inf`: priorities are strict.
        per_key: How many jobs with equal `key` may run at once, >= 1. A blocked key never blocks others.
        per_key_order: `KeyOrder.STRICT`: the next job of a key also waits while its predecessor pauses before a retry.
        bypass: How many light jobs may overtake a heavy one (`weight=`) that collects its slots, >= 0.
        attempt_timeout: Seconds an attempt may take, > 0. Retryable; every other time-out is not.
        timeout: Seconds that waiting, attempts and pauses of a job may take together, > 0.
        start_within: Seconds a job may wait for its first start, > 0.
        name: Shown in task names, logs and statistics.
        progress: True, or a `rich.progress.Progress`: show a bar while the block lasts (needs the extra `progress`); a
            log line each few seconds where there is no terminal.
        expected: How many jobs there will be in all, for the progress shown; None if that is not known.
        instruments: Listeners for the events of the queue and of the retries it makes.
        rng: The source of jitter of its gate. Default: the library's.

    Raises:
        TypeError, ValueError: An argument is wrong; the message starts with its name.
        ExceptionGroup: On leaving, with `Failures.RAISE`: the failures that nobody waited for.
    """
    settings = checked(
        concurrency=concurrency,
        limiter=limiter,
        retry=retry,
        protect=protect,
        cooldown=cooldown,
        max_waiting=max_waiting,
        overflow=overflow,
        failures=failures,
        ageing=ageing,
        per_key=per_key,
        per_key_order=per_key_order,
        bypass=bypass,
        attempt_timeout=attempt_timeout,
        timeout=timeout,
        start_within=start_within,
        name=name,
        instruments=instruments,
        rng=rng,
    )
    if progress is not False:
        from trio_orchestrator.observe.progress import check_progress

        check_progress(progress)
    return _opened(settings, progress, None if expected is None else at_least("expected", expected, 0))
