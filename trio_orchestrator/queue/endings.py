"""How jobs end, and who is told.

Only `_end` settles waiters and moves the counters of the ended (a worker does the same for a job that asked for
nothing).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.errors import JobTimeoutError
from trio_orchestrator.event import JobFinished, QueueDropped
from trio_orchestrator.queue.dispatch import Dispatch
from trio_orchestrator.queue.failures import Failures, Ledger
from trio_orchestrator.queue.handle import (
    CANCELLED,
    DROPPED,
    FAILED,
    RETRY_SCHEDULED,
    RUNNING,
    SUCCEEDED,
    WAITING,
    Failure,
    JobHandle,
    JobState,
    Terms,
    Times,
)
from trio_orchestrator.queue.settings import Settings
from trio_orchestrator.queue.statistics import Record


class Endings(Dispatch):
    """Ends jobs, in every state; also all of them at once."""

    # Declared again because it assigns them; they are its base's.
    calm: bool
    closed: bool
    heavy: int
    held: bool
    quiet: bool
    room: float

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        super().__init__(settings, hooks)
        self._on_finished = hooks.of("job_finished")
        self._on_dropped = hooks.of("queue_dropped")
        self._news: deque[tuple[list[Callable[[Any], None]], object]] = deque()  # what hooks have not heard yet
        self.ledger: Ledger = Ledger(settings.failures)
        self.record: Record = Record(trio.current_time())
        self.reason: str = ""  # why nobody is let in any more
        self.aborted: bool = False  # all jobs are cancelled: what fails in its clean-up now is not the first failure

        self.submitted: int = 0  # the next sequence number: jobs submitted, and `renumbered`
        self.renumbered: int = 0  # sequence numbers that were given to no new job
        self.succeeded: int = 0
        self.failed: int = 0
        self.cancelled_jobs: int = 0
        self.dropped: int = 0
        self.scheduled: int = 0  # in the pause before a retry
        self.delayed: int = 0  # submitted with a delay that is not over

    @abstractmethod
    def _close_doors(self) -> None:
        """Send everybody away who waits to submit, or for the backlog to shrink."""

    def _watch_over(self, job: JobHandle[Any], terms: Terms) -> None:
        if terms.weight > 1:
            self.heavy += 1
            self.quiet = self.calm = False
        if terms.gate is not None:
            self.lanes.enter(terms.gate)
            self.quiet = self.calm = False
        if terms.tags:
            self.record.tagged(terms, "submitted")
        if terms.times is not None:
            self._set_timers(job, terms.times)

    def _set_timers(self, job: JobHandle[Any], times: Times) -> None:
        if times.deadline < math.inf:
            times.timer = self.alarm.call_at(
                times.deadline, lambda: self._timed_out_waiting(job, "timeout", times.timeout)
            )
        if times.start_by < math.inf:
            times.start_timer = self.alarm.call_at(
                times.start_by, lambda: self._timed_out_waiting(job, "start_within", times.start_within)
            )

    def number(self) -> int:
        """Return the sequence number of the next job, which is thereby submitted."""
        seq = self.submitted
        self.submitted = seq + 1
        return seq

    def cancel(self, job: JobHandle[Any], reason: str) -> None:
        """Cancel a job in whatever state it is."""
        if job._state is RUNNING:
            job._worker.cancel(reason)
        elif not job.done:
            self._withdraw(job)
            self._cancel_for_good(job, reason, job._outcome)
            self._made_room()

    def _timed_out_waiting(self, job: JobHandle[Any], which: str, seconds: float) -> None:
        """A time-out fired; it means something if the job has no slot now (else its scope knows)."""
        if job._state not in (WAITING, RETRY_SCHEDULED) or (which == "start_within" and job._attempts):
            return
        last = job._outcome
        self._withdraw(job)
        self._fail(job, timeout_of(which, seconds, last))
        self._made_room()

    def drop(self, job: JobHandle[Any], reason: str) -> None:
        """Drop a waiting job, or one that was never let in."""
        if job.seq < 0:
            self.number()
            if job._terms is not None:
                self._watch_over(job, job._terms)  # it ends like the others, and has to be counted like them
        else:
            self._withdraw(job)
        self._report(self._on_dropped, QueueDropped(reason, 1))
        self._dropped(job, reason)
        self._flush()

    def clear(self, reason: str | Exception) -> int:
        """Drop all that waits or is scheduled for a retry."""
        jobs = self._take_all()
        if jobs:
            self._report(self._on_dropped, QueueDropped(str(reason), len(jobs)))
        for job in jobs:
            self._dropped(job, reason)
        self._made_room()
        return len(jobs)

    def _made_room(self) -> None:
        """Jobs left that had no slot: tell those at the door, and those who wait for fewer or none."""
        self.quiet = self.calm = False
        self.dispatch()

    def _dropped(self, job: JobHandle[Any], reason: str | Exception) -> None:
        self.dropped += 1
        self.record.drops[str(reason)] += 1
        outcome = Failure(reason, None) if isinstance(reason, Exception) else (reason, job._outcome)
        self._end(job, DROPPED, outcome, None)

    def _succeed(self, job: JobHandle[Any], result: object) -> None:
        self.succeeded += 1
        self._end(job, SUCCEEDED, result, None)

    def _fail(self, job: JobHandle[Any], error: Exception) -> None:
        self.failed += 1
        if job._terms is not None:
            sign(error, job._terms)
        self._end(job, FAILED, Failure(error, error.__traceback__), error)
        if self.settings.failures is Failures.FAIL_FAST and not self.aborted:
            self._fail_block(error, f"a job of {self.settings.name!r} failed")

    def _cancel_for_good(self, job: JobHandle[Any], reason: str, last: object) -> None:
        self.cancelled_jobs += 1
        self._end(job, CANCELLED, (reason, last), None)

    def _end(self, job: JobHandle[Any], state: JobState, outcome: object, error: Exception | None) -> None:
        terms = job._terms
        if job._state is RUNNING and (self._on_finished or (terms is not None and terms.weight > 1)):
            self.held = True
        job._state, job._outcome = state, outcome
        job._context = job._args = None
        waiters, job._waiters = job._waiters, None
        if job._terms is not None:
            self._close_terms(job, job._terms, state)
        if error is not None:
            self.ledger.add(job, error)
        if waiters is not None:
            waiters._settle(job)
        if self._on_finished:
            self._report(self._on_finished, JobFinished(job.name, job.tags, state.value, job._attempts, error))

    def _close_terms(self, job: JobHandle[Any], terms: Terms, state: JobState) -> None:
        self.schedule.release(job)
        if terms.times is not None:
            self._cancel_timers(terms.times)
        if terms.weight > 1:
            self.heavy -= 1
            self.passed.pop(job, None)
        if terms.gate is not None:
            self.lanes.leave(terms.gate)
        if terms.tags:
            self.record.tagged(terms, state.value)

    def _cancel_timers(self, times: Times) -> None:
        for timer in (times.timer, times.start_timer):
            if timer is not None:
                self.alarm.cancel(timer)
        times.timer = times.start_timer = None

    def seen(self, job: JobHandle[Any]) -> None:
        """Somebody was told of a failure."""
        self.ledger.seen(job)

    # ------------------------------------------------------------------------------------------------------ taking out

    def _withdraw(self, job: JobHandle[Any]) -> None:
        """Take one job out that has no slot."""
        times = job._times
        if job._state is RETRY_SCHEDULED or (times is not None and times.delayed):
            if job._state is RETRY_SCHEDULED:
                self.scheduled -= 1
            else:
                self.delayed -= 1
            job.seq = ~job.seq
            self.alarm.bury()
        else:
            self.calm = False  # there is a tombstone now
            self.schedule.discard(job)
        self.schedule.release(job)

    def _take_all(self) -> list[JobHandle[Any]]:
        """Take everything out that has no slot, in the order of submission."""
        jobs = self.schedule.clear() + self.alarm.clear_jobs()
        for job in jobs:
            self.schedule.release(job)
            job.seq = ~job.seq
        self.delayed = self.scheduled = 0
        return sorted(jobs, key=lambda job: -job.seq)

    # ----------------------------------------------------------------------------------------------- ending everything

    def close(self, reason: str) -> list[JobHandle[Any]]:
        """Let nobody in and start nothing; end what has not started. Return those jobs."""
        if self.closed:
            return []
        self.closed, self.reason, self.quiet, self.calm, self.room = True, reason, False, False, 0
        self._close_doors()
        jobs = self._take_all()
        for job in jobs:
            self._cancel_for_good(job, reason, job._outcome)
        self.dispatch()
        return jobs

    def abort(self, reason: str) -> None:
        """Cancel all jobs at once."""
        self.aborted = True
        self.close(reason)
        if self.block is not None:
            self.block.nursery.cancel_scope.cancel(reason=self.reason)

    def _fail_block(self, error: BaseException, reason: str) -> None:
        self.aborted = True
        if self.block is not None:  # first: who stands at the door inside the block is cancelled, not sent away
            self.block.fail(error, reason)
        self.close(reason)

    # --------------------------------------------------------------------------------------------------------- telling

    def _report(self, hooks: list[Callable[[Any], None]], event: object) -> None:
        """Have hooks called when the counts are right again: they may ask for statistics, or change the queue."""
        if hooks:
            self._news.append((hooks, event))
            self.quiet = self.calm = False  # `next` shall come by

    def let_go(self) -> None:
        """The slot of a job that has ended is given back, and the next one has begun: hooks may hear of it."""
        self.held = False
        self._flush()

    def _flush(self) -> None:
        while self._news and not self.held:
            emit(*self._news.popleft())


def sign(error: Exception, terms: Terms) -> None:
    """Write on the error of a job that was given a name, or tags, whose it is."""
    words = [] if terms.name is None else [repr(terms.name)]
    words += [f"#{tag}" for tag in terms.tags]
    if words:
        with suppress(AttributeError):  # a frozen dataclass takes no notes
            error.add_note(f"(job {' '.join(words)})")


def timeout_of(which: str, seconds: float, last: object) -> JobTimeoutError:
    """Make the error of a time-out; the last failure of the job, if it had one, is the cause."""
    error = JobTimeoutError(which, seconds)
    if isinstance(last, Exception):
        error.__cause__ = last
    return error
