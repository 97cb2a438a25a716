"""How many of the latest calls went badly: over a number of calls, or over a time. O(1) a call, in fixed memory."""

from __future__ import annotations

from collections import deque
from typing import final

_BUCKETS = 10
_LEAST = 1e-6  # seconds: Trio's clock resolves no less


@final
class CountWindow:
    """The last `size` calls."""

    __slots__ = ("_latest", "bad", "size")

    def __init__(self, size: int) -> None:
        self.size: int = size
        self._latest: deque[bool] = deque(maxlen=size)
        self.bad: int = 0
        """How many of them went badly."""

    @property
    def calls(self) -> int:
        """How many calls it holds."""
        return len(self._latest)

    def add(self, now: float, bad: bool) -> None:
        """Count a call."""
        latest = self._latest
        if len(latest) == self.size:
            self.bad -= latest[0]
        latest.append(bad)
        self.bad += bad

    def expire(self, now: float) -> None:
        """Forget what is too old: nothing is, since calls count and not time."""


@final
class TimeWindow:
    """The calls of the last `seconds`, in ten buckets: each call is forgotten when it is 9/10 to 10/10 of that old.

    Expires whenever it is read or written, so that an idle hour leaves nothing. A time before that of the latest bucket
    is by the clock of another run, and everything is forgotten.
    """

    __slots__ = ("_before", "_fresh", "_fresh_bad", "_ring", "_slot", "_width", "bad")

    def __init__(self, seconds: float) -> None:
        self._width: float = max(seconds, _LEAST) / _BUCKETS
        self._slot = 0
        """The number of the present bucket; its counts are kept apart, since they alone change."""
        self._fresh = self._fresh_bad = 0
        self._before = 0
        self._ring: deque[tuple[int, int, int]] = deque()
        """The other buckets that are not empty: (slot, calls, bad), oldest first."""
        self.bad: int = 0
        """How many calls went badly, when it last expired and since."""

    @property
    def calls(self) -> int:
        """How many calls it held when it last expired, and since."""
        return self._before + self._fresh

    def add(self, now: float, bad: bool) -> None:
        """Count a call."""
        slot = int(now / self._width)
        if slot != self._slot:
            self._turn_to(slot)
        self._fresh += 1
        if bad:
            self._fresh_bad += 1
            self.bad += 1

    def expire(self, now: float) -> None:
        """Forget what is too old at `now`."""
        slot = int(now / self._width)
        if slot != self._slot:
            self._turn_to(slot)

    def _turn_to(self, slot: int) -> None:
        if slot < self._slot:  # counted in another run
            self._ring.clear()
            self._before = self._fresh = self._fresh_bad = self.bad = 0
        if self._fresh:
            self._ring.append((self._slot, self._fresh, self._fresh_bad))
            self._before += self._fresh
            self._fresh = self._fresh_bad = 0
        while self._ring and self._ring[0][0] <= slot - _BUCKETS:
            _, calls, bad = self._ring.popleft()
            self._before -= calls
            self.bad -= bad
        self._slot = slot
