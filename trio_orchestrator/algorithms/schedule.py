"""Which job is next: FIFO among equals, priorities, limits per key, lanes that can be shut.

A pure data structure: it knows no clock, no task and no state of a job. Ranks are numbers that the caller computes
(lower goes first); the rank of an item never changes while it waits, which is how ageing costs nothing: `submitted /
ageing - priority` orders a set of waiting jobs as `priority + waited / ageing` does, at every instant.

Plain items (rank 0, no key, no lane) live in a deque, `fifo`. Others live in one deque for each rank while there are
few ranks; what came out of order, or has an odd rank, in heaps of `(rank, seq, item)`. Removal leaves a tombstone
behind, which is skipped when it surfaces and compacted away when tombstones outnumber the living.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, final

from trio_orchestrator.algorithms.lane import Item, Key, Lane, Place, order_of

_TOO_FEW_TO_COMPACT = 64


@final
class Schedule(Generic[Item]):
    """The waiting items, and which of them may go next.

    `fifo` is public for the caller's fast path: while `plain` is true, `fifo.append(item)` is a push and
    `fifo.popleft()` is a pop.
    """

    __slots__ = (
        "_buried",
        "_default",
        "_heaped",
        "_keys",
        "_lanes",
        "_leveled",
        "_per_key",
        "_ready",
        "_rotten",
        "fifo",
    )

    def __init__(self, per_key: float) -> None:
        self.fifo: deque[Item] = deque()
        self._default: Lane[Item] = Lane()
        self._lanes: dict[Hashable, Lane[Item]] = {}
        self._ready: list[tuple[float, int, Lane[Item]]] = []  # lanes by their best item; entries may be out of date
        self._keys: dict[Hashable, Key[Item]] = {}
        self._per_key = per_key
        self._leveled = 0  # entries in the deques of all ranks
        self._buried = 0  # tombstones in them and in `fifo`
        self._heaped = 0  # entries in all heaps, parked ones included
        self._rotten = 0  # tombstones among them

    def __len__(self) -> int:
        return len(self.fifo) + self._leveled - self._buried + self._heaped - self._rotten

    @property
    def aside(self) -> int:
        """How many wait outside the deque; tombstones in other deques are counted."""
        return self._leveled + self._heaped - self._rotten

    @property
    def plain(self) -> bool:
        """Whether the deque alone holds everything, without tombstones, and may be popped."""
        return not (self._heaped or self._leveled or self._buried or self._default.shut)

    def __iter__(self) -> Iterator[Item]:
        """Yield what waits, in no particular order."""
        for level in self._deques():
            for item in level:
                if not self._is_tombstone(item):
                    yield item
        for heap in self._heaps():
            for _, seq, item in heap:
                if item.seq == seq:
                    yield item

    # ---------------------------------------------------------------------------------------------- changes

    def push(self, item: Item) -> None:
        """Add an item behind its equals."""
        terms = item._terms
        if terms is None or self._is_plain(terms):
            self.fifo.append(item)
            return
        lane = self._lane(terms.lane)
        level = None if terms.heaped else lane.level(terms.rank)
        if level is None:
            self._insert(item, terms)
        else:
            level.append(item)
            self._leveled += 1
            self._announce(lane)

    def restore(self, item: Item) -> None:
        """Put a popped item back to its original place: before all equals that came later.

        Costs least if several items are restored from the last to the first.
        """
        terms = item._terms
        if terms is None and not self._buried and (not self.fifo or item.seq < self.fifo[0].seq):
            self.fifo.appendleft(item)  # the usual case
            return
        if terms is None or not terms.heaped:
            lane = self._default if terms is None else self._lane(terms.lane)
            self._head(lane)  # sweep
            plain = terms is None or self._is_plain(terms)
            level = self.fifo if plain or terms is None else lane.level(terms.rank)
            if level is not None and (not level or item.seq < level[0].seq):
                level.appendleft(item)
                self._leveled += not plain
                self._announce(lane)
                return
        self._insert(item, item._make_terms())

    def discard(self, item: Item) -> None:
        """Remove a waiting item for ever. Its `seq` becomes negative."""
        if item._terms is None or not item._terms.heaped:
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
        terms = item._terms
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
        forgotten = self._lanes.pop(lane, None)
        if forgotten is not None:
            buried = sum(map(len, forgotten.levels.values()))
            self._leveled -= buried
            self._buried -= buried
            self._heaped -= len(forgotten.heap)
            self._rotten -= len(forgotten.heap)
            forgotten.__init__()
            forgotten.shut = True

    def clear(self) -> list[Item]:
        """Remove everything and return it, in the order of submission. Units that popped items hold stay held."""
        items = sorted(self, key=lambda item: item.seq)
        self.fifo.clear()
        self._ready.clear()
        for lane in self._all_lanes():
            lane.levels.clear()
            lane.ranks.clear()
            lane.heap.clear()
            lane.announced = None
        for key in list(self._keys):
            self._keys[key].parked.clear()
            if not self._keys[key].out:
                del self._keys[key]
        self._buried = self._leveled = self._heaped = self._rotten = 0
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
        if self._lanes or self._buried or self._rotten or self._default.shut:
            return self._pop_any()
        if not (self._heaped or self._leveled):
            return self.fifo.popleft() if self.fifo else None
        return self._pop_ranked()

    def _pop_any(self) -> Item | None:
        item = self.peek()
        if item is not None:
            self._remove_head(item)
            self._hold_key(item)
        return item

    def _pop_ranked(self) -> Item | None:
        """Pop where there is one open lane, and no tombstone: the same as `_pop_any`, at a fraction of its cost."""
        lane, fifo = self._default, self.fifo
        heap, ranks, levels = lane.heap, lane.ranks, lane.levels
        while True:
            best = (0.0, fifo[0].seq) if fifo else None
            level = levels[ranks[0]] if ranks else None
            if level and (best is None or (ranks[0], level[0].seq) < best):
                best = ranks[0], level[0].seq
            else:
                level = None
            if heap and (best is None or heap[0] < best):
                item = heappop(heap)[2]
                self._heaped -= 1
            elif level:
                item = level.popleft()
                self._leveled -= 1
                if not level:
                    lane.drop_level(ranks[0])
            else:
                return fifo.popleft() if fifo else None
            terms = item._terms
            if terms is None or terms.key is None or terms.holds:
                return item
            key = self._keys.get(terms.key)
            if key is None or key.out < self._per_key:
                self._hold_key(item)
                return item
            self._put_aside(item, terms, lane, key)

    def _hold_key(self, item: Item) -> None:
        terms = item._terms
        if terms is not None and terms.key is not None and not terms.holds:
            key = self._keys.get(terms.key)
            if key is None:
                key = self._keys[terms.key] = Key()
            key.out += 1
            terms.holds = True

    def pop_behind(self, fits: Callable[[Item], bool]) -> Item | None:
        """Pop the item behind the head, if it fits; the head stays where it is."""
        head = self.peek()
        if head is None:
            return None
        held = head._terms is not None and head._terms.holds
        self.pop()  # it keeps a unit of its key meanwhile, or its successor in that key could take the last one
        second = self.peek()
        second = self.pop() if second is not None and fits(second) else None
        if not held:
            self.release(head)
        self._insert(head, head._make_terms())
        return second

    def head(self) -> Item | None:
        """Return the best item of the default lane, whether or not it may go."""
        return self._head(self._default)

    # ------------------------------------------------------------------------------------------------ lanes

    def _lane(self, name: Hashable) -> Lane[Item]:
        if name is None:
            return self._default
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = Lane()
        return lane

    def _all_lanes(self) -> list[Lane[Item]]:
        return [self._default, *self._lanes.values()]

    def _heaps(self) -> Iterator[list[tuple[float, int, Item]]]:
        for lane in self._all_lanes():
            yield lane.heap
        for key in self._keys.values():
            yield from key.parked.values()

    def _deques(self) -> Iterator[deque[Item]]:
        yield self.fifo
        for lane in self._all_lanes():
            yield from lane.levels.values()

    def _best_lane(self) -> Lane[Item] | None:
        default = None if self._default.shut else self._head(self._default)
        other = self._best_named_lane()
        if other is None:
            return self._default if default is not None else None
        if default is None:
            return other
        best = self._head(other)
        return self._default if best is None or order_of(default) < order_of(best) else other

    def _best_named_lane(self) -> Lane[Item] | None:
        ready = self._ready
        while ready:
            rank, seq, lane = ready[0]
            head = None if lane.shut else self._head(lane)
            if head is not None and lane.announced == (rank, seq) == order_of(head):
                return lane
            heappop(ready)
            if lane.announced == (rank, seq):
                lane.announced = None
                self._announce(lane)
        return None

    def _announce(self, lane: Lane[Item]) -> None:
        """Keep an entry in `_ready` that is at least as good as the lane's best item."""
        if lane is self._default or lane.shut:
            return
        head = self._head(lane)
        if head is not None and (lane.announced is None or order_of(head) < lane.announced):
            lane.announced = order_of(head)
            heappush(self._ready, (*lane.announced, lane))

    def _head(self, lane: Lane[Item]) -> Item | None:
        """Return the best item of a lane, having swept the tombstones before it."""
        heads = [self._head_of_heap(lane), self._head_of_levels(lane)]
        if lane is self._default:
            heads.append(self._head_of_fifo())
        return min((head for head in heads if head is not None), key=order_of, default=None)

    def _head_of_heap(self, lane: Lane[Item]) -> Item | None:
        heap = lane.heap
        while heap and heap[0][2].seq != heap[0][1]:
            heappop(heap)
            self._heaped -= 1
            self._rotten -= 1
        return heap[0][2] if heap else None

    def _head_of_levels(self, lane: Lane[Item]) -> Item | None:
        while lane.ranks:
            level = lane.levels[lane.ranks[0]]
            while level and self._is_tombstone(level[0]):
                level.popleft()
                self._buried -= 1
                self._leveled -= 1
            if level:
                return level[0]
            lane.drop_level(lane.ranks[0])
        return None

    def _head_of_fifo(self) -> Item | None:
        fifo = self.fifo
        while fifo and self._is_tombstone(fifo[0]):
            fifo.popleft()
            self._buried -= 1
        return fifo[0] if fifo else None

    def _remove_head(self, item: Item) -> None:
        terms = item._terms
        if terms is None or (not terms.heaped and self._is_plain(terms)):
            self.fifo.popleft()
        elif terms.heaped:
            heappop(self._lane(terms.lane).heap)
            self._heaped -= 1
        else:
            lane = self._lane(terms.lane)
            lane.levels[terms.rank].popleft()
            self._leveled -= 1
            if not lane.levels[terms.rank]:
                lane.drop_level(terms.rank)

    def _insert(self, item: Item, terms: Place) -> None:
        terms.heaped = True
        lane = self._lane(terms.lane)
        heappush(lane.heap, (terms.rank, item.seq, item))
        self._heaped += 1
        self._announce(lane)

    # ------------------------------------------------------------------------------------------------- keys

    def _full_key(self, item: Item) -> Key[Item] | None:
        """Return the key that keeps the item from going, or None."""
        terms = item._terms
        if terms is None or terms.key is None or terms.holds:
            return None
        key = self._keys.get(terms.key)
        return key if key is not None and key.out >= self._per_key else None

    def _park(self, item: Item, lane: Lane[Item], key: Key[Item]) -> None:
        self._remove_head(item)
        self._put_aside(item, item._make_terms(), lane, key)

    def _put_aside(self, item: Item, terms: Place, lane: Lane[Item], key: Key[Item]) -> None:
        terms.heaped = True
        heappush(key.parked.setdefault(lane, []), (terms.rank, item.seq, item))
        self._heaped += 1

    def _promote(self, key: Key[Item]) -> None:
        """Let the best parked item of each lane compete again: a unit is free, or the best one is gone."""
        if not key.parked:
            return
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
        terms = item._terms
        if terms is not None and terms.key is not None and (key := self._keys.get(terms.key)) is not None:
            self._promote(key)
            if not key.out and not key.parked:
                del self._keys[terms.key]

    # ------------------------------------------------------------------------------------------- tombstones

    @staticmethod
    def _is_plain(terms: Place) -> bool:
        return terms.rank == 0.0 and terms.key is None and terms.lane is None and not terms.heaped

    @staticmethod
    def _is_tombstone(item: Item) -> bool:
        return item.seq < 0 or (item._terms is not None and item._terms.heaped)

    def _compact(self) -> None:
        if self._buried > _TOO_FEW_TO_COMPACT and self._buried * 2 > len(self.fifo) + self._leveled:
            for level in self._deques():
                living = [item for item in level if not self._is_tombstone(item)]
                self._leveled -= 0 if level is self.fifo else len(level) - len(living)
                level.clear()
                level.extend(living)
            self._buried = 0
            for lane in self._all_lanes():
                for rank in [rank for rank in lane.ranks if not lane.levels[rank]]:
                    lane.drop_level(rank)
        if self._rotten > _TOO_FEW_TO_COMPACT and self._rotten * 2 > self._heaped:
            for heap in self._heaps():
                heap[:] = [entry for entry in heap if entry[2].seq == entry[1]]
                heapify(heap)
            self._heaped -= self._rotten
            self._rotten = 0
