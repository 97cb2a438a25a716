"""The edges of the smooth rate limit: what is refused, what is derived, and what a float more or less decides."""

from __future__ import annotations

import math
from typing import Any

import pytest

from trio_orchestrator.algorithms.gcra import Gcra


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(({"limit": bad}, f"limit must be > 0, got {bad!r}") for bad in (0, -1, math.nan)),
        *(
            ({"limit": 1, "per": bad}, f"per must be > 0 and finite, got {bad!r}")
            for bad in (0, -1, math.inf, math.nan)
        ),
        *(
            ({"limit": 1, "burst": bad}, f"burst must be >= 1 and finite, got {bad!r}")
            for bad in (0.99, -1, math.inf, math.nan)
        ),
    ],
)
def test_what_is_out_of_range_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        Gcra(**arguments)
    assert str(caught.value) == message


def test_the_smallest_and_the_largest_arguments() -> None:
    assert Gcra(1e-9, per=1e-9).try_take(0.0) == 0
    rule = Gcra(3, per=2, burst=1)
    assert [type(value) for value in (rule.limit, rule.per, rule.burst)] == [float] * 3
    assert (rule.limit, rule.per, rule.capacity) == (3, 2, 1)


@pytest.mark.parametrize(("burst", "reach"), [(1, 0.0), (3, 0.5), (5, 1.0)])
def test_one_unit_may_be_taken_within_its_reach(burst: int, reach: float) -> None:
    rule = Gcra(4, burst=burst)
    assert reach < rule.reach < reach + 1e-9  # a little more: what is due by the clock is not missed by a float


def test_being_late_is_made_good_up_to_two_percent_of_the_window() -> None:
    assert Gcra(4, per=10).lateness == 0.2
    assert Gcra(4, per=0.5).lateness == 0.01


@pytest.mark.parametrize("per", [1.0, 100.0, 0.01])
def test_a_billionth_of_an_interval_is_nothing(per: float) -> None:
    rule = Gcra(1, per=per)
    rule.tat = 1e-9 * per
    assert rule.is_idle(0.0)
    assert rule.earliest(0.0) <= 0
    rule.tat = 2e-9 * per
    assert not rule.is_idle(0.0)
    assert rule.earliest(0.0) > 0


def test_a_refund_gives_back_what_it_says_and_at_the_last_moment_too() -> None:
    rule = Gcra(4, burst=4)
    rule.take(0, 0, 3)
    rule.refund(0.75, 0)
    assert rule.tat == 0.5
    rule = Gcra(4)
    token = rule.take(0, 0)
    rule.refund(token, token)
    assert rule.tat == 0


def test_changed_before_anything_was_taken_it_is_as_new() -> None:
    rule = Gcra(4)
    rule.change(5.0, 1, 2, 3)
    assert rule.tat == -math.inf
