"""One limiter, breaker or budget for each key, forgotten when it is idle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, final

from trio_orchestrator.algorithms.argument import count, plain_function


class Idle(Protocol):
    """Something that can tell whether it is as good as new."""

    @property
    def is_idle(self) -> bool:
        """Whether its state equals that of a new one, so that it may be forgotten and made again.

        What an adaptive limit or a hedge has learned of latencies does not count, and is forgotten with it.
        """
        ...


K = TypeVar("K", bound=Hashable)
T = TypeVar("T", bound=Idle)


@final
@dataclass(frozen=True, slots=True)
class PerKeyStatistics:
    """A `PerKey` at one moment."""

    entries: int
    """Those that are remembered."""
    made: int
    """Made so far."""
    forgotten: int
    """Forgotten so far, since they were idle: `made - forgotten == entries`."""


@final
class PerKey(Generic[K, T]):
    """Give each key its own limiter (or breaker, budget, bulkhead), made when the key is first asked for.

    When there are many, those that are idle are forgotten: nothing is lost by it, since one that is made again later is
    in the same state. One that is in use is never forgotten. So memory follows what is in use and not what has ever
    been seen: at most `most_idle` are remembered, or twice as many as were in use at the last look. Looking costs O(1)
    a key made, amortised; a lookup of a known key is that of a `dict`.

    Ask for the entry each time, `await per_key.get(host).acquire()`, and do not keep it: after a pause, one that was
    kept may have been forgotten here, and another made for the key.

    Args:
        make: A plain function from a key to a new entry, such as `lambda host: RateLimiter(10)`. It may raise; then
            nothing is remembered.
        most_idle: How many may be remembered before idle ones are forgotten; a whole number >= 0.

    Raises:
        TypeError: `make` is not a plain function, or `most_idle` not a number.
        ValueError: `most_idle` is out of its range.
    """

    __slots__ = ("_entries", "_forgotten", "_made", "_make", "_most", "_most_idle")

    def __init__(self, make: Callable[[K], T], *, most_idle: float = 1024) -> None:
        plain_function("make", make)
        self._make = make
        self._most_idle = count("most_idle", most_idle, 0)
        self._most = self._most_idle  # with so many, the next new key looks for idle ones
        self._entries: dict[K, T] = {}
        self._made = 0
        self._forgotten = 0

    def __repr__(self) -> str:
        return f"<PerKey: {len(self._entries)} entries>"

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        """Iterate over a copy of the keys that are remembered, oldest first."""
        return iter(list(self._entries))

    def __contains__(self, key: object) -> bool:
        """Return whether there is an entry for the key."""
        return key in self._entries

    def get(self, key: K) -> T:
        """Return the entry of the key; make it if there is none. Sync."""
        entry = self._entries.get(key)
        return self._new(key) if entry is None else entry

    def items(self) -> list[tuple[K, T]]:
        """Return all keys and entries that are remembered, oldest first."""
        return list(self._entries.items())

    def forget_idle(self) -> int:
        """Forget all that are idle now, and return how many that were. Sync; O(entries)."""
        idle = [key for key, entry in self._entries.items() if entry.is_idle]
        for key in idle:
            del self._entries[key]
        self._forgotten += len(idle)
        self._most = max(self._most_idle, 2 * len(self._entries))
        return len(idle)

    def statistics(self) -> PerKeyStatistics:
        """Return the counts at this moment."""
        return PerKeyStatistics(len(self._entries), self._made, self._forgotten)

    def _new(self, key: K) -> T:
        if len(self._entries) >= self._most:
            self.forget_idle()
        entry = self._make(key)
        if (other := self._entries.get(key)) is not None:  # `make` asked for the key itself
            return other
        self._entries[key] = entry
        self._made += 1
        return entry
