"""Failures that nobody waited for: an error must not vanish because its handle was thrown away."""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, final

from trio_orchestrator.errors import JobError
from trio_orchestrator.queue.handle import UNSEEN, Failure, JobHandle

_MOST_KEPT = 100


@final
class Failures(enum.Enum):
    """What becomes of failures of which nobody was told (by `wait`, `run` or `result_nowait`)."""

    RAISE = "raise"
    """They come out of the block as one `ExceptionGroup`; the first 100 are kept, all are counted."""
    FAIL_FAST = "fail fast"
    """The first failure, in order of ending, cancels the other jobs and the block, and comes out bare, seen or not."""
    RECORD = "record"
    """They are counted, and told to instruments."""


@final
class Ledger:
    """The unseen failures of a queue."""

    __slots__ = ("_kept", "_latest", "count", "failures")

    def __init__(self, failures: Failures) -> None:
        self.failures: Failures = failures
        self._kept: dict[JobHandle[Any], Exception] = {}
        self._latest: deque[JobHandle[Any]] = deque(maxlen=_MOST_KEPT)  # of those that are counted only
        self.count: int = 0

    def add(self, job: JobHandle[Any], error: Exception) -> None:
        """A job failed. If somebody waits for it, `seen` follows when they have been told."""
        job._waiters = UNSEEN  # a group may ask, whatever the queue does
        if self.failures is Failures.RAISE:
            self.count += 1
            if len(self._kept) < _MOST_KEPT:
                self._kept[job] = error
            else:
                self._latest.append(job)

    def seen(self, job: JobHandle[Any]) -> None:
        """Somebody was told of the failure of `job`."""
        job._waiters = None
        if self.failures is Failures.RAISE:
            self.count -= 1
            self._kept.pop(job, None)

    def group(self, name: str) -> ExceptionGroup[Exception] | None:
        """Return the unseen failures as they come out of the block, or None."""
        if not self.count:
            return None
        self._fill_up()
        for job in self._kept:
            if isinstance(job._outcome, Failure):
                job._outcome.error.with_traceback(job._outcome.traceback)
        errors = [*self._kept.values()] or [JobError("all the failures that were kept have been seen since")]
        group = ExceptionGroup(f"{self.count} jobs of {name!r} failed, and nobody waited for them", errors)
        if self.count > len(self._kept):
            group.add_note(f"(the first {len(self._kept)} are shown)")
        return group

    def note(self) -> str | None:
        """Return what to add to an exception of the block itself, or None."""
        if not self.count:
            return None
        self._fill_up()
        first = next(iter(self._kept.values()), None)
        return f"({self.count} jobs failed, and nobody waited for them; the first: {first!r})"

    def _fill_up(self) -> None:
        """Put the latest failures in the places of kept ones that were seen since: none may vanish for lack of room."""
        for job in self._latest:
            error = job._outcome.error if job._waiters is UNSEEN and isinstance(job._outcome, Failure) else None
            if len(self._kept) < _MOST_KEPT and isinstance(error, Exception):
                self._kept[job] = error
