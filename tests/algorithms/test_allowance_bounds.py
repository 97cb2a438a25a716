"""The edges of what a server said: the instant at which it is over, and words that were said in another run."""

from __future__ import annotations

import math

from trio_orchestrator.algorithms.allowance import Allowance


def held(now: float, seconds: float) -> Allowance:
    allowance = Allowance()
    allowance.hold(now, seconds)
    return allowance


def told(now: float, remaining: float, reset_after: float) -> Allowance:
    allowance = Allowance()
    allowance.observe(now, remaining, reset_after)
    return allowance


def test_a_new_one_was_told_nothing() -> None:
    assert Allowance().end == -math.inf
    assert Allowance().copy().earliest(0) == -math.inf


def test_one_unit_is_meant_if_nothing_is_said() -> None:
    allowance = told(0, 2, 10)
    token = allowance.take(0, 0)
    assert allowance.remaining(0) == 1
    assert allowance.earliest(0) <= 0
    allowance.refund(token, 0)
    assert allowance.remaining(0) == 2


def test_at_the_end_it_is_over() -> None:
    assert held(0, 10).remaining(math.nextafter(10, 0)) == 0
    assert held(0, 10).remaining(10) == math.inf
    assert told(0, 2, 10).remaining(math.nextafter(10, 0)) == 2
    assert told(0, 2, 10).remaining(10) == math.inf
    assert told(0, 0, 10).earliest(10, 5) == -math.inf


def test_what_was_said_in_another_run_is_forgotten_by_every_question() -> None:
    assert told(150_000, 0, 10).earliest(20_000) == -math.inf
    assert told(150_000, 0, 10).remaining(20_000) == math.inf
    assert told(150_000, 0, 10).reset_after(20_000) == 0
    assert told(150_000, 3, 10).take(20_000, 20_000) == -math.inf
    assert held(150_000, 10).remaining(20_000) == math.inf


def test_what_is_said_now_stands_whatever_was_said_in_another_run() -> None:
    allowance = held(150_000, 10)
    allowance.hold(20_000, 5)
    assert allowance.earliest(20_000) == 20_005
    allowance = held(150_000, 10)
    allowance.observe(20_000, 3, 5)
    assert allowance.remaining(20_000) == 3
    assert allowance.reset_after(20_000) == 5


def test_further_away_than_twice_the_longest_word_is_another_run() -> None:
    assert not held(100, 0.5).is_idle(99.5)
    assert held(100, 0.5).is_idle(99.4)
    assert not told(100, 0, 0.5).is_idle(99.5)
    assert told(100, 0, 0.5).is_idle(99.4)
