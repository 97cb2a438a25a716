"""Counts in a window: no more than passed in it, no less than passed in 29/30 of it, and they expire when read."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.traffic import Counts, Traffic

steps = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 2)), max_size=80)


def play(traffic: Traffic, moves: list[tuple[float, int]], now: float = 0.0) -> list[tuple[float, int]]:
    events: list[tuple[float, int]] = []
    for pause, what in moves:
        now += pause
        if what == 0:
            traffic.called(now)
        elif what == 1:
            traffic.failed(now)
        else:
            traffic.retried(now, 0.5)
        events.append((now, what))
    return events


@given(moves=steps, window=st.floats(0.1, 200), later=st.floats(0, 300))
def test_a_count_is_right_up_to_one_step_of_the_window(
    moves: list[tuple[float, int]], window: float, later: float
) -> None:
    traffic = Traffic(window, 3600, 0.0)
    events = play(traffic, moves)
    now = (events[-1][0] if events else 0.0) + later
    found = traffic.counts(now)
    for what in range(3):
        least = sum(each == what and now - at < window * (29 / 30 - 1e-6) for at, each in events)
        most = sum(each == what and now - at < window * (1 + 1e-6) for at, each in events)
        assert least <= found[what] <= most


@given(moves=steps, window=st.floats(0.1, 200))
def test_after_an_idle_window_nothing_is_left(moves: list[tuple[float, int]], window: float) -> None:
    traffic = Traffic(window, 3600, 0.0)
    events = play(traffic, moves)
    now = (events[-1][0] if events else 0.0) + window * (1 + 1e-6)
    assert traffic.counts(now) == Counts(0, 0, 0)
    assert traffic.pauses(now) == []


@given(moves=steps, window=st.floats(0.1, 200), reads=st.lists(st.floats(0, 50), max_size=20))
def test_reading_changes_nothing(moves: list[tuple[float, int]], window: float, reads: list[float]) -> None:
    read, unread = Traffic(window, 3600, 0.0), Traffic(window, 3600, 0.0)
    end = play(unread, moves)[-1][0] if moves else 0.0
    now = 0.0
    for number, (pause, what) in enumerate(moves):
        if number < len(reads):
            read.counts(now + min(pause, reads[number]))
        now += pause
        play(read, [(0.0, what)], now)
    assert read.counts(end) == unread.counts(end)
    assert read.usual.value == pytest.approx(unread.usual.value, rel=1e-6, abs=1e-9)
    assert read.usual.learned == pytest.approx(unread.usual.learned)


@given(rate=st.integers(1, 20), windows=st.integers(2, 6))
def test_a_steady_rate_is_usual(rate: int, windows: int) -> None:
    traffic = Traffic(30.0, 3600, 0.0)
    for second in range(30 * windows):
        traffic.called(second, rate)
    assert traffic.counts(30 * windows - 1).calls == 30 * rate
    assert traffic.usual.value == pytest.approx(rate)
    assert traffic.usual.learned == 30 * (windows - 1)


def test_what_happens_now_is_not_usual_before_it_has_left_the_window() -> None:
    traffic = Traffic(60.0, 3600, 0.0)
    for second in range(600):
        traffic.called(second)
    for second in range(600, 659):
        traffic.called(second, 100)
    assert traffic.counts(658).calls >= 58 * 100
    assert traffic.usual.value == pytest.approx(1)


def test_time_before_the_first_call_is_not_learned_and_idle_time_is() -> None:
    traffic = Traffic(60.0, 1e9, 5000.0)
    traffic.called(5000.0, 60)
    traffic.counts(5600.0)
    assert traffic.usual.learned == pytest.approx(540, abs=4)
    assert traffic.usual.value * traffic.usual.learned == pytest.approx(60)


def test_a_year_of_silence_costs_no_more_than_a_window() -> None:
    traffic = Traffic(0.001, 3600, 0.0)
    traffic.called(0.0)
    assert traffic.counts(3e7) == Counts(0, 0, 0)
    assert traffic.usual.learned == pytest.approx(3e7)


def test_the_latest_64_pauses_are_remembered_as_long_as_the_window() -> None:
    traffic = Traffic(60.0, 3600, 0.0)
    for number in range(100):
        traffic.retried(number / 10, number)
    assert traffic.pauses(9.9) == list(range(36, 100))
    assert traffic.pauses(63.61) == list(range(37, 100))
    assert traffic.counts(9.9).retries == 100


def test_a_clock_that_goes_back_stands_still() -> None:
    traffic = Traffic(60.0, 3600, 100.0)
    traffic.called(100.0)
    traffic.called(0.0)
    assert traffic.counts(50.0).calls == 2


@given(now=st.floats(0, 1e6), age=st.floats(0, 200))
def test_what_is_covered_grows_with_the_first_window(now: float, age: float) -> None:
    traffic = Traffic(60.0, 3600, now)
    covered = traffic.covered(now + age)
    start = max(floor(now / 2), floor((now + age) / 2) - 29) * 2.0
    assert 2.0 <= covered <= 60.0
    assert covered == pytest.approx(max(2.0, now + age - start))
