"""The edges of the exact rate limit: what is refused, what is asked when nothing is left, and what has expired."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trio_orchestrator.algorithms.sliding_log import SlidingLog


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"limit": bad}, f"limit must be >= 1, got {bad!r}") for bad in (0, -1, 0.5)),
        *(({"limit": bad}, f"limit must be a whole number or math.inf, got {bad!r}") for bad in (1.5, math.nan)),
        *(
            ({"limit": 1, "per": bad}, f"per must be > 0 and finite, got {bad!r}")
            for bad in (0, -1, math.inf, math.nan)
        ),
    ],
)
def test_what_is_out_of_range_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        SlidingLog(**arguments)
    assert str(caught.value) == message


def test_the_arguments_are_numbers_of_their_kind() -> None:
    rule = SlidingLog(2.0, per=3)
    assert (rule.limit, rule.capacity, rule.per, rule.lateness) == (2, 2, 3.0, 0.0)
    assert (type(rule.limit), type(rule.per)) == (int, float)


def test_it_is_told_since_when_something_may_be_taken() -> None:
    rule = SlidingLog(2)
    assert rule.earliest(5.0) == -math.inf
    rule.take(5, 5, 1)
    assert rule.earliest(5.0) == -math.inf
    rule.take(5, 5, 1)
    assert rule.earliest(5.0) == 6.0
    assert rule.earliest(5.0, 3) == math.inf  # never
    assert rule.earliest(7.5) == 6.0
    rule.take(7.5, 7.5, 2)
    assert rule.earliest(1.0) == -math.inf  # in another run


def test_units_of_one_instant_are_one_entry_and_others_are_not() -> None:
    rule = SlidingLog(4, per=2)
    rule.take(0, 0)
    rule.take(0, 0)
    assert len(rule._entries) == 1
    rule.take(1, 1)
    rule.take(2, 2)
    assert (rule.remaining(2), rule.remaining(3), rule.remaining(4)) == (2, 3, 4)


def test_any_of_several_entries_can_be_given_back() -> None:
    rule = SlidingLog(6, per=10)
    tokens = [rule.take(now, now, 2) for now in (0, 1, 2)]
    rule.refund(tokens[1], 2, 2)
    assert [at for at, _ in rule._entries] == [0, 2]
    rule.refund(tokens[0], 2)
    assert [*rule._entries] == [(0, 1), (2, 2)]
    rule.refund(tokens[1], 2)  # it is not there any more
    assert rule.remaining(2) == 3
    rule.refund(tokens[2], 2, 2)
    assert rule.remaining(2) == 5


def test_what_has_expired_is_not_given_back() -> None:
    rule = SlidingLog(1)
    token = rule.take(0, 0)
    rule.refund(token, 1.5)
    assert rule.earliest(1.5) == 1.0


def test_each_question_forgets_what_is_too_old() -> None:
    rule = SlidingLog(2)
    rule.take(0, 0, 2)
    assert rule.copy().remaining(0.5) == 0
    assert rule.copy().remaining(1.0) == 2
    assert rule.copy().reset_after(0.25) == 0.75
    assert rule.copy().reset_after(1.5) == 0
    rule.change(1.5, 2, 3)
    assert rule.try_take(1.5, 2) == 0
