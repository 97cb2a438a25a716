"""The contracts: what a policy, a budget and an instrument promise. Long docstrings, tiny code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar, TypeVarTuple, Unpack, runtime_checkable

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class Policy(ABC):
    """Something that surrounds one call: it may delay, repeat, refuse, shorten or replace it.

    What every policy promises:

    * Its configuration is immutable, and one object may be shared by all tasks; each call makes its own run state.
    * A result passes unchanged. An exception that it does not act on passes unchanged and bare: the same object, in no
      group, with its `__context__` untouched.
    * Somebody else's cancellation is never caught, never repeated, never converted; it is *neutral*: whatever the
      policy held is given back, and nothing is learned from it.
    * A refusal is a `RejectedError`, raised before the function was called.
    * It measures time by Trio's clock only.
    """

    __slots__ = ()

    @abstractmethod
    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` under this policy and return its result.

        Has the checkpoints of `fn` and adds none of its own unless the policy waits. Cancelling it cancels `fn`.
        """

    def wrap(self, fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return `fn` under this policy: same signature, same name. Usable as a decorator."""

        @wraps(fn)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.call(partial(fn, *args, **kwargs))

        return wrapped


@runtime_checkable
class Budget(Protocol):
    """What may be spent on retries, shared by many calls so that a failing service is not retried by all of them.

    Both methods are sync, decide at once, and are called by `Retry` (and by a queue on its behalf).
    """

    def withdraw(self, error: BaseException | None) -> bool:
        """Ask for one retry after `error` (None: a result was refused). False ends the call (reason "budget")."""
        ...

    def deposit(self, attempts: int) -> None:
        """Say that a call succeeded, after this number of attempts (1 = without a retry)."""
        ...


class Backoff(ABC):
    """How long to pause before a retry: an immutable, pure sequence `(retry, rng) -> seconds`."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, retry: int, rng: RandomSource) -> float:
        """Return the pause before retry number `retry` (1 is the first one), in seconds: finite and >= 0."""


class RandomSource(Protocol):
    """The part of `random.Random` that jitter needs."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def uniform(self, a: float, b: float) -> float:
        """Return a float in [a, b]."""
        ...


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


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job ended. Exactly one event a job."""

    name: str
    tags: tuple[str, ...]
    state: str
    """`"succeeded"`, `"failed"`, `"cancelled"` or `"dropped"`."""
    attempts: int
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class QueueDropped:
    """Jobs were removed from a queue before they started. `job_finished` follows for each of them."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class GateShut:
    """A gate holds its jobs back."""

    seconds: float
    """How long, as far as is known now."""
    known: bool
    """Whether the other side named the time; if not, one job goes first when it is over."""
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class GateOpened:
    """A gate lets its jobs through again."""

    probing: bool
    """True if only one job goes first, whose success opens the gate for all."""


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The number of jobs that may run at once has changed."""

    old: float
    new: float


class Instrument:
    """A listener: override what you want to hear. Every method is a no-op.

    Hooks are sync and run *after* the transition they report, in the task that made it; they may call the object that
    reports. A hook that raises an `Exception` is logged once to the logger `trio_orchestrator` and never called again.
    Only overridden hooks cost anything. Instruments are passed explicitly, `instruments=(...)`, at construction.
    """

    def retry_scheduled(self, event: RetryScheduled, /) -> None:
        """An attempt failed and will be repeated. Called before the pause."""

    def gave_up(self, event: GaveUp, /) -> None:
        """The last attempt failed. Called before its error is raised."""

    def job_finished(self, event: JobFinished, /) -> None:
        """A job ended, in whatever way."""

    def queue_dropped(self, event: QueueDropped, /) -> None:
        """A queue dropped jobs: overflow or `clear()`."""

    def gate_shut(self, event: GateShut, /) -> None:
        """A gate was shut, or shut for longer."""

    def gate_opened(self, event: GateOpened, /) -> None:
        """A gate was opened, for one job or for all."""

    def limit_changed(self, event: LimitChanged, /) -> None:
        """The concurrency of a queue was changed through the queue."""
