"""Every argument of the circuit breaker and its rules, with what each refuses."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

from trio_orchestrator.algorithms.trip import AnyOf, Consecutive, Ratio, SlowRatio
from trio_orchestrator.policies.breaker import CircuitBreaker

Row = tuple[Callable[..., object], dict[str, Any], type[Exception], str]


async def waits(*args: object) -> None: ...


def numbers(
    kind: Callable[..., object], name: str, bound: str, *bad: object, none: bool = False, **others: Any
) -> list[Row]:
    """Return rows for a number: `bad` values, and what is no number; `none` if None has a meaning."""
    rows: list[Row] = [
        (kind, {name: value, **others}, ValueError, f"{name} must be {bound}, got {value!r}") for value in bad
    ]
    no_numbers = ["4", True, [1]] if none else ["4", None, True, [1]]
    rows += [(kind, {name: one, **others}, TypeError, f"{name} must be a number, got {one!r}") for one in no_numbers]
    return rows


def whole(kind: Callable[..., object], name: str, *, none: bool = False, **others: Any) -> list[Row]:
    return [
        *numbers(kind, name, ">= 1", 0, -1, -math.inf, none=none, **others),
        *numbers(kind, name, "a whole number or math.inf", 1.5, math.nan, none=none, **others),
        *numbers(kind, name, "finite", math.inf, none=none, **others),
    ]


def predicates(name: str) -> list[Row]:
    must_be = f"{name} must be an Exception type, a tuple of them or a predicate, got "
    no_async = f"{name} must be a plain function, got the async function {waits!r}"
    return [
        (CircuitBreaker, {name: 3}, TypeError, must_be + "3"),
        (CircuitBreaker, {name: [OSError]}, TypeError, must_be + "[<class 'OSError'>]"),
        (CircuitBreaker, {name: (OSError, 4)}, TypeError, must_be + "4"),
        (CircuitBreaker, {name: KeyboardInterrupt}, TypeError, must_be + "<class 'KeyboardInterrupt'>"),
        (
            CircuitBreaker,
            {name: waits},
            TypeError,
            no_async,
        ),
        (
            CircuitBreaker,
            {name: ExceptionGroup},
            TypeError,
            f"{name} must not name ExceptionGroup: a group matches if all its leaves do",
        ),
    ]


def shares(kind: Callable[..., object]) -> list[Row]:
    return [
        *numbers(kind, "ratio", "> 0", 0, -0.5, math.nan),
        *numbers(kind, "ratio", "<= 1", 1.01, 50, math.inf),
        *whole(kind, "calls", none=True, ratio=0.5),
        *numbers(kind, "seconds", "> 0 and finite", 0, -1, math.inf, math.nan, none=True, ratio=0.5),
        *whole(kind, "minimum", none=True, ratio=0.5),
        (kind, {"ratio": 0.5, "calls": 5, "seconds": 5}, TypeError, "calls must not be given together with seconds"),
        (kind, {"ratio": 0.5, "calls": 5, "minimum": 6}, ValueError, "minimum must be <= calls (5), got 6"),
    ]


class OnlyRandom:
    def random(self) -> float:
        return 0.0


NEEDS_BOTH = "slow_call must be given together with a SlowRatio in trip, and only then"
ROWS: dict[Callable[..., object], list[Row]] = {
    Ratio: shares(Ratio),
    SlowRatio: shares(SlowRatio),
    Consecutive: [
        *numbers(Consecutive, "failures", ">= 1", 0, -1, -math.inf),
        *numbers(Consecutive, "failures", "a whole number or math.inf", 1.5, math.nan),
    ],
    CircuitBreaker: [
        (CircuitBreaker, {"trip": 0.5}, TypeError, "trip must be a Trip rule such as Ratio(0.5), got 0.5"),
        (
            CircuitBreaker,
            {"trip": Consecutive},
            TypeError,
            f"trip must be a Trip rule such as Ratio(0.5), got {Consecutive!r}",
        ),
        *numbers(CircuitBreaker, "cooldown", "> 0 and finite", 0, -1, math.inf, math.nan),
        *whole(CircuitBreaker, "probes"),
        *numbers(CircuitBreaker, "probe_lease", "> 0", 0, -1, math.nan, none=True),
        *numbers(CircuitBreaker, "close_after", "> 0 and finite", 0, -0.5, math.inf, math.nan),
        *numbers(CircuitBreaker, "close_after", "a whole number or math.inf", 1.5),
        *numbers(CircuitBreaker, "slow_call", "> 0", 0, -1, math.nan),
        (CircuitBreaker, {"slow_call": 5}, TypeError, NEEDS_BOTH),
        (CircuitBreaker, {"trip": SlowRatio(0.5)}, TypeError, NEEDS_BOTH),
        (CircuitBreaker, {"trip": Consecutive(3) | SlowRatio(0.5)}, TypeError, NEEDS_BOTH),
        *predicates("on"),
        *predicates("neutral"),
        (CircuitBreaker, {"classify": 3}, TypeError, "classify must be a plain function, got 3"),
        (
            CircuitBreaker,
            {"classify": waits},
            TypeError,
            f"classify must be a plain function, got the async function {waits!r}",
        ),
        *numbers(CircuitBreaker, "ramp", ">= 0 and finite", -1, math.inf, math.nan),
        (CircuitBreaker, {"name": 3}, TypeError, "name must be a str, got 3"),
        (CircuitBreaker, {"name": None}, TypeError, "name must be a str, got None"),
        (CircuitBreaker, {"instruments": [3]}, TypeError, "instruments must be Instrument objects, got 3"),
        (CircuitBreaker, {"rng": 3}, TypeError, "rng must have random() and uniform(), got 3"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"), [row for rows in ROWS.values() for row in rows], ids=repr
)
def test_it_is_refused_in_one_sentence_that_starts_with_the_parameter(
    kind: Callable[..., object], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        kind(**arguments)
    assert type(caught.value) is error
    assert str(caught.value) == message


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_every_argument_has_its_rows(kind: Callable[..., object]) -> None:
    refused = {next(reversed([name for name in row[1] if name != "ratio"] or ["ratio"])) for row in ROWS[kind]}
    assert refused == set(inspect.signature(kind).parameters)


def test_a_half_random_source_is_refused() -> None:
    half = OnlyRandom()
    with pytest.raises(TypeError, match="rng must have random"):
        CircuitBreaker(rng=half)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ((), "rules must not be empty"),
        ((Ratio(0.5), 3), "rules must be Trip rules such as Ratio(0.5), got 3"),
        ((None,), "rules must be Trip rules such as Ratio(0.5), got None"),
    ],
)
def test_any_of_takes_rules(rules: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        AnyOf(*rules)
    assert str(caught.value) == message


def test_a_rule_combines_with_rules_only() -> None:
    with pytest.raises(TypeError):
        Ratio(0.5) | 3  # type: ignore[operator]


GOOD: dict[str, Any] = {"state": "open", "seconds": 5.0, "openings": 1}
NO_STATE = "state must be what export() returned, got "


@pytest.mark.parametrize(
    ("state", "age", "error", "message"),
    [
        (None, 0, ValueError, NO_STATE + "None"),
        ("open", 0, ValueError, NO_STATE + "'open'"),
        ({}, 0, ValueError, NO_STATE + "{}"),
        ({"state": "half-open"}, 0, ValueError, NO_STATE + "{'state': 'half-open'}"),
        ({"state": ["open"]}, 0, ValueError, NO_STATE + "{'state': ['open']}"),
        ({"state": "open"}, 0, TypeError, "seconds must be a number, got None"),
        (GOOD | {"seconds": "5"}, 0, TypeError, "seconds must be a number, got '5'"),
        (GOOD | {"seconds": -1}, 0, ValueError, "seconds must be >= 0 and finite, got -1"),
        (GOOD | {"seconds": math.nan}, 0, ValueError, "seconds must be >= 0 and finite, got nan"),
        (GOOD | {"seconds": math.inf}, 0, ValueError, "seconds must be >= 0 and finite, got inf"),
        (GOOD | {"openings": 0}, 0, ValueError, "openings must be >= 1, got 0"),
        (GOOD | {"openings": 1.5}, 0, ValueError, "openings must be a whole number or math.inf, got 1.5"),
        (GOOD | {"openings": math.inf}, 0, ValueError, "openings must be finite, got inf"),
        (GOOD | {"openings": True}, 0, TypeError, "openings must be a number, got True"),
        (GOOD, -1, ValueError, "age must be >= 0 and finite, got -1"),
        (GOOD, math.nan, ValueError, "age must be >= 0 and finite, got nan"),
        (GOOD, math.inf, ValueError, "age must be >= 0 and finite, got inf"),
        (GOOD, None, TypeError, "age must be a number, got None"),
    ],
)
async def test_what_is_no_state_is_not_restored_and_changes_nothing(
    state: Any, age: Any, error: type[Exception], message: str
) -> None:
    breaker = CircuitBreaker()
    with pytest.raises(error) as caught:
        breaker.restore(state, age=age)
    assert str(caught.value) == message
    assert breaker.is_idle
    assert breaker.export() == {"state": "closed"}
