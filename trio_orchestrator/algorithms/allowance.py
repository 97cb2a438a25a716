"""What a server told about its own limit: wait so long, or so much is left until the reset."""

from __future__ import annotations

import math
from typing import final


@final
class Allowance:
    """Nothing until one time, and no more than so much until another: what `Retry-After` and `RateLimit-*` say.

    It has no limit of its own; until it is told something, it allows everything. What it was told by the clock of
    another run is forgotten.
    """

    __slots__ = ("_held_until", "_left", "_longest", "_reset_at")

    capacity: float = math.inf
    lateness: float = math.inf

    def __init__(self) -> None:
        self._held_until = -math.inf
        self._left = math.inf
        self._reset_at = -math.inf
        self._longest = 0.0  # the longest time it was told: what is further away is not of this run

    @property
    def end(self) -> float:
        """When nothing that it was told is in force any more."""
        return max(self._held_until, self._reset_at)

    def hold(self, now: float, seconds: float) -> None:
        """Allow nothing for so long from now; an earlier word that holds for longer stays."""
        self._forget(now)
        self._longest = max(self._longest, seconds)
        self._held_until = max(self._held_until, now + seconds)

    def observe(self, now: float, remaining: float, reset_after: float) -> None:
        """Allow `remaining` units in the next `reset_after` seconds. The last word counts."""
        self._forget(now)
        self._longest = max(self._longest, reset_after)
        self._left, self._reset_at = remaining, now + reset_after

    def copy(self) -> Allowance:
        """Return an allowance of its own with the same state."""
        twin = Allowance()
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def is_idle(self, now: float) -> bool:
        """Return whether nothing that it was told is still in force."""
        self._forget(now)
        return self.end <= now

    def earliest(self, now: float, cost: float = 1.0) -> float:
        """Return from when on `cost` may be taken: `now` or earlier if it may be taken now."""
        self._forget(now)
        return max(self._held_until, self._reset_at if cost > self._left else -math.inf)

    def take(self, at: float, now: float, cost: float = 1.0) -> float:
        """Take `cost` now; return what `refund` wants to know."""
        self._forget(now)
        if now < self._reset_at:
            self._left -= cost
        return self._reset_at

    def refund(self, token: float, now: float, cost: float = 1.0) -> None:
        """Give back what was taken and not used, unless the server has spoken again since."""
        if token == self._reset_at and now < self._reset_at:
            self._left += cost

    def remaining(self, now: float) -> float:
        """Return how much may be taken at once now."""
        self._forget(now)
        return 0.0 if now < self._held_until else max(0.0, self._left)

    def reset_after(self, now: float) -> float:
        """Return the seconds until nothing that it was told is in force any more."""
        self._forget(now)
        return max(0.0, self.end - now)

    def _forget(self, now: float) -> None:
        """Drop what is over, and what was said in another run."""
        if self.end > now + 2 * self._longest:
            self._held_until = self._reset_at = -math.inf
        if self._reset_at <= now:
            self._left = math.inf
