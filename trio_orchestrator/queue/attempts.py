"""How attempts start and end: what a worker asks for, and what follows a failure."""

from __future__ import annotations

import math
from typing import Any

import trio

from trio_orchestrator.abc import Budget
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.errors import JobTimeoutError, RejectedError
from trio_orchestrator.event import GateShut, GaveUp, RetryScheduled
from trio_orchestrator.policies.decision import NO_RESULT, Decision, settle
from trio_orchestrator.policies.failure import EXHAUSTIONS, GiveUp
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.queue.body import LEADING_FRAMES, Refused, call_protected
from trio_orchestrator.queue.endings import Endings, timeout_of
from trio_orchestrator.queue.gates import Gate
from trio_orchestrator.queue.handle import (
    RETRY_SCHEDULED,
    SUCCEEDED,
    UNSEEN,
    WAITING,
    JobHandle,
    Terms,
)
from trio_orchestrator.queue.settings import KeyOrder, Settings
from trio_orchestrator.queue.traces import leading_frames_cut
from trio_orchestrator.queue.worker import Worker


class Attempts(Endings):
    """Judges attempts: succeeded, to be repeated, refused, or the end of the job."""

    # Declared again because it assigns them; they are its base's.
    calm: bool
    delayed: int
    held: bool
    quiet: bool
    room: float
    scheduled: int
    succeeded: int

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        super().__init__(settings, hooks)
        self._on_gate_shut = hooks.of("gate_shut")
        self._on_retry = hooks.of("retry_scheduled")
        self._on_gave_up = hooks.of("gave_up")
        by_retry = settings.retry.attempt_timeout if settings.retry is not None else math.inf
        self.attempt_timeout: float = min(settings.attempt_timeout, by_retry)
        self.retries: int = 0
        self.refusals: int = 0
        self.cut_off: list[JobHandle[Any]] = []  # would have been repeated, had the queue not closed

    def retry_of(self, job: JobHandle[Any]) -> Retry | None:
        """Return the retry that holds for a job."""
        return self.settings.retry if job._terms is None else job._terms.retry

    def gate_of(self, job: JobHandle[Any]) -> Gate:
        """Return the gate that holds a job back."""
        terms = job._terms
        return self.own_gate if terms is None or terms.gate is None else terms.gate

    def attempt_deadline(self, job: JobHandle[Any], now: float) -> float:
        """Return when an attempt that starts now has to end."""
        times = job._times
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
        """Run the body of a job inside `protect`."""
        protect = self.settings.protect
        assert protect is not None
        return await call_protected(protect, job._fn, job._args)

    # ----------------------------------------------------------------------------------------- what an attempt came to

    def returned(self, job: JobHandle[Any], worker: Worker, result: object) -> None:
        """A body returned."""
        if job._terms is not None or not self.quiet:
            self._attempt_over(job, worker, success=True)
        retry = self.retry_of(job)
        if retry is not None:
            try:
                bad = retry.on_result is not None and retry.on_result(result)
                if retry.budget is not None:
                    _tell_budget(retry.budget, job._attempts, worker.last, success=not bad)
            except Exception as exc:  # a predicate or a budget of the user's
                return self._fail(job, exc)
            if bad:
                return self._failed_attempt(job, worker, retry, None, result, timed_out=False)
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
                waiters._settle(job)
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
        if retry is None or for_good:
            return self._fail(job, error.error if isinstance(error, GiveUp) else error)
        if self._has_no_future(worker):
            if worker.reason is None and job._attempts < retry.attempts and retry._matches(error, worker.exhaustions):
                self.cut_off.append(job)
            return self._fail(job, error.error if isinstance(error, GiveUp) else error)
        return self._failed_attempt(job, worker, retry, error, None, timed_out=timed_out)

    def attempt_timed_out(self, job: JobHandle[Any], worker: Worker) -> None:
        """The deadline of our scope ended a body: the total time-out, or that of the attempt."""
        times = job._times
        if times is not None and times.deadline <= worker.armed:
            self._attempt_over(job, worker, success=False)
            return self._fail(job, timeout_of("timeout", times.timeout, worker.last))
        seconds = self.attempt_timeout if times is None else times.attempt_timeout
        return self.attempt_failed(job, worker, JobTimeoutError("attempt_timeout", seconds), timed_out=True)

    def cancelled(self, job: JobHandle[Any], worker: Worker, reason: str) -> None:
        """A running job was cancelled, and its body (if it started at all) has left with `Cancelled`."""
        self._attempt_over(job, worker, success=None)
        self._cancel_for_good(job, reason, worker.last if self.repeats or job._terms is not None else None)

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

    # ---------------------------------------------------------------------------------------------------- what follows

    def _failed_attempt(
        self,
        job: JobHandle[Any],
        worker: Worker,
        retry: Retry,
        error: Exception | None,
        result: object,
        *,
        timed_out: bool,
    ) -> None:
        """Ask the retry what follows, and do it."""
        terms, times = job._terms, job._times
        now = trio.current_time()
        try:
            if retry.budget is not None and error is not None:
                _tell_budget(retry.budget, job._attempts, worker.last, success=False)
            delay, reason, wish, last = retry._judge(  # `decide` without its keywords: this is for every failure
                job._fn if terms is None or terms.name is None else terms.name,
                error,
                job._attempts,
                job._began_at,
                now,
                math.inf if times is None else min(times.deadline, times.caller_deadline),
                NO_RESULT if error is not None else result,
                timed_out,
                None,
                worker.exhaustions,
            )
        except Exception as exc:  # a predicate, a hook or a backoff of the user's
            return self._fail(job, exc)
        if wish and self.settings.cooldown is not None:
            self._shut(self.gate_of(job), wish, error)
        if self._on_retry or self._on_gave_up:
            self._report_decision(job, retry, Decision(delay, reason, wish, last), now)
        if delay is None or self._has_no_future(worker):
            if error is None:
                return self._succeed(job, result)
            return self._fail(job, last if isinstance(last, Exception) else error)
        return self._schedule_retry(job, delay, now, error)

    def _report_decision(self, job: JobHandle[Any], retry: Retry, decision: Decision, now: float) -> None:
        """Tell the queue's instruments what the retry tells its own; one that listens to both hears it once."""
        self.held, self.quiet, self.calm = True, False, False
        elapsed = now - job._began_at
        if decision.delay is None:
            hooks = [hook for hook in self._on_gave_up if hook not in retry._gave_up]
            gave_up = GaveUp(job.name, job._attempts, retry.attempts, elapsed, decision.reason, decision.error)
            self._report(hooks, gave_up)
        else:
            hooks = [hook for hook in self._on_retry if hook not in retry._scheduled]
            event = RetryScheduled(job.name, job._attempts, retry.attempts, decision.delay, elapsed, decision.error)
            self._report(hooks, event)

    def _schedule_retry(self, job: JobHandle[Any], delay: float, now: float, error: Exception | None) -> None:
        self.retries += 1
        job._outcome = error
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
        """Put jobs whose pause or delay is over back to their places; the last first, which costs least."""
        for job in sorted(jobs, key=lambda job: -job.seq):
            if job._state is RETRY_SCHEDULED:
                self.scheduled -= 1
            else:
                job._make_times().delayed = False
                self.delayed -= 1
            self._restore(job)
        self.dispatch()

    def _restore(self, job: JobHandle[Any]) -> None:
        job._state = WAITING
        self.schedule.restore(job)
        if not self.schedule.plain:
            self.calm = False
            self.room -= 1

    def put_back(self, job: JobHandle[Any], worker: Worker) -> None:
        """Put a picked job that has not begun back to its place."""
        if self.closed:
            self.cancelled(job, worker, self.reason)
            return
        self.lanes.answered(job, self.gate_of(job), success=None)
        self._wait_again(job, worker.last if self.repeats or job._terms is not None else None)
        self._look_at_the_clock(job)

    def _wait_again(self, job: JobHandle[Any], last: object) -> None:
        """Let a job wait in its place that had a slot and made no attempt."""
        job._outcome = last
        if job._attempts == 0 or self.settings.per_key_order is not KeyOrder.STRICT:
            self.schedule.release(job)
        self._restore(job)
        self.held, self.quiet, self.calm = True, False, False

    def _refused(self, job: JobHandle[Any], worker: Worker, refusal: RejectedError) -> None:
        """The body never ran: it was no attempt, the job goes back to its place, and its gate shuts."""
        self.refusals += 1
        job._attempts -= 1
        if self._has_no_future(worker):
            if worker.reason is None:
                self.cut_off.append(job)
            reason = worker.reason if worker.reason is not None else self.reason
            self._attempt_over(job, worker, success=None)
            self._cancel_for_good(job, reason, worker.last)
            return
        self._wait_again(job, worker.last)
        gate = self.gate_of(job)
        seconds = self.lanes.refused(job, gate, refusal.retry_after)
        self._report(self._on_gate_shut, GateShut(seconds, refusal.retry_after < math.inf, refusal))
        self._attempt_over(job, worker, success=None)
        self._look_at_the_clock(job)

    def _look_at_the_clock(self, job: JobHandle[Any]) -> None:
        """End a job that waits again if one of its time-outs has passed while it had a slot."""
        times, now = job._times, trio.current_time()
        if times is not None and times.deadline <= now:
            self._timed_out_waiting(job, "timeout", times.timeout)
        elif times is not None and times.start_by <= now:
            self._timed_out_waiting(job, "start_within", times.start_within)

    def _shut(self, gate: Gate, seconds: float, error: BaseException | None) -> None:
        gate.shut(seconds)
        if self._on_gate_shut:
            emit(self._on_gate_shut, GateShut(seconds, True, error))


def _bad_call(job: JobHandle[Any], error: TypeError) -> TypeError:
    """Say what to do about a function that returned no awaitable; other bad calls speak for themselves."""
    if "await" not in str(error):
        return error
    better = TypeError(f"{job.name} returned no awaitable: pass an async function, or use submit_sync for a plain one")
    better.__cause__ = error
    return better


LEADING_FRAMES.add(Attempts.invoke.__code__)


def _tell_budget(budget: Budget, attempts: int, last: object, *, success: bool) -> None:
    """Count a call when its first attempt has ended: one that starts may still be refused, and start again."""
    if attempts == 1:
        budget.begin()
    if success:
        settle(budget, attempts, last if isinstance(last, BaseException) else None)
