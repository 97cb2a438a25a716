"""The sketch: quantiles within 5 %, whatever the range, in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.sketch import Quantiles, Sketch

LEAST = 1e-6  # shorter durations count as this one


def sketch_of(durations: list[float]) -> Sketch:
    sketch = Sketch()
    for seconds in durations:
        sketch.add(seconds)
    return sketch


@given(
    durations=st.lists(st.one_of(st.floats(LEAST, 1e9), st.floats(LEAST, 1.0)), min_size=1, max_size=200),
    fraction=st.floats(0, 1),
)
def test_every_quantile_is_right_within_five_percent(durations: list[float], fraction: float) -> None:
    exact = sorted(durations)[max(0, math.ceil(fraction * len(durations)) - 1)]
    assert sketch_of(durations).quantile(fraction) == pytest.approx(exact, rel=0.05)


@given(durations=st.lists(st.floats(0, LEAST), min_size=1))
def test_what_the_clock_cannot_resolve_counts_as_a_microsecond(durations: list[float]) -> None:
    assert sketch_of(durations).quantile(0.5) == pytest.approx(LEAST, rel=0.05)


@given(durations=st.lists(st.floats(0, 1e4), min_size=1), fractions=st.lists(st.floats(0, 1), min_size=2))
def test_quantiles_rise(durations: list[float], fractions: list[float]) -> None:
    sketch = sketch_of(durations)
    quantiles = [sketch.quantile(fraction) for fraction in sorted(fractions)]
    assert quantiles == sorted(quantiles)


def test_an_empty_sketch_says_zero() -> None:
    assert Sketch().quantiles(16) == Quantiles(0.0, 0.0, 0.0, 0, 16)


def test_the_usual_three() -> None:
    found = sketch_of([float(n) for n in range(1, 101)]).quantiles(1)
    assert (found.p50, found.p90, found.p99) == pytest.approx((50, 90, 99), rel=0.05)
    assert (found.count, found.sampled) == (100, 1)


def test_ten_decades_take_242_buckets() -> None:
    durations = [LEAST * 10 ** (n / 1000) for n in range(10_000)]
    sketch = sketch_of(durations)
    assert len({sketch.quantile((n + 1) / len(durations)) for n in range(len(durations))}) == 242
