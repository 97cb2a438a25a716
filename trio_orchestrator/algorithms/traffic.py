"""What passes in a time window: calls, failures, retries, and the pauses before the retries."""

from __future__ import annotations

from collections import deque
from math import floor
from typing import Final, NamedTuple, final

from trio_orchestrator.algorithms.usual import Usual

_BUCKETS: Final = 30
_PAUSES: Final = 64  # as many are remembered, the latest ones
_CALLS, _FAILURES, _RETRIES = range(3)


@final
class Counts(NamedTuple):
    """What passed in a window."""

    calls: int
    failures: int
    retries: int


@final
class Traffic:
    """Counts over the last `window` seconds, in 30 buckets: O(1) a call (amortised), and some 300 numbers in all.

    A bucket leaves as a whole, so the counts cover between 29/30 of the window and all of it: never more. Windows
    expire when they are read: after an idle time of `window` or longer all counts are 0.

    What leaves the window is learned as *usual*, so that what happens now is compared with what was before it, and not
    with itself. Time before the first call is not learned; idle time after it is.

    Args:
        window: Seconds, > 0 and finite.
        usual_over: The time constant of what is usual, in seconds.
        now: The present time, in seconds. Time that goes back stands still.
    """

    __slots__ = ("_bucket", "_buckets", "_first", "_next", "_pauses", "_tick", "_totals", "_width", "usual", "window")

    def __init__(self, window: float, usual_over: float, now: float) -> None:
        self.window: float = window
        self.usual: Usual = Usual(usual_over)
        """Calls a second, as a slow average of what has left the window."""
        self._width = window / _BUCKETS
        self._first = self._tick = floor(now / self._width)
        self._buckets = [[0, 0, 0] for _ in range(_BUCKETS)]
        self._bucket = self._buckets[self._tick % _BUCKETS]  # the present one, until `_next`
        self._next = (self._tick + 1) * self._width
        self._totals = [0, 0, 0]
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_PAUSES)

    def called(self, now: float, number: int = 1) -> None:
        """Count a call, or several."""
        self._count(_CALLS, now, number)

    def failed(self, now: float) -> None:
        """Count a failure."""
        self._count(_FAILURES, now, 1)

    def retried(self, now: float, pause: float) -> None:
        """Count a retry that came so many seconds after the failure that it repeats."""
        self._count(_RETRIES, now, 1)
        self._pauses.append((now, pause))

    def counts(self, now: float) -> Counts:
        """Return what passed in the window that ends now."""
        if now >= self._next:
            self._expire(now)
        return Counts(*self._totals)

    def covered(self, now: float) -> float:
        """Return how many seconds the counts cover: between 29/30 of the window and all of it; less in the first one.

        At least a thirtieth of it, so that the very first calls make no high rate.
        """
        self._expire(now)
        start = max(self._first, self._tick - _BUCKETS + 1) * self._width
        return max(self._width, now - start)

    def pauses(self, now: float) -> list[float]:
        """Return the pauses before the retries in the window, the latest 64 at most, in the order of the retries."""
        while self._pauses and now - self._pauses[0][0] >= self.window:
            self._pauses.popleft()
        return [pause for _, pause in self._pauses]

    def _count(self, which: int, now: float, number: int) -> None:
        if now >= self._next:
            self._expire(now)
        self._bucket[which] += number
        self._totals[which] += number

    def _expire(self, now: float) -> None:
        tick = floor(now / self._width)
        if tick <= self._tick:
            return
        for passed in range(self._tick + 1, min(tick, self._tick + _BUCKETS) + 1):
            self._leave(self._buckets[passed % _BUCKETS], passed - _BUCKETS)
        idle = tick - self._tick - _BUCKETS
        if idle > 0:
            self.usual.learn(0.0, idle * self._width)
        self._tick = tick
        self._bucket = self._buckets[tick % _BUCKETS]
        self._next = (tick + 1) * self._width

    def _leave(self, bucket: list[int], tick: int) -> None:
        if tick >= self._first:
            self.usual.learn(bucket[_CALLS] / self._width, self._width)
        for which in range(3):
            self._totals[which] -= bucket[which]
            bucket[which] = 0
