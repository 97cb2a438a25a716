"""What is remembered if nothing is said, and a count that nobody asked for in time."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.thinning import Repeats, Thinning


def test_five_hundred_keys_are_remembered_for_ten_seconds() -> None:
    thinning: Thinning[int] = Thinning()
    for key in range(500):
        assert thinning.offer(key, 0)
    assert len(thinning) == 500
    assert not thinning.offer(0, math.nextafter(10, 0))
    assert thinning.offer(500, 0)
    assert len(thinning) == 500
    assert thinning.offer(499, 10)


def test_what_was_quiet_for_so_long_is_forgotten_at_that_instant() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    for now in (0, 5):
        thinning.offer("a", now)
    assert thinning.due(15) == [Repeats("a", 1, 5)]
    assert len(thinning) == 0


def test_a_count_is_not_lost_if_the_next_one_comes_before_the_question() -> None:
    thinning: Thinning[str] = Thinning(every=10)
    for now in (0, 5):
        thinning.offer("a", now)
    thinning.offer("b", 6)
    assert thinning.offer("a", 20)
    assert thinning.due(20) == [Repeats("a", 1, 5)]
    assert not thinning.offer("a", 29)
