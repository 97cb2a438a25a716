from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_orchestrator.policies.failure import (
    EXHAUSTIONS,
    GiveUp,
    is_exhausted,
    is_permanent,
    leaves,
    mark_exhausted,
    mark_permanent,
    matcher,
)
from trio_orchestrator.testing import run_virtual


class Stop(BaseException):
    pass


A, B = ConnectionResetError("a"), ConnectionAbortedError("b")
OTHER = ValueError("other")


def test_a_type_a_tuple_and_a_predicate() -> None:
    for on in (OSError, (OSError, KeyError), lambda error: isinstance(error, OSError)):
        assert matcher(on)(A)
        assert not matcher(on)(OTHER)
    assert matcher((OSError, ValueError))(OTHER)
    assert not matcher(())(A)


@pytest.mark.parametrize(
    ("group", "retried"),
    [
        (ExceptionGroup("", [A, B]), True),
        (ExceptionGroup("", [A, OTHER]), False),
        (ExceptionGroup("", [A, ExceptionGroup("", [B, A])]), True),
        (ExceptionGroup("", [A, ExceptionGroup("", [B, OTHER])]), False),
        (BaseExceptionGroup("", [A, KeyboardInterrupt()]), False),
        (BaseExceptionGroup("", [A, BaseExceptionGroup("", [Stop()])]), False),
    ],
)
def test_tenacity_501_a_group_matches_if_all_its_leaves_do(group: BaseException, retried: bool) -> None:
    assert matcher(OSError)(group) is retried
    assert matcher(lambda error: isinstance(error, OSError))(group) is retried


def test_a_predicate_sees_the_leaves_only() -> None:
    seen: list[BaseException] = []

    def record(error: BaseException) -> bool:
        seen.append(error)
        return True

    assert matcher(record)(ExceptionGroup("", [A, ExceptionGroup("", [OTHER])]))
    assert seen == [A, OTHER]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), GeneratorExit(), Stop()], ids=repr)
def test_what_is_no_exception_is_never_seen(error: BaseException) -> None:
    seen: list[object] = []

    def record(error: object) -> bool:
        seen.append(error)
        return True

    assert not matcher(record)(error)
    assert not matcher(record)(BaseExceptionGroup("", [error]))
    assert seen == []


def test_a_cancellation_is_never_seen() -> None:
    async def main() -> list[BaseException]:
        caught: list[BaseException] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except BaseException as exc:
                caught.append(exc)
                raise
        return caught

    [cancelled] = run_virtual(main)
    assert isinstance(cancelled, trio.Cancelled)
    assert not matcher(lambda error: True)(cancelled)
    assert not matcher(lambda error: True)(BaseExceptionGroup("", [cancelled, A]))


def test_a_permanent_error_never_matches() -> None:
    class Gone(OSError):
        permanent = True

    class Method(OSError):
        def permanent(self) -> bool:
            return False

    assert not matcher(OSError)(Gone())
    assert not matcher(OSError)(ExceptionGroup("", [A, Gone()]))
    assert not matcher(OSError)(mark_permanent(OSError()))
    assert not matcher(OSError)(mark_permanent(ExceptionGroup("", [OSError()])))
    assert matcher(OSError)(Method())
    assert is_permanent(Gone())
    assert not is_permanent(Method())


def test_mark_permanent_returns_the_error_itself_even_a_frozen_one() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    error = Frozen()
    assert mark_permanent(error) is error
    assert is_permanent(error)


def test_an_exhausted_error_matches_only_if_asked_and_an_old_mark_not_at_all() -> None:
    error = OSError()
    before = EXHAUSTIONS.count
    mark_exhausted(error)
    assert is_exhausted(error)
    assert not matcher(OSError)(error)
    assert not matcher(OSError)(error, before)
    assert not matcher(OSError)(ExceptionGroup("", [A, error]), before)
    assert matcher(OSError, exhausted_too=True)(error)
    assert matcher(OSError)(error, EXHAUSTIONS.count)
    assert not is_exhausted(error, EXHAUSTIONS.count)


def test_give_up_matches_nothing() -> None:
    assert not matcher(Exception)(GiveUp(OSError()))
    assert not matcher(Exception)(ExceptionGroup("", [A, GiveUp(OSError())]))


def test_leaves() -> None:
    assert leaves(A) == [A]
    assert leaves("result") == ["result"]
    assert leaves(ExceptionGroup("", [A, ExceptionGroup("", [OTHER, B])])) == [A, OTHER, B]


async def asks(error: Exception) -> bool:
    return True


MUST_BE = "on must be an Exception type, a tuple of them or a predicate, got "


@pytest.mark.parametrize(
    ("on", "message"),
    [
        (None, f"{MUST_BE}None"),
        (3, f"{MUST_BE}3"),
        (ValueError("a"), f"{MUST_BE}ValueError('a')"),
        ([OSError], f"{MUST_BE}[<class 'OSError'>]"),
        (int, f"{MUST_BE}<class 'int'>"),
        (BaseException, f"{MUST_BE}<class 'BaseException'>"),
        (KeyboardInterrupt, f"{MUST_BE}<class 'KeyboardInterrupt'>"),
        (trio.Cancelled, f"{MUST_BE}<class 'trio.Cancelled'>"),
        ((OSError, "KeyError"), f"{MUST_BE}'KeyError'"),
        ((OSError, SystemExit), f"{MUST_BE}<class 'SystemExit'>"),
        (ExceptionGroup, "on must not name ExceptionGroup: a group matches if all its leaves do"),
        (BaseExceptionGroup, f"{MUST_BE}<class 'BaseExceptionGroup'>"),
        (asks, f"on must be a plain function, got the async function {asks!r}"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_on_is_named(on: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        matcher(on)
    assert str(caught.value) == message


def test_give_up_needs_an_exception() -> None:
    for bad in (ValueError, "error", KeyboardInterrupt(), None):
        with pytest.raises(TypeError) as caught:
            GiveUp(bad)  # type: ignore[arg-type]
        assert str(caught.value) == f"error must be an exception, got {bad!r}"
