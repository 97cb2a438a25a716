"""Where items wait: the cheap places are used, and what waits for a key or a lane is never forgotten there."""

from __future__ import annotations

from collections.abc import Hashable
from random import Random

from trio_orchestrator.algorithms.lane import Place
from trio_orchestrator.algorithms.schedule import Schedule


class Thing:
    """An item that asks for nothing, or for a place."""

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


def thing(seq: int, rank: float = 0.0, key: Hashable = None, lane: Hashable = None) -> Thing:
    place = Place()
    place.rank, place.key, place.lane = rank, key, lane
    return Thing(seq, place)


def filled(*things: Thing, per_key: float = 1) -> Schedule[Thing]:
    schedule: Schedule[Thing] = Schedule(per_key)
    for item in things:
        schedule.push(item)
    return schedule


def drained(schedule: Schedule[Thing]) -> list[int]:
    """Pop all that may go, and give back each unit at once."""
    seqs = list[int]()
    while (item := schedule.pop()) is not None:
        seqs.append(item.seq)
        schedule.release(item)
    return seqs


# ------------------------------------------------------------------------------------------------------ places


def test_a_new_one_is_plain_and_one_with_something_aside_is_not() -> None:
    schedule = filled(Thing(0))
    assert (schedule.plain, schedule.aside) == (True, 0)
    assert schedule.head() is schedule.fifo[0]
    ranked = thing(1, rank=1.0)
    schedule.push(ranked)
    assert (schedule.plain, schedule.aside, len(schedule)) == (False, 1, 2)
    assert (schedule._leveled, schedule._heaped) == (1, 0)  # a rank has a deque of its own
    schedule.reprioritise(ranked, ranked._make_terms(), -1.0, 2)
    assert (schedule.aside, schedule._leveled, schedule._heaped) == (2, 1, 1)  # the copy in the deque is counted
    assert schedule.head() is ranked
    assert (schedule.aside, len(schedule)) == (1, 2)
    schedule.discard(ranked)
    assert (schedule.aside, schedule._heaped, len(schedule)) == (0, 1, 1)


def test_restored_items_go_back_to_the_deque() -> None:
    items = [Thing(seq) for seq in range(3)]
    schedule = filled(*items)
    assert [schedule.pop(), schedule.pop()] == items[:2]
    schedule.restore(items[1])
    schedule.restore(items[0])
    assert (schedule.plain, list(schedule.fifo)) == (True, items)
    assert [schedule.pop() for _ in items] == items
    schedule.restore(items[2])
    assert (schedule.plain, list(schedule.fifo)) == (True, items[2:])


def test_a_tombstone_before_it_does_not_keep_a_restored_item_from_the_deque() -> None:
    items = [Thing(seq) for seq in range(3)]
    schedule = filled(*items)
    schedule.pop()
    schedule.discard(items[1])
    schedule.restore(items[0])
    assert (schedule.plain, list(schedule.fifo)) == (True, [items[0], items[2]])


def test_restored_items_with_a_place_go_back_to_theirs() -> None:
    plain, ranked, later = thing(0), thing(1, rank=2.0), thing(2, rank=2.0)
    schedule = filled(plain, ranked, later)
    assert [schedule.pop(), schedule.pop()] == [plain, ranked]
    schedule.restore(ranked)
    schedule.restore(plain)
    assert list(schedule.fifo) == [plain]
    assert (len(schedule), schedule._leveled, schedule._heaped) == (3, 2, 0)
    assert drained(schedule) == [0, 1, 2]


# -------------------------------------------------------------------------------------------------------- keys


def test_what_waits_for_a_key_comes_when_a_unit_is_given_back() -> None:
    first, *others = [thing(seq, key="a") for seq in range(4)]
    schedule = filled(first, *others)
    assert schedule.pop() is first
    assert schedule.pop() is None
    assert len(schedule) == 3
    schedule.release(first)
    assert drained(schedule) == [1, 2, 3]
    assert schedule._keys == {}


def test_the_successor_of_one_that_was_discarded_or_moved_is_not_forgotten() -> None:
    for change in ("discard", "move"):
        first, second, third = (thing(seq, key="a") for seq in range(3))
        schedule = filled(first, second, third)
        assert (schedule.pop(), schedule.pop()) == (first, None)
        schedule.release(first)  # the second one competes for the unit
        if change == "discard":
            schedule.discard(second)
            assert schedule._keys == {}  # nothing is out, and nothing waits for it
        else:
            schedule.shut(None)
            schedule.reprioritise(second, second._make_terms(), 5.0, 3)
            schedule.open(None)
        assert drained(schedule) == ([2] if change == "discard" else [2, 3])


def test_with_a_named_lane_too_nothing_that_waits_for_a_key_is_forgotten() -> None:
    first, second, third = (thing(seq, key="a", lane="left") for seq in range(3))
    schedule = filled(first, second, third)
    assert (schedule.pop(), schedule.pop()) == (first, None)
    schedule.release(first)
    schedule.discard(second)
    assert drained(schedule) == [2]


