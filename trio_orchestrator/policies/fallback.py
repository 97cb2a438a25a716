"""A substitute for the result of a call that failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isasyncgenfunction, iscoroutinefunction, isfunction, isgeneratorfunction
from typing import Any, Final, TypeVar, TypeVarTuple, cast, final

from trio_orchestrator.abc import Instrument, Policy
from trio_orchestrator.block import Hooks, emit
from trio_orchestrator.policies.decision import callee, name_of
from trio_orchestrator.policies.failure import GiveUp, On, is_misfit, leaves, matcher
from trio_orchestrator.policy_event import FallbackUsed

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@final
class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


_MISSING: Final = _Missing()


@final
class Fallback(Policy):
    """Return `value`, or what `fn` returns, when a call fails in a way named by `on`.

    **What is caught.** An `Exception` that `on` covers; of a group all leaves must be covered. A refusal by a policy
    further in (a `RejectedError`: an open circuit, a full bulkhead, a spent budget) counts like any exception, and so
    do one that is marked permanent and one that a `Retry` inside has repeated in vain: those marks are about repeating.
    A `GiveUp` is judged, and handed on, as the error that it carries; if that is not covered, the `GiveUp` passes, for
    the retry around. Never caught: `trio.Cancelled`, `KeyboardInterrupt`, every other `BaseException`, a group that
    holds one, and a `TypeError` of the call itself: wrong arguments, or a function that returns nothing to await.

    **What replaces the result.** Always the same object `value`, or the result of `await fn(error)`. What `fn` raises
    comes out bare, without the first error as its `__context__`: `raise ... from error` inside `fn` says it. It is not
    caught again; fallbacks are nested for that.

    **Order.** Outermost, it replaces the failure of everything inside. Inside a `Retry` or a circuit breaker it turns
    failures into successes that they never hear of. A time-out of ours around it ends `fn` too.

    The type checker takes the result to be that of the function, since a policy does not change it: let the substitute
    have the same type, or annotate the function with the union.

    Args:
        on: An exception type, a tuple of types (may be empty), or a plain predicate `(exception) -> bool`.
        value: The substitute. Exactly one of `value` and `fn` must be given; None is a value.
        fn: An async function that makes the substitute from the error.
        name: What is called, for events; by default the name of the function.
        instruments: Listeners for `fallback_used`; called when the substitute is there.

    Raises:
        TypeError: An argument has the wrong type; not exactly one of `value` and `fn` is given.
    """

    __slots__ = ("_covers", "_fn", "_name", "_on", "_used", "_value")

    def __init__(
        self,
        *,
        on: On = Exception,
        value: Any = _MISSING,
        fn: Callable[[Any], Awaitable[Any]] | None = None,
        name: str = "",
        instruments: Sequence[Instrument] = (),
    ) -> None:
        if (value is _MISSING) is (fn is None):
            raise TypeError("value or fn must be given, and not both")
        if fn is not None:
            _async_function("fn", fn)
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"name must be a str, got {name!r}")
        self._on = on
        self._covers = _cover(on)
        self._value = value
        self._fn = fn
        self._name = name
        self._used = Hooks(instruments).of("fallback_used")

    def parameters(self) -> dict[str, object]:
        """Return what it was made with."""
        return {
            "on": self._on,
            **({"value": self._value} if self._fn is None else {"fn": self._fn}),
            "name": self._name,
        }

    def __repr__(self) -> str:
        substitute = f"value={self._value!r}" if self._fn is None else f"fn={name_of(self._fn)}"
        return f"Fallback(on={self._on!r}, {substitute})"

    async def call(self, fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `fn(*args)` and return its result, or the substitute if it fails.

        Has the checkpoints of `fn`, and of the substitute's function. Cancelling it cancels the one that runs.

        Raises:
            Exception: What `fn` raised and `on` does not cover, or what the substitute's function raised.
        """
        try:
            return await fn(*args)
        except Exception as caught:
            error = caught.error if isinstance(caught, GiveUp) else caught
            if (isinstance(caught, TypeError) and is_misfit(caught)) or not self._covers(error):
                del error  # no cycle through the traceback
                raise
        try:
            result = await self._substitute(error)
            if self._used:
                emit(self._used, FallbackUsed(self._name or name_of(callee(fn, args)), error))
            return cast("T", result)
        finally:
            del error

    async def _substitute(self, error: Exception) -> Any:
        if self._fn is None:
            return self._value
        awaitable = self._fn(error)
        if not isinstance(awaitable, Awaitable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"fn must be an async function, but {self._fn!r} returned {awaitable!r}")
        return await awaitable


def _cover(on: On) -> Callable[[Exception], bool]:
    """Tell what `on` covers: what a matcher matches, and what is marked permanent too."""
    matcher(on)  # refuses what can match nothing
    if isinstance(on, (type, tuple)):
        return lambda error: all(isinstance(leaf, on) for leaf in leaves(error))
    return lambda error: all(on(leaf) for leaf in leaves(error))


def _async_function(name: str, value: object) -> None:
    """Raise if `value` is certainly none. What an object or a decorated function returns is seen when it is called."""
    if not callable(value):
        raise TypeError(f"{name} must be an async function, got {value!r}")
    plain = isfunction(value) and not iscoroutinefunction(value) and not hasattr(value, "__wrapped__")
    if plain or isgeneratorfunction(value) or isasyncgenfunction(value) or isinstance(value, type):
        raise TypeError(f"{name} must be an async function, got {value!r}")
