"""How fast something goes, of late."""

from __future__ import annotations

import math
from collections import deque
from typing import final


@final
class Pace:
    """Tell the rate of a growing count over the last `window` seconds.

    Feed it by reading it: `pace.rate(done, now)`. The first reading has no rate (0). Readings closer together than a
    hundredth of the window are not remembered, so memory is bounded.

    Args:
        window: Seconds over which the rate is taken, finite and > 0.
    """

    __slots__ = ("_samples", "_window")

    def __init__(self, window: float = 10.0) -> None:
        if not 0 < window < math.inf:
            raise ValueError(f"window must be finite and > 0, got {window}")
        self._window = window
        self._samples: deque[tuple[float, float]] = deque()

    def rate(self, done: float, now: float) -> float:
        """Return the rate per second between the oldest reading within the window and now."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= now - self._window:  # the one at the edge stays, as the base
            samples.popleft()
        if not samples or now - samples[-1][0] >= self._window / 100:
            samples.append((now, done))
        at, before = samples[0]
        return (done - before) / (now - at) if now > at else 0.0


def remaining(left: float, rate: float) -> float:
    """Return the seconds that `left` more will take at `rate` a second: 0 if nothing is left, inf if nothing moves."""
    if left <= 0:
        return 0.0
    return left / rate if rate > 0 else math.inf
