"""What a queue shows of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, final

import trio

from trio_orchestrator.algorithms.sketch import Quantiles, Sketch

if TYPE_CHECKING:
    from trio_orchestrator.queue.engine import Engine
    from trio_orchestrator.queue.handle import Terms, Times

SAMPLED = 16
"""Waits and run times are measured for one job in so many, and for every job that has a time-out."""


@final
@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """A snapshot of a queue. The counts are exact, and at every instant `submitted` is the sum of its states:
    `succeeded + failed + cancelled + dropped + waiting + running + retry_scheduled`.
    """  # noqa: D205

    name: str
    submitted: int
    """Jobs that were let in, or dropped at the door. A refused `submit`, or one that still waits, is not among them."""
    waiting: int
    """Jobs that want a slot, and those submitted with a `delay` that is not over."""
    running: int
    """Bodies that run, clean-up after a cancellation included."""
    retry_scheduled: int
    """Jobs in the pause before a retry; they hold no slot."""
    succeeded: int
    failed: int
    cancelled: int
    dropped: int
    limit: int | float
    """How many may run at once: the tokens of the limiter."""
    paused: bool
    idle: bool
    """Nothing waits, runs or is scheduled for a retry: the condition of `wait_idle()`."""
    at_the_door: int
    """Tasks that wait in `submit` for room."""
    overdue: int
    """Running bodies that were cancelled or timed out, and still clean up. For a job of `submit_sync`: its thread
    still runs, since a thread cannot be interrupted; it keeps its slot until it returns.
    """
    retries: int
    """Attempts that were scheduled again, so far."""
    refusals: int
    """Attempts that `protect` refused; they count as no attempt."""
    over_admitted: int
    """Jobs that jobs of this queue submitted although it was full, so far."""
    gate_shut_for: float
    """Seconds until the queue's own gate lets the next job through: 0 if it is open, inf if not known."""
    oldest_wait: float
    """Seconds that the longest waiting job has waited, as far as it was measured (see `waits.sampled`); else 0."""
    waits: Quantiles
    """Seconds from submission to the first start."""
    runs: Quantiles
    """Seconds that bodies ran."""
    throughput: float
    """Jobs ended per second since the queue was opened."""
    drops_by_reason: Mapping[str, int]
    by_tag: Mapping[str, Mapping[str, int]]
    """For each tag, jobs by state: `submitted`, `succeeded`, `failed`, `cancelled`, `dropped`."""


@final
class Record:
    """What the engine keeps for its statistics, beyond its counters."""

    __slots__ = ("by_tag", "drops", "opened_at", "runs", "waits")

    def __init__(self, opened_at: float) -> None:
        self.opened_at: float = opened_at
        self.waits: Sketch = Sketch()
        self.runs: Sketch = Sketch()
        self.drops: Counter[str] = Counter()
        self.by_tag: dict[str, Counter[str]] = {}

    def started(self, times: Times, now: float) -> None:
        """A measured job starts for the first time."""
        if times.submitted_at is not None:
            self.waits.add(now - times.submitted_at)

    def tagged(self, terms: Terms, what: str) -> None:
        """Something happened to a job with tags."""
        for tag in terms.tags:
            self.by_tag.setdefault(tag, Counter())[what] += 1


def snapshot(engine: Engine) -> QueueStatistics:
    """Return what a queue shows of itself now."""
    record, now = engine.record, trio.current_time()
    ended = engine.succeeded + engine.failed + engine.cancelled_jobs + engine.dropped
    return QueueStatistics(
        name=engine.settings.name,
        submitted=engine.submitted - engine.renumbered,
        waiting=engine.waiting,
        running=engine.running,
        retry_scheduled=engine.scheduled,
        succeeded=engine.succeeded,
        failed=engine.failed,
        cancelled=engine.cancelled_jobs,
        dropped=engine.dropped,
        limit=engine.slots.limit,
        paused=engine.paused,
        idle=engine.idle,
        at_the_door=len(engine.door),
        overdue=sum(worker.overdue for worker in engine.workers.values()),
        retries=engine.retries,
        refusals=engine.refusals,
        over_admitted=engine.over_admitted,
        gate_shut_for=engine.lanes.shut_for,
        oldest_wait=_oldest_wait(engine, now),
        waits=record.waits.quantiles(SAMPLED),
        runs=record.runs.quantiles(SAMPLED),
        throughput=ended / (now - record.opened_at) if now > record.opened_at else 0.0,
        drops_by_reason=dict(record.drops),
        by_tag={tag: dict(counts) for tag, counts in record.by_tag.items()},
    )


def _oldest_wait(engine: Engine, now: float) -> float:
    head = engine.schedule.head()  # sweeps the deque
    first = islice(engine.schedule.fifo, SAMPLED)  # one of them was measured, if all came the same way
    measured = [job._times for job in first] + ([] if head is None else [head._times])
    times = [found.submitted_at for found in measured if found is not None and found.submitted_at is not None]
    return max(0.0, now - min(times)) if times else 0.0
