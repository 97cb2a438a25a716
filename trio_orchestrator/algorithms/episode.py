"""Episodes: something that is too loud is told once, until it has been quiet for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar, final

K = TypeVar("K", bound=Hashable)

_STARTS: Final = 1.0
LASTS: Final = 0.5
"""What is less loud says nothing."""


@final
class Episode(Generic[K]):
    """A time in which something is loud."""

    __slots__ = ("_calls", "calls", "key", "loud_at", "started_at", "usual")

    def __init__(self, key: K, now: float, usual: float) -> None:
        self.key: K = key
        self.started_at: float = now
        self.loud_at: float = now
        """When it was last seen to be loud."""
        self.calls: int = 1
        """Calls from the one that began it to the last one at which it was loud."""
        self.usual: float = usual
        """What was usual when it began."""
        self._calls = 1

    @property
    def seconds(self) -> float:
        """From its start to the last time it was loud."""
        return self.loud_at - self.started_at

    def called(self) -> None:
        """Count a call."""
        self._calls += 1

    def loud(self, now: float) -> None:
        """Say that it is still loud."""
        self.loud_at, self.calls = now, self._calls


@final
class Episodes(Generic[K]):
    """The episodes that last, by key, at most one each. Hysteresis in height and in time; O(1) a look.

    An episode begins when a loudness (1 is the bound) of 1 or more is seen, and ends when none of 0.5 or more has been
    seen for `calm` seconds, nor is now. Nothing runs in the background: ask `over(now)` before each look.

    Args:
        calm: Seconds, > 0.
    """

    __slots__ = ("_active", "_calm")

    def __init__(self, calm: float) -> None:
        self._calm = calm
        self._active: OrderedDict[K, Episode[K]] = OrderedDict()  # in the order of `loud_at`

    def __len__(self) -> int:
        return len(self._active)

    def keys(self) -> tuple[K, ...]:
        """Return the keys of the episodes that last."""
        return tuple(self._active)

    def of(self, key: K) -> Episode[K] | None:
        """Return the episode of `key`, or None."""
        return self._active.get(key)

    def look(self, key: K, loudness: float, now: float, usual: float = 0.0) -> bool:
        """Take note of how loud `key` is. Return whether an episode begins."""
        episode = self._active.get(key)
        if episode is None:
            if loudness < _STARTS:
                return False
            self._active[key] = Episode(key, now, usual)
            return True
        if loudness >= LASTS:
            episode.loud(now)
            self._active.move_to_end(key)
        return False

    def over(self, now: float, is_loud: Callable[[K], bool]) -> list[Episode[K]]:
        """Take out the episodes that have ended by now, in the order in which they were last seen to be loud.

        `is_loud` is asked about those that nobody has looked at for `calm` seconds, or since the clock went back, which
        is that of another run then: if one is loud still, it lasts.
        """
        ended: list[Episode[K]] = []
        while self._active and not 0 <= now - (first := next(iter(self._active.values()))).loud_at < self._calm:
            if is_loud(first.key):
                first.loud(now)
                self._active.move_to_end(first.key)
            else:
                ended.append(self._active.pop(first.key))
        return ended

    def end(self, key: K) -> Episode[K] | None:
        """Take out the episode of `key`, whether it is loud or not."""
        return self._active.pop(key, None)
