"""What counts as a failure worth repeating, and the two marks that an exception may carry.

A *permanent* error is never repeated, whatever `on` says: `raise mark_permanent(error)`, or an exception class with
`permanent = True`. An *exhausted* error comes out of a retry that has already repeated it in vain; an outer retry
leaves it alone, because three layers of four attempts would make 64 calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar, final

from trio_orchestrator.abc import CALL_FRAMES
from trio_orchestrator.algorithms.argument import plain_function

E = TypeVar("E", bound=BaseException)
On: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Any], bool]
"""An exception type, a tuple of them (may be empty), or a predicate `(exception) -> bool`."""

_GROUP: type[BaseException] = BaseExceptionGroup
_MUST_BE = "on must be an Exception type, a tuple of them or a predicate"
_EXHAUSTED = "_trio_orchestrator_exhausted"
_TIMEOUT = "_trio_orchestrator_timeout"


@final
class GiveUp(Exception):  # noqa: N818 - an order, not an error
    """Raised by the body of a retry to end it now with `error`: `raise GiveUp(error)`.

    The retry raises `error` itself, bare. It ends the innermost retry only, and is not an error of ours: outside a
    retry, or inside a group, it is an ordinary exception that no retry repeats.
    """

    permanent = True

    def __init__(self, error: Exception) -> None:
        if not isinstance(error, Exception):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"error must be an exception, got {error!r}")
        super().__init__(error)
        self.error = error


def mark_permanent(error: E) -> E:
    """Mark an error as not worth repeating, and return it, to be raised."""
    error.__dict__["permanent"] = True
    return error


def is_permanent(error: BaseException) -> bool:
    """Tell whether `error`, or its class, has `permanent = True`."""
    return getattr(error, "permanent", False) is True


class _Exhaustions:
    """Numbers the marks, so that a mark from an earlier call is told from one made during this attempt.

    An exception object may be raised again and again (a shared constant, a stored failure); its old mark says nothing
    about the attempt that raises it now.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int = 0


EXHAUSTIONS = _Exhaustions()
"""`EXHAUSTIONS.count`, taken when an attempt starts, is the `since=` of its failure."""


def mark_exhausted(error: BaseException) -> None:
    """Mark `error` as repeated in vain: an outer retry will not repeat it again."""
    EXHAUSTIONS.count += 1
    error.__dict__[_EXHAUSTED] = EXHAUSTIONS.count


def unmark_exhausted(error: BaseException) -> None:
    """Take the mark off again: whoever made it knows that an outer retry may do better."""
    error.__dict__.pop(_EXHAUSTED, None)


def is_exhausted(error: BaseException, since: int = 0) -> bool:
    """Tell whether a retry gave up on `error` after `EXHAUSTIONS.count` was `since`."""
    return getattr(error, _EXHAUSTED, 0) > since


class Matcher(Protocol):
    """Says whether an error counts; `since` as for `is_exhausted`."""

    def __call__(self, error: BaseException, since: int = 0) -> bool: ...  # noqa: D102


def matcher(on: On, *, exhausted_too: bool = False, permanent_too: bool = False) -> Matcher:
    """Turn `on` into a predicate on whatever an attempt raised.

    * A group matches if **all** its leaves match, nested ones too; `on` sees the leaves only. A `BaseExceptionGroup`
      that is not an `ExceptionGroup` never matches.
    * `trio.Cancelled`, `KeyboardInterrupt`, `SystemExit` and whatever else is no `Exception` never match; a predicate
      does not even see them.
    * A permanent error matches only with `permanent_too`, an exhausted one only with `exhausted_too`.

    Raises:
        TypeError: `on` is none of the three, an async function, or names a type that can never match.
    """
    leaf = _leaf_predicate(on)

    def matches(error: BaseException, since: int = 0) -> bool:
        if not isinstance(error, Exception):
            return False
        if getattr(error, "permanent", False) is True and not permanent_too:
            return False
        if getattr(error, _EXHAUSTED, 0) > since and not exhausted_too:
            return False
        if isinstance(error, _GROUP):
            return all(matches(inner, since) for inner in _inner(error))
        return leaf(error)

    return matches


def _leaf_predicate(on: On) -> Callable[[Exception], bool]:
    if callable(on) and not isinstance(on, type):
        plain_function("on", on)
        return on
    types = (on,) if isinstance(on, type) else on
    if not isinstance(types, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{_MUST_BE}, got {on!r}")
    for one in types:
        _check_type(one)
    return lambda error: isinstance(error, types)


def _check_type(one: object) -> None:
    if not (isinstance(one, type) and issubclass(one, Exception)):
        raise TypeError(f"{_MUST_BE}, got {one!r}")
    if issubclass(one, _GROUP):
        raise TypeError(f"on must not name {one.__name__}: a group matches if all its leaves do")


def is_misfit(error: TypeError) -> bool:
    """Tell, where `fn(*args)` was awaited, whether calling it failed, and not it: wrong arguments, nothing to await.

    Policies between here and the function do not count.
    """
    traceback = error.__traceback__
    if traceback is None:
        return False
    while (inner := traceback.tb_next) is not None and inner.tb_frame.f_code in CALL_FRAMES:
        traceback = inner
    return inner is None


def mark_timeout(error: E) -> E:
    """Mark an error as made by a time-out of ours: a failure for every policy around it, whatever their `on` says."""
    error.__dict__[_TIMEOUT] = True
    return error


def is_timeout(error: BaseException) -> bool:
    """Tell whether a time-out of ours made this error."""
    return getattr(error, _TIMEOUT, False) is True


def leaves(failure: object) -> list[object]:
    """Return the exceptions in a group, nested ones resolved; `[failure]` if it is no group."""
    if not isinstance(failure, _GROUP):
        return [failure]
    return [leaf for inner in _inner(failure) for leaf in leaves(inner)]


def _inner(group: Any) -> tuple[BaseException, ...]:
    exceptions: tuple[BaseException, ...] = group.exceptions
    return exceptions
