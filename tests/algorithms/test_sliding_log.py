"""The exact rate limit: every window of every phase."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.sliding_log import SlidingLog

TIMES = st.integers(0, 64).map(lambda step: step / 32)  # exact in binary
ARRIVALS = st.lists(st.tuples(TIMES, st.integers(1, 5)), max_size=40)


def fullest(taken: list[tuple[float, int]], per: float) -> int:
    """The most units in any half-open window: one that ends with one of the starts is the fullest."""
    return max((sum(cost for at, cost in taken if end - per < at <= end) for end, _ in taken), default=0)


@given(st.integers(1, 5), st.sampled_from([0.5, 1.0, 2.0]), ARRIVALS)
def test_no_window_holds_more(limit: int, per: float, arrivals: list[tuple[float, int]]) -> None:
    rule, now, taken = SlidingLog(limit, per), 0.0, list[tuple[float, int]]()
    for pause, cost in arrivals:
        now += pause
        cost = min(cost, limit)
        tried = [*taken, (now, cost)]
        if rule.try_take(now, cost) == 0:
            taken = tried
        else:
            assert fullest(tried, per) > limit  # none is refused in vain
    assert fullest(taken, per) <= limit


@given(st.integers(1, 5), ARRIVALS)
def test_a_wait_is_exact(limit: int, arrivals: list[tuple[float, int]]) -> None:
    rule, now = SlidingLog(limit), 0.0
    for pause, cost in arrivals:
        now += pause
        cost = min(cost, limit)
        while (wait := rule.try_take(now, cost)) > 0:
            assert rule.copy().try_take(math.nextafter(now + wait, 0), cost) > 0
            now += wait
            assert rule.copy().try_take(now, cost) == 0


@given(st.integers(1, 5), ARRIVALS, st.integers(1, 5), ARRIVALS, TIMES)
def test_what_is_given_back_was_never_taken(
    limit: int, before: list[tuple[float, int]], cost: int, after: list[tuple[float, int]], later: float
) -> None:
    rule, now, cost = SlidingLog(limit), 0.0, min(cost, limit)
    for pause, each in before:
        now += pause
        rule.try_take(now, min(each, limit))
    if rule.earliest(now, cost) > now:
        return
    twin = rule.copy()
    token = rule.take(now, now, cost)
    for pause, each in after:  # what the one lets in, the other does as well
        now += pause
        if rule.try_take(now, min(each, limit)) == 0:
            assert twin.try_take(now, min(each, limit)) == 0
    rule.refund(token, now, cost)
    assert rule.reply(now) == twin.reply(now)
    assert rule.reply(now + later, limit) == twin.reply(now + later, limit)


def test_a_window_is_half_open() -> None:
    rule = SlidingLog(1)
    assert [rule.try_take(now) for now in (0.0, math.nextafter(1.0, 0), 1.0)] == [0, pytest.approx(0, abs=1e-15), 0]
    assert rule.try_take(math.nextafter(2.0, 0)) > 0


def test_the_five_numbers() -> None:
    rule = SlidingLog(5, per=2)
    assert rule.reply(0) == (True, 5, 5, 0, 0)
    rule.take(0, 0, 2)
    rule.take(0.5, 0.5, 2)
    assert rule.reply(0.5) == (True, 5, 1, 0, 2)
    assert rule.reply(0.5, 2) == (False, 5, 1, 1.5, 2)
    assert rule.reply(0.5, 4) == (False, 5, 1, 2, 2)
    assert rule.reply(2, 2) == (True, 5, 3, 0, 0.5)


def test_it_counts_from_when_it_was_taken_however_late() -> None:
    rule = SlidingLog(1)
    rule.take(0, 0)
    rule.take(1.0, 1.25)
    assert rule.try_take(2.0) == 0.25


def test_a_change_weighs_what_was_taken_by_the_new_window() -> None:
    rule = SlidingLog(4, per=1)
    for now in (0, 0.25, 0.5, 0.5):
        rule.take(now, now)
    rule.change(0.5, 2, 1)
    assert rule.try_take(0.5) == 1.0  # three must go
    rule.change(0.5, 2, 0.5)
    assert rule.try_take(0.5) == 0.5
    rule.change(0.5, 4, 0.5)
    assert rule.try_take(0.5) == 0


def test_after_a_window_it_is_as_good_as_new() -> None:
    rule = SlidingLog(3)
    rule.take(5, 5, 3)
    assert not rule.is_idle(5.5)
    assert rule.is_idle(6)
    assert rule.reply(6) == SlidingLog(3).reply(6)


def test_no_limit_is_no_limit() -> None:
    rule = SlidingLog(math.inf)
    assert [rule.try_take(0.0, 10) for _ in range(100)] == [0] * 100
    assert rule.remaining(0) == math.inf


def test_memory_is_that_of_a_window() -> None:
    rule = SlidingLog(1000, per=1)
    for step in range(100_000):
        rule.try_take(step / 4096)
    assert len(rule._entries) <= 1000


def test_the_clock_of_another_run_finds_it_new() -> None:
    rule = SlidingLog(2)
    rule.take(150_000, 150_000, 2)
    assert rule.copy().is_idle(20_000)
    assert rule.try_take(20_000, 2) == 0
    assert rule.try_take(20_000) == 1
