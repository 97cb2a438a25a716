"""Everything of a queue that is due at a time: retries, delayed starts, time-outs of waiting jobs, gates, ramps.

One heap and one task, however many things wait: a retry in its pause costs a heap entry, not a sleeping task.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, final

import trio
from trio.lowlevel import enable_ki_protection

from trio_orchestrator.queue.handle import JobHandle

_TOO_FEW_TO_COMPACT = 64
_LAST = 1 << 62  # behind the number of any job


@final
class Timer:
    """One thing to do at a time. `action` is called once, in the alarm's task, unless cancelled before."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action


@final
class Alarm:
    """Fires what is due.

    Actions are sync, and must move time or state: one that is due again at once is a busy loop.
    """

    __slots__ = ("_armed", "_dead", "_heap", "_on_due", "_scope", "_timers")

    def __init__(self, on_due: Callable[[list[JobHandle[Any]]], None]) -> None:
        self._on_due = on_due
        # (due, tie, what): jobs tie by their place in the order, timers go before them, or last
        self._heap: list[tuple[float, int, JobHandle[Any] | Timer]] = []
        self._scope: trio.CancelScope | None = None
        self._armed = -math.inf  # the deadline of `_scope`, while it sleeps
        self._timers = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def call_at(self, due: float, action: Callable[[], None], *, last: bool = False) -> Timer:
        """Have `action()` called at `due`, on Trio's clock; at once (but not before this returns) if that is past.

        With `last`, after everything else of that time: what it starts goes behind the jobs that are due then.
        """
        self._timers -= 1
        timer = Timer(action)
        self._add(due, _LAST - self._timers if last else self._timers, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Forget a timer. Does nothing if it has fired."""
        if timer.action is not None:
            timer.action = None
            self.bury()

    def wake_job(self, due: float, job: JobHandle[Any]) -> None:
        """Hand `job` to `on_due` at `due`, together with all others that are due then."""
        self._add(due, job.seq, job)

    def bury(self) -> None:
        """Count an entry that became void: a cancelled timer, or a job whose `seq` became negative."""
        self._dead += 1
        if self._dead > _TOO_FEW_TO_COMPACT and self._dead * 2 > len(self._heap):
            self._heap[:] = [entry for entry in self._heap if not self._is_dead(entry)]
            heapify(self._heap)
            self._dead = 0

    def clear_jobs(self) -> list[JobHandle[Any]]:
        """Take all jobs out, in no particular order; timers stay."""
        living = [entry for entry in self._heap if not self._is_dead(entry)]
        self._heap[:] = [entry for entry in living if isinstance(entry[2], Timer)]
        heapify(self._heap)
        self._dead = 0
        return [entry[2] for entry in living if isinstance(entry[2], JobHandle)]

    async def run(self) -> None:
        """Fire until cancelled."""
        while True:
            due = self._armed = self._heap[0][0] if self._heap else math.inf
            with trio.CancelScope(deadline=due) as self._scope:
                await trio.sleep_forever()
            self._armed = -math.inf
            self._fire(trio.current_time())

    def _add(self, due: float, tie: int, what: JobHandle[Any] | Timer) -> None:
        heappush(self._heap, (due, tie, what))
        if due < self._armed and self._scope is not None:
            self._armed = self._scope.deadline = due

    @enable_ki_protection
    def _fire(self, now: float) -> None:
        heap = self._heap
        jobs: list[JobHandle[Any]] = []
        while heap and heap[0][0] <= now:
            if jobs and isinstance(heap[0][2], Timer):  # it shall find in their places the jobs that were due before it
                self._on_due(jobs)
                jobs = []
                continue
            entry = heappop(heap)
            if self._is_dead(entry):
                self._dead -= 1
            elif isinstance(entry[2], Timer):
                action, entry[2].action = entry[2].action, None
                assert action is not None
                action()
            else:
                jobs.append(entry[2])
        if jobs:
            self._on_due(jobs)

    @staticmethod
    def _is_dead(entry: tuple[float, int, JobHandle[Any] | Timer]) -> bool:
        what = entry[2]
        return what.action is None if isinstance(what, Timer) else what.seq < 0
