"""The task queue: many fallible calls at once, under a strict limit, in one process."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from inspect import iscoroutine
from typing import Any, TypeVar, TypeVarTuple, Unpack, cast, final

import trio
from trio.lowlevel import (
    cancel_shielded_checkpoint,
    checkpoint,
    checkpoint_if_cancelled,
    current_task,
    enable_ki_protection,
)

from trio_orchestrator.abc import CALL_FRAMES
from trio_orchestrator.algorithms.argument import at_least, count, plain_function
from trio_orchestrator.block import emit
from trio_orchestrator.errors import QueueFullError
from trio_orchestrator.event import LimitChanged
from trio_orchestrator.queue.engine import Engine
from trio_orchestrator.queue.failures import Failures
from trio_orchestrator.queue.group import JobGroup, open_group
from trio_orchestrator.queue.handle import JobHandle, JobOptions, JobState, describe
from trio_orchestrator.queue.options import check_function, start_of, tags_of, terms_of
from trio_orchestrator.queue.overflow import Overflow
from trio_orchestrator.queue.slots import check_concurrency
from trio_orchestrator.queue.statistics import SAMPLED, QueueStatistics, snapshot

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class TaskQueue:
    """Runs submitted jobs, at most `concurrency` at once, in order. Made by `open_task_queue` only.

    **Life of a job.** `waiting -> running -> succeeded | failed | cancelled`, and `running -> retry-scheduled ->
    waiting` as often as its retry allows. A slot is held only while the body runs, clean-up included; a retry pauses
    outside any slot and comes back to its original place.

    **Order.** First come, first served, among jobs of equal rank; `priority`, `ageing`, `key` and `weight` change that.

    **From inside a job** everything may be called but `wait_idle`, `wait_below` and `close`, which would wait for the
    caller itself; `submit` then never waits.
    """

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine) -> None:
        """Made by `open_task_queue` only."""
        self._engine = engine

    def __repr__(self) -> str:
        s = self.statistics()
        flags = " paused" * s.paused + f" {s.retry_scheduled} retry-scheduled" * bool(s.retry_scheduled)
        return f"<TaskQueue {s.name!r}: {s.running} of {s.limit} running, {s.waiting} waiting{flags}>"

    # --------------------------------------------------------------------------------------------- submission

    @enable_ki_protection
    def submit_nowait(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, **options: Unpack[JobOptions]
    ) -> JobHandle[T]:
        """Submit `fn(*args)` and return its handle, without waiting.

        Raises:
            trio.WouldBlock: The queue is full, and `submit` would wait.
            QueueFullError: It is full, and rejects.
            trio.ClosedResourceError: It is closed.
            TypeError, ValueError: `fn` is no function, or an option is wrong.
        """
        engine = self._engine
        fifo = engine.schedule.fifo
        seq = engine.submitted
        given: tuple[Any, ...] = args
        if options or len(fifo) >= engine.room or not seq % SAMPLED or not callable(cast("object", fn)):
            return self._submit(fn, given, options)
        engine.submitted = seq + 1
        packed: object = given[0] if len(given) == 1 and type(given[0]) is not tuple else given
        job = JobHandle(engine, fn, packed, copy_context(), seq)
        fifo.append(job)
        if engine.hungry:
            engine.dispatch()
        return job

    async def submit(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, **options: Unpack[JobOptions]
    ) -> JobHandle[T]:
        """Submit `fn(*args)` and return its handle; wait while the queue is full and its overflow policy is to wait.

        Those who wait are let in first come, first served. Always a checkpoint. Cancelled while it waits, nothing is
        submitted; a job that has been let in stays. From inside a job of the same queue it never waits: it goes over
        the bound, and is counted as `over_admitted`.

        Raises:
            QueueFullError: The queue is full, and rejects.
            trio.ClosedResourceError: It is closed, or was closed while this waited.
            TypeError, ValueError: `fn` is no function, or an option is wrong.
        """
        await checkpoint_if_cancelled()
        if options and "tags" in options:
            options["tags"] = tags_of(options["tags"])  # an iterator is read once, and who waits at the door asks twice
        try:
            job = self.submit_nowait(fn, *args, **options)
        except trio.WouldBlock:
            job, start_at = self._prepare(fn, args, options)
            await self._wait_at_door(job, start_at)
            return job
        except Exception:
            await cancel_shielded_checkpoint()  # who tries again in a loop must not starve the others
            raise
        await cancel_shielded_checkpoint()
        return job

    async def _wait_at_door(self, job: JobHandle[Any], start_at: float) -> None:
        self._engine.calm = False  # from now on each start has to look at the door
        await self._engine.door.wait(job, start_at)

    async def run(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, **options: Unpack[JobOptions]) -> T:
        """Submit `fn(*args)`, wait for it, and return its result or raise its error.

        Cancelling the caller cancels the job and waits, shielded, until its body has left. No retry is scheduled beyond
        the caller's own deadline.

        Raises:
            Exception: As `submit` and `JobHandle.wait`.
        """
        await checkpoint_if_cancelled()
        if options and "tags" in options:
            options["tags"] = tags_of(options["tags"])  # an iterator is read once, and who waits at the door asks twice
        try:
            job = self.submit_nowait(fn, *args, **options)
            self._keep_callers_deadline(job)
        except trio.WouldBlock:
            job, start_at = self._prepare(fn, args, options)
            self._keep_callers_deadline(job)
            await self._wait_at_door(job, start_at)
        except Exception:
            await cancel_shielded_checkpoint()
            raise
        try:
            return await job.wait()
        except BaseException:
            if job.state is JobState.RUNNING and job._worker.in_body:
                job._worker.caller = current_task()  # whose time-outs are those of the call
            if not job.done:
                job.cancel("the caller of run() was cancelled")
            if not job.done:
                with trio.CancelScope(shield=True):
                    await job._ended()
            raise
        finally:
            del job  # no cycle through the traceback

    def _keep_callers_deadline(self, job: JobHandle[Any]) -> None:
        if self._engine.retry_of(job) is not None:
            job._make_times().caller_deadline = trio.current_effective_deadline()

    async def submit_sync(
        self,
        fn: Callable[[Unpack[Ts]], T],
        *args: *Ts,
        thread_limiter: trio.CapacityLimiter | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle[T]:
        """Submit a plain, blocking function: it runs in a thread, holding a slot and a token of `thread_limiter`.

        A thread cannot be interrupted: cancelled or timed out, the job keeps its slot and counts as `overdue` until the
        function returns, and a function that returns has succeeded. `thread_limiter` defaults to Trio's, of 40 threads.
        Otherwise as `submit`.
        """
        if iscoroutine(fn):
            fn.close()  # it will never be awaited, and need not warn about that
        plain_function("fn", fn)
        if not isinstance(thread_limiter, (trio.CapacityLimiter, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"thread_limiter must be a CapacityLimiter, got {thread_limiter!r}")
        options.setdefault("name", describe(fn))
        return await self.submit(_Thread(thread_limiter).call, fn, *args, **options)

    def _submit(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], args: tuple[Any, ...], options: JobOptions
    ) -> JobHandle[T]:
        engine = self._engine
        job, start_at = self._prepare(fn, args, options)
        engine.check_open()
        if not (len(engine.schedule.fifo) < engine.room or engine.has_room() or self._make_room(job)):
            engine.drop(job, "the queue was full")
        else:
            engine.admit(job, start_at)
        return job

    def _prepare(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], args: tuple[Any, ...], options: JobOptions
    ) -> tuple[JobHandle[T], float]:
        check_function(fn)
        packed: object = args[0] if len(args) == 1 and type(args[0]) is not tuple else args
        job: JobHandle[T] = JobHandle(self._engine, fn, packed, copy_context(), -1)
        job._terms = terms_of(self._engine, options)
        return job, start_of(options) if job._terms is not None and job._terms.times is not None else -math.inf

    def _make_room(self, job: JobHandle[Any]) -> bool:
        """Do what the overflow policy says for one more job; return False if the newcomer has to go itself."""
        engine = self._engine
        overflow = engine.settings.overflow
        if overflow is Overflow.WAIT:
            if engine.inside() is None:
                raise trio.WouldBlock
            engine.over_admitted += 1
            return True
        if overflow is Overflow.REJECT:
            raise QueueFullError(engine.settings.max_waiting, retry_after=engine.seconds_per_job())
        assert engine.victims is not None
        victim = engine.victims.take(job)
        if victim is not None:
            engine.drop(victim, "the queue was full")
        return victim is not None

    def group(self, *, failures: Failures = Failures.RAISE) -> AbstractAsyncContextManager[JobGroup]:
        """Open a group: submit, wait for, cancel and collect *these* jobs in a queue that others share.

        `async with queue.group() as mine:` enters without waiting. Leaving waits for the group's jobs; their unseen
        failures come out as one `ExceptionGroup` (`RAISE`), or the first one cancels the others and comes out bare
        (`FAIL_FAST`), or they are only counted (`RECORD`). An exception or cancellation in the block cancels them, and
        comes out bare when the last has left.
        """
        return open_group(self, failures)

    # ------------------------------------------------------------------------------------------------ control

    @enable_ki_protection
    def pause(self) -> None:
        """Start nothing until `resume`. Running jobs go on; due retries stay. Idempotent."""
        self._engine.pause()

    @enable_ki_protection
    def resume(self, ramp: float = 0.0) -> None:
        """Go on after `pause`. Idempotent.

        Args:
            ramp: Seconds over which starts grow, >= 0, so that a long pause does not end in a herd: while they last, at
                most `max(1, floor(limit * elapsed / ramp))` bodies run.
        """
        self._engine.resume(at_least("ramp", ramp, 0, finite=True))

    @enable_ki_protection
    def clear(self, reason: str | Exception = "cleared by operator") -> int:
        """Drop everything that waits or is scheduled for a retry; return how many.

        Those who wait for these jobs get a `JobDroppedError(reason)`, or `reason` itself if it is an exception. Running
        jobs go on. Legal in every state; idempotent.
        """
        if not isinstance(cast("object", reason), (str, Exception)):
            raise TypeError(f"reason must be a str or an Exception, got {reason!r}")
        return self._engine.clear(reason)

    @property
    def concurrency(self) -> int | float:
        """How many jobs may run at once.

        Settable while running, to an int >= 0 or `math.inf`, if the queue has its own limiter.

        Growing starts all that now fit. Shrinking never blocks: nothing starts until the debt is worked off. 0 stops
        starts.
        """
        return self._engine.slots.limit

    @concurrency.setter
    @enable_ki_protection
    def concurrency(self, concurrency: float) -> None:
        engine = self._engine
        if not engine.slots.private:
            raise AttributeError("concurrency cannot be set in a queue with limiter=: set the limiter's total_tokens")
        check_concurrency(concurrency, 0)
        old = engine.slots.limit
        engine.slots.limiter.total_tokens = concurrency
        engine.dispatch()
        if engine.on_limit_changed and old != concurrency:
            emit(engine.on_limit_changed, LimitChanged(old, concurrency))

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """The limiter whose tokens are the slots: its own, or the one it shares."""
        return self._engine.slots.limiter

    @property
    def name(self) -> str:
        """The name it was opened with."""
        return self._engine.settings.name

    async def wait_idle(self) -> None:
        """Wait until nothing waits, runs, or is scheduled for a retry. Always a checkpoint. Cancelling changes nothing.

        Raises:
            RuntimeError: It was called from inside a job of this queue, which would wait for itself.
        """
        if self._engine.inside() is not None:
            await checkpoint()
            raise _waits_for_itself("wait_idle")
        if self._engine.idle:
            await checkpoint()
        else:
            await self._engine.wait_idle()

    async def wait_below(self, bound: float) -> None:
        """Wait until fewer than `bound` jobs wait (retry-scheduled ones count). Always a checkpoint.

        Cancelling the wait changes nothing.

        Raises:
            RuntimeError: It was called from inside a job of this queue.
            trio.ClosedResourceError: The queue was closed before.
            ValueError: `bound` is less than 1.
        """
        if self._engine.inside() is not None:
            await checkpoint()
            raise _waits_for_itself("wait_below")
        count("bound", bound, 1)
        engine = self._engine
        if engine.waiting + engine.scheduled < bound:
            await checkpoint()
            return
        if engine.closed or engine.leaving:
            await checkpoint()
        elif await engine.wait_below(bound):
            return
        raise trio.ClosedResourceError(f"the queue {self.name!r} was closed: {engine.reason}")

    @enable_ki_protection
    async def close(self, *, grace: float = 0.0) -> list[JobHandle[Any]]:
        """Refuse submissions, from jobs too; end what has not started as cancelled; give running jobs `grace` seconds.

        Those that still run then are cancelled, and waited for. Always a checkpoint; cancelling it cancels no job, and
        leaves the queue closed. Idempotent.

        Returns:
            The jobs that were unfinished: never started, between two attempts, cut short (unless they succeeded all the
            same), or failed in a way that would have been repeated.

        Raises:
            RuntimeError: It was called from inside a job of this queue.
            ValueError: `grace` is negative or NaN.
        """
        if self._engine.inside() is not None:
            await checkpoint()
            raise _waits_for_itself("close")
        at_least("grace", grace, 0)
        engine = self._engine
        unfinished = engine.close("it was closed")
        with trio.move_on_after(grace) as patience:
            await self.wait_idle()
        if patience.cancelled_caught:
            for worker in [*engine.crew]:
                if worker.job is not None and worker.token is not None:
                    unfinished.append(worker.job)
                    worker.cancel("the queue was closed")
            await self.wait_idle()
        cut_off, engine.cut_off = engine.cut_off, []
        return [job for job in dict.fromkeys(unfinished + cut_off) if job.state is not JobState.SUCCEEDED]

    # -------------------------------------------------------------------------------------------------- show

    def statistics(self) -> QueueStatistics:
        """Return a snapshot of counts and times. Sync; cheap, but not free: O(running jobs)."""
        return snapshot(self._engine)


def _waits_for_itself(name: str) -> RuntimeError:
    return RuntimeError(f"{name}() from inside a job of the same queue would wait for that job itself")


@final
class _Thread:
    """Where a plain function runs. Called as a policy is, so that the function can be seen by policies around it."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: trio.CapacityLimiter | None) -> None:
        self._limiter = limiter

    async def call(self, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        return await trio.to_thread.run_sync(fn, *args, limiter=self._limiter)


CALL_FRAMES.add(_Thread.call.__code__)
