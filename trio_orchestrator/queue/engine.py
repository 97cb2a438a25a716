"""What becomes of jobs: how they come in, how attempts end, who is told.

Only `_end` settles waiters and moves the counters of the ended (a worker does the same for a job that asked for nothing).
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, final

import trio
from trio.lowlevel import enable_ki_protection

from trio_orchestrator.abc import GateShut, GaveUp, JobFinished, QueueDropped, RetryScheduled
from trio_orchestrator.algorithms.argument import at_least
from trio_orchestrator.block import Block, Hooks, emit
from trio_orchestrator.errors import JobTimeoutError, RejectedError
from trio_orchestrator.policies.failure import EXHAUSTIONS, GiveUp
from trio_orchestrator.policies.retry import NO_RESULT, Decision, Retry
from trio_orchestrator.queue.body import LEADING_FRAMES, Refused, call_protected, call_unprotected
from trio_orchestrator.queue.dispatch import Dispatch
from trio_orchestrator.queue.failures import Failures, Ledger
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import (
    CANCELLED,
    DROPPED,
    FAILED,
    RETRY_SCHEDULED,
    RUNNING,
    SUCCEEDED,
    UNSEEN,
    WAITING,
    Failure,
    JobHandle,
    JobState,
    Terms,
    Times,
)
from trio_orchestrator.queue.overflow import victims_for
from trio_orchestrator.queue.settings import KeyOrder, Settings
from trio_orchestrator.queue.statistics import SAMPLED, QueueStatistics, Record
from trio_orchestrator.queue.traces import leading_frames_cut
from trio_orchestrator.queue.worker import Worker

_logger = logging.getLogger("trio_orchestrator")


@final
class Engine(Dispatch):
    """The inside of a `TaskQueue`."""

    def __init__(self, settings: Settings) -> None:
        hooks = Hooks(settings.instruments)
        super().__init__(settings, hooks)
        self._on_finished = hooks.of("job_finished")
        self._on_dropped = hooks.of("queue_dropped")
        self._on_gate_shut = hooks.of("gate_shut")
        self._on_retry = hooks.of("retry_scheduled")
        self._on_gave_up = hooks.of("gave_up")
        self.on_limit_changed = hooks.of("limit_changed")
        by_retry = settings.retry.attempt_timeout if settings.retry is not None else math.inf
        self.attempt_timeout = min(settings.attempt_timeout, by_retry)
        self.victims = victims_for(settings.overflow)
        self._brisk = self.victims is None and not settings.needs_terms
        self.ledger = Ledger(settings.failures)
        self.record = Record(trio.current_time())
        self.room: float = 0  # jobs that the deque may hold, at least; 0: not known
        self.leaving = False  # the block is left: outsiders are refused
        self.reason = ""  # why nobody is let in any more
        self._warned = False
        self._letting_in = False
        self._news: deque[tuple[list[Callable[[Any], None]], object]] = deque()  # what hooks have not heard yet
        self._idle_event: trio.Event | None = None
        self._below: list[tuple[float, trio.Event]] = []
        self._blocked: dict[Worker, int] = {}  # jobs that wait for jobs of this queue

        self.submitted = 0
        self.succeeded = 0
        self.failed = 0
        self.cancelled_jobs = 0
        self.dropped = 0
        self.scheduled = 0  # in the pause before a retry
        self.delayed = 0  # submitted with a delay that is not over
        self.retries = 0
        self.refusals = 0
        self.over_admitted = 0
        self.renumbered = 0  # sequence numbers that were given to no new job

    # ------------------------------------------------------------------------------------------- submission

    @property
    def waiting(self) -> int:
        """Jobs that want a slot, delayed ones included."""
        return len(self.schedule) + self.delayed

    def has_room(self) -> bool:
        """Whether one more job may wait."""
        aside = len(self.schedule) - len(self.schedule.fifo) + self.delayed + self.scheduled
        room = self.settings.max_waiting - aside if not self.door else 0
        self.room = room if self._brisk and not self.leaving else 0
        return len(self.schedule.fifo) < room

    def number(self) -> int:
        """Return the sequence number of the next job, which is thereby submitted."""
        seq = self.submitted
        self.submitted = seq + 1
        return seq

    def admit(self, job: JobHandle[Any], start_at: float) -> None:
        """Let a job in: from now on it is submitted, and this engine's to end."""
        job.seq = self.number()
        if job._terms is not None:
            self._watch_over(job, job._terms)
        if start_at > -math.inf and start_at > trio.current_time():
            job.make_times().delayed = True
            self.delayed += 1
            self.room -= 1
            self.alarm.wake_job(start_at, job)
        else:
            self.schedule.push(job)
        if self.victims is not None:
            self.victims.add(job)
        if not self.schedule.plain:
            self.calm = False
            self.room -= 1
        if self.hungry:
            self.dispatch()

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
            times.timer = self.alarm.call_at(times.deadline, lambda: self._timed_out_waiting(job, "timeout", times.timeout))
        if times.start_by < math.inf:
            times.start_timer = self.alarm.call_at(
                times.start_by, lambda: self._timed_out_waiting(job, "start_within", times.start_within)
            )

    def check_open(self) -> None:
        """Refuse a submission to a closed queue."""
        if self.closed or (self.leaving and self.inside() is None):
            raise trio.ClosedResourceError(f"the queue {self.settings.name!r} is closed: {self.reason}")

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
        self.dispatch()
        return len(jobs)

    def _take_all(self) -> list[JobHandle[Any]]:
        """Take everything out that has no slot, in the order of submission."""
        jobs = self.schedule.clear() + self.alarm.clear_jobs()
        for job in jobs:
            self.schedule.release(job)
            job.seq = ~job.seq
        self.delayed = self.scheduled = 0
        return sorted(jobs, key=lambda job: -job.seq)

    def _withdraw(self, job: JobHandle[Any]) -> None:
        """Take one job out that has no slot."""
        times = job.times
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

    def reprioritise(self, job: JobHandle[Any], priority: float) -> None:
        """Give a job another priority; while it waits for a slot, it goes to the end of its new level."""
        at_least("priority", priority, -math.inf, finite=True)
        terms = job.make_terms()
        terms.priority = priority
        times = terms.times
        rank = (0.0 if times is None else times.age_rank) - priority
        if job._state is WAITING and not (times is not None and times.delayed):
            self.calm = False
            self.schedule.reprioritise(job, terms, rank, self._renumber())
            if self.victims is not None:
                self.victims.add(job)
            if self.hungry:
                self.dispatch()
        else:
            terms.rank = rank

    def _renumber(self) -> int:
        """Return a number behind all others, for a job that was submitted before."""
        self.renumbered += 1
        return self.number()

    # ------------------------------------------------------------------------------------------ attempts

    def retry_of(self, job: JobHandle[Any]) -> Retry | None:
        """Return the retry that holds for a job."""
        return self.settings.retry if job._terms is None else job._terms.retry

    def gate_of(self, job: JobHandle[Any]) -> Gate:
        """Return the gate that holds a job back."""
        terms = job._terms
        return self.own_gate if terms is None or terms.gate is None else terms.gate

    def attempt_deadline(self, job: JobHandle[Any], now: float) -> float:
        """Return when an attempt that starts now has to end."""
        times = job.times
        if times is None:
            return now + self.attempt_timeout
        return min(now + times.attempt_timeout, times.deadline)

    def attempt_starts(self, job: JobHandle[Any], worker: Worker, now: float) -> None:
        """Note what is measured and shown of an attempt."""
        if job._attempts == 0:
            job._began_at = now
        worker.began_at = now
        worker.exhaustions = EXHAUSTIONS.count
        terms = job._terms
        if terms is not None:
            if job._attempts == 0 and terms.times is not None:
                self.record.started(terms.times, now)
            if terms.name is not None and worker.task is not None:
                worker.task.name = f"job {terms.name!r} of {self.settings.name}"

    async def invoke(self, job: JobHandle[Any]) -> Any:
        """Run the body of a job, inside `protect` if there is one."""
        if self.settings.protect is None:
            return await call_unprotected(job._fn, job._args)
        return await call_protected(self.settings.protect, job._fn, job._args)

    def returned(self, job: JobHandle[Any], worker: Worker, result: object) -> None:
        """A body returned."""
        if job._terms is not None or not self.quiet:
            self._attempt_over(job, worker, success=True)
        retry = self.retry_of(job)
        if retry is not None and retry.on_result is not None:
            try:
                bad = retry.on_result(result)
            except Exception as exc:
                return self._fail(job, exc)
            if bad:
                return self._failed_attempt(job, worker, retry, None, result, timed_out=False)
        if retry is not None and retry.budget is not None:
            retry.budget.deposit(job._attempts)
        return self._succeed(job, result)

    def succeeded_plainly(self, job: JobHandle[Any], terms: Terms, result: object) -> None:
        """The body of a job returned that asked for nothing but a place in the order."""
        self.succeeded += 1
        if terms.weight == 1 and not terms.tags and not self._on_finished:
            self.schedule.release(job)
            job._state, job._outcome = SUCCEEDED, result
            job._context = job._args = None
            waiters, job._waiters = job._waiters, None
            if waiters is not None:
                waiters.settle(job)
        else:
            self._end(job, SUCCEEDED, result, None)

    def attempt_failed(
        self, job: JobHandle[Any], worker: Worker, error: Exception, *, timed_out: bool = False, for_good: bool = False
    ) -> None:
        """A body raised `error`, or a time-out of ours ended it, or `protect` refused it."""
        if isinstance(error, Refused):
            return self._refused(job, worker, error.refusal)
        self._attempt_over(job, worker, success=False)
        error = leading_frames_cut(error, LEADING_FRAMES)
        if isinstance(error, TypeError) and error.__traceback__ is None:  # raised by the call itself, not by the body
            error, for_good = _bad_call(job, error), True
        retry = self.retry_of(job)
        if retry is None or for_good or self._has_no_future(worker):
            return self._fail(job, error.error if isinstance(error, GiveUp) else error)
        return self._failed_attempt(job, worker, retry, error, None, timed_out=timed_out)

    def attempt_timed_out(self, job: JobHandle[Any], worker: Worker) -> None:
        """The deadline of our scope ended a body: the total time-out, or that of the attempt."""
        times = job.times
        if times is not None and times.deadline <= worker.armed:
            self._attempt_over(job, worker, success=False)
            return self._fail(job, _timeout("timeout", times.timeout, worker.last))
        seconds = self.attempt_timeout if times is None else times.attempt_timeout
        return self.attempt_failed(job, worker, JobTimeoutError("attempt_timeout", seconds), timed_out=True)

    def cancelled(self, job: JobHandle[Any], worker: Worker, reason: str) -> None:
        """A running job was cancelled, and its body (if it started at all) has left with `Cancelled`."""
        self._attempt_over(job, worker, success=None)
        self._cancel_for_good(job, reason, None if self.plain and job._terms is None else worker.last)

    def broke(self, job: JobHandle[Any], worker: Worker, error: BaseException) -> None:
        """A body raised what must end everything: `KeyboardInterrupt`, `SystemExit`, another `BaseException`."""
        self._attempt_over(job, worker, success=None)
        error = leading_frames_cut(error, LEADING_FRAMES)
        if isinstance(error, Exception):  # a nursery that it left open
            self._fail(job, error)
            if job._waiters is UNSEEN:  # it comes out of the block
                self.seen(job)
        else:
            self._cancel_for_good(job, f"it raised {error!r}", None)
        self._fail_block(error, f"a job of {self.settings.name!r} raised {type(error).__name__}")

    def _has_no_future(self, worker: Worker) -> bool:
        return worker.reason is not None or worker.forbidden or self.closed

    def _attempt_over(self, job: JobHandle[Any], worker: Worker, *, success: bool | None) -> None:
        terms = job._terms
        if not self.lanes.open:
            self.lanes.answered(job, self.gate_of(job), success=success)
        if terms is not None:
            if success is not None and terms.times is not None and terms.times.submitted_at is not None:
                self.record.runs.add(trio.current_time() - worker.began_at)
            if terms.name is not None and worker.task is not None:
                worker.task.name = f"worker of {self.settings.name}"

    def _failed_attempt(
        self, job: JobHandle[Any], worker: Worker, retry: Retry, error: Exception | None, result: object, *, timed_out: bool
    ) -> None:
        """Ask the retry what follows, and do it."""
        terms, times = job._terms, job.times
        now = trio.current_time()
        try:
            decision = retry.decide(
                job._fn if terms is None or terms.name is None else terms.name,
                error,
                attempt=job._attempts,
                started_at=job._began_at,
                now=now,
                deadline=math.inf if times is None else min(times.deadline, times.caller_deadline),
                timed_out=timed_out,
                since=worker.exhaustions,
                result=NO_RESULT if error is not None else result,
            )
        except Exception as exc:  # a predicate, a hook or a backoff of the user's
            return self._fail(job, exc)
        if decision.wish and self.settings.cooldown is not None:
            self._shut(self.gate_of(job), decision.wish, error)
        if self._on_retry or self._on_gave_up:
            self._report_decision(job, retry, decision, now)
        if decision.delay is None or self._has_no_future(worker):
            if error is None:
                return self._succeed(job, result)
            return self._fail(job, decision.error if isinstance(decision.error, Exception) else error)
        return self._schedule_retry(job, decision.delay, now, error)

    def _report_decision(self, job: JobHandle[Any], retry: Retry, decision: Decision, now: float) -> None:
        """Tell the queue's instruments what the retry tells its own; one that listens to both hears it once."""
        self.held, self.quiet, self.calm = True, False, False
        elapsed = now - job._began_at
        if decision.delay is None:
            hooks = [hook for hook in self._on_gave_up if hook not in retry.gave_up_hooks]
            gave_up = GaveUp(job.name, job._attempts, retry.attempts, elapsed, decision.reason, decision.error)
            self._report(hooks, gave_up)
        else:
            hooks = [hook for hook in self._on_retry if hook not in retry.scheduled_hooks]
            event = RetryScheduled(job.name, job._attempts, retry.attempts, decision.delay, elapsed, decision.error)
            self._report(hooks, event)

    def _schedule_retry(self, job: JobHandle[Any], delay: float, now: float, error: Exception | None) -> None:
        self.retries += 1
        job._outcome = None if error is None else Failure(error, error.__traceback__)
        if self.settings.per_key_order is not KeyOrder.STRICT:
            self.schedule.release(job)
        if delay > 0:
            job._state = RETRY_SCHEDULED
            self.scheduled += 1
            self.room -= 1
            self.alarm.wake_job(now + delay, job)
        else:
            self._restore(job)

    def restore_due(self, jobs: list[JobHandle[Any]]) -> None:
        for job in reversed(jobs) if len(jobs) == 1 else sorted(jobs, key=lambda job: -job.seq):
            if job._state is RETRY_SCHEDULED:
                self.scheduled -= 1
            else:
                job.make_times().delayed = False
                self.delayed -= 1
            self._restore(job)
        self.dispatch()

    def _restore(self, job: JobHandle[Any]) -> None:
        job._state = WAITING
        self.schedule.restore(job)
        if not self.schedule.plain:
            self.calm = False
            self.room -= 1

    def _refused(self, job: JobHandle[Any], worker: Worker, refusal: RejectedError) -> None:
        """The body never ran: it was no attempt, the job goes back to its place, and its gate shuts."""
        self.refusals += 1
        job._attempts -= 1
        if self._has_no_future(worker):
            reason = worker.reason if worker.reason is not None else self.reason
            return self._cancel_for_good(job, reason, worker.last)
        job._outcome = worker.last
        self.schedule.release(job)
        self._restore(job)
        self.held, self.quiet, self.calm = True, False, False
        gate = self.gate_of(job)
        seconds = self.lanes.refused(job, gate, refusal.retry_after)
        self._report(self._on_gate_shut, GateShut(seconds, refusal.retry_after < math.inf, refusal))
        times = job.times
        if times is not None and job._attempts == 0 and times.start_by <= trio.current_time():
            self._timed_out_waiting(job, "start_within", times.start_within)

    def _shut(self, gate: Gate, seconds: float, error: BaseException | None) -> None:
        gate.shut(seconds)
        if self._on_gate_shut:
            emit(self._on_gate_shut, GateShut(seconds, True, error))

    # --------------------------------------------------------------------------------------------- endings

    def cancel(self, job: JobHandle[Any], reason: str) -> None:
        """Cancel a job in whatever state it is."""
        if job._state is RUNNING:
            job._worker.cancel(reason)
        elif not job.done:
            self._withdraw(job)
            self._cancel_for_good(job, reason, job._outcome)
            self.dispatch()

    def _timed_out_waiting(self, job: JobHandle[Any], which: str, seconds: float) -> None:
        """A time-out fired; it means something if the job has no slot now (else its scope knows)."""
        if job._state not in (WAITING, RETRY_SCHEDULED) or (which == "start_within" and job._attempts):
            return
        last = job._outcome
        self._withdraw(job)
        self._fail(job, _timeout(which, seconds, last))
        self.dispatch()

    def _succeed(self, job: JobHandle[Any], result: object) -> None:
        self.succeeded += 1
        self._end(job, SUCCEEDED, result, None)

    def _fail(self, job: JobHandle[Any], error: Exception) -> None:
        self.failed += 1
        self._end(job, FAILED, Failure(error, error.__traceback__), error)
        if self.settings.failures is Failures.FAIL_FAST and not self.closed:
            self._fail_block(error, f"a job of {self.settings.name!r} failed")

    def _cancel_for_good(self, job: JobHandle[Any], reason: str, last: object) -> None:
        self.cancelled_jobs += 1
        self._end(job, CANCELLED, (reason, last), None)

    def _dropped(self, job: JobHandle[Any], reason: str | Exception) -> None:
        self.dropped += 1
        self.record.drops[str(reason)] += 1
        outcome = Failure(reason, None) if isinstance(reason, Exception) else (reason, job._outcome)
        self._end(job, DROPPED, outcome, None)

    def _end(self, job: JobHandle[Any], state: JobState, outcome: object, error: Exception | None) -> None:
        if self._on_finished and job._state is RUNNING:
            self.held = True
        job._state, job._outcome = state, outcome
        job._context = job._args = None
        waiters, job._waiters = job._waiters, None
        if job._terms is not None:
            self._close_terms(job, job._terms, state)
        if error is not None:
            self.ledger.add(job, error)
        if waiters is not None:
            waiters.settle(job)
        if self._on_finished:
            self._report(self._on_finished, JobFinished(job.name, job.tags, state.value, job._attempts, error))

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

    def _close_terms(self, job: JobHandle[Any], terms: Terms, state: JobState) -> None:
        self.schedule.release(job)
        if terms.times is not None:
            self._cancel_timers(terms.times)
        if terms.weight > 1:
            self.heavy -= 1
        if terms.gate is not None:
            self.lanes.leave(terms.gate)
        if terms.tags:
            self.record.tagged(terms, state.value)

    def _cancel_timers(self, times: Times) -> None:
        for timer in (times.timer, times.start_timer):
            if timer is not None:
                self.alarm.cancel(timer)
        times.timer = times.start_timer = None

    # ---------------------------------------------------------------------------------------------- closing

    def open(self, block: Block) -> None:
        """The block begins: its nursery is ours until it ends."""
        self.block = block
        block.nursery.start_soon(self._watch, name=f"alarm of {self.settings.name}")

    @enable_ki_protection
    async def _watch(self) -> None:
        """Run the alarm. A queue whose tasks are cancelled from outside learns of it here."""
        try:
            await self.alarm.run()
        except trio.Cancelled:
            self.abort("the queue was cancelled")
            raise

    @enable_ki_protection
    async def leave(self, error: BaseException | None) -> None:
        """The block has left, with `error`: wait for all jobs, or cancel them."""
        if error is None:
            self.refuse_outsiders("its block was left")
            try:
                if not self.idle:
                    await self.wait_idle()
            except BaseException:
                self.abort("the queue was cancelled")
                raise
            self.close("its block was left")
        else:
            self.abort(f"its block raised {type(error).__name__}")
        block = self.block
        assert block is not None
        block.nursery.cancel_scope.cancel(reason=self.reason)

    def refuse_outsiders(self, reason: str) -> None:
        """The block is left: only jobs may submit."""
        self.leaving, self.reason = True, reason
        self.room = 0
        self._close_doors()
        self._warn_if_stuck()

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
        self.close(reason)
        if self.block is not None:
            self.block.nursery.cancel_scope.cancel(reason=self.reason)

    def _fail_block(self, error: BaseException, reason: str) -> None:
        if self.block is not None:  # first: who stands at the door inside the block is cancelled, not sent away
            self.block.fail(error, reason)
        self.close(reason)

    def _close_doors(self) -> None:
        self.door.close()
        for _, event in self._below:
            event.set()
        self.watched = False

    def _warn_if_stuck(self) -> None:
        """Leaving the block waits for a pause, a shut gate or a limit of 0 to be lifted: say so, once."""
        waiting = self.waiting
        if not self.leaving or self._warned or self.closed or self.running or not waiting:
            return
        why = (
            "it is paused" if self.paused
            else "its limit is 0" if self.slots.limit == 0
            else f"its gate is shut for {self.lanes.shut_for:.3g} s" if self.lanes.shut_for > 0
            else None
        )  # fmt: skip
        if why is not None:
            self._warned = True
            _logger.warning("leaving the queue %r: %d jobs wait, and %s", self.settings.name, waiting, why)

    # ------------------------------------------------------------------------------------------------- shown

    def seconds_per_job(self) -> float:
        """Return how long one place takes to become free, judged by all that has ended so far; inf if nothing has."""
        ended = self.succeeded + self.failed + self.cancelled_jobs
        return (trio.current_time() - self.record.opened_at) / ended if ended else math.inf

    def statistics(self) -> QueueStatistics:
        """Return a snapshot."""
        record, now = self.record, trio.current_time()
        ended = self.succeeded + self.failed + self.cancelled_jobs + self.dropped
        return QueueStatistics(
            name=self.settings.name,
            submitted=self.submitted - self.renumbered,
            waiting=self.waiting,
            running=self.running,
            retry_scheduled=self.scheduled,
            succeeded=self.succeeded,
            failed=self.failed,
            cancelled=self.cancelled_jobs,
            dropped=self.dropped,
            limit=self.slots.limit,
            paused=self.paused,
            idle=self.idle,
            at_the_door=len(self.door),
            overdue=sum(worker.overdue for worker in self.workers.values()),
            retries=self.retries,
            refusals=self.refusals,
            over_admitted=self.over_admitted,
            gate_shut_for=self.lanes.shut_for,
            oldest_wait=self._oldest_wait(now),
            waits=record.waits.quantiles(SAMPLED),
            runs=record.runs.quantiles(SAMPLED),
            throughput=ended / (now - record.opened_at) if now > record.opened_at else 0.0,
            drops_by_reason=dict(record.drops),
            by_tag={tag: dict(counts) for tag, counts in record.by_tag.items()},
        )

    def _oldest_wait(self, now: float) -> float:
        head = self.schedule.head()  # sweeps the deque
        first = islice(self.schedule.fifo, SAMPLED)  # one of them was measured, if all came the same way
        measured = [job.times for job in first] + ([] if head is None else [head.times])
        times = [found.submitted_at for found in measured if found is not None and found.submitted_at is not None]
        return max(0.0, now - min(times)) if times else 0.0

    # ------------------------------------------------------------------------------------- waiting for states

    @property
    def idle(self) -> bool:
        """Whether nothing waits, runs or is scheduled for a retry."""
        return not (self.running or self.scheduled or self.delayed or len(self.schedule))

    @property
    def unobserved(self) -> bool:
        return self._idle_event is None and not self.leaving and not self._news

    def let_in(self) -> None:
        if self._letting_in:  # to admit is to dispatch, which comes here again: no recursion as deep as the crowd
            return
        self._letting_in = True
        try:
            while self.door and len(self.schedule) + self.delayed + self.scheduled < self.settings.max_waiting:
                self.admit(*self.door.next())
        finally:
            self._letting_in = False

    def tell(self) -> None:
        if self.door:
            self.let_in()
        if self.watched:
            self._tell_below()
        if self._idle_event is not None and self.idle:
            self._idle_event.set()
            self._idle_event = None
        if self.leaving and not self.running:
            self._warn_if_stuck()
        if self._news:
            self._flush()

    def _tell_below(self) -> None:
        waiting = self.waiting + self.scheduled
        for entry in [entry for entry in self._below if waiting < entry[0]]:
            entry[1].set()
            self._below.remove(entry)
        self.watched = bool(self._below)

    async def wait_idle(self) -> None:
        """Wait until the last job has ended."""
        if self._idle_event is None:
            self._idle_event = trio.Event()
        await self._idle_event.wait()

    async def wait_below(self, bound: float) -> bool:
        """Wait until fewer than `bound` jobs wait or are scheduled; False: the queue closes."""
        entry = (bound, trio.Event())
        self._below.append(entry)
        self.watched, self.quiet, self.calm = True, False, False
        try:
            await entry[1].wait()
            return entry not in self._below
        finally:
            if entry in self._below:
                self._below.remove(entry)
                self.watched = self.watched and bool(self._below)

    def block_on(self, job: JobHandle[Any]) -> Worker | None:
        """A task is about to wait for `job`; if it belongs to a job of this queue, note that, and return its worker.

        Raises:
            RuntimeError: No slot is free, and every running job waits like this: nothing could ever move.
        """
        worker = self.inside()
        if worker is None:
            return None
        self._blocked[worker] = self._blocked.get(worker, 0) + 1
        limiter = self.slots.limiter
        ours = self.running + len(self._reserve) + sum(len(worker.extra or ()) for worker in self.workers.values())
        no_slot = limiter.available_tokens <= 0 and limiter.borrowed_tokens <= ours
        if job._state is not RUNNING and no_slot and len(self._blocked) >= self.running:
            self.unblock(worker)
            raise RuntimeError(
                f"deadlock: no slot is free, and all {self.running} running jobs of {self.settings.name!r} wait for other "
                f"jobs; {job.name!r} would never start"
            )
        return worker

    def unblock(self, worker: Worker | None) -> None:
        """The wait is over."""
        if worker is not None:
            self._blocked[worker] -= 1
            if not self._blocked[worker]:
                del self._blocked[worker]

    def seen(self, job: JobHandle[Any]) -> None:
        """Somebody was told of a failure."""
        self.ledger.seen(job)


def _bad_call(job: JobHandle[Any], error: TypeError) -> TypeError:
    """Say what to do about a function that returned no awaitable; other bad calls speak for themselves."""
    if "await" not in str(error):
        return error
    better = TypeError(f"{job.name} returned no awaitable: pass an async function, or use submit_sync for a plain one")
    better.__cause__ = error
    return better


def _timeout(which: str, seconds: float, last: object) -> JobTimeoutError:
    error = JobTimeoutError(which, seconds)
    if isinstance(last, Failure):
        error.__cause__ = last.error
    return error


LEADING_FRAMES.add(Engine.invoke.__code__)
