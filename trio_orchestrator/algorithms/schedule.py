"""Which job is next: FIFO among equals, priorities, limits per key, lanes that can be shut.

A pure data structure: it knows no clock, no task and no state of a job. Ranks are numbers that the caller computes (lower
goes first); the rank of an item never changes while it waits, which is how ageing costs nothing: `submitted / ageing -
priority` orders a set of waiting jobs as `priority + waited / ageing` does, at every instant.

Plain items (rank 0, no key, no lane) live in a deque; everything else in heaps of `(rank, seq, item)`. Removal leaves a
tombstone behind, which is skipped when it surfaces and compacted away when tombstones outnumber the living.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar, final

_TOO_FEW_TO_COMPACT = 64


class Place:
    """What an item asks of the order. An item without one has rank 0, no key, weight 1 and the default lane."""

    __slots__ = ("heaped", "holds", "key", "lane", "rank", "weight")

    def __init__(self) -> None:
        self.rank: float = 0.0
        self.key: Hashable = None
        self.lane: Hashable = None
        self.weight = 1
        self.heaped = False
        """Whether the item has been put into a heap: a copy of it left in the deque is then a tombstone."""
        self.holds = False
        """Whether the item holds a unit of its key."""


class Schedulable(Protocol):
    """An item: a unique, rising sequence number (negative once discarded) and, perhaps, a place."""

    seq: int

    @property
    def terms(self) -> Place | None:
        """What the item asks of the order, if anything."""
        ...

    def make_terms(self) -> Place:
        """Return the item's place, made if need be."""
        ...


Item = TypeVar("Item", bound=Schedulable)


@final
class _Lane(Generic[Item]):
    """The items that one gate holds back together."""

    __slots__ = ("announced", "heap", "shut")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, Item]] = []
        self.shut = False
        self.announced: tuple[float, int] | None = None  # this lane's entry in `Schedule._ready`


@final
class _Key(Generic[Item]):
    """How many items of a key are out, and those that wait for one of them, by lane."""

    __slots__ = ("out", "parked")

    def __init__(self) -> None:
        self.out = 0
        self.parked: dict[_Lane[Item], list[tuple[float, int, Item]]] = {}


