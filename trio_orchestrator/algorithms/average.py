"""Averages that forget: exponential ones, and the spread around them."""

from __future__ import annotations

import math
from typing import final


@final
class Average:
    """An exponential average over about `window` values, which begins as the plain mean of the first `warmup`.

    Each later value moves it by `2 / (window + 1)` of the distance, so that it is as old, on average, as a plain mean
    over `window` values (Netflix `concurrency-limits`, failsafe-go).

    Args:
        window: Over how many values; at least 1.
        warmup: Of how many values it is the plain mean, before it becomes exponential; at least 1.
    """

    __slots__ = ("_factor", "_warmup", "count", "value")

    def __init__(self, window: int, warmup: int) -> None:
        self._factor = 2 / (window + 1)
        self._warmup = warmup
        self.count: int = 0
        """How many values went into it since it was last reset."""
        self.value: float = 0.0
        """The average; 0.0 before the first value."""

    def add(self, value: float) -> float:
        """Take in a value, and return the average."""
        self.count += 1
        weight = 1 / self.count if self.count <= self._warmup else self._factor
        self.value += weight * (value - self.value)
        return self.value

    def reset(self, value: float) -> None:
        """Forget everything, and begin anew at `value`: what has been learned by other means."""
        self.count = self._warmup
        self.value = value


@final
class Spread:
    """An exponential average and the variance around it, both with the weight `alpha` (0..1) for each new value.

    The incremental form is Finch's ("Incremental calculation of weighted mean and variance", 2009), as in Vector's
    adaptive concurrency. The first value is the mean.
    """

    __slots__ = ("_alpha", "count", "mean", "variance")

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha
        self.count: int = 0
        self.mean: float = 0.0
        self.variance: float = 0.0

    def add(self, value: float) -> None:
        """Take in a value."""
        self.count += 1
        distance = value - self.mean
        step = distance if self.count == 1 else self._alpha * distance
        self.mean += step
        self.variance = 0.0 if self.count == 1 else (1 - self._alpha) * (self.variance + distance * step)

    @property
    def deviation(self) -> float:
        """The square root of the variance."""
        return math.sqrt(self.variance)
