"""A time limit around one call, as a policy: alone, as a decorator, or in a stack."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar, TypeVarTuple, final

import trio

from trio_orchestrator.abc import Policy
from trio_orchestrator.algorithms.argument import above
from trio_orchestrator.block import TimeoutScope
from trio_orchestrator.policies.failure import mark_timeout

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class Timeout(Policy):
    """Let a call take `seconds` at most; end it with `trio.TooSlowError` if it takes longer.

    Differs from `trio.fail_after` in three ways: it is a value that can be shared and stacked; the guards inside (a
    circuit breaker, a limiter) learn that the call *failed*, instead of seeing somebody's cancellation; and a call that
    is cancelled from outside is never reported as too slow.

    The error of the call itself passes untouched, its own `TooSlowError` too; so does what it raises while it cleans up
    after our time-out. A call that returns without noticing that its time is over has succeeded. Around a `Retry` it is
    a limit on all attempts together, inside one a limit on each; then the `Retry` repeats it if `on` covers
    `trio.TooSlowError`.

    Args:
        seconds: More than 0; `math.inf` for no limit.

    Raises:
        TypeError: `seconds` is not a number.
        ValueError: `seconds` is not above 0, or NaN.
    """

    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = above("seconds", seconds, 0)

    @property
    def seconds(self) -> float:
        """How long a call may take."""
        return self._seconds

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {"seconds": self._seconds}

    def __repr__(self) -> str:
        return f"Timeout({self._seconds:g})"

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` within the time limit and return its result.

        Has the checkpoints of `fn` and adds none. Cancelling it cancels `fn`.

        Raises:
            trio.TooSlowError: The time was over, and the call has ended because of it.
        """
        with TimeoutScope(trio.current_time() + self._seconds):
            return await fn(*args)
        raise mark_timeout(trio.TooSlowError(f"timeout={self._seconds:g} s was exceeded"))
