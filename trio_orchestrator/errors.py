"""Every exception of the library.

Errors are named after the state of the world, take data, and make their own message. Two families matter to a caller:
a `RejectedError` says that the call never ran (it is safe to try elsewhere), a `JobError` says how a job ended that
returned no result and raised no exception of its own. The exceptions of the user's own functions are never wrapped.
"""

from __future__ import annotations

import math
from typing import final

import trio


class OrchestratorError(Exception):
    """The root of every exception of this library. Not raised itself, and not the root of *your* exceptions."""


class RejectedError(OrchestratorError):
    """The call was refused before it ran: nothing has happened, and it is safe to try elsewhere or later.

    It does not say that the call failed.
    """

    retry_after: float
    """Seconds until another try may be let in; `math.inf` when that is not known."""

    def __init__(self, message: str = "the call was refused", *, retry_after: float = math.inf) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@final
class QueueFullError(RejectedError):
    """The queue holds `max_waiting` jobs and its overflow policy is to reject. Not a time-out: nothing waited."""

    def __init__(self, max_waiting: float, *, retry_after: float = math.inf) -> None:
        super().__init__(f"the queue is full: {max_waiting} jobs are waiting", retry_after=retry_after)
        self.max_waiting = max_waiting


@final
class CircuitOpenError(RejectedError):
    """A circuit breaker refused the call: its dependency has failed too often. Not a failure of this call.

    `__cause__` is the failure that opened it, if that was an exception. `retry_after` is exact while the circuit is
    open; `math.inf` if it depends on a probe that is still out, or on an operator.
    """

    state: str
    """`"open"`, `"half-open"` (all its probes are out), `"closed"` (it has just closed, and lets only a part through)
    or `"isolated"`."""

    def __init__(self, name: str, state: str, *, retry_after: float = math.inf) -> None:
        super().__init__(f"{name} is {state}", retry_after=retry_after)
        self.name = name
        self.state = state


@final
class LimitExceededError(RejectedError):
    """As many calls as are allowed are in flight or waiting, or the wait for one's turn took too long.

    Not a rate limit: it says nothing of calls a second.
    """

    def __init__(self, message: str = "too many calls at once", *, retry_after: float = math.inf) -> None:
        super().__init__(message, retry_after=retry_after)


@final
class RateLimitedError(RejectedError):
    """A rate limit of ours would be exceeded. Not a 429 of a server. `retry_after` is when it would not, by itself."""

    def __init__(self, name: str = "rate limit", *, retry_after: float = math.inf) -> None:
        super().__init__(f"{name} reached, free in {retry_after:.3g} s", retry_after=retry_after)
        self.name = name


@final
class BudgetExhaustedError(RejectedError):
    """What may be spent is spent: money in this period, or what a throttle allows of a failing service.

    Not raised when a `Retry` runs out of its budget: then the last failure itself comes out.
    """

    def __init__(self, message: str = "the budget is spent", *, retry_after: float = math.inf) -> None:
        super().__init__(message, retry_after=retry_after)


class JobError(OrchestratorError):
    """A job ended without a result and without an exception of its own function."""


@final
class JobCancelledError(JobError):
    """The job was cancelled: through its handle, its group, or because its queue closed or was cancelled.

    Raised by those who wait for the job. Not `trio.Cancelled`: the waiter itself was not cancelled.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(f"job cancelled: {reason}" if reason else "job cancelled")
        self.reason = reason


@final
class JobDroppedError(JobError):
    """The job was removed before its first start, by overflow or by `clear()`. It never ran.

    A job cleared while it was scheduled for a retry has run, and failed, before: `__cause__` is that failure.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"job dropped: {reason}")
        self.reason = reason


@final
class JobTimeoutError(JobError, trio.TooSlowError):
    """A time-out *of the queue* ended the job. Not raised for a `TooSlowError` that the job's own function raised."""

    which: str
    """The option that fired: `"attempt_timeout"`, `"timeout"` or `"start_within"`."""

    def __init__(self, which: str, seconds: float) -> None:
        super().__init__(f"{which}={seconds:g} s was exceeded")
        self.which = which
        self.seconds = seconds
