"""A job: what was submitted, what became of it, and how to wait for it."""

from __future__ import annotations

import enum
import math
from collections.abc import Awaitable, Callable
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, cast, final

import trio
from trio.lowlevel import (
    Abort,
    Task,
    cancel_shielded_checkpoint,
    checkpoint,
    current_task,
    enable_ki_protection,
    reschedule,
    wait_task_rescheduled,
)

from trio_orchestrator.algorithms.lane import Place
from trio_orchestrator.errors import JobCancelledError, JobDroppedError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from trio_orchestrator.policies.retry import Retry
    from trio_orchestrator.queue.alarm import Timer
    from trio_orchestrator.queue.engine import Engine
    from trio_orchestrator.queue.gates import Gate
    from trio_orchestrator.queue.worker import Worker

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@final
class JobState(enum.Enum):
    """Where a job is in its life: `waiting -> running -> succeeded | failed | cancelled`, and detours."""

    WAITING = "waiting"
    """It has not started, or a retry of it is due: it wants a slot."""
    RUNNING = "running"
    """Its body runs, and holds a slot; also while a cancelled body still cleans up."""
    RETRY_SCHEDULED = "retry-scheduled"
    """An attempt failed; the job pauses outside any slot."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DROPPED = "dropped"
    """Removed by overflow or by `clear()`."""


WAITING = JobState.WAITING
RUNNING = JobState.RUNNING
RETRY_SCHEDULED = JobState.RETRY_SCHEDULED
SUCCEEDED = JobState.SUCCEEDED
FAILED = JobState.FAILED
CANCELLED = JobState.CANCELLED
DROPPED = JobState.DROPPED


class JobOptions(TypedDict, total=False):
    """What one job may ask for, as keyword arguments of `submit`, `submit_nowait`, `submit_sync` and `run`."""

    priority: float
    """Higher goes first. Default 0."""
    key: Hashable
    """At most `per_key` jobs with equal keys run at once; with a cooldown, the key whose `Retry-After` counts."""
    weight: int
    """How many slots the job takes, >= 1. More than 1 needs a private limiter."""
    delay: float
    """Seconds before the job may start, >= 0."""
    start_at: float
    """The time, on Trio's clock, before which the job does not start."""
    retry: Retry | None
    """Instead of the queue's; None: no retries."""
    attempt_timeout: float
    """Seconds one attempt may take. The smallest of the queue's, the job's and its retry's counts."""
    timeout: float
    """Seconds that waiting, attempts and pauses may take together, from submission."""
    start_within: float
    """Seconds the job may wait for its first start."""
    gate: Gate
    """The gate that holds this job back when the queue's `protect` refuses it. Default: the queue's own."""
    name: str
    """Shown in task names, cancel reasons, logs and notes. Default: the function's qualified name."""
    tags: Iterable[str]
    """Counted separately in the statistics."""


@final
class Times:
    """The times of a job that has any. All points in time are on Trio's clock."""

    __slots__ = (
        "age_rank",
        "attempt_timeout",
        "caller_deadline",
        "deadline",
        "delayed",
        "start_by",
        "start_timer",
        "start_within",
        "submitted_at",
        "timeout",
        "timer",
    )

    def __init__(self, attempt_timeout: float) -> None:
        self.attempt_timeout: float = attempt_timeout
        self.timeout: float = math.inf
        self.deadline: float = math.inf  # the end of `timeout`
        self.caller_deadline: float = math.inf  # of the task in `run()`: it does not shorten the job, only its pauses
        self.start_within: float = math.inf
        self.start_by: float = math.inf  # the end of `start_within`
        self.timer: Timer | None = None
        self.start_timer: Timer | None = None
        self.submitted_at: float | None = None  # None: not measured
        self.age_rank: float = 0.0  # submission time / ageing: the part of the rank that is not priority
        self.delayed: bool = False  # its delay is not over