def test_of_several_ranks_heaps_and_the_deque_the_best_goes_first() -> None:
    items = [thing(0, rank=1.0), Thing(1), thing(2, rank=-1.0), thing(3, rank=1.0), thing(4, rank=3.0)]
    schedule = filled(*items)
    schedule.reprioritise(items[4], items[4]._make_terms(), -0.5, 5)
    schedule._head(schedule._default)
    assert drained(schedule) == [2, 5, 1, 0, 3]


def test_a_full_key_is_put_aside_once_where_there_is_one_lane() -> None:
    items = [thing(0, rank=-1.0, key="a"), thing(1, rank=-1.0, key="a"), thing(2, rank=1.0)]
    schedule = filled(*items)
    assert [schedule.pop(), schedule.pop(), schedule.pop()] == [items[0], items[2], None]
    assert len(schedule) == 1
    schedule.release(items[0])
    assert schedule.pop() is items[1]


def test_a_key_is_known_as_long_as_something_is_out_or_waits() -> None:
    first, second = thing(0, key="a"), thing(1, key="a")
    schedule = filled(first, second)
    schedule.pop()
    schedule.pop()
    assert schedule.clear() == [second]
    assert list(schedule) == []
    assert list(schedule._keys) == ["a"]
    schedule.release(first)
    assert schedule._keys == {}
    schedule = filled(thing(2, key="a"))
    assert drained(schedule) == [2]
    assert schedule._keys == {}


def test_a_key_for_which_something_only_waits_is_forgotten_when_all_is_cleared() -> None:
    items = [thing(seq, key="a") for seq in range(3)]
    schedule = filled(*items)
    assert (schedule.pop(), schedule.pop()) == (items[0], None)
    schedule.release(items[0])
    assert schedule.clear() == items[1:]
    assert schedule._keys == {}


def test_a_restored_item_that_holds_its_unit_needs_no_other() -> None:
    item = thing(0, rank=1.0, key="a")
    schedule = filled(item)
    assert schedule.pop() is item
    schedule.restore(item)
    assert schedule.pop() is item
    schedule.release(item)
    assert schedule._keys == {}


# ------------------------------------------------------------------------------------------------------- lanes


def test_what_is_left_of_a_forgotten_lane_holds_nothing_back() -> None:
    gone = thing(0, lane="left")
    schedule = filled(gone)
    lane = schedule._lanes["left"]
    schedule.discard(gone)
    schedule.forget("left")
    assert (lane.levels, lane.ranks, lane.heap, lane.shut) == ({}, [], [], True)
    schedule.push(thing(1, lane="left"))
    assert drained(schedule) == [1]


def test_a_cleared_schedule_is_used_again() -> None:
    schedule = filled(thing(0, lane="left", rank=1.0), thing(1, lane="right"), thing(2, key="a"))
    schedule.peek()
    assert [item.seq for item in schedule.clear()] == [0, 1, 2]
    assert (schedule.aside, len(schedule), schedule._ready) == (0, 0, [])
    for item in (thing(3, lane="left", rank=2.0), thing(4, lane="right"), Thing(5)):
        schedule.push(item)
    assert drained(schedule) == [4, 5, 3]


def test_a_lane_is_announced_anew_by_a_better_item_only() -> None:
    schedule = filled(thing(0, lane="left"), thing(1, lane="left"))
    assert len(schedule._ready) == 1
    schedule.push(thing(2, rank=-1.0, lane="left"))
    assert len(schedule._ready) == 2
    schedule.push(thing(3, rank=-1.0, lane="left"))
    assert len(schedule._ready) == 2
    assert drained(schedule) == [2, 3, 0, 1]


def test_a_rank_whose_items_are_gone_is_forgotten_beside_a_lane_too() -> None:
    schedule = filled(thing(0, rank=1.0), thing(1, rank=2.0, lane="left"))
    assert drained(schedule) == [0, 1]
    assert [lane.ranks for lane in schedule._all_lanes()] == [[], []]


def test_what_came_out_of_order_stands_between_the_ranks() -> None:
    early, late, last = (thing(seq, rank=-0.5) for seq in range(3))
    schedule = filled(early, late, last)
    assert [schedule.pop(), schedule.pop()] == [early, late]
    schedule.restore(early)
    schedule.restore(late)  # behind one that stands before it: in a heap
    schedule.push(thing(3, rank=-1.0))
    schedule.push(Thing(4))
    assert (schedule._heaped, schedule._leveled, schedule._buried) == (1, 3, 0)
    assert drained(schedule) == [3, 0, 1, 2, 4]


def test_what_is_left_of_a_heap_that_was_compacted_is_in_order() -> None:
    ranks = [float(rank) for rank in range(1, 401)]
    Random(1).shuffle(ranks)
    items = [thing(seq, rank=rank) for seq, rank in enumerate(ranks)]  # 32 ranks have a deque, the others share a heap
    schedule = filled(*items)
    gone = [item for item in items if item._make_terms().rank % 4]
    for item in gone:
        schedule.discard(item)
    assert schedule._heaped < 300  # it was compacted
    assert len(schedule) == 100
    assert [ranks[seq] for seq in drained(schedule)] == [float(rank) for rank in range(4, 401, 4)]
