from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.thinning import Repeats, Thinning


def test_the_first_is_said_and_the_others_are_counted() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    assert [thinning.offer("a", t) for t in (0, 1, 9)] == [True, False, False]
    assert thinning.offer("b", 9)
    assert thinning.due(9.9) == []
    assert thinning.due(10) == [Repeats("a", 2, 9)]
    assert thinning.due(10) == []


def test_a_line_that_goes_on_is_counted_every_ten_seconds_and_never_said_again() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    said: list[tuple[float, object]] = []
    for t in range(36):
        said += [(t, each.count) for each in thinning.due(t)]
        if thinning.offer("a", t):
            said.append((t, "first"))
    assert said == [(0, "first"), (10, 9), (20, 10), (30, 10)]
    assert thinning.flush() == [Repeats("a", 6, 5)]


def test_an_idle_hour_makes_it_a_first_one_again() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    assert thinning.offer("a", 0)
    assert not thinning.offer("a", 3)
    assert thinning.due(3600) == [Repeats("a", 1, 3)]
    assert len(thinning) == 0
    assert thinning.offer("a", 3600)


def test_what_was_quiet_for_ten_seconds_is_a_first_one_even_when_its_window_is_young() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    assert thinning.offer("a", 0)
    assert not thinning.offer("a", 9)
    assert thinning.due(15) == [Repeats("a", 1, 9)]  # its window starts anew at 15
    assert thinning.offer("a", 19)


def test_a_full_memory_reports_what_it_forgets() -> None:
    thinning: Thinning[int] = Thinning(every=10, capacity=3)
    for key in (1, 2, 3, 1, 1):
        thinning.offer(key, 0)
    assert thinning.offer(4, 1)
    assert len(thinning) == 3
    assert thinning.due(1) == [Repeats(1, 2, 0)]
    assert thinning.offer(1, 1)


def test_without_an_interval_only_flush_reports() -> None:
    thinning: Thinning[str] = Thinning(every=math.inf)
    assert [thinning.offer("a", t) for t in (0, 1e9)] == [True, False]
    assert thinning.due(2e9) == []
    assert thinning.flush() == [Repeats("a", 1, 1e9)]
    assert thinning.flush() == []


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 5)), max_size=60),
    st.floats(0.1, 20),
    st.integers(1, 4),
)
def test_nothing_is_lost_and_memory_is_bounded(steps: list[tuple[float, int]], every: float, capacity: int) -> None:
    thinning: Thinning[int] = Thinning(every=every, capacity=capacity)
    now, said, counted = 0.0, 0, 0
    for pause, key in steps:
        now += pause
        counted += sum(each.count for each in thinning.due(now))
        said += thinning.offer(key, now)
        assert 1 <= len(thinning) <= capacity
    assert said + counted + sum(each.count for each in thinning.flush()) == len(steps)


@pytest.mark.parametrize(
    ("every", "capacity", "message"),
    [
        (0, 1, "every must be > 0, got 0"),
        (math.nan, 1, "every must be > 0, got nan"),
        (1, 0, "capacity must be >= 1, got 0"),
    ],
)
def test_bad_arguments(every: float, capacity: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        Thinning(every=every, capacity=capacity)
