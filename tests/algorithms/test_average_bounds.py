"""Averages of nothing."""

from __future__ import annotations

from trio_orchestrator.algorithms.average import Average, Spread


def test_the_average_of_nothing_is_zero() -> None:
    average = Average(10, 3)
    assert (average.count, average.value) == (0, 0.0)


def test_nothing_has_no_spread() -> None:
    spread = Spread(0.4)
    assert (spread.count, spread.mean, spread.variance, spread.deviation) == (0, 0.0, 0.0, 0.0)
