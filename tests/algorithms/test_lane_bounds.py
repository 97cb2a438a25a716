"""What an item without a place asks for, and how many ranks of a lane have a deque of their own."""

from __future__ import annotations

from trio_orchestrator.algorithms.lane import Lane, Place


class Thing:
    """An item that asks for nothing."""

    seq = 0

    @property
    def _terms(self) -> Place | None:
        return None

    def _make_terms(self) -> Place:
        return Place()


def test_a_new_place_asks_for_nothing() -> None:
    place = Place()
    assert (place.rank, place.key, place.lane, place.weight) == (0.0, None, None, 1)
    assert (place.heaped, place.holds) == (False, False)


def test_thirty_two_ranks_have_a_deque_and_no_more() -> None:
    lane: Lane[Thing] = Lane()
    levels = [lane.level(float(rank)) for rank in range(31, -1, -1)]
    assert None not in levels
    assert lane.ranks == [float(rank) for rank in range(32)]
    assert lane.level(32.0) is None
    assert lane.level(5.0) is lane.levels[5.0] is levels[26]
    lane.drop_level(5.0)
    assert lane.level(32.0) is lane.levels[32.0]
    assert lane.ranks == [*(float(rank) for rank in range(32) if rank != 5), 32.0]