@final
class Terms(Place):
    """What a job has beyond function and arguments. Most jobs have none."""

    __slots__ = ("gate", "name", "priority", "retry", "tags", "times", "user_key", "watched")

    def __init__(self, retry: Retry | None) -> None:
        super().__init__()
        self.retry: Retry | None = retry
        self.priority: float = 0.0
        self.user_key: Hashable = None
        self.gate: Gate | None = None
        self.name: str | None = None
        self.tags: tuple[str, ...] = ()
        self.times: Times | None = None
        self.watched: bool = False  # whether an attempt needs more than its function called


class Sink(Protocol):
    """Who wants to know that a job has ended. Called once, in the task that ended it; must not raise."""

    def _settle(self, job: JobHandle[Any], /) -> None:
        """`job` has ended."""
        ...


@final
class Waiters(list[Task]):
    """Tasks parked until a job ends, and the sink it had before."""

    __slots__ = ("sink",)

    def __init__(self, sink: Sink | None) -> None:
        super().__init__()
        self.sink: Sink | None = sink

    def _settle(self, job: JobHandle[Any], /) -> None:
        """Wake the tasks, then tell the sink."""
        for task in self:
            reschedule(task)
        if self.sink is not None:
            self.sink._settle(job)


@final
class _Unseen:
    """Marks a failed job whose failure nobody has been told yet."""

    def _settle(self, job: JobHandle[Any], /) -> None:
        """Nothing: the job has ended before."""


UNSEEN = _Unseen()


@final
class Failure:
    """A stored exception and the traceback of its first ending."""

    __slots__ = ("error", "traceback")

    def __init__(self, error: BaseException, traceback: TracebackType | None) -> None:
        self.error: BaseException = error
        self.traceback: TracebackType | None = traceback

    def deliver(self) -> None:
        """Raise the exception as it first came out, however often; its `__context__` stays as it is."""
        error, context = self.error, self.error.__context__
        try:
            raise error.with_traceback(self.traceback)
        finally:
            error.__context__ = context
            del self, error, context  # no cycle through the traceback, here and below


