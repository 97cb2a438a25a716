"""Calendar hours, days and months in UTC, as seconds since 1970; which one it is, under a clock that jumps about."""

from __future__ import annotations

from math import floor, inf
from typing import Final, Literal, NamedTuple, TypeAlias, final

Per: TypeAlias = Literal["hour", "day", "month"]

PERIODS: Final[tuple[Per, ...]] = ("hour", "day", "month")
_HOUR: Final = 3600
_DAY: Final = 86_400


@final
class Period(NamedTuple):
    """A stretch of wall-clock time: from `start` up to, but without, `end`; seconds since 1970-01-01 00:00 UTC."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Its length in seconds."""
        return self.end - self.start


def period_at(wall: float, per: Per) -> Period:
    """Return the calendar hour, day or month (UTC) that `wall` falls into. Any finite time, also before 1970."""
    if per == "month":
        year, month = _month_of(floor(wall) // _DAY)
        return Period(_first_day(year, month) * _DAY, _first_day(year + month // 12, month % 12 + 1) * _DAY)
    length = _HOUR if per == "hour" else _DAY
    start = floor(wall) // length * length
    return Period(start, start + length)


def _month_of(day: int) -> tuple[int, int]:
    """Return (year, month) of a day counted from 1970-01-01.

    The proleptic Gregorian calendar with years that begin in March, as in Howard Hinnant's "chrono-compatible low-level
    date algorithms" (2013).
    """
    era, of_era = divmod(day + 719_468, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    from_march = (5 * of_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    return year + era * 400 + (month <= 2), month


def _first_day(year: int, month: int) -> int:
    """Return the first day of a month, counted from 1970-01-01. The inverse of `_month_of`."""
    era, of_era = divmod(year - (month <= 2), 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


@final
class Calendar:
    """Says which period it is, by two clocks: the wall's, which may be set, and one that only goes forward.

    A new period begins when the wall clock reaches it. When the wall clock steps back, the later period goes on, until
    the wall clock is in it again, or until it has lasted its full length by the other clock.

    Args:
        per: How long the periods are.
        start: The wall time of a period that goes on; by default the first look says which one it is.
    """

    __slots__ = ("_began_at", "_per", "period", "whole")

    def __init__(self, per: Per, start: float = -inf, *, whole: bool = False) -> None:
        self._per: Per = per
        self._began_at = inf  # when the period was entered, by the clock that only goes forward
        self.period: Period | None = None if start == -inf else period_at(start, per)
        self.whole: bool = whole
        """Whether the period has been seen from its start on."""

    def turn(self, now: float, wall: float) -> Period | None:
        """Take note of the time. Return the period that is over if a new one has begun."""
        old = self.period
        if old is None:
            self.period = period_at(wall, self._per)
        self._began_at = min(self._began_at, now)
        if old is None or (wall < old.end and (wall >= old.start or now - self._began_at < old.length)):
            return None
        self.period, self._began_at, self.whole = period_at(wall, self._per), now, True
        return old

    def left(self, now: float, wall: float) -> float:
        """Return the seconds until the period ends, after `turn` of the same time: > 0."""
        period = self.period
        assert period is not None
        if wall >= period.start:
            return period.end - wall
        return min(period.end - wall, period.length - (now - self._began_at))
