from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.pace import Pace, remaining


def test_the_rate_is_that_of_the_last_window() -> None:
    pace = Pace(window=10)
    assert pace.rate(0, 100) == 0
    assert pace.rate(50, 105) == 10
    assert pace.rate(50, 110) == 5
    assert pace.rate(50, 115) == 0  # the burst has left the window


def test_an_idle_hour_counts() -> None:
    pace = Pace(window=10)
    pace.rate(0, 0)
    assert pace.rate(3600, 3600) == 1
    assert pace.rate(3600, 7200) == 0


def test_the_first_reading_and_a_second_at_the_same_instant_have_no_rate() -> None:
    pace = Pace()
    assert [pace.rate(5, 1), pace.rate(9, 1)] == [0, 0]


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=500))
def test_a_constant_rate_is_told_and_memory_is_bounded(pauses: list[int]) -> None:
    pace = Pace(window=10)
    now = 0.0
    for milliseconds in pauses:
        now += milliseconds / 1000
        rate = pace.rate(7 * now, now)
        assert rate == 0 or rate == pytest.approx(7, rel=1e-3)
        assert len(pace._samples) <= 102


@pytest.mark.parametrize("window", [0, -1, math.inf, math.nan])
def test_a_bad_window(window: float) -> None:
    with pytest.raises(ValueError, match=f"^window must be finite and > 0, got {window}$"):
        Pace(window)


def test_remaining() -> None:
    assert remaining(10, 4) == 2.5
    assert remaining(0, 0) == 0
    assert remaining(-3, 5) == 0
    assert remaining(1, 0) == math.inf
    assert remaining(math.inf, 3) == math.inf
