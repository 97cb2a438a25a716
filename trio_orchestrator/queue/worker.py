"""A worker runs one job after another in one task, under one reusable cancel scope.

The only file that knows scopes and `Task.context`. What makes reuse safe:

* Only the job whose body runs can cancel the scope. A cancel that comes while a job has been taken, but is not in its
  body yet, only leaves a reason.
* A scope that was cancelled, or whose deadline has passed, is left before the next body.
* A body that leaves a scope or a nursery open is found out at once, and gets the blame itself.
"""

from __future__ import annotations

import math
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast, final

import trio
from trio.lowlevel import (
    Abort,
    Task,
    cancel_shielded_checkpoint,
    current_task,
    enable_ki_protection,
    wait_task_rescheduled,
)

from trio_orchestrator.block import Verdict, verdict_hosts, without_cancelled
from trio_orchestrator.queue.body import LEADING_FRAMES, call_unprotected
from trio_orchestrator.queue.handle import RUNNING, SUCCEEDED, JobHandle
from trio_orchestrator.queue.leaks import is_clean

if TYPE_CHECKING:
    from trio_orchestrator.queue.engine import Engine

_NEVER = math.inf


@final
class Worker:
    """One task that serves jobs."""

    __slots__ = (
        "_engine",
        "_verdict",
        "armed",
        "began_at",
        "caller",
        "exhaustions",
        "extra",
        "forbidden",
        "in_body",
        "in_line",
        "job",
        "last",
        "left_open",
        "reason",
        "scope",
        "served",
        "since",
        "task",
        "token",
    )

    def __init__(self, engine: Engine, job: JobHandle[Any] | None) -> None:
        self._engine = engine
        engine.crew[self] = None
        self.job: JobHandle[Any] | None = job
        self.token: object = None  # its slot, while it has one
        self.extra: list[object] | None = None  # the further tokens of a heavy job
        self.in_line: bool = job is None  # stands in the limiter's line, on behalf of the queue
        self.in_body: bool = False
        self.reason: str | None = None  # the job was cancelled, and this is why
        self.forbidden: bool = False  # cancelled after its time-out had fired: no further attempt
        self.began_at: float = -math.inf  # the present attempt, if it is measured
        self.exhaustions: int = 0  # `EXHAUSTIONS.count` when the attempt started: older marks say nothing about it
        self.last: object = None  # the failure of the job's attempt before this one
        self.armed: float = _NEVER  # the deadline the scope has; left there until another one is needed
        self.left_open: Exception | None = None  # what to say of a body that left a scope or a nursery open
        self._verdict: Verdict | None = None  # made when a guard asks
        self.caller: Task | None = None  # the task in `run()` whose cancellation cancelled the job
        self.served: int = 0  # jobs with this token, if the limiter is shared
        self.since: float = -math.inf  # when it was taken
        self.scope: trio.CancelScope | None = None
        self.task: Task | None = None

    # ----------------------------------------------------------------------------------------------- cancel

    def cancel(self, reason: str) -> None:
        """Cancel the job it has: its body if that runs, else before it starts."""
        if self.reason is not None:
            return
        if not self.in_body:
            self.reason = reason
        elif self.scope is not None and not self.scope.cancel_called:
            self.reason = reason
            name = "a job" if self.job is None else f"job {self.job.name!r}"
            self.scope.cancel(reason=f"{name} was cancelled" + f": {reason}" * bool(reason))
        else:  # its time-out was first: that stays the outcome
            self.forbidden = True

    @property
    def overdue(self) -> bool:
        """Whether its body was cancelled or timed out, and still cleans up."""
        return self.in_body and self.scope is not None and self.scope.cancel_called

    # ------------------------------------------------------------------------------------------------- loop

    @enable_ki_protection
    async def serve(self) -> None:
        """Serve until the queue has nothing more for this worker."""
        self.task = task = current_task()
        self._engine.workers[task] = verdict_hosts()[task] = self
        try:
            while self.job is not None or await self._wait_for_job(task):
                await self._serve_in_scope(task)
        finally:
            del verdict_hosts()[task]
            self._engine.left(self)

    async def _serve_in_scope(self, task: Task) -> None:
        """Serve until the scope is spent, or there is nothing to serve."""
        scope = self.scope = trio.CancelScope()
        self.armed = _NEVER
        error: BaseException | None = None
        try:
            with scope:
                await self._serve_jobs(task, scope)
        except BaseException as exc:
            error = exc
        if self.left_open is not None or (self.in_body and task.child_nurseries):
            await self._body_leaked(task)  # `error` is Trio's complaint about the same
        elif self.in_body:
            await self._body_broke(error, task)
        elif error is not None:
            raise error

    async def _serve_jobs(self, task: Task, scope: trio.CancelScope) -> None:
        """Run jobs. The hot loop: one function, because every call in it is paid for by every job."""
        engine = self._engine
        fifo, slots, limiter = engine.schedule.fifo, engine.slots, engine.slots.limiter
        job = self.job
        while job is not None:
            if self.reason is not None:
                engine.cancelled(job, self, self.reason)
            elif limiter.total_tokens != engine.seen_limit and engine.notice_debt():
                engine.put_back(job, self)  # the limit has shrunk since the job was picked
            else:
                terms = job._terms
                plain = engine.plain and self.armed == _NEVER and (terms is None or not terms.watched)
                if not plain:
                    if not self._arm(job, scope):
                        return
                elif engine.repeats:
                    engine.attempt_starts(job, self, trio.current_time())
                job._attempts += 1
                self.in_body = True
                try:
                    if plain or engine.settings.protect is None:
                        result = await call_unprotected(job._fn, job._args)
                    else:
                        result = await engine.invoke(job)
                except Exception as exc:
                    self.in_body = False
                    if not is_clean(task, scope):
                        self.left_open = exc
                        return
                    self._close_verdict(task)
                    engine.attempt_failed(job, self, exc)
                else:
                    self.in_body = False
                    if not is_clean(task, scope):
                        self.left_open = _leak(job)
                        return
                    if plain and terms is not None:
                        engine.succeeded_plainly(job, terms, result)
                    elif plain:
                        engine.succeeded += 1
                        job._state, job._outcome = SUCCEEDED, result
                        job._context = job._args = None
                        if job._waiters is not None:
                            waiters, job._waiters = job._waiters, None
                            waiters._settle(job)
                    else:
                        self._close_verdict(task)
                        engine.returned(job, self, result)
                    del result
            spent = self.forbidden or (self.reason is not None and scope.cancel_called)
            self.reason = None
            if engine.calm and fifo and (slots.private or engine.keeps_token(self)):
                self.job = job = fifo.popleft()
                if engine.plain and job._terms is None and not engine.repeats:
                    job._state, job._outcome = RUNNING, self
                    task.context = cast("Context", job._context)
                else:
                    task.context = engine.begin(job, self)
            else:
                self.job = job = self._take_next(task)
            if job is not None:
                await cancel_shielded_checkpoint()  # the one yield of a job; its context holds from here on
            elif self.armed == _NEVER and not spent and await self._wait_for_job(task):
                job = self.job
            if spent:
                self._close_verdict(task)
                self.forbidden, self.caller = False, None
                return

    def _take_next(self, task: Task) -> JobHandle[Any] | None:
        self.job = job = self._engine.next(self)
        if job is not None:
            task.context = self._engine.begin(job, self)
        if self._engine.held:
            self._engine.let_go()
        return job

    async def _wait_for_job(self, task: Task) -> bool:
        """Park, or stand in the limiter's line. Return whether there is a job now."""
        engine = self._engine
        while self.job is None:
            if self.in_line:
                token = object()
                await engine.slots.limiter.acquire_on_behalf_of(token)
                self.in_line = False
                engine.granted(self, token)
                if self._take_next(task) is not None:
                    engine.dispatch()  # the limiter woke one of us, but there may be more tokens
                    await cancel_shielded_checkpoint()
                continue
            if not engine.park(self):
                return False
            task.context = engine.home

            def abort(_: object) -> Abort:
                engine.parked.remove(self)
                return Abort.SUCCEEDED

            await wait_task_rescheduled(abort)
        return True

    # ------------------------------------------------------------------------------------------ not so plain

    def _arm(self, job: JobHandle[Any], scope: trio.CancelScope) -> bool:
        """Give the scope the deadline of the next attempt; False if the scope is spent, and a fresh one is needed."""
        now = trio.current_time()
        if now >= self.armed:
            return False
        deadline = self._engine.attempt_deadline(job, now)
        if deadline != self.armed:
            scope.deadline = self.armed = deadline
        self._engine.attempt_starts(job, self, now)
        return True

    def open_verdict(self) -> Verdict | None:
        """Return the verdict on the body that runs, if our scope is cancelled: guards inside want to know by what."""
        task, scope = self.task, self.scope
        if self._verdict is None and task is not None and scope is not None and scope.cancel_called:
            self._verdict = Verdict(task, scope)
        return self._verdict

    def _close_verdict(self, task: Task, *, timed_out: bool = False) -> None:
        if self._verdict is not None:
            verdict, self._verdict = self._verdict, None
            caller, nursery = self.caller, task.parent_nursery
            if caller is not None or nursery is None:
                verdict.close(timed_out=timed_out, outside=caller)
            else:
                verdict.close(timed_out=timed_out, outside=nursery.parent_task, nursery=nursery)

    async def _body_broke(self, error: BaseException | None, task: Task) -> None:
        """The body ended by `Cancelled` (None: our scope absorbed it), a group with one, or another `BaseException`."""
        self.in_body = False
        engine, job = self._engine, cast("JobHandle[Any]", self.job)
        self._close_verdict(task, timed_out=error is None and self.reason is None)
        if error is not None:
            error = without_cancelled(error) or error
        if error is None and self.reason is not None:
            engine.cancelled(job, self, self.reason)
        elif error is None:
            engine.attempt_timed_out(job, self)
        elif isinstance(error, Exception):
            engine.attempt_failed(job, self, error)
        elif without_cancelled(error) is not None:
            engine.broke(job, self, error)
        elif _cancelled_from_outside():
            engine.abort("the queue was cancelled")
            engine.cancelled(job, self, engine.reason)
            self.job = None
            raise error
        else:
            engine.attempt_failed(job, self, _stray(error), for_good=True)
        await self._next_scope(task)

    async def _body_leaked(self, task: Task) -> None:
        """The body left a cancel scope or a nursery of its own open."""
        self.in_body = False
        job, error = cast("JobHandle[Any]", self.job), self.left_open
        self.left_open = None
        self._close_verdict(task)
        if task.child_nurseries:  # Trio has no way to close it from here but the end of this task
            fatal = RuntimeError(f"job {job.name!r} ended while a nursery that it had opened was still open")
            self._engine.broke(job, self, fatal)
            self.job = None
            raise fatal
        assert error is not None
        self._engine.attempt_failed(job, self, error, for_good=True)
        await self._next_scope(task)

    async def _next_scope(self, task: Task) -> None:
        self.reason, self.forbidden, self.caller = None, False, None
        if self._take_next(task) is not None:
            await cancel_shielded_checkpoint()


def _cancelled_from_outside() -> bool:
    return trio.current_effective_deadline() == -math.inf


def _leak(job: JobHandle[Any]) -> RuntimeError:
    return RuntimeError(f"job {job.name!r} returned while a cancel scope that it had opened was still open")


def _stray(error: BaseException) -> RuntimeError:
    stray = RuntimeError("the job raised a trio.Cancelled that no scope around it had asked for")
    stray.__cause__ = error
    return stray


LEADING_FRAMES.update({Worker._serve_jobs.__code__, Worker._serve_in_scope.__code__})
