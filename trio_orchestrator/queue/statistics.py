"""What a queue shows of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from trio_orchestrator.algorithms.sketch import Quantiles, Sketch

if TYPE_CHECKING:
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
    """Running bodies that were cancelled or timed out, and still clean up. For a job of `submit_sync`: its thread still runs,
    since a thread cannot be interrupted; it keeps its slot until it returns.
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
