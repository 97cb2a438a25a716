"""What was asked for and what was given over the last seconds: two sums that forget, exact in whole numbers."""

from __future__ import annotations

from collections import deque
from typing import Final, final

SLOTS: Final = 10
"""How many parts a window has: what was booked is forgotten when it is 9/10 to 10/10 of the window old."""


@final
class Entry:
    """What was booked during one part of the window."""

    __slots__ = ("at", "credit", "debit", "lapsed")

    def __init__(self, at: float) -> None:
        self.at: float = at
        self.debit: int = 0
        self.credit: int = 0
        self.lapsed: bool = False
        """Whether it has left the window: what is booked on it changes no sum."""


@final
class Balance:
    """The sums of debits and credits over the last `window` seconds.

    It expires when it is read, and nothing runs in the background: after an idle window it is as a new one. A part of
    the window begins with its first booking and not at a round time, so a booking is forgotten after exactly `window`
    seconds at the latest. Memory is bounded, a booking costs O(1).

    A time before that of the last entry is taken for another run's clock, and everything is forgotten.

    Args:
        window: Seconds, finite and > 0.
    """

    __slots__ = ("_entries", "_width", "_window", "credit", "debit")

    def __init__(self, window: float) -> None:
        self._window = window
        self._width = window / SLOTS
        self._entries: deque[Entry] = deque()
        self.debit: int = 0
        """The sum of the debits, as of the last `expire` or `entry`."""
        self.credit: int = 0
        """The sum of the credits, likewise."""

    def __len__(self) -> int:
        return len(self._entries)

    def expire(self, now: float) -> None:
        """Forget what is too old at `now`."""
        entries = self._entries
        if entries and entries[-1].at > now:
            while entries:
                self._lapse(entries.popleft())
        while entries and now - entries[0].at >= self._window:
            self._lapse(entries.popleft())

    def entry(self, now: float) -> Entry:
        """Return where to book what happens at `now`; keep it to book there what comes of it."""
        self.expire(now)
        entries = self._entries
        if entries and now - entries[-1].at < self._width:
            return entries[-1]
        entries.append(entry := Entry(now))
        return entry

    def book(self, entry: Entry, *, debit: int = 0, credit: int = 0) -> None:
        """Add to an entry, and to the sums unless it has left the window. Negative amounts take back."""
        entry.debit += debit
        entry.credit += credit
        if not entry.lapsed:
            self.debit += debit
            self.credit += credit

    def _lapse(self, entry: Entry) -> None:
        entry.lapsed = True
        self.debit -= entry.debit
        self.credit -= entry.credit
