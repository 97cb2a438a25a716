"""What follows a failed attempt, and how it is written on the error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Final, NamedTuple, TypeAlias, final

from trio_orchestrator.abc import CALL_FRAMES, Budget
from trio_orchestrator.policies.failure import mark_exhausted

Name: TypeAlias = str | Callable[..., object]
"""What is repeated: a text, or the function itself (then it is only named if somebody listens)."""

ATTEMPTS: Final = "attempts"
DEADLINE: Final = "deadline"
BUDGET: Final = "budget"
NOT_RETRYABLE: Final = "not retryable"
GIVEN_UP: Final = "given up"

_IN_VAIN = frozenset((ATTEMPTS, DEADLINE, BUDGET))


@final
class _NoResult:
    __slots__ = ()

    def __repr__(self) -> str:
        return "NO_RESULT"


NO_RESULT: Final = _NoResult()
"""Says that an attempt raised; None would be a result."""


class Decision(NamedTuple):
    """What follows a failed attempt."""

    delay: float | None
    """Seconds until the next attempt, or None: there is none."""
    reason: str
    """Why there is none: "attempts", "deadline", "budget", "not retryable" or "given up". "" if there is one."""
    wish: float | None
    """The pause that the other side asked for, in seconds; None if it did not."""
    error: BaseException | None
    """The failure: the attempt's own error, or the one inside its `GiveUp`; None for a refused result."""


def callee(fn: Callable[..., object], args: tuple[Any, ...]) -> Callable[..., object]:
    """Return the function that `fn(*args)` calls in the end, with policies in between (`inner.call, function, ...`)."""
    while args and isinstance(fn, MethodType) and fn.__func__.__code__ in CALL_FRAMES:
        fn, args = args[0], args[1:]
    return fn


def name_of(name: Name) -> str:
    """Return the text, or the qualified name of the function; of the class, if it is another callable object."""
    if isinstance(name, str):
        return name
    while isinstance(name, partial):
        name = name.func
    return getattr(name, "__qualname__", type(name).__qualname__)


def sign(error: BaseException, attempt: int, elapsed: float, reason: str) -> None:
    """Write on `error` that no further attempt was made, and mark it if it was repeated in vain.

    An error that was never worth repeating, at a first attempt, is left as it is.
    """
    if reason in _IN_VAIN:
        mark_exhausted(error)
    elif attempt == 1:
        return
    text = f"gave up after {attempt} attempt{'s' if attempt > 1 else ''} in {_seconds(elapsed)} s: {reason}"
    try:
        error.add_note(text)
    except AttributeError:  # a frozen dataclass takes no notes
        return


def _seconds(elapsed: float) -> str:
    return f"{elapsed:.3g}" if elapsed < 1000 else f"{elapsed:.0f}"


def settle(budget: Budget, attempts: int, failure: BaseException | None) -> None:
    """Tell a budget that a call succeeded, after so many attempts; the one before failed with `failure`."""
    if attempts > 1:
        budget.refund(failure)
    budget.deposit(attempts)
