"""Every month of eight centuries, and a wall clock that stands at the start of a period."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

from trio_orchestrator.algorithms.period import Calendar, Period, period_at

DAY = 86_400


def start_of(year: int, month: int) -> int:
    return int(datetime(year, month, 1, tzinfo=UTC).timestamp())


def test_every_month_from_1600_to_2400() -> None:
    months = [start_of(year, month) for year in range(1600, 2402) for month in range(1, 13)]
    for start, end in pairwise(months):
        for wall in (start, start + 14 * DAY, end - 1, end - 0.001):
            assert period_at(wall, "month") == Period(start, end)


def test_a_wall_clock_at_the_start_of_the_period_is_in_it() -> None:
    calendar = Calendar("day")
    calendar.turn(0.0, 10 * DAY)
    assert calendar.turn(DAY + 5.0, 10 * DAY) is None
    assert calendar.left(DAY + 5.0, 10 * DAY) == DAY
