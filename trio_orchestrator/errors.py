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
