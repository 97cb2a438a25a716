"""What constructors refuse: one lower-case sentence that starts with the parameter."""

from __future__ import annotations

import math
from inspect import iscoroutinefunction


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return value


def at_least(name: str, value: object, least: float, *, finite: bool = False) -> float:
    """Return `value` as a float, or raise: it must be a number >= `least`, and finite if asked. NaN never passes."""
    number = _number(name, value)
    if not number >= least or (finite and number == math.inf):
        raise ValueError(f"{name} must be >= {least:g}{' and finite' if finite else ''}, got {value!r}")
    return float(number)


def above(name: str, value: object, bound: float, *, finite: bool = False) -> float:
    """Return `value` as a float, or raise: it must be a number > `bound`, and finite if asked. NaN never passes."""
    number = _number(name, value)
    if not number > bound or (finite and number == math.inf):
        raise ValueError(f"{name} must be > {bound:g}{' and finite' if finite else ''}, got {value!r}")
    return float(number)


def finite(name: str, value: object) -> float:
    """Return `value` as a float, or raise: it must be a finite number."""
    number = _number(name, value)
    if not -math.inf < number < math.inf:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(number)


def count(name: str, value: object, least: int) -> float:
    """Return `value`, or raise: it must be a whole number >= `least`, or `math.inf`."""
    number = _number(name, value)
    if number < least:
        raise ValueError(f"{name} must be >= {least}, got {value!r}")
    if number != math.inf and number != number // 1:
        raise ValueError(f"{name} must be a whole number or math.inf, got {value!r}")
    return number if number == math.inf else int(number)


def random_source(name: str, value: object) -> None:
    """Raise unless `value` is None, or draws as a `random.Random` does."""
    if value is not None and not (hasattr(value, "random") and hasattr(value, "uniform")):
        raise TypeError(f"{name} must have random() and uniform(), got {value!r}")


def plain_function(name: str, value: object) -> None:
    """Raise unless `value` can be called without `await`."""
    if not callable(value):
        raise TypeError(f"{name} must be a plain function, got {value!r}")
    if iscoroutinefunction(value):
        raise TypeError(f"{name} must be a plain function, got the async function {value!r}")