class JobHandle(Generic[T_co]):
    """A submitted job. Made by a queue only; never by hand.

    Any number of tasks may wait for it; cancelling a waiter leaves the job alone.
    """

    # One object a job and few slots, since a million may wait: bytes and garbage collection are what submitting costs.
    __slots__ = (
        "_args",
        "_attempts",
        "_began_at",  # of the first attempt; not set before
        "_context",
        "_engine",
        "_fn",
        "_outcome",
        "_state",
        "_terms",
        "_waiters",
        "seq",
    )

    _began_at: float
    seq: int
    """The job's number in its queue, rising with submission. Negative once the job left the order without running."""

    def __init__(
        self, engine: Engine, fn: Callable[..., Awaitable[T_co]], args: object, context: Context, seq: int
    ) -> None:
        """Made by a queue only."""
        self._engine = engine
        self._fn: Callable[..., Awaitable[T_co]] = fn
        self._args = args  # a lone argument that is no tuple is stored bare: 48 bytes a job
        self._context: Context | None = context
        self._state = WAITING
        self._outcome: object = None  # running: the worker; retry-scheduled: the last error; ended: result or Failure
        self._waiters: Sink | None = None
        self._terms: Terms | None = None
        self._attempts = 0
        self.seq = seq

    def __repr__(self) -> str:
        return f"<JobHandle {self.name!r} {self._state.value}, {self._attempts} attempts>"

    # ------------------------------------------------------------------------------------------- what it is

    @property
    def name(self) -> str:
        """The name it was submitted with, or its function's qualified name."""
        if self._terms is not None and self._terms.name is not None:
            return self._terms.name
        return describe(self._fn)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags it was submitted with."""
        return () if self._terms is None else self._terms.tags

    @property
    def state(self) -> JobState:
        """Where it is in its life."""
        return self._state

    @property
    def attempts(self) -> int:
        """How often its function has been started so far."""
        return self._attempts

    @property
    def priority(self) -> float:
        """Higher goes first. Settable while the job waits: it goes to the end of its new level."""
        return 0.0 if self._terms is None else self._terms.priority

    @priority.setter
    @enable_ki_protection
    def priority(self, priority: float) -> None:
        self._engine.reprioritise(self, priority)

    @property
    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self._state not in (WAITING, RUNNING, RETRY_SCHEDULED)

    # --------------------------------------------------------------------------------------- what one can do

    async def wait(self) -> T_co:
        """Wait until the job has ended, and return its result or raise its error.

        A job has ended when its body has left, clean-up included. Always a checkpoint. Cancelling the wait leaves the
        job alone, and its failure unseen. However often it is called, a failure is raised as the same exception with
        the traceback of its first ending.

        Raises:
            JobCancelledError: The job was cancelled.
            JobDroppedError: It was dropped, by overflow or `clear()`.
            JobTimeoutError: A time-out of the queue ended it.
            RuntimeError: Waiting from inside a job of the same queue would wait for ever ("deadlock: ...").
        """
        if self.done:
            await checkpoint()
        else:
            await self._park()
        try:
            return self._deliver()
        finally:
            del self

    async def _ended(self) -> None:
        """Wait until the job has ended, and raise nothing of it. Always a checkpoint. A failure stays unseen."""
        if self.done:
            await checkpoint()
        else:
            await self._park()

    def result_nowait(self) -> T_co:
        """Return the result or raise the error, as `wait` does.

        Raises:
            trio.WouldBlock: The job has not ended.
        """
        if not self.done:
            raise trio.WouldBlock
        try:
            return self._deliver()
        finally:
            del self

    @enable_ki_protection
    def cancel(self, reason: str = "") -> None:
        """Cancel the job, in whatever state it is. Returns at once; idempotent.

        A job that waits, or is scheduled for a retry, ends now. A running one gets `trio.Cancelled` at its next
        checkpoint, and no further attempt; what it makes of it is its outcome: returned is succeeded, raised is failed,
        `Cancelled` is cancelled. An ended job stays as it is.
        """
        self._engine.cancel(self, reason)

    # --------------------------------------------------------------------------------------------- internals

    def _make_terms(self) -> Terms:
        """Return the job's terms, made if need be."""
        if self._terms is None:
            self._terms = Terms(self._engine.settings.retry)
        return self._terms

    def _make_times(self) -> Times:
        """Return the job's times, made if need be."""
        terms = self._make_terms()
        if terms.times is None:
            terms.times = Times(self._engine.attempt_timeout)
            terms.watched = True
        return terms.times

    @property
    def _times(self) -> Times | None:
        return None if self._terms is None else self._terms.times

    @property
    def _worker(self) -> Worker:
        return cast("Worker", self._outcome)

    @enable_ki_protection
    async def _park(self) -> None:
        try:
            blocked = self._engine.block_on(self)
        except RuntimeError:
            await cancel_shielded_checkpoint()
            raise
        waiters = self._waiters
        if not isinstance(waiters, Waiters):
            waiters = self._waiters = Waiters(waiters)
        task = current_task()
        waiters.append(task)

        def abort(_: object) -> Abort:
            waiters.remove(task)
            return Abort.SUCCEEDED

        try:
            await wait_task_rescheduled(abort)
        finally:
            self._engine.unblock(blocked, self)

    def _deliver(self) -> T_co:
        if self._state is SUCCEEDED:
            return cast("T_co", self._outcome)
        if self._waiters is UNSEEN:
            self._engine.seen(self)
        try:
            if isinstance(self._outcome, Failure):
                self._outcome.deliver()
            raise self._rejection()
        finally:
            del self

    def _rejection(self) -> Exception:
        """Make the error of a job that was cancelled or dropped; its last failure, if it had one, is the cause."""
        reason, last = cast("tuple[str, Exception | None]", self._outcome)
        error = JobCancelledError(reason) if self._state is CANCELLED else JobDroppedError(reason)
        if last is not None:
            error.__cause__ = last
        return error


def describe(fn: object) -> str:
    """Return the name of a function for people: its qualified name, also behind `functools.partial`."""
    inner = getattr(fn, "func", fn)
    return str(getattr(inner, "__qualname__", None) or repr(inner))
