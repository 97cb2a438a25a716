"""What a task queue must be seen to do: sets and counters; no tasks, no scopes, no clock.

The bodies report to it. What it knows of the queue is what was asked of it, and the state of each handle in the end.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum


class Fate(Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DROPPED = "dropped"


class Model:
    def __init__(self, limit: int, attempts: int) -> None:
        self.limit = limit
        self.attempts = attempts  # an attempt that raises is repeated so often
        self.paused = False
        self.closed = False
        self.submitted: set[int] = set()
        self.inside: set[int] = set()  # bodies that run now
        self.tries: Counter[int] = Counter()  # how often each body was entered
        self.forbidden: set[int] = set()  # cancelled while inside: no further attempt
        self.fate: dict[int, Fate] = {}
        self.starts: list[int] = []

    # -------------------------------------------------------------------------------- asked of the queue

    def submit(self, job: int) -> None:
        assert not self.closed
        assert job not in self.submitted
        self.submitted.add(job)

    def drop(self, job: int) -> None:
        assert job in self.pending and not self.tries[job], "only a job that never started is dropped by overflow"
        self.fate[job] = Fate.DROPPED

    def clear(self) -> int:
        cleared = self.pending
        self.fate.update(dict.fromkeys(cleared, Fate.DROPPED))
        return len(cleared)

    def cancel(self, job: int) -> None:
        if job in self.inside:
            self.forbidden.add(job)
        elif job not in self.fate:
            self.fate[job] = Fate.CANCELLED

    def close(self) -> None:
        self.closed = True
        self.fate.update(dict.fromkeys(self.pending, Fate.CANCELLED))
        self.forbidden |= self.inside

    # ------------------------------------------------------------------------------ reported by the bodies

    def enter(self, job: int) -> None:
        assert job in self.submitted and job not in self.fate, (
            f"{job} runs although it has ended or was never submitted"
        )
        assert job not in self.inside, f"{job} runs twice at once"
        assert not self.paused, f"{job} starts while the queue is paused"
        assert not self.closed, f"{job} starts although the queue is closed"
        self.inside.add(job)
        self.tries[job] += 1
        self.starts.append(job)
        assert len(self.inside) <= self.limit, f"{len(self.inside)} bodies run, {self.limit} may"
        assert self.tries[job] <= self.attempts, f"{job} is attempted too often"

    def returned(self, job: int) -> None:
        self.inside.remove(job)
        self.fate[job] = Fate.SUCCEEDED

    def raised(self, job: int) -> None:
        self.inside.remove(job)
        if job in self.forbidden or self.tries[job] == self.attempts:
            self.fate[job] = Fate.FAILED

    def was_cancelled(self, job: int) -> None:
        self.inside.remove(job)
        assert job in self.forbidden, f"{job} saw a Cancelled that nobody had asked for"
        self.fate[job] = Fate.CANCELLED

    # ---------------------------------------------------------------------------------- what must be seen

    @property
    def pending(self) -> set[int]:
        """Waiting, or in the pause before a retry."""
        return self.submitted - self.inside - self.fate.keys()

    @property
    def idle(self) -> bool:
        return not (self.pending or self.inside)

    def count(self, fate: Fate) -> int:
        return sum(found is fate for found in self.fate.values())
