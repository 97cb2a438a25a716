"""The verdict on what a call raised or returned."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_orchestrator.errors import CircuitOpenError, RejectedError
from trio_orchestrator.policies.failure import GiveUp, mark_exhausted, mark_permanent, mark_timeout
from trio_orchestrator.policies.verdict import FAILURE, NEUTRAL, SUCCESS, Judge, Verdict


class Exhausted(ConnectionError):
    def __init__(self) -> None:
        mark_exhausted(self)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionError(), FAILURE),
        (ConnectionResetError(), FAILURE),
        (ValueError(), SUCCESS),
        (KeyError(), NEUTRAL),
        (RejectedError(), NEUTRAL),
        (CircuitOpenError("inner", "open"), NEUTRAL),
        (mark_timeout(trio.TooSlowError()), FAILURE),
        (trio.TooSlowError(), SUCCESS),  # the function's own, and not in `on`
        (mark_permanent(ConnectionError()), FAILURE),  # marks are about repeating
        (Exhausted(), FAILURE),
        (GiveUp(ConnectionError()), FAILURE),
        (GiveUp(ValueError()), SUCCESS),
        (GiveUp(KeyError()), NEUTRAL),
        (ExceptionGroup("", [ConnectionError(), ConnectionError()]), FAILURE),
        (ExceptionGroup("", [ConnectionError(), ValueError()]), FAILURE),
        (ExceptionGroup("", [RejectedError(), ExceptionGroup("", [RejectedError()])]), NEUTRAL),
        (ExceptionGroup("", [RejectedError(), ConnectionError()]), FAILURE),
        (ExceptionGroup("", [RejectedError(), ValueError()]), SUCCESS),
        (KeyboardInterrupt(), NEUTRAL),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ConnectionError()]), NEUTRAL),
    ],
    ids=repr,
)
def test_what_was_raised(error: BaseException, verdict: Verdict) -> None:
    judge = Judge(ConnectionError, KeyError)
    assert judge.of_error(error) is verdict
    reports: list[Verdict] = []
    if isinstance(error, Exception):
        judge.report(error, reports.append)
        assert reports == [verdict]


def test_what_was_returned() -> None:
    assert Judge(Exception).of_result(500) is SUCCESS
    picky = Judge(Exception, classify=lambda status: status >= 500)
    assert (picky.of_result(500), picky.of_result(404)) == (FAILURE, SUCCESS)
    assert (Judge(()).of_error(OSError()), Judge(OSError, OSError).of_error(OSError())) == (SUCCESS, NEUTRAL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on": 3}, "on must be an Exception type, a tuple of them or a predicate, got 3"),
        ({"on": (), "neutral": 3}, "neutral must be an Exception type, a tuple of them or a predicate, got 3"),
        ({"on": (), "classify": 3}, "classify must be a plain function, got 3"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        Judge(**arguments)
    assert str(caught.value) == message
