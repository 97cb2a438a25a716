"""What the checks of arguments let pass, what they refuse, and in which words."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from trio_orchestrator.algorithms.argument import above, at_least, count, finite, plain_function, random_source

Check = Callable[[str, object], object]
LEAST = partial(at_least, least=1)
LEAST_FINITE = partial(at_least, least=1, finite=True)
ABOVE = partial(above, bound=1)
ABOVE_FINITE = partial(above, bound=1, finite=True)
COUNT = partial(count, least=2)
NUMBERS = (LEAST, LEAST_FINITE, ABOVE, ABOVE_FINITE, COUNT, finite)


@pytest.mark.parametrize(
    ("check", "values"),
    [
        (LEAST, [1, 1.0, 1.5, math.inf]),
        (LEAST_FINITE, [1, 1.5, 1e308]),
        (ABOVE, [math.nextafter(1, 2), 2, math.inf]),
        (ABOVE_FINITE, [math.nextafter(1, 2), 1e308]),
        (finite, [-1e308, -1, 0, 1e308]),
    ],
)
def test_what_passes_is_returned_as_a_float(check: Check, values: list[float]) -> None:
    for value in values:
        found = check("size", value)
        assert found == value
        assert type(found) is float


@pytest.mark.parametrize("value", [2, 2.0, 3, 10**9])
def test_a_count_is_returned_as_an_int(value: float) -> None:
    found = count("size", value, 2)
    assert found == value
    assert type(found) is int


def test_a_count_may_be_unlimited() -> None:
    assert count("size", math.inf, 2) == math.inf


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        *((LEAST, value, ">= 1") for value in (math.nextafter(1, 0), 0, -math.inf, math.nan)),
        *((LEAST_FINITE, value, ">= 1 and finite") for value in (0, math.inf, math.nan)),
        *((ABOVE, value, "> 1") for value in (1, 0, -math.inf, math.nan)),
        *((ABOVE_FINITE, value, "> 1 and finite") for value in (1, math.inf, math.nan)),
        *((COUNT, value, ">= 2") for value in (1, 1.999, 0, -math.inf)),
        *((COUNT, value, "a whole number or math.inf") for value in (2.5, math.nan)),
        *((finite, value, "finite") for value in (math.inf, -math.inf, math.nan)),
    ],
)
def test_what_is_out_of_bounds_is_a_value_error(check: Check, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=r"^size must be") as caught:
        check("size", value)
    assert str(caught.value) == f"size must be {message}, got {value!r}"


@pytest.mark.parametrize("check", NUMBERS)
@pytest.mark.parametrize("value", [True, False, None, "2", [2], 2j])
def test_what_is_no_number_is_a_type_error(check: Check, value: object) -> None:
    with pytest.raises(TypeError) as caught:
        check("size", value)
    assert str(caught.value) == f"size must be a number, got {value!r}"


class OnlyRandom:
    def random(self) -> float:
        return 0.5


class OnlyUniform:
    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def test_a_random_source_draws_as_a_random_does() -> None:
    random_source("rng", None)
    random_source("rng", Random(1))
    half: object
    for half in (3, OnlyRandom(), OnlyUniform()):
        with pytest.raises(TypeError) as caught:
            random_source("rng", half)
        assert str(caught.value) == f"rng must have random() and uniform(), got {half!r}"


async def waits() -> None: ...


def test_a_plain_function_can_be_called_and_does_not_wait() -> None:
    plain_function("fn", len)
    with pytest.raises(TypeError) as caught:
        plain_function("fn", 3)
    assert str(caught.value) == "fn must be a plain function, got 3"
    with pytest.raises(TypeError) as caught:
        plain_function("fn", waits)
    assert str(caught.value) == f"fn must be a plain function, got the async function {waits!r}"
