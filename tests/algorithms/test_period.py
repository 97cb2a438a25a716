"""Calendar periods, against the calendar of the standard library; and which one it is under clocks that jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.period import PERIODS, Calendar, Per, Period, period_at

DAY = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
walls = st.floats(-5e10, 2e11)  # the years 385 to 8307
pers = st.sampled_from(PERIODS)


def by_the_book(wall: float, per: Per) -> Period:
    moment = (EPOCH + timedelta(seconds=int(wall // 1))).replace(minute=0, second=0)
    start = moment if per == "hour" else moment.replace(hour=0)
    length = timedelta(hours=1) if per == "hour" else timedelta(days=1)
    end = start + length
    if per == "month":
        start = start.replace(day=1)
        end = (start + timedelta(days=31)).replace(day=1)
    return Period(int((start - EPOCH).total_seconds()), int((end - EPOCH).total_seconds()))


@given(wall=walls, per=pers)
def test_periods_are_those_of_the_calendar(wall: float, per: Per) -> None:
    found = period_at(wall, per)
    assert found == by_the_book(wall, per)
    assert found.start <= wall < found.end
    assert period_at(found.start, per) == found
    assert period_at(found.end, per).start == found.end  # no gap, no overlap


@pytest.mark.parametrize(
    ("year", "month", "days"), [(2000, 2, 29), (1900, 2, 28), (2024, 2, 29), (2026, 2, 28), (2026, 12, 31)]
)
def test_months_have_their_lengths(year: int, month: int, days: int) -> None:
    noon = datetime(year, month, 15, 12, tzinfo=UTC).timestamp()
    assert period_at(noon, "month").length == days * DAY


def test_a_period_turns_when_the_wall_clock_reaches_it() -> None:
    calendar = Calendar("day")
    assert calendar.turn(0.0, 10 * DAY + 50_000) is None
    assert not calendar.whole
    assert calendar.left(0.0, 10 * DAY + 50_000) == DAY - 50_000
    assert calendar.turn(1.0, 11 * DAY - 0.001) is None
    assert calendar.turn(2.0, 11 * DAY) == (10 * DAY, 11 * DAY)
    assert calendar.whole
    assert calendar.period == (11 * DAY, 12 * DAY)


def test_a_wall_clock_that_runs_slower_than_ours_does_not_end_a_day_twice() -> None:
    calendar = Calendar("day")
    calendar.turn(0.0, 10 * DAY)
    assert calendar.turn(DAY + 1.0, 11 * DAY - 1) is None
    assert calendar.turn(DAY + 2.0, 11 * DAY) is not None


def test_a_step_back_reopens_nothing_and_a_wrong_date_does_not_last_for_ever() -> None:
    calendar = Calendar("day")
    calendar.turn(0.0, 10 * DAY)
    assert calendar.turn(100.0, 400 * DAY + 5) is not None  # a wrong date
    assert calendar.turn(200.0, 10 * DAY + 200) is None
    assert calendar.left(200.0, 10 * DAY + 200) == DAY - 100
    assert calendar.turn(DAY + 99.0, 11 * DAY + 99) is None
    assert calendar.turn(DAY + 100.0, 11 * DAY + 100) == (400 * DAY, 401 * DAY)
    assert calendar.period == (11 * DAY, 12 * DAY)


def test_a_restored_period_goes_on_or_is_over() -> None:
    calendar = Calendar("hour", 7200.0, whole=True)
    assert calendar.turn(5.0, 7200.0 + 3599) is None
    assert calendar.whole
    assert Calendar("hour", 7200.0).turn(5.0, 7200.0 + 3600) == (7200, 10_800)


@given(per=pers, moves=st.lists(st.tuples(st.floats(0, 4e6), st.floats(-1e7, 1e7)), min_size=1, max_size=40))
def test_however_the_wall_clock_jumps_time_is_left_and_nothing_is_reopened(
    per: Per, moves: list[tuple[float, float]]
) -> None:
    calendar, now, wall, entered_at, latest = Calendar(per), 0.0, 1.7e9, 0.0, -inf
    for pause, step in moves:
        now, wall = now + pause, wall + pause + step
        old = calendar.turn(now, wall)
        period = calendar.period
        assert period is not None
        assert calendar.turn(now, wall) is None  # twice at one time is once
        assert 0 < calendar.left(now, wall) <= period.length
        if old is None:
            assert latest in (-inf, period.start)
        else:
            assert wall >= old.end or now - entered_at >= old.length
            assert period == period_at(wall, per)
        if old is not None or latest == -inf:
            entered_at, latest = now, period.start
