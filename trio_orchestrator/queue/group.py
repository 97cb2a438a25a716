"""Some jobs of a shared queue, taken together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, final

import trio
from trio.lowlevel import checkpoint, enable_ki_protection

from trio_orchestrator.block import raise_untouched, without_cancelled
from trio_orchestrator.queue.failures import Failures
from trio_orchestrator.queue.handle import FAILED, UNSEEN, Failure, JobHandle, JobOptions, Waiters

if TYPE_CHECKING:
    from trio_orchestrator.queue.task_queue import TaskQueue

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class JobGroup:
    """Jobs that one block submitted to a queue. Made by `TaskQueue.group` only."""

    __slots__ = ("_closed", "_failures", "_first", "_handles", "_queue", "_scope")

    def __init__(self, queue: TaskQueue, failures: Failures, scope: trio.CancelScope) -> None:
        """Made by `TaskQueue.group` only."""
        self._queue = queue
        self._failures = failures
        self._scope = scope
        self._handles: list[JobHandle[Any]] = []
        self._first: Exception | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<JobGroup {sum(job.done for job in self._handles)} of {len(self._handles)} done>"

    @property
    def handles(self) -> tuple[JobHandle[Any], ...]:
        """Its jobs, in the order of submission."""
        return tuple(self._handles)

    @enable_ki_protection
    def submit_nowait(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, **options: Unpack[JobOptions]
    ) -> JobHandle[T]:
        """Submit as `TaskQueue.submit_nowait` does.

        Raises:
            trio.ClosedResourceError: The group's block, or the queue, was left.
        """
        self._check_open()
        return self._add(self._queue.submit_nowait(fn, *args, **options))

    @enable_ki_protection
    async def submit(
        self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts, **options: Unpack[JobOptions]
    ) -> JobHandle[T]:
        """Submit as `TaskQueue.submit` does: waits while the queue is full; cancelled then, nothing is submitted.

        Raises:
            trio.ClosedResourceError: The group's block, or the queue, was left.
        """
        if self._closed:
            await checkpoint()
        self._check_open()
        return self._add(await self._queue.submit(fn, *args, **options))

    @enable_ki_protection
    def cancel(self, reason: str = "its group was cancelled") -> None:
        """Cancel all its jobs. Returns at once; idempotent; jobs may be submitted afterwards."""
        for job in self._handles:
            job.cancel(reason)

    async def wait(self) -> None:
        """Wait until its jobs have ended, in whatever way. Always a checkpoint. Cancelling it leaves the jobs alone."""
        await checkpoint()
        for job in self._handles:
            if not job.done:
                await job._ended()

    async def results(self) -> list[Any]:
        """Wait for its jobs and return their results in the order of submission. Cancelling it leaves the jobs alone.

        Raises:
            ExceptionGroup: The errors of those that have no result, in the order of submission.
        """
        await self.wait()
        results: list[Any] = []
        errors: list[Exception] = []
        for job in self._handles:
            try:
                results.append(job.result_nowait())
            except Exception as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup(f"{len(errors)} of {len(self._handles)} jobs have no result", errors)
        return results

    # --------------------------------------------------------------------------------------------- internals

    def _settle(self, job: JobHandle[Any], /) -> None:
        """A job of the group has ended."""
        if job.state is FAILED and self._failures is Failures.FAIL_FAST and self._first is None:
            assert isinstance(job._outcome, Failure)
            self._first = job._outcome.error if isinstance(job._outcome.error, Exception) else None
            self.cancel("another job of its group failed")
            self._scope.cancel(reason="a job of the group failed")

    def _add(self, job: JobHandle[T]) -> JobHandle[T]:
        self._handles.append(job)
        if job.done:
            self._settle(job)
        elif isinstance(job._waiters, Waiters):
            job._waiters.sink = self
        else:
            job._waiters = self
        return job

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the group's block was left")

    @enable_ki_protection
    async def _leave(self, error: BaseException | None) -> BaseException | None:
        """Wait for the jobs, or cancel them; return what has to come out of the block."""
        self._closed = True
        if error is None and self._first is None:
            try:
                await self.wait()
            except BaseException as exc:  # cancelled, or interrupted, while it waits: raised below
                error = exc
        if error is not None or self._first is not None:
            self.cancel("the block of its group was left by an exception")
            with trio.CancelScope(shield=True):
                await self.wait()
        failures = self._take_unseen()
        if self._first is not None and (error is None or isinstance(error, trio.Cancelled)):
            return self._first
        if error is None and failures and self._failures is Failures.RAISE:
            return ExceptionGroup(f"{len(failures)} jobs of a group failed, and nobody waited for them", failures)
        if error is not None and failures and self._failures is not Failures.RECORD:
            text = f"{len(failures)} jobs of a group failed, and nobody waited for them; the first: {failures[0]!r}"
            error.add_note(f"({text})")
        return error

    def _take_unseen(self) -> list[Exception]:
        """Count the failures of the group as seen: they are its own to report."""
        unseen = [job for job in self._handles if job._waiters is UNSEEN]
        failures: list[Exception] = []
        for job in unseen:
            job._engine.seen(job)
            if isinstance(job._outcome, Failure) and isinstance(job._outcome.error, Exception):
                failures.append(job._outcome.error.with_traceback(job._outcome.traceback))
        return failures


async def _open_group(queue: TaskQueue, failures: Failures) -> AsyncGenerator[JobGroup, None]:
    error: BaseException | None = None
    scope = trio.CancelScope()
    group = JobGroup(queue, failures, scope)
    try:
        with scope:
            try:
                yield group
            except BaseException as exc:
                if without_cancelled(exc) is not exc:  # some of it may be the scope's
                    raise
                error = exc  # kept from the scope, which would make another group of a group
    except BaseException as exc:
        error = exc
    error = await group._leave(error)
    if error is not None:
        raise_untouched(error)


_opened = asynccontextmanager(_open_group)


def open_group(queue: TaskQueue, failures: Failures) -> AbstractAsyncContextManager[JobGroup]:
    """Open a group of jobs; see `TaskQueue.group`."""
    if not isinstance(failures, Failures):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"failures must be a Failures, got {failures!r}")
    return _opened(queue, failures)
