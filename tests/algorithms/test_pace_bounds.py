"""Which readings are remembered, and over how long if nothing is said."""

from __future__ import annotations

import pytest

from trio_orchestrator.algorithms.pace import Pace, remaining


def test_readings_are_remembered_from_a_hundredth_of_the_window_on() -> None:
    pace = Pace(window=10)
    for now, remembered in ((100.0, 1), (100.0995, 1), (100.125, 2), (100.125, 2), (200.0, 2)):
        pace.rate(0, now)
        assert len(pace._samples) == remembered
    exact = Pace(window=100)
    assert [(exact.rate(n, n), len(exact._samples))[1] for n in range(4)] == [1, 2, 3, 4]


def test_the_window_is_ten_seconds_or_what_was_asked_for() -> None:
    pace = Pace()
    assert [pace.rate(done, now) for done, now in ((0, 0), (100, 5), (100, 10), (100, 15))] == [0, 20, 10, 0]
    quick = Pace(window=0.5)
    assert [quick.rate(done, now) for done, now in ((0, 0), (5, 0.5), (5, 1.0))] == pytest.approx([0, 10, 0])


def test_what_goes_slower_than_one_a_second_takes_its_time() -> None:
    assert remaining(10, 0.5) == 20
    assert remaining(0.5, 1) == 0.5
