"""The last day of the four hundred years after which the calendar repeats itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trio_orchestrator.algorithms.period import Period, period_at


@pytest.mark.parametrize("year", [1600, 2000, 2400])
def test_the_29th_of_february_that_ends_an_era_is_in_its_month(year: int) -> None:
    start, end = (int(datetime(year, month, 1, tzinfo=UTC).timestamp()) for month in (2, 3))
    assert period_at(end - 1, "month") == Period(start, end)
    assert period_at(end, "month").start == end
