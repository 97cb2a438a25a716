"""The smooth rate limit: published vectors, the bound in every window, waits that are exact."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_orchestrator.algorithms.gcra import Gcra, Reply

LIMITS = st.sampled_from([1.0, 2.0, 4.0, 8.0, 0.5])
TIMES = st.integers(0, 64).map(lambda step: step / 32)  # exact in binary
BURSTS = st.integers(1, 5)


def test_ten_a_second_with_a_burst_of_five() -> None:
    rule = Gcra(10, burst=5)
    arrivals = [0.0] * 6 + [0.05, 0.1, 0.15, 0.2] + [1.0] * 6
    waits = [rule.try_take(now) for now in arrivals]
    assert waits == pytest.approx([0] * 5 + [0.1, 0.05, 0, 0.05, 0] + [0] * 5 + [0.1])


def test_smooth_is_one_by_one() -> None:
    rule = Gcra(4)
    assert [rule.try_take(now) for now in (0, 0, 0.125, 0.25, 0.25, 5.0, 5.0)] == [0, 0.25, 0.125, 0, 0.25, 0, 0.25]


def test_what_is_due_by_the_clock_is_not_missed_by_a_float() -> None:
    rule = Gcra(10, burst=3)
    for n in range(3):
        assert rule.try_take(0.0) == 0, n
    assert [rule.try_take(n / 10) for n in range(1, 1000)] == [0] * 999


@given(LIMITS, BURSTS, st.lists(st.tuples(TIMES, st.integers(1, 5))))
def test_in_any_time_at_most_the_burst_and_the_rate(
    limit: float, burst: int, arrivals: list[tuple[float, int]]
) -> None:
    rule, now, taken = Gcra(limit, burst=burst), 0.0, list[tuple[float, int]]()
    for pause, cost in arrivals:
        now += pause
        cost = min(cost, burst)
        if rule.try_take(now, cost) == 0:
            taken.append((now, cost))
    for first in range(len(taken)):
        weight = 0
        for at, cost in taken[first:]:
            weight += cost
            assert weight <= burst + limit * (at - taken[first][0])


@given(LIMITS, BURSTS, st.lists(st.tuples(TIMES, st.integers(1, 5)), min_size=1))
def test_a_wait_is_exact(limit: float, burst: int, arrivals: list[tuple[float, int]]) -> None:
    rule, now = Gcra(limit, burst=burst), 0.0
    for pause, cost in arrivals:
        now += pause
        cost = min(cost, burst)
        while (wait := rule.try_take(now, cost)) > 0:
            assert rule.copy().try_take(now + wait * (1 - 1e-6), cost) > 0
            assert rule.copy().try_take(now + wait, cost) == 0
            now += wait


@given(LIMITS, BURSTS, st.lists(st.tuples(TIMES, st.integers(1, 5))), st.integers(1, 5), TIMES)
def test_what_is_taken_and_given_back_at_once_was_never_taken(
    limit: float, burst: int, arrivals: list[tuple[float, int]], cost: int, later: float
) -> None:
    rule, now = Gcra(limit, burst=burst), 0.0
    for pause, each in arrivals:
        now += pause
        rule.try_take(now, min(each, burst))
    cost = min(cost, burst)
    untouched = rule.copy()
    if rule.earliest(now, cost) <= now:
        rule.refund(rule.take(now, now, cost), now, cost)
        assert rule.reply(now + later, cost) == untouched.reply(now + later, cost)


def test_what_has_become_void_is_not_given_back() -> None:
    rule = Gcra(4)
    token = rule.take(0, 0)
    assert rule.try_take(0.5) == 0
    rule.refund(token, 0.5)  # its quarter of a second is over, and another has begun since
    assert rule.try_take(0.5) == 0.25


def test_costs_may_be_fractions() -> None:
    rule = Gcra(4, burst=1)
    assert [rule.try_take(0, 0.5), rule.try_take(0, 0.5), rule.try_take(0, 0.25)] == [0, 0, 0.0625]


def test_it_counts_from_when_it_was_due_but_a_stall_is_not_made_up_for() -> None:
    rule = Gcra(100)
    rule.take(0, 0)
    rule.take(0.01, 0.015)  # 5 ms late
    assert rule.earliest(0.015) == pytest.approx(0.02)
    rule.take(0.02, 3.0)  # a stall of three seconds
    assert rule.earliest(3.0) == pytest.approx(3.0 - 0.02 + 0.01)
    late = [rule.try_take(3.0) == 0 for _ in range(10)]
    assert sum(late) == 1


@given(LIMITS, BURSTS, st.lists(TIMES))
def test_after_a_rest_it_is_as_good_as_new(limit: float, burst: int, pauses: list[float]) -> None:
    rule, now = Gcra(limit, burst=burst), 0.0
    for pause in pauses:
        now += pause
        rule.try_take(now)
    reset_after = rule.reset_after(now)
    assert rule.is_idle(now) == (reset_after == 0)
    now += reset_after
    assert rule.is_idle(now)
    assert rule.reply(now) == Gcra(limit, burst=burst).reply(now) == Reply(True, burst, burst, 0, 0)


def test_the_five_numbers() -> None:
    rule = Gcra(2, burst=3)
    assert rule.reply(0) == (True, 3, 3, 0, 0)
    rule.take(0, 0, 2)
    assert rule.reply(0) == (True, 3, 1, 0, 1)
    assert rule.reply(0, 3) == (False, 3, 1, 1, 1)
    assert rule.reply(0.25, 2) == (False, 3, 1, 0.25, 0.75)
    assert rule.reply(0.5, 2) == (True, 3, 2, 0, 0.5)


def test_a_change_keeps_the_count_of_units() -> None:
    rule = Gcra(1, per=3600)
    rule.take(0, 0)
    rule.change(0, 1000, 1, 1)
    assert rule.earliest(0) == 0.001
    rule = Gcra(2, burst=4)
    rule.take(0, 0, 4)
    rule.change(1, 8, 1, 4)  # two of the four are worn off
    assert rule.reply(1) == (True, 4, 2, 0, 0.25)
    rule.change(1, 8, 1, 1)  # no more weighs than can be taken
    assert rule.reply(1) == (False, 1, 0, 0.125, 0.125)


def test_a_change_that_is_refused_changes_nothing() -> None:
    rule = Gcra(2, burst=4)
    rule.take(0, 0, 3)
    with pytest.raises(ValueError, match="burst must be >= 1 and finite, got 0"):
        rule.change(0, 5, 5, 0)
    assert (repr(rule), rule.reply(0)) == ("Gcra(2, per=1, burst=4)", (True, 4, 1, 0, 1.5))


def test_no_limit_is_no_limit() -> None:
    rule = Gcra(math.inf)
    assert [rule.try_take(0.0) for _ in range(100)] == [0] * 100
    assert rule.reply(0) == (True, 1, math.inf, 0, 0)
    rule.change(0, 1, 1, 1)
    assert [rule.try_take(0.0), rule.try_take(0.0)] == [0, 1]


def test_the_clock_of_another_run_finds_it_new() -> None:
    rule = Gcra(1, burst=2)
    rule.take(150_000, 150_000, 2)
    assert rule.copy().is_idle(20_000)
    assert rule.copy().reply(20_000) == (True, 2, 2, 0, 0)
    assert rule.try_take(20_000, 2) == 0
    assert rule.try_take(20_000) == 1
