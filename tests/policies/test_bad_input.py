"""Every constructor argument of the retry, the time-out and the backoffs, with what each refuses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from trio_orchestrator.algorithms.backoff import (
    AdditiveJitter,
    Constant,
    Custom,
    DecorrelatedJitter,
    EqualJitter,
    Exponential,
    Fibonacci,
    FullJitter,
    Linear,
)
from trio_orchestrator.policies.http import HttpRetryAfter
from trio_orchestrator.policies.retry import Retry
from trio_orchestrator.policies.timeout import Timeout

Row = tuple[Callable[..., object], dict[str, Any], type[Exception], str]


async def waits(*args: object) -> None: ...


def numbers(kind: Callable[..., object], name: str, bound: str, *bad: object, **others: object) -> list[Row]:
    """Return rows for a number: `bad` values, NaN, and what is no number."""
    rows: list[Row] = [
        (kind, {name: value, **others}, ValueError, f"{name} must be {bound}, got {value!r}") for value in bad
    ]
    for value in ("4", None, True, [1]):
        rows.append((kind, {name: value, **others}, TypeError, f"{name} must be a number, got {value!r}"))
    return rows


def functions(kind: Callable[..., object], name: str, **others: object) -> list[Row]:
    not_async = f"{name} must be a plain function, got the async function {waits!r}"
    return [
        (kind, {name: 3, **others}, TypeError, f"{name} must be a plain function, got 3"),
        (kind, {name: waits, **others}, TypeError, not_async),
    ]


FINITE = (-1, -1e-9, math.inf, -math.inf, math.nan)
MUST_BE_ON = "on must be an Exception type, a tuple of them or a predicate, got "


def jitter(kind: Callable[..., object]) -> list[Row]:
    return [
        *numbers(kind, "base", ">= 0 and finite", *FINITE),
        *numbers(kind, "cap", ">= 0 and finite", *FINITE),
        *numbers(kind, "factor", ">= 1 and finite", 0, 0.99, *FINITE),
        *numbers(kind, "floor", ">= 0 and finite", *FINITE),
        (kind, {"cap": 5, "floor": 5.5}, ValueError, "floor must be <= cap=5, got 5.5"),
    ]


def retry(**arguments: object) -> Retry:
    return Retry(**{"on": OSError, **arguments})  # type: ignore[arg-type]


ROWS: dict[Callable[..., object], list[Row]] = {
    FullJitter: jitter(FullJitter),
    EqualJitter: jitter(EqualJitter),
    AdditiveJitter: jitter(AdditiveJitter),
    DecorrelatedJitter: [
        *numbers(DecorrelatedJitter, "base", ">= 0 and finite", *FINITE),
        *numbers(DecorrelatedJitter, "cap", ">= 0 and finite", *FINITE),
        (DecorrelatedJitter, {"base": 9, "cap": 5}, ValueError, "base must be <= cap=5, got 9.0"),
    ],
    Exponential: [
        *numbers(Exponential, "base", ">= 0 and finite", *FINITE),
        *numbers(Exponential, "cap", ">= 0 and finite", *FINITE),
        *numbers(Exponential, "factor", ">= 1 and finite", 0, *FINITE),
    ],
    Linear: [
        *numbers(Linear, "base", ">= 0 and finite", *FINITE),
        *numbers(Linear, "step", ">= 0 and finite", *FINITE),
        *numbers(Linear, "cap", ">= 0 and finite", *FINITE),
    ],
    Constant: numbers(Constant, "delay", ">= 0 and finite", *FINITE),
    Fibonacci: [
        *numbers(Fibonacci, "base", ">= 0 and finite", *FINITE),
        *numbers(Fibonacci, "cap", ">= 0 and finite", *FINITE),
    ],
    Custom: functions(Custom, "fn"),
    Timeout: numbers(Timeout, "seconds", "> 0", 0, -1, -math.inf, math.nan),
    HttpRetryAfter: functions(HttpRetryAfter, "wall"),
    Retry: [
        (Retry, {"on": None}, TypeError, f"{MUST_BE_ON}None"),
        (Retry, {"on": KeyboardInterrupt}, TypeError, f"{MUST_BE_ON}{KeyboardInterrupt!r}"),
        (Retry, {"on": waits}, TypeError, f"on must be a plain function, got the async function {waits!r}"),
        *functions(retry, "on_result"),
        *numbers(retry, "attempts", ">= 1", 0, -1, 0.5, -math.inf),
        *numbers(retry, "attempts", "a whole number or math.inf", 2.5, math.nan),
        (retry, {"backoff": 1.0}, TypeError, "backoff must be a Backoff such as FullJitter(), got 1.0"),
        (retry, {"backoff": None}, TypeError, "backoff must be a Backoff such as FullJitter(), got None"),
        (retry, {"backoff": max}, TypeError, f"backoff must be a Backoff such as FullJitter(), got {max!r}"),
        *numbers(retry, "attempt_timeout", "> 0", 0, -1, -math.inf, math.nan),
        *numbers(retry, "timeout", "> 0", 0, -1, -math.inf, math.nan),
        (retry, {"budget": 3}, TypeError, "budget must be a Budget such as RetryBudget(), got 3"),
        *functions(retry, "retry_after"),
        *functions(retry, "on_retry"),
        (retry, {"retry_exhausted": None}, TypeError, "retry_exhausted must be True or False, got None"),
        (retry, {"retry_exhausted": "no"}, TypeError, "retry_exhausted must be True or False, got 'no'"),
        (retry, {"rng": 3}, TypeError, "rng must have random() and uniform(), got 3"),
        (retry, {"instruments": [3]}, TypeError, "instruments must be Instrument objects, got 3"),
        (retry, {"instruments": [None]}, TypeError, "instruments must be Instrument objects, got None"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [row for rows in ROWS.values() for row in rows],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:40],
)
def test_bad_arguments_are_named(
    kind: Callable[..., object], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        kind(**arguments)
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_the_table_has_every_argument(kind: Callable[..., object]) -> None:
    named = {name for _, arguments, _, _ in ROWS[kind] for name in arguments}
    assert named >= set(inspect.signature(kind).parameters)


def test_on_has_no_default() -> None:
    with pytest.raises(TypeError, match="'on'"):
        Retry()  # type: ignore[call-arg]


def test_the_edges_are_legal() -> None:
    assert retry(attempts=1, attempt_timeout=1e-9, timeout=math.inf).attempts == 1
    assert retry(attempts=3.0).attempts == 3
    assert FullJitter(base=0, cap=0, factor=1, floor=0).preview(2) == (0, 0)
    assert Constant(0).preview(1) == (0,)
