"""What an `Instrument` is told by retries, queues and limits: frozen facts, numbers and exceptions, not strings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class RetryScheduled:
    """An attempt failed, and another one will follow after a pause."""

    name: str
    """What is being retried: the function's qualified name, or the job's name."""
    attempt: int
    """The number of the attempt that failed; 1 is the first."""
    attempts: float
    """How many attempts the policy allows in all; `math.inf` is possible."""
    delay: float
    """Seconds until the next attempt may start."""
    elapsed: float
    """Seconds since the first attempt started."""
    error: BaseException | None
    """What the attempt raised; None if its *result* was refused."""


@final
@dataclass(frozen=True, slots=True)
class GaveUp:
    """The last attempt failed, and none will follow."""

    name: str
    attempt: int
    """How many attempts were made."""
    attempts: float
    elapsed: float
    """Seconds since the first attempt started."""
    reason: str
    """`"attempts"`, `"deadline"`, `"budget"`, `"not retryable"` or `"given up"`."""
    error: BaseException | None


@final
@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job ended. Exactly one event a job."""

    name: str
    tags: tuple[str, ...]
    state: str
    """`"succeeded"`, `"failed"`, `"cancelled"` or `"dropped"`."""
    attempts: int
    error: BaseException | None


@final
@dataclass(frozen=True, slots=True)
class QueueDropped:
    """Jobs were removed from a queue before they started. `job_finished` follows for each of them."""

    reason: str
    count: int


@final
@dataclass(frozen=True, slots=True)
class GateShut:
    """A gate holds its jobs back."""

    seconds: float
    """How long, as far as is known now."""
    known: bool
    """Whether the other side named the time; if not, one job goes first when it is over."""
    error: BaseException | None


@final
@dataclass(frozen=True, slots=True)
class GateOpened:
    """A gate lets its jobs through again."""

    probing: bool
    """True if only one job goes first, whose success opens the gate for all."""


@final
@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The number of jobs or calls that may run at once has changed."""

    old: float
    new: float
    name: str = ""
    """Whose limit it is."""
    reason: str = ""
    """Why, if a rule changed it."""
