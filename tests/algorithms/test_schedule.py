"""The schedule against a sorted list that has every rule in it, and what it costs in memory."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from trio_orchestrator.algorithms.lane import Place
from trio_orchestrator.algorithms.schedule import Schedule

RANKS = st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 3.0])
KEYS = st.sampled_from([None, "a", "b", "c"])
LANES = st.sampled_from([None, None, "left", "right"])


class Thing:
    """An item that asks for nothing, or for a place."""

    __slots__ = ("__weakref__", "place", "seq")

    def __init__(self, seq: int, place: Place | None = None) -> None:
        self.seq = seq
        self.place = place

    @property
    def _terms(self) -> Place | None:
        return self.place

    def _make_terms(self) -> Place:
        if self.place is None:
            self.place = Place()
        return self.place


def thing(seq: int, rank: float = 0.0, key: Hashable = None, lane: Hashable = None, weight: int = 1) -> Thing:
    place = Place()
    place.rank, place.key, place.lane, place.weight = rank, key, lane, weight
    return Thing(seq, place)


@dataclass
class Entry:
    """What the model knows of an item."""

    item: Thing
    seq: int
    rank: float = 0.0
    key: Hashable = None
    lane: Hashable = None
    holds: bool = False


class Model:
    """The rules of the order, each in one line, at a linear price."""

    def __init__(self, per_key: float) -> None:
        self.per_key = per_key
        self.waiting: list[Entry] = []
        self.out: list[Entry] = []
        self.shut: set[Hashable] = set()

    def ready(self) -> list[Entry]:
        held = Counter(entry.key for entry in [*self.waiting, *self.out] if entry.holds)

        def may_go(entry: Entry) -> bool:
            free = entry.key is None or entry.holds or held[entry.key] < self.per_key
            return free and entry.lane not in self.shut

        return sorted(filter(may_go, self.waiting), key=lambda entry: (entry.rank, entry.seq))

    def behind(self) -> Entry | None:
        """Return what goes when the head may not: it keeps its place, and a unit of its key."""
        head = next(iter(self.ready()), None)
        if head is None:
            return None
        held, head.holds = head.holds, head.key is not None
        second = next((entry for entry in self.ready() if entry is not head), None)
        head.holds = held
        return second

    def take(self, entry: Entry) -> None:
        self.waiting.remove(entry)
        self.out.append(entry)
        entry.holds = entry.key is not None

    def of(self, item: Thing) -> Entry:
        return next(entry for entry in [*self.waiting, *self.out] if entry.item is item)


class ScheduleMachine(RuleBasedStateMachine):
    out = Bundle[Thing]("out")

    @initialize(per_key=st.sampled_from([1, 2, 3]))
    def begin(self, per_key: int) -> None:
        self.schedule: Schedule[Thing] = Schedule(per_key)
        self.model = Model(per_key)
        self.last = -1

    def seq(self) -> int:
        self.last += 1
        return self.last

    def waiting(self, data: st.DataObject) -> Entry:
        return data.draw(st.sampled_from(self.model.waiting))

    # ------------------------------------------------------------------------------------------- coming in

    @rule(number=st.integers(1, 5))
    def push_plain(self, number: int) -> None:
        for _ in range(number):
            item = Thing(self.seq())
            if self.schedule.plain:
                self.schedule.fifo.append(item)
            else:
                self.schedule.push(item)
            self.model.waiting.append(Entry(item, item.seq))

    @rule(rank=RANKS, key=KEYS, lane=LANES)
    def push(self, rank: float, key: Hashable, lane: Hashable) -> None:
        item = thing(self.seq(), rank, key, lane)
        self.schedule.push(item)
        self.model.waiting.append(Entry(item, item.seq, rank, key, lane))

    @rule(item=consumes(out), release=st.booleans())
    def restore(self, item: Thing, release: bool) -> None:
        entry = self.model.of(item)
        if release:
            self.schedule.release(item)
            entry.holds = False
        self.schedule.restore(item)
        self.model.out.remove(entry)
        self.model.waiting.append(entry)

    # ------------------------------------------------------------------------------------------- going out

    @rule(target=out)
    def pop(self) -> Thing | MultipleResults[Thing]:
        expected = self.model.ready()
        plain = self.schedule.plain and self.schedule.fifo
        item = self.schedule.fifo.popleft() if plain else self.schedule.pop()
        assert item is (expected[0].item if expected else None)
        if item is None:
            return multiple()
        self.model.take(expected[0])
        return item

    @rule(target=out, fits=st.booleans())
    def pop_behind(self, fits: bool) -> Thing | MultipleResults[Thing]:
        expected = self.model.behind()
        item = self.schedule.pop_behind(lambda _: fits)
        if not fits or expected is None:
            assert item is None
            return multiple()
        assert item is expected.item
        self.model.take(expected)
        return item

    @rule(item=consumes(out))
    def release(self, item: Thing) -> None:
        self.schedule.release(item)
        self.schedule.release(item)
        self.model.out.remove(self.model.of(item))

    # ------------------------------------------------------------------------------------- while they wait

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        self._discard(self.waiting(data))

    def _discard(self, entry: Entry) -> None:
        self.schedule.discard(entry.item)
        assert entry.item.seq < 0
        self.schedule.release(entry.item)
        self.model.waiting.remove(entry)

    @rule(rank=RANKS, key=KEYS, lane=LANES, number=st.integers(70, 120), step=st.integers(2, 9))
    def many_come_and_few_stay(self, rank: float, key: Hashable, lane: Hashable, number: int, step: int) -> None:
        for index in range(number):
            if index % 2:
                self.push(rank, key, lane)
            else:
                self.push_plain(1)
        for entry in [entry for index, entry in enumerate(self.model.waiting) if index % step]:
            self._discard(entry)

    @precondition(lambda self: self.model.waiting)
    @rule(data=st.data(), rank=RANKS)
    def reprioritise(self, data: st.DataObject, rank: float) -> None:
        entry = self.waiting(data)
        entry.rank, entry.seq = rank, self.seq()
        self.schedule.reprioritise(entry.item, entry.item._make_terms(), rank, entry.seq)

    @rule(lane=LANES)
    def shut(self, lane: Hashable) -> None:
        self.schedule.shut(lane)
        self.model.shut.add(lane)

    @rule(lane=LANES)
    def open(self, lane: Hashable) -> None:
        self.schedule.open(lane)
        self.model.shut.discard(lane)

    @rule(lane=st.sampled_from(["left", "right"]))
    def forget(self, lane: Hashable) -> None:
        if all(entry.lane != lane for entry in [*self.model.waiting, *self.model.out]):
            self.schedule.shut(lane)
            self.schedule.forget(lane)
            self.model.shut.discard(lane)

    @rule()
    def clear(self) -> None:
        gone = sorted(self.model.waiting, key=lambda entry: entry.seq)
        assert self.schedule.clear() == [entry.item for entry in gone]
        self.model.waiting.clear()
        for entry in gone:
            self.schedule.release(entry.item)

    # ------------------------------------------------------------------------------------------ what holds

    @invariant()
    def is_the_same(self) -> None:
        assert len(self.schedule) == len(self.model.waiting)
        assert {id(item) for item in self.schedule} == {id(entry.item) for entry in self.model.waiting}
        assert len(list(self.schedule)) == len(self.model.waiting)
        expected = self.model.ready()
        assert self.schedule.peek() is (expected[0].item if expected else None)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            for lane in list(self.model.shut):
                self.open(lane)
            self.drain()

    def drain(self) -> None:
        """Everything comes out in the end, in order, if units are given back."""
        for entry in self.model.out:
            self.schedule.release(entry.item)
        self.model.out.clear()
        while expected := self.model.ready():
            item = self.schedule.pop()
            assert item is expected[0].item
            self.schedule.release(item)
            expected[0].holds = False
            self.model.waiting.remove(expected[0])
        assert self.schedule.pop() is None
        assert len(self.schedule) == 0


def test_the_schedule_is_a_sorted_list_with_rules() -> None:
    run_state_machine_as_test(
        ScheduleMachine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


@given(ranks=st.lists(st.floats(-1e9, 1e9), max_size=100))
def test_items_come_out_by_rank_and_then_as_they_came(ranks: list[float]) -> None:
    schedule: Schedule[Thing] = Schedule(1)
    for seq, rank in enumerate(ranks):
        schedule.push(thing(seq, rank))
    out = [item.seq for item in iter(schedule.pop, None)]
    assert out == sorted(range(len(ranks)), key=lambda seq: (ranks[seq], seq))


@pytest.mark.parametrize("order", [range(100), range(99, -1, -1), [*range(50, 100), *range(50)]])
def test_restored_items_stand_where_they_stood_before(order: list[int]) -> None:
    schedule: Schedule[Thing] = Schedule(1)
    items = [Thing(seq) for seq in range(100)]
    for item in items:
        schedule.push(item)
    assert [schedule.pop() for _ in items] == items
    schedule.push(Thing(100))
    for seq in order:
        schedule.restore(items[seq])
    assert [item.seq for item in iter(schedule.pop, None)] == [*range(101)]


def test_a_blocked_key_blocks_nobody_else() -> None:
    schedule: Schedule[Thing] = Schedule(1)
    for seq in range(1000):
        schedule.push(thing(seq, key="a"))
    schedule.push(thing(1000, key="b"))
    schedule.push(Thing(1001))
    assert [item.seq for item in iter(schedule.pop, None)] == [0, 1000, 1001]


def test_a_shut_lane_holds_back_its_own_only() -> None:
    schedule: Schedule[Thing] = Schedule(1)
    for seq, lane in enumerate([None, "left", "right", "left", None]):
        schedule.push(thing(seq, lane=lane))
    schedule.shut("left")
    schedule.shut(None)
    assert [item.seq for item in iter(schedule.pop, None)] == [2]
    schedule.open(None)
    schedule.open("left")
    assert [item.seq for item in iter(schedule.pop, None)] == [0, 1, 3, 4]


def test_the_head_stays_when_the_one_behind_it_goes() -> None:
    schedule: Schedule[Thing] = Schedule(1)
    for seq, weight in enumerate([5, 1, 3]):
        schedule.push(thing(seq, weight=weight))

    def light(item: Thing) -> bool:
        return item._make_terms().weight == 1

    assert schedule.pop_behind(light) is not None
    assert schedule.pop_behind(light) is None
    assert [item.seq for item in iter(schedule.pop, None)] == [0, 2]


def _plain(seq: int) -> Thing:
    return Thing(seq)


def _ranked(seq: int) -> Thing:
    return thing(seq, rank=-float(seq))


def _keyed(seq: int) -> Thing:
    return thing(seq, key=seq % 7)


def _laned(seq: int) -> Thing:
    return thing(seq, lane=seq % 3)


@pytest.mark.parametrize("make", [_plain, _ranked, _keyed, _laned])
def test_memory_of_discarded_items_comes_back(make: Callable[[int], Thing]) -> None:
    schedule: Schedule[Thing] = Schedule(1)
    for seq in range(0, 7000, 1000):
        if make is _keyed:  # every key is full, and everything parks
            schedule.push(thing(seq, key=seq // 1000))
            assert schedule.pop() is not None
    items = [make(seq) for seq in range(10_000, 20_000)]
    for item in items:
        schedule.push(item)
    schedule.peek()
    alive = weakref.WeakSet(items)
    for item in items[:-10]:
        schedule.discard(item)
    del items, item
    gc.collect()
    assert len(schedule) == 10
    assert len(alive) <= 10 + 2 * 64


@pytest.mark.parametrize("make", [_plain, _keyed])
def test_memory_of_changed_ranks_comes_back(make: Callable[[int], Thing]) -> None:
    schedule: Schedule[Thing] = Schedule(1)
    items = [make(seq) for seq in range(100)]
    for item in items:
        schedule.push(item)
    seq = 100
    for change in range(100):
        for item in items:
            schedule.reprioritise(item, item._make_terms(), float(-change), seq)
            seq += 1
    referrers = sum(isinstance(one, tuple) for item in items[:10] for one in gc.get_referrers(item))
    assert referrers <= 10 * 5  # entries of heaps: three for each item in the mean, not a hundred
    assert len(schedule) == 100
