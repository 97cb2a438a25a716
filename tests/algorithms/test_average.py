from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.average import Average, Spread

values = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


def test_the_vector_of_netflix() -> None:
    average = Average(10, 3)
    found = [average.add(value) for value in (1, 2, 3, 4, 10, 10)]
    assert found == pytest.approx([1, 1.5, 2, 2.363636, 3.752066, 4.888054], abs=1e-6)


@given(values=values, warmup=st.integers(1, 60))
def test_while_it_warms_up_it_is_the_plain_mean(values: list[float], warmup: int) -> None:
    average = Average(600, warmup)
    for value in values[:warmup]:
        average.add(value)
    assert average.value == pytest.approx(fmean(values[:warmup]))


@given(values=values, window=st.integers(1, 1000), warmup=st.integers(1, 60))
def test_it_stays_between_the_least_and_the_greatest(values: list[float], window: int, warmup: int) -> None:
    average = Average(window, warmup)
    for value in values:
        average.add(value)
    assert min(values) - 1e-6 <= average.value <= max(values) + 1e-6


def test_after_a_reset_it_goes_on_exponentially_from_there() -> None:
    average = Average(9, 5)
    average.add(100)
    average.reset(10)
    assert average.value == 10
    assert average.add(20) == pytest.approx(12)  # 2 / (9 + 1) of the distance


def test_the_vector_of_vector() -> None:
    spread = Spread(0.4)
    means, variances = [], []
    for value in (0.1, 0.1, 0.2, 0.1, 0.4, 0.1):
        spread.add(value)
        means.append(spread.mean)
        variances.append(spread.variance)
    assert means == pytest.approx([0.1, 0.1, 0.14, 0.124, 0.2344, 0.18064])
    assert variances == pytest.approx([0, 0, 0.0024, 0.001824, 0.019377, 0.015961], abs=1e-6)
    assert spread.deviation == pytest.approx(math.sqrt(spread.variance))


@given(value=st.floats(1e-6, 1e6), times=st.integers(1, 50))
def test_equal_values_have_no_spread(value: float, times: int) -> None:
    spread = Spread(0.4)
    for _ in range(times):
        spread.add(value)
    assert (spread.mean, spread.variance) == (value, 0)


@given(values=values)
def test_a_variance_is_never_negative(values: list[float]) -> None:
    spread = Spread(0.4)
    for value in values:
        spread.add(value)
        assert spread.variance >= 0
