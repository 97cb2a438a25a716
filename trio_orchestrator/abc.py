"""The contracts: what a policy, a budget and an instrument promise. Long docstrings, tiny code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, TypeVar, TypeVarTuple, Unpack, final

if TYPE_CHECKING:
    from trio_orchestrator.event import (
        GateOpened,
        GateShut,
        GaveUp,
        JobFinished,
        LimitChanged,
        QueueDropped,
        RetryScheduled,
    )
    from trio_orchestrator.policy_event import (
        CircuitClosed,
        CircuitHalfOpened,
        CircuitIsolated,
        CircuitOpened,
        FallbackUsed,
        HedgeStarted,
        SpendStopped,
        SpendWarned,
        StormEnded,
        StormStarted,
    )
    from trio_orchestrator.redis_event import RedisConnected, RedisFailover, RedisLost, RedisReady, RedisReconnecting

T = TypeVar("T")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")

CALL_FRAMES: set[CodeType] = set()
"""The code of every policy's `call`: tells, in a traceback, the function that was called from what surrounds it."""


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

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if isinstance(call := vars(cls).get("call"), FunctionType):
            CALL_FRAMES.add(call.__code__)

    @abstractmethod
    async def call(self, fn: Callable[[Unpack[Ts]], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` under this policy and return its result.

        Has the checkpoints of `fn` and adds none of its own unless the policy waits. Cancelling it cancels `fn`.
        """

    def parameters(self) -> dict[str, object]:
        """Return what it was made with, as far as that decides what it does: shown by `Stack.explain()`."""
        return {}

    def wrap(self, fn: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return `fn` under this policy: same signature, same name. Usable as a decorator."""

        @wraps(fn)
        async def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
            return await self.call(partial(fn, *args, **kwargs))

        return wrapped


class Budget(ABC):
    """What may be spent on retries, shared by many calls so that a failing service is not retried by all of them.

    Every method is sync and decides at once. `Retry` (and a queue on its behalf) calls them: `begin` before the first
    attempt of a call (a queue: when that has ended, since until then it may be refused and start again), `failed` after
    each attempt that failed, `withdraw` when another attempt would follow, and, when the call succeeded, `refund` if it
    was repeated, and `deposit`. A retry that was granted stays spent when its call is cancelled during the pause.
    """

    __slots__ = ()

    def begin(self) -> None:  # noqa: B027 - a budget need not care
        """Say that a call begins. Not called for its retries."""

    def failed(self, error: BaseException | None) -> None:  # noqa: B027 - a budget need not care
        """Say that an attempt failed in a way worth repeating; None: its result was refused."""

    @abstractmethod
    def withdraw(self, error: BaseException | None) -> bool:
        """Ask for one retry after `error` (None: a result was refused). False ends the call (reason "budget")."""

    def refund(self, error: BaseException | None) -> None:  # noqa: B027 - a budget need not care
        """Say that the retry granted after `error`, the last one of its call, succeeded. Called before `deposit`."""

    def deposit(self, attempts: int) -> None:  # noqa: B027 - a budget need not care
        """Say that a call succeeded, after this number of attempts (1 = without a retry)."""


@final
class Sample(NamedTuple):
    """What one attempt tells about how many the other side can serve at once. Never includes a wait or a pause of ours.

    An attempt that was cancelled, or refused before it began, is no sample.
    """

    start: float
    """When the attempt started."""
    rtt: float
    """Seconds that it took."""
    in_flight: int
    """How many were in flight when it started, itself included."""
    dropped: bool
    """Whether the other side showed that it is overloaded: it refused, failed, or did not answer in time."""


class Control(ABC):
    """The run state of a `Limit`: not shared, not thread-safe, and without a clock; time comes with the samples."""

    __slots__ = ()

    limit: float
    """How many attempts may be in flight, >= 1; a fraction is kept, and rounded down by whoever applies it."""

    @abstractmethod
    def update(self, sample: Sample) -> tuple[float, str]:
        """Learn from one attempt that has ended; return the limit and, in a word or two, why it is that."""


class Limit(ABC):
    """A rule for how many attempts may be in flight at once: an immutable value, shared by all who use it."""

    __slots__ = ()

    @abstractmethod
    def control(self, rng: RandomSource) -> Control:
        """Return a fresh run state, at the initial limit. `rng` draws the jitter, if the rule has any."""


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
        """The concurrency of a queue was changed through the queue, or an adaptive limit moved."""

    def circuit_opened(self, event: CircuitOpened, /) -> None:
        """A circuit breaker opened, or opened again after a probe failed."""

    def circuit_half_opened(self, event: CircuitHalfOpened, /) -> None:
        """A circuit breaker lets a probe through."""

    def circuit_closed(self, event: CircuitClosed, /) -> None:
        """A circuit breaker closed."""

    def circuit_isolated(self, event: CircuitIsolated, /) -> None:
        """An operator holds a circuit breaker open, or the last one has let go of it."""

    def hedge_started(self, event: HedgeStarted, /) -> None:
        """A hedge started another copy of a slow call."""

    def fallback_used(self, event: FallbackUsed, /) -> None:
        """A fallback took the place of a result."""

    def storm_started(self, event: StormStarted, /) -> None:
        """Something is called far too often."""

    def storm_ended(self, event: StormEnded, /) -> None:
        """It no longer is."""

    def spend_warned(self, event: SpendWarned, /) -> None:
        """Much of what may be spent is spent."""

    def spend_stopped(self, event: SpendStopped, /) -> None:
        """All of it is, and calls are refused."""

    def redis_connected(self, event: RedisConnected, /) -> None:
        """A link to Redis has a connection."""

    def redis_ready(self, event: RedisReady, /) -> None:
        """The server behind it answers."""

    def redis_lost(self, event: RedisLost, /) -> None:
        """A link to Redis lost its connection."""

    def redis_reconnecting(self, event: RedisReconnecting, /) -> None:
        """An attempt to connect failed; the next follows after a pause."""

    def redis_failover(self, event: RedisFailover, /) -> None:
        """A link speaks with another server than before."""
