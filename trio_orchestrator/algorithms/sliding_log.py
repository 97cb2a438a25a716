"""A sliding log: a rate limit that is exact in every window."""

from __future__ import annotations

import math
from collections import deque
from typing import final

from trio_orchestrator.algorithms.argument import above, count
from trio_orchestrator.algorithms.gcra import Reply


@final
class SlidingLog:
    """Exactly at most `limit` units in *every* half-open window of length `per`, whatever its phase.

    It remembers when units were taken, those of one instant together, for `per` seconds: O(1) amortised for what is
    taken, O(cost) for what is refused, and memory for as many instants as a window holds (`limit` at most). Units are
    whole. A unit taken at `t` weighs until `t + per`, and no longer at that instant.

    An entry from the future was made by the clock of another run; then the log counts as new.

    Args:
        limit: Whole units in a window, >= 1; `math.inf` for no limit.
        per: The length of a window in seconds, finite and > 0.

    Raises:
        TypeError: An argument is not a number.
        ValueError: One is out of its range, or NaN.
    """

    __slots__ = ("_entries", "_freed", "_total", "limit", "per")

    lateness: float = 0.0
    """What is taken counts from when it is taken."""

    def __init__(self, limit: float, per: float = 1.0) -> None:
        self._entries: deque[tuple[float, float]] = deque()  # (time, units), rising
        self._total = 0.0
        self._freed = -math.inf  # when the last entry expired
        self._configure(limit, per)

    def _configure(self, limit: float, per: float) -> None:
        limit, per = count("limit", limit, 1), above("per", per, 0, finite=True)
        self.limit: float = limit
        self.per: float = per

    def __repr__(self) -> str:
        return f"SlidingLog({self.limit:g}, per={self.per:g})"

    @property
    def capacity(self) -> float:
        """The most that can be taken at once."""
        return self.limit

    def copy(self) -> SlidingLog:
        """Return a rule of its own with the same configuration and state."""
        twin = SlidingLog(self.limit, self.per)
        twin._entries, twin._total, twin._freed = self._entries.copy(), self._total, self._freed
        return twin

    def is_idle(self, now: float) -> bool:
        """Return whether the state is that of a new one."""
        self._expire(now)
        return not self._entries

    def earliest(self, now: float, cost: float = 1) -> float:
        """Return from when on `cost` may be taken: `now` or earlier if it may be taken now."""
        self._expire(now)
        excess = self._total + cost - self.limit
        if excess <= 0:
            return min(self._freed, now)
        for at, units in self._entries:
            excess -= units
            if excess <= 0:
                return at + self.per
        return math.inf

    def take(self, at: float, now: float, cost: float = 1) -> float:
        """Take `cost` now, whenever it was due; return what `refund` wants to know."""
        entries = self._entries
        if entries and entries[-1][0] == now:
            entries[-1] = (now, entries[-1][1] + cost)
        else:
            entries.append((now, cost))
        self._total += cost
        return now

    def refund(self, token: float, now: float, cost: float = 1) -> None:
        """Give back what was taken and not used; what has expired weighs nothing any more."""
        self._expire(now)
        for index in range(len(self._entries) - 1, -1, -1):
            at, units = self._entries[index]
            if at == token and units > cost:
                self._entries[index] = (at, units - cost)
            elif at == token:
                del self._entries[index]
            else:
                continue
            self._total -= cost
            break

    def try_take(self, now: float, cost: float = 1) -> float:
        """Take `cost` now and return 0.0, or leave everything as it is and return the seconds to wait."""
        at = self.earliest(now, cost)
        if at > now:
            return at - now
        self.take(now, now, cost)
        return 0.0

    def remaining(self, now: float) -> float:
        """Return how many units may be taken at once now."""
        self._expire(now)
        return max(0.0, self.limit - self._total)

    def reset_after(self, now: float) -> float:
        """Return the seconds until the last entry expires."""
        self._expire(now)
        return self._entries[-1][0] + self.per - now if self._entries else 0.0

    def reply(self, now: float, cost: float = 1) -> Reply:
        """Return what `try_take` would find, as five numbers, and take nothing."""
        wait = max(0.0, self.earliest(now, cost) - now)
        return Reply(not wait, self.limit, self.remaining(now), wait, self.reset_after(now))

    def change(self, now: float, limit: float, per: float) -> None:
        """Change the configuration. What was taken keeps its time.

        A longer `per` knows only what was taken within the last one; it is exact for windows that begin from then on.

        Raises:
            TypeError: An argument is not a number.
            ValueError: One is out of its range, or NaN; nothing has changed.
        """
        self._expire(now)
        self._configure(limit, per)

    def _expire(self, now: float) -> None:
        entries, per = self._entries, self.per
        if entries and entries[-1][0] > now:  # taken in another run
            entries.clear()
            self._total, self._freed = 0.0, -math.inf
        while entries and (freed := entries[0][0] + per) <= now:
            self._total -= entries.popleft()[1]
            self._freed = freed
