"""What a server said, and for how long."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.allowance import Allowance


def test_it_allows_everything_until_it_is_told_something() -> None:
    allowance = Allowance()
    assert allowance.is_idle(0)
    assert allowance.earliest(0, 1000) == -math.inf
    assert (allowance.remaining(0), allowance.reset_after(0)) == (math.inf, 0)


def test_an_earlier_word_for_longer_stays() -> None:
    allowance = Allowance()
    allowance.hold(0, 10)
    allowance.hold(1, 2)
    assert (allowance.earliest(1), allowance.remaining(1), allowance.reset_after(1)) == (10, 0, 9)
    assert not allowance.is_idle(9.5)
    assert allowance.is_idle(10)
    assert allowance.earliest(10) <= 10


def test_no_more_than_is_left_before_the_reset() -> None:
    allowance = Allowance()
    allowance.observe(0, 3, 10)
    assert allowance.earliest(1, 3) <= 1
    token = allowance.take(1, 1, 2)
    assert (allowance.earliest(1, 2), allowance.remaining(1)) == (10, 1)
    assert allowance.earliest(1, 1) <= 1
    allowance.refund(token, 1, 2)
    assert allowance.earliest(1, 3) <= 1
    assert allowance.earliest(10, 100) <= 10


def test_the_last_word_counts_and_is_not_changed_by_what_was_taken_before() -> None:
    allowance = Allowance()
    allowance.observe(0, 3, 10)
    token = allowance.take(1, 1, 2)
    allowance.observe(2, 5, 20)
    allowance.refund(token, 2, 2)
    assert allowance.remaining(2) == 5
    assert allowance.end == 22


def test_a_copy_is_its_own() -> None:
    allowance = Allowance()
    allowance.observe(0, 3, 10)
    twin = allowance.copy()
    twin.take(0, 0, 3)
    assert (allowance.remaining(0), twin.remaining(0)) == (3, 0)


def test_what_was_said_in_another_run_is_forgotten() -> None:
    allowance = Allowance()
    allowance.hold(150_000, 10)
    allowance.observe(150_000, 0, 10)
    assert allowance.is_idle(20_000)
    assert allowance.earliest(20_000) <= 20_000
    assert allowance.remaining(20_000) == math.inf