@final
class Schedule(Generic[Item]):
    """The waiting items, and which of them may go next.

    `fifo` is public for the caller's fast path: while `plain` is true, `fifo.append(item)` is a push and
    `fifo.popleft()` is a pop.
    """

    __slots__ = ("_buried", "_default", "_heaped", "_keys", "_lanes", "_per_key", "_ready", "_rotten", "fifo")

    def __init__(self, per_key: float) -> None:
        self.fifo: deque[Item] = deque()
        self._default: _Lane[Item] = _Lane()
        self._lanes: dict[Hashable, _Lane[Item]] = {}
        self._ready: list[tuple[float, int, _Lane[Item]]] = []  # lanes by their best item; entries may be out of date
        self._keys: dict[Hashable, _Key[Item]] = {}
        self._per_key = per_key
        self._buried = 0  # tombstones in the deque
        self._heaped = 0  # entries in all heaps, parked ones included
        self._rotten = 0  # tombstones among them

    def __len__(self) -> int:
        return len(self.fifo) - self._buried + self._heaped - self._rotten

    @property
    def plain(self) -> bool:
        """Whether the deque alone holds everything, without tombstones, and may be popped."""
        return not (self._heaped or self._buried or self._default.shut)

    def __iter__(self) -> Iterator[Item]:
        """Yield what waits, in no particular order."""
        for item in self.fifo:
            if not self._is_tombstone(item):
                yield item
        for heap in self._heaps():
            for _, seq, item in heap:
                if item.seq == seq:
                    yield item

    # ---------------------------------------------------------------------------------------------- changes

    def push(self, item: Item) -> None:
        """Add an item behind its equals."""
        if item.terms is None or not self._is_special(item.terms):
            self.fifo.append(item)
        else:
            self._insert(item, item.terms)

    def restore(self, item: Item) -> None:
        """Put a popped item back to its original place: before all equals that came later.

        Costs least if several items are restored from the last to the first.
        """
        terms = item.terms
        if terms is None or not self._is_special(terms):
            self._head(self._default)  # sweep
            if not self.fifo or item.seq < self.fifo[0].seq:
                self.fifo.appendleft(item)
                return
        self._insert(item, item.make_terms())

    def discard(self, item: Item) -> None:
        """Remove a waiting item for ever. Its `seq` becomes negative."""
        if item.terms is None or not item.terms.heaped:
            self._buried += 1
        else:
            self._rotten += 1
        item.seq = ~item.seq
        self._promote_after(item)
        self._compact()

    def reprioritise(self, item: Item, terms: Place, rank: float, seq: int) -> None:
        """Move a waiting item to the end of another rank; `seq` is a new, higher sequence number."""
        if terms.heaped:
            self._rotten += 1
        else:
            self._buried += 1
        terms.rank = rank
        item.seq = seq
        self._insert(item, terms)
        self._promote_after(item)
        self._compact()

    def release(self, item: Item) -> None:
        """Give back the unit that a popped item holds of its key; the next of that key may go."""
        terms = item.terms
        if terms is None or not terms.holds:
            return
        terms.holds = False
        key = self._keys[terms.key]
        key.out -= 1
        self._promote(key)
        if not key.out and not key.parked:
            del self._keys[terms.key]

    def shut(self, lane: Hashable) -> None:
        """Hold the items of a lane back (None is the default lane)."""
        self._lane(lane).shut = True

    def open(self, lane: Hashable) -> None:
        """Let the items of a lane go again."""
        opened = self._lane(lane)
        opened.shut = False
        self._announce(opened)

    def forget(self, lane: Hashable) -> None:
        """Drop what is known of a lane that has no items left, out or waiting."""
        self._rotten -= len(self._lane(lane).heap)
        self._heaped -= len(self._lane(lane).heap)
        self._lanes[lane].heap.clear()
        self._lanes[lane].shut = True
        del self._lanes[lane]

    def clear(self) -> list[Item]:
        """Remove everything and return it, in the order of submission. Units that popped items hold stay held."""
        items = sorted(self, key=lambda item: item.seq)
        self.fifo.clear()
        self._ready.clear()
        for lane in self._all_lanes():
            lane.heap.clear()
            lane.announced = None
        for key in list(self._keys):
            self._keys[key].parked.clear()
            if not self._keys[key].out:
                del self._keys[key]
        self._buried = self._heaped = self._rotten = 0
        return items

    # -------------------------------------------------------------------------------------------- questions

    def peek(self) -> Item | None:
        """Return the item that `pop` would return, or None if nothing may go."""
        while True:
            lane = self._best_lane()
            if lane is None:
                return None
            item = self._head(lane)
            assert item is not None
            key = self._full_key(item)
            if key is None:
                return item
            self._park(item, lane, key)

    def pop(self) -> Item | None:
        """Remove and return the next item that may go, or None. It then holds a unit of its key, if it has one."""
        item = self.peek()
        if item is not None:
            self._remove_head(item)
            terms = item.terms
            if terms is not None and terms.key is not None and not terms.holds:
                self._keys.setdefault(terms.key, _Key()).out += 1
                terms.holds = True
        return item

    def pop_behind(self, fits: Callable[[Item], bool]) -> Item | None:
        """Pop the item behind the head, if it fits; the head stays where it is."""
        head = self.peek()
        if head is None:
            return None
        self._remove_head(head)
        second = self.peek()
        if second is not None and fits(second):
            second = self.pop()
        else:
            second = None
        self._insert(head, head.make_terms())
        return second

    def head(self) -> Item | None:
        """Return the best item of the default lane, whether or not it may go."""
        return self._head(self._default)

    # ------------------------------------------------------------------------------------------------ lanes

    def _lane(self, name: Hashable) -> _Lane[Item]:
        if name is None:
            return self._default
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane()
        return lane

    def _all_lanes(self) -> list[_Lane[Item]]:
        return [self._default, *self._lanes.values()]

    def _heaps(self) -> Iterator[list[tuple[float, int, Item]]]:
        for lane in self._all_lanes():
            yield lane.heap
        for key in self._keys.values():
            yield from key.parked.values()

    def _best_lane(self) -> _Lane[Item] | None:
        default = None if self._default.shut else self._head(self._default)
        other = self._best_named_lane()
        if other is None:
            return self._default if default is not None else None
        if default is None:
            return other
        rank = default.terms.rank if default.terms is not None else 0.0
        return self._default if (rank, default.seq) < other.heap[0][:2] else other

    def _best_named_lane(self) -> _Lane[Item] | None:
        ready = self._ready
        while ready:
            rank, seq, lane = ready[0]
            head = None if lane.shut else self._head(lane)
            if head is not None and lane.announced == (rank, seq) == lane.heap[0][:2]:
                return lane
            heappop(ready)
            if lane.announced == (rank, seq):
                lane.announced = None
                self._announce(lane)
        return None

    def _announce(self, lane: _Lane[Item]) -> None:
        """Keep an entry in `_ready` that is at least as good as the lane's best item."""
        if lane is self._default or lane.shut or self._head(lane) is None:
            return
        best = lane.heap[0][:2]
        if lane.announced is None or best < lane.announced:
            lane.announced = best
            heappush(self._ready, (*best, lane))

    def _head(self, lane: _Lane[Item]) -> Item | None:
        """Return the best item of a lane, having swept the tombstones before it."""
        heap = lane.heap
        while heap and heap[0][2].seq != heap[0][1]:
            heappop(heap)
            self._heaped -= 1
            self._rotten -= 1
        if lane is not self._default:
            return heap[0][2] if heap else None
        fifo = self.fifo
        while self._buried and fifo and self._is_tombstone(fifo[0]):
            fifo.popleft()
            self._buried -= 1
        if not heap:
            return fifo[0] if fifo else None
        return fifo[0] if fifo and (0.0, fifo[0].seq) < heap[0][:2] else heap[0][2]

    def _remove_head(self, item: Item) -> None:
        terms = item.terms
        if terms is None or not terms.heaped:
            self.fifo.popleft()
        else:
            heappop(self._lane(terms.lane).heap)
            self._heaped -= 1

    def _insert(self, item: Item, terms: Place) -> None:
        terms.heaped = True
        lane = self._lane(terms.lane)
        heappush(lane.heap, (terms.rank, item.seq, item))
        self._heaped += 1
        self._announce(lane)

    # ------------------------------------------------------------------------------------------------- keys

    def _full_key(self, item: Item) -> _Key[Item] | None:
        """Return the key that keeps the item from going, or None."""
        terms = item.terms
        if terms is None or terms.key is None or terms.holds:
            return None
        key = self._keys.get(terms.key)
        return key if key is not None and key.out >= self._per_key else None

    def _park(self, item: Item, lane: _Lane[Item], key: _Key[Item]) -> None:
        self._remove_head(item)
        terms = item.make_terms()
        terms.heaped = True
        heappush(key.parked.setdefault(lane, []), (terms.rank, item.seq, item))
        self._heaped += 1

    def _promote(self, key: _Key[Item]) -> None:
        """Let the best parked item of each lane compete again: a unit is free, or the best one is gone."""
        for lane, parked in list(key.parked.items()):
            while parked:
                entry = heappop(parked)
                if entry[2].seq == entry[1]:
                    heappush(lane.heap, entry)
                    self._announce(lane)
                    break
                self._heaped -= 1
                self._rotten -= 1
            if not parked:
                del key.parked[lane]

    def _promote_after(self, item: Item) -> None:
        """An item that competed for a free unit may have left: its successor must not be forgotten."""
        terms = item.terms
        if terms is not None and terms.key is not None and (key := self._keys.get(terms.key)) is not None:
            self._promote(key)
            if not key.out and not key.parked:
                del self._keys[terms.key]

    # ------------------------------------------------------------------------------------------- tombstones

    @staticmethod
    def _is_special(terms: Place) -> bool:
        return terms.rank != 0.0 or terms.key is not None or terms.lane is not None or terms.heaped

    @staticmethod
    def _is_tombstone(item: Item) -> bool:
        return item.seq < 0 or (item.terms is not None and item.terms.heaped)

    def _compact(self) -> None:
        if self._buried > _TOO_FEW_TO_COMPACT and self._buried * 2 > len(self.fifo):
            living = [item for item in self.fifo if not self._is_tombstone(item)]
            self.fifo.clear()
            self.fifo.extend(living)
            self._buried = 0
        if self._rotten > _TOO_FEW_TO_COMPACT and self._rotten * 2 > self._heaped:
            for heap in self._heaps():
                heap[:] = [entry for entry in heap if entry[2].seq == entry[1]]
                heapify(heap)
            self._heaped -= self._rotten
            self._rotten = 0

