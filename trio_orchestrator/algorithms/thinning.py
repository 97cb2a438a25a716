"""Say it once, then how often: the rule that keeps an outage from filling a disk with one line."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar, final

K = TypeVar("K", bound=Hashable)


@final
@dataclass(frozen=True, slots=True)
class Repeats(Generic[K]):
    """How often something was held back."""

    key: K
    count: int
    seconds: float
    """From when it was last said, or counted, to its last repeat."""


@final
class _Window:
    __slots__ = ("count", "last_at", "since")

    def __init__(self, since: float, last_at: float) -> None:
        self.since = since
        self.last_at = last_at
        self.count = 0


@final
class Thinning(Generic[K]):
    """Let the first of equal things pass and count the others; every `every` seconds the count is due.

    Nothing runs in the background: a window expires when it is read, so ask `due(now)` before each `offer(key, now)`.
    What has not occurred for `every` seconds is forgotten, and its next occurrence is a first one again. At most
    `capacity` keys are remembered; the one whose window is the oldest makes room, and its count is due at once.

    Args:
        every: Seconds between two reports on one key, > 0; with `math.inf` only `flush()` reports.
        capacity: How many different keys are remembered, >= 1.
    """

    __slots__ = ("_capacity", "_every", "_reports", "_windows")

    def __init__(self, *, every: float = 10.0, capacity: int = 500) -> None:
        if not every > 0:
            raise ValueError(f"every must be > 0, got {every}")
        if capacity < 1:
            raise ValueError(f"capacity must be >= 1, got {capacity}")
        self._every = every
        self._capacity = capacity
        self._windows: OrderedDict[K, _Window] = OrderedDict()  # in the order of `since`
        self._reports: list[Repeats[K]] = []

    def __len__(self) -> int:
        return len(self._windows)

    def offer(self, key: K, now: float) -> bool:
        """Return whether to say `key` now; otherwise it has been counted."""
        window = self._windows.get(key)
        if window is not None and now - window.last_at < self._every:
            window.count += 1
            window.last_at = now
            return False
        if window is not None:
            self._close(key)
        elif len(self._windows) >= self._capacity:
            self._close(next(iter(self._windows)))
        self._windows[key] = _Window(now, now)
        return True

    def due(self, now: float) -> list[Repeats[K]]:
        """Return the counts to report now, each of them once. Amortised O(1) a call."""
        while self._windows:
            key, window = next(iter(self._windows.items()))
            if now - window.since < self._every:
                break
            self._close(key)
            if now - window.last_at < self._every:
                self._windows[key] = _Window(now, window.last_at)
        return self._take_reports()

    def flush(self) -> list[Repeats[K]]:
        """Return every count that was not reported, and forget everything."""
        while self._windows:
            self._close(next(iter(self._windows)))
        return self._take_reports()

    def _close(self, key: K) -> None:
        window = self._windows.pop(key)
        if window.count:
            self._reports.append(Repeats(key, window.count, window.last_at - window.since))

    def _take_reports(self) -> list[Repeats[K]]:
        reports, self._reports = self._reports, []
        return reports
