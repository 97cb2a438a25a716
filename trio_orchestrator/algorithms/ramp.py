"""How many may go while something reopens slowly, so that a long pause does not end in a herd."""

from __future__ import annotations

import math
from typing import final

_ROUNDING = 1e-9  # of a step: a step that is due by the clock must not be missed by a float


@final
class Ramp:
    """A limit that grows linearly from 1 to `limit` within `seconds`, counted from `start`.

    `allowed(now) = max(1, floor(limit * (now - start) / seconds))`, and `math.inf` once the time is over.
    """

    __slots__ = ("seconds", "start")

    def __init__(self, start: float, seconds: float) -> None:
        self.start: float = start
        self.seconds: float = seconds

    def allowed(self, limit: float, now: float) -> float:
        """Return how many may be out at `now`."""
        elapsed = now - self.start
        if elapsed >= self.seconds:
            return math.inf
        return max(1, math.floor(min(limit, 1e15) * elapsed / self.seconds + _ROUNDING))

    def next_step(self, limit: float, now: float) -> float:
        """Return when one more may go: later than `now` in every case, at the latest when the ramp is over."""
        end = self.start + self.seconds
        if not 0 < limit < math.inf:
            return max(end, math.nextafter(now, math.inf))
        step = self.start + (self.allowed(limit, now) + 1) * self.seconds / limit
        return max(min(step, end), math.nextafter(now, math.inf))
