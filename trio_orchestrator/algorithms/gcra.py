"""GCRA: a smooth rate limit whose whole state is one float."""

from __future__ import annotations

import math
from typing import NamedTuple, final

from trio_orchestrator.algorithms.argument import above, at_least

_ROUNDING = 1e-9  # of one interval: what is due by the clock must not be missed by a float
_LATENESS = 0.02  # of `per`: how far a late wake-up may be made good


@final
class Reply(NamedTuple):
    """What a rate limit answers to "may I take so much?": the five numbers of redis-cell's `CL.THROTTLE`."""

    allowed: bool
    """Whether it may be taken now."""
    limit: float
    """The most that can be taken at once."""
    remaining: float
    """How much may be taken at once now; a whole number >= 0, or `math.inf`."""
    retry_after: float
    """Seconds until it may be taken; 0 if it may be taken now."""
    reset_after: float
    """Seconds until the limit is as good as new, if nothing is taken."""


@final
class Gcra:
    """The generic cell rate algorithm: `limit` units in `per` seconds, evenly spaced, and at most `burst` at once.

    The state is the *theoretical arrival time*, `tat`: when the next unit would come if all of them came evenly. With
    `T = per / limit`, taking `cost` is allowed from `tat - (burst - cost) * T` on, and moves `tat` to
    `max(tat, now) + cost * T`. In every window of length `per`, at any phase, less than `limit + burst` units are taken
    (ITU-T I.371, annex A; as a limit of requests: brandur/redis-cell).

    If the clock has gone back by more than any state can account for, it is the clock of another run, and the state
    counts as new.

    Args:
        limit: Units in `per` seconds, > 0; `math.inf` for no limit.
        per: Seconds, finite and > 0.
        burst: Units that may be taken at once after a rest, finite and >= 1. 1 is smooth.

    Raises:
        TypeError: An argument is not a number.
        ValueError: One is out of its range, or NaN.
    """

    __slots__ = ("burst", "interval", "lateness", "limit", "per", "reach", "tat")

    def __init__(self, limit: float, per: float = 1.0, burst: float = 1.0) -> None:
        self.tat: float = -math.inf
        """The theoretical arrival time; the whole state."""
        self._configure(limit, per, burst)

    def _configure(self, limit: float, per: float, burst: float) -> None:
        limit = above("limit", limit, 0)
        per = above("per", per, 0, finite=True)
        burst = at_least("burst", burst, 1, finite=True)
        self.limit: float = limit
        self.per: float = per
        self.burst: float = burst
        self.interval: float = per / limit
        """Seconds from one unit to the next."""
        self.reach: float = (burst - 1 + _ROUNDING) * self.interval
        """One unit may be taken while `tat - now <= reach`."""
        self.lateness: float = _LATENESS * per
        """How far behind its time something may be taken and still count from that time, in seconds."""

    def __repr__(self) -> str:
        return f"Gcra({self.limit:g}, per={self.per:g}, burst={self.burst:g})"

    @property
    def capacity(self) -> float:
        """The most that can be taken at once."""
        return self.burst

    def copy(self) -> Gcra:
        """Return a rule of its own with the same configuration and state."""
        twin = Gcra(self.limit, self.per, self.burst)
        twin.tat = self.tat
        return twin

    def is_idle(self, now: float) -> bool:
        """Return whether the state is as good as that of a new one."""
        return self._debt(now) <= _ROUNDING * self.interval

    def earliest(self, now: float, cost: float = 1.0) -> float:
        """Return from when on `cost` may be taken: `now` or earlier if it may be taken now."""
        if self.tat - now > (self.burst + 1) * self.interval:
            self.tat = -math.inf  # taken in another run
        at = self.tat - (self.burst - cost) * self.interval
        return min(at, now) if at - now <= _ROUNDING * self.interval else at

    def take(self, at: float, now: float, cost: float = 1.0) -> float:
        """Take `cost`, which was due at `at` and is taken `now`; return what `refund` wants to know.

        It counts from `at`, so that a late wake-up (a timer is late by a millisecond) does not slow down what follows;
        but from 2 % of `per` ago at the most, so that after a long stall no crowd makes up for all of it.
        """
        self.tat = max(self.tat, at, now - self.lateness) + cost * self.interval
        return self.tat

    def refund(self, token: float, now: float, cost: float = 1.0) -> None:
        """Give back what was taken and not used. What has become void by the passing of time is not given back."""
        if now <= token:  # nobody can have begun afresh since: the units are still part of what is ahead
            self.tat -= cost * self.interval

    def try_take(self, now: float, cost: float = 1.0) -> float:
        """Take `cost` now and return 0.0, or leave everything as it is and return the seconds to wait."""
        at = self.earliest(now, cost)
        if at > now:
            return at - now
        self.take(now, now, cost)
        return 0.0

    def remaining(self, now: float) -> float:
        """Return how many whole units may be taken at once now."""
        if not self.interval:
            return math.inf
        return float(max(0, math.floor(self.burst - self._debt(now) / self.interval + _ROUNDING)))

    def reset_after(self, now: float) -> float:
        """Return the seconds until the state is as good as new."""
        return self._debt(now)

    def reply(self, now: float, cost: float = 1.0) -> Reply:
        """Return what `try_take` would find, as five numbers, and take nothing."""
        wait = max(0.0, self.earliest(now, cost) - now)
        return Reply(not wait, self.burst, self.remaining(now), wait, self._debt(now))

    def change(self, now: float, limit: float, per: float, burst: float) -> None:
        """Change the configuration and keep the count of units: what was taken weighs the same number of units.

        Raises:
            TypeError: An argument is not a number.
            ValueError: One is out of its range, or NaN; nothing has changed.
        """
        taken = self._debt(now) / self.interval if self.interval else 0.0
        self._configure(limit, per, burst)
        self.tat = now + min(taken, self.burst) * self.interval if taken else -math.inf

    def _debt(self, now: float) -> float:
        """Return how many seconds of units are taken in advance."""
        self.earliest(now)
        return max(0.0, self.tat - now)
