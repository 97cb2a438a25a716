"""The parts of a schedule: places, lanes and keys."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar, final

_MOST_LEVELS = 32  # ranks of a lane that have a deque of their own


class Place:
    """What an item asks of the order. An item without one has rank 0, no key, weight 1 and the default lane."""

    __slots__ = ("heaped", "holds", "key", "lane", "rank", "weight")

    def __init__(self) -> None:
        self.rank: float = 0.0
        self.key: Hashable = None
        self.lane: Hashable = None
        self.weight: int = 1
        self.heaped: bool = False
        """Whether the item has been put into a heap: a copy of it left in the deque is then a tombstone."""
        self.holds: bool = False
        """Whether the item holds a unit of its key."""


class Schedulable(Protocol):
    """An item: a unique, rising sequence number (negative once discarded) and, perhaps, a place."""

    seq: int

    @property
    def _terms(self) -> Place | None:
        """What the item asks of the order, if anything."""
        ...

    def _make_terms(self) -> Place:
        """Return the item's place, made if need be."""
        ...


Item = TypeVar("Item", bound=Schedulable)


@final
class Lane(Generic[Item]):
    """The items that one gate holds back together."""

    __slots__ = ("announced", "heap", "levels", "ranks", "shut")

    def __init__(self) -> None:
        self.levels: dict[float, deque[Item]] = {}  # none of them empty
        self.ranks: list[float] = []  # of `levels`, ascending
        self.heap: list[tuple[float, int, Item]] = []
        self.shut: bool = False
        self.announced: tuple[float, int] | None = None  # this lane's entry in `Schedule._ready`

    def level(self, rank: float) -> deque[Item] | None:
        """Return the deque of a rank, made if need be; None if there are too many."""
        level = self.levels.get(rank)
        if level is None and len(self.levels) < _MOST_LEVELS:
            level = self.levels[rank] = deque()
            insort(self.ranks, rank)
        return level

    def drop_level(self, rank: float) -> None:
        """Forget a rank whose deque is empty."""
        del self.levels[rank]
        self.ranks.remove(rank)


@final
class Key(Generic[Item]):
    """How many items of a key are out, and those that wait for one of them, by lane."""

    __slots__ = ("out", "parked")

    def __init__(self) -> None:
        self.out: int = 0
        self.parked: dict[Lane[Item], list[tuple[float, int, Item]]] = {}


def order_of(item: Schedulable) -> tuple[float, int]:
    """Return what items of one lane are sorted by."""
    terms = item._terms
    return (0.0 if terms is None else terms.rank, item.seq)
